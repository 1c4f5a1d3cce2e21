//! Against a real Redis, and the scripts in an embedded LuaJIT.
mod client;
mod group;
mod lease;
mod recorder;
mod script;
mod sync;
mod sync_trouble;
mod trouble;

use super::client::Client;
use super::scripts::BucketAsk;
use crate::domain::config::{Backend, OnError, Store};
use std::time::{Duration, Instant};

/// As an engine's background thread: one thread, one runtime, a `LocalSet`.
fn in_thread<T>(work: impl AsyncFnOnce() -> T) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let done = tokio::task::LocalSet::new().block_on(runtime.as_ref().expect("one"), work());
    runtime.expect("one").shutdown_background();
    done
}

fn store(url: &str) -> Store {
    Store {
        backend: Backend::Redis,
        url: Some(url.to_owned()),
        username: None,
        password: None,
        password_in_url: false,
        tls: None,
        prefix: "sluice".to_owned(),
        // A request's budget with room for two busy cores.
        timeout: Duration::from_millis(200),
        on_error: OnError::Local,
        sync: Duration::from_millis(100),
    }
}

fn client(url: &str) -> Client {
    Client::new(&store(url)).expect("a client")
}

fn soon() -> Instant {
    Instant::now() + Duration::from_millis(200)
}

/// One token a minute, so that nothing comes back during a test.
fn bucket(name: &str, capacity: u32) -> BucketAsk {
    BucketAsk {
        key: format!("sluice:b:{name}:"),
        emission_us: 60e6,
        capacity,
        cost: 1,
        since_us: 0,
        shadow: false,
    }
}

/// Sleeps until it is so; how long that took.
async fn until(what: &str, mut so: impl AsyncFnMut() -> bool) -> Duration {
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(10) {
        if so().await {
            return start.elapsed();
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("{what}: not within ten seconds");
}
