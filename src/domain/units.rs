//! Units of the configuration and of the arithmetic: durations, rates, sizes.
//!
//! A rate is kept exactly as it was written, as a fraction of whole numbers in
//! lowest terms, and is rounded once, where it is turned into the time a token
//! takes (the emission interval): at most 1/2 ns of at least 1000 ns, so never
//! by more than 0.05 %.
use std::fmt;
use std::time::Duration;

/// Nanoseconds: a duration, or an instant of `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Nanos(pub u64);

impl From<Duration> for Nanos {
    /// Saturates at 584 years.
    fn from(duration: Duration) -> Nanos {
        Nanos(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
    }
}

const NS_PER_MS: u64 = 1_000_000;
const NS_PER_S: u64 = 1_000_000_000;
const NS_PER_MIN: u64 = 60 * NS_PER_S;
const NS_PER_H: u64 = 60 * NS_PER_MIN;
const NS_PER_D: u64 = 24 * NS_PER_H;

/// The slowest rate is one token in this time, and no bucket may take longer to
/// fill.
pub const LONGEST_FILL: Duration = Duration::from_secs(366 * 24 * 60 * 60);
/// The fastest rate, in tokens per second.
pub const MAX_TOKENS_PER_S: u64 = 1_000_000;
/// How many decimals the tokens of a rate may have.
const DECIMALS: usize = 6;
const MICRO: u128 = 1_000_000;

/// Tokens per period, exactly as written.
///
/// `token_ns / tokens` nanoseconds make one token; the two have no common
/// divisor, so equal rates are equal values however they were written.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rate {
    tokens: u128,
    token_ns: u128,
}

impl Rate {
    /// Reads `"5/m"`, `"0.2/s"`, `"100/10s"`: tokens (at most 6 decimals) per
    /// `s`, `m`, `h`, `d` or duration, from 1/366d to 1,000,000/s. The error is a
    /// sentence about the text.
    pub fn parse(text: &str) -> Result<Rate, String> {
        let form = || {
            format!(
                "{} is not a rate; write tokens per period, such as \"5/m\", \"0.2/s\" or \"100/10s\"",
                quoted(text)
            )
        };
        let (tokens, period) = text.split_once('/').ok_or_else(form)?;
        let micro_tokens = match parse_micro(tokens) {
            Micro::Value(value) => value,
            Micro::TooFine => {
                return Err(format!(
                    "the tokens of rate {} have more than {DECIMALS} decimals; write fewer, or a longer period",
                    quoted(text)
                ));
            }
            Micro::TooLarge => return Err(too_fast(text)),
            Micro::NotANumber => return Err(form()),
        };
        let period_ns = match period {
            "s" => NS_PER_S,
            "m" => NS_PER_MIN,
            "h" => NS_PER_H,
            "d" => NS_PER_D,
            other => duration_ns(other).map_err(|_| form())?,
        };
        if period_ns == 0 {
            return Err(format!(
                "the period of rate {} is 0; it must be longer",
                quoted(text)
            ));
        }
        // Both sides of tokens/period <= most and >= least, multiplied out.
        let (micro_tokens, period_ns) = (micro_tokens, u128::from(period_ns));
        if micro_tokens * u128::from(NS_PER_S) > u128::from(MAX_TOKENS_PER_S) * MICRO * period_ns {
            return Err(too_fast(text));
        }
        if micro_tokens * LONGEST_FILL.as_nanos() < MICRO * period_ns {
            return Err(format!("rate {} is below the least, 1/366d", quoted(text)));
        }
        Ok(Rate::reduced(micro_tokens, MICRO * period_ns))
    }

    fn reduced(tokens: u128, token_ns: u128) -> Rate {
        let divisor = gcd(tokens, token_ns);
        Rate {
            tokens: tokens / divisor,
            token_ns: token_ns / divisor,
        }
    }

    /// Nanoseconds per token, rounded to the nearest; at least 1000, and at most
    /// `u64::MAX` (a share of a slow rate among very many gateways).
    pub fn emission_ns(&self) -> u64 {
        let nearest = (self.token_ns + self.tokens / 2) / self.tokens;
        u64::try_from(nearest).unwrap_or(u64::MAX)
    }

    /// Microseconds per token: the double that is nearest to the exact value.
    pub fn emission_us(&self) -> f64 {
        nearest_f64(self.token_ns, self.tokens * 1000)
    }

    /// A gateway's share among `parts` gateways: the rate divided by their number.
    /// 0 counts as 1.
    pub fn scaled(&self, parts: u32) -> Rate {
        Rate::reduced(
            self.tokens,
            self.token_ns.saturating_mul(u128::from(parts.max(1))),
        )
    }

    /// The time an empty bucket of `capacity` tokens takes to fill, exact to the
    /// nanosecond (rounded up).
    pub fn fill(&self, capacity: u32) -> Duration {
        let capacity = u128::from(capacity);
        let (whole, rest) = (self.token_ns / self.tokens, self.token_ns % self.tokens);
        let ns = whole
            .saturating_mul(capacity)
            .saturating_add((rest * capacity).div_ceil(self.tokens));
        let seconds = u64::try_from(ns / u128::from(NS_PER_S)).unwrap_or(u64::MAX);
        Duration::new(seconds, (ns % u128::from(NS_PER_S)) as u32)
    }
}

impl fmt::Debug for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rate({} tokens in {} ns)", self.tokens, self.token_ns)
    }
}

fn too_fast(text: &str) -> String {
    format!("rate {} is above the most, 1000000/s", quoted(text))
}

enum Micro {
    Value(u128),
    TooFine,
    TooLarge,
    NotANumber,
}

/// A number of tokens in millionths.
fn parse_micro(text: &str) -> Micro {
    let (whole, decimals) = match text.split_once('.') {
        Some((whole, decimals)) if !decimals.is_empty() => (whole, decimals),
        Some(_) => return Micro::NotANumber,
        None => (text, ""),
    };
    let digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(decimals) {
        return Micro::NotANumber;
    }
    if decimals.len() > DECIMALS {
        return Micro::TooFine;
    }
    let Ok(whole) = whole.parse::<u64>() else {
        return Micro::TooLarge;
    };
    let fraction: u128 = format!("{decimals:0<DECIMALS$}").parse().unwrap_or(0);
    Micro::Value(u128::from(whole) * MICRO + fraction)
}

fn gcd(mut a: u128, mut b: u128) -> u128 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a.max(1)
}

/// The double nearest to `numerator / denominator` (ties to even). The quotient
/// is taken to more bits than a double has, the remainder is remembered in the
/// lowest bit, and so the one rounding is that of the last conversion.
fn nearest_f64(numerator: u128, denominator: u128) -> f64 {
    const BITS: u32 = 62;
    let mut quotient = numerator / denominator;
    let mut remainder = numerator % denominator;
    let mut shift = 0;
    while quotient >> BITS == 0 && remainder != 0 {
        // remainder < denominator <= 2^127, as rates are bounded
        remainder <<= 1;
        quotient <<= 1;
        if remainder >= denominator {
            remainder -= denominator;
            quotient |= 1;
        }
        shift += 1;
        if shift > 1000 {
            break;
        }
    }
    if remainder != 0 {
        quotient |= 1;
    }
    quotient as f64 / 2f64.powi(shift)
}

/// Reads `"20ms"`, `"5s"`, `"10m"`, `"1h"`, `"7d"`. The error is a sentence about
/// the text.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    duration_ns(text).map(Duration::from_nanos)
}

fn duration_ns(text: &str) -> Result<u64, String> {
    let wrong = || {
        format!(
            "{} is not a duration; write a whole number and a unit, such as \"20ms\", \"5s\", \"10m\", \"1h\" or \"7d\"",
            quoted(text)
        )
    };
    let (number, unit) = number_and_unit(text).ok_or_else(wrong)?;
    let unit_ns = match unit {
        "ms" => NS_PER_MS,
        "s" => NS_PER_S,
        "m" => NS_PER_MIN,
        "h" => NS_PER_H,
        "d" => NS_PER_D,
        _ => return Err(wrong()),
    };
    number
        .and_then(|number| number.checked_mul(unit_ns))
        .ok_or_else(|| format!("duration {} is too long", quoted(text)))
}

/// Reads `"64MiB"` as bytes (units `B`, `KiB`, `MiB`, `GiB`, `TiB`). The error is
/// a sentence about the text.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let wrong = || {
        format!(
            "{} is not a size; write a whole number and a unit (B, KiB, MiB, GiB), such as \"64MiB\"",
            quoted(text)
        )
    };
    let (number, unit) = number_and_unit(text).ok_or_else(wrong)?;
    let unit_bytes = match unit {
        "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "TiB" => 1u64 << 40,
        _ => return Err(wrong()),
    };
    number
        .and_then(|number| number.checked_mul(unit_bytes))
        .ok_or_else(|| format!("size {} is too large", quoted(text)))
}

/// Splits `"20ms"`; the number is `None` where it passes 64 bits.
fn number_and_unit(text: &str) -> Option<(Option<u64>, &str)> {
    let split = text.bytes().position(|byte| !byte.is_ascii_digit())?;
    if split == 0 {
        return None;
    }
    Some((text[..split].parse().ok(), &text[split..]))
}

/// What was written, for an error sentence: escaped, and cut where it is long.
pub(crate) fn quoted(text: &str) -> String {
    const LONGEST: usize = 64;
    match text.char_indices().nth(LONGEST) {
        None => format!("{text:?}"),
        Some((cut, _)) => format!("{:?}…", &text[..cut]),
    }
}
