//! One nginx worker: what its requests share. Lives in nginx's own thread.
use super::buckets::Item;
use super::cluster;
use super::current::{Current, InForce};
use super::decide::GoesOn;
use super::degrade::Shown;
use super::facts::Buffers;
use super::lists::unix_ns;
use super::pools::{self, Ended};
use super::publish::Published;
use super::setup::{self, Setup};
use super::sync;
use super::thread::{self, Done, Shared};
use super::ticket::{TicketId, Tickets};
use super::waiters::{self, Waiters};
use super::watch;
use crate::bridge;
use crate::domain::client::ProxyTrust;
use crate::domain::config::OnError;
use crate::domain::key::KeyBuf;
use crate::domain::units::Nanos;
use crate::redis::{Health, StoreError};
use crate::shm::Region;
use crate::shm::lists::Lists;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Reused from request to request.
#[derive(Default)]
pub struct Scratch {
    pub facts: Buffers,
    pub key: KeyBuf,
    pub items: Vec<Item>,
    pub text: Vec<u8>,
    /// The client's address as text.
    pub client: Vec<u8>,
    pub chain: Vec<u8>,
}

pub struct Worker {
    pub setup: Arc<Setup>,
    pub region: &'static Region,
    pub trust: ProxyTrust,
    pub force: InForce,
    /// Those of `force` that have entries.
    pub lists: Vec<Arc<Lists>>,
    clock: Clock,
    version: u64,
    current: Arc<Current>,
    pub shared: Arc<Shared>,
    pub tickets: Tickets,
    pub scratch: Scratch,
    /// The request that ended last: nginx runs its cleanup before its log phase.
    pub ended: Option<Ended>,
    /// Requests that end are logged, as far as has been seen.
    pub logs: bool,
    pub waiters: Waiters,
    /// Of `check()`, `ban()` and `unban()` that wait: until when, in the order in which they came.
    pub calls: VecDeque<(Instant, TicketId)>,
    drawn: u64,
    pub pages: Shown,
    health: Option<Arc<Health>>,
    complained: Option<Instant>,
    complained_of_store: Option<Instant>,
    /// Taken from the outbox, not yet filed.
    arrived: Vec<Done>,
    #[cfg(test)]
    store_down: bool,
}

thread_local! {
    static WORKER: RefCell<Option<Worker>> = const { RefCell::new(None) };
}

/// Runs `f` with this process's worker. `None`: there is none, or this is a call from within one.
pub fn with<T>(f: impl FnOnce(&mut Worker) -> T) -> Option<T> {
    WORKER.with(|w| w.try_borrow_mut().ok()?.as_mut().map(f))
}

/// `start()`: attaches this process to the region and starts its threads.
///
/// `exiting` tells whether nginx has told this process to quit.
pub fn start(exiting: fn() -> bool) -> Result<(), String> {
    let setup = setup::current()
        .ok_or("sluice: start() needs setup() in init_by_lua_block, which has not run")?;
    let region = setup.region;
    let said = |e: crate::shm::Error| format!("sluice: {e}");
    region.attach_worker(setup.generation).map_err(said)?;

    let published = Published::load(region, &setup.config.store);
    let force = sync::in_force(&setup, &published, None);
    region.my_config_generation(force.rules.generation);
    let current = Arc::new(Current::new(force.clone()));
    let shared = Shared::new(
        setup.config.store.clone(),
        bridge::socket_path(region.path()),
        exiting,
        region,
    );
    // Until somebody has found otherwise.
    if region.workers().len() <= 1 {
        region.set_store_up(true);
    }
    thread::start(&shared)?;
    sync::start(
        Arc::clone(&setup),
        Arc::clone(&current),
        Arc::clone(&shared),
    )?;
    cluster::start(
        Arc::clone(&setup),
        Arc::clone(&current),
        Arc::clone(&shared),
    )?;
    let mut worker = Worker::new(setup, force, current, shared);
    let warn = Arc::clone(&worker.shared);
    watch::start(&worker.shared, region, move |pool, saturated, view| {
        warn.warn(pools::saturation_line(pool, saturated, view));
    })?;
    WORKER.with(|w| {
        let mut slot = w.borrow_mut();
        // Without a master a reload starts again in the same process: its requests still hold
        // tickets, its threads end when nothing waits for them.
        if let Some(before) = slot.take() {
            worker.take_over(before);
        }
        *slot = Some(worker);
    });
    Ok(())
}

const NS_PER_S: u64 = 1_000_000_000;

/// Unix time from the monotonic clock, which is read for every request anyway: the two are compared
/// once a second, so a clock that is set is followed within that.
#[derive(Default)]
struct Clock {
    compared_ns: u64,
    unix_ns: u64,
}

impl Clock {
    fn unix(&mut self, now: Nanos) -> u64 {
        let mut since = now.0.wrapping_sub(self.compared_ns);
        if self.unix_ns == 0 || since >= NS_PER_S {
            *self = Clock {
                compared_ns: now.0,
                unix_ns: unix_ns(),
            };
            since = 0;
        }
        (self.unix_ns + since) / NS_PER_S
    }
}

fn once_a_second(last: &mut Option<Instant>) -> bool {
    let now = Instant::now();
    let due = last.is_none_or(|t| now - t >= Duration::from_secs(1));
    if due {
        *last = Some(now);
    }
    due
}

impl Worker {
    pub fn new(
        setup: Arc<Setup>,
        force: InForce,
        current: Arc<Current>,
        shared: Arc<Shared>,
    ) -> Worker {
        Worker {
            region: setup.region,
            trust: ProxyTrust::new(&setup.config.client),
            lists: force.lists(),
            clock: Clock::default(),
            force,
            version: current.version(),
            current,
            shared,
            tickets: Tickets::default(),
            scratch: Scratch::default(),
            ended: None,
            logs: false,
            waiters: Waiters::default(),
            calls: VecDeque::new(),
            drawn: setup.region.now().0 ^ u64::from(std::process::id()) << 32 | 1,
            pages: Shown::default(),
            health: None,
            complained: None,
            complained_of_store: None,
            arrived: Vec::new(),
            #[cfg(test)]
            store_down: false,
            setup,
        }
    }

    /// Goes on with the requests of the one before, which quits.
    pub fn take_over(&mut self, mut before: Worker) {
        pools::flush(&mut before);
        self.tickets = before.tickets;
        self.calls = before.calls;
        self.waiters
            .take_over(&mut before.waiters, &before.shared, &self.shared);
        before.shared.quit();
    }

    /// Takes rules and lists that came into force since.
    pub fn refresh(&mut self) {
        let version = self.current.version();
        if version != self.version {
            self.version = version;
            self.force = self.current.get();
            self.lists = self.force.lists();
        }
    }

    /// Is Redis thought to answer? Asking one that does not would only cost time.
    pub fn store_up(&mut self) -> bool {
        #[cfg(test)]
        if self.store_down {
            return false;
        }
        if self.health.is_none() {
            self.health = self.shared.health.lock().clone();
        }
        // Not there yet: the thread has just started.
        self.health.as_ref().is_none_or(|h| h.is_up())
    }

    #[cfg(test)]
    pub fn pretend_store_down(&mut self) {
        self.store_down = true;
    }

    /// A number from `least` to `most`, different from answer to answer.
    pub fn draw(&mut self, least: u64, most: u64) -> u64 {
        // Xorshift: nothing hangs on its quality but that clients do not all come back at once.
        self.drawn ^= self.drawn << 13;
        self.drawn ^= self.drawn >> 7;
        self.drawn ^= self.drawn << 17;
        least + self.drawn % (most - least + 1)
    }

    /// A line about a caller's mistake, at most one a second.
    pub fn complain(&mut self, line: &str) {
        if once_a_second(&mut self.complained) {
            self.shared.error(format!("sluice: {line}"));
        }
    }

    /// A line about the store, at most one a second.
    pub fn complain_of_store(&mut self, e: &StoreError) {
        if once_a_second(&mut self.complained_of_store) {
            let then = match self.setup.config.store.on_error {
                OnError::Local => "this gateway's share of each limit holds",
                OnError::Allow => "requests pass",
                OnError::Deny => "requests are refused with 503",
            };
            self.shared
                .error(format!("sluice: the store: {e}; meanwhile {then}"));
        }
    }

    /// Unix time, s.
    pub fn unix(&mut self, now: Nanos) -> u64 {
        self.clock.unix(now)
    }

    /// Changes with what is in force.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Files what the thread has finished; returns the tickets of up to `room` of it.
    pub fn finished(&mut self, room: usize, mut each: impl FnMut(u32)) -> usize {
        self.shared.outbox.drain(&mut self.arrived);
        let n = self.arrived.len().min(room);
        for d in self.arrived.drain(..n) {
            let index = d.ticket.index;
            let pending = self.tickets.get(d.ticket).and_then(|t| t.pending.as_mut());
            // An answer that comes too late is not for whoever waits for something else by now.
            if let Some(p) = pending
                && matches!(p.goes_on, GoesOn::Store)
            {
                p.done = Some(d);
            }
            each(index);
        }
        n + waiters::hear(self, room - n, &mut each)
    }

    /// nginx calls at a request's end, before the log phase.
    pub fn end(&mut self, id: TicketId) {
        if let Some(closed) = self.tickets.close(id) {
            pools::closed(self, closed);
        }
    }
}
