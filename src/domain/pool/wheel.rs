//! What time alone ends: waits, grants that were not taken up, ghosts. A timing
//! wheel (Varghese and Lauck, 1987): constant time for every operation.
//!
//! ```text
//!  slot number = ⌈due / SLOT_NS⌉;  it lies at number % SLOTS, if within reach,
//!  else as far ahead as the wheel reaches, to be put further when met there
//! ```
//!
//! Nothing comes early, and nothing later than `SLOT_NS` after it was due.
use super::entry::{By, Entry, List, get, get_mut};

/// About a millisecond.
pub(super) const SLOT_NS: u64 = 1 << 20;
const SLOTS: usize = 2048;
const WORDS: usize = SLOTS / 64;
const REACH: u64 = SLOTS as u64 - 1;
/// Of an entry that is not in the wheel.
pub(super) const OUT: u16 = u16::MAX;

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Wheel {
    slots: [List; SLOTS],
    /// Which are not empty.
    full: [u64; WORDS],
    /// The last slot number that is done.
    done: u64,
}

impl Wheel {
    pub(super) const fn new() -> Wheel {
        Wheel {
            slots: [List::EMPTY; SLOTS],
            full: [0; WORDS],
            done: 0,
        }
    }

    pub(super) fn format(&mut self, now: u64) {
        *self = Wheel::new();
        self.done = now / SLOT_NS;
    }

    /// The entry is not in the wheel; its `due` is set.
    pub(super) fn insert(&mut self, entries: &mut [Entry], index: u32) {
        self.insert_after(entries, index, self.done);
    }

    fn insert_after(&mut self, entries: &mut [Entry], index: u32, done: u64) {
        let Some(entry) = get_mut(entries, index) else {
            return;
        };
        let first = done.saturating_add(1);
        let number = entry
            .due
            .div_ceil(SLOT_NS)
            .clamp(first, done.saturating_add(REACH).max(first));
        let slot = (number % SLOTS as u64) as usize;
        entry.slot = slot as u16;
        self.slots[slot].push_back(entries, By::Time, index);
        self.full[slot / 64] |= 1 << (slot % 64);
    }

    /// Does nothing to an entry that is not in it.
    pub(super) fn remove(&mut self, entries: &mut [Entry], index: u32) {
        let Some(entry) = get_mut(entries, index) else {
            return;
        };
        let slot = usize::from(std::mem::replace(&mut entry.slot, OUT));
        if slot >= SLOTS {
            return;
        }
        self.slots[slot].remove(entries, By::Time, index);
        if get(entries, self.slots[slot].head).is_none() {
            self.full[slot / 64] &= !(1 << (slot % 64));
        }
    }

    /// Takes out one entry that is due.
    pub(super) fn pop(&mut self, entries: &mut [Entry], now: u64) -> Option<u32> {
        let current = now / SLOT_NS;
        // Time does not run back: only a broken wheel can be ahead of it.
        // And after a long rest one turn is enough to meet them all.
        let oldest = current.saturating_sub(SLOTS as u64);
        self.done = self.done.clamp(oldest, current);
        // Each step empties a slot or moves an entry on, unless links go in circles.
        for _ in 0..2 * (SLOTS + entries.len()) {
            if self.done == current {
                return None;
            }
            let Some(number) = self.next().filter(|&it| it <= current) else {
                self.done = current;
                return None;
            };
            self.done = number - 1;
            let slot = (number % SLOTS as u64) as usize;
            let Some(index) = self.slots[slot].pop_front(entries, By::Time) else {
                self.full[slot / 64] &= !(1 << (slot % 64));
                self.done = number;
                continue;
            };
            if get(entries, self.slots[slot].head).is_none() {
                self.full[slot / 64] &= !(1 << (slot % 64));
            }
            let Some(entry) = get_mut(entries, index) else {
                continue;
            };
            if entry.due <= now {
                entry.slot = OUT;
                return Some(index);
            }
            self.insert_after(entries, index, number);
        }
        self.done = current;
        None
    }

    /// When the next slot is over: ns from now.
    pub(super) fn next_due(&self, now: u64) -> u64 {
        self.next().map_or(u64::MAX, |it| {
            it.saturating_mul(SLOT_NS).saturating_sub(now)
        })
    }

    /// The first slot number after `done` that is not empty.
    fn next(&self) -> Option<u64> {
        let first = self.done.saturating_add(1);
        let (word, bit) = ((first / 64 % WORDS as u64) as usize, (first % 64) as u32);
        let base = first - u64::from(bit);
        for turn in 0..=WORDS {
            let mut bits = self.full[(word + turn) % WORDS];
            if turn == 0 {
                bits &= u64::MAX << bit;
            }
            if turn == WORDS {
                bits &= !(u64::MAX << bit);
            }
            if bits != 0 {
                let ahead = turn as u64 * 64 + u64::from(bits.trailing_zeros());
                return Some(base.saturating_add(ahead));
            }
        }
        None
    }
}

#[cfg(test)]
impl Wheel {
    /// How many entries are in it; each lies where it says, and where it will be met.
    pub(super) fn walk(&self, entries: &[Entry]) -> usize {
        let mut found = 0;
        for (slot, list) in self.slots.iter().enumerate() {
            let walked = list.walk(entries, By::Time);
            assert_eq!(
                self.full[slot / 64] >> (slot % 64) & 1 == 1,
                !walked.is_empty()
            );
            for &index in &walked {
                assert_eq!(usize::from(entries[index as usize].slot), slot);
            }
            found += walked.len();
        }
        found
    }

    pub(super) fn scramble(&mut self, bits: &mut dyn FnMut() -> u64) {
        self.slots.iter_mut().for_each(|it| it.scramble(bits));
        self.full = std::array::from_fn(|_| bits());
        self.done = bits();
    }
}
