//! Pools, and what workers hold in them; users of level 0; waking each other.
use super::{Line, Region};
use crate::domain::pool::{EntryId, Pool, Settings, Wakes};
use crate::domain::units::Nanos;
use crate::shm::Error;
use crate::shm::error::error;
use crate::shm::layout::PoolRoom;
use crate::shm::lock::{POOLS, RENEW};
use crate::shm::pool::{Deferred, Held, Missed, PATIENCE, Place, PoolId, wake};
use crate::shm::rules::{NAME_BYTES, Name, Taker};
use crate::shm::users::{UserSlot, Users};
use siphasher::sip128::{Hasher128, SipHasher13};
use std::hash::Hasher;
use std::sync::atomic::Ordering::*;
use std::time::Duration;

/// What came of one or more events in a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touched<T> {
    pub value: T,
    /// This worker's own line has something to collect.
    pub woke_me: bool,
    /// The pool has become saturated (true) or has recovered.
    pub saturation: Option<bool>,
}

/// What this process has mended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Repairs {
    /// Pools whose last owner died in the middle of a change.
    pub rebuilt: u64,
    /// Locks that could never have been taken again.
    pub renewed: u64,
}

/// How long a pool's lock is waited for where nobody is served meanwhile.
const LONG: Duration = Duration::from_secs(1);

impl Region {
    fn places(&self) -> impl Iterator<Item = (usize, Place<'_>)> {
        (0..self.layout.pools).map(|index| (index, self.place(index)))
    }

    fn place(&self, index: usize) -> Place<'_> {
        let l = &self.layout;
        Place::at(
            &self.memory,
            l.pools_at + index.min(l.pools - 1) * l.pool_bytes,
            l.entries,
        )
    }

    fn users(&self) -> Users<'_> {
        Users::at(&self.memory, self.layout.users_at, self.layout.users)
    }

    // ---- names ----

    /// Finds or makes the pool of that name (1 to 80 bytes), for the
    /// configuration that this worker is about to report by
    /// [`Region::my_config_generation`], which is not lower than
    /// `setup_generation`. Settings are put in force when they
    /// differ and `setup_generation` is the newest that has started; what is in
    /// flight and what waits stays. A name is forgotten, when room is short,
    /// once all living workers have reported newer configurations and nothing
    /// is in flight and nothing waits. Errors: no room; a stopped process holds
    /// the pool.
    pub fn take_pool(
        &self,
        name: &str,
        settings: &Settings,
        setup_generation: u64,
        config_generation: u64,
    ) -> Result<PoolId, Error> {
        let length = name.len();
        if !(1..=NAME_BYTES).contains(&length) {
            return Err(error!(
                "a pool's name has 1 to {NAME_BYTES} bytes, not {length}"
            ));
        }
        let mut hasher = SipHasher13::new_with_keys(self.seed[0], self.seed[1]);
        hasher.write(b"pool\0");
        hasher.write(name.as_bytes());
        let name = Name {
            text: name,
            hash: hasher.finish128().as_u128(),
        };
        let taker = Taker {
            // SeqCst: with `attach_worker`.
            newest_setup: setup_generation >= self.header().started_generation.load(SeqCst),
            setup: setup_generation,
            config: Some(config_generation),
            now: self.now(),
        };
        loop {
            let Some((index, place)) = self.places().find(|(_, p)| p.head.claim(name)) else {
                self.recycle_pool(name)?;
                continue;
            };
            place.head.taken_for(config_generation);
            if !place.has(settings) {
                let mut wakes = Wakes::default();
                let mut held = self.enter(place, LONG, &mut wakes).ok_or_else(|| {
                    error!(
                        "pool \"{}\" cannot be changed: a process has held it for more than {LONG:?}; is it stopped?",
                        name.text
                    )
                })?;
                held.put(name, settings, taker, &mut wakes);
                self.leave(held, &wakes);
            }
            if place.head.key() == name.key() {
                return Ok(place.id(index));
            }
        }
    }

    fn recycle_pool(&self, name: Name<'_>) -> Result<(), Error> {
        let _threads = self.threads.lock();
        let _held = match self.lock_file() {
            Some(lock) => Some(lock.hold(POOLS, Duration::from_secs(2))?),
            None => None,
        };
        let mut places: Vec<_> = self.places().map(|(_, p)| (p.head.age(), p)).collect();
        if places
            .iter()
            .any(|(_, p)| [0, name.key()].contains(&p.head.key()))
        {
            return Ok(());
        }
        // Who has not reported yet takes names for its setup's first
        // configuration or a later one, and those have no lower number.
        let reported = |(_, line): (u32, Line<'_>)| {
            let setup = line.head.setup_generation.load(Relaxed);
            match line.head.config_generation.load(Relaxed) {
                0 => setup,
                config => config,
            }
        };
        let unused_below = self.living().map(reported).min().unwrap_or(0);
        places.retain(|(age, _)| *age <= unused_below);
        places.sort_by_key(|(age, _)| *age);
        for (age, place) in places {
            let mut wakes = Wakes::default();
            let Some(mut held) = self.enter(place, PATIENCE, &mut wakes) else {
                continue;
            };
            let idle = held.is_idle(&mut wakes);
            if idle {
                held.give_to(name, age);
            }
            self.leave(held, &wakes);
            if idle {
                return Ok(());
            }
        }
        Err(error!(
            "no room for pool \"{}\": the {} that the region has room for are in use by living workers, or have requests in flight; raise shm.size",
            name.text, self.layout.pools
        ))
    }

    /// Those that are there, whosever configuration they are in.
    pub fn pools(&self) -> Vec<(PoolId, String)> {
        self.places()
            .filter(|(_, place)| place.head.is_used())
            .map(|(index, place)| (place.id(index), place.head.name()))
            .collect()
    }

    /// Requests in flight and waiting that a pool has room for, whatever its
    /// settings.
    pub fn pool_entries(&self) -> usize {
        self.layout.entries
    }

    pub fn pool_room(&self) -> PoolRoom {
        self.layout.pool_room()
    }

    // ---- events ----

    /// One event, or a few, under the pool's lock; workers that have something
    /// to collect are woken. `None`: the lock was not to be had within 2 ms, or
    /// the pool is gone. A call from within another's function is one of these.
    pub fn pool<T>(
        &self,
        id: PoolId,
        f: impl FnOnce(&mut Pool<'_>, Nanos, &mut Wakes) -> T,
    ) -> Option<Touched<T>> {
        let place = self.place(id.index());
        let mut wakes = Wakes::default();
        let mut held = self.enter(place, PATIENCE, &mut wakes)?;
        let now = held.now;
        let value = place.is(id).then(|| f(&mut held.pool(), now, &mut wakes));
        let woke_me = self.leave(held, &wakes);
        Some(Touched {
            value: value?,
            woke_me,
            saturation: wakes.saturation,
        })
    }

    /// The end of a request, where [`Region::pool`] gave `None`: the next that
    /// gets the lock applies it. Never waits, and there is always room.
    pub fn defer_release(&self, id: PoolId, entry: EntryId, deferred: Deferred) {
        let place = self.place(id.index());
        if place.is(id) {
            place.defer(entry, deferred);
        }
    }

    /// Whether something is deferred.
    pub fn has_deferred(&self, id: PoolId) -> bool {
        self.place(id.index()).has_deferred()
    }

    /// Takes a pool's lock, mends what a dead owner left, and applies what was
    /// deferred.
    fn enter<'a>(&self, place: Place<'a>, most: Duration, wakes: &mut Wakes) -> Option<Held<'a>> {
        let guard = loop {
            match place.head.lock(most) {
                Ok(guard) => break guard,
                Err(Missed::Lost(lost)) if self.renew(|| place.renew(lost)) => {}
                Err(_) => return None,
            }
        };
        let mut held = place.enter(guard, self.now());
        if held.damaged {
            self.mend(&mut held, wakes);
        } else if place.has_deferred() {
            held.apply_deferred(false, wakes);
        }
        Some(held)
    }

    /// Gives the lock back, then wakes whom the events concern. Whether that is
    /// this worker too.
    fn leave(&self, mut held: Held<'_>, wakes: &Wakes) -> bool {
        held.finish();
        drop(held);
        // Relaxed: written by this process, in `attach_worker`.
        let mine = self.line.load(Relaxed);
        let mut woke_me = false;
        for (i, word) in wakes.lines.iter().enumerate() {
            let mut bits = *word;
            while bits != 0 {
                let line = i * 64 + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                if line == mine {
                    woke_me = true;
                } else {
                    self.wake_line(line as u16);
                }
            }
        }
        woke_me
    }

    #[cold]
    fn mend(&self, held: &mut Held<'_>, wakes: &mut Wakes) {
        if held.place.head.is_used() {
            let now = held.now;
            held.pool().rebuild(now, wakes);
            held.apply_deferred(true, wakes);
            for line in self.dead_lines() {
                held.pool().line_died(line as u16, now, wakes);
            }
            self.rebuilt.fetch_add(1, Relaxed);
        }
        held.repaired();
    }

    /// Makes a lock that is lost anew. False: another is at it.
    #[cold]
    fn renew(&self, renew: impl FnOnce()) -> bool {
        // Tried, not waited for: requests are served meanwhile.
        let Some(_threads) = self.threads.try_lock() else {
            return false;
        };
        if let Some(lock) = self.lock_file() {
            if !lock.try_lock(RENEW).unwrap_or(false) {
                return false;
            }
            renew();
            lock.unlock(RENEW);
        } else {
            renew();
        }
        self.renewed.fetch_add(1, Relaxed);
        true
    }

    /// What this process has mended so far.
    pub fn repairs(&self) -> Repairs {
        Repairs {
            rebuilt: self.rebuilt.load(Relaxed),
            renewed: self.renewed.load(Relaxed),
        }
    }

    // ---- lines ----

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
    fn dead_lines(&self) -> impl Iterator<Item = usize> {
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
    /// it holds `cap` already, or there is no room to know it by.
    pub fn take_user(&self, hash: u64, cap: u32) -> Option<UserSlot> {
        match self.users().take(hash, cap, self.line_index()) {
            Err(Missed::Lost(lost)) => {
                self.renew(|| self.users().renew(lost));
                None
            }
            taken => taken.ok()?,
        }
    }

    pub fn give_user(&self, slot: UserSlot) {
        self.users().give(slot, self.line_index());
    }

    /// Requests of users that are held, of all of them.
    pub fn users_held(&self) -> u64 {
        self.users().held()
    }
}

#[cfg(test)]
#[path = "../pool_tests.rs"]
mod tests;
