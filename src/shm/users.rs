//! Who holds how much of level 0: a verified user's requests that wait or are
//! in flight, over all workers of the gateway.
//!
//! Sets of 16 slots, two sets per hash, of which the emptier takes a user, so
//! that nobody is refused for want of room before six slots of seven are taken.
//! A slot is one user's on one line, and one whose count is 0 is free. To take
//! one a small lock is held, so that two workers cannot both pass; to give one
//! back only the count is lowered, which nobody but its line's worker does. A
//! slot is written count last, so a worker that is killed leaves nothing to
//! repair but its counts, which are cleared with its line.
use super::memory::{Memory, Shared};
use super::pool::{Missed, PATIENCE, RobustLock};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

const WAYS: usize = 16;

#[repr(C, align(256))]
pub struct UsersHead {
    lock: RobustLock,
}

#[repr(C, align(16))]
pub struct UserCell {
    user: AtomicU64,
    line: AtomicU32,
    count: AtomicU32,
}

// SAFETY: repr(C), a lock, which is `Shared` by itself.
unsafe impl Shared for UsersHead {}
// SAFETY: repr(C), atomics and nothing else.
unsafe impl Shared for UserCell {}

/// One of a user's requests. To be given back.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "it is held until it is given back"]
pub struct UserSlot {
    index: u32,
    user: u64,
}

#[derive(Clone, Copy)]
pub struct Users<'a> {
    pub head: &'a UsersHead,
    pub cells: &'a [UserCell],
}

impl<'a> Users<'a> {
    pub fn at(memory: &'a Memory, offset: usize, cells: usize) -> Users<'a> {
        Users {
            head: memory.at(offset),
            cells: memory.slice(offset + size_of::<UsersHead>(), cells),
        }
    }

    /// In fresh memory.
    pub fn format(self) {
        self.head.lock.format();
    }

    /// `None`: the user holds `cap` already, or there is no room.
    pub fn take(self, user: u64, cap: u32, line: u16) -> Result<Option<UserSlot>, Missed> {
        // Whoever died with it left nothing half done: a count is written last.
        let _held = self.head.lock.lock_within(PATIENCE)?;
        let sets = (self.cells.len() / WAYS).max(1);
        let first = user as usize % sets;
        let second = (user >> 32) as usize % sets;
        let second = (second != first).then_some(second);
        let (mut held, mut mine) = (0u32, None);
        // How many are free in the emptier set, and the first of them.
        let mut free = (0, None);
        // Relaxed throughout: behind the lock, but for what a worker gives back
        // meanwhile, of which an older value only refuses.
        for set in [Some(first), second].into_iter().flatten() {
            let mut here = (0, None);
            for (i, cell) in self.cells.iter().enumerate().skip(set * WAYS).take(WAYS) {
                let count = cell.count.load(Relaxed);
                if count == 0 {
                    here = (here.0 + 1, here.1.or(Some(i)));
                } else if cell.user.load(Relaxed) == user {
                    held = held.saturating_add(count);
                    if cell.line.load(Relaxed) == u32::from(line) {
                        mine = Some(i);
                    }
                }
            }
            if here.0 > free.0 {
                free = here;
            }
        }
        let room = mine.or(free.1).filter(|_| held < cap);
        let Some(index) = room else {
            return Ok(None);
        };
        let cell = &self.cells[index];
        if mine.is_none() {
            cell.user.store(user, Relaxed);
            cell.line.store(line.into(), Relaxed);
        }
        cell.count.fetch_add(1, Release); // after user and line
        Ok(Some(UserSlot {
            index: index as u32,
            user,
        }))
    }

    pub fn give(self, slot: UserSlot, line: u16) {
        let Some(cell) = self.cells.get(slot.index as usize) else {
            return;
        };
        // A slot that was cleared with its line is no longer this one's.
        if cell.user.load(Relaxed) == slot.user && cell.line.load(Relaxed) == u32::from(line) {
            let less = |count: u32| count.checked_sub(1);
            // Relaxed: nothing follows from it but that there is room.
            let _ = cell.count.fetch_update(Relaxed, Relaxed, less);
        }
    }

    /// What a dead worker's line held is free. Its byte is the caller's, so
    /// nobody takes for it.
    pub fn clear(self, line: u16) -> Result<(), Missed> {
        let _held = self.head.lock.lock_within(PATIENCE)?;
        let line = u32::from(line);
        for cell in self.cells {
            if cell.count.load(Relaxed) != 0 && cell.line.load(Relaxed) == line {
                cell.count.store(0, Relaxed);
            }
        }
        Ok(())
    }

    #[cfg(test)]
    pub fn lock(self) -> super::pool::Guard<'a> {
        let taken = self.head.lock.lock_within(PATIENCE);
        taken.map_err(|_| ()).expect("nobody else has it")
    }

    /// The lock can never be taken again: see [`RobustLock::renew`].
    pub fn renew(self, lost: u32) {
        self.head.lock.renew(lost);
    }

    /// Requests held, of all users.
    pub fn held(self) -> u64 {
        let counts = self.cells.iter().map(|c| c.count.load(Relaxed));
        counts.map(u64::from).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CELLS: usize = 64;

    fn users(memory: &Memory) -> Users<'_> {
        let users = Users::at(memory, 0, CELLS);
        users.format();
        users
    }

    fn take(users: Users<'_>, user: u64, cap: u32, line: u16) -> Option<UserSlot> {
        users.take(user, cap, line).expect("the lock")
    }

    #[test]
    fn a_user_holds_as_many_as_the_cap_over_all_lines() {
        let memory = Memory::heap(4096);
        let users = users(&memory);
        let first = take(users, 7, 3, 1).expect("room");
        let second = take(users, 7, 3, 2).expect("room");
        let third = take(users, 7, 3, 1).expect("room");
        assert_eq!(take(users, 7, 3, 3), None);
        assert_eq!(take(users, 8, 0, 3), None);
        // Another of the same set.
        let other = take(users, 7 + 4, 1, 3).expect("room");
        assert_eq!(users.held(), 4);
        users.give(second, 2);
        let again = take(users, 7, 3, 3).expect("given back");
        assert_eq!(take(users, 7, 3, 1), None);
        // A higher cap, a line that is gone.
        let more = take(users, 7, 4, 2).expect("a higher cap");
        assert_eq!(users.clear(1), Ok(()));
        assert_eq!(users.held(), 3);
        // Late calls of the line that is gone change nothing.
        users.give(first, 1);
        users.give(third, 1);
        for (slot, line) in [(again, 3), (more, 2), (other, 3)] {
            users.give(slot, line);
        }
        assert_eq!(users.held(), 0);
    }

    /// As in a region of 64 MiB. With one set per hash forty of 10,000 find
    /// theirs full.
    #[test]
    #[cfg_attr(miri, ignore = "the promise is one of 16,384 slots")]
    fn there_is_room_for_six_users_in_seven_slots() {
        const MANY: usize = 16_384;
        let memory = Memory::heap(MANY * size_of::<UserCell>() + 4096);
        let users = Users::at(&memory, 0, MANY);
        users.format();
        let hash = |i: u64| {
            let x = (i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            x ^ x >> 31
        };
        let all: Vec<UserSlot> = (0..14_000)
            .map(|i| take(users, hash(i), 1, (i % 4) as u16).expect("room"))
            .collect();
        assert_eq!(take(users, hash(0), 1, 1), None, "the cap");
        for (i, slot) in all.into_iter().enumerate() {
            users.give(slot, (i % 4) as u16);
        }
        assert_eq!(users.held(), 0);
    }

    #[test]
    fn a_full_set_refuses() {
        let memory = Memory::heap(4096);
        let users = users(&memory);
        let sets = (CELLS / WAYS) as u64;
        let all: Vec<UserSlot> = (0..WAYS as u64)
            .map(|i| take(users, i * sets, 4, 1).expect("room"))
            .collect();
        assert_eq!(take(users, 99 * sets, 4, 1), None);
        let one = take(users, 0, 4, 1).expect("has a slot already");
        let other = take(users, 1, 4, 1).expect("another set");
        for slot in all.into_iter().chain([one, other]) {
            users.give(slot, 1);
        }
        assert_eq!(users.held(), 0);
        assert!(take(users, 99 * sets, 4, 1).is_some());
    }
}
