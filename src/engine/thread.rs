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
use crate::redis::{Answered, Asks, Client, Door, Health, Question, Reply, StoreError, Whom};
use crate::shm::{PoolId, Region};
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;

/// What nginx's thread asks of this one, beside decisions.
pub enum Job {
    /// To be woken, then.
    Wake(Duration),
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
    /// What was asked, to be freed by whom it was allocated.
    pub asks: Asks,
}

/// How to reach the thread: decisions have a way of their own, which does not
/// wake it when it will look anyway.
struct Inlet {
    jobs: mpsc::UnboundedSender<Job>,
    decisions: Arc<Door>,
}

/// What both sides see.
pub struct Shared {
    pub outbox: Outbox<Done>,
    waker: Waker,
    pub messages: Messages,
    /// Jobs handed over and not yet in the outbox.
    under_way: AtomicU64,
    /// Requests in queues of pools. Whoever lets one of them go on wakes the reader, so it has to
    /// be there as long.
    queued: AtomicU64,
    /// It is to be woken in a moment.
    waking: AtomicBool,
    #[cfg(test)]
    asked_to_wake: AtomicU64,
    quitting: AtomicBool,
    exiting: fn() -> bool,
    region: &'static Region,
    /// Of the thread that runs now; `None` when none does.
    jobs: Mutex<Option<Inlet>>,
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
            queued: AtomicU64::new(0),
            waking: AtomicBool::new(false),
            #[cfg(test)]
            asked_to_wake: AtomicU64::new(0),
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

    /// Asks for a decision; starts the thread where none runs.
    pub fn decide(
        self: &Arc<Shared>,
        ticket: TicketId,
        asks: Asks,
        asked: Instant,
    ) -> Result<(), String> {
        self.reach(|inlet| {
            inlet.decisions.ask(Question {
                asks,
                deadline: asked + self.store.timeout,
                asked,
                whom: Whom::Ticket(ticket.pack()),
            });
        })
    }

    /// Hands a job over; starts the thread where none runs.
    pub fn submit(self: &Arc<Shared>, job: Job) -> Result<(), String> {
        // Not closed, so it does not fail.
        self.reach(|inlet| drop(inlet.jobs.send(job)))
    }

    /// `hand` is called once, and what it hands over is answered, or not at all.
    fn reach(self: &Arc<Shared>, hand: impl FnOnce(&Inlet)) -> Result<(), String> {
        self.under_way.fetch_add(1, Ordering::AcqRel);
        let handed = self.hand_over(hand);
        if handed.is_err() {
            self.under_way.fetch_sub(1, Ordering::AcqRel);
        }
        handed
    }

    fn hand_over(self: &Arc<Shared>, hand: impl FnOnce(&Inlet)) -> Result<(), String> {
        for _ in 0..2 {
            // The thread closes its end under this lock, or with its death.
            let mut jobs = self.jobs.lock();
            match jobs.as_ref() {
                Some(inlet) if !inlet.jobs.is_closed() => {
                    hand(inlet);
                    return Ok(());
                }
                _ => *jobs = None,
            }
            drop(jobs);
            start(self)?;
        }
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

    /// The same in a moment; of several calls meanwhile the first counts. For a worker in which
    /// requests are in queues: the thread is there for those.
    pub fn wake_in(self: &Arc<Shared>, time: Duration) {
        #[cfg(test)]
        self.asked_to_wake.fetch_add(1, Ordering::Relaxed);
        // Relaxed, here and where it is cleared: finding it set a little longer is a moment more.
        if self.waking.swap(true, Ordering::Relaxed) {
            return;
        }
        let handed = self.hand_over(|inlet| drop(inlet.jobs.send(Job::Wake(time))));
        if handed.is_err() {
            // Without a thread whoever waits looks itself.
            self.waking.store(false, Ordering::Relaxed);
        }
    }

    async fn woken_in(&self, time: Duration) {
        tokio::time::sleep(time).await;
        self.waking.store(false, Ordering::Relaxed);
        self.wake();
    }

    fn finish(&self, done: Done) {
        self.outbox.push(done);
        self.under_way.fetch_sub(1, Ordering::AcqRel);
    }

    /// Whether another worker was started in this process, in place of this one.
    pub fn is_replaced(&self) -> bool {
        self.quitting.load(Ordering::Acquire) && !(self.exiting)() // written by `quit`
    }

    /// The decisions of one call: nginx is woken once.
    fn answer(&self, answered: &mut Vec<Answered>) {
        let n = answered.len() as u64;
        self.outbox.extend(answered.drain(..).map(|it| Done {
            ticket: TicketId::unpack(it.ticket),
            took: it.took,
            result: it.result,
            asks: it.asks,
        }));
        self.under_way.fetch_sub(n, Ordering::AcqRel);
    }

    /// A request waits in a queue, or no longer.
    pub fn queue(&self, waits: bool) {
        if waits {
            self.queued.fetch_add(1, Ordering::AcqRel); // with `idle`
        } else {
            self.queued.fetch_sub(1, Ordering::AcqRel);
        }
    }

    #[cfg(test)]
    pub fn wakes_soon(&self) -> bool {
        self.waking.load(Ordering::Relaxed)
    }

    /// How often.
    #[cfg(test)]
    pub fn asked_to_wake(&self) -> u64 {
        self.asked_to_wake.load(Ordering::Relaxed)
    }

    pub(super) fn idle(&self) -> bool {
        self.under_way.load(Ordering::Acquire) == 0 && self.queued.load(Ordering::Acquire) == 0
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
fn no_buckets() -> Reply {
    Reply {
        admitted: true,
        buckets: SmallVec::new(),
        now_us: 0,
    }
}

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
    let decisions = Arc::new(Door::default());
    *shared.jobs.lock() = Some(Inlet {
        jobs: tx,
        decisions: Arc::clone(&decisions),
    });
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
                shared.waking.store(false, Ordering::Relaxed);
                return;
            }
        };
        let local = tokio::task::LocalSet::new();
        local.block_on(&rt, run(shared, rx, decisions, listener));
    })
}

async fn run(
    shared: Arc<Shared>,
    mut jobs: mpsc::UnboundedReceiver<Job>,
    decisions: Arc<Door>,
    listener: Option<Listener>,
) {
    let bridge = listener.map(|l| tokio::task::spawn_local(l.serve(shared.waker.clone())));
    let client = shared.store.url.is_some().then(|| {
        let answers = Arc::clone(&shared);
        let outlet = Box::new(move |answered: &mut Vec<Answered>| answers.answer(answered));
        Client::behind(Arc::clone(&decisions), outlet, &shared.store)
    });
    let client = client.and_then(|made| match made {
        Ok(c) => Some(c),
        Err(e) => {
            shared.error(format!("sluice: store: {e}"));
            None
        }
    });
    if client.is_none() {
        tokio::task::spawn_local(refuse(Arc::clone(&shared), decisions));
    }
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
                    // Whoever asks from here on finds no thread and starts another one.
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
    // What it was to do in a moment it does not do any more.
    shared.waking.store(false, Ordering::Relaxed);
    shared.waker.close();
    if let Some(b) = bridge {
        b.abort();
    }
}

fn no_store() -> StoreError {
    StoreError::Unavailable("no store is configured".into())
}

/// Answers decisions where there is nobody to ask.
async fn refuse(shared: Arc<Shared>, decisions: Arc<Door>) {
    let mut questions = Vec::new();
    loop {
        decisions.take(&mut questions).await;
        for question in questions.drain(..) {
            if let Whom::Ticket(ticket) = question.whom {
                shared.finish(Done {
                    ticket: TicketId::unpack(ticket),
                    took: Duration::ZERO,
                    result: Err(no_store()),
                    asks: question.asks,
                });
            }
        }
    }
}

fn carry_out(shared: &Arc<Shared>, client: Option<&Client>, job: Job) {
    let shared = Arc::clone(shared);
    let client = client.cloned();
    tokio::task::spawn_local(async move {
        let began = Instant::now();
        let (ticket, result) = match job {
            Job::Wake(time) => return shared.woken_in(time).await,
            Job::Ban {
                ticket,
                member,
                until_unix,
                deadline,
            } => (
                ticket,
                match &client {
                    Some(client) => client.ban(&member, until_unix, deadline).await,
                    None => Err(no_store()),
                }
                .map(|()| no_buckets()),
            ),
            Job::Unban {
                ticket,
                member,
                deadline,
            } => (
                ticket,
                match &client {
                    Some(client) => client.unban(&member, deadline).await,
                    None => Err(no_store()),
                }
                .map(|_| no_buckets()),
            ),
        };
        shared.finish(Done {
            ticket,
            took: began.elapsed(),
            result,
            asks: Asks::new(),
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
