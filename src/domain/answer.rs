//! What a client is told: which rule is reported, and how it is written.
//!
//! The rounding of section 6 of the contract is here and nowhere else. The
//! fields are those of draft-ietf-httpapi-ratelimit-headers, the body is RFC
//! 9457's. Everything is appended to a buffer of the caller's.
use std::cmp::Ordering;

const NS_PER_S: u64 = 1_000_000_000;

/// What one rule said of a request, for the choice of the reported rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    /// With the whole tokens that are left.
    Admitted { remaining: u32, capacity: u32 },
    /// Refused until so long has passed.
    Refused { wait_ns: u64 },
    /// Refused for want of a key part: no wait helps.
    Denied,
}

/// One rule that was asked about a request.
#[derive(Clone, Copy, Debug)]
pub struct Considered<'a> {
    pub name: &'a str,
    pub shadow: bool,
    pub said: Said,
}

/// Which of the rules is reported (its index): of the enforced ones, the one that
/// refuses for longest; if none refuses, the one with the smallest share of its
/// tokens left; the earlier name on a tie. `None`: no enforced rule was asked.
pub fn report<'a>(rules: impl Iterator<Item = Considered<'a>>) -> Option<usize> {
    let enforced = rules.enumerate().filter(|(_, rule)| !rule.shadow);
    enforced
        .min_by(|(_, a), (_, b)| urgency(a, b).then_with(|| a.name.cmp(b.name)))
        .map(|(i, _)| i)
}

/// `Less`: `a` is to be reported rather than `b`.
fn urgency(a: &Considered<'_>, b: &Considered<'_>) -> Ordering {
    match (a.said, b.said) {
        (Said::Denied, Said::Denied) => Ordering::Equal,
        (Said::Denied, _) => Ordering::Less,
        (_, Said::Denied) => Ordering::Greater,
        (Said::Refused { wait_ns: a }, Said::Refused { wait_ns: b }) => b.cmp(&a),
        (Said::Refused { .. }, Said::Admitted { .. }) => Ordering::Less,
        (Said::Admitted { .. }, Said::Refused { .. }) => Ordering::Greater,
        (
            Said::Admitted {
                remaining: a,
                capacity: of_a,
            },
            Said::Admitted {
                remaining: b,
                capacity: of_b,
            },
        ) => {
            // a / of_a against b / of_b, multiplied out.
            (u64::from(a) * u64::from(of_b)).cmp(&(u64::from(b) * u64::from(of_a)))
        }
    }
}

/// What the response fields tell of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reported<'a> {
    /// A rule's name: nothing in it needs quoting.
    pub rule: &'a str,
    pub capacity: u32,
    /// Seconds an empty bucket takes to fill.
    pub fill_s: u64,
    /// Whole tokens left after this request.
    pub remaining: u32,
    /// Seconds until one more request of this cost is admitted (limited), or
    /// until the bucket is full (pass).
    pub t_s: u64,
}

impl<'a> Reported<'a> {
    /// `fill_s` is that of [`fill_s`]. `wait_ns`: refused, until the cost fits;
    /// admitted, until full.
    pub fn new(
        rule: &'a str,
        capacity: u32,
        fill_s: u64,
        remaining: u32,
        admitted: bool,
        wait_ns: u64,
    ) -> Reported<'a> {
        let t_s = match admitted {
            // Never longer than from empty: an emission interval is rounded, and
            // many of them could pass a whole second by some nanoseconds.
            true => wait_ns.div_ceil(NS_PER_S).min(fill_s),
            false => retry_after_s(wait_ns),
        };
        Reported {
            rule,
            capacity,
            fill_s,
            remaining: remaining.min(capacity),
            t_s,
        }
    }

    /// Appends the value of `RateLimit`: `"login";r=0;t=12`.
    pub fn rate_limit(&self, out: &mut Vec<u8>) {
        self.push_name(out);
        out.extend_from_slice(b";r=");
        push_number(out, u64::from(self.remaining));
        out.extend_from_slice(b";t=");
        push_number(out, self.t_s);
    }

    /// Appends the value of `RateLimit-Policy`: `"login";q=5;w=60`.
    pub fn rate_limit_policy(&self, out: &mut Vec<u8>) {
        self.push_name(out);
        out.extend_from_slice(b";q=");
        push_number(out, u64::from(self.capacity));
        out.extend_from_slice(b";w=");
        push_number(out, self.fill_s);
    }

    // The legacy fields X-RateLimit-Limit, -Remaining and -Reset are `capacity`,
    // `remaining` and `t_s` through `push_number`.

    fn push_name(&self, out: &mut Vec<u8>) {
        out.push(b'"');
        out.extend_from_slice(self.rule.as_bytes());
        out.push(b'"');
    }
}

/// Seconds to fill a bucket, rounded up, at least 1.
///
/// An emission interval may be 1/2 ns too long for each token, which must not
/// make 61 s of 60 s, so that much is taken off first. Where a rule's own limit
/// is in force, [`Rate::fill`](super::units::Rate::fill) through [`whole_s`] is exact.
pub fn fill_s(capacity: u32, emission_ns: u64) -> u64 {
    let capacity = u128::from(capacity);
    let ns = (capacity * u128::from(emission_ns)).saturating_sub(capacity / 2);
    let seconds = ns.div_ceil(u128::from(NS_PER_S));
    u64::try_from(seconds).unwrap_or(u64::MAX).max(1)
}

/// A duration in seconds, rounded up, at least 1.
pub fn whole_s(duration: std::time::Duration) -> u64 {
    duration
        .as_secs()
        .saturating_add(u64::from(duration.subsec_nanos() > 0))
        .max(1)
}

/// `Retry-After`: whole seconds, rounded up, never 0.
pub fn retry_after_s(wait_ns: u64) -> u64 {
    wait_ns.div_ceil(NS_PER_S).max(1)
}

/// Appends a whole number.
pub fn push_number(out: &mut Vec<u8>, number: u64) {
    // Nearly all are small: of 32 bits, two digits a step. Four numbers a request are written.
    let Ok(mut number) = u32::try_from(number) else {
        out.extend_from_slice(number.to_string().as_bytes());
        return;
    };
    let mut digits = [0u8; 10];
    let mut start = digits.len();
    while number >= 100 {
        start -= 2;
        digits[start..start + 2].copy_from_slice(&PAIRS[(number % 100) as usize]);
        number /= 100;
    }
    let [tens, ones] = PAIRS[number as usize];
    start -= 1;
    digits[start] = ones;
    if number >= 10 {
        start -= 1;
        digits[start] = tens;
    }
    out.extend_from_slice(&digits[start..]);
}

/// 00 to 99.
const PAIRS: [[u8; 2]; 100] = {
    let mut pairs = [[0; 2]; 100];
    let mut i = 0;
    while i < 100 {
        pairs[i] = [b'0' + (i / 10) as u8, b'0' + (i % 10) as u8];
        i += 1;
    }
    pairs
};

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// With the seconds of `Retry-After`; none where waiting does not help.
    Limited {
        retry_after_s: Option<u64>,
    },
    Blocked,
    Error,
    /// The backend is full.
    Shed {
        retry_after_s: u64,
    },
}

/// `Retry-After` of [`Refusal::Error`].
pub const ERROR_RETRY_AFTER_S: u64 = 1;

/// The content type of [`problem`].
pub const PROBLEM_TYPE: &str = "application/problem+json";

/// Appends the body of a refusal (RFC 9457).
pub fn problem(refusal: Refusal, status: u16, out: &mut Vec<u8>) {
    let (kind, title) = match refusal {
        // Both are as registered by the draft.
        Refusal::Limited {
            retry_after_s: Some(_),
        } => (
            "https://iana.org/assignments/http-problem-types#quota-exceeded",
            "Request cannot be satisfied as assigned quota has been exceeded",
        ),
        // Without a wait there was no quota: the request lacks what names its bucket.
        Refusal::Limited {
            retry_after_s: None,
        }
        | Refusal::Blocked
        | Refusal::Error
        | Refusal::Shed { .. } => ("about:blank", phrase(status)),
    };
    out.extend_from_slice(b"{\"type\":\"");
    out.extend_from_slice(kind.as_bytes());
    out.extend_from_slice(b"\",\"title\":\"");
    out.extend_from_slice(title.as_bytes());
    out.extend_from_slice(b"\",\"status\":");
    push_number(out, u64::from(status));
    if let Refusal::Limited {
        retry_after_s: Some(seconds),
    } = refusal
    {
        out.extend_from_slice(b",\"retry_after\":");
        push_number(out, seconds);
    }
    out.extend_from_slice(b"}");
}

/// With the type `about:blank` the title is the status's phrase.
fn phrase(status: u16) -> &'static str {
    match status {
        400 => "Bad Request",
        401 => "Unauthorized",
        402 => "Payment Required",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        406 => "Not Acceptable",
        407 => "Proxy Authentication Required",
        408 => "Request Timeout",
        409 => "Conflict",
        410 => "Gone",
        411 => "Length Required",
        412 => "Precondition Failed",
        413 => "Content Too Large",
        414 => "URI Too Long",
        415 => "Unsupported Media Type",
        416 => "Range Not Satisfiable",
        417 => "Expectation Failed",
        421 => "Misdirected Request",
        422 => "Unprocessable Content",
        423 => "Locked",
        424 => "Failed Dependency",
        425 => "Too Early",
        426 => "Upgrade Required",
        428 => "Precondition Required",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        451 => "Unavailable For Legal Reasons",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        505 => "HTTP Version Not Supported",
        506 => "Variant Also Negotiates",
        507 => "Insufficient Storage",
        508 => "Loop Detected",
        511 => "Network Authentication Required",
        _ if status >= 500 => "Server Error",
        _ => "Client Error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::units::Rate;
    use proptest::prelude::*;
    use std::time::Duration;

    fn admitted(name: &str, remaining: u32, capacity: u32) -> Considered<'_> {
        Considered {
            name,
            shadow: false,
            said: Said::Admitted {
                remaining,
                capacity,
            },
        }
    }

    fn refused(name: &str, wait_ns: u64) -> Considered<'_> {
        Considered {
            name,
            shadow: false,
            said: Said::Refused { wait_ns },
        }
    }

    fn denied(name: &str) -> Considered<'_> {
        Considered {
            name,
            shadow: false,
            said: Said::Denied,
        }
    }

    fn shadow(rule: Considered<'_>) -> Considered<'_> {
        Considered {
            shadow: true,
            ..rule
        }
    }

    #[test]
    fn the_reported_rule() {
        let rows = [
            ("no rule", vec![], None),
            (
                "only shadow rules",
                vec![shadow(refused("a", 9)), shadow(admitted("b", 0, 1))],
                None,
            ),
            (
                "the longest refusal",
                vec![refused("a", 1), refused("b", 3), refused("c", 2)],
                Some("b"),
            ),
            (
                "a refusal before what admits",
                vec![admitted("a", 0, 9), refused("b", 1)],
                Some("b"),
            ),
            (
                "a shadow refusal is none",
                vec![shadow(refused("a", 9)), admitted("b", 5, 5)],
                Some("b"),
            ),
            (
                "no wait is enough for a denial",
                vec![refused("a", u64::MAX), denied("b")],
                Some("b"),
            ),
            (
                "the smallest share, not number",
                vec![admitted("a", 1, 2), admitted("b", 4, 10)],
                Some("b"),
            ),
            (
                "the earlier name on a tie",
                vec![admitted("b", 1, 2), admitted("a", 5, 10)],
                Some("a"),
            ),
            (
                "the earlier name of refusals",
                vec![refused("b", 7), refused("a", 7)],
                Some("a"),
            ),
            (
                "shares are compared exactly",
                vec![
                    admitted("a", 999_999_999, 1_000_000_000),
                    admitted("b", 999_999_998, 999_999_999),
                ],
                Some("b"),
            ),
        ];
        for (why, rules, name) in rows {
            let index = report(rules.iter().copied());
            assert_eq!(index.map(|index| rules[index].name), name, "{why}");
        }
    }

    fn text(write: impl Fn(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        write(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn fields_as_the_draft_writes_them() {
        let limited = Reported::new("login", 5, 60, 0, false, 11_000_000_001);
        assert_eq!(text(|out| limited.rate_limit(out)), r#""login";r=0;t=12"#);
        assert_eq!(
            text(|out| limited.rate_limit_policy(out)),
            r#""login";q=5;w=60"#
        );
        let pass = Reported::new("a.b_c-1", 1_000_000_000, 31_622_400, 999_999_999, true, 1);
        assert_eq!(
            text(|out| pass.rate_limit(out)),
            r#""a.b_c-1";r=999999999;t=1"#
        );
        assert_eq!(
            text(|out| pass.rate_limit_policy(out)),
            r#""a.b_c-1";q=1000000000;w=31622400"#
        );
    }

    #[test]
    fn seconds_are_rounded_up() {
        let rows = [
            (0, 1),
            (1, 1),
            (NS_PER_S, 1),
            (NS_PER_S + 1, 2),
            // B21: refused at 2 s of 10 s.
            (8 * NS_PER_S, 8),
            (u64::MAX, 18_446_744_074),
        ];
        for (wait_ns, seconds) in rows {
            assert_eq!(retry_after_s(wait_ns), seconds, "{wait_ns}");
            assert_eq!(Reported::new("r", 5, 60, 0, false, wait_ns).t_s, seconds);
        }
        // Full already, and never more than from empty.
        for (wait_ns, seconds) in [(0, 0), (1, 1), (60 * NS_PER_S, 60), (60 * NS_PER_S + 5, 60)] {
            assert_eq!(Reported::new("r", 5, 60, 0, true, wait_ns).t_s, seconds);
        }
        // B104: never above the capacity.
        assert_eq!(Reported::new("r", 5, 60, 6, true, 0).remaining, 5);
    }

    #[test]
    fn the_time_to_fill() {
        let rows = [
            ("5/m", 5, 60),
            ("7/m", 7, 60),
            ("11/m", 11, 60),
            ("3/s", 3, 1),
            ("1000/s", 1, 1),
            ("1/366d", 1, 31_622_400),
            ("1000000/s", 1_000_000_000, 1000),
            ("100/10s", 15, 2),
        ];
        for (rate, capacity, seconds) in rows {
            let parsed = Rate::parse(rate).unwrap();
            assert_eq!(whole_s(parsed.fill(capacity)), seconds, "{rate}");
            assert_eq!(fill_s(capacity, parsed.emission_ns()), seconds, "{rate}");
        }
        assert_eq!(whole_s(Duration::MAX), u64::MAX);
    }

    #[test]
    fn numbers_as_text() {
        for number in [0, 9, 10, 1234567890, u64::MAX] {
            assert_eq!(text(|out| push_number(out, number)), number.to_string());
        }
    }

    #[test]
    fn bodies_are_problems() {
        let rows = [
            (
                Refusal::Limited {
                    retry_after_s: Some(12),
                },
                429,
                serde_json::json!({
                    "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
                    "title": "Request cannot be satisfied as assigned quota has been exceeded",
                    "status": 429,
                    "retry_after": 12,
                }),
            ),
            (
                Refusal::Limited {
                    retry_after_s: None,
                },
                401,
                serde_json::json!({"type": "about:blank", "title": "Unauthorized", "status": 401}),
            ),
            (
                Refusal::Blocked,
                403,
                serde_json::json!({"type": "about:blank", "title": "Forbidden", "status": 403}),
            ),
            (
                Refusal::Error,
                503,
                serde_json::json!({
                    "type": "about:blank", "title": "Service Unavailable", "status": 503,
                }),
            ),
        ];
        for (refusal, status, expected) in rows {
            let body = text(|out| problem(refusal, status, out));
            assert_eq!(
                serde_json::from_str::<serde_json::Value>(&body).unwrap(),
                expected
            );
        }
    }

    proptest! {
        /// The time to fill from a rounded emission interval is off by no second
        /// where the exact one is a whole number of them, and else by at most one.
        #[test]
        fn fill_of_a_rounded_interval(tokens in 1u32..1_000_000, capacity in 1u32..1_000_000_000,
                                      period in 1u32..100_000) {
            let Ok(rate) = Rate::parse(&format!("{tokens}/{period}s")) else { return Ok(()) };
            let exact = rate.fill(capacity);
            let rounded = fill_s(capacity, rate.emission_ns());
            if exact.subsec_nanos() == 0 {
                prop_assert!(rounded <= whole_s(exact));
            }
            prop_assert!(rounded.abs_diff(whole_s(exact)) <= 1);
        }

        /// Whoever waits as long as the reported rule says has waited enough for all.
        #[test]
        fn the_reported_wait_is_enough(waits in proptest::collection::vec(any::<u64>(), 1..6)) {
            let names = ["f", "e", "d", "c", "b", "a"];
            let rules: Vec<_> =
                waits.iter().zip(names).map(|(wait, name)| refused(name, *wait)).collect();
            let reported = waits[report(rules.into_iter()).unwrap()];
            prop_assert!(waits.iter().all(|wait| *wait <= reported));
        }
    }
}
