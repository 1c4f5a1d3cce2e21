//! A request's place in the pool, and the lists that link places together.
//!
//! ```text
//!              arrive                  collect              release
//!  FREE ─┬──▶ WAITING ──▶ GRANTED ──┬──────────▶ HELD ──┬──────────▶ FREE
//!        │       │           │      │                   │ client gone,
//!        │       ▼           ▼      │                   ▼ backend works on
//!        │     SHED      WITHDRAWN  │                 GHOST ──▶ FREE
//!        └───────┴───────────┴──────┘ a slot was free
//! ```
//!
//! A waiting entry is in its sub-queue; one that is granted, shed or withdrawn is
//! in the inbox of its line until it is collected; a free one in the list of
//! free ones: one link is enough for the three. What has a time limit (waiting,
//! granted, ghost) is in the wheel, a blind waiter in the list of its like.
//!
//! Entries lie in memory that a killed process may have left half written, so no
//! index is believed: what does not exist is read as the end of a list.
use super::{EntryId, NONE};

pub(super) const FREE: u8 = 0;
pub(super) const WAITING: u8 = 1;
/// Has a slot that its worker has not taken up yet.
pub(super) const GRANTED: u8 = 2;
/// In flight.
pub(super) const HELD: u8 = 3;
/// Its client left; the backend works on.
pub(super) const GHOST: u8 = 4;
pub(super) const SHED: u8 = 5;
pub(super) const WITHDRAWN: u8 = 6;

pub(super) const BLIND: u8 = 1;
pub(super) const EXEMPT: u8 = 2;

/// Which of an entry's links a list is made of.
#[derive(Clone, Copy)]
pub(super) enum By {
    /// Sub-queue, inbox or free list.
    Place = 0,
    Time = 1,
    Blindness = 2,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Link {
    next: u32,
    prev: u32,
}

const UNLINKED: Link = Link {
    next: NONE,
    prev: NONE,
};

/// Plain integers: any bits are an entry.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    pub(super) generation: u32,
    pub(super) phase: u8,
    pub(super) level: u8,
    pub(super) cohort: u8,
    pub(super) route: u8,
    pub(super) flags: u8,
    /// Of a shed one: `Reason as u8`.
    pub(super) reason: u8,
    pub(super) line: u16,
    /// Of the wheel, where it is in it.
    pub(super) slot: u16,
    pub(super) unused: u16,
    pub(super) ticket: u64,
    /// When the request first asked.
    pub(super) since: u64,
    /// When it came to wait, or was given its slot.
    pub(super) at: u64,
    /// When its time is up, where it is in the wheel.
    pub(super) due: u64,
    links: [Link; 3],
}

const _: () = assert!(size_of::<Entry>() <= 96);

impl Entry {
    pub const fn new() -> Entry {
        Entry {
            generation: 0,
            phase: FREE,
            level: 0,
            cohort: 0,
            route: 0,
            flags: 0,
            reason: 0,
            line: 0,
            slot: super::wheel::OUT,
            unused: 0,
            ticket: 0,
            since: 0,
            at: 0,
            due: 0,
            links: [UNLINKED; 3],
        }
    }

    pub(super) fn is(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Takes a slot of the backend.
    pub(super) fn has_slot(&self) -> bool {
        matches!(self.phase, GRANTED | HELD | GHOST)
    }

    /// Its line has not heard of it yet.
    pub(super) fn is_notice(&self) -> bool {
        matches!(self.phase, GRANTED | SHED | WITHDRAWN)
    }

    pub(super) fn unlink_all(&mut self) {
        self.links = [UNLINKED; 3];
        self.slot = super::wheel::OUT;
    }
}

impl Default for Entry {
    fn default() -> Entry {
        Entry::new()
    }
}

pub(super) fn get(entries: &[Entry], index: u32) -> Option<&Entry> {
    entries.get(index as usize)
}

pub(super) fn get_mut(entries: &mut [Entry], index: u32) -> Option<&mut Entry> {
    entries.get_mut(index as usize)
}

/// The entry that an id names, unless that place was given to another since.
pub(super) fn named(entries: &[Entry], id: EntryId) -> Option<&Entry> {
    get(entries, id.index).filter(|it| it.generation == id.generation && it.phase != FREE)
}

/// Doubly linked through the entries.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct List {
    pub(super) head: u32,
    pub(super) tail: u32,
}

impl List {
    pub(super) const EMPTY: List = List {
        head: NONE,
        tail: NONE,
    };

    pub(super) fn push_back(&mut self, entries: &mut [Entry], by: By, index: u32) {
        let last = self.tail;
        let Some(entry) = get_mut(entries, index) else {
            return;
        };
        entry.links[by as usize] = Link {
            next: NONE,
            prev: last,
        };
        match get_mut(entries, last) {
            Some(entry) => entry.links[by as usize].next = index,
            None => self.head = index,
        }
        self.tail = index;
    }

    pub(super) fn push_front(&mut self, entries: &mut [Entry], by: By, index: u32) {
        let first = self.head;
        let Some(entry) = get_mut(entries, index) else {
            return;
        };
        entry.links[by as usize] = Link {
            next: first,
            prev: NONE,
        };
        match get_mut(entries, first) {
            Some(entry) => entry.links[by as usize].prev = index,
            None => self.tail = index,
        }
        self.head = index;
    }

    /// The entry must be in this list.
    pub(super) fn remove(&mut self, entries: &mut [Entry], by: By, index: u32) {
        let Some(entry) = get_mut(entries, index) else {
            return;
        };
        let link = std::mem::replace(&mut entry.links[by as usize], UNLINKED);
        // An entry that is its own neighbour would never leave its list.
        let [next, prev] = [link.next, link.prev].map(|it| if it == index { NONE } else { it });
        match get_mut(entries, prev) {
            Some(entry) => entry.links[by as usize].next = next,
            None => self.head = next,
        }
        match get_mut(entries, next) {
            Some(entry) => entry.links[by as usize].prev = prev,
            None => self.tail = prev,
        }
    }

    pub(super) fn pop_front(&mut self, entries: &mut [Entry], by: By) -> Option<u32> {
        let first = self.head;
        if get(entries, first).is_none() {
            *self = List::EMPTY;
            return None;
        }
        self.remove(entries, by, first);
        Some(first)
    }

    /// From the oldest to the newest; ends where a link is broken.
    #[cfg(test)]
    pub(super) fn walk(&self, entries: &[Entry], by: By) -> Vec<u32> {
        let (mut found, mut at) = (Vec::new(), self.head);
        while let Some(entry) = get(entries, at)
            && found.len() <= entries.len()
        {
            found.push(at);
            at = entry.links[by as usize].next;
        }
        found
    }
}

#[cfg(test)]
impl List {
    pub(super) fn scramble(&mut self, bits: &mut dyn FnMut() -> u64) {
        (self.head, self.tail) = (bits() as u32, bits() as u32);
    }
}

#[cfg(test)]
impl Entry {
    pub(super) fn scramble(&mut self, bits: &mut dyn FnMut() -> u64) {
        self.generation = bits() as u32;
        [self.phase, self.level, self.cohort] = std::array::from_fn(|_| bits() as u8);
        [self.route, self.flags, self.reason] = std::array::from_fn(|_| bits() as u8);
        [self.line, self.slot] = std::array::from_fn(|_| bits() as u16);
        [self.ticket, self.since, self.at, self.due] = std::array::from_fn(|_| bits());
        for link in &mut self.links {
            (link.next, link.prev) = (bits() as u32, bits() as u32);
        }
    }
}
