//! Bucket arithmetic of the shared memory.

/// A bucket's rate and size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Nanoseconds per token.
    pub emission_ns: u64,
    /// Tokens.
    pub capacity: u32,
}

/// What a bucket says of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    pub admitted: bool,
    /// Whole tokens left after this request.
    pub remaining: u32,
    /// Refused: until the cost fits. Admitted: until the bucket is full.
    pub wait_ns: u64,
    /// In force, whatever the caller believes.
    pub capacity: u32,
    /// In force, whatever the caller believes.
    pub emission_ns: u64,
}
