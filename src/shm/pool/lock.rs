//! A lock over processes for what is not a word: a pool's queue, mostly.
//!
//! A robust mutex of the C library, taken by trying: a few turns of spinning,
//! then short sleeps, and after [`PATIENCE`] not at all, since its owner may be
//! stopped. Never by `pthread_mutex_timedlock`, which follows the wall clock.
//! When an owner dies the kernel says so to the next one, who repairs what the
//! lock protects. Once it was missed nobody waits for it until somebody has got
//! it: while its owner is stopped, a request costs microseconds, not 2 ms of
//! nginx's loop. Uncontended it costs two compare-and-swaps and no system call.
//!
//! A mutex whose state was never declared consistent can never be locked again.
//! It is not made anew in place, where others may be trying it: there are two,
//! and a word says which one is the lock.
use crate::shm::memory::Shared;
use crate::shm::region::monotonic;
use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, Ordering::*};
use std::time::Duration;

/// How long is tried. Held for an event it is free within a microsecond; a
/// holder that was taken off its processor comes back within a time slice.
pub const PATIENCE: Duration = Duration::from_millis(2);
/// Tries before the first sleep, with a pause of some 50 ns between two.
const SPINS: u32 = 40;
/// The same while the lock has been missed.
const FEW_SPINS: u32 = 4;
const NAP: Duration = Duration::from_micros(50);
/// `<pthread.h>`, which `libc` does not have for Linux.
const PTHREAD_MUTEX_ROBUST: libc::c_int = 1;

#[repr(C, align(64))]
struct Mutex(UnsafeCell<libc::pthread_mutex_t>);

const _: () = assert!(size_of::<Mutex>() == 64);

// SAFETY: a mutex is made to be used by many threads at a time, by reference.
unsafe impl Sync for Mutex {}

#[repr(C, align(64))]
pub struct RobustLock {
    /// The lock is `mutexes[which % 2]`.
    which: AtomicU32,
    /// Not 0: it was waited for in vain, and not got since.
    missed: AtomicU32,
    mutexes: [Mutex; 2],
}

// SAFETY: an atomic, and mutexes, which are reached by the C library's own
// functions only. They are process-shared, need no dropping, and hold pointers
// that nobody but the owner's kernel list follows. Zeroes and what `format` and
// the C library leave are values; nothing else writes there.
unsafe impl Shared for RobustLock {}

/// The lock, held. Given back when dropped.
pub struct Guard<'a> {
    mutex: &'a Mutex,
    /// Whoever held it before died meanwhile: what it protects may be in the
    /// middle of a change.
    pub owner_died: bool,
    /// Not `Send`: who locked it has to unlock it.
    _thread: PhantomData<*const ()>,
}

/// Why it was not got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missed {
    /// Somebody else held it for all of that time.
    Busy,
    /// Nobody can ever get it: [`RobustLock::renew`].
    Lost(u32),
}

impl Drop for Guard<'_> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: this thread locked this mutex (a guard is not `Send`), once.
        unsafe { libc::pthread_mutex_unlock(self.mutex.0.get()) };
    }
}

impl Mutex {
    fn format(&self) {
        // SAFETY: the attributes live here; the mutex is one that nobody has
        // locked and nobody is trying: a fresh region's, or the spare one.
        let code = unsafe {
            let mut attributes = std::mem::zeroed();
            libc::pthread_mutexattr_init(&raw mut attributes);
            // Miri knows neither; its tests are of one process.
            if !cfg!(miri) {
                libc::pthread_mutexattr_setpshared(
                    &raw mut attributes,
                    libc::PTHREAD_PROCESS_SHARED,
                );
                libc::pthread_mutexattr_setrobust(&raw mut attributes, PTHREAD_MUTEX_ROBUST);
            }
            let code = libc::pthread_mutex_init(self.0.get(), &raw const attributes);
            libc::pthread_mutexattr_destroy(&raw mut attributes);
            code
        };
        assert_eq!(code, 0, "robust, process-shared mutexes are there");
    }

    /// 0, `EBUSY`, `EOWNERDEAD` (it is locked) or `ENOTRECOVERABLE`.
    #[inline]
    fn try_lock(&self) -> libc::c_int {
        // SAFETY: a mutex that was initialised when the region was made.
        unsafe { libc::pthread_mutex_trylock(self.0.get()) }
    }
}

impl Mutex {
    #[cold]
    fn after_death(&self) -> bool {
        // At once: whoever dies before this leaves the same to the next; whoever
        // does so after it, in repairing, too.
        // SAFETY: this thread has just locked it, in this state.
        unsafe { libc::pthread_mutex_consistent(self.0.get()) };
        true
    }
}

impl RobustLock {
    /// In fresh memory.
    pub fn format(&self) {
        self.mutexes.iter().for_each(Mutex::format);
    }

    /// Tries for that time, [`PATIENCE`] where requests are served.
    #[inline]
    pub fn lock_within(&self, most: Duration) -> Result<Guard<'_>, Missed> {
        let mut taken = self.try_once();
        if let Err(Missed::Busy) = taken {
            taken = self.lock_slowly(most);
        }
        // Relaxed: a hint, of how long to try.
        if taken.is_ok() && self.missed.load(Relaxed) != 0 {
            self.missed.store(0, Relaxed);
        }
        taken
    }

    #[cold]
    fn lock_slowly(&self, most: Duration) -> Result<Guard<'_>, Missed> {
        let until = monotonic().0 + most.as_nanos() as u64;
        let patient = most > PATIENCE || self.missed.load(Relaxed) == 0;
        let spins = if patient { SPINS } else { FEW_SPINS };
        for turn in 0.. {
            if turn < spins {
                (0..16).for_each(|_| std::hint::spin_loop());
            } else if patient {
                std::thread::sleep(NAP);
            } else {
                break;
            }
            let taken = self.try_once();
            if !matches!(taken, Err(Missed::Busy)) {
                return taken;
            }
            if monotonic().0 > until {
                self.missed.store(1, Relaxed);
                break;
            }
        }
        Err(Missed::Busy)
    }

    #[inline]
    fn try_once(&self) -> Result<Guard<'_>, Missed> {
        // Acquire: with the release in `renew`, so that the mutex is one.
        let which = self.which.load(Acquire);
        let mutex = &self.mutexes[which as usize % 2];
        let owner_died = match mutex.try_lock() {
            0 => false,
            libc::EOWNERDEAD => mutex.after_death(),
            libc::ENOTRECOVERABLE => return Err(Missed::Lost(which)),
            _ => return Err(Missed::Busy),
        };
        let guard = Guard {
            mutex,
            owner_died,
            _thread: PhantomData,
        };
        // Made anew while we took the one before: that is nobody's lock now.
        if self.which.load(Acquire) != which {
            return Err(Missed::Busy);
        }
        Ok(guard)
    }

    #[cfg(test)]
    pub fn lose(&self) {
        let which = self.which.load(Acquire);
        let mutex = &self.mutexes[which as usize % 2];
        // A thread that ends with the lock held dies as a process does.
        let take = || assert_eq!(mutex.try_lock(), 0);
        std::thread::scope(|s| s.spawn(take).join().expect("no panic"));
        assert_eq!(mutex.try_lock(), libc::EOWNERDEAD);
        // SAFETY: just locked, in this thread; not declared consistent, which is
        // what loses it.
        unsafe { libc::pthread_mutex_unlock(mutex.0.get()) };
    }

    /// After `Missed::Lost`: the other mutex is the lock from here on. For one
    /// caller at a time, who holds the record lock for it. What it protects may
    /// be in the middle of a change.
    pub fn renew(&self, lost: u32) {
        if self.which.load(Acquire) == lost {
            let next = lost.wrapping_add(1);
            self.mutexes[next as usize % 2].format();
            // Release: with the acquire in `try_once`.
            self.which.store(next, Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::memory::{Memory, PAGE};
    use std::time::Instant;

    fn lock() -> Memory {
        let memory = Memory::heap(PAGE);
        memory.at::<RobustLock>(0).format();
        memory
    }

    /// A thread that ends with the lock held dies as a process does.
    fn die_with(lock: &RobustLock) {
        let hold = || std::mem::forget(lock.lock_within(PATIENCE).map_err(|_| ()));
        // Joined: the end of the scope comes before that of the thread.
        std::thread::scope(|s| s.spawn(hold).join().expect("no panic"));
    }

    #[test]
    fn one_at_a_time() {
        const TURNS: u64 = if cfg!(miri) { 50 } else { 20_000 };
        let memory = lock();
        let lock: &RobustLock = memory.at(0);
        let plain = std::sync::atomic::AtomicU64::new(0);
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| {
                    for _ in 0..TURNS {
                        let Ok(_held) = lock.lock_within(Duration::from_secs(60)) else {
                            panic!("not got");
                        };
                        // Not one step: two holders at a time would lose some.
                        plain.store(plain.load(Relaxed) + 1, Relaxed);
                    }
                });
            }
        });
        assert_eq!(plain.into_inner(), 4 * TURNS);
    }

    #[test]
    fn a_lock_that_is_held_is_not_waited_for() {
        let memory = lock();
        let lock: &RobustLock = memory.at(0);
        let held = lock
            .lock_within(PATIENCE)
            .map_err(|_| ())
            .expect("the lock");
        std::thread::scope(|s| {
            s.spawn(|| {
                let began = Instant::now();
                assert_eq!(lock.lock_within(PATIENCE).err(), Some(Missed::Busy));
                assert!(began.elapsed() >= PATIENCE);
            });
        });
        // By the same thread neither: it does not hang. And once it was missed,
        // only somebody who has nothing else to do waits.
        let naps = |most| {
            let began = Instant::now();
            assert_eq!(lock.lock_within(most).err(), Some(Missed::Busy));
            began.elapsed() >= most
        };
        // (Under miri a few turns take as long as the patience.)
        assert!(cfg!(miri) || (0..200).any(|_| !naps(PATIENCE)));
        assert!(naps(PATIENCE * 2));
        drop(held);
        assert!(lock.lock_within(PATIENCE).is_ok_and(|g| !g.owner_died));
    }

    #[test]
    #[cfg_attr(miri, ignore = "miri has no robust mutexes")]
    fn the_next_owner_hears_of_a_death_once() {
        let memory = lock();
        let lock: &RobustLock = memory.at(0);
        for _ in 0..3 {
            die_with(lock);
            assert!(lock.lock_within(PATIENCE).is_ok_and(|g| g.owner_died));
            assert!(lock.lock_within(PATIENCE).is_ok_and(|g| !g.owner_died));
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "miri has no robust mutexes")]
    fn a_lost_lock_is_made_anew() {
        let memory = lock();
        let lock: &RobustLock = memory.at(0);
        for _ in 0..4 {
            lock.lose();
            let Err(Missed::Lost(lost)) = lock.lock_within(PATIENCE) else {
                panic!("not lost");
            };
            lock.renew(lost);
            // A second one who found it lost changes nothing.
            lock.renew(lost);
            assert!(lock.lock_within(PATIENCE).is_ok_and(|g| !g.owner_died));
        }
    }
}
