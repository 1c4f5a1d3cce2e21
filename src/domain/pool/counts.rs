//! What status and metrics show of a pool.
use super::{LEVELS, Reason};

/// A moment of a pool.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct View {
    /// The limit in force: the configured or found one, less what other gateways hold.
    pub limit: u32,
    pub saturated: bool,
    /// Ghosts included.
    pub in_flight: u32,
    pub ghosts: u32,
    /// By level, as many as there are.
    pub waiting: Vec<u32>,
    pub counts: Counts,
}

/// Upper bounds of the histogram of waits, ns; a last bucket has none.
pub const WAIT_BOUNDS_NS: [u64; 13] = [
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
    500_000_000,
    1_000_000_000,
    2_500_000_000,
    5_000_000_000,
    10_000_000_000,
];

/// Since the pool was made.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counts {
    /// By level and `Reason as usize`.
    pub shed: [[u64; 4]; LEVELS],
    /// By level, of those that waited and took up a slot: not cumulative.
    pub waits: [[u64; WAIT_BOUNDS_NS.len() + 1]; LEVELS],
    pub waits_sum_ns: [u64; LEVELS],
}

impl Counts {
    pub(super) const fn new() -> Counts {
        Counts {
            shed: [[0; 4]; LEVELS],
            waits: [[0; WAIT_BOUNDS_NS.len() + 1]; LEVELS],
            waits_sum_ns: [0; LEVELS],
        }
    }

    pub(super) fn shed(&mut self, level: usize, reason: Reason) {
        if let Some(shed) = self.shed.get_mut(level) {
            let count = &mut shed[reason as usize];
            *count = count.wrapping_add(1);
        }
    }

    pub(super) fn waited(&mut self, level: usize, wait_ns: u64) {
        let (Some(waits), Some(sum)) =
            (self.waits.get_mut(level), self.waits_sum_ns.get_mut(level))
        else {
            return;
        };
        let bucket = WAIT_BOUNDS_NS.partition_point(|&bound| bound < wait_ns);
        waits[bucket] = waits[bucket].wrapping_add(1);
        *sum = sum.wrapping_add(wait_ns);
    }
}
