//! Finds the limit of an adaptive pool, and says of any pool whether it is
//! saturated.
//!
//! Under saturation throughput and response time are one signal (Little's law:
//! limit = throughput × response), so neither tells a backend that is slow from
//! a backend that is given too much. Only moving the limit does: the limiter
//! compares a little less with a little more, and looks whether the response
//! time follows. Below the knee it does not, above it does, in proportion.
//!
//! - `window`: what the last 100 ms were like; every verdict is made of one.
//! - `probe`: one measurement, of requests that were sent after it began.
//! - `steps`: what is done next.
//! - `recent`: how widely response times spread, so how long to measure.
//! - `upload`: what a gateway of a cluster tells the leader.
//! - `order`: and the leader's limiter hears of, in its order.
//!
//! One limiter a pool, plain data in the pool's state; whoever holds the pool's
//! lock advances it. It never drops a request to measure. Any bits are valid.
use super::routes::Routes;
use super::{Nanos, Settings};

mod order;
mod probe;
mod recent;
mod steps;
mod upload;
mod window;

#[cfg(test)]
mod tests;

pub use order::Order;
use probe::Probe;
use recent::Recent;
use steps::WATCH;
use upload::Upload;
pub use upload::{SAMPLES, Sample};
use window::{Mean, Peaks, Pending, Window};

const MS: u64 = 1_000_000;
const S: u64 = 1_000 * MS;

/// Nobody has waited for so long: no longer saturated, without a completion.
const CALM_NS: u64 = S;
/// A deadline further ahead than this was not set by this code.
const FURTHEST_NS: u64 = 600 * S;
/// Until a limit that the leader found is in force at every gateway, counted from
/// the last request that it has heard of: 150 ms ago that ended (`order`), in
/// 100 ms at most the limit is told to the store, in another 100 ms the last
/// gateway asks, and in another the last gets what others have given up.
const CLUSTER_LAG_NS: u64 = 450 * MS;

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

/// What the leader of a cluster hands on with the limit, so that the next
/// leader need not begin anew.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Found {
    pub limit: f64,
    /// The limit when it was last measured; 0: never.
    pub knee: f64,
    /// Mean in flight of all gateways while not saturated; 0: not known.
    pub healthy: f64,
}

/// All times are ns of the pool's clock.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Limiter {
    adaptive: u32,
    fixed: u32,
    min: u32,
    max: u32,
    /// 1: what ends here is told to the leader, and changes no limit here.
    cluster: u32,
    /// 1: the last window was.
    saturated: u32,
    timeout_ns: u64,
    /// L. Real, so that small steps add up; `forced` is what is in force.
    limit: f64,
    /// L when the last pair ended; 0: none has.
    knee: f64,
    /// Throughput × response while not saturated: the mean in flight.
    healthy: Mean,
    /// R0, as x: the mean of ln(response / the route's usual).
    base_x: Mean,
    /// R0 as a ratio of sums (`window::Took`): x tells best whether responses are slower,
    /// but not how much slower. A wait adds more to the logarithm of a quick one than to
    /// that of a slow one.
    base_ratio: Mean,
    /// R0 in ns.
    base_ns: Mean,
    /// What `steps` is doing.
    step: u32,
    /// The limit that a measurement needs in force; 0: L.
    forced: u32,
    /// 1: no knee has been looked for yet, or not since a brake.
    fresh: u32,
    /// Pairs since the pool became saturated.
    pairs: u32,
    /// Of a cluster: how often the start has looked at a limit that was not in force.
    tries: u32,
    /// 1: the jump that is being verified was the start's.
    starting: u32,
    /// EWMA of their elasticity.
    elasticity: f64,
    /// The pair's two limits, which of them comes first, and the first result.
    low: u32,
    high: u32,
    high_first: u32,
    /// 1: a window with responses near the timeout; R0 does not move.
    frozen: u32,
    /// Before the jump that is being verified, or the last step of the start:
    /// L, what was in force, the work done.
    before_limit: f64,
    before_in_force: f64,
    before_work: f64,
    /// Throughput of the last window.
    per_s: f64,
    /// What of a rise of the limit is held back as yet, and how it dwindles.
    ramp: f64,
    ramp_from: f64,
    ramp_at: u64,
    ramp_ns: u64,
    /// No measurement until then.
    rest_until: u64,
    /// When somebody waited last, and since when windows have been calm.
    waited_at: u64,
    calm_since: u64,
    /// When the leader last heard of other gateways' requests; 0: never.
    pooled_at: u64,
    window: Window,
    probe: Probe,
    /// What the probe is compared with: the pair's first measurement, or what
    /// was sent before the jump.
    first: Probe,
    peaks: Peaks,
    recent: Recent,
    pending: Pending,
    upload: Upload,
}

impl Limiter {
    /// Made of nothing: a limit of 1 until `format` is called.
    pub const fn new() -> Limiter {
        Limiter {
            adaptive: 0,
            fixed: 1,
            min: 1,
            max: 1,
            cluster: 0,
            saturated: 0,
            timeout_ns: u64::MAX,
            limit: 1.0,
            knee: 0.0,
            healthy: Mean::new(),
            base_x: Mean::new(),
            base_ratio: Mean::new(),
            base_ns: Mean::new(),
            step: 0,
            forced: 0,
            fresh: 1,
            pairs: 0,
            tries: 0,
            starting: 0,
            elasticity: 0.0,
            low: 0,
            high: 0,
            high_first: 0,
            frozen: 0,
            before_limit: 0.0,
            before_in_force: 0.0,
            before_work: 0.0,
            per_s: 0.0,
            ramp: 0.0,
            ramp_from: 0.0,
            ramp_at: 0,
            ramp_ns: 0,
            rest_until: 0,
            waited_at: 0,
            calm_since: 0,
            pooled_at: 0,
            window: Window::new(),
            probe: Probe::new(),
            first: Probe::new(),
            peaks: Peaks::new(),
            recent: Recent::new(),
            pending: Pending::new(),
            upload: Upload::new(),
        }
    }

    pub fn format(&mut self, s: &Settings, now: Nanos) {
        *self = Limiter::new();
        self.limit = f64::from(s.start);
        self.calm_since = now.0;
        self.window.begin(now.0);
        self.configure(s, now);
    }

    /// Takes changed settings; what was learned stays.
    pub fn configure(&mut self, s: &Settings, now: Nanos) {
        if self.adaptive != s.adaptive {
            self.limit = f64::from(s.start);
            self.fresh = 1;
            self.watch(now.0);
        }
        self.adaptive = s.adaptive;
        self.fixed = s.limit;
        self.min = s.min.max(1);
        self.max = s.max.max(self.min);
        self.cluster = s.cluster;
        self.timeout_ns = s.timeout_ns;
        self.set(self.limit);
    }

    /// The limit in force, whole: the configured one, or the found one within
    /// `min` and `max`.
    pub fn limit(&self) -> u32 {
        if self.adaptive != 1 {
            return self.fixed.max(1);
        }
        let (min, max) = self.bounds();
        // Of not-a-number, 0: then min.
        ((self.target() - self.ramp).round() as u32).clamp(min, max)
    }

    fn target(&self) -> f64 {
        match self.forced {
            0 => self.limit,
            forced => f64::from(forced),
        }
    }

    /// At least a fifth of the last window's completions found a waiter.
    pub fn saturated(&self) -> bool {
        self.saturated == 1
    }

    /// R0 in ns, for reports: the usual response time while not saturated.
    pub fn base_ns(&self) -> Option<f64> {
        self.base_ns.get()
    }

    /// A request of this gateway ended. Of a cluster it is kept for the leader.
    pub fn complete(&mut self, c: &Done, routes: &mut Routes, now: Nanos) {
        if self.cluster == 1 {
            self.upload.push(c, now);
            // Own requests are among those that the leader is told of.
            if self.leads(now.0) {
                return;
            }
        }
        self.take(c, routes, now);
    }

    /// Of a cluster, and only by its leader: a request of any gateway, its times
    /// carried over to this gateway's clock. Calls come in the order of `now`,
    /// when the request ended, see `Order`: the leader's time is the last of them,
    /// and measurements go by it.
    pub fn pooled(&mut self, c: &Done, routes: &mut Routes, now: Nanos) {
        if !self.leads(now.0) {
            self.watch(now.0);
            self.window.begin(now.0);
            self.pooled_at = now.0;
        }
        // What a gateway tells late does not turn time back.
        self.pooled_at = self.pooled_at.max(now.0);
        self.take(c, routes, Nanos(self.pooled_at));
    }

    /// What time alone brings about; of a cluster no end of a measurement. Cheap:
    /// called with every event.
    pub fn tick(&mut self, load: Load, now: Nanos) {
        self.window.peak = self.window.peak.max(load.in_flight);
        if load.waiting > 0 || self.waited_at > now.0 {
            self.waited_at = now.0;
        } else if self.saturated == 1
            && now.0.saturating_sub(self.waited_at) >= CALM_NS
            && now.0.saturating_sub(self.window.start) >= CALM_NS
        {
            self.saturated = 0;
            self.calm_since = now.0;
            self.watch(now.0);
        }
        if self.cluster != 1 {
            self.advance(now.0);
        }
        self.rise(now.0);
    }

    /// When `tick` should come next, ns from now; `u64::MAX`: no need.
    pub fn next_due(&self, now: Nanos) -> u64 {
        if self.saturated != 1 {
            return u64::MAX;
        }
        let calm = self.waited_at.saturating_add(CALM_NS);
        let due = match self.probe.due(now.0) {
            Some(due) if self.step != 0 => calm.min(due),
            _ => calm,
        };
        due.saturating_sub(now.0).clamp(MS, CALM_NS)
    }

    /// Of a cluster: what the leader found.
    pub fn set_limit(&mut self, limit: f64) {
        // It may have led before.
        (self.step, self.forced) = (WATCH, 0);
        (self.ramp, self.ramp_from) = (0.0, 0.0);
        self.set(limit);
    }

    /// Of a cluster: what its leader hands on.
    pub fn found(&self) -> Found {
        Found {
            limit: self.limit,
            knee: self.knee,
            healthy: self.healthy.get().unwrap_or(0.0),
        }
    }

    /// Of a cluster: what the leader before handed on.
    pub fn adopt(&mut self, found: &Found) {
        self.set(found.limit);
        if found.knee.is_finite() && found.knee > 0.0 {
            (self.knee, self.fresh) = (found.knee, 0);
        }
        if found.healthy.is_finite() && found.healthy > 0.0 {
            self.healthy.set(found.healthy);
        }
    }

    /// Of a cluster: what has ended since the last call, oldest first. What more
    /// than `SAMPLES` pushed out meanwhile is missing.
    pub fn take_samples(&mut self, into: &mut Vec<Sample>) {
        self.upload.take(into);
    }

    /// Whether what ends here moves the limit.
    fn moves(&self, now: u64) -> bool {
        self.adaptive == 1 && (self.cluster != 1 || self.leads(now))
    }

    /// Of a cluster: the leader hears of every gateway's requests all the time.
    fn leads(&self, now: u64) -> bool {
        let lately = now.saturating_sub(self.pooled_at) < CALM_NS;
        // A time ahead was not set by this code.
        self.pooled_at > 0 && lately && self.pooled_at.saturating_sub(now) < CALM_NS
    }

    /// How long it takes until the backend feels a new limit.
    fn with_lag(&self, ns: u64) -> u64 {
        let lag = if self.cluster == 1 { CLUSTER_LAG_NS } else { 0 };
        ns.saturating_add(lag)
    }

    fn bounds(&self) -> (u32, u32) {
        let min = self.min.max(1);
        (min, self.max.max(min))
    }

    fn set(&mut self, limit: f64) {
        let (min, max) = self.bounds();
        let (min, max) = (f64::from(min), f64::from(max));
        self.limit = if limit.is_nan() {
            min
        } else {
            limit.clamp(min, max)
        };
    }
}

impl Default for Limiter {
    fn default() -> Limiter {
        Limiter::new()
    }
}
