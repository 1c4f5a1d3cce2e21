//! What the gateways of a cluster tell comes late, and of each at another time:
//! put back into the order in which it happened, and held back until it is whole.
//! Of throughput nothing could be said where one gateway has told of the last
//! 100 ms and another has not.
use super::{Done, MS, Nanos};

/// A gateway tells every 100 ms, give or take a tenth, and the store takes its time.
const HOLD_NS: u64 = 150 * MS;

/// Requests that have ended, of all gateways.
#[derive(Debug, Default)]
pub struct Order {
    kept: Vec<(Nanos, Done)>,
}

impl Order {
    pub fn add(&mut self, done: Done, ended: Nanos) {
        self.kept.push((ended, done));
    }

    /// Takes what all gateways have told of by now, oldest first, with its end.
    pub fn take(&mut self, now: Nanos) -> impl Iterator<Item = (Done, Nanos)> {
        self.kept.sort_by_key(|&(ended, _)| ended);
        let whole = self
            .kept
            .partition_point(|&(ended, _)| ended.0.saturating_add(HOLD_NS) <= now.0);
        self.kept.drain(..whole).map(|(ended, done)| (done, ended))
    }
}
