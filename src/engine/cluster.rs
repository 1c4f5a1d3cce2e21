//! Pools with one limit for all gateways: one worker of the gateway tells the
//! store ten times a second what it holds and wants of each, and puts the share
//! that it is told into the pool, until the lease ends. After that the pool
//! falls back to its part of the limit by itself.
//!
//! A thread of its own: neither a list of a million entries nor a burst of
//! decisions may make a lease late. It has a connection of its own too.
use super::current::Current;
use super::pools;
use super::rules::CompiledPool;
use super::setup::Setup;
use super::sync::{gateway_id, outdated};
use super::thread::{self, Shared};
use crate::domain::pool::limiter::{Order, Sample};
use crate::domain::pool::{Cluster, Pool, Report, Wakes};
use crate::domain::units::Nanos;
use crate::redis::lease::{Keys, LEASE, Share, Told};
use crate::redis::{Client, StoreError};
use crate::shm::{PoolId, Region};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::{JoinHandle, spawn_local};

/// Between two calls, give or take a tenth so that gateways do not call in step.
const EVERY: Duration = Duration::from_millis(100);
/// Where each slot is taken by itself.
const EVERY_SLOT: Duration = Duration::from_millis(50);
/// A reply that is later than that is worth nothing: half of its lease is over.
const PATIENCE: Duration = Duration::from_millis(500);
/// How often a worker looks whether it is the one, and which pools there are.
const LOOK: Duration = Duration::from_millis(250);
/// Of so many of the last responses the 99th percentile is told.
const RESPONSES: usize = 500;
/// Fewer say nothing of one in a hundred.
const ENOUGH: usize = 100;

/// Starts the thread, where there is a store.
pub fn start(setup: Arc<Setup>, current: Arc<Current>, shared: Arc<Shared>) -> Result<(), String> {
    if setup.config.store.url.is_none() {
        return Ok(());
    }
    thread::spawn("sluice-cluster", move || {
        let rt = match tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
        {
            Ok(rt) => rt,
            Err(e) => {
                shared.error(format!("sluice: cannot start the sharing of pools: {e}"));
                return;
            }
        };
        let local = tokio::task::LocalSet::new();
        local.block_on(&rt, run(setup, current, shared));
    })
}

async fn run(setup: Arc<Setup>, current: Arc<Current>, shared: Arc<Shared>) {
    let region = setup.region;
    let mut speaker: Option<Speaker> = None;
    loop {
        if shared.is_quitting() {
            // Given up before this worker's requests drain, so that the next takes over.
            if speaker.take().is_some() {
                region.unlock_cluster();
            }
            return;
        }
        let shared_out: Vec<PoolId> = {
            let rules = current.get().rules;
            let pools = rules.pools.iter().filter(|it| it.cluster);
            pools.map(|it| it.id).collect()
        };
        if speaker.is_some() && (shared_out.is_empty() || outdated(&setup)) {
            speaker = None;
            region.unlock_cluster();
        }
        if speaker.is_none()
            && !shared_out.is_empty()
            && !outdated(&setup)
            && region.try_lock_cluster()
        {
            speaker = Speaker::new(&setup, &current, &shared);
        }
        if let Some(speaker) = &mut speaker {
            speaker.attend(&shared_out);
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// The worker that speaks for its gateway.
struct Speaker {
    context: Rc<Context>,
    tasks: BTreeMap<usize, (PoolId, JoinHandle<()>)>,
}

struct Context {
    client: Client,
    region: &'static Region,
    current: Arc<Current>,
    shared: Arc<Shared>,
    prefix: String,
    gateway: String,
}

impl Speaker {
    fn new(setup: &Setup, current: &Arc<Current>, shared: &Arc<Shared>) -> Option<Speaker> {
        // What is wrong with the store is said by the thread that decides.
        let client = Client::new(&setup.config.store).ok()?;
        Some(Speaker {
            context: Rc::new(Context {
                client,
                region: setup.region,
                current: Arc::clone(current),
                shared: Arc::clone(shared),
                prefix: setup.config.store.prefix.clone(),
                gateway: gateway_id(setup.region),
            }),
            tasks: BTreeMap::new(),
        })
    }

    fn attend(&mut self, pools: &[PoolId]) {
        self.tasks.retain(|_, (_, task)| !task.is_finished());
        for &id in pools {
            self.tasks
                .entry(id.index())
                .or_insert_with(|| (id, spawn_local(Rc::clone(&self.context).share(id))));
        }
    }
}

impl Drop for Speaker {
    fn drop(&mut self) {
        for (_, task) in self.tasks.values() {
            task.abort();
        }
    }
}

impl Context {
    /// Until the pool is not in force any more.
    async fn share(self: Rc<Self>, id: PoolId) {
        let mut random = u64::from(std::process::id()) << 16 ^ id.index() as u64 | 1;
        let mut member: Option<Member> = None;
        loop {
            let rules = self.current.get().rules;
            let Some(pool) = rules.pools.iter().find(|it| it.id == id && it.cluster) else {
                return;
            };
            let member = member.get_or_insert_with(|| {
                let keys = Keys::new(&self.prefix, pool.name);
                Member::new(keys, self.gateway.clone())
            });
            let result = member.lease(&self.client, self.region, pool).await;
            self.heard(member, pool, result);
            if member.strict {
                let result = member.slots(&self.client, self.region, pool).await;
                self.heard(member, pool, result);
                tokio::time::sleep(about(EVERY_SLOT, &mut random)).await;
                let result = member.slots(&self.client, self.region, pool).await;
                self.heard(member, pool, result);
                tokio::time::sleep(about(EVERY_SLOT, &mut random)).await;
            } else {
                tokio::time::sleep(about(EVERY, &mut random)).await;
            }
        }
    }

    fn heard(&self, member: &mut Member, pool: &CompiledPool, result: Result<Put, StoreError>) {
        match result {
            Ok(told) => {
                if told.woke_me {
                    self.shared.wake();
                }
                if let Some(saturated) = told.saturation
                    && let Some(view) = self.region.pool(pool.id, |p, now, _| p.view(now))
                {
                    let line = pools::saturation_line(pool.name, saturated, &view.value);
                    self.shared.warn(line);
                }
                if std::mem::take(&mut member.away) {
                    let line = "is shared out by the store again";
                    self.shared
                        .warn(format!("sluice: pool \"{}\" {line}", pool.name));
                }
            }
            Err(e) => {
                // The lease carries it over a hiccup.
                if !member.away && member.until < self.region.now() {
                    member.away = true;
                    self.shared.warn(format!(
                        "sluice: pool \"{}\" cannot be shared out: {e}; meanwhile this gateway \
                         takes {} requests at once, its part of the limit",
                        pool.name,
                        member.fallback.max(1)
                    ));
                }
            }
        }
        if std::mem::replace(&mut member.said_differs, member.differs) != member.differs {
            let line = match member.differs {
                true => "is not configured alike on all gateways; the lowest limit holds",
                false => "is configured alike on all gateways again",
            };
            self.shared
                .warn(format!("sluice: pool \"{}\" {line}", pool.name));
        }
    }
}

/// `every`, give or take a tenth: xorshift64.
fn about(every: Duration, random: &mut u64) -> Duration {
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    every.mul_f64(0.9 + 0.2 * (*random >> 11) as f64 / (1u64 << 53) as f64)
}

/// What came of a share put into the pool.
#[derive(Default)]
struct Put {
    woke_me: bool,
    saturation: Option<bool>,
}

/// A pool of this gateway among those of the others.
struct Member {
    keys: Keys,
    gateway: String,
    /// Number of the last reply.
    heard: u64,
    leads: bool,
    gateways: u32,
    differs: bool,
    said_differs: bool,
    /// Each slot is taken by itself: of `limit`, at most `entitled`.
    strict: bool,
    limit: u32,
    entitled: u32,
    /// Put into the pool, until when, and what holds after that.
    share: u32,
    until: Nanos,
    fallback: u32,
    away: bool,
    responses: VecDeque<u64>,
    samples: Vec<Sample>,
    /// What ended at all gateways, on its way to the limiter.
    order: Order,
}

impl Member {
    fn new(keys: Keys, gateway: String) -> Member {
        Member {
            keys,
            gateway,
            heard: 0,
            leads: false,
            gateways: 1,
            differs: false,
            said_differs: false,
            strict: false,
            limit: 0,
            entitled: 0,
            share: 0,
            until: Nanos(0),
            fallback: 0,
            away: false,
            responses: VecDeque::new(),
            samples: Vec::new(),
            order: Order::default(),
        }
    }

    /// One call of the lease script. Nothing is said where the pool's lock was not to be had.
    async fn lease(
        &mut self,
        client: &Client,
        region: &Region,
        pool: &CompiledPool,
    ) -> Result<Put, StoreError> {
        self.samples.clear();
        let known = u32::try_from(region.gateways()).unwrap_or(u32::MAX);
        let known = known.max(self.gateways).max(1);
        let samples = &mut self.samples;
        let looked = region.pool(pool.id, |p, now, wakes| {
            if !p.report(now).leased {
                // Nobody knows yet what the others hold.
                let part = p.state.limiter.limit() / known;
                p.set_share(0, now, part, now, wakes);
            }
            p.state.limiter.take_samples(samples);
            let limiter = &p.state.limiter;
            (p.report(now), limiter.limit(), limiter.found(), now)
        });
        let Some(looked) = looked else {
            return Ok(Put::default());
        };
        let (report, limit, found, before) = looked.value;
        if self.fallback == 0 {
            self.fallback = limit / known;
        }
        self.note_responses();
        let told = Told {
            gateway: &self.gateway,
            report,
            weights: pool.settings.weights,
            timeout_ns: pool.timeout_ns,
            p99_ns: self.p99_ns(),
            known,
            heard: self.heard,
            limit,
            found,
            samples: &self.samples,
            now: before,
        };
        let deadline = Instant::now() + PATIENCE;
        let share = client.lease(&self.keys, &told, deadline).await?;
        self.take(&share, report.adaptive, before);
        let Some(touched) = region.pool(pool.id, |p, now, wakes| {
            self.put(p, &share, now, wakes);
        }) else {
            // Not heard, as the store sees it: the share of before is still in the pool.
            return Ok(Put::default());
        };
        self.heard = share.number;
        Ok(Put {
            woke_me: touched.woke_me || looked.woke_me,
            saturation: touched.saturation.or(looked.saturation),
        })
    }

    /// The reply, as far as it is not the pool's.
    fn take(&mut self, share: &Share, adaptive: bool, before: Nanos) {
        self.leads = adaptive && share.leads;
        self.gateways = share.gateways.max(1);
        self.differs = share.differs;
        self.limit = share.limit;
        self.fallback = share.limit / self.gateways;
        self.entitled = share.share;
        if !share.strict {
            self.share = share.share;
            self.until = lease_end(before);
        } else if !self.strict {
            // Slots come on top of nothing.
            self.share = 0;
            self.until = lease_end(before);
        }
        self.strict = share.strict;
    }

    /// The reply, as far as it is the pool's.
    fn put(&mut self, p: &mut Pool<'_>, share: &Share, now: Nanos, wakes: &mut Wakes) {
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
    }

    /// One call of the slot script.
    async fn slots(
        &mut self,
        client: &Client,
        region: &Region,
        pool: &CompiledPool,
    ) -> Result<Put, StoreError> {
        let mut wanted = 0;
        let looked = region.pool(pool.id, |p, now, wakes| {
            wanted = wanted_slots(&p.report(now), self.entitled);
            if wanted < self.share {
                // Others may have them from now on, whether or not the reply arrives.
                self.share = wanted;
                p.set_share(self.share, self.until, self.fallback, now, wakes);
            }
            now
        });
        let Some(looked) = looked else {
            return Ok(Put::default());
        };
        let deadline = Instant::now() + PATIENCE;
        let slots = client
            .slots(&self.keys, &self.gateway, self.limit, wanted, deadline)
            .await?;
        // Of what it has too much it makes no use again.
        self.share = slots.min(self.entitled);
        self.until = lease_end(looked.value);
        let touched = region.pool(pool.id, |p, now, wakes| {
            p.set_share(self.share, self.until, self.fallback, now, wakes);
        });
        Ok(touched.map_or_else(Put::default, |it| Put {
            woke_me: it.woke_me || looked.woke_me,
            saturation: it.saturation.or(looked.saturation),
        }))
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

#[cfg(test)]
#[path = "cluster_tests.rs"]
mod tests;
