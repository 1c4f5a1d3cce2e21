//! Several gateways with one limit: every 100 ms each tells what it holds and
//! what waits, and is given a share for a second. The rules are those of the
//! script in the store, without the store.
use sluice::domain::pool::limiter::{Order, Sample};
use sluice::domain::pool::{LEVELS, Wakes};
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
    told: Vec<Told>,
    weights: [u32; LEVELS],
    samples: Vec<Sample>,
    order: Order,
    /// The limit as the leader told it last.
    limit: u32,
}

#[derive(Clone, Copy, Default)]
struct Told {
    /// 0: never heard of.
    at: u64,
    held: u32,
    /// By level: in flight, waiting, and expected.
    demand: [u32; LEVELS],
    granted: u32,
    /// What it was granted before: it may hold that until it asks again.
    before: u32,
}

impl Told {
    /// What it may have at the backend.
    fn has(&self) -> u32 {
        self.held.max(self.granted).max(self.before)
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
            told: vec![Told::default(); setup.gateways as usize],
            weights: setup.settings.weights,
            samples: Vec::new(),
            order: Order::default(),
            limit: 0,
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
        let report = gates[at].heap.pool().report(Nanos(now));
        let told = &mut self.told[at];
        // After an absence of the store nobody is asked to give up what it holds.
        if told.at > 0 && !told.is_alive(now) {
            self.back_until = now + LEASE_NS;
            told.granted = 0;
        }
        (told.at, told.held, told.demand) = (now, report.held, report.demand);
        told.before = told.granted;
        let limiter = &mut gates[at].heap.state.limiter;
        limiter.take_samples(&mut self.samples);
        for sample in self.samples.drain(..) {
            self.order.add(sample.done(), Nanos(sample.completed));
        }
        if at == LEADER || self.limit == 0 {
            self.limit = limiter.limit();
        }
        let limit = self.limit;
        if at == LEADER {
            self.lead(gates, now);
        } else {
            limiter.set_limit(f64::from(limit));
        }
        let known = self.told.iter().filter(|it| it.at > 0).count() as u32;
        let fallback = (limit / known.max(1)).max(1);
        let share = match self.share(at, limit, now) {
            // The others may not have been heard of yet.
            share if now < self.back_until => {
                let had = report.held.max(report.in_force);
                share
                    .min(had)
                    .max(report.held.min(self.room(at, limit, now)))
            }
            share => share,
        };
        self.told[at].granted = share;
        let mut wakes = Wakes::default();
        let until = Nanos(now + LEASE_NS);
        let mut pool = gates[at].heap.pool();
        pool.set_share(share, until, fallback, Nanos(now), &mut wakes);
        gates[at].hear(wakes, now);
    }

    /// The leader's limiter hears of every gateway's requests, in their order.
    fn lead(&mut self, gates: &mut [Gate], now: u64) {
        let state = &mut gates[LEADER].heap.state;
        for (done, ended) in self.order.take(Nanos(now)) {
            state.limiter.pooled(&done, &mut state.routes, ended);
        }
    }

    /// What others leave of the limit.
    fn room(&self, at: usize, limit: u32, now: u64) -> u32 {
        let others = self.told.iter().enumerate().filter(|&(i, _)| i != at);
        let taken: u32 = others
            .filter(|(_, it)| it.is_alive(now))
            .map(|(_, it)| it.has())
            .sum();
        limit.saturating_sub(taken)
    }

    /// Level 0 first, the rest by weight and demand, what nobody wants in
    /// proportion to demand; never more than what others leave.
    fn share(&self, at: usize, limit: u32, now: u64) -> u32 {
        let alive: Vec<&Told> = self.told.iter().filter(|it| it.is_alive(now)).collect();
        let sum =
            |level: usize| -> f64 { alive.iter().map(|it| f64::from(it.demand[level])).sum() };
        let wanted: [f64; LEVELS] = std::array::from_fn(sum);
        let mut given = [0.0; LEVELS];
        given[0] = wanted[0].min(f64::from(limit));
        let mut rest = f64::from(limit) - given[0];
        let open = |given: &[f64; LEVELS], level: &usize| given[*level] < wanted[*level];
        loop {
            let levels: Vec<usize> = (1..LEVELS).filter(|level| open(&given, level)).collect();
            let weights: f64 = levels
                .iter()
                .map(|&level| f64::from(self.weights[level]))
                .sum();
            if levels.is_empty() || rest <= 0.0 {
                break;
            }
            let part = |level: usize| rest * f64::from(self.weights[level]) / weights;
            let full: Vec<usize> = levels
                .iter()
                .copied()
                .filter(|&level| wanted[level] <= part(level))
                .collect();
            if full.is_empty() {
                for level in levels {
                    given[level] = part(level);
                }
                rest = 0.0;
            }
            for level in full {
                given[level] = wanted[level];
                rest -= wanted[level];
            }
        }
        let all: f64 = wanted.iter().sum();
        let target = |it: &Told| {
            let asks: f64 = it.demand.iter().map(|&n| f64::from(n)).sum();
            let levels = (0..LEVELS).filter(|&level| wanted[level] > 0.0);
            let own: f64 = levels
                .map(|level| given[level] * f64::from(it.demand[level]) / wanted[level])
                .sum();
            own + rest * (asks + 1.0) / (all + alive.len() as f64)
        };
        // What rounding leaves goes to the largest parts.
        let targets: Vec<f64> = self
            .told
            .iter()
            .map(|it| if it.is_alive(now) { target(it) } else { 0.0 })
            .collect();
        let down = |i: usize| (targets[i] + 1e-6).floor();
        let left = f64::from(limit) - (0..targets.len()).map(down).sum::<f64>();
        let own = targets[at] - down(at);
        let before = (0..targets.len()).filter(|&i| {
            let part = targets[i] - down(i);
            part > own || (part == own && i < at)
        });
        let more = u32::from((before.count() as f64) < left);
        (down(at) as u32 + more).min(self.room(at, limit, now))
    }
}
