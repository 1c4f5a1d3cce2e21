//! A sink that remembers, for the tests of the synchronisation.
use super::*;
use crate::redis::fixture::Server;
use crate::redis::sync::{Entries, ServerId, Sink, Which, run};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use tokio::sync::watch;

/// What was handed over, as it stands, and how often.
#[derive(Clone, Default)]
pub struct Seen(pub Rc<RefCell<Inner>>);

#[derive(Default)]
pub struct Inner {
    pub config: Option<BTreeMap<String, String>>,
    pub now_us: u64,
    pub lists: BTreeMap<Which, Entries>,
    pub server: Option<ServerId>,
    pub gateways: u32,
    pub wrong: BTreeMap<String, String>,
    pub kept: Vec<bool>,
    pub unreachable: Vec<Option<String>>,
    /// Calls by name.
    pub calls: BTreeMap<&'static str, u32>,
}

impl Seen {
    fn call(&self, name: &'static str) -> std::cell::RefMut<'_, Inner> {
        let mut inner = self.0.borrow_mut();
        *inner.calls.entry(name).or_default() += 1;
        inner
    }

    pub fn calls(&self, name: &str) -> u32 {
        self.0.borrow().calls.get(name).copied().unwrap_or(0)
    }

    pub fn list(&self, which: Which) -> Option<Vec<(String, f64)>> {
        let inner = self.0.borrow();
        let entries = inner.lists.get(&which)?.iter();
        let text = |member: &[u8]| String::from_utf8_lossy(member).into_owned();
        let mut entries: Vec<_> = entries.map(|(member, end)| (text(member), end)).collect();
        entries.sort_by(|a, b| a.0.cmp(&b.0));
        Some(entries)
    }

    pub fn members(&self, which: Which) -> Vec<String> {
        self.list(which)
            .unwrap_or_default()
            .into_iter()
            .map(|(member, _)| member)
            .collect()
    }

    pub fn len(&self, which: Which) -> Option<usize> {
        self.0.borrow().lists.get(&which).map(Entries::len)
    }

    pub fn config(&self) -> Option<Vec<String>> {
        self.0
            .borrow()
            .config
            .as_ref()
            .map(|it| it.keys().cloned().collect())
    }

    pub fn wrong(&self) -> BTreeMap<String, String> {
        self.0.borrow().wrong.clone()
    }
}

impl Sink for Seen {
    fn config(&mut self, _: &ServerId, fields: BTreeMap<Vec<u8>, Vec<u8>>, now_us: u64) {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
        let mut inner = self.call("config");
        inner.config = Some(
            fields
                .into_iter()
                .map(|(k, v)| (text(k), text(v)))
                .collect(),
        );
        inner.now_us = now_us;
    }
    fn list(&mut self, which: Which, entries: Entries) {
        let name = match which {
            Which::Allow => "allow",
            Which::Block => "block",
            Which::Bans => "bans",
        };
        self.call(name).lists.insert(which, entries);
    }
    fn round_done(&mut self, server: &ServerId) {
        self.call("round").server = Some(server.clone());
    }
    fn gateways(&mut self, n: u32) {
        self.call("gateways").gateways = n;
    }
    fn wrong(&mut self, key: &str, problem: Option<String>) {
        let mut inner = self.call("wrong");
        match problem {
            Some(problem) => inner.wrong.insert(key.to_owned(), problem),
            None => inner.wrong.remove(key),
        };
    }
    fn kept(&mut self, kept: bool) {
        self.call("kept").kept.push(kept);
    }
    fn unreachable(&mut self, problem: Option<String>) {
        self.call("unreachable").unreachable.push(problem);
    }
}

/// Follows until dropped.
pub struct Follower {
    pub seen: Seen,
    _stop: watch::Sender<bool>,
}

pub fn follow(url: &str, id: &str, previous: Option<ServerId>) -> Follower {
    let seen = Seen::default();
    let (stop, stopped) = watch::channel(false);
    let following = run(store(url), id.to_owned(), previous, seen.clone(), stopped);
    tokio::task::spawn_local(following);
    Follower { seen, _stop: stop }
}

/// A follower that has read everything once.
pub async fn ready(url: &str) -> Seen {
    let follower = follow(url, "gateway-a", None);
    let seen = follower.seen.clone();
    until("all is read", async || {
        seen.config().is_some() && seen.0.borrow().lists.len() == 3
    })
    .await;
    // It follows to the end of the test.
    std::mem::forget(follower);
    seen
}

pub fn fill(server: &Server, key: &str, members: impl Iterator<Item = u32>) {
    let mut plain = server.connection();
    let members: Vec<String> = members
        .map(|n| std::net::Ipv4Addr::from(0x0a00_0000 + n).to_string())
        .collect();
    for chunk in members.chunks(10_000) {
        redis::cmd("SADD")
            .arg(key)
            .arg(chunk)
            .exec(&mut plain)
            .expect("added");
    }
}
