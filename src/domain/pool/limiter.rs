//! Finds the limit of an adaptive pool, and says of any pool whether it is
//! saturated.
use super::routes::Routes;
use super::{Nanos, Settings};

/// A request that ended.
#[derive(Clone, Copy, Debug)]
pub struct Done {
    pub dispatched: Nanos,
    /// None: no sample (refused, aborted, failed).
    pub response: Option<Nanos>,
    /// No connection, a timeout, or 502 to 504 of the backend.
    pub error: bool,
    pub route: u8,
    pub level: u8,
    /// Somebody waited in the pool when it ended.
    pub found_waiter: bool,
}

/// What the pool holds at this moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Load {
    pub in_flight: u32,
    pub waiting: u32,
}

/// A finished request, as one gateway tells the leader of a cluster. Times are
/// of the clock of the gateway it ran through.
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

/// How many samples are kept until they are taken.
pub const SAMPLES: usize = 256;

/// Any bits are valid once `format` was called; before, nothing panics.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Limiter {
    adaptive: u32,
    fixed: u32,
    min: u32,
    max: u32,
    cluster: u32,
    saturated: u32,
    limit: f64,
    samples: [Sample; SAMPLES],
    /// Samples ever written, and ever taken.
    written: u64,
    taken: u64,
    seen: u32,
    waited: u32,
}

impl Limiter {
    /// Made of nothing: a limit of 1 until `format` is called.
    pub const fn new() -> Limiter {
        const NO_SAMPLE: Sample = Sample {
            dispatched: 0,
            completed: 0,
            response_ns: u64::MAX,
            route: 0,
            level: 0,
            found_waiter: 0,
            error: 0,
            unused: 0,
        };
        Limiter {
            adaptive: 0,
            fixed: 1,
            min: 1,
            max: 1,
            cluster: 0,
            saturated: 0,
            limit: 1.0,
            samples: [NO_SAMPLE; SAMPLES],
            written: 0,
            taken: 0,
            seen: 0,
            waited: 0,
        }
    }

    pub fn format(&mut self, s: &Settings, now: Nanos) {
        *self = Limiter::new();
        self.limit = f64::from(s.start);
        self.configure(s, now);
    }

    /// Takes changed settings; what was learned stays.
    pub fn configure(&mut self, s: &Settings, _now: Nanos) {
        self.adaptive = s.adaptive;
        self.fixed = s.limit;
        self.min = s.min.max(1);
        self.max = s.max.max(self.min);
        self.cluster = s.cluster;
    }

    /// The limit in force, whole: the configured one, or the found one within
    /// `min` and `max`.
    pub fn limit(&self) -> u32 {
        if self.adaptive == 0 {
            return self.fixed.max(1);
        }
        let (min, max) = (self.min.max(1), self.max.max(self.min).max(1));
        if self.limit.is_finite() {
            (self.limit.round() as u32).clamp(min, max)
        } else {
            min
        }
    }

    /// At least a fifth of the last completions found a waiter.
    pub fn saturated(&self) -> bool {
        self.saturated == 1
    }

    pub fn complete(&mut self, c: &Done, routes: &mut Routes, now: Nanos) {
        let slot = (self.written % SAMPLES as u64) as usize;
        self.samples[slot] = Sample {
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
        self.seen = self.seen.wrapping_add(1);
        self.waited = self.waited.wrapping_add(u32::from(c.found_waiter));
        if self.seen >= 30 {
            self.saturated = u32::from(u64::from(self.waited) * 5 >= u64::from(self.seen));
            (self.seen, self.waited) = (0, 0);
        }
        if let Some(response) = c.response
            && self.saturated == 0
        {
            routes.learn(c.route, response.0 as f64);
        }
    }

    /// What time alone brings about. Cheap: called with every event.
    pub fn tick(&mut self, _load: Load, _now: Nanos) {}

    /// When `tick` should come next, ns from now; `u64::MAX`: no need.
    pub fn next_due(&self, _now: Nanos) -> u64 {
        u64::MAX
    }

    /// Of a cluster: what the leader found.
    pub fn set_limit(&mut self, limit: f64) {
        self.limit = limit;
    }

    /// Of a cluster: what has ended since the last call, oldest first; what was
    /// pushed out meanwhile is missing.
    pub fn take_samples(&mut self, into: &mut Vec<Sample>) {
        let from = self
            .taken
            .clamp(self.written.saturating_sub(SAMPLES as u64), self.written);
        for at in from..self.written {
            into.push(self.samples[(at % SAMPLES as u64) as usize]);
        }
        self.taken = self.written;
    }
}

impl Default for Limiter {
    fn default() -> Limiter {
        Limiter::new()
    }
}
