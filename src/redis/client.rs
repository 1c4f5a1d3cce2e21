//! The request path to Redis: one connection, one budget a request, a breaker.
//!
//! A request never waits longer than its deadline, connecting included. It is
//! repeated, once, only where its connection was found closed before a byte
//! of it had left (what an idle connection dropped by the server or by a
//! middlebox looks like). Anything else that breaks off may have been spent:
//! it is a failure and `on_error` decides, since asking again could charge a
//! client twice. Bans are the same however often they are written, and are repeated.
//!
//! Decisions share calls, see [`super::group`].
//!
//! One task keeps the connection: it makes it anew as soon as it is lost, asks
//! something on an idle one every ten seconds so that nobody between forgets
//! it, and makes the breaker's attempts, which run the script with a write.
//! A connection that has been silent for a second is replaced by the next
//! attempt, so there is at most one new connection a second to a Redis that hangs.
use super::breaker::Breaker;
use super::connect::{Connector, Link};
pub use super::errors::StoreError;
use super::errors::{Judgement, judge};
use super::group::{self, Door, Outlet, Question, Whom};
pub use super::health::Health;
use super::keeper::keep;
use super::scripts::{self, Arguments, BUCKET, BucketAsk, Reply, Script};
use crate::domain::config::Store;
use redis::{Cmd, RedisError, RedisResult, Value};
use std::cell::{OnceCell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{Notify, oneshot};
use tokio::task::{AbortHandle, spawn_local};
use tokio::time::{timeout, timeout_at};

/// For connecting in the background, where no request waits.
pub(super) const CONNECT: Duration = Duration::from_secs(1);
/// A connection that has said nothing for so long is not relied on when something is wrong.
pub(super) const SILENT: Duration = Duration::from_secs(1);

/// Lives in the worker's background thread, on its current-thread runtime,
/// inside a `LocalSet`. Clones share the connection; with the last one it closes.
#[derive(Clone)]
pub struct Client(Rc<Inner>);

pub(super) struct Inner {
    connector: Connector,
    pub(super) health: Arc<Health>,
    pub(super) breaker: RefCell<Breaker>,
    pub(super) link: RefCell<Option<Rc<Link>>>,
    /// Something for those who wait for a connection: one was made, or an attempt failed.
    pub(super) changed: Notify,
    /// Something for the keeper: the breaker opened.
    work: Rc<Notify>,
    probe: Cmd,
    /// The key of the bans.
    bans: String,
    timeout: Duration,
    pub(super) start: Instant,
    door: Arc<Door>,
    pub(super) outlet: Outlet,
    /// The task that makes the calls.
    calls: OnceCell<AbortHandle>,
}

impl Client {
    /// Starts to connect in the background. Must be called inside the runtime's
    /// `LocalSet`. Errors are sentences about the configuration.
    pub fn new(store: &Store) -> Result<Client, String> {
        Client::behind(Arc::default(), Box::new(|_| {}), store)
    }

    /// The same, for questions that other threads put at `door`; answers to tickets go to `outlet`.
    pub fn behind(door: Arc<Door>, outlet: Outlet, store: &Store) -> Result<Client, String> {
        let probe = BucketAsk {
            key: format!("{}:probe", store.prefix),
            emission_us: 1.0,
            capacity: 1000,
            cost: 1,
            since_us: 0,
            shadow: true,
        };
        let seed = u64::from(std::process::id()) << 32 ^ Instant::now().elapsed().as_nanos() as u64;
        let work = Rc::new(Notify::new());
        let inner = Rc::new(Inner {
            connector: Connector::new(store)?,
            health: Arc::new(Health::new()),
            breaker: RefCell::new(Breaker::new(seed)),
            link: RefCell::new(None),
            changed: Notify::new(),
            work: work.clone(),
            probe: BUCKET.call(&scripts::bucket_arguments(&[probe])),
            bans: format!("{}:bans", store.prefix),
            timeout: store.timeout,
            start: Instant::now(),
            door: door.clone(),
            outlet,
            calls: OnceCell::new(),
        });
        spawn_local(keep(Rc::downgrade(&inner), work));
        let calls = spawn_local(group::serve(Rc::downgrade(&inner), door));
        inner.calls.get_or_init(|| calls.abort_handle());
        Ok(Client(inner))
    }

    pub fn health(&self) -> Arc<Health> {
        self.0.health.clone()
    }

    /// Decides over all of `asks`, all or nothing, in a call that it may share.
    pub async fn decide(&self, asks: &[BucketAsk], deadline: Instant) -> Result<Reply, StoreError> {
        let (tell, mut told) = oneshot::channel();
        self.0.door.ask(Question {
            asks: asks.into(),
            deadline,
            asked: Instant::now(),
            whom: Whom::Caller(tell),
        });
        // The call tells in time, but nobody does while one with a later deadline is under way.
        let result = timeout_at(deadline.into(), &mut told).await;
        match result.map_err(|_| told.try_recv()) {
            Ok(Ok(result)) | Err(Ok(result)) => result,
            Ok(Err(_)) => Err(StoreError::Unavailable("the client is gone".to_owned())),
            // Counted here and, since `told` is gone then, not there.
            Err(Err(_)) => Err(self.0.failed(&late())),
        }
    }

    /// Redis's clock, µs since 1970.
    pub async fn time_us(&self, deadline: Instant) -> Result<u64, StoreError> {
        self.decide(&[], deadline).await.map(|reply| reply.now_us)
    }

    /// Writes `member` to `<prefix>:bans`. `until_unix` `None`: for ever.
    pub async fn ban(
        &self,
        member: &[u8],
        until_unix: Option<f64>,
        deadline: Instant,
    ) -> Result<(), StoreError> {
        let mut command = redis::cmd("ZADD");
        match until_unix {
            Some(until) => command.arg(&self.0.bans).arg(until),
            None => command.arg(&self.0.bans).arg("+inf"),
        };
        command.arg(member);
        self.command(&command, deadline).await.map(drop)
    }

    /// Whether it was there.
    pub async fn unban(&self, member: &[u8], deadline: Instant) -> Result<bool, StoreError> {
        let mut command = redis::cmd("ZREM");
        command.arg(&self.0.bans).arg(member);
        Ok(self.command(&command, deadline).await? == Value::Int(1))
    }

    async fn command(&self, command: &Cmd, deadline: Instant) -> Result<Value, StoreError> {
        let call = async |link: Rc<Link>| {
            link.mux()
                .send_packed_command(command)
                .await
                .and_then(Value::extract_error)
        };
        self.ask(call, deadline).await
    }

    /// Runs a script that may run twice.
    pub(super) async fn run(
        &self,
        script: &'static Script,
        arguments: &Arguments,
        deadline: Instant,
    ) -> Result<Value, StoreError> {
        let command = script.call(arguments);
        let call = async |link: Rc<Link>| script.run(&mut link.mux(), &command).await;
        self.ask(call, deadline).await
    }

    /// Asks once, and once more where the connection broke off: twice is as good as once. That a
    /// command is refused says nothing about decisions.
    async fn ask(
        &self,
        call: impl AsyncFn(Rc<Link>) -> RedisResult<Value>,
        deadline: Instant,
    ) -> Result<Value, StoreError> {
        let inner = &*self.0;
        let mut again = true;
        loop {
            let link = timeout_at(deadline.into(), inner.connected())
                .await
                .map_err(|_| inner.failed(&late()))??;
            let _under_way = link.call();
            match timeout_at(deadline.into(), call(link.clone())).await {
                Ok(Ok(value)) => {
                    link.note_reply();
                    inner.breaker.borrow_mut().success();
                    return Ok(value);
                }
                Ok(Err(error)) if error.is_io_error() => {
                    link.close();
                    if !std::mem::take(&mut again) {
                        return Err(inner.failed(&judge(&error)));
                    }
                }
                Ok(Err(error)) => {
                    let judgement = judge(&error);
                    link.note_reply();
                    if judgement.reconnect {
                        link.close();
                    }
                    return Err(judgement.error);
                }
                Err(_) => return Err(inner.failed(&late())),
            }
        }
    }
}

pub(super) fn late() -> Judgement {
    Judgement {
        error: StoreError::Timeout,
        definite: false,
        reconnect: false,
    }
}

impl Inner {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    pub(super) fn live(&self) -> Option<Rc<Link>> {
        self.link.borrow().clone().filter(|link| !link.is_closed())
    }

    /// The connection, as soon as there is one; an error as soon as nobody is to ask.
    pub(super) async fn connected(&self) -> Result<Rc<Link>, StoreError> {
        loop {
            if self.breaker.borrow().is_open() {
                let why = self.health.last_error().unwrap_or_default();
                return Err(StoreError::Unavailable(why));
            }
            if let Some(link) = self.live() {
                if !link.is_dropped() {
                    return Ok(link);
                }
                link.close();
            }
            self.changed.notified().await;
        }
    }

    /// A request failed.
    pub(super) fn failed(&self, judgement: &Judgement) -> StoreError {
        let opened = self
            .breaker
            .borrow_mut()
            .failure(judgement.definite, self.now());
        if opened {
            self.opened(&judgement.error);
            self.work.notify_one();
        }
        judgement.error.clone()
    }

    /// An attempt failed.
    pub(super) fn attempt_failed(&self, error: &StoreError) {
        self.breaker.borrow_mut().attempt_failed(self.now());
        self.opened(error);
    }

    fn opened(&self, error: &StoreError) {
        self.health.note(error.to_string());
        self.health.set(false);
        // Nobody waits for a connection now.
        self.changed.notify_waiters();
    }

    /// Connects and sees that the script runs.
    pub(super) async fn connect(&self) -> Result<Link, Judgement> {
        let link = timeout(CONNECT, self.connector.open()).await;
        let link = link
            .map_err(|_| connect_late())?
            .map_err(|error| definite(&error))?;
        let nothing = BUCKET.nothing();
        let run = async { BUCKET.run(&mut link.mux(), &nothing).await };
        timeout(CONNECT, run)
            .await
            .map_err(|_| connect_late())?
            .map_err(|error| definite(&error))?;
        link.note_reply();
        Ok(link)
    }

    /// What a request does, within a request's budget, for the breaker.
    pub(super) async fn probe(&self, link: &Link) -> Result<(), Judgement> {
        let run = async { BUCKET.run(&mut link.mux(), &self.probe).await };
        match timeout(self.timeout.min(SILENT), run).await {
            Ok(Ok(_)) => {
                link.note_reply();
                Ok(())
            }
            Ok(Err(error)) => {
                if !error.is_io_error() {
                    link.note_reply();
                }
                Err(judge(&error))
            }
            Err(_) => Err(late()),
        }
    }
}

fn connect_late() -> Judgement {
    let why = format!("no connection to Redis within {} s", CONNECT.as_secs());
    Judgement {
        error: StoreError::Unavailable(why),
        definite: true,
        reconnect: true,
    }
}

fn definite(error: &RedisError) -> Judgement {
    Judgement {
        definite: true,
        ..judge(error)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.work.notify_one();
        if let Some(calls) = self.calls.get() {
            calls.abort();
        }
    }
}
