//! Waking another worker's thread: a futex on a word of its line.
//!
//! A shared futex, not a private one, since it is another process that wakes.
//! The word counts, so a wake-up between two looks is never lost; whoever wakes
//! makes the system call only for a thread that sleeps.
use crate::shm::line::LineHead;
use std::sync::atomic::{AtomicU32, Ordering::*};
use std::time::Duration;

/// Sleeps while the word is `seen`, at most for that time.
fn sleep(word: &AtomicU32, seen: u32, most: Duration) {
    let time = libc::timespec {
        tv_sec: most.as_secs().min(1 << 30) as libc::time_t,
        tv_nsec: most.subsec_nanos() as libc::c_long,
    };
    // SAFETY: an aligned word that lives as long as the call, a time that does,
    // and a command that takes no more. Its time is relative, on the monotonic
    // clock. Whatever it returns: the caller looks at the word.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT,
            seen,
            &raw const time,
        )
    };
}

/// For the thread of that line's worker: sleeps until the line is woken, at
/// most for that time. `seen` is what it knows of; whether there was more.
pub fn wait(line: &LineHead, seen: &mut u32, most: Duration) -> bool {
    let woken = |seen: &mut u32| {
        // Acquire: with the release in `wake`: what it was woken for is there.
        let now = line.wakes.load(Acquire);
        std::mem::replace(seen, now) != now
    };
    if woken(seen) {
        return true;
    }
    // SeqCst, as in `wake`: either it sees that we sleep, or the kernel sees
    // that the word has changed.
    line.asleep.store(1, SeqCst);
    sleep(&line.wakes, *seen, most);
    line.asleep.store(0, SeqCst);
    woken(seen)
}

pub fn wake(line: &LineHead) {
    line.wakes.fetch_add(1, SeqCst);
    // A thread that was killed in its sleep leaves this set: one call in vain.
    if line.asleep.load(SeqCst) != 0 {
        // SAFETY: an aligned word that lives as long as the call; integers.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                line.wakes.as_ptr(),
                libc::FUTEX_WAKE,
                libc::c_int::MAX,
            )
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::memory::{Memory, PAGE};
    use std::time::Instant;

    #[test]
    fn no_wake_up_is_lost() {
        const TURNS: usize = if cfg!(miri) { 20 } else { 2_000 };
        let memory = Memory::heap(PAGE);
        let line: &LineHead = memory.at(0);
        let mut seen = 0;
        assert!(!wait(line, &mut seen, Duration::from_millis(1)), "time");
        wake(line);
        wake(line);
        assert!(wait(line, &mut seen, Duration::MAX), "before the sleep");
        assert!(!wait(line, &mut seen, Duration::from_millis(1)), "once");
        // Two that answer each other: a lost wake-up would hang them.
        let other = memory.at::<LineHead>(size_of::<LineHead>());
        let began = Instant::now();
        std::thread::scope(|s| {
            s.spawn(|| {
                let mut seen = 0;
                for _ in 0..TURNS {
                    while !wait(other, &mut seen, Duration::from_secs(100)) {}
                    wake(line);
                }
            });
            for _ in 0..TURNS {
                wake(other);
                while !wait(line, &mut seen, Duration::from_secs(100)) {}
            }
        });
        assert!(began.elapsed() < Duration::from_secs(90));
    }
}
