//! What a client is told: which rule is reported, and how it is written.

/// What one rule said of a request, for the choice of the reported rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    Admitted {
        remaining: u32,
        capacity: u32,
    },
    /// Refused until so long has passed.
    Refused {
        wait_ns: u64,
    },
    /// Refused for want of a key part: no wait helps.
    Denied,
}

#[derive(Clone, Copy, Debug)]
pub struct Considered<'a> {
    pub name: &'a str,
    pub shadow: bool,
    pub said: Said,
}

/// Which of the rules is reported (its index), if any.
pub fn report<'a>(_rules: impl Iterator<Item = Considered<'a>>) -> Option<usize> {
    todo!()
}

/// What the response fields tell of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reported<'a> {
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
    /// `wait_ns` as in `Outcome`; `fill_s` from [`fill_s`].
    pub fn new(
        _rule: &'a str,
        _capacity: u32,
        _fill_s: u64,
        _remaining: u32,
        _admitted: bool,
        _wait_ns: u64,
    ) -> Reported<'a> {
        todo!()
    }

    /// Appends the value of `RateLimit`.
    pub fn rate_limit(&self, _out: &mut Vec<u8>) {
        todo!()
    }

    /// Appends the value of `RateLimit-Policy`.
    pub fn rate_limit_policy(&self, _out: &mut Vec<u8>) {
        todo!()
    }
}

/// Seconds to fill a bucket, rounded up, at least 1.
pub fn fill_s(_capacity: u32, _emission_ns: u64) -> u64 {
    todo!()
}

/// `Retry-After`: whole seconds, rounded up, never 0.
pub fn retry_after_s(_wait_ns: u64) -> u64 {
    todo!()
}

/// Appends a whole number.
pub fn push_number(_out: &mut Vec<u8>, _number: u64) {
    todo!()
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// With the seconds of `Retry-After`; none where waiting does not help.
    Limited {
        retry_after_s: Option<u64>,
    },
    Blocked,
    Error,
}

/// The content type of [`problem`].
pub const PROBLEM_TYPE: &str = "application/problem+json";

/// Appends the body of a refusal (RFC 9457).
pub fn problem(_refusal: Refusal, _status: u16, _out: &mut Vec<u8>) {
    todo!()
}
