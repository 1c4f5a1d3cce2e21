//! What a gateway of a cluster tells the leader: its last finished requests, in
//! a ring, until they are taken.
use super::{Done, Nanos};

/// How many are kept.
pub const SAMPLES: usize = 256;

/// A finished request. Times are of the clock of the gateway that it ran
/// through: send them as ages (now - time) together with the store's clock, and
/// the leader has them in its own.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    pub dispatched: u64,
    pub completed: u64,
    /// `u64::MAX`: no sample.
    pub response_ns: u64,
    pub route: u8,
    pub level: u8,
    /// 1: yes.
    pub found_waiter: u8,
    pub error: u8,
    pub unused: u32,
}

impl Sample {
    const NONE: Sample = Sample {
        dispatched: 0,
        completed: 0,
        response_ns: u64::MAX,
        route: 0,
        level: 0,
        found_waiter: 0,
        error: 0,
        unused: 0,
    };

    /// As `Limiter::pooled` wants it; the times stay what they are.
    pub fn done(&self) -> Done {
        Done {
            dispatched: Nanos(self.dispatched),
            response: (self.response_ns != u64::MAX).then_some(Nanos(self.response_ns)),
            error: self.error == 1,
            route: self.route,
            level: self.level,
            found_waiter: self.found_waiter == 1,
        }
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Upload {
    samples: [Sample; SAMPLES],
    /// Ever written, and ever taken.
    written: u64,
    taken: u64,
}

impl Upload {
    pub(super) const fn new() -> Upload {
        Upload {
            samples: [Sample::NONE; SAMPLES],
            written: 0,
            taken: 0,
        }
    }

    pub(super) fn push(&mut self, c: &Done, now: Nanos) {
        self.samples[slot(self.written)] = Sample {
            dispatched: c.dispatched.0,
            completed: now.0,
            response_ns: c.response.map_or(u64::MAX, |r| r.0),
            route: c.route,
            level: c.level,
            found_waiter: u8::from(c.found_waiter),
            error: u8::from(c.error),
            unused: 0,
        };
        self.written = self.written.wrapping_add(1);
    }

    pub(super) fn take(&mut self, into: &mut Vec<Sample>) {
        let oldest = self.written.saturating_sub(SAMPLES as u64);
        let from = self.taken.clamp(oldest, self.written);
        into.extend((from..self.written).map(|at| self.samples[slot(at)]));
        self.taken = self.written;
    }
}

fn slot(at: u64) -> usize {
    (at % SAMPLES as u64) as usize
}

#[cfg(test)]
impl Upload {
    pub(super) fn scramble(&mut self, bits: &mut impl FnMut() -> u64) {
        (self.written, self.taken) = (bits(), bits());
    }
}
