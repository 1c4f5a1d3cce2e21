//! A pool of this gateway among those of the others: what is said to the store,
//! and what is made of its answers. Without the store, without a clock: whoever
//! calls brings the pool (under its lock), the time, and the replies; the
//! simulator is one of them.
//!
//! ```text
//!   look ▶ told ▶ (lease.lua) ▶ take ▶ put           ten times a second
//!   want_slots ▶ (slot.lua) ▶ take_slots ▶ put_slots  twice as often, where `strict`
//! ```
use crate::domain::pool::limiter::{Found, Order, Sample};
use crate::domain::pool::{Cluster, LEVELS, Pool, Report, Wakes};
use crate::domain::units::Nanos;
use crate::redis::lease::{Keys, LEASE, Share, Told};
use std::collections::VecDeque;
use std::time::Duration;

/// Between two calls, give or take a tenth so that gateways do not call in step.
pub const EVERY: Duration = Duration::from_millis(100);
/// Where each slot is taken by itself.
pub const EVERY_SLOT: Duration = Duration::from_millis(50);
/// Of so many of the last responses the 99th percentile is told.
const RESPONSES: usize = 500;
/// Fewer say nothing of one in a hundred.
const ENOUGH: usize = 100;
/// Of a gateway without a lease for so long it is not supposed that it is only late.
const COMES_BACK_NS: u64 = 5_000_000_000;

pub struct Member {
    keys: Keys,
    gateway: String,
    /// Number of the last reply.
    heard: u64,
    leads: bool,
    gateways: u32,
    /// How many there were before one of them stayed away.
    before: u32,
    /// Since when those are fewer than there were, or than are known otherwise.
    fewer_since: Option<Nanos>,
    differs: bool,
    /// Each slot is taken by itself: of `limit`, at most `entitled`.
    strict: bool,
    limit: u32,
    entitled: u32,
    /// Put into the pool, until when, and what holds after that.
    share: u32,
    until: Nanos,
    fallback: u32,
    responses: VecDeque<u64>,
    samples: Vec<Sample>,
    /// What ended at all gateways, on its way to the limiter.
    order: Order,
}

/// The pool as it was before the call.
pub struct Looked {
    report: Report,
    limit: u32,
    found: Found,
    /// Gateways: with those that have no lease, and as far as is known otherwise.
    known: u32,
    seen: u32,
    at: Nanos,
}

impl Member {
    /// `gateway`: the same after a restart, and no other's.
    pub fn new(keys: Keys, gateway: String) -> Member {
        Member {
            keys,
            gateway,
            heard: 0,
            leads: false,
            gateways: 1,
            before: 1,
            fewer_since: None,
            differs: false,
            strict: false,
            limit: 0,
            entitled: 0,
            share: 0,
            until: Nanos(0),
            fallback: 0,
            responses: VecDeque::new(),
            samples: Vec::new(),
            order: Order::default(),
        }
    }

    pub fn keys(&self) -> &Keys {
        &self.keys
    }

    pub fn gateway(&self) -> &str {
        &self.gateway
    }

    /// Of all gateways, as the last reply said.
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// This gateway's limiter finds the limit.
    pub fn leads(&self) -> bool {
        self.leads
    }

    pub fn differs(&self) -> bool {
        self.differs
    }

    pub fn strict(&self) -> bool {
        self.strict
    }

    /// When the lease ends, and what may be in flight here after that.
    pub fn until(&self) -> Nanos {
        self.until
    }

    pub fn fallback(&self) -> u32 {
        self.fallback
    }

    /// How many gateways there are at least. Heartbeats (`seen`) know of those that have no lease
    /// yet, at a start, but forget one that has gone only after most of a minute; and a Redis that
    /// comes back empty knows of nobody. What they show, or was there before, and leases do not
    /// holds for as long as a gateway may need to come back.
    fn known(&self, seen: u32, now: Nanos) -> u32 {
        let back = |since: Nanos| now.0.saturating_sub(since.0) >= COMES_BACK_NS;
        match self.fewer_since {
            Some(since) if back(since) => self.gateways.max(1),
            _ => seen.max(self.gateways).max(self.before),
        }
    }

    /// Before a call: takes from the pool what is to be told of it. `seen`: gateways, as
    /// far as is known otherwise.
    pub fn look(&mut self, p: &mut Pool<'_>, seen: u32, now: Nanos, wakes: &mut Wakes) -> Looked {
        let known = self.known(seen, now);
        if !p.report(now).leased {
            // Nobody knows yet what the others hold.
            let part = p.state.limiter.limit() / known;
            p.set_share(0, now, part, now, wakes);
        }
        self.samples.clear();
        let limiter = &mut p.state.limiter;
        limiter.take_samples(&mut self.samples);
        let (limit, found) = (limiter.limit(), limiter.found());
        if self.fallback == 0 {
            self.fallback = limit / known;
        }
        self.note_responses();
        Looked {
            report: p.report(now),
            limit,
            found,
            known,
            seen,
            at: now,
        }
    }

    /// What the lease script is told.
    pub fn told(&self, looked: &Looked, weights: [u32; LEVELS], timeout_ns: u64) -> Told<'_> {
        Told {
            gateway: &self.gateway,
            report: looked.report,
            weights,
            timeout_ns,
            p99_ns: self.p99_ns(),
            known: looked.known,
            heard: self.heard,
            limit: looked.limit,
            found: looked.found,
            samples: &self.samples,
            now: looked.at,
        }
    }

    /// The reply, as far as it is not the pool's.
    pub fn take(&mut self, share: &Share, looked: &Looked) {
        let until = lease_end(looked.at);
        self.leads = looked.report.adaptive && share.leads;
        let gateways = share.gateways.max(1);
        if gateways < self.gateways {
            self.before = looked.known;
            self.fewer_since = Some(looked.at);
        }
        self.gateways = gateways;
        if gateways < looked.seen.max(self.before) {
            self.fewer_since.get_or_insert(looked.at);
        } else {
            self.before = gateways;
            self.fewer_since = None;
        }
        self.differs = share.differs;
        self.limit = share.limit;
        // Whoever has not called yet goes on with its part all the same.
        self.fallback = share.limit / self.known(looked.seen, looked.at);
        self.entitled = share.share;
        if !share.strict {
            self.share = share.share;
            self.until = until;
        } else if !self.strict {
            // Slots come on top of nothing.
            self.share = 0;
            self.until = until;
        }
        self.strict = share.strict;
    }

    /// The reply, as far as it is the pool's. It counts as heard only then.
    pub fn put(&mut self, p: &mut Pool<'_>, share: &Share, now: Nanos, wakes: &mut Wakes) {
        let state = &mut *p.state;
        state.cluster = Cluster {
            gateways: share.gateways,
            limit: share.limit,
            differs: u32::from(share.differs),
            strict: u32::from(share.strict),
        };
        if self.leads {
            if let Some(found) = &share.found {
                state.limiter.adopt(found);
            }
            for ended in &share.ended {
                let (done, at) = ended.done(now);
                self.order.add(done, at);
            }
            for (done, at) in self.order.take(now) {
                state.limiter.pooled(&done, &mut state.routes, at);
            }
        } else {
            self.order = Order::default();
            state.limiter.set_limit(f64::from(share.limit));
        }
        p.set_share(self.share, self.until, self.fallback, now, wakes);
        self.heard = share.number;
    }

    /// Before a call of the slot script: how many slots it asks for.
    pub fn want_slots(&mut self, p: &mut Pool<'_>, now: Nanos, wakes: &mut Wakes) -> u32 {
        let wanted = wanted_slots(&p.report(now), self.entitled);
        if wanted < self.share {
            // Others may have them from now on, whether or not the reply arrives.
            self.share = wanted;
            p.set_share(self.share, self.until, self.fallback, now, wakes);
        }
        wanted
    }

    /// Its reply. `before`: when the call began.
    pub fn take_slots(&mut self, slots: u32, before: Nanos) {
        // Of what it has too much it makes no use again.
        self.share = slots.min(self.entitled);
        self.until = lease_end(before);
    }

    pub fn put_slots(&self, p: &mut Pool<'_>, now: Nanos, wakes: &mut Wakes) {
        p.set_share(self.share, self.until, self.fallback, now, wakes);
    }

    fn note_responses(&mut self) {
        for sample in &self.samples {
            if sample.response_ns != u64::MAX {
                self.responses.push_back(sample.response_ns);
            }
        }
        while self.responses.len() > RESPONSES {
            self.responses.pop_front();
        }
    }

    fn p99_ns(&self) -> Option<u64> {
        if self.responses.len() < ENOUGH {
            return None;
        }
        let mut sorted: Vec<u64> = self.responses.iter().copied().collect();
        let at = sorted.len() * 99 / 100;
        Some(*sorted.select_nth_unstable(at).1)
    }
}

/// What is in flight, and of what waits as many as this gateway is entitled to.
fn wanted_slots(report: &Report, entitled: u32) -> u32 {
    let asks = report.demand.iter().fold(0u32, |a, b| a.saturating_add(*b));
    report.held.max(asks.min(entitled))
}

fn lease_end(before: Nanos) -> Nanos {
    Nanos(before.0 + LEASE.as_nanos() as u64)
}
