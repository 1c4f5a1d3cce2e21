use crate::domain::config::Store;
use std::collections::BTreeMap;

/// A Redis, and one life of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerId {
    /// URL without password, and prefix.
    pub store: String,
    /// From `INFO server`; empty where that is forbidden.
    pub run_id: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Which {
    Allow,
    Block,
    Bans,
}

/// The members of a list, packed: a million are one allocation, not a million.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Entries {
    bytes: Vec<u8>,
    ends: Vec<(usize, f64)>,
}

impl Entries {
    pub fn push(&mut self, member: &[u8], until_unix: f64) {
        self.bytes.extend_from_slice(member);
        self.ends.push((self.bytes.len(), until_unix));
    }
    pub fn len(&self) -> usize {
        self.ends.len()
    }
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }
    /// (member, Unix time at which it ends; `+inf`: never). A member may occur twice.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], f64)> {
        let mut start = 0;
        self.ends.iter().map(move |&(end, until)| {
            let member = &self.bytes[start..end];
            start = end;
            (member, until)
        })
    }
}

/// Where what was read goes. Called in the synchronising thread.
pub trait Sink {
    /// The whole hash `<prefix>:config`; empty when the key is gone. `now_us` is Redis's time.
    fn config(&mut self, server: &ServerId, fields: BTreeMap<Vec<u8>, Vec<u8>>, now_us: u64);
    /// A whole list; empty when the key is gone.
    fn list(&mut self, which: Which, entries: Entries);
    /// All that changed has been handed over: publish once.
    fn round_done(&mut self, server: &ServerId);
    /// Live gateways by their heartbeats, this one included.
    fn gateways(&mut self, n: u32);
    /// Something is wrong with a key (`Some`, once when it begins or changes;
    /// what was read of it before stays in force), or no longer (`None`).
    fn wrong(&mut self, key: &str, problem: Option<String>);
    /// Redis has restarted and lost everything: the last state stays in force
    /// (`true`, once), or anything exists again (`false`).
    fn kept(&mut self, kept: bool);
    /// The synchronisation cannot reach Redis (`Some`, once when it begins or
    /// changes), or can again (`None`).
    fn unreachable(&mut self, problem: Option<String>);
}

/// Runs while this worker holds the sync lock, until `stop` says `true` or is dropped.
/// `previous`: what the state in force was read from, if anything.
pub async fn run(
    _store: Store,
    _gateway_id: String,
    _previous: Option<ServerId>,
    _sink: impl Sink,
    _stop: tokio::sync::watch::Receiver<bool>,
) {
    todo!()
}
