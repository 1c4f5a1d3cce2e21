//! How the store is, for nginx's thread.
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// What nginx's thread may read without asking this one.
#[derive(Debug)]
pub struct Health {
    /// The breaker is closed: worth asking. True until the first failure.
    pub up: AtomicBool,
    /// How often `up` has changed.
    changes: AtomicU64,
    error: Mutex<Option<String>>,
}

impl Health {
    pub(super) fn new() -> Health {
        Health {
            up: AtomicBool::new(true),
            changes: AtomicU64::new(0),
            error: Mutex::new(None),
        }
    }

    pub fn is_up(&self) -> bool {
        // Relaxed: a request that sees it late asks or skips once more.
        self.up.load(Ordering::Relaxed)
    }

    /// Odd while it is down. Says whether there is something new to log.
    pub fn changes(&self) -> u64 {
        // Relaxed: the text has its own lock.
        self.changes.load(Ordering::Relaxed)
    }

    /// Why it is not up, or was not the last time.
    pub fn last_error(&self) -> Option<String> {
        self.error
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub(super) fn set(&self, up: bool) {
        if self.up.swap(up, Ordering::Relaxed) != up {
            self.changes.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn note(&self, error: String) {
        *self.error.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
    }
}
