//! Slots that come free all at once and then not for long.
//!
//! Where requests take about equally long, what begins together ends together and
//! is followed by what begins together: one moment in which nothing ran (a worker
//! or the backend stood still for some milliseconds) bunches the slots for good.
//! No throughput is lost by that, but who comes between two bunches waits for
//! half a request's time and not for the K-th part of it, and level 0 waits for
//! nothing else. So while slots are bunched, the levels below 0 are granted them
//! one after the other, a little faster than the backend serves; after some turns
//! they are spread, and as the bunches were, they stay so. Slots that are kept
//! back for that moment are level 0's for the asking.
//!
//! Times that vary spread by themselves: nothing is kept back then.

/// The part of a slot's turn (the time between two slots that come free) that two
/// grants are apart. Below 1, since at 1 every delay would be throughput lost.
const APART: f64 = 0.8;
/// Bunched: the mean square of the gaps is so many times the square of their mean. Even
/// gaps have 1, gaps of chance 2, slots that all end at once their number.
const BY_CHANCE: f64 = 2.0;
/// And with many slots even bunches are close: it has to cost level 0 some part of a
/// request's time, half the ratio by the number of slots.
const OF_SLOTS: f64 = 0.12;
/// How long slots are held varies: variance by the square of the mean.
const VARIES: f64 = 0.1;
/// Weight of the newest in the averages of what does not depend on the number of slots.
const NEWEST: f64 = 0.03;
/// Gaps are averaged over some turns of all slots.
const TURNS: f64 = 8.0;

/// Any bits are valid: what is no number keeps nothing back.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Spread {
    /// Between two slots that came free while somebody waited: mean, ns, and mean
    /// square, ns².
    gap: f64,
    gap_square: f64,
    /// How long a slot is held: the same, seconds.
    held: f64,
    held_square: f64,
    /// When the last one did; 0: nobody waited then.
    freed_at: u64,
    /// Mean between two arrivals while somebody waits, ns: what is kept back goes on at the
    /// next event.
    arrival_gap: f64,
    arrived_at: u64,
    /// Before, the levels below 0 get nothing.
    next: u64,
}

impl Spread {
    pub(super) const fn new() -> Spread {
        Spread {
            gap: 0.0,
            gap_square: 0.0,
            held: 0.0,
            held_square: 0.0,
            freed_at: 0,
            arrival_gap: 0.0,
            arrived_at: 0,
            next: 0,
        }
    }

    pub(super) fn arrived(&mut self, now: u64) {
        if self.arrived_at != 0 {
            let gap = now.saturating_sub(self.arrived_at) as f64;
            learn(&mut self.arrival_gap, gap, NEWEST);
        }
        self.arrived_at = now;
    }

    /// A slot was held for so long.
    pub(super) fn held(&mut self, s: f64) {
        learn(&mut self.held, s, NEWEST);
        learn(&mut self.held_square, s * s, NEWEST);
    }

    /// Nobody waits.
    pub(super) fn rest(&mut self) {
        (self.freed_at, self.arrived_at, self.next) = (0, 0, 0);
    }

    /// Somebody waits, or has only just.
    pub(super) fn is_at_work(&self) -> bool {
        self.arrived_at != 0
    }

    /// One of `limit` slots is free, and somebody waits.
    pub(super) fn freed(&mut self, limit: u32, now: u64) {
        if self.freed_at != 0 {
            let gap = now.saturating_sub(self.freed_at) as f64;
            let weight = (1.0 / (TURNS * f64::from(limit.max(1)))).clamp(0.0005, 0.05);
            learn(&mut self.gap, gap, weight);
            learn(&mut self.gap_square, gap * gap, weight);
        }
        self.freed_at = now;
    }

    /// A slot is taken.
    pub(super) fn taken(&mut self, limit: u32, now: u64) {
        let apart = APART * self.gap;
        // Arrivals are the clock. Where they are as rare as grants should be, `due` below is
        // long ago and nothing is kept back.
        let ticks = now.saturating_sub(self.arrived_at) as f64 <= 4.0 * apart;
        if !(ticks && self.bunched(limit)) {
            self.next = 0;
            return;
        }
        // From when it was due, if that was hardly a tick ago: ticks must not add up.
        let tick = (2.0 * self.arrival_gap) as u64;
        let due = self.next.max(now.saturating_sub(tick)).min(now);
        self.next = due.saturating_add(apart as u64);
    }

    /// How long nothing is granted below level 0, ns.
    pub(super) fn keeps_ns(&self, now: u64) -> u64 {
        self.next.saturating_sub(now)
    }

    fn bunched(&self, limit: u32) -> bool {
        let most = BY_CHANCE.max(OF_SLOTS * f64::from(limit));
        let varies = self.held_square > (1.0 + VARIES) * self.held * self.held;
        !varies && self.gap_square > most * self.gap * self.gap
    }
}

fn learn(mean: &mut f64, x: f64, weight: f64) {
    *mean = if mean.is_finite() && *mean > 0.0 {
        *mean + weight * (x - *mean)
    } else {
        x
    };
}

#[cfg(test)]
impl Spread {
    pub(super) fn scramble(&mut self, bits: &mut dyn FnMut() -> u64) {
        self.gap = f64::from_bits(bits());
        self.gap_square = f64::from_bits(bits());
        self.held = f64::from_bits(bits());
        self.held_square = f64::from_bits(bits());
        self.arrival_gap = f64::from_bits(bits());
        (self.freed_at, self.arrived_at) = (bits(), bits());
        self.next = bits();
    }
}
