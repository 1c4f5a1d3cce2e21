//! One nginx worker: what its requests share. Lives in nginx's own thread.
use super::answer::Answer;
use super::current::{Current, InForce};
use super::facts::Buffers;
use super::setup::{self, Setup};
use super::sync;
use super::thread::{self, Done, Shared};
use super::ticket::{Record, TicketId, Tickets};
use crate::domain::client::ProxyTrust;
use crate::domain::key::KeyBuf;
use crate::engine::decide::Item;
use crate::redis::Health;
use crate::shm::Region;
use std::cell::RefCell;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Reused from request to request.
#[derive(Default)]
pub struct Scratch {
    pub facts: Buffers,
    pub key: KeyBuf,
    pub items: Vec<Item>,
    pub text: Vec<u8>,
    pub chain: Vec<u8>,
}

pub struct Worker {
    pub setup: Arc<Setup>,
    pub region: &'static Region,
    pub trust: ProxyTrust,
    pub force: InForce,
    version: u64,
    current: Arc<Current>,
    pub shared: Arc<Shared>,
    pub tickets: Tickets,
    pub scratch: Scratch,
    /// The request that ended last: nginx runs its cleanup before its log phase.
    pub ended: Option<(usize, Record)>,
    health: Option<Arc<Health>>,
    complained: Option<Instant>,
}

thread_local! {
    static WORKER: RefCell<Option<Worker>> = const { RefCell::new(None) };
}

/// Runs `f` with this process's worker. `None`: there is none, or this is a call from within one.
pub fn with<T>(f: impl FnOnce(&mut Worker) -> T) -> Option<T> {
    WORKER.with(|w| w.try_borrow_mut().ok()?.as_mut().map(f))
}

/// `start()`: attaches this process to the region and starts its threads.
pub fn start() -> Result<(), String> {
    let setup = setup::current()
        .ok_or("sluice: start() needs setup() in init_by_lua_block, which has not run")?;
    let region = setup.region;
    let said = |e: crate::shm::Error| format!("sluice: {e}");
    region.attach_worker(setup.generation).map_err(said)?;

    let rules = Arc::new(sync::compile(&setup, None));
    region.my_config_generation(rules.generation);
    let force = InForce {
        rules,
        file_lists: sync::file_lists(region, &setup).or_else(|| setup.lists.clone()),
        store_lists: sync::store_lists(region, &setup),
    };
    let current = Arc::new(Current::new(force.clone()));
    let shared = Shared::new(setup.config.store.clone(), socket(&setup));
    thread::start(&shared)?;
    sync::start(Arc::clone(&setup), Arc::clone(&current), Arc::clone(&shared))?;
    let worker = Worker {
        region,
        trust: ProxyTrust::new(&setup.config.client),
        force,
        version: current.version(),
        current,
        shared,
        tickets: Tickets::default(),
        scratch: Scratch::default(),
        ended: None,
        health: None,
        complained: None,
        setup,
    };
    WORKER.with(|w| *w.borrow_mut() = Some(worker));
    Ok(())
}

fn socket(setup: &Setup) -> PathBuf {
    let mut path = setup.config.shm.path.clone().into_os_string();
    path.push(format!(".{}.sock", std::process::id()));
    path.into()
}

impl Worker {
    /// Takes rules and lists that came into force since.
    pub fn refresh(&mut self) {
        let version = self.current.version();
        if version != self.version {
            self.version = version;
            self.force = self.current.get();
        }
    }

    /// Is Redis thought to answer? Asking one that does not would only cost time.
    pub fn store_up(&mut self) -> bool {
        if self.health.is_none() {
            self.health = self.shared.health.lock().clone();
        }
        // Not there yet: the thread has just started.
        self.health.as_ref().is_none_or(|h| h.is_up())
    }

    /// A line about a caller's mistake, at most one a second.
    pub fn complain(&mut self, line: &str) {
        let now = Instant::now();
        if self.complained.is_none_or(|t| now - t >= Duration::from_secs(1)) {
            self.complained = Some(now);
            self.shared.error(format!("sluice: {line}"));
        }
    }

    /// Files what the thread has finished; returns the tickets of up to `room` of it.
    pub fn finished(&mut self, room: usize, mut each: impl FnMut(u32)) -> usize {
        let done: Vec<Done> = self.shared.outbox.drain(room);
        let n = done.len();
        for d in done {
            let index = d.ticket.index;
            if let Some(p) = self.tickets.get(d.ticket).and_then(|t| t.pending.as_mut()) {
                p.done = Some(d);
            }
            each(index);
        }
        n
    }

    /// nginx calls at a request's end, before the log phase.
    pub fn end(&mut self, id: TicketId) {
        if let Some(ended) = self.tickets.close(id) {
            self.ended = Some(ended);
        }
    }

    /// The record of a request that is being logged: its cleanup may have run already, or not yet.
    pub fn logged(&mut self, request: usize) -> Option<Record> {
        if let Some((r, record)) = self.ended.take()
            && r == request
        {
            return Some(record);
        }
        let (id, serial) = self.tickets.of_request(request)?;
        if serial != 0 {
            // Nobody calls at the end of this request but us.
            return self.tickets.close(id).map(|(_, record)| record);
        }
        self.tickets.get(id).map(|t| t.record)
    }
}

/// A message in `out` for a call that found no worker.
pub fn absent(out: &mut Answer) {
    out.proceed();
    out.say(
        "sluice: this worker has not been started: call require(\"resty.sluice\").start() in \
         init_worker_by_lua_block; requests pass undecided",
    );
}
