//! Several gateways with one limit: every 100 ms each tells what it holds and
//! what waits, and is given a share for a second. The rules are those of the
//! script in the store, without the store.
use sluice::domain::pool::Wakes;
use sluice::domain::pool::limiter::Sample;
use sluice::domain::units::Nanos;

use crate::gate::Gate;
use crate::model::Setup;
use crate::traffic::Numbers;

const EVERY_NS: u64 = 100_000_000;
const LEASE_NS: u64 = 1_000_000_000;
/// The gateway that advances the limiter.
const LEADER: usize = 0;

pub struct Cluster {
    /// The store answers.
    pub there: bool,
    /// It was away lately: shares are what gateways have without it, until then.
    back_until: u64,
    jitter: Numbers,
    reports: Vec<Report>,
    samples: Vec<Sample>,
}

#[derive(Clone, Copy, Default)]
struct Report {
    /// 0: never heard of.
    at: u64,
    held: u32,
    /// Waiters of level 0, and what it could use, both smoothed: shares that jump
    /// leave slots unused where they shrink.
    core: f64,
    wants: f64,
    granted: u32,
}

/// The weight of one report in what a gateway is taken to want.
const WEIGHT: f64 = 0.05;

impl Report {
    /// What it may have at the backend.
    fn has(&self) -> u32 {
        self.held.max(self.granted)
    }

    fn is_alive(&self, now: u64) -> bool {
        self.at > 0 && now - self.at < LEASE_NS
    }
}

impl Cluster {
    pub fn new(setup: &Setup) -> Cluster {
        Cluster {
            there: true,
            back_until: 0,
            jitter: Numbers::new(setup.seed, 1_000),
            reports: vec![Report::default(); setup.gateways as usize],
            samples: Vec::new(),
        }
    }

    /// One gateway's call; when it calls next.
    pub fn call(&mut self, at: usize, gates: &mut [Gate], now: u64) -> u64 {
        if self.there {
            self.exchange(at, gates, now);
        }
        let jitter = 0.9 + 0.2 * self.jitter.unit();
        now + (EVERY_NS as f64 * jitter) as u64
    }

    fn exchange(&mut self, at: usize, gates: &mut [Gate], now: u64) {
        let view = gates[at].heap.pool().view(Nanos(now));
        let report = &mut self.reports[at];
        // After an absence of the store nobody is asked to give up what it holds.
        let back = report.at > 0 && !report.is_alive(now);
        report.at = now;
        report.held = view.in_flight;
        let waiting = f64::from(view.waiting.iter().sum::<u32>());
        let wants = f64::from(view.in_flight) + waiting + 1.0;
        let weight = if report.wants == 0.0 { 1.0 } else { WEIGHT };
        report.core += weight * (f64::from(view.waiting[0]) - report.core);
        report.wants += weight * (wants - report.wants);
        if back {
            self.back_until = now + LEASE_NS;
        }
        let limiter = &mut gates[at].heap.state.limiter;
        limiter.take_samples(&mut self.samples);
        if at == LEADER {
            self.lead(gates);
        }
        let limit = gates[LEADER].heap.state.limiter.limit();
        if at != LEADER {
            let found = gates[LEADER].heap.state.limiter.found();
            gates[at].heap.state.limiter.adopt(&found);
            gates[at].heap.state.limiter.set_limit(f64::from(limit));
        }
        let known = self.reports.iter().filter(|it| it.at > 0).count() as u32;
        let fallback = (limit / known.max(1)).max(1);
        let share = match self.share(at, limit, now) {
            // The others may not have been heard of yet.
            share if now < self.back_until => share.min(fallback),
            share => share,
        };
        self.reports[at].granted = share;
        let mut wakes = Wakes::default();
        let until = Nanos(now + LEASE_NS);
        let mut pool = gates[at].heap.pool();
        pool.set_share(share, until, fallback, Nanos(now), &mut wakes);
        gates[at].hear(wakes, now);
    }

    /// The leader's limiter hears of every gateway's requests, in their order.
    fn lead(&mut self, gates: &mut [Gate]) {
        self.samples.sort_by_key(|sample| sample.completed);
        let state = &mut gates[LEADER].heap.state;
        for sample in self.samples.drain(..) {
            let (done, now) = (sample.done(), Nanos(sample.completed));
            state.limiter.pooled(&done, &mut state.routes, now);
        }
    }

    /// Level 0 first, then by demand; never more than what others leave.
    fn share(&self, at: usize, limit: u32, now: u64) -> u32 {
        let alive = || self.reports.iter().filter(|it| it.is_alive(now));
        let own = self.reports[at];
        let core: f64 = alive().map(|it| it.core).sum();
        let wanted: f64 = alive().map(|it| it.wants).sum();
        let first = own.core.min(f64::from(limit) * own.core / core.max(1e-9));
        let rest = (f64::from(limit) - core).max(0.0);
        let fair = first + rest * own.wants / wanted.max(1.0);
        let others = self.reports.iter().enumerate().filter(|&(i, _)| i != at);
        let taken: u32 = others
            .filter(|(_, it)| it.is_alive(now))
            .map(|(_, it)| it.has())
            .sum();
        (fair.round() as u32).min(limit.saturating_sub(taken))
    }
}
