//! What workers hold, in pools and of users of level 0; giving it back for
//! those that are gone; waking each other.
use super::Region;
use crate::domain::pool::Wakes;
use crate::shm::pool::{Missed, PATIENCE, wake};
use crate::shm::users::{UserSlot, Users};
use std::sync::atomic::Ordering::*;
use std::time::Duration;

impl Region {
    fn users(&self) -> Users<'_> {
        Users::at(&self.memory, self.layout.users_at, self.layout.users)
    }

    /// Of this worker; that of no worker before it is attached, whose requests
    /// nobody takes back.
    pub fn line_index(&self) -> u16 {
        self.line.load(Relaxed) as u16
    }

    /// Lets that line's worker look what it has to collect.
    pub fn wake_line(&self, line: u16) {
        wake::wake(self.lines().get(line.into()).head);
    }

    /// For a background thread of this worker: sleeps until its line is woken
    /// or that time is over. `seen` is the thread's own, 0 at first. Whether the
    /// line was woken since the last call.
    pub fn wait_for_wake(&self, seen: &mut u32, timeout: Duration) -> bool {
        wake::wait(self.my().head, seen, timeout)
    }

    fn is_mine(&self, index: usize) -> bool {
        self.line_pid.load(Relaxed) == std::process::id() && self.line.load(Relaxed) == index
    }

    /// Lines that may hold something and whose worker is gone.
    pub(super) fn dead_lines(&self) -> impl Iterator<Item = usize> {
        (0..self.layout.lines).filter(|index| {
            let byte = *index as i64;
            // Acquire: with the release in `attach_worker`.
            self.lines().get(*index).head.holds.load(Acquire) != 0
                && !self.is_mine(*index)
                && (self.lock_file()).is_some_and(|lock| lock.owner(byte..byte + 1).is_none())
        })
    }

    /// Tries every other line's byte; what a dead worker held is given back.
    /// How many lines that were. For a background thread, every 250 ms or so.
    pub fn reclaim(&self) -> usize {
        let Some(lock) = self.lock_file() else {
            return 0;
        };
        let _threads = self.threads.lock();
        let dead: Vec<usize> = self.dead_lines().collect();
        let mut cleared = 0;
        for index in dead {
            // Its byte is held meanwhile, so that no new worker is on that line.
            if lock.try_lock(index as i64).unwrap_or(false) {
                // Relaxed: nobody's, and not to be shown as a worker now.
                self.lines().get(index).head.pid.store(0, Relaxed);
                cleared += usize::from(self.clear_line(index));
                lock.unlock(index as i64);
            }
        }
        cleared
    }

    /// Takes back what was held under that line, whose byte is the caller's.
    /// False: some lock was not to be had; all of it can be done again.
    pub(super) fn clear_line(&self, index: usize) -> bool {
        let head = self.lines().get(index).head;
        if head.holds.load(Acquire) == 0 {
            return true;
        }
        let users = self.users();
        let mut all = match users.clear(index as u16) {
            Err(Missed::Lost(lost)) => {
                self.renew(|| users.renew(lost)) && users.clear(index as u16).is_ok()
            }
            cleared => cleared.is_ok(),
        };
        for (_, place) in self.places().filter(|(_, place)| place.head.is_used()) {
            let mut wakes = Wakes::default();
            match self.enter(place, PATIENCE, &mut wakes) {
                Some(mut held) => {
                    let now = held.now;
                    held.pool().line_died(index as u16, now, &mut wakes);
                    self.leave(held, &wakes);
                }
                None => all = false,
            }
        }
        if all {
            // Release: with the acquire above.
            head.holds.store(0, Release);
        }
        all
    }

    // ---- users of level 0 ----

    /// One more request of that user, over all workers of the gateway. `None`:
    /// it holds `cap` already, or there is no room to know it by. An error: the
    /// lock is not to be had, so nobody can say.
    pub fn take_user(&self, hash: u64, cap: u32) -> Result<Option<UserSlot>, Missed> {
        let taken = self.users().take(hash, cap, self.line_index());
        if let Err(Missed::Lost(lost)) = taken {
            self.renew(|| self.users().renew(lost));
        }
        taken
    }

    pub fn give_user(&self, slot: UserSlot) {
        self.users().give(slot, self.line_index());
    }

    #[cfg(test)]
    pub fn with_users_locked<T>(&self, f: impl FnOnce() -> T) -> T {
        let users = self.users();
        let _held = users.lock();
        f()
    }

    /// Requests of users that are held, of all of them.
    pub fn users_held(&self) -> u64 {
        self.users().held()
    }
}
