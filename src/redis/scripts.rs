pub use crate::domain::bucket::spent::Says as BucketSays;

/// One bucket of one decision.
#[derive(Clone, Debug, PartialEq)]
pub struct BucketAsk {
    /// The whole Redis key.
    pub key: String,
    pub emission_us: f64,
    pub capacity: u32,
    /// Above the capacity the capacity is charged.
    pub cost: u32,
    /// Redis's time, in µs, at which this gateway took this limit. 0: unknown.
    pub since_us: u64,
    pub shadow: bool,
}

/// What Redis decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// All enforced buckets admit; only then has any been spent from.
    pub admitted: bool,
    /// In the order asked.
    pub buckets: Vec<BucketSays>,
    /// Redis's time of the decision.
    pub now_us: u64,
}
