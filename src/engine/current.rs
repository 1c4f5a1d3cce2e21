//! What is in force in this worker, as its synchronising thread makes it and
//! nginx's thread takes it: a version number that a request compares, and a lock
//! that is touched only when it has changed.
use super::rules::RuleSet;
use crate::shm::lists::Lists;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Rules and lists, each replaced whole.
#[derive(Clone)]
pub struct InForce {
    pub rules: Arc<RuleSet>,
    /// Of the configuration's own entries and files.
    pub file_lists: Option<Arc<Lists>>,
    /// Of the store, by `Which as usize`: lists and bans in Redis. Empty ones are left out.
    pub store_lists: [Option<Arc<Lists>>; 3],
    /// Entries of all of them that were skipped.
    pub rejected: u64,
    /// All that is published could be mapped.
    pub complete: bool,
}

pub struct Current {
    version: AtomicU64,
    state: Mutex<InForce>,
}

impl InForce {
    /// All lists that have entries.
    pub fn lists(&self) -> Vec<Arc<Lists>> {
        let all = self
            .file_lists
            .iter()
            .chain(self.store_lists.iter().flatten());
        all.cloned().collect()
    }
}

impl Current {
    pub fn new(state: InForce) -> Current {
        Current {
            version: AtomicU64::new(1),
            state: Mutex::new(state),
        }
    }

    /// Changes with every `change`.
    pub fn version(&self) -> u64 {
        // Acquire, with the Release in `change`: not needed for the state, which the lock orders,
        // but it makes a number once seen mean that the state behind the lock is that new.
        self.version.load(Ordering::Acquire)
    }

    pub fn change(&self, f: impl FnOnce(&mut InForce)) {
        let mut state = self.state.lock();
        f(&mut state);
        self.version.fetch_add(1, Ordering::Release);
    }

    pub fn get(&self) -> InForce {
        self.state.lock().clone()
    }
}
