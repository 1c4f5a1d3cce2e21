//! The worker's threads. One asks Redis for decisions and wakes nginx; one
//! synchronises configuration and lists (`sync`), so that building a list of a
//! million entries never makes a decision late.
//!
//! Both are made in init_worker, with all signals blocked, so that none that
//! nginx waits for ends up here. They end when the worker quits and nothing
//! waits any more; a later waiter starts them again.
use super::messages::Messages;
use crate::bridge::{Listener, Outbox, Waker};
use crate::domain::config::Store;
use crate::domain::pool::EntryId;
use crate::engine::ticket::TicketId;
use crate::redis::{BucketAsk, Client, Health, Reply, StoreError};
use crate::shm::{PoolId, Region};
use parking_lot::Mutex;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// What nginx's thread asks of this one.
pub enum Job {
    Decide {
        ticket: TicketId,
        asks: Vec<BucketAsk>,
        deadline: Instant,
    },
    Ban {
        ticket: TicketId,
        member: Vec<u8>,
        until_unix: Option<f64>,
        deadline: Instant,
    },
    Unban {
        ticket: TicketId,
        member: Vec<u8>,
        deadline: Instant,
    },
}

/// What it answers.
pub struct Done {
    pub ticket: TicketId,
    pub took: Duration,
    pub result: Result<Reply, StoreError>,
}

/// What both sides see.
pub struct Shared {
    pub outbox: Outbox<Done>,
    waker: Waker,
    pub messages: Messages,
    /// Jobs handed over and not yet in the outbox.
    under_way: AtomicU64,
    quitting: AtomicBool,
    exiting: fn() -> bool,
    region: &'static Region,
    /// Of the thread that runs now; `None` when none does.
    jobs: Mutex<Option<mpsc::UnboundedSender<Job>>>,
    pub health: Mutex<Option<Arc<Health>>>,
    socket: PathBuf,
    store: Store,
    /// The slot of a request that has ended and is about to be logged.
    pub unlogged: Mutex<Option<Unlogged>>,
}

/// A slot that is given back in the log phase, which knows how the request ended; or, where no log
/// handler comes, by whoever looks next.
#[derive(Clone, Copy, Debug)]
pub struct Unlogged {
    pub pool: PoolId,
    pub entry: EntryId,
    pub since: Instant,
}

impl Shared {
    pub fn new(
        store: Store,
        socket: PathBuf,
        exiting: fn() -> bool,
        region: &'static Region,
    ) -> Arc<Shared> {
        let waker = Waker::default();
        Arc::new(Shared {
            outbox: Outbox::new(waker.clone()),
            waker,
            messages: Messages::default(),
            under_way: AtomicU64::new(0),
            quitting: AtomicBool::new(false),
            exiting,
            region,
            jobs: Mutex::new(None),
            health: Mutex::new(None),
            socket,
            store,
            unlogged: Mutex::new(None),
        })
    }

    pub fn socket(&self) -> &PathBuf {
        &self.socket
    }

    /// Hands a job over; starts the thread where none runs.
    pub fn submit(self: &Arc<Shared>, mut job: Job) -> Result<(), String> {
        self.under_way.fetch_add(1, Ordering::AcqRel);
        for _ in 0..2 {
            let mut jobs = self.jobs.lock();
            if let Some(tx) = jobs.as_ref() {
                match tx.send(job) {
                    Ok(()) => return Ok(()),
                    Err(back) => job = back.0,
                }
            }
            *jobs = None;
            drop(jobs);
            if let Err(e) = start(self) {
                self.under_way.fetch_sub(1, Ordering::AcqRel);
                return Err(e);
            }
        }
        self.under_way.fetch_sub(1, Ordering::AcqRel);
        Err("the background thread does not start".into())
    }

    /// nginx has told this worker to quit.
    pub fn quit(&self) {
        self.quitting.store(true, Ordering::Release); // read by `is_quitting`
        // A job that is under way keeps the thread; without one it ends at its next look.
    }

    pub fn is_quitting(&self) -> bool {
        // nginx's own flag tells too, where the timer that calls `quit` could not run.
        self.quitting.load(Ordering::Acquire) || (self.exiting)() // written by `quit`
    }

    /// Lets nginx's thread look what there is for it.
    pub fn wake(&self) {
        self.waker.wake();
    }

    fn finish(&self, done: Done) {
        self.outbox.push(done);
        self.under_way.fetch_sub(1, Ordering::AcqRel);
    }

    /// Whether another worker was started in this process, in place of this one.
    pub fn is_replaced(&self) -> bool {
        self.quitting.load(Ordering::Acquire) && !(self.exiting)() // written by `quit`
    }

    fn idle(&self) -> bool {
        self.under_way.load(Ordering::Acquire) == 0
    }
}

/// Runs `body` in a new thread that takes no signal.
pub fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<(), String> {
    let before = block_signals();
    let made = std::thread::Builder::new()
        .name(name.into())
        .stack_size(2 << 20)
        .spawn(body)
        .map(drop)
        .map_err(|e| format!("cannot start the thread {name}: {e}"));
    restore_signals(before);
    made
}

/// Blocks every signal for this thread; a thread made now inherits that.
fn block_signals() -> libc::sigset_t {
    // SAFETY: both sets live here and are filled in before they are read; the calls touch nothing
    // but them and this thread's mask.
    unsafe {
        let mut all = std::mem::zeroed();
        let mut before = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        before
    }
}

fn restore_signals(before: libc::sigset_t) {
    // SAFETY: `before` is what pthread_sigmask gave.
    unsafe {
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
    }
}

/// The answer to what asks no bucket.
const NO_BUCKETS: Reply = Reply {
    admitted: true,
    buckets: Vec::new(),
    now_us: 0,
};

fn bind(shared: &Arc<Shared>) -> Option<Listener> {
    match Listener::bind(&shared.socket) {
        Ok(l) => Some(l),
        Err(e) => {
            shared.error(format!(
                "sluice: the bridge {} cannot be opened: {e}; requests that wait look for their \
                 answer every few milliseconds instead",
                shared.socket.display()
            ));
            None
        }
    }
}

/// How often the thread looks whether its worker quits.
const LOOK: Duration = Duration::from_millis(250);

/// Starts the thread and returns once it takes jobs.
pub fn start(shared: &Arc<Shared>) -> Result<(), String> {
    let (tx, rx) = mpsc::unbounded_channel();
    // Bound here, so that nginx's side can connect as soon as this returns. A worker that quits
    // has no reader any more; its last waiters look themselves.
    let listener = if shared.is_quitting() {
        None
    } else {
        bind(shared)
    };
    *shared.jobs.lock() = Some(tx);
    let shared = Arc::clone(shared);
    spawn("sluice", move || {
        let rt = match tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
        {
            Ok(rt) => rt,
            Err(e) => {
                shared.error(format!("sluice: cannot start the thread's runtime: {e}"));
                *shared.jobs.lock() = None;
                return;
            }
        };
        let local = tokio::task::LocalSet::new();
        local.block_on(&rt, run(shared, rx, listener));
    })
}

async fn run(
    shared: Arc<Shared>,
    mut jobs: mpsc::UnboundedReceiver<Job>,
    listener: Option<Listener>,
) {
    let bridge = listener.map(|l| tokio::task::spawn_local(l.serve(shared.waker.clone())));
    let client = shared
        .store
        .url
        .is_some()
        .then(|| Client::new(&shared.store));
    let client = client.and_then(|made| match made {
        Ok(c) => Some(c),
        Err(e) => {
            shared.error(format!("sluice: store: {e}"));
            None
        }
    });
    if let Some(c) = &client {
        *shared.health.lock() = Some(c.health());
    }
    // What this worker has last said of the store to all of the gateway.
    let mut said_up = true;
    let mut look = tokio::time::interval(LOOK);
    look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            biased;
            job = jobs.recv() => match job {
                Some(job) => carry_out(&shared, client.as_ref(), job),
                None => break,
            },
            _ = look.tick() => {
                if let Some(c) = &client {
                    // Only changes: a worker that asks nothing knows nothing.
                    let up = c.health().is_up();
                    if up != said_up {
                        said_up = up;
                        shared.region.set_store_up(up);
                    }
                }
                if shared.is_quitting() && shared.idle() {
                    // Nobody sends between this and the next line but by `submit`, which finds the
                    // channel closed and starts another thread.
                    *shared.jobs.lock() = None;
                    jobs.close();
                    while let Ok(job) = jobs.try_recv() {
                        carry_out(&shared, client.as_ref(), job);
                    }
                    if shared.idle() {
                        break;
                    }
                }
            }
        }
    }
    while !shared.idle() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    shared.waker.close();
    if let Some(b) = bridge {
        b.abort();
    }
}

fn carry_out(shared: &Arc<Shared>, client: Option<&Client>, job: Job) {
    let shared = Arc::clone(shared);
    let Some(client) = client.cloned() else {
        let (Job::Decide { ticket, .. } | Job::Ban { ticket, .. } | Job::Unban { ticket, .. }) =
            job;
        let result = Err(StoreError::Unavailable("no store is configured".into()));
        shared.finish(Done {
            ticket,
            took: Duration::ZERO,
            result,
        });
        return;
    };
    tokio::task::spawn_local(async move {
        let began = Instant::now();
        let (ticket, result) = match job {
            Job::Decide {
                ticket,
                asks,
                deadline,
            } => (ticket, client.decide(&asks, deadline).await),
            Job::Ban {
                ticket,
                member,
                until_unix,
                deadline,
            } => (
                ticket,
                client
                    .ban(&member, until_unix, deadline)
                    .await
                    .map(|()| NO_BUCKETS),
            ),
            Job::Unban {
                ticket,
                member,
                deadline,
            } => (
                ticket,
                client.unban(&member, deadline).await.map(|_| NO_BUCKETS),
            ),
        };
        shared.finish(Done {
            ticket,
            took: began.elapsed(),
            result,
        });
    });
}

/// Lines for the error log: queued, and nginx's thread woken to write them.
impl Shared {
    pub fn error(&self, line: String) {
        self.messages.error(line);
        self.waker.wake();
    }

    pub fn warn(&self, line: String) {
        self.messages.warn(line);
        self.waker.wake();
    }
}
