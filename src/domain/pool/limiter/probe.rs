//! One measurement at one limit: what was sent before it began, or before the
//! backend had settled at that limit, is not in it.
use super::window::{Response, Took};

/// Routes are told apart in a measurement modulo this.
const STRATA: usize = 64;

/// When a measurement begins and ends.
///
/// ```text
///   begin        from                       close            end
///     │── settle ──│── what is sent now counts ──│── its slowest ──│
/// ```
///
/// Without the last part only the quick ones would be in it, more of them at a
/// high limit than at a low one.
#[derive(Clone, Copy)]
pub(super) struct Plan {
    pub(super) settle_ns: u64,
    pub(super) open_ns: u64,
    pub(super) slowest_ns: u64,
    /// Goes on until so many requests have ended, at most four times as long.
    pub(super) ended: u32,
}

/// What is averaged: x, or what it is the logarithm of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    X,
    Ratio,
}

/// x of one route.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Stratum {
    sum: f64,
    /// Of response / usual, of which x is the logarithm.
    sum_ratio: f64,
    n: u32,
    unused: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Probe {
    from: u64,
    close: u64,
    end: u64,
    latest: u64,
    wanted: u32,
    /// Requests that ended since `from`.
    ended: u32,
    /// Of all those: what they usually take.
    work_ns: f64,
    took: Took,
    strata: [Stratum; STRATA],
}

impl Probe {
    pub(super) const fn new() -> Probe {
        const NONE: Stratum = Stratum {
            sum: 0.0,
            sum_ratio: 0.0,
            n: 0,
            unused: 0,
        };
        Probe {
            from: 0,
            close: 0,
            end: 0,
            latest: 0,
            wanted: 0,
            ended: 0,
            work_ns: 0.0,
            took: Took::NOTHING,
            strata: [NONE; STRATA],
        }
    }

    pub(super) fn begin(&mut self, now: u64, plan: &Plan) {
        *self = Probe::new();
        self.from = now.saturating_add(plan.settle_ns);
        self.close = self.from.saturating_add(plan.open_ns);
        self.end = self.close.saturating_add(plan.slowest_ns);
        self.latest = self
            .end
            .saturating_add((self.end - self.from).saturating_mul(3));
        self.wanted = plan.ended;
    }

    /// A measurement of all that were sent from `from` to `close`, of which so
    /// many have ended, with that sum of x, whatever their routes.
    pub(super) fn begin_with(&mut self, from: u64, close: u64, (n, sum, took): (u32, f64, Took)) {
        *self = Probe::new();
        (self.from, self.close) = (from, close);
        (self.end, self.latest) = (close, close);
        (self.strata[0].n, self.strata[0].sum) = (n, sum);
        self.took = took;
    }

    pub(super) fn add(&mut self, dispatched: u64, route: u8, sample: Option<&Response>, now: u64) {
        if now < self.from {
            return;
        }
        if let Some(it) = sample {
            self.ended = self.ended.saturating_add(1);
            self.work_ns += it.usual_ns;
            if (self.from..self.close).contains(&dispatched) {
                let stratum = &mut self.strata[usize::from(route) % STRATA];
                stratum.sum += it.x;
                stratum.n = stratum.n.saturating_add(1);
                stratum.sum_ratio += it.ratio();
                self.took.add(it);
            }
        }
    }

    pub(super) fn is_over(&self, now: u64) -> bool {
        let lost = self.latest.saturating_sub(now) > super::FURTHEST_NS;
        let measured = now >= self.end && self.ended >= self.wanted;
        measured || now >= self.latest || lost
    }

    /// Goes on for those that take so long, within the latest end: true if there
    /// is still somebody to wait for.
    pub(super) fn wait_for_slowest(&mut self, ns: u64, now: u64) -> bool {
        self.end = self.close.saturating_add(ns).min(self.latest);
        now < self.end
    }

    /// How many samples.
    pub(super) fn n(&self) -> u32 {
        let all = self.strata.iter();
        all.fold(0, |sum, stratum| sum.saturating_add(stratum.n))
    }

    /// Of the samples; no number without any.
    pub(super) fn mean_x(&self) -> f64 {
        let sum: f64 = self.strata.iter().map(|stratum| stratum.sum).sum();
        sum / f64::from(self.n())
    }

    /// How many times as long as usual the samples took.
    pub(super) fn ratio(&self) -> f64 {
        self.took.ratio()
    }

    /// By how much the mean of x is above that of an earlier measurement. Routes
    /// are compared each with itself: at a higher limit there is more of the less
    /// important, which does not make the backend any slower. No number where
    /// the two have no route in common.
    pub(super) fn above(&self, earlier: &Probe, by: By) -> f64 {
        let (mut sum, mut weights) = (0.0, 0.0);
        for (a, b) in self.strata.iter().zip(&earlier.strata) {
            if a.n > 0 && b.n > 0 {
                let (n, m) = (f64::from(a.n), f64::from(b.n));
                let weight = n * m / (n + m);
                sum += weight
                    * match by {
                        By::X => a.sum / n - b.sum / m,
                        By::Ratio => (a.sum_ratio / n / (b.sum_ratio / m)).ln(),
                    };
                weights += weight;
            }
        }
        sum / weights
    }

    pub(super) fn per_s(&self, now: u64) -> f64 {
        let ns = now.saturating_sub(self.from).max(1);
        f64::from(self.ended) * 1e9 / ns as f64
    }

    /// As a window's.
    pub(super) fn work(&self, now: u64) -> f64 {
        self.work_ns / now.saturating_sub(self.from).max(1) as f64
    }

    /// The next time at which this may be over, whatever ends until then.
    pub(super) fn due(&self, now: u64) -> Option<u64> {
        [self.end, self.latest].into_iter().find(|&due| due > now)
    }
}

#[cfg(test)]
impl Probe {
    pub(super) fn scramble(&mut self, bits: &mut impl FnMut() -> u64) {
        (self.from, self.close) = (bits(), bits());
        (self.end, self.latest) = (bits(), bits());
        (self.wanted, self.ended) = (bits() as u32, bits() as u32);
        self.took.scramble(bits);
        self.work_ns = f64::from_bits(bits());
        for stratum in &mut self.strata {
            (stratum.sum, stratum.n) = (f64::from_bits(bits()), bits() as u32);
            stratum.sum_ratio = f64::from_bits(bits());
        }
    }
}
