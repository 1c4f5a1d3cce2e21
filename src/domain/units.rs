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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn rates_and_their_emission_intervals() {
        let rows = [
            ("5/m", 12_000_000_000),
            ("0.2/s", 5_000_000_000),
            ("100/10s", 100_000_000),
            ("1/s", NS_PER_S),
            ("1.5/s", 666_666_667),
            ("1/500ms", 500_000_000),
            // B08: rates below one a second.
            ("0.1/s", 10_000_000_000),
            ("1/d", NS_PER_D),
            ("1/366d", 366 * NS_PER_D),
            ("0.000001/s", 1_000_000 * NS_PER_S),
            ("1000000/s", 1000),
            ("999999/s", 1000),
            ("31622400000000/366d", 1000),
            ("007/s", 142_857_143),
        ];
        for (text, emission_ns) in rows {
            let rate = Rate::parse(text).unwrap();
            assert_eq!(rate.emission_ns(), emission_ns, "{text}");
            let off = rate.emission_us() * 1000.0 / emission_ns as f64 - 1.0;
            assert!(off.abs() <= 0.001, "{text}: rounded by {off}");
        }
    }

    #[test]
    fn equal_rates_are_equal() {
        let same = [
            "1/s",
            "60/m",
            "3600/h",
            "86400/d",
            "0.5/500ms",
            "1.000000/1s",
        ];
        for text in same {
            assert_eq!(Rate::parse(text), Rate::parse("1/s"), "{text}");
        }
        assert_ne!(Rate::parse("1/s"), Rate::parse("61/m"));
    }

    #[test]
    fn bad_rates() {
        let rows = [
            ("", "is not a rate"),
            ("5", "is not a rate"),
            ("/s", "is not a rate"),
            ("5/", "is not a rate"),
            ("5/x", "is not a rate"),
            ("5/sec", "is not a rate"),
            ("5/m/h", "is not a rate"),
            ("-5/s", "is not a rate"),
            ("+5/s", "is not a rate"),
            ("1e3/s", "is not a rate"),
            ("nan/s", "is not a rate"),
            ("inf/s", "is not a rate"),
            (".5/s", "is not a rate"),
            ("5./s", "is not a rate"),
            ("1.2.3/s", "is not a rate"),
            ("5 /s", "is not a rate"),
            ("5/-1s", "is not a rate"),
            ("5/1.5s", "is not a rate"),
            ("\u{663}/s", "is not a rate"),
            ("1.0000001/s", "more than 6 decimals"),
            // B09: a limit of zero.
            ("0/s", "below the least"),
            ("0.0/d", "below the least"),
            ("5/0s", "is 0"),
            ("1/367d", "below the least"),
            ("0.000001/d", "below the least"),
            ("1000001/s", "above the most"),
            ("1000000.000001/s", "above the most"),
            ("1001/ms", "is not a rate"),
            ("1001/1ms", "above the most"),
            ("99999999999999999999/d", "above the most"),
            ("18446744073709551615/d", "above the most"),
            ("1/99999999999999999999d", "is not a rate"),
        ];
        for (text, problem) in rows {
            let error = Rate::parse(text).expect_err(text);
            assert!(error.contains(problem), "{text}: {error}");
        }
    }

    #[test]
    fn a_share_of_a_rate() {
        let rate = Rate::parse("10/s").unwrap();
        assert_eq!(rate.scaled(4), Rate::parse("2.5/s").unwrap());
        assert_eq!((rate.scaled(0), rate.scaled(1)), (rate, rate));
        assert_eq!(rate.scaled(3).emission_ns(), 300_000_000);
        let slow = Rate::parse("1/366d").unwrap().scaled(u32::MAX);
        assert_eq!(slow.emission_ns(), u64::MAX);
        assert_eq!(slow.fill(u32::MAX).as_secs(), u64::MAX);
    }

    #[test]
    fn times_to_fill() {
        let rows = [
            ("5/m", 5, 60 * NS_PER_S),
            ("7/m", 7, 60 * NS_PER_S),
            ("3/s", 1, 333_333_334),
            ("3/s", 3, NS_PER_S),
            ("1/366d", 1, 366 * NS_PER_D),
            ("1000000/s", 1_000_000_000, 1000 * NS_PER_S),
        ];
        for (text, capacity, ns) in rows {
            assert_eq!(
                Rate::parse(text).unwrap().fill(capacity),
                Duration::from_nanos(ns),
                "{text}"
            );
        }
    }

    #[test]
    fn durations() {
        let good = [
            ("20ms", NS_PER_MS * 20),
            ("5s", NS_PER_S * 5),
            ("10m", NS_PER_MIN * 10),
            ("1h", NS_PER_H),
            ("7d", NS_PER_D * 7),
            ("0s", 0),
        ];
        for (text, ns) in good {
            assert_eq!(parse_duration(text), Ok(Duration::from_nanos(ns)), "{text}");
        }
        let bad = [
            "", "5", "s", "5 s", "-5s", "+5s", "1.5s", "5S", "5sec", "5us", "1e3s", "5s ", "5m3s",
        ];
        for text in bad {
            assert!(
                parse_duration(text)
                    .unwrap_err()
                    .contains("is not a duration"),
                "{text}"
            );
        }
        for text in ["99999999999999999999s", "213504d"] {
            assert!(
                parse_duration(text).unwrap_err().contains("too long"),
                "{text}"
            );
        }
    }

    #[test]
    fn sizes() {
        let good = [
            ("64MiB", 64 << 20),
            ("1KiB", 1024),
            ("2GiB", 2 << 30),
            ("7B", 7),
            ("1TiB", 1 << 40),
        ];
        for (text, bytes) in good {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        for text in ["", "64", "64MB", "64m", "64 MiB", "-1MiB", "1.5MiB", "MiB"] {
            assert!(
                parse_size(text).unwrap_err().contains("is not a size"),
                "{text}"
            );
        }
        assert!(parse_size("99999999TiB").unwrap_err().contains("too large"));
    }

    #[test]
    fn what_was_written_is_escaped_and_cut() {
        assert_eq!(quoted("a\nb"), "\"a\\nb\"");
        assert_eq!(quoted(&"é".repeat(65)), format!("\"{}\"…", "é".repeat(64)));
    }

    proptest! {
        /// Every rate within the bounds is read, and rounded by at most 0.1 %.
        #[test]
        fn rates_are_exact(whole in 0u64..2_000_000, micro in 0u64..1_000_000,
                           period in 1u64..100_000, unit in 0usize..5) {
            let (unit, ns) = [("ms", NS_PER_MS), ("s", NS_PER_S), ("m", NS_PER_MIN),
                              ("h", NS_PER_H), ("d", NS_PER_D)][unit];
            let tokens = whole as f64 + micro as f64 / 1e6;
            let per_s = tokens / (period as f64 * ns as f64 / 1e9);
            let text = format!("{whole}.{micro:06}/{period}{unit}");
            match Rate::parse(&text) {
                Ok(rate) => {
                    for emission_ns in [rate.emission_ns() as f64, rate.emission_us() * 1e3] {
                        let rounded = 1e9 / emission_ns;
                        prop_assert!((rounded / per_s - 1.0).abs() <= 0.001, "{rounded} {per_s}");
                    }
                    prop_assert!((1.0 / 366.5 / 86400.0..1_000_000.1).contains(&per_s));
                }
                Err(_) => prop_assert!(!(1.0 / 365.5 / 86400.0..=999_999.9).contains(&per_s)),
            }
        }

        /// No double is nearer than the one returned.
        #[test]
        fn emission_us_is_the_nearest_double(tokens in 1u64..10_000_000, period_ms in 1u64..10_000_000,
                                             parts in 1u32..1000) {
            let Ok(rate) = Rate::parse(&format!("{tokens}/{period_ms}ms")) else { return Ok(()) };
            // Both sides fit 53 bits, so one division is rounded correctly.
            let numerator = period_ms * 1000 * u64::from(parts);
            prop_assert!(numerator < 1 << 53);
            prop_assert_eq!(rate.scaled(parts).emission_us(), numerator as f64 / tokens as f64);
        }

        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,24}|[0-9./smhdMiB]{0,12}") {
            let _ = Rate::parse(&text);
            let _ = parse_duration(&text);
            let _ = parse_size(&text);
        }
    }
}
