use super::scripts::{BucketAsk, Reply};
use crate::domain::config::Store;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreError {
    /// No answer within the budget. What was asked may have been spent.
    Timeout,
    /// Out of reach: not connected, or an answer that says so.
    Unavailable(String),
    /// The script or the command was refused.
    Script(String),
}

impl std::fmt::Display for StoreError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Timeout => f.write_str("no answer from Redis in time"),
            Self::Unavailable(why) | Self::Script(why) => f.write_str(why),
        }
    }
}

/// What nginx's thread may read without asking the thread.
#[derive(Debug)]
pub struct Health {
    /// The breaker is closed: worth asking.
    pub up: AtomicBool,
}

impl Health {
    pub fn is_up(&self) -> bool {
        todo!()
    }
    /// Why it is not up, for `status`.
    pub fn last_error(&self) -> Option<String> {
        todo!()
    }
}

/// Lives in the worker's background thread, on its current-thread runtime,
/// inside a `LocalSet`. Cloning shares the connection.
#[derive(Clone)]
pub struct Client {}

impl Client {
    /// Checks the settings and starts to connect. Must be called inside the
    /// runtime and its `LocalSet`. Errors are sentences.
    pub fn new(_store: &Store) -> Result<Client, String> {
        todo!()
    }
    pub fn health(&self) -> Arc<Health> {
        todo!()
    }
    pub async fn decide(
        &self,
        _asks: &[BucketAsk],
        _deadline: Instant,
    ) -> Result<Reply, StoreError> {
        todo!()
    }
    /// Writes to `<prefix>:bans`. `until_unix` `None`: for ever.
    pub async fn ban(
        &self,
        _member: &str,
        _until_unix: Option<f64>,
        _deadline: Instant,
    ) -> Result<(), StoreError> {
        todo!()
    }
    /// Whether it was there.
    pub async fn unban(&self, _member: &str, _deadline: Instant) -> Result<bool, StoreError> {
        todo!()
    }
    /// Redis's clock, µs since 1970.
    pub async fn time_us(&self, _deadline: Instant) -> Result<u64, StoreError> {
        todo!()
    }
}
