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
use crate::redis::lease::Keys;
use crate::redis::{Client, StoreError};
use crate::shm::{PoolId, Region};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::{JoinHandle, spawn_local};

/// A reply that is later than that is worth nothing: half of its lease is over.
const PATIENCE: Duration = Duration::from_millis(500);
/// How often a worker looks whether it is the one, and which pools there are.
const LOOK: Duration = Duration::from_millis(250);

pub mod member;

use member::{EVERY, EVERY_SLOT, Member};

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
        let mut seat: Option<Seat> = None;
        loop {
            let rules = self.current.get().rules;
            let Some(pool) = rules.pools.iter().find(|it| it.id == id && it.cluster) else {
                return;
            };
            let seat = seat.get_or_insert_with(|| {
                let keys = Keys::new(&self.prefix, pool.name);
                Seat::new(Member::new(keys, self.gateway.clone()))
            });
            let result = seat.member.lease(&self.client, self.region, pool).await;
            self.heard(seat, pool, result);
            if seat.member.strict() {
                let result = seat.member.slots(&self.client, self.region, pool).await;
                self.heard(seat, pool, result);
                tokio::time::sleep(about(EVERY_SLOT, &mut random)).await;
                let result = seat.member.slots(&self.client, self.region, pool).await;
                self.heard(seat, pool, result);
                tokio::time::sleep(about(EVERY_SLOT, &mut random)).await;
            } else {
                tokio::time::sleep(about(EVERY, &mut random)).await;
            }
        }
    }

    fn heard(&self, seat: &mut Seat, pool: &CompiledPool, result: Result<Put, StoreError>) {
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
                if std::mem::take(&mut seat.away) {
                    let line = "is shared out by the store again";
                    self.shared
                        .warn(format!("sluice: pool \"{}\" {line}", pool.name));
                }
            }
            Err(e) => {
                // The lease carries it over a hiccup.
                if !seat.away && seat.member.until() < self.region.now() {
                    seat.away = true;
                    self.shared.warn(format!(
                        "sluice: pool \"{}\" cannot be shared out: {e}; meanwhile this gateway \
                         takes {} requests at once, its part of the limit",
                        pool.name,
                        seat.member.fallback().max(1)
                    ));
                }
            }
        }
        let differs = seat.member.differs();
        if std::mem::replace(&mut seat.said_differs, differs) != differs {
            let line = match differs {
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

/// A pool's member, and what was said of it in the log.
struct Seat {
    member: Member,
    away: bool,
    said_differs: bool,
}

impl Seat {
    fn new(member: Member) -> Seat {
        Seat {
            member,
            away: false,
            said_differs: false,
        }
    }
}

/// What came of a share put into the pool.
#[derive(Default)]
struct Put {
    woke_me: bool,
    saturation: Option<bool>,
}

impl Member {
    /// One call of the lease script. Nothing is said where the pool's lock was not to be had.
    async fn lease(
        &mut self,
        client: &Client,
        region: &Region,
        pool: &CompiledPool,
    ) -> Result<Put, StoreError> {
        let known = u32::try_from(region.gateways()).unwrap_or(u32::MAX);
        let looked = region.pool(pool.id, |p, now, wakes| self.look(p, known, now, wakes));
        let Some(looked) = looked else {
            return Ok(Put::default());
        };
        let deadline = Instant::now() + PATIENCE;
        let told = self.told(&looked.value, pool.settings.weights, pool.timeout_ns);
        let share = client.lease(self.keys(), &told, deadline).await?;
        self.take(&share, &looked.value);
        let Some(touched) = region.pool(pool.id, |p, now, wakes| {
            self.put(p, &share, now, wakes);
        }) else {
            // Not heard, as the store sees it: the share of before is still in the pool.
            return Ok(Put::default());
        };
        Ok(Put {
            woke_me: touched.woke_me || looked.woke_me,
            saturation: touched.saturation.or(looked.saturation),
        })
    }

    /// One call of the slot script.
    async fn slots(
        &mut self,
        client: &Client,
        region: &Region,
        pool: &CompiledPool,
    ) -> Result<Put, StoreError> {
        let looked = region.pool(pool.id, |p, now, wakes| {
            (self.want_slots(p, now, wakes), now)
        });
        let Some(looked) = looked else {
            return Ok(Put::default());
        };
        let (wanted, before) = looked.value;
        let deadline = Instant::now() + PATIENCE;
        let slots = client
            .slots(self.keys(), self.gateway(), self.limit(), wanted, deadline)
            .await?;
        self.take_slots(slots, before);
        let touched = region.pool(pool.id, |p, now, wakes| {
            self.put_slots(p, now, wakes);
        });
        Ok(touched.map_or_else(Put::default, |it| Put {
            woke_me: it.woke_me || looked.woke_me,
            saturation: it.saturation.or(looked.saturation),
        }))
    }
}

#[cfg(test)]
#[path = "cluster_tests.rs"]
mod tests;
