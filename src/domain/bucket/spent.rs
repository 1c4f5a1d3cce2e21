//! A token bucket as it is kept in Redis (skeleton).

/// What a call asks of one bucket.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ask {
    pub emission_us: f64,
    pub capacity: u32,
    pub cost: u32,
    /// Redis's time, in µs, at which this gateway took this limit.
    pub since_us: u64,
    pub shadow: bool,
}

/// The state of a bucket: tokens spent, when, under which emission interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spent {
    pub spent: f64,
    pub time_us: u64,
    pub emission_us: f64,
}

/// What a call is told of one bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Says {
    /// The bucket had room for the cost (whether or not it was spent).
    pub admitted: bool,
    /// Whole tokens left after this call.
    pub remaining: u32,
    /// µs from the reply's time: refused, until the cost fits; else until full.
    pub wait_us: u64,
    /// The stored value was not a bucket; it counted as full.
    pub damaged: bool,
}
