//! The worker's table of what is under way: one ticket for every request that
//! has been decided and lives, and for every wait.
//!
//! A request is found again by its pointer, so that one client request is
//! charged once whatever internal redirects it goes through. nginx's request
//! cleanup gives the ticket back; it carries index and generation, never a
//! pointer, so a late cleanup or a late reply cannot touch a stranger.
//!
//! Only nginx's thread uses it.
use super::decide::Pending;
use crate::domain::pool::EntryId;
use crate::shm::{PoolId, UserSlot, Verdict};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Request pointers as keys: never an attacker's choice, so one multiplication will do.
#[derive(Default)]
pub struct PointerHasher(u64);

impl Hasher for PointerHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for b in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*b);
        }
    }
    fn write_usize(&mut self, n: usize) {
        // 2^64 / golden ratio: spreads aligned pointers over the upper bits, which are folded down.
        let x = (n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = x ^ (x >> 32);
    }
}

/// What stays of a decision until the request is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    pub verdict: Option<Verdict>,
    pub level: u8,
}

/// A request's place in a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    pub pool: PoolId,
    pub entry: EntryId,
    /// It has the slot; else it waits for one.
    pub held: bool,
    /// The slot is given back at the response's header.
    pub to_header: bool,
}

/// A request that waits for a pool's lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parked {
    pub pool: PoolId,
    pub level: usize,
}

/// What a request holds of what all workers share, until its end.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Holds {
    pub slot: Option<Slot>,
    pub parked: Option<Parked>,
    /// One of those that its user may have at level 0.
    pub user: Option<UserSlot>,
    /// The client, for what is remembered of its behaviour; 0: nothing is.
    pub client: u64,
}

impl Holds {
    pub fn is_nothing(&self) -> bool {
        self.slot.is_none() && self.parked.is_none() && self.user.is_none() && self.client == 0
    }
}

/// A ticket that was given back. What it held has to be given back too.
#[must_use]
#[derive(Debug, PartialEq, Eq)]
pub struct Closed {
    pub request: usize,
    pub record: Record,
    pub holds: Holds,
}

/// Names a ticket: generation in the upper half, index in the lower.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TicketId {
    pub index: u32,
    pub generation: u32,
}

impl TicketId {
    pub fn pack(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }
    pub fn unpack(packed: u64) -> TicketId {
        TicketId {
            index: packed as u32,
            generation: (packed >> 32) as u32,
        }
    }
}

pub struct Ticket {
    generation: u32,
    open: bool,
    /// 0: not a request's (a `check()` or `ban()` that waits).
    request: usize,
    /// Where nginx does not call at the request's end: what tells this request from a later one
    /// at the same address. 0: nginx calls.
    pub serial: u64,
    pub record: Record,
    pub holds: Holds,
    /// Admitted without a word to nginx: so is every further call for this request.
    pub declined: bool,
    pub pending: Option<Box<Pending>>,
}

const NO_RECORD: Record = Record {
    verdict: None,
    level: 0,
};

#[derive(Default)]
pub struct Tickets {
    slots: Vec<Ticket>,
    free: Vec<u32>,
    by_request: HashMap<usize, u32, BuildHasherDefault<PointerHasher>>,
    waiting: usize,
}

impl Tickets {
    pub fn open(&mut self, request: usize) -> TicketId {
        let index = match self.free.pop() {
            Some(i) => i,
            None => {
                self.slots.push(Ticket {
                    generation: 0,
                    open: false,
                    request: 0,
                    serial: 0,
                    record: NO_RECORD,
                    holds: Holds::default(),
                    declined: false,
                    pending: None,
                });
                (self.slots.len() - 1) as u32
            }
        };
        let t = &mut self.slots[index as usize];
        t.generation = t.generation.wrapping_add(1);
        t.open = true;
        t.request = request;
        t.serial = 0;
        t.record = NO_RECORD;
        t.declined = false;
        let generation = t.generation;
        if request != 0 {
            self.by_request.insert(request, index);
        }
        TicketId { index, generation }
    }

    pub fn get(&mut self, id: TicketId) -> Option<&mut Ticket> {
        self.slots
            .get_mut(id.index as usize)
            .filter(|t| t.open && t.generation == id.generation)
    }

    /// The ticket under which this request was decided, if it was.
    pub fn of_request(&self, request: usize) -> Option<(TicketId, u64)> {
        let index = *self.by_request.get(&request)?;
        let t = &self.slots[index as usize];
        Some((
            TicketId {
                index,
                generation: t.generation,
            },
            t.serial,
        ))
    }

    /// Notes what a ticket waits for.
    pub fn wait(&mut self, id: TicketId, pending: Box<Pending>) {
        if let Some(t) = self.get(id) {
            let replaced = t.pending.replace(pending).is_some();
            self.waiting += usize::from(!replaced);
        }
    }

    /// Takes what a ticket waited for.
    pub fn take_pending(&mut self, id: TicketId) -> Option<Box<Pending>> {
        let taken = self.get(id)?.pending.take();
        self.waiting -= usize::from(taken.is_some());
        taken
    }

    /// How many wait.
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// Gives the ticket back. `None`: it was given back before.
    pub fn close(&mut self, id: TicketId) -> Option<Closed> {
        let t = self.get(id)?;
        t.open = false;
        let (request, record) = (t.request, t.record);
        let holds = std::mem::take(&mut t.holds);
        if t.pending.take().is_some() {
            self.waiting -= 1;
        }
        // A ticket of a request that nginx reused without telling us (no cleanup) may have lost
        // its place to a later one, which keeps it.
        if request != 0
            && let Some(index) = self.by_request.remove(&request)
            && index != id.index
        {
            self.by_request.insert(request, index);
        }
        self.free.push(id.index);
        Some(Closed {
            request,
            record,
            holds,
        })
    }

    /// Gives back a ticket of no request, which holds nothing.
    pub fn forget(&mut self, id: TicketId) {
        let closed = self.close(id);
        debug_assert!(closed.is_none_or(|c| c.request == 0));
    }

    /// How many tickets are out.
    pub fn out(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_found_by_its_pointer_until_its_ticket_is_given_back() {
        let mut t = Tickets::default();
        let a = t.open(0x1000);
        assert_eq!(t.of_request(0x1000), Some((a, 0)));
        assert_eq!(t.of_request(0x2000), None);
        assert!(t.close(a).is_some());
        assert_eq!(t.of_request(0x1000), None);
        assert_eq!(t.out(), 0);
    }

    #[test]
    fn a_late_cleanup_does_not_touch_the_next_owner_of_the_slot() {
        let mut t = Tickets::default();
        let a = t.open(0x1000);
        assert!(t.close(a).is_some());
        let b = t.open(0x1000);
        assert_eq!(a.index, b.index);
        assert!(t.close(a).is_none());
        assert!(t.get(b).is_some());
        assert_eq!(t.of_request(0x1000), Some((b, 0)));
    }

    #[test]
    fn packing_loses_nothing() {
        let id = TicketId {
            index: u32::MAX - 1,
            generation: 7,
        };
        assert_eq!(TicketId::unpack(id.pack()), id);
    }
}
