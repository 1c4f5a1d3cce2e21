//! What the limiter does next: a verdict a window, and the measurements that
//! follow from it.
//!
//! ```text
//!            calm                      saturated, no knee known
//!   WATCH ◀──────── any step    WATCH ─────────▶ FIRST ─▶ UP ▶… DOWN ▶…─┐
//!     │                                            │      ▲            ▼
//!     │                                    far too │      │ wrong      │
//!     │                                       high ▼      │            │
//!     ├── grossly overloaded, of a pair too ───▶ VERIFY ──┴──▶┐        │
//!     └── saturated ────────────────────────────────────────▶ PAIR_A ▶ PAIR_B ▶ (rest) ▶…
//! ```
use super::super::routes::Routes;
use super::probe::{By, Plan};
use super::window::{Response, Window};
use super::{Done, FURTHEST_NS, Limiter, MS, Nanos, S};

/// Nothing is being measured.
pub(super) const WATCH: u32 = 0;
/// The start: what is done at the limit there is, at twice that, at half of that.
pub(super) const FIRST: u32 = 1;
const UP: u32 = 2;
const DOWN: u32 = 3;
/// After a jump: did the response time fall with the limit?
pub(super) const VERIFY: u32 = 4;
/// Once more, from where the jump led to.
pub(super) const VERIFY_AGAIN: u32 = 7;
/// A pair's first and second limit.
pub(super) const PAIR_A: u32 = 5;
pub(super) const PAIR_B: u32 = 6;

/// Of a window's completions: fewer that found a waiter are calm, more than
/// `GROSS_SHARE` may be an overload.
const CALM_SHARE: f64 = 0.2;
const GROSS_SHARE: f64 = 0.8;
/// Response against R0 beyond which the limit jumps.
const GROSS_RATIO: f64 = 1.6;
/// A jump leaves the limit so much above where it should be: what is too low costs throughput
/// at once, and a pair finds what is too high.
const JUMP_MARGIN: f64 = 1.1;
/// After a jump: against R0, nearer to that than to what the limit jumped for.
const USUAL_AGAIN: f64 = 1.25;
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
/// Growth of the work done for which the start doubles again.
const START_GROWTH: f64 = 1.25;
/// Growth below which the limit before was too high already.
const START_FLAT: f64 = 1.1;
/// A limit found too low by the work done is lifted by this much more.
const START_MARGIN: f64 = 1.05;
/// How long the limit rests after a pair that moved it by less than `SMALL`.
const REST_NS: u64 = 3 * S;
/// A step that is no jump either.
const SMALL: f64 = 0.15;
const LONGEST_NS: u64 = 1_500 * MS;
const SHORTEST_SETTLE_NS: u64 = 20 * MS;
/// Of a limit that a cluster's start has set, so much has to be in flight, or it looks
/// again, so often.
const IN_FORCE: f64 = 0.75;
const MOST_TRIES: u32 = 3;
/// How long the start looks at one limit, at least, once it has settled.
const START_NS: u64 = 60 * MS;
/// And at so many requests: of half as many the throughput is off by a quarter.
const START_ENDED: u32 = 60;
/// What a response is compared with while nothing is usual yet.
const UNKNOWN_NS: f64 = MS as f64;
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
        let usual_ns = || routes.usual_ns(c.route).unwrap_or(UNKNOWN_NS);
        let sample = (ns > 0.0 && !c.error).then(|| Response::new(ns, usual_ns()));
        let sample = sample.as_ref();
        let dispatched = c.dispatched.0;
        self.window.add(dispatched, sample, self.calm_since);
        if matches!(self.step, VERIFY | VERIFY_AGAIN) {
            self.first.add(dispatched, c.route, sample, now);
        }
        self.probe.add(dispatched, c.route, sample, now);
        if let Some(it) = sample {
            self.recent.push(ns, it.x);
            if dispatched >= self.calm_since {
                self.pending.push(c.route, ns, dispatched);
            }
        }
        if self.window.is_over(now) {
            self.judge(routes, now);
        }
        self.advance(now);
    }

    /// The end of a window.
    fn judge(&mut self, routes: &mut Routes, now: u64) {
        let window = self.window;
        self.window.next(now);
        self.per_s = window.per_s(now);
        let calm = window.share_waited() < CALM_SHARE;
        self.saturated = u32::from(!calm);
        if !calm {
            self.pending.forget();
        }
        if !calm || self.calm_since > now {
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
        } else if !self.jump(&window, now) && self.step == WATCH && self.has_rested(now) {
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
        let (_, q95) = self.recent.mean_and_q95_ns();
        let until = now.saturating_sub(q95 as u64);
        let less = self.pending.teach(routes, until, UNKNOWN_NS);
        self.base_x.shift(-less);
        self.base_ratio.scale((-less).exp());
        // Of what was sent since it is calm only the quick have ended, until the
        // slowest can have: an R0 of theirs would call everything slow.
        let ripe = window.start.saturating_sub(self.calm_since) >= q95 as u64;
        let usual = window.usual(now).filter(|_| ripe);
        let mut peak = window.peak;
        if self.cluster == 1
            && let Some(usual) = usual
        {
            // Of other gateways no more than the mean is known.
            peak = peak.max(usual.in_flight.ceil() as u32);
        }
        self.peaks.add(peak, now);
        if let Some(usual) = usual {
            let ratio = usual.ratio * (-less).exp();
            self.base_x.learn(usual.x - less, BASE_EVEN, BASE_WEIGHT);
            self.base_ratio.learn(ratio, BASE_EVEN, BASE_WEIGHT);
            self.base_ns.learn(usual.ns, BASE_EVEN, BASE_WEIGHT);
            if self.cluster != 1 || self.leads(now) {
                self.healthy
                    .learn(usual.in_flight, HEALTHY_EVEN, HEALTHY_WEIGHT);
            }
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
        self.starting = 0;
        self.forced = 0;
        self.pairs = 0;
        self.elasticity = 0.0;
        self.rest_until = now;
        self.ramp = 0.0;
        self.ramp_from = 0.0;
    }

    fn has_rested(&self, now: u64) -> bool {
        let left = self.rest_until.saturating_sub(now);
        // Longer than that was not set by this code.
        left == 0 || left > FURTHEST_NS
    }

    /// How much slower than R0 the window was, as a difference of x.
    fn slowness(&self, window: &Window) -> Option<f64> {
        let base = self.base_x.get()?;
        window.has_samples().then(|| window.mean_x() - base)
    }

    /// How many times as slow as R0 `ratio` is; of nothing to compare
    /// with, not at all.
    fn times_slower(&self, ratio: f64) -> f64 {
        match self.base_ratio.get() {
            Some(base) if base > 0.0 && ratio.is_finite() => ratio / base,
            _ => 1.0,
        }
    }

    fn is_slower(&self, window: &Window) -> bool {
        self.slowness(window)
            .is_some_and(|by| by - self.chance(window) > START_FLAT.ln())
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
        let allowance = self.allowance(window);
        let slower = self.slowness(window).map(|by| by - allowance);
        if !slower.is_some_and(|by| by > GROSS_RATIO.ln()) {
            return false;
        }
        let in_force = f64::from(self.limit());
        let before = self.limit;
        let by = self.times_slower(window.ratio()) / allowance.exp();
        if by < JUMP_MARGIN {
            // The quick are slower, and all together are not: they are what waits for the slow,
            // and a pair says at which limit least.
            return false;
        }
        // Of what was sent since the flood began only the quick have ended; what is done does not
        // hang on when it was sent.
        let done = JUMP_MARGIN * self.at_work(window.work(now));
        self.set(self.jump_target(in_force, by).min(done.max(self.least())));
        let after = self.limit;
        if after.round() > in_force * (1.0 - SMALL) {
            // Near the floor: what is left to try, a pair tries.
            self.limit = before;
            return false;
        }
        self.watch(now);
        self.before_limit = before;
        self.before_in_force = in_force;
        // All that were sent in the window, also those that are still to end: of
        // the quick alone it would not be seen how slow the backend had become.
        self.first.begin_with(window.start, now, window.sent());
        self.verify(VERIFY, window.mean_ns(), now);
        true
    }

    fn verify(&mut self, step: u32, response_ns: f64, now: u64) {
        self.step = step;
        let (_, q95) = self.recent.mean_and_q95_ns();
        let plan = Plan {
            settle_ns: self.with_lag((2.5 * response_ns) as u64),
            open_ns: self.time_for(60.0).max(super::window::LEAST_NS),
            slowest_ns: q95 as u64,
            ended: 0,
        };
        self.probe.begin(now, &plan);
    }

    /// How much slower than R0 a window may be by chance, and by the higher limit
    /// of a pair.
    fn allowance(&self, window: &Window) -> f64 {
        let more = f64::from(self.limit()) / self.limit;
        self.chance(window) + 2.0 * more.max(1.0).ln()
    }

    /// By chance: what the window itself may be off, and what R0 may be.
    fn chance(&self, window: &Window) -> f64 {
        let known = self.base_x.values().min(BASE_EVEN) * super::window::LEAST_SAMPLES;
        let of = |n: u32| 1.0 / f64::from(n.max(1));
        self.recent.spread() * (of(window.n) + of(known)).sqrt()
    }

    /// How long so many requests take to end.
    fn time_for(&self, requests: f64) -> u64 {
        let ns = |requests: f64| requests * 1e9 / self.per_s.max(1e-3);
        // At a slow backend for as few as say something.
        let longest = (LONGEST_NS as f64).max(ns(2.0 * f64::from(FEWEST)));
        ns(requests).min(longest) as u64
    }

    /// Goes on where a measurement is over.
    pub(super) fn advance(&mut self, now: u64) {
        if self.step == WATCH || !self.probe.is_over(now) {
            return;
        }
        match self.step {
            FIRST | UP | DOWN => self.end_start(now),
            VERIFY | VERIFY_AGAIN => self.end_verify(now),
            PAIR_A => self.end_first(now),
            PAIR_B => self.end_pair(now),
            _ => self.watch(now),
        }
    }

    fn try_limit(&mut self, step: u32, limit: f64, now: u64) {
        self.tries = 0;
        self.look_at(step, limit, now);
    }

    fn look_at(&mut self, step: u32, limit: f64, now: u64) {
        self.set(limit);
        self.step = step;
        let (mean, _) = self.recent.mean_and_q95_ns();
        let settle = (1.5 * mean) as u64;
        let plan = Plan {
            settle_ns: self.with_lag(settle.clamp(SHORTEST_SETTLE_NS, LONGEST_NS)),
            open_ns: START_NS,
            slowest_ns: 0,
            ended: START_ENDED,
        };
        self.probe.begin(now, &plan);
    }

    /// The start: doubles while more work is done for it. Where it never did, the
    /// limit may have been too high from the beginning: halves while that costs
    /// none.
    fn end_start(&mut self, now: u64) {
        let work = self.probe.work(now);
        let growth = work / self.before_work;
        let limit = self.limit;
        if self.cluster == 1 && self.step == UP {
            // Gateways may have no share of it yet, see `lease.lua`: by Little's law.
            let (mean, _) = self.recent.mean_and_q95_ns();
            let in_flight = self.probe.per_s(now) * mean / 1e9;
            if in_flight < IN_FORCE * f64::from(self.limit()) && self.tries < MOST_TRIES {
                self.tries += 1;
                return self.look_at(UP, limit, now);
            }
        }
        match self.step {
            FIRST => {
                self.before_limit = limit;
                self.before_work = work;
                if !self.jump_from_start(now) {
                    self.try_limit(UP, 2.0 * limit, now);
                }
            }
            UP if growth >= START_GROWTH => {
                self.before_limit = limit;
                self.before_work = work;
                self.try_limit(UP, 2.0 * limit, now);
            }
            UP => {
                let limit = self.before_limit * START_MARGIN * growth;
                if growth < START_FLAT {
                    self.before_limit = limit;
                    self.before_work = self.before_work.max(work);
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

    /// Where so little is done that most of what is in flight can only wait, if the backend is what
    /// it was: down at once, as from any gross overload, and then see whether it is. If not, the
    /// start goes on.
    fn jump_from_start(&mut self, now: u64) -> bool {
        let in_force = f64::from(self.limit());
        let done = self.at_work(self.before_work);
        let target = (JUMP_MARGIN * done).max(self.least());
        if self.base_ratio.values() < BASE_EVEN / 2
            || in_force <= GROSS_RATIO * done
            || target.round() > in_force * (1.0 - SMALL)
        {
            return false;
        }
        self.set(target);
        self.before_in_force = in_force;
        self.starting = 1;
        self.first = self.probe;
        let (mean, _) = self.recent.mean_and_q95_ns();
        self.verify(VERIFY, mean, now);
        true
    }

    fn found_start(&mut self, limit: f64, now: u64) {
        self.set(limit.max(self.floor()));
        self.begin_pair(now);
    }

    fn end_verify(&mut self, now: u64) {
        // How long the slowest take is known only now, where that has changed.
        let (_, q95) = self.recent.mean_and_q95_ns();
        if self.probe.wait_for_slowest(q95 as u64, now) {
            return;
        }
        let fell = self.first.mean_x() - self.probe.mean_x();
        let less = (self.before_in_force / self.limit.round()).ln();
        let enough = self.probe.n() >= FEWEST;
        let compares = enough && self.first.n() >= FEWEST && fell.is_finite();
        // Where most are quick and never waited, their logarithms cannot fall.
        let usual_again = self.times_slower(self.probe.ratio()) < USUAL_AGAIN;
        let right = compares && fell >= less / 2.0 || enough && usual_again;
        if compares && !right && self.jump_again(now) {
            return;
        }
        let starting = std::mem::take(&mut self.starting) == 1;
        if right {
            if compares {
                let by = self.times_slower(self.first.ratio());
                let done = self.at_work(self.probe.work(now)).min(self.before_in_force);
                let better = self.jump_target(self.before_in_force, by).max(done);
                self.set(better.min(self.before_limit));
            }
        } else if starting {
            return self.try_limit(UP, 2.0 * self.before_limit, now);
        } else if compares {
            // Not what the limit did: the backend itself is slower now.
            if self.frozen != 1 {
                // Both measure that, then.
                let (n, m) = (f64::from(self.first.n()), f64::from(self.probe.n()));
                let mean = |first: f64, then: f64| (n * first + m * then) / (n + m);
                let x = mean(self.first.mean_x(), self.probe.mean_x());
                let ratio = mean(self.first.ratio(), self.probe.ratio());
                self.base_x.set(x);
                self.base_ratio.set(ratio);
                let (mean, _) = self.recent.mean_and_q95_ns();
                self.base_ns.set(mean);
            }
            self.set(self.before_limit);
        }
        self.begin_pair(now);
    }

    /// What was sent before the jump may have found a queue that was only growing, at
    /// the beginning of a flood: then the response has not fallen, and yet the backend is
    /// what it was. Down once more, and now from a limit that had settled.
    fn jump_again(&mut self, now: u64) -> bool {
        let in_force = self.limit.round();
        let by = self.times_slower(self.probe.ratio());
        let done = self.at_work(self.probe.work(now)).min(in_force);
        let target = self.jump_target(in_force, by).max(done);
        if self.step != VERIFY || target.round() > in_force * (1.0 - SMALL) {
            return false;
        }
        self.set(target);
        self.before_in_force = in_force;
        self.first = self.probe;
        let (mean, _) = self.recent.mean_and_q95_ns();
        self.verify(VERIFY_AGAIN, mean, now);
        true
    }

    /// Where the limit should be if it alone is what makes responses slower.
    fn jump_target(&self, in_force: f64, times_slower: f64) -> f64 {
        (JUMP_MARGIN * in_force / times_slower).max(self.least())
    }

    /// No jump goes lower.
    fn least(&self) -> f64 {
        self.floor().max(f64::from(self.bounds().0))
    }

    /// How many slots what was done would have held at R0: those that were truly at work.
    fn at_work(&self, work: f64) -> f64 {
        work * self.base_ratio.get().unwrap_or(1.0)
    }

    pub(super) fn begin_pair(&mut self, now: u64) {
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

    pub(super) fn measure(&mut self, step: u32, limit: u32, now: u64) {
        let before = f64::from(self.limit());
        self.step = step;
        self.forced = limit;
        let (mean, q95) = self.recent.mean_and_q95_ns();
        // No sample of a response that takes longer would be had in 1.5 s.
        let longest = (LONGEST_NS as f64).max(q95);
        let settle = (2.0 * mean)
            .max(1.5 * q95)
            .clamp(SHORTEST_SETTLE_NS as f64, longest);
        let plan = Plan {
            settle_ns: self.with_lag(settle as u64),
            open_ns: self.time_for(self.samples()),
            slowest_ns: q95 as u64,
            ended: 0,
        };
        self.probe.begin(now, &plan);
        self.rise_slowly(before, mean as u64, now);
    }

    /// How many samples tell a difference of x of 0.07, a third of a pair's.
    fn samples(&self) -> f64 {
        (2.0 * (self.recent.spread() / 0.07).powi(2)).clamp(60.0, 1500.0)
    }

    /// Slots that become free at the same moment are taken at the same moment,
    /// and free again together: at a backend that always takes the same time, for
    /// ever. So those that a measurement adds are added over one response time.
    fn rise_slowly(&mut self, before: f64, ns: u64, now: u64) {
        self.ramp_from = (self.target() - before).max(0.0);
        self.ramp_at = now;
        self.ramp_ns = ns.min(LONGEST_NS);
        self.rise(now);
    }

    pub(super) fn rise(&mut self, now: u64) {
        if self.ramp_from == 0.0 && self.ramp == 0.0 {
            return;
        }
        let passed = now.saturating_sub(self.ramp_at) as f64;
        let left = 1.0 - passed / (self.ramp_ns.max(1)) as f64;
        self.ramp = if left > 0.0 && left <= 1.0 && self.ramp_from.is_finite() {
            self.ramp_from * left
        } else {
            0.0
        };
        if self.ramp == 0.0 {
            self.ramp_from = 0.0;
        }
    }

    fn end_first(&mut self, now: u64) {
        if self.probe.n() < FEWEST {
            return self.begin_pair(now);
        }
        self.first = self.probe;
        let second = if self.high_first & 1 == 1 {
            self.low
        } else {
            self.high
        };
        self.measure(PAIR_B, second, now);
    }

    pub(super) fn end_pair(&mut self, now: u64) {
        let above = |by| match self.high_first & 1 {
            1 => self.first.above(&self.probe, by),
            _ => self.probe.above(&self.first, by),
        };
        // A wait adds most to the logarithm of the quick: where they are many, x alone
        // takes the beginning of a queue for the whole of it. Where there are a few very
        // slow ones, the mean of the ratios says nothing.
        let more = if self.recent.ratio_spread() < self.recent.spread() {
            (above(By::X) + above(By::Ratio)) / 2.0
        } else {
            above(By::X)
        };
        let e = more / (f64::from(self.high) / f64::from(self.low.max(1))).ln();
        if self.probe.n() < FEWEST || !e.is_finite() {
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
            // A slow backend gives fewer samples than it takes: of those less is made.
            let n = f64::from(self.first.n().min(self.probe.n()));
            let trust = (n / self.samples()).sqrt().min(1.0);
            (0.25 * trust * (0.5 - e)).clamp(0.8f64.ln(), 1.22f64.ln())
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
