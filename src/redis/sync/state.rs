//! What both connections know: the sink, what is in force, what was complained of.
use super::{Entries, ServerId, Sink, Which, store_name};
use crate::domain::config::Store;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Between two words about why Redis cannot be reached.
const QUIET: Duration = Duration::from_secs(10);

pub(super) struct State<S> {
    pub prefix: String,
    pub interval: Duration,
    store: String,
    sink: RefCell<S>,
    /// Whose state is in force.
    in_force: RefCell<Option<ServerId>>,
    kept: Cell<bool>,
    /// What was handed over last: nothing is handed over twice.
    config: RefCell<Option<BTreeMap<Vec<u8>, Vec<u8>>>>,
    lists: RefCell<BTreeMap<Which, u64>>,
    wrong: RefCell<BTreeMap<String, String>>,
    /// By connection.
    unreachable: RefCell<[Option<String>; 2]>,
    said: Cell<Option<Instant>>,
    gateways: Cell<Option<u32>>,
}

impl<S: Sink> State<S> {
    pub fn new(store: &Store, previous: Option<ServerId>, sink: S) -> State<S> {
        let name = store_name(store);
        State {
            prefix: store.prefix.clone(),
            interval: store.sync,
            in_force: RefCell::new(previous.filter(|previous| previous.store == name)),
            store: name,
            sink: RefCell::new(sink),
            kept: Cell::new(false),
            config: RefCell::default(),
            lists: RefCell::default(),
            wrong: RefCell::default(),
            unreachable: RefCell::default(),
            said: Cell::new(None),
            gateways: Cell::new(None),
        }
    }

    pub fn key(&self, name: &str) -> String {
        format!("{}:{name}", self.prefix)
    }

    pub fn list_key(&self, which: Which) -> String {
        self.key(match which {
            Which::Allow => "allowlist",
            Which::Block => "blocklist",
            Which::Bans => "bans",
        })
    }

    pub fn server(&self, run_id: &str) -> ServerId {
        ServerId {
            store: self.store.clone(),
            run_id: run_id.to_owned(),
        }
    }

    /// Whether `server` is not the one whose state is in force, but a later life of it: asked
    /// after connecting. Where lives cannot be told apart each connection counts as one.
    pub fn restarted(&self, server: &ServerId) -> bool {
        let in_force = self.in_force.borrow();
        in_force
            .as_ref()
            .is_some_and(|it| it.run_id != server.run_id || it.run_id.is_empty())
    }

    pub fn keep(&self, kept: bool) {
        if self.kept.replace(kept) != kept {
            self.sink.borrow_mut().kept(kept);
        }
    }

    /// Hands over what differs from the last time, or all of it (`again`). Whether it did.
    pub fn hand_config(
        &self,
        server: &ServerId,
        fields: BTreeMap<Vec<u8>, Vec<u8>>,
        now_us: u64,
        again: bool,
    ) -> bool {
        let mut last = self.config.borrow_mut();
        let changed = again || last.as_ref() != Some(&fields);
        if changed {
            *last = Some(fields.clone());
            self.sink.borrow_mut().config(server, fields, now_us);
        }
        changed
    }

    pub fn hand_list(&self, which: Which, entries: Entries, again: bool) -> bool {
        let digest = entries.digest();
        let changed = self.lists.borrow_mut().insert(which, digest) != Some(digest) || again;
        if changed {
            self.sink.borrow_mut().list(which, entries);
        }
        changed
    }

    pub fn round_done(&self, server: &ServerId) {
        self.in_force.replace(Some(server.clone()));
        self.sink.borrow_mut().round_done(server);
    }

    pub fn gateways(&self, n: u32) {
        if self.gateways.replace(Some(n)) != Some(n) {
            self.sink.borrow_mut().gateways(n);
        }
    }

    pub fn wrong(&self, key: &str, problem: Option<String>) {
        let mut wrong = self.wrong.borrow_mut();
        let before = match &problem {
            Some(text) => wrong.insert(key.to_owned(), text.clone()),
            None => wrong.remove(key),
        };
        if before != problem {
            self.sink.borrow_mut().wrong(key, problem);
        }
    }

    pub fn unreachable(&self, connection: usize, problem: Option<String>) {
        let mut all = self.unreachable.borrow_mut();
        let was = all.iter().any(Option::is_some);
        let changed = all[connection] != problem;
        all[connection] = problem.clone();
        match problem {
            Some(problem) => {
                let quiet = self.said.get().is_some_and(|said| said.elapsed() < QUIET);
                if !was || (changed && !quiet) {
                    self.said.set(Some(Instant::now()));
                    self.sink.borrow_mut().unreachable(Some(problem));
                }
            }
            None if was && all.iter().all(Option::is_none) => {
                self.sink.borrow_mut().unreachable(None);
            }
            None => {}
        }
    }
}
