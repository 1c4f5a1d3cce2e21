//! The worker's second thread: keeps configuration and lists of this worker
//! up to date, and, in the one worker that holds the gateway's lock, reads them
//! from Redis and from files and publishes them.
use super::current::{Current, InForce};
use super::files::Files;
use super::publish::{self, Published, Publisher};
use super::rules::{Context, RuleSet};
use super::setup::Setup;
use super::thread::{self, Shared};
use crate::redis;
use crate::redis::sync::{Entries, ServerId, Sink, Which};
use crate::shm::lists::Lists;
use crate::shm::{Kind, Region};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// How often published changes are looked for: two atomic loads.
const LOOK: Duration = Duration::from_millis(50);
/// How often a worker without the lock tries to get it.
const TRY_LOCK: Duration = Duration::from_millis(250);

/// After a published list that could not be mapped.
const RETRY: Duration = Duration::from_secs(1);

/// What is in force for this setup now.
pub fn in_force(
    setup: &Setup,
    published: &Published,
    before: Option<(&InForce, &Published)>,
) -> InForce {
    let (known, before) = (before.map(|b| b.1), before.map(|b| b.0));
    let region = setup.region;
    let rules = RuleSet::compile(
        &published.live(),
        &Context {
            region,
            config: &setup.config,
            setup_generation: setup.generation,
            // Grows with every change of either, and is the same on all workers of a setup.
            config_generation: setup.generation + published.change,
            gateways: u32::try_from(region.gateways()).unwrap_or(u32::MAX),
            previous: before.map(|b| &*b.rules),
            pages: &setup.pages,
        },
    );
    let mut force = InForce {
        rules: Arc::new(rules),
        file_lists: before.map_or_else(|| setup.lists.clone(), |b| b.file_lists.clone()),
        store_lists: before.map(|b| b.store_lists.clone()).unwrap_or_default(),
        rejected: 0,
        complete: true,
    };
    lists_in_force(setup, published, known, &mut force);
    force
}

/// Maps the published lists that changed; one that cannot be mapped leaves the one in force.
fn lists_in_force(
    setup: &Setup,
    published: &Published,
    known: Option<&Published>,
    force: &mut InForce,
) {
    let own_files = setup.files.allow.rejected() + setup.files.block.rejected();
    force.rejected = own_files;
    force.complete = true;
    if let Some((_, list)) = published.files.filter(|(g, _)| *g == setup.generation) {
        if known.is_none_or(|k| k.files != published.files) {
            match publish::open(setup.region, Kind::Files, list) {
                Ok(lists) => force.file_lists = some(lists),
                Err(_) => force.complete = false,
            }
        }
        force.rejected = list.rejected;
    }
    for which in [Which::Allow, Which::Block, Which::Bans] {
        let n = which as usize;
        let slot = &mut force.store_lists[n];
        match published.lists[n] {
            None => *slot = None,
            Some(list) => {
                if known.is_none_or(|k| k.lists[n] != published.lists[n]) {
                    match publish::open(setup.region, publish::kind(which), list) {
                        Ok(lists) => *slot = some(lists),
                        Err(_) => force.complete = false,
                    }
                }
                force.rejected += list.rejected;
            }
        }
    }
}

/// A list without entries costs a request nothing when it is not there.
fn some(lists: Arc<Lists>) -> Option<Arc<Lists>> {
    let c = lists.counts();
    (c.allow + c.block + c.bans > 0).then_some(lists)
}

/// Starts the thread.
pub fn start(setup: Arc<Setup>, current: Arc<Current>, shared: Arc<Shared>) -> Result<(), String> {
    thread::spawn("sluice-sync", move || {
        let rt = match tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
        {
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

struct Follower {
    setup: Arc<Setup>,
    current: Arc<Current>,
    shared: Arc<Shared>,
    /// What was last acted on: the published number, and how many gateways there were.
    seen: (u64, u64),
    published: Published,
    /// Running while this worker holds the lock.
    leading: Option<Leading>,
    tried: Instant,
    /// When the pools' pages were last looked at.
    pages_looked: Instant,
    /// A pool of what is in force has no place yet.
    incomplete: bool,
    /// What could not be mapped is tried again then.
    not_before: Instant,
    /// What is in force may have errors that nobody has logged.
    untold: bool,
}

struct Leading {
    stop: watch::Sender<bool>,
    publisher: Rc<RefCell<Publisher>>,
    files: Files,
    looked: Instant,
}

impl Follower {
    fn new(setup: Arc<Setup>, current: Arc<Current>, shared: Arc<Shared>) -> Follower {
        // The first try is at once.
        let tried = Instant::now() - TRY_LOCK;
        let published = Published::default();
        let incomplete = current.get().rules.incomplete;
        Follower {
            setup,
            current,
            shared,
            seen: (0, 0),
            published,
            leading: None,
            tried,
            pages_looked: Instant::now(),
            incomplete,
            not_before: tried,
            untold: true,
        }
    }

    async fn run(mut self) {
        let mut look = tokio::time::interval(LOOK);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            look.tick().await;
            if self.shared.is_quitting() {
                // Given up before this worker's requests drain, so that the next takes over.
                self.stop_leading();
                return;
            }
            self.lead();
            self.look_at_pages();
            self.follow();
            self.tell();
        }
    }

    fn lead(&mut self) {
        let due = self.tried.elapsed() >= TRY_LOCK;
        if self.leading.is_some() {
            if due {
                self.tried = Instant::now();
                if outdated(&self.setup) {
                    return self.stop_leading();
                }
            }
        } else {
            if !due {
                return;
            }
            self.tried = Instant::now();
            if outdated(&self.setup) || !self.setup.region.try_lock_sync() {
                return;
            }
            self.start_leading();
        }
        self.look_at_files();
    }

    fn start_leading(&mut self) {
        let (stop, stopped) = watch::channel(false);
        let region = self.setup.region;
        let config = Arc::clone(&self.setup.config);
        let store = config.store.clone();
        let publisher = Publisher::new(region, config, Arc::clone(&self.shared));
        let server = publisher.server();
        let publisher = Rc::new(RefCell::new(publisher));
        if store.url.is_some() {
            let sink = SharedSink(Rc::clone(&publisher));
            let id = gateway_id(region);
            tokio::task::spawn_local(redis::sync::run(store, id, server, sink, stopped));
        }
        let files = self.setup.files.clone();
        self.leading = Some(Leading {
            stop,
            publisher,
            files,
            looked: Instant::now(),
        });
    }

    fn stop_leading(&mut self) {
        if let Some(l) = self.leading.take() {
            // The task ends with its receiver; nobody to tell is fine.
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
        let (shared, setup) = (&self.shared, self.setup.generation);
        let warned = l.files.warnings();
        let mut say = |line| shared.warn(format!("sluice: {line}"));
        if l.files.refresh(&mut say) {
            l.publisher.borrow_mut().files(&l.files, setup);
        } else if l.files.warnings() != warned {
            l.publisher.borrow_mut().file_warnings(&l.files, setup);
        }
    }

    /// Every worker holds the pages itself; only the one that leads speaks of them.
    fn look_at_pages(&mut self) {
        let pages = &self.setup.pages;
        if pages.is_empty() || self.pages_looked.elapsed() < self.setup.config.store.sync {
            return;
        }
        self.pages_looked = Instant::now();
        let speaks = self.leading.is_some();
        let shared = &self.shared;
        let mut say = |line: String| {
            if speaks {
                shared.warn(format!("sluice: {line}"));
            }
        };
        if pages.refresh(&mut say) {
            // Rules are compiled anew, without the error that it was missing.
            self.seen = (0, 0);
        }
    }

    /// Logs what was found wrong when the rules were compiled.
    fn tell(&mut self) {
        if let Some(l) = &self.leading
            && std::mem::take(&mut self.untold)
        {
            let late = &self.current.get().rules.found_late;
            l.publisher.borrow_mut().found_late(late);
        }
    }

    fn follow(&mut self) {
        let region = self.setup.region;
        let now = (region.published(Kind::Config), region.gateways());
        if now == self.seen && !self.incomplete || Instant::now() < self.not_before {
            return;
        }
        let published = Published::load(region, &self.setup.config.store);
        let before = self.current.get();
        let same_rules = published.change == self.published.change
            && now.1 == self.seen.1
            && self.seen != (0, 0)
            && !self.incomplete;
        let force = if same_rules {
            let mut force = before;
            lists_in_force(&self.setup, &published, Some(&self.published), &mut force);
            force
        } else {
            in_force(&self.setup, &published, Some((&before, &self.published)))
        };
        region.my_config_generation(force.rules.generation);
        self.incomplete = force.rules.incomplete;
        let complete = force.complete && !self.incomplete;
        self.untold = true;
        self.current.change(|c| *c = force);
        if complete {
            self.published = published;
            self.seen = now;
        } else {
            // A list could not be mapped, or a pool has no place while old workers live: tried
            // again, since nobody may publish for a long time.
            self.not_before = Instant::now() + RETRY;
        }
    }
}

/// Workers of an older setup leave what one of them does for all to the newest that live.
pub(super) fn outdated(setup: &Setup) -> bool {
    let region = setup.region;
    region.setup_generation() != setup.generation
        && region
            .workers()
            .iter()
            .any(|w| w.setup_generation > setup.generation)
}

/// Names this gateway among those of a store: the same for all its workers, and after a restart.
pub(super) fn gateway_id(region: &Region) -> String {
    let mut host = [0u8; 256];
    // SAFETY: the buffer has the length that is passed; a name that fills it is cut below.
    let named = unsafe { libc::gethostname(host.as_mut_ptr().cast(), host.len()) } == 0;
    let end = host.iter().position(|b| *b == 0).unwrap_or(host.len());
    let host = if named {
        String::from_utf8_lossy(&host[..end])
    } else {
        "unknown".into()
    };
    // Two gateways of one host have two regions.
    let inode = std::fs::metadata(region.path()).map_or(0, |m| m.ino());
    format!("{host}:{}:{inode}", region.path().display())
}

/// The publisher is used by the synchronisation and by the look at files, in one thread, never
/// across an await.
struct SharedSink(Rc<RefCell<Publisher>>);

impl Sink for SharedSink {
    fn config(&mut self, server: &ServerId, fields: BTreeMap<Vec<u8>, Vec<u8>>, now_us: u64) {
        self.0.borrow_mut().config(server, fields, now_us);
    }
    fn list(&mut self, which: Which, entries: Entries) {
        self.0.borrow_mut().list(which, entries);
    }
    fn round_done(&mut self, server: &ServerId) {
        self.0.borrow_mut().round_done(server);
    }
    fn gateways(&mut self, n: u32) {
        self.0.borrow_mut().gateways(n);
    }
    fn wrong(&mut self, key: &str, problem: Option<String>) {
        self.0.borrow_mut().wrong(key, problem);
    }
    fn kept(&mut self, kept: bool) {
        self.0.borrow_mut().kept(kept);
    }
    fn unreachable(&mut self, problem: Option<String>) {
        self.0.borrow_mut().unreachable(problem);
    }
}
