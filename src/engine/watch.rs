//! The worker's third thread, of pools: hands on what other workers do for the
//! requests that wait here, sees to what time alone brings about, and gives
//! back what dead workers held.
//!
//! It sleeps on a word of the worker's line: 4 looks a second while the pools
//! are empty, 10 while something is in flight, and at the next bound of a
//! waiter, however many wait. It holds nothing that a quitting worker would
//! have to wait for, so it goes on until its process ends: the last waiters are
//! served too.
use super::pools;
use super::thread::{self, Shared};
use crate::domain::pool::View;
use crate::shm::{PoolId, Region, Repairs};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Between two looks, while the pools are empty and while something is in them.
const IDLE: Duration = Duration::from_millis(250);
const BUSY: Duration = Duration::from_millis(100);
/// Bounds that come closer together are seen to together.
const LEAST: Duration = Duration::from_millis(2);
/// A lock that is held for as long is worth a word, and again after as long.
const STUCK: Duration = Duration::from_secs(1);
const STUCK_AGAIN: Duration = Duration::from_secs(60);

/// Starts the thread. `on_saturation` hears when a pool has become saturated
/// (true) or has recovered, of what this thread's looks bring about.
pub fn start(
    shared: &Arc<Shared>,
    region: &'static Region,
    on_saturation: impl Fn(&str, bool, &View) + Send + 'static,
) -> Result<(), String> {
    let shared = Arc::clone(shared);
    thread::spawn("sluice-watch", move || {
        let mut watch = Watch::new(&shared, region, on_saturation);
        let mut seen = 0;
        let mut sleep = Duration::ZERO;
        loop {
            if region.wait_for_wake(&mut seen, sleep) {
                shared.wake();
            }
            // The thread of the worker that replaces this one is on the same line.
            if shared.is_replaced() {
                return;
            }
            pools::release_unlogged(&shared, region);
            sleep = watch.look(Instant::now());
        }
    })
}

struct Watch<'a, F> {
    shared: &'a Shared,
    region: &'a Region,
    on_saturation: F,
    /// When pools are to be looked at, and dead workers to be looked for.
    due: Instant,
    reclaim: Instant,
    repairs: Repairs,
    stuck: Vec<Stuck>,
}

/// A pool whose lock was not to be had.
struct Stuck {
    pool: PoolId,
    since: Instant,
    said: Option<Instant>,
}

impl<'a, F: Fn(&str, bool, &View)> Watch<'a, F> {
    fn new(shared: &'a Shared, region: &'a Region, on_saturation: F) -> Watch<'a, F> {
        let now = Instant::now();
        Watch {
            shared,
            region,
            on_saturation,
            due: now,
            reclaim: now,
            repairs: region.repairs(),
            stuck: Vec::new(),
        }
    }

    /// What is due; how long to sleep.
    fn look(&mut self, now: Instant) -> Duration {
        if now >= self.due {
            let (next, busy) = self.tick(now);
            self.due = now + next;
            // Sooner than was thought when the pools were empty.
            if busy {
                self.reclaim = self.reclaim.min(now + BUSY);
            }
        }
        if now >= self.reclaim {
            self.region.reclaim();
            self.reclaim = now + if self.due <= now + BUSY { BUSY } else { IDLE };
        }
        self.tell_repairs();
        self.due.min(self.reclaim).saturating_duration_since(now)
    }

    /// All pools; when they want to be looked at again, and whether anything is
    /// in them.
    fn tick(&mut self, now: Instant) -> (Duration, bool) {
        let (mut next, mut any) = (IDLE, false);
        for (id, name) in self.region.pools() {
            let touched = self.region.pool(id, |pool, now, wakes| {
                pool.tick(now, wakes);
                (pool.next_due(now), pool.view(now))
            });
            let Some(touched) = touched else {
                next = next.min(BUSY);
                self.held_up(id, &name, now);
                continue;
            };
            self.stuck.retain(|s| s.pool != id);
            let (due, view) = touched.value;
            if touched.woke_me {
                self.shared.wake();
            }
            if let Some(saturated) = touched.saturation {
                (self.on_saturation)(&name, saturated, &view);
            }
            let busy = view.in_flight > 0 || view.waiting.iter().any(|n| *n > 0);
            any |= busy;
            next = next.min(if busy { BUSY } else { IDLE });
            next = next.min(Duration::from_nanos(due).max(LEAST));
        }
        (next, any)
    }

    fn held_up(&mut self, pool: PoolId, name: &str, now: Instant) {
        let Some(stuck) = self.stuck.iter_mut().find(|s| s.pool == pool) else {
            self.stuck.push(Stuck {
                pool,
                since: now,
                said: None,
            });
            return;
        };
        let say = stuck.said.is_none_or(|said| now - said >= STUCK_AGAIN);
        if now - stuck.since >= STUCK && say {
            stuck.said = Some(now);
            self.shared.error(format!(
                "sluice: pool \"{name}\": a worker has held it for {:?} and does not go on (is it \
                 stopped?); until it does, requests for this pool wait for up to a second and are shed",
                now - stuck.since
            ));
        }
    }

    fn tell_repairs(&mut self) {
        let now = self.region.repairs();
        if now.rebuilt != self.repairs.rebuilt {
            self.shared.warn(
                "sluice: a worker died in the middle of a change of a pool; the pool was made \
                 sound again, and what the worker held is given back"
                    .into(),
            );
        }
        if now.renewed != self.repairs.renewed {
            self.shared.error(
                "sluice: the lock of a pool could not be taken any more and was made anew; this \
                 should never happen, please report it"
                    .into(),
            );
        }
        self.repairs = now;
    }
}

#[cfg(test)]
#[path = "watch_tests.rs"]
mod tests;
