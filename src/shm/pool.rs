//! Pools in the region: the queue and limiter of `domain::pool`, which are
//! plain data, each behind a lock that is held for one event.
//!
//! ```text
//!  PoolHead   name, lock, what is deferred (a bit per entry)       one page
//!  words      per entry, what is deferred for it (AtomicU64)
//!  State      ┐ behind the lock
//!  Entry × n  ┘
//!
//!  word   63          62 61     60         59                32 31        0
//!        +-------------+-------+-----------+-------------------+-----------+
//!        | 1: there is | what  | abandoned | response, 4 µs    | generation|
//!        +-------------+-------+-----------+-------------------+-----------+
//! ```
//!
//! Who ends a request while the lock is not to be had (its holder is stopped)
//! leaves that in the entry's word and sets its bit; the next holder applies
//! it. The entry cannot be another's before that, so there is always room, and
//! none is lost: a bit is gone before the word is read, a word before it is
//! applied only if the entry was freed, and after a death in between all words
//! are looked at. (A list linked through the entries would be broken for good
//! by one process that dies between two of its steps.)
//!
//! Who refuses a request without the lock counts it in the head, beside the
//! counts in the state: both together are what the pool has refused.
//!
//! An owner that died, or panicked, in the middle of a change leaves a state
//! that `rebuild` makes sound again.
mod lock;
mod take;
pub mod wake;

use super::memory::{Memory, PAGE, Plain, Shared};
use super::rules::NAME_BYTES;
use crate::domain::pool::{
    Completion, Entry, EntryId, Feedback, LEVELS, Notice, Pool, Reason, State, Wakes,
};
use crate::domain::units::Nanos;
pub use lock::{Guard, Missed, PATIENCE, RobustLock};
use portable_atomic::AtomicU128;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::time::Duration;

/// Most entries of a pool: a bit each in its head.
pub const MAX_ENTRIES: usize = 16_384;

/// A pool's place in the region, and which of the pools that were there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PoolId {
    pub(super) index: u16,
    pub(super) life: u32,
}

impl PoolId {
    /// Place in arrays by pool.
    pub fn index(self) -> usize {
        usize::from(self.index)
    }
}

/// The end of a request, for when the lock is not to be had.
#[derive(Clone, Copy, Debug)]
pub enum Deferred {
    /// `Pool::release`
    Release(Completion),
    /// `Pool::leave`
    Leave,
    /// `Pool::give_up` of a request of that level, which was told `Timeout`
    /// already, whatever has become of it.
    GiveUp { level: u8 },
}

/// By level and `Reason as usize`.
pub type Sheds = [[u64; 4]; LEVELS];

#[repr(C, align(4096))]
pub struct PoolHead {
    /// Keyed hash of the name; 0: free; 1: being given to another name.
    key: AtomicU128,
    /// Newest configuration generation for which the pool was taken.
    taken_at: AtomicU64,
    /// Of the settings in force: order of who made them, when, and their hash.
    made_by: AtomicU64,
    made_ns: AtomicU64,
    settings: AtomicU64,
    /// How many pools were here before this one.
    life: AtomicU64,
    /// Not 0: `State` and entries are this pool's.
    formatted: AtomicU64,
    name_len: AtomicU64,
    name: [AtomicU64; NAME_BYTES / 8],
    _names: [AtomicU64; 5],
    lock: RobustLock,
    /// Behind the lock: the newest time that an event had.
    last_ns: AtomicU64,
    /// Not 0: a holder panicked, or the lock was lost.
    damaged: AtomicU64,
    _lock: [AtomicU64; 6],
    /// Not 0: some bit is set.
    deferred: AtomicU64,
    _deferred: [AtomicU64; 7],
    bits: [AtomicU64; MAX_ENTRIES / 64],
    /// Refused without the lock, as [`Sheds`].
    shed: [[AtomicU64; 4]; LEVELS],
    _rest: [AtomicU64; 128],
}

const _: () = assert!(size_of::<PoolHead>() == PAGE);

// SAFETY: repr(C), atomics and a lock, which is `Shared` by itself.
unsafe impl Shared for PoolHead {}
// SAFETY: repr(C), integers and floats only, for which any bits are a value;
// indices in it are checked by those who follow them, and nothing points.
unsafe impl Plain for State {}
// SAFETY: as above.
unsafe impl Plain for Entry {}

const SET: u64 = 1 << 63;
const WHAT: u32 = 61;
const ABANDONED: u64 = 1 << 60;
const RESPONSE: u32 = 32;
/// 4 µs each: up to 17 minutes, and longer ones count as that.
const RESPONSE_UNIT_NS: u64 = 4_000;
const RESPONSE_MAX: u64 = (1 << 28) - 1;

fn pack(generation: u32, deferred: Deferred) -> u64 {
    let (what, response, abandoned) = match deferred {
        Deferred::Leave => (0, 0, false),
        // Told from leaving by the bit, so that a worker of before that takes
        // it for one.
        Deferred::GiveUp { level } => (0, u64::from(level), true),
        Deferred::Release(c) => {
            let (what, response) = match c.feedback {
                Feedback::None => (1, 0),
                Feedback::Error => (2, 0),
                Feedback::Response(time) => (3, (time.0 / RESPONSE_UNIT_NS).min(RESPONSE_MAX)),
            };
            (what, response, c.abandoned)
        }
    };
    let abandoned = if abandoned { ABANDONED } else { 0 };
    SET | what << WHAT | abandoned | response << RESPONSE | u64::from(generation)
}

fn unpack(word: u64) -> (u32, Deferred) {
    let completion = |feedback| {
        Deferred::Release(Completion {
            feedback,
            abandoned: word & ABANDONED != 0,
        })
    };
    let response = Nanos((word >> RESPONSE & RESPONSE_MAX) * RESPONSE_UNIT_NS);
    let deferred = match word >> WHAT & 3 {
        0 if word & ABANDONED != 0 => Deferred::GiveUp {
            level: (word >> RESPONSE & 0xff) as u8,
        },
        0 => Deferred::Leave,
        1 => completion(Feedback::None),
        2 => completion(Feedback::Error),
        _ => completion(Feedback::Response(response)),
    };
    (word as u32, deferred)
}

impl PoolHead {
    #[inline]
    pub fn lock(&self, most: Duration) -> Result<Guard<'_>, Missed> {
        self.lock.lock_within(most)
    }

    /// Counts a request that was refused by nobody who had the lock.
    pub fn count_shed(&self, level: u8, reason: Reason) {
        let level = usize::from(level).min(LEVELS - 1);
        // Relaxed: a counter stands for itself.
        self.shed[level][reason as usize].fetch_add(1, Relaxed);
    }

    pub fn sheds(&self) -> Sheds {
        std::array::from_fn(|l| std::array::from_fn(|r| self.shed[l][r].load(Relaxed)))
    }

    fn forget_sheds(&self) {
        let all = self.shed.iter().flatten();
        all.for_each(|n| n.store(0, Relaxed));
    }
}

/// One pool's place in the region.
#[derive(Clone, Copy)]
pub struct Place<'a> {
    pub head: &'a PoolHead,
    words: &'a [AtomicU64],
    state: NonNull<State>,
    entries: NonNull<[Entry]>,
}

impl<'a> Place<'a> {
    /// The parts of the pool at that offset.
    #[inline]
    pub fn at(memory: &'a Memory, offset: usize, entries: usize) -> Place<'a> {
        use super::layout::Layout;
        Place {
            head: memory.at(offset),
            words: memory.slice(offset + size_of::<PoolHead>(), entries),
            state: memory
                .plain::<State>(offset + Layout::pool_state_at(entries), 1)
                .cast(),
            entries: memory.plain(offset + Layout::pool_entries_at(entries), entries),
        }
    }

    /// In fresh memory.
    pub fn format(self) {
        self.head.lock.format();
    }

    /// The lock can never be taken again: see [`RobustLock::renew`].
    pub fn renew(self, lost: u32) {
        // What it protects may be in the middle of a change. Release, in
        // `renew`, publishes it with the lock.
        self.head.damaged.store(1, Relaxed);
        self.head.lock.renew(lost);
    }

    /// Whether the pool is still the one that was taken under this id.
    #[inline]
    pub fn is(self, id: PoolId) -> bool {
        // Acquire: with the release of `formatted`. That a pool is given to
        // another name is settled by the lock: nothing is in it then, and an id
        // of before that is refused under it.
        self.head.formatted.load(Acquire) != 0 && self.head.life.load(Relaxed) as u32 == id.life
    }

    pub fn id(self, index: usize) -> PoolId {
        PoolId {
            index: index as u16,
            life: self.head.life.load(Relaxed) as u32,
        }
    }

    /// Takes the lock. What was deferred is not applied yet.
    #[inline]
    pub fn enter(self, guard: Guard<'a>, now: Nanos) -> Held<'a> {
        // Relaxed: behind the lock.
        let last = self.head.last_ns.load(Relaxed);
        // Time never runs back within a pool. Further than this it cannot have:
        // that would be damage.
        let now = if last > now.0 && last - now.0 < 1_000_000_000 {
            Nanos(last)
        } else {
            now
        };
        self.head.last_ns.store(now.0, Relaxed);
        let damaged = guard.owner_died || self.head.damaged.load(Relaxed) != 0;
        Held {
            place: self,
            now,
            damaged,
            finished: false,
            _guard: guard,
        }
    }

    /// Leaves the end of a request to the next holder of the lock.
    pub fn defer(self, id: EntryId, deferred: Deferred) {
        let index = id.index as usize;
        let Some(word) = self.words.get(index) else {
            return;
        };
        let new = pack(id.generation, deferred);
        let mut old = word.load(Relaxed);
        loop {
            // A call that comes late does not displace that of a later owner.
            let later = (old as u32).wrapping_sub(id.generation) as i32 > 0;
            if old & SET != 0 && (later || old as u32 == id.generation) {
                return;
            }
            // AcqRel: the bit is set after it.
            match word.compare_exchange_weak(old, new, AcqRel, Relaxed) {
                Ok(_) => break,
                Err(now) => old = now,
            }
        }
        // Release, both: with the swaps in `apply_deferred`.
        self.head.bits[index / 64].fetch_or(1 << (index % 64), Release);
        self.head.deferred.store(1, Release);
    }

    /// Whether there is something for the next holder to apply.
    #[inline]
    pub fn has_deferred(self) -> bool {
        self.head.deferred.load(Relaxed) != 0
    }
}

/// A pool whose lock is held. Dropped before [`Held::finish`] (a panic in
/// between), it is marked for repair.
pub struct Held<'a> {
    pub place: Place<'a>,
    pub now: Nanos,
    /// The state may be in the middle of a change.
    pub damaged: bool,
    finished: bool,
    /// Unlocks after `drop`.
    _guard: Guard<'a>,
}

impl Held<'_> {
    #[inline]
    pub fn pool(&mut self) -> Pool<'_> {
        // SAFETY: inside of the memory and aligned, which `Memory::plain`
        // asserted; any bits are a value (`Plain`). The lock is held, so nobody
        // else has a reference, in this process or another; the borrow of
        // `self` keeps this one the only one, and the lock held.
        unsafe {
            Pool {
                state: self.place.state.as_mut(),
                entries: self.place.entries.as_mut(),
            }
        }
    }

    /// Applies what was deferred; `all`: looks at every word, since bits may be
    /// missing.
    #[cold]
    pub fn apply_deferred(&mut self, all: bool, wakes: &mut Wakes) {
        let (place, now) = (self.place, self.now);
        // First the flag, then the bits, then the words, each gone before what
        // it stands for is read: what comes meanwhile sets all three again.
        place.head.deferred.swap(0, AcqRel);
        for (i, words) in place.words.chunks(64).enumerate() {
            let mut bits = place.head.bits[i].swap(0, AcqRel);
            if all {
                bits = u64::MAX;
            }
            while bits != 0 {
                let n = bits.trailing_zeros() as usize;
                bits &= bits - 1;
                let Some(slot) = words.get(n) else { break };
                // Acquire: with the swap in `defer`.
                let word = slot.load(Acquire);
                if word & SET == 0 {
                    continue;
                }
                let (generation, deferred) = unpack(word);
                let index = (i * 64 + n) as u32;
                let id = EntryId { index, generation };
                match deferred {
                    Deferred::Release(c) => self.pool().release(id, &c, now, wakes),
                    Deferred::Leave => self.pool().leave(id, now, wakes),
                    Deferred::GiveUp { level } => self.give_up(id, level, wakes),
                }
                // After it: whoever dies in between has it applied again, which
                // changes nothing. Only this one: a later owner's may have come.
                // Relaxed: nothing follows from it.
                let _ = slot.compare_exchange(word, 0, Relaxed, Relaxed);
            }
        }
    }

    /// The pool counts those that it finds waiting, or has refused itself.
    fn give_up(&mut self, id: EntryId, level: u8, wakes: &mut Wakes) {
        let now = self.now;
        let became = self.pool().give_up(id, now, wakes);
        if became == Notice::Granted {
            self.pool().leave(id, now, wakes);
        }
        if !matches!(became, Notice::Shed(_)) {
            self.place.head.count_shed(level, Reason::Timeout);
        }
    }

    /// For a pool that is made anew: nothing is deferred.
    pub fn forget_deferred(&self) {
        self.place.words.iter().for_each(|w| w.store(0, Relaxed));
        let head = self.place.head;
        head.bits.iter().for_each(|w| w.store(0, Relaxed));
        head.deferred.store(0, Relaxed);
    }

    pub fn repaired(&mut self) {
        self.place.head.damaged.store(0, Relaxed);
        self.damaged = false;
    }

    /// The state is whole.
    #[inline]
    pub fn finish(&mut self) {
        self.finished = true;
    }
}

impl Drop for Held<'_> {
    #[inline]
    fn drop(&mut self) {
        if !self.finished {
            // Relaxed: the unlocking publishes it.
            self.place.head.damaged.store(1, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests;
