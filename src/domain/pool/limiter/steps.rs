//! What the limiter does next: a verdict a window, and the measurements that
//! follow from it.
//!
//! ```text
//!            calm                      saturated, no knee known
//!   WATCH ◀──────── any step    WATCH ─────────▶ FIRST ▶ UP ▶… DOWN ▶…─┐
//!     │                                                               ▼
//!     ├── saturated ───────────────────────────▶ PAIR_A ▶ PAIR_B ▶ (rest) ▶…
//!     │                                             ▲
//!     └── grossly overloaded, of any step ▶ VERIFY ─┘
//! ```
use super::super::routes::Routes;
use super::probe::Plan;
use super::window::Window;
use super::{Done, Limiter, MS, Nanos, S};

/// Nothing is being measured.
pub(super) const WATCH: u32 = 0;
/// The start: throughput at the limit there is, at twice that, at half of that.
const FIRST: u32 = 1;
const UP: u32 = 2;
const DOWN: u32 = 3;
/// After a jump: did the response time fall with the limit?
const VERIFY: u32 = 4;
/// A pair's first and second limit.
const PAIR_A: u32 = 5;
const PAIR_B: u32 = 6;

/// Of a window's completions: fewer that found a waiter are calm, more than
/// `GROSS_SHARE` may be an overload.
const CALM_SHARE: f64 = 0.2;
const GROSS_SHARE: f64 = 0.8;
/// Response against R0 beyond which the limit jumps.
const GROSS_RATIO: f64 = 1.6;
/// A share of failures, and what it does.
const ERROR_SHARE: f64 = 0.1;
const ERROR_BRAKE: f64 = 0.7;
/// What responses near the timeout do.
const SLOW_BRAKE: f64 = 0.8;
/// Of the healthy mean: no measurement takes the limit below.
const FLOOR: f64 = 0.9;
/// R0 is an even mean of so many windows, then exponential.
const BASE_EVEN: u32 = 20;
const BASE_WEIGHT: f64 = 0.03;
const HEALTHY_WEIGHT: f64 = 0.02;
const HEALTHY_EVEN: u32 = 50;
/// Growth of throughput for which the start doubles again.
const START_GROWTH: f64 = 1.25;
/// Growth below which the limit before was too high already.
const START_FLAT: f64 = 1.1;
/// A limit found too low by its throughput is lifted by this much more.
const START_MARGIN: f64 = 1.05;
/// How long the limit rests after a pair that moved it by less than `SMALL`.
const REST_NS: u64 = 3 * S;
const SMALL: f64 = 0.15;
const LONGEST_NS: u64 = 1_500 * MS;
const SHORTEST_SETTLE_NS: u64 = 20 * MS;
/// A measurement of fewer samples says nothing.
const FEWEST: u32 = 10;

impl Limiter {
    /// One request more that ended, here or anywhere in a cluster.
    pub(super) fn take(&mut self, c: &Done, routes: &mut Routes, now: Nanos) {
        let now = now.0;
        let window = &mut self.window;
        window.ended = window.ended.saturating_add(1);
        window.waited = window.waited.saturating_add(u32::from(c.found_waiter));
        window.errors = window.errors.saturating_add(u32::from(c.error));
        if c.found_waiter {
            self.waited_at = now;
        }
        let ns = c.response.map_or(0.0, |response| response.0 as f64);
        let sample = (ns > 0.0 && !c.error).then(|| (ns, self.x(ns, c.route, routes)));
        let dispatched = c.dispatched.0;
        self.window.add(dispatched, sample, self.calm_since);
        self.probe.add(dispatched, sample.map(|(_, x)| x), now);
        if let Some((ns, x)) = sample {
            self.recent.push(ns, x);
            if dispatched >= self.calm_since {
                self.pending.push(c.route, ns);
            }
        }
        if self.window.is_over(now) {
            self.judge(routes, now);
        }
        self.advance(now);
    }

    /// A response against what is usual; of a route never seen, against any.
    fn x(&self, ns: f64, route: u8, routes: &Routes) -> f64 {
        let usual = routes
            .usual_ns(route)
            .or_else(|| self.base_ns.get().filter(|&base| base > 0.0));
        (ns / usual.unwrap_or(MS as f64)).ln()
    }

    /// The end of a window.
    fn judge(&mut self, routes: &mut Routes, now: u64) {
        let window = self.window;
        self.window.begin(now);
        let calm = window.share_waited() < CALM_SHARE;
        self.saturated = u32::from(!calm);
        if !calm {
            self.pending.forget();
            self.calm_since = now;
        }
        let failing = window.share_errors() > ERROR_SHARE;
        let slow = window.has_samples() && window.mean_ns() > self.timeout_ns as f64 / 2.0;
        self.frozen = u32::from(slow);
        if calm && !failing && !slow {
            self.learn(&window, routes, now);
        }
        if !self.moves(now) {
            return;
        }
        if failing || slow {
            self.set(self.limit * if failing { ERROR_BRAKE } else { SLOW_BRAKE });
            self.fresh = 1;
            self.watch(now);
        } else if calm {
            self.watch(now);
            self.follow();
        } else if !self.jump(&window, now) && self.step == WATCH && now >= self.rest_until {
            if self.fresh == 1 && !self.is_slower(&window) {
                self.fresh = 0;
                self.try_limit(FIRST, self.limit, now);
            } else {
                self.begin_pair(now);
            }
        }
    }

    /// Of a calm window: what is usual.
    fn learn(&mut self, window: &Window, routes: &mut Routes, now: u64) {
        let less = self.pending.teach(routes);
        self.base_x.shift(-less);
        self.peaks.add(window.peak, now);
        if let Some((x, ns, in_flight)) = window.usual(now) {
            self.base_x.learn(x - less, BASE_EVEN, BASE_WEIGHT);
            self.base_ns.learn(ns, BASE_EVEN, BASE_WEIGHT);
            self.healthy.learn(in_flight, HEALTHY_EVEN, HEALTHY_WEIGHT);
        }
    }

    /// Not saturated: the limit follows what is in flight, well above it.
    fn follow(&mut self) {
        let knee = if self.knee.is_finite() {
            self.knee
        } else {
            0.0
        };
        let top = (1.5 * f64::from(self.peaks.most())).max(knee);
        self.set(if self.limit < top {
            (self.limit * 1.05 + 1.0).min(top)
        } else {
            (self.limit * 0.98).max(top)
        });
    }

    /// Stops what is being measured.
    pub(super) fn watch(&mut self, now: u64) {
        self.step = WATCH;
        self.forced = 0;
        self.pairs = 0;
        self.elasticity = 0.0;
        self.rest_until = now;
    }

    /// How much slower than R0 the window was, as a difference of x.
    fn slowness(&self, window: &Window) -> Option<f64> {
        let base = self.base_x.get()?;
        window.has_samples().then(|| window.mean_x() - base)
    }

    fn is_slower(&self, window: &Window) -> bool {
        self.slowness(window).is_some_and(|by| by > START_FLAT.ln())
    }

    fn floor(&self) -> f64 {
        FLOOR * self.healthy.get().unwrap_or(0.0)
    }

    /// Grossly overloaded: down at once to where the limit should be if the
    /// backend is what it was, and then see whether it is.
    fn jump(&mut self, window: &Window, now: u64) -> bool {
        if !matches!(self.step, WATCH | PAIR_A | PAIR_B) || window.share_waited() <= GROSS_SHARE {
            return false;
        }
        let Some(by) = self.slowness(window).filter(|&by| by > GROSS_RATIO.ln()) else {
            return false;
        };
        let in_force = f64::from(self.limit());
        let before = self.limit;
        self.set((1.1 * in_force * (-by).exp()).max(self.floor()));
        let after = self.limit;
        if after.round() >= in_force {
            self.limit = before;
            return false;
        }
        self.watch(now);
        self.step = VERIFY;
        self.before_limit = before;
        self.before_x = window.mean_x();
        // What was in flight before, to compare with.
        self.before_per_s = in_force;
        let plan = Plan {
            settle_ns: (2.5 * window.mean_ns()) as u64 + self.lag_ns(),
            least_ns: super::window::LEAST_NS,
            most_ns: LONGEST_NS,
            samples: 60,
        };
        self.probe.begin(now, &plan);
        true
    }

    /// Goes on where a measurement is over.
    pub(super) fn advance(&mut self, now: u64) {
        if self.step == WATCH || !self.probe.is_over(now) {
            return;
        }
        match self.step {
            FIRST | UP | DOWN => self.end_start(now),
            VERIFY => self.end_verify(now),
            PAIR_A => self.end_first(now),
            PAIR_B => self.end_pair(now),
            _ => self.watch(now),
        }
    }

    fn try_limit(&mut self, step: u32, limit: f64, now: u64) {
        self.set(limit);
        self.step = step;
        let (mean, _) = self.recent.mean_and_q95_ns();
        let plan = Plan {
            settle_ns: ((1.5 * mean) as u64).clamp(SHORTEST_SETTLE_NS, LONGEST_NS) + self.lag_ns(),
            least_ns: 60 * MS,
            most_ns: LONGEST_NS,
            samples: super::window::LEAST_SAMPLES,
        };
        self.probe.begin(now, &plan);
    }

    /// The start: doubles while that brings throughput. Where it never did, the
    /// limit may have been too high from the beginning: halves while that costs
    /// none.
    fn end_start(&mut self, now: u64) {
        let per_s = self.probe.per_s(now);
        let growth = per_s / self.before_per_s;
        let limit = self.limit;
        match self.step {
            FIRST => {
                self.before_limit = limit;
                self.before_per_s = per_s;
                self.try_limit(UP, 2.0 * limit, now);
            }
            UP if growth >= START_GROWTH => {
                self.before_limit = limit;
                self.before_per_s = per_s;
                self.try_limit(UP, 2.0 * limit, now);
            }
            UP => {
                let limit = self.before_limit * START_MARGIN * growth;
                if growth < START_FLAT {
                    self.before_limit = limit;
                    self.before_per_s = self.before_per_s.max(per_s);
                    self.try_limit(DOWN, limit / 2.0, now);
                } else {
                    self.found_start(limit, now);
                }
            }
            _ if growth >= 1.0 / START_GROWTH && limit > f64::from(self.bounds().0) => {
                self.before_limit = limit;
                self.try_limit(DOWN, limit / 2.0, now);
            }
            _ => {
                let limit = (limit * START_MARGIN / growth).min(self.before_limit);
                self.found_start(limit, now);
            }
        }
    }

    fn found_start(&mut self, limit: f64, now: u64) {
        self.set(limit.max(self.floor()));
        self.begin_pair(now);
    }

    fn end_verify(&mut self, now: u64) {
        if self.probe.n >= FEWEST {
            let fell = self.before_x - self.probe.mean_x();
            let less = (self.before_per_s / f64::from(self.limit())).ln();
            if fell < less / 2.0 {
                // Not what the limit did: the backend itself is slower now.
                if self.frozen != 1 {
                    self.base_x.set(self.probe.mean_x());
                    let (mean, _) = self.recent.mean_and_q95_ns();
                    self.base_ns.set(mean);
                }
                self.set(self.before_limit);
            }
        }
        self.begin_pair(now);
    }

    fn begin_pair(&mut self, now: u64) {
        let (min, max) = self.bounds();
        let (low, high) = ((self.limit * 0.9).round(), (self.limit * 1.1).round());
        let (low, high) = if high - low < 2.0 {
            let low = (self.limit.round() - 1.0).max(1.0);
            (low, low + 2.0)
        } else {
            (low, high)
        };
        self.low = (low as u32).clamp(min, max);
        self.high = (high as u32).clamp(min, max);
        self.fresh = 0;
        self.window.begin(now);
        if self.low >= self.high {
            // `min` and `max` leave nothing to compare.
            self.step = WATCH;
            self.rest_until = now.saturating_add(REST_NS);
            return;
        }
        // Alternately, so that a drift during pairs cancels out.
        self.high_first ^= 1;
        let first = if self.high_first & 1 == 1 {
            self.high
        } else {
            self.low
        };
        self.measure(PAIR_A, first, now);
    }

    fn measure(&mut self, step: u32, limit: u32, now: u64) {
        self.step = step;
        self.forced = limit;
        let (mean, q95) = self.recent.mean_and_q95_ns();
        // No sample of a response that takes longer would be had in 1.5 s.
        let longest = (LONGEST_NS as f64).max(q95);
        let settle = (2.0 * mean)
            .max(1.5 * q95)
            .clamp(SHORTEST_SETTLE_NS as f64, longest);
        let samples = 2.0 * (self.recent.spread() / 0.07).powi(2);
        let plan = Plan {
            settle_ns: settle as u64 + self.lag_ns(),
            least_ns: q95 as u64,
            most_ns: (LONGEST_NS as f64).max(2.0 * q95) as u64,
            samples: samples.clamp(60.0, 1500.0) as u32,
        };
        self.probe.begin(now, &plan);
    }

    fn end_first(&mut self, now: u64) {
        if self.probe.n < FEWEST {
            return self.begin_pair(now);
        }
        self.first_x = self.probe.mean_x();
        let second = if self.high_first & 1 == 1 {
            self.low
        } else {
            self.high
        };
        self.measure(PAIR_B, second, now);
    }

    fn end_pair(&mut self, now: u64) {
        let second_x = self.probe.mean_x();
        let more = if self.high_first & 1 == 1 {
            self.first_x - second_x
        } else {
            second_x - self.first_x
        };
        let e = more / (f64::from(self.high) / f64::from(self.low.max(1))).ln();
        if self.probe.n < FEWEST || !e.is_finite() {
            return self.begin_pair(now);
        }
        let e = e.clamp(-1.0, 2.0);
        self.pairs = self.pairs.saturating_add(1);
        self.elasticity = if self.pairs > 1 {
            (self.elasticity + e) / 2.0
        } else {
            e
        };
        let step = if self.pairs > 1 && self.elasticity < 0.125 {
            0.2
        } else {
            (0.25 * (0.5 - e)).clamp(0.8f64.ln(), 1.22f64.ln())
        };
        self.set((self.limit * step.exp()).max(self.floor()));
        self.knee = self.limit;
        self.forced = 0;
        if (step.exp() - 1.0).abs() < SMALL {
            self.step = WATCH;
            self.rest_until = now.saturating_add(REST_NS);
        } else {
            self.begin_pair(now);
        }
    }
}
