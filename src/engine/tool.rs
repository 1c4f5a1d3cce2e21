//! What the command-line tool does in the store, beside any nginx.
use super::check::ban_end;
use crate::domain::config::Store;
use crate::domain::entry::{self, Subject};
use crate::redis::{Client, StoreError};
use std::time::{Duration, Instant};

/// How long the tool waits for Redis.
const TIMEOUT: Duration = Duration::from_secs(5);

fn subject(text: &str) -> Result<Subject, String> {
    entry::parse(text.as_bytes())
        .map_err(|e| format!("{text:?}: {e}; a subject is an address, a CIDR or user:<id>"))
}

/// Adds to `<prefix>:bans`; `seconds` `None`: for ever. Errors are sentences.
pub fn ban(store: &Store, text: &str, seconds: Option<f64>) -> Result<(), String> {
    let member = subject(text)?.member();
    let until = ban_end(seconds)?.map(|s| s as f64);
    with_client(store, async |client, deadline| {
        client.ban(&member, until, deadline).await
    })
}

/// Removes from `<prefix>:bans`; whether it was there.
pub fn unban(store: &Store, text: &str) -> Result<bool, String> {
    let member = subject(text)?.member();
    with_client(store, async |client, deadline| {
        client.unban(&member, deadline).await
    })
}

fn with_client<T>(
    store: &Store,
    call: impl AsyncFn(&Client, Instant) -> Result<T, StoreError>,
) -> Result<T, String> {
    if store.url.is_none() {
        return Err(
            "the configuration has no store.url: bans of the local store are made by ban() inside \
             nginx"
                .into(),
        );
    }
    let rt = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| e.to_string())?;
    let local = tokio::task::LocalSet::new();
    local.block_on(&rt, async {
        let client = Client::new(store)?;
        let deadline = Instant::now() + TIMEOUT;
        // The first connection takes a moment; until it stands calls fail at once.
        loop {
            match call(&client, deadline).await {
                Ok(done) => return Ok(done),
                Err(StoreError::Unavailable(_)) if Instant::now() < deadline => {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                Err(e) => return Err(format!("the store did not take it: {e}")),
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::config;
    use crate::redis::fixture::{Server, installed};

    #[test]
    fn bans_stand_in_redis_for_every_gateway() {
        if !installed() {
            return;
        }
        let server = Server::start();
        let text = format!("[store]\nbackend = \"redis\"\nurl = \"{}\"\n", server.url());
        let store = config::from_toml(&text).expect("the test's own").store;
        ban(&store, "10.1.2.3/8", None).expect("banned");
        ban(&store, "user:alice", Some(60.0)).expect("banned");
        let bans: Vec<String> = server.run("ZRANGE sluice:bans 0 -1 WITHSCORES");
        assert_eq!(
            (&*bans[0], &*bans[2], &*bans[3]),
            ("user:alice", "10.0.0.0/8", "inf")
        );
        assert_eq!(unban(&store, "10.0.0.0/8"), Ok(true));
        assert_eq!(unban(&store, "10.0.0.0/8"), Ok(false));
        for (subject, seconds) in [("10.0.0.0/33", None), ("1.2.3.4", Some(-1.0))] {
            ban(&store, subject, seconds).expect_err(subject);
        }
        let local = config::from_toml("").expect("an empty one").store;
        let e = ban(&local, "1.2.3.4", None).expect_err("no store");
        assert!(e.contains("store.url"), "{e}");
    }
}
