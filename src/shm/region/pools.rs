//! Pools, and what workers hold in them; users of level 0; waking each other.
use super::{Line, Region, monotonic};
use crate::domain::pool::{EntryId, LINES, Pool, Reason, Settings, Wakes};
use crate::domain::units::Nanos;
use crate::shm::Error;
use crate::shm::error::error;
use crate::shm::layout::PoolRoom;
use crate::shm::lock::{POOLS, RENEW};
use crate::shm::pool::{Deferred, Guard, Held, Missed, PATIENCE, Place, PoolId, Sheds};
use crate::shm::rules::{NAME_BYTES, Name, Taker};
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
    pub(super) fn places(&self) -> impl Iterator<Item = (usize, Place<'_>)> {
        (0..self.layout.pools).map(|index| (index, self.place(index)))
    }

    #[inline]
    pub(super) fn place(&self, index: usize) -> Place<'_> {
        let l = &self.layout;
        Place::at(
            &self.memory,
            l.pools_at + index.min(l.pools - 1) * l.pool_bytes,
            l.entries,
        )
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

    /// Not given up since for another name.
    pub fn has_pool(&self, id: PoolId) -> bool {
        self.place(id.index()).is(id)
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
    #[inline]
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

    /// Counts a request that was refused where [`Region::pool`] gave `None`, or
    /// after the pool had given it a slot. Without the lock: should the pool
    /// be another's in the very moment, that one has it.
    pub fn count_shed(&self, id: PoolId, level: u8, reason: Reason) {
        let place = self.place(id.index());
        if place.is(id) {
            place.head.count_shed(level, reason);
        }
    }

    /// What was counted so, in addition to the pool's own counts.
    pub fn sheds(&self, id: PoolId) -> Sheds {
        let place = self.place(id.index());
        if place.is(id) {
            place.head.sheds()
        } else {
            Sheds::default()
        }
    }

    /// Whether something is deferred.
    pub fn has_deferred(&self, id: PoolId) -> bool {
        self.place(id.index()).has_deferred()
    }

    /// Takes a pool's lock, mends what a dead owner left, and applies what was
    /// deferred.
    // Always: handing `Held` back through memory, which reads 16 bytes where one was just
    // written, costs a twentieth of what a slot does.
    #[inline(always)]
    pub(super) fn enter<'a>(
        &self,
        place: Place<'a>,
        most: Duration,
        wakes: &mut Wakes,
    ) -> Option<Held<'a>> {
        let guard = match place.head.lock(most) {
            Ok(guard) => guard,
            Err(missed) => self.after_renewal(place, missed)?,
        };
        let mut held = place.enter(guard, monotonic());
        if held.damaged {
            self.mend(&mut held, wakes);
        } else if place.has_deferred() {
            held.apply_deferred(false, wakes);
        }
        Some(held)
    }

    #[cold]
    fn after_renewal<'a>(&self, place: Place<'a>, mut missed: Missed) -> Option<Guard<'a>> {
        while let Missed::Lost(lost) = missed
            && self.renew(|| place.renew(lost))
        {
            match place.head.lock(PATIENCE) {
                Ok(guard) => return Some(guard),
                Err(again) => missed = again,
            }
        }
        None
    }

    /// Gives the lock back, then wakes whom the events concern. Whether that is
    /// this worker too.
    #[inline]
    pub(super) fn leave(&self, mut held: Held<'_>, wakes: &Wakes) -> bool {
        held.finish();
        drop(held);
        wakes.lines != [0; LINES / 64] && self.tell(wakes)
    }

    /// Wakes the workers of those lines, but for this one: whether it is among
    /// them.
    fn tell(&self, wakes: &Wakes) -> bool {
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
    pub(super) fn renew(&self, renew: impl FnOnce()) -> bool {
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
}

#[cfg(test)]
#[path = "../pool_tests.rs"]
mod tests;
