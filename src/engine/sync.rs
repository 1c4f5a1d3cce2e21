//! The worker's second thread: keeps configuration and lists of this worker
//! up to date, and, in the one worker that holds the gateway's lock, reads them
//! from Redis and from files and publishes them.
use super::current::Current;
use super::files::Files;
use super::publish::{Published, Publisher, store_name};
use super::rules::{Context, Live, RuleSet};
use super::setup::{self, Setup};
use super::thread::{self, Shared};
use crate::redis;
use crate::shm::lists::Lists;
use crate::shm::{Kind, Region};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// How often published changes are looked for: three atomic loads.
const LOOK: Duration = Duration::from_millis(50);
/// How often a worker without the lock tries to get it.
const TRY_LOCK: Duration = Duration::from_millis(250);

/// Compiles what is in force for this setup now.
pub fn compile(setup: &Setup, previous: Option<&RuleSet>) -> RuleSet {
    let region = setup.region;
    let config_generation = region.config_generation();
    let live = Published::load(region, &setup.config.store).map(|p| p.live()).unwrap_or_default();
    compile_live(setup, &live, config_generation, previous)
}

fn compile_live(
    setup: &Setup,
    live: &Live,
    config_generation: u64,
    previous: Option<&RuleSet>,
) -> RuleSet {
    RuleSet::compile(
        live,
        &Context {
            region: setup.region,
            config: &setup.config,
            setup_generation: setup.generation,
            config_generation,
            gateways: setup.region.gateways(),
            previous,
        },
    )
}

/// The published lists of this store, if there are any.
pub fn store_lists(region: &Region, setup: &Setup) -> Option<Arc<Lists>> {
    let store = &setup.config.store;
    store.url.as_ref()?;
    open_lists(region, Kind::Lists, store_name(store).as_bytes())
}

/// The published lists of this setup's files, if another worker has read them anew.
pub fn file_lists(region: &Region, setup: &Setup) -> Option<Arc<Lists>> {
    open_lists(region, Kind::Files, &setup.generation.to_le_bytes())
}

fn open_lists(region: &Region, kind: Kind, owner: &[u8]) -> Option<Arc<Lists>> {
    let generation = region.published(kind);
    if generation == 0 {
        return None;
    }
    let mapped = region.open_published(kind, generation).ok()?;
    let lists = Lists::new(mapped).ok()?;
    (lists.owner() == owner).then(|| Arc::new(lists))
}

/// Starts the thread.
pub fn start(setup: Arc<Setup>, current: Arc<Current>, shared: Arc<Shared>) -> Result<(), String> {
    thread::spawn("sluice-sync", move || {
        let rt = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
            Ok(rt) => rt,
            Err(e) => {
                shared.error(format!("sluice: cannot start the synchronisation: {e}"));
                return;
            }
        };
        let local = tokio::task::LocalSet::new();
        local.block_on(&rt, Follower::new(setup, current, shared).run());
    })
}

/// Numbers that were last acted on.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Seen {
    config: u64,
    gateways: u32,
    lists: u64,
    files: u64,
}

struct Follower {
    setup: Arc<Setup>,
    current: Arc<Current>,
    shared: Arc<Shared>,
    seen: Seen,
    /// Running while this worker holds the lock.
    leading: Option<Leading>,
    tried: Instant,
}

struct Leading {
    stop: watch::Sender<bool>,
    files: Files,
    looked: Instant,
}

impl Follower {
    fn new(setup: Arc<Setup>, current: Arc<Current>, shared: Arc<Shared>) -> Follower {
        let seen = Seen { config: u64::MAX, gateways: u32::MAX, lists: 0, files: 0 };
        let tried = Instant::now() - TRY_LOCK;
        Follower { setup, current, shared, seen, leading: None, tried }
    }

    async fn run(mut self) {
        let mut look = tokio::time::interval(LOOK);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            look.tick().await;
            if self.shared.is_quitting() {
                // The next worker takes over at once, while this one's requests drain.
                self.stop_leading();
                return;
            }
            self.lead();
            self.follow();
        }
    }

    fn lead(&mut self) {
        let region = self.setup.region;
        if self.leading.is_none() {
            if self.tried.elapsed() < TRY_LOCK {
                return;
            }
            self.tried = Instant::now();
            // Workers of an older setup leave it to the newest.
            if region.setup_generation() != self.setup.generation && !region.lock_is_free_for(self.setup.generation)
            {
                return;
            }
            if !region.try_lock_sync() {
                return;
            }
            self.start_leading();
        }
        self.look_at_files();
    }

    fn start_leading(&mut self) {
        let (stop, stopped) = watch::channel(false);
        let store = self.setup.config.store.clone();
        if store.url.is_some() {
            let publisher = Publisher::new(
                self.setup.region,
                Arc::clone(&self.setup.config),
                Arc::clone(&self.shared),
            );
            let run_id = publisher.run_id();
            let id = self.setup.region.gateway_id();
            tokio::task::spawn_local(redis::sync::run(store, id, run_id, publisher, stopped));
        }
        self.leading = Some(Leading {
            stop,
            files: self.setup.files.clone(),
            looked: Instant::now(),
        });
    }

    fn stop_leading(&mut self) {
        if let Some(l) = self.leading.take() {
            let _ = l.stop.send(true);
            self.setup.region.unlock_sync();
        }
    }

    fn look_at_files(&mut self) {
        let Some(l) = &mut self.leading else { return };
        if !(l.files.allow.has_files() || l.files.block.has_files())
            || l.looked.elapsed() < self.setup.config.store.sync
        {
            return;
        }
        l.looked = Instant::now();
        let shared = Arc::clone(&self.shared);
        if l.files.refresh(&mut |line| shared.warn(format!("sluice: {line}"))) {
            let bytes = setup::file_bytes(&l.files, self.setup.generation);
            if let Err(e) = self.setup.region.publish(Kind::Files, &bytes) {
                shared.error(format!(
                    "sluice: lists read anew cannot be published: {e}; the ones in force stay"
                ));
            }
        }
    }

    fn follow(&mut self) {
        let region = self.setup.region;
        let now = Seen {
            config: region.published(Kind::Config),
            gateways: region.gateways(),
            lists: region.published(Kind::Lists),
            files: region.published(Kind::Files),
        };
        if now == self.seen {
            return;
        }
        if (now.config, now.gateways) != (self.seen.config, self.seen.gateways) {
            let previous = self.current.get().rules;
            let rules = compile(&self.setup, Some(&previous));
            region.my_config_generation(rules.generation);
            self.current.change(|c| c.rules = Arc::new(rules));
        }
        if now.lists != self.seen.lists {
            match store_lists(region, &self.setup) {
                Some(l) => self.current.change(|c| c.store_lists = Some(l)),
                None => {}
            }
        }
        if now.files != self.seen.files
            && let Some(l) = file_lists(region, &self.setup)
        {
            self.current.change(|c| c.file_lists = Some(l));
        }
        self.seen = now;
    }
}
