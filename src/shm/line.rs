//! A worker's counters.
use super::region::RuleId;
use std::sync::atomic::AtomicU64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Pass,
    Limited,
    Blocked,
    Error,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleVerdict {
    Pass,
    Limited,
    Shadow,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreResult {
    Ok,
    Error,
    Timeout,
    Skipped,
}

/// Upper bounds of the latency histogram, ns; a last bucket has none.
pub const LATENCY_BOUNDS_NS: [u64; 12] = [
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    20_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
    1_000_000_000,
];

pub struct Line {
    _x: AtomicU64,
}

impl Line {
    pub fn verdict(&self, _v: Verdict) {
        todo!()
    }
    /// Names with `~` have no counters.
    pub fn rule(&self, _rule: RuleId, _v: RuleVerdict) {
        todo!()
    }
    pub fn store(&self, _r: StoreResult) {
        todo!()
    }
    pub fn store_latency(&self, _ns: u64) {
        todo!()
    }
    pub fn guard_panic(&self) {
        todo!()
    }
}

/// Not cumulative: `buckets[i]` counts what fell between two bounds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    pub buckets: [u64; LATENCY_BOUNDS_NS.len() + 1],
    pub sum_ns: u64,
    pub count: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleTotals {
    pub name: String,
    pub pass: u64,
    pub limited: u64,
    pub shadow: u64,
}

/// The sum over all lines, of the living and the dead.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// By `Verdict as usize`.
    pub verdicts: [u64; 4],
    /// By `StoreResult as usize`.
    pub store: [u64; 4],
    pub store_latency: Histogram,
    /// Rules that have ever been taken.
    pub rules: Vec<RuleTotals>,
    /// Only of buckets that still held information.
    pub evictions: u64,
    pub guard_panics: u64,
}
