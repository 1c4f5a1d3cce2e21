//! A token bucket as Redis keeps it: the arithmetic of `bucket.lua`, in the
//! same IEEE doubles and the same order of operations, so that the two can be
//! compared to the last bit (`redis::scripts` tests do). The script decides;
//! this side is its specification.
//!
//! ```text
//! value   "<spent> <time_us> <emission_us>"
//! spent        tokens spent at that time: a double, 0 or from 2^-13 to 10^9
//! time_us      Redis's TIME, whole µs since 1970, below 2^53
//! emission_us  µs a token takes to come back, under which it was written
//! ```
//!
//! µs a token stands for the rate because it is at least 1 for every rate that
//! the configuration accepts, so neither field ever needs an exponent, and
//! because both times that are answered with are products of it. Numbers have
//! 17 significant digits: what is read is what was computed. Below 2^-13
//! such a text would need an exponent, so a smaller positive `spent` counts
//! as 2^-13 (rounded up: never admits more); the arithmetic here and in the
//! script rounds at the same place.
//!
//! # A change of rate or capacity
//!
//! What was written before this gateway took its limit (`since_us`) refills at
//! the rate it was written under until then, is cut to the new capacity, and
//! refills at the new rate from then on; it is written so even when the call
//! is refused, once, for the sake of the expiry. What another gateway wrote *after* that
//! moment under another limit is seen through the new capacity but not cut:
//! else two gateways, in the second in which only one of them has taken a
//! change, would empty the bucket for one another as often as they are asked.
//! The excess goes when the bucket has filled once, or when its writer has
//! taken the change too.
//!
//! A time in the future (Redis's clock was set back) counts as now, and is written so. What
//! is not a bucket is `damaged`: it counts as a full one, and the next
//! spending replaces it.

/// The smallest positive number of tokens that is kept.
const TINY: f64 = 1.0 / 8192.0;
/// No capacity is larger.
const MAX_SPENT: f64 = 1e9;
/// One token in 366 days.
const MAX_EMISSION_US: f64 = 366.0 * 86_400.0 * 1e6;
const MAX_TIME_US: f64 = 9_007_199_254_740_992.0;
/// The longest text that `Spent::push_to` makes is 60 bytes.
const MAX_TEXT_BYTES: usize = 80;
/// What a key lives beyond the time at which its bucket is full.
const KEEP_MS: f64 = 60_000.0;

/// What a call asks of one bucket.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ask {
    /// µs per token, 1 to 366 days.
    pub emission_us: f64,
    /// 1 to 10^9 tokens; filled within 366 days.
    pub capacity: u32,
    /// 1 to `capacity` tokens.
    pub cost: u32,
    /// Redis's time at which this gateway took this limit.
    pub since_us: u64,
    /// Its refusal spends nothing and changes nothing for the others.
    pub shadow: bool,
}

/// The state of a bucket.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spent {
    pub spent: f64,
    pub time_us: u64,
    pub emission_us: f64,
}

/// What is found under a bucket's key.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Stored<'a> {
    Missing,
    Text(&'a [u8]),
    /// A list, a hash …
    WrongType,
}

/// What a call is told of one bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Says {
    /// The bucket has room for the cost (spent only if all enforced ones have).
    pub admitted: bool,
    /// Whole tokens left after this call.
    pub remaining: u32,
    /// µs from the call: refused, until the cost fits; else until full.
    pub wait_us: u64,
    /// What was stored was not a bucket.
    pub damaged: bool,
}

/// The new value of one key and its expiry.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Write {
    pub value: Spent,
    pub expire_ms: u64,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// All enforced buckets admit.
    pub admitted: bool,
    /// In the order asked, as the next.
    pub says: Vec<Says>,
    pub writes: Vec<Option<Write>>,
}

impl Ask {
    /// The same, within the bounds that the arithmetic relies on. A cost above
    /// the capacity is the capacity.
    pub fn bounded(self) -> Ask {
        let capacity = self.capacity.clamp(1, MAX_SPENT as u32);
        Ask {
            emission_us: self.emission_us.clamp(1.0, MAX_EMISSION_US),
            capacity,
            cost: self.cost.clamp(1, capacity),
            since_us: self.since_us.min(MAX_TIME_US as u64 - 1),
            shadow: self.shadow,
        }
    }
}

impl Spent {
    /// `None`: not a bucket.
    pub fn parse(text: &[u8]) -> Option<Spent> {
        if text.len() > MAX_TEXT_BYTES {
            return None;
        }
        let mut fields = text.split(|&b| b == b' ');
        let (spent, time_us, emission_us) = (fields.next()?, fields.next()?, fields.next()?);
        if fields.next().is_some() || time_us.contains(&b'.') {
            return None;
        }
        let (spent, time_us, emission_us) = (plain(spent)?, plain(time_us)?, plain(emission_us)?);
        let good = spent <= MAX_SPENT
            && time_us < MAX_TIME_US
            && (1.0..=MAX_EMISSION_US).contains(&emission_us);
        good.then_some(Spent {
            spent,
            time_us: time_us as u64,
            emission_us,
        })
    }

    /// Appends the text of the value.
    pub fn push_to(&self, out: &mut String) {
        push_plain(self.spent, out);
        out.push(' ');
        push_plain(self.time_us as f64, out);
        out.push(' ');
        push_plain(self.emission_us, out);
    }
}

/// A number of digits and a point, which begins with a digit.
fn plain(text: &[u8]) -> Option<f64> {
    let good =
        text.first()?.is_ascii_digit() && text.iter().all(|&b| b.is_ascii_digit() || b == b'.');
    if good {
        str::from_utf8(text).ok()?.parse().ok()
    } else {
        None
    }
}

/// Appends what C's `%.17g` prints of 0 or a number from 10^-4 to below 10^17:
/// 17 significant digits, no exponent, no trailing zeros.
pub fn push_plain(number: f64, out: &mut String) {
    debug_assert!(number == 0.0 || (1e-4..1e17).contains(&number));
    if number == 0.0 {
        return out.push('0');
    }
    let scientific = format!("{number:.16e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let digits: String = mantissa.chars().filter(|c| *c != '.').collect();
    let digits = digits.trim_end_matches('0');
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if exponent < 0 {
        out.push_str("0.");
        out.extend(std::iter::repeat_n('0', (-exponent - 1) as usize));
        out.push_str(digits);
        return;
    }
    let whole = exponent as usize + 1;
    if digits.len() <= whole {
        out.push_str(digits);
        out.extend(std::iter::repeat_n('0', whole - digits.len()));
    } else {
        out.push_str(&digits[..whole]);
        out.push('.');
        out.push_str(&digits[whole..]);
    }
}

/// One bucket before anything is spent. Refills from (`spent`, `at`) at the
/// asked rate, and is seen as no emptier than the asked capacity.
struct Look {
    spent: f64,
    at: f64,
    /// Stored otherwise: written back even when the call is refused.
    changed: bool,
    damaged: bool,
    /// Tokens spent as seen now, 0 to the capacity.
    seen: f64,
    fits: bool,
}

fn look(stored: Stored, ask: &Ask, now: f64) -> Look {
    let (emission, capacity) = (ask.emission_us, f64::from(ask.capacity));
    let since = (ask.since_us as f64).min(now);
    let (mut spent, mut at, mut changed, mut damaged) = (0.0, now, false, false);
    let found = match stored {
        Stored::Missing => None,
        Stored::Text(text) => Spent::parse(text).or_else(|| {
            damaged = true;
            None
        }),
        Stored::WrongType => {
            damaged = true;
            None
        }
    };
    if let Some(found) = found {
        spent = found.spent;
        at = found.time_us as f64;
        if at > now {
            at = now;
            changed = true;
        }
        if found.emission_us != emission || spent > capacity {
            if at < since {
                spent = (spent - (since - at) / found.emission_us)
                    .max(0.0)
                    .min(capacity);
                at = since;
                changed = true;
            } else if found.emission_us != emission {
                changed = true;
            }
        }
        if spent > 0.0 && spent < TINY {
            spent = TINY;
        }
    }
    let seen = (spent.min(capacity) - (now - at) / emission).max(0.0);
    // The subtraction is exact, an addition to `seen` would not be.
    let fits = seen <= capacity - f64::from(ask.cost);
    Look {
        spent,
        at,
        changed,
        damaged,
        seen,
        fits,
    }
}

/// Decides one call over all its buckets at `now_us`. Every ask is within bounds.
pub fn decide(buckets: &[(Stored, Ask)], now_us: u64) -> Decision {
    let now = now_us as f64;
    let looks: Vec<Look> = buckets
        .iter()
        .map(|(stored, ask)| look(*stored, ask, now))
        .collect();
    let admitted = buckets
        .iter()
        .zip(&looks)
        .all(|((_, ask), look)| look.fits || ask.shadow);
    let mut decision = Decision {
        admitted,
        says: Vec::new(),
        writes: Vec::new(),
    };
    for ((_, ask), look) in buckets.iter().zip(looks) {
        let (says, write) = conclude(ask, look, admitted, now);
        decision.says.push(says);
        decision.writes.push(write);
    }
    decision
}

fn conclude(ask: &Ask, look: Look, admitted: bool, now: f64) -> (Says, Option<Write>) {
    let Look {
        mut spent,
        mut at,
        changed,
        damaged,
        mut seen,
        fits,
    } = look;
    let (emission, capacity, cost) = (
        ask.emission_us,
        f64::from(ask.capacity),
        f64::from(ask.cost),
    );
    let mut write = changed && seen > 0.0;
    let wait;
    if fits {
        if admitted {
            // What the bucket had in excess of its capacity ends when it is full.
            spent = if seen > 0.0 {
                spent - (now - at) / emission
            } else {
                0.0
            };
            spent += cost;
            at = now;
            seen = spent.min(capacity);
            write = true;
        }
        wait = (seen * emission).ceil();
    } else {
        // From the stored state, not from `seen`: the same sum as the call
        // that comes after this wait, which must fit.
        let (top, target) = (spent.min(capacity), capacity - cost);
        let mut after = ((top - target) * emission).ceil();
        if top - after / emission > target {
            after += 1.0;
        }
        wait = at + after - now;
    }
    let says = Says {
        admitted: fits,
        remaining: (capacity - seen).floor() as u32,
        wait_us: wait as u64,
        damaged,
    };
    let left_ms = ((spent.min(capacity) * emission - (now - at)) / 1000.0).ceil();
    let write = write.then(|| Write {
        value: Spent {
            spent,
            time_us: at as u64,
            emission_us: emission,
        },
        expire_ms: (left_ms.max(0.0) + KEEP_MS) as u64,
    });
    (says, write)
}

#[cfg(test)]
#[path = "spent_tests.rs"]
mod tests;
