//! The shared-memory region and what lives in it.
pub mod error;
pub mod line;
pub mod lists;
pub mod region;

pub use crate::domain::bucket::word::{Limit, Outcome};
pub use error::Error;
pub use line::{
    Histogram, LATENCY_BOUNDS_NS, Line, RuleTotals, RuleVerdict, StoreResult, Totals, Verdict,
};
pub use region::{Attach, Cell, KeyHash, Kind, Mapped, Region, RuleId, WorkerInfo};
