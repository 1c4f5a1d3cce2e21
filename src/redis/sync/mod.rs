//! Configuration, lists and bans in Redis: noticed when they change, read
//! whole, handed to a [`Sink`]. One worker of a gateway runs this.
//!
//! Whether a key has changed is asked with `WATCH` … `EXEC`: an `EXEC` of
//! nothing succeeds unless a watched key was written since `WATCH`. That is
//! O(1), misses nothing (a set replaced by another of the same size), and needs nothing
//! of the server. It takes a connection of its own; there are two, so that a blocklist of
//! a million entries is not read again for each ban: one watches `config` and `bans` and
//! keeps the heartbeat, the other watches the two lists. `WATCH` stands before the reading and right behind the
//! `EXEC`, in one write, which a server carries out without anybody between.
//!
//! A list is read in steps of about a thousand (a million at once would hold
//! Redis for half a second). What was changed while it was being read is
//! noticed by the next `EXEC`, and read again. A list is handed over when it is
//! complete, or not at all: what breaks off changes nothing.
//!
//! When Redis has restarted (another `run_id`) and config, lists and bans are all gone, nothing is
//! handed over until any of them exists again.
mod entries;
mod follow;
mod heartbeat;
mod read;
mod state;

pub use entries::Entries;

use super::connect::Connector;
use crate::domain::config::Store;
use std::collections::BTreeMap;
use tokio::sync::watch;

/// A Redis, and one life of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerId {
    /// As `store_name` says.
    pub store: String,
    /// From `INFO server`; empty where that is forbidden.
    pub run_id: String,
}

/// Names a store: state of another one must not be taken for this one's.
pub fn store_name(store: &Store) -> String {
    match &store.url {
        Some(url) => format!("{url} {}", store.prefix),
        None => String::new(),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Which {
    Allow,
    Block,
    Bans,
}

/// Where what was read goes. Called in the synchronising thread.
pub trait Sink {
    /// The whole hash `<prefix>:config`; empty when the key is gone. `now_us` is Redis's time.
    fn config(&mut self, server: &ServerId, fields: BTreeMap<Vec<u8>, Vec<u8>>, now_us: u64);
    /// A whole list; empty when the key is gone.
    fn list(&mut self, which: Which, entries: Entries);
    /// All that changed has been handed over: publish once.
    fn round_done(&mut self, server: &ServerId);
    /// Live gateways by their heartbeats, this one included. When it changes.
    fn gateways(&mut self, n: u32);
    /// Something is wrong with a key (`Some`, once when it begins or changes;
    /// what was read of it before stays in force), or no longer (`None`).
    fn wrong(&mut self, key: &str, problem: Option<String>);
    /// Redis has restarted and lost everything: the last state stays in force
    /// (`true`, once), or anything exists again (`false`).
    fn kept(&mut self, kept: bool);
    /// The synchronisation cannot reach Redis (`Some`, when it begins, and at most every ten seconds
    /// when the reason changes), or can again (`None`).
    fn unreachable(&mut self, problem: Option<String>);
}

/// Runs while this worker holds the sync lock, until `stop` says `true` or is
/// dropped, inside a `LocalSet`. `previous`: what the state in force was read from, if anything.
pub async fn run(
    store: Store,
    gateway_id: String,
    previous: Option<ServerId>,
    mut sink: impl Sink,
    mut stop: watch::Receiver<bool>,
) {
    let connector = match Connector::new(&store) {
        Ok(connector) => connector,
        Err(problem) => {
            sink.unreachable(Some(problem));
            let _ = stop.wait_for(|stop| *stop).await;
            return;
        }
    };
    let state = state::State::new(&store, previous, sink);
    tokio::select! {
        () = follow::follow(&connector, &state, follow::Group::Live, Some(&gateway_id)) => {}
        () = follow::follow(&connector, &state, follow::Group::Lists, None) => {}
        // Told to stop, or nobody is left who could tell.
        _ = stop.wait_for(|stop| *stop) => {}
    }
}
