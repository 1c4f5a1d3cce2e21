//! Units of the configuration and of the arithmetic.

/// Nanoseconds: a duration, or an instant of `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Nanos(pub u64);

/// Tokens per period, as written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {}
