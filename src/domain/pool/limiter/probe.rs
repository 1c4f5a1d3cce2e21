//! One measurement at one limit: what was sent before it began, or before the
//! backend had settled at that limit, is not in it.

/// When a measurement begins and ends.
pub(super) struct Plan {
    pub(super) settle_ns: u64,
    pub(super) least_ns: u64,
    pub(super) most_ns: u64,
    pub(super) samples: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Probe {
    from: u64,
    least_until: u64,
    most_until: u64,
    wanted: u32,
    /// Samples dispatched since `from`.
    pub(super) n: u32,
    /// Requests that ended since `from`.
    ended: u32,
    unused: u32,
    sum_x: f64,
}

impl Probe {
    pub(super) const fn new() -> Probe {
        Probe {
            from: 0,
            least_until: 0,
            most_until: 0,
            wanted: 0,
            n: 0,
            ended: 0,
            unused: 0,
            sum_x: 0.0,
        }
    }

    pub(super) fn begin(&mut self, now: u64, plan: &Plan) {
        *self = Probe::new();
        self.from = now.saturating_add(plan.settle_ns);
        self.least_until = self.from.saturating_add(plan.least_ns);
        self.most_until = self.from.saturating_add(plan.most_ns.max(plan.least_ns));
        self.wanted = plan.samples;
    }

    pub(super) fn add(&mut self, dispatched: u64, x: Option<f64>, now: u64) {
        if now < self.from {
            return;
        }
        if let Some(x) = x {
            self.ended = self.ended.saturating_add(1);
            if dispatched >= self.from {
                self.n = self.n.saturating_add(1);
                self.sum_x += x;
            }
        }
    }

    pub(super) fn is_over(&self, now: u64) -> bool {
        let lost = self.most_until.saturating_sub(now) > super::FURTHEST_NS;
        let measured = now >= self.least_until && self.n >= self.wanted;
        measured || now >= self.most_until || lost
    }

    /// Of the samples; meaningless without any.
    pub(super) fn mean_x(&self) -> f64 {
        self.sum_x / f64::from(self.n)
    }

    pub(super) fn per_s(&self, now: u64) -> f64 {
        let ns = now.saturating_sub(self.from).max(1);
        f64::from(self.ended) * 1e9 / ns as f64
    }

    /// The next time at which this may be over, whatever ends until then.
    pub(super) fn due(&self, now: u64) -> Option<u64> {
        [self.least_until, self.most_until]
            .into_iter()
            .find(|&due| due > now)
    }
}
