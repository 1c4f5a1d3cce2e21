//! This worker's requests that wait for a pool: in its queue, for a slot; or in
//! no queue yet, for its lock. Whoever holds that is off its processor, which the
//! kernel does to anybody on a machine with more to run than processors. The
//! worker tries the lock once a millisecond for all of them, and when it is to be
//! had lets them ask again, the most important first.
use super::pools;
use super::thread::Shared;
use super::ticket::{Parked, TicketId, Tickets};
use super::worker::Worker;
use crate::domain::pool::{Collected, LEVELS, Notice, Reason};
use crate::domain::units::Nanos;
use crate::shm::PoolId;
use std::collections::VecDeque;
use std::time::Duration;

/// A holder that has not come back after this is stopped: nobody waits longer.
pub const MOST_NS: u64 = 1_000_000_000;
/// Between two tries.
const AGAIN: Duration = Duration::from_millis(1);

#[derive(Default)]
pub struct Waiters {
    pools: Vec<OfPool>,
    /// Refused while they waited for a lock, and not told yet.
    refused: Vec<TicketId>,
    collected: Vec<Collected>,
}

struct OfPool {
    pool: PoolId,
    /// How many wait in its queue; and for its lock, by level.
    queued: usize,
    parked: [usize; LEVELS],
    /// For the lock, by level, in the order in which they came. Some have left.
    lists: [VecDeque<TicketId>; LEVELS],
    /// Before this its lock is not tried again.
    again: Nanos,
}

impl Waiters {
    fn of(&mut self, pool: PoolId) -> &mut OfPool {
        let at = self.pools.iter().position(|it| it.pool == pool);
        let at = at.unwrap_or_else(|| {
            self.pools.push(OfPool {
                pool,
                queued: 0,
                parked: [0; LEVELS],
                lists: Default::default(),
                again: Nanos(0),
            });
            self.pools.len() - 1
        });
        &mut self.pools[at]
    }

    /// Those of another worker of this process, which this one takes over from.
    pub fn take_over(&mut self, before: &mut Waiters, from: &Shared, to: &Shared) {
        *self = std::mem::take(before);
        for _ in 0..self.pools.iter().map(OfPool::waiting).sum() {
            from.queue(false);
            to.queue(true);
        }
        // Whatever was about to be told.
        to.wake();
    }

    #[cfg(test)]
    pub fn listed(&mut self, pool: PoolId) -> usize {
        self.of(pool).lists.iter().map(VecDeque::len).sum()
    }

    /// Is there a place for one of that level more to wait for the lock, be it another's?
    pub fn has_room(&self, pool: PoolId, level: u8, most: usize) -> bool {
        let of = self.pools.iter().find(|it| it.pool == pool);
        of.is_none_or(|it| {
            let below = it.parked.iter().skip(usize::from(level) + 1);
            it.for_lock() < most || below.sum::<usize>() > 0
        })
    }
}

impl OfPool {
    fn for_lock(&self) -> usize {
        self.parked.iter().sum()
    }

    fn waiting(&self) -> usize {
        self.queued + self.for_lock()
    }

    /// Those that have left are not more than those that wait.
    fn forget_gone(&mut self, tickets: &mut Tickets) {
        const FEW: usize = 64;
        let listed: usize = self.lists.iter().map(VecDeque::len).sum();
        if listed > 2 * self.for_lock() + FEW {
            for list in &mut self.lists {
                list.retain(|&ticket| is_parked(tickets, ticket));
            }
        }
    }
}

fn is_parked(tickets: &mut Tickets, ticket: TicketId) -> bool {
    tickets
        .get(ticket)
        .is_some_and(|t| t.holds.parked.is_some())
}

/// One more waits in that pool's queue, or one less.
pub fn queue(w: &mut Worker, pool: PoolId, waits: bool) {
    let n = &mut w.waiters.of(pool).queued;
    *n = if waits { *n + 1 } else { n.saturating_sub(1) };
    w.shared.queue(waits);
}

/// Lets a request wait for the lock, if need be in the place of one of a lower level. False:
/// `most` do already.
pub fn park(w: &mut Worker, pool: PoolId, ticket: TicketId, level: u8, most: usize) -> bool {
    if w.waiters.of(pool).for_lock() >= most && !evict(w, pool, level) {
        return false;
    }
    let level = usize::from(level) % LEVELS;
    let of = w.waiters.of(pool);
    of.forget_gone(&mut w.tickets);
    of.parked[level] += 1;
    of.lists[level].push_back(ticket);
    if let Some(t) = w.tickets.get(ticket) {
        t.holds.parked = Some(Parked { pool, level });
    }
    // The thread that wakes this worker has to be there as long.
    w.shared.queue(true);
    w.shared.wake_in(AGAIN);
    true
}

/// The newest of the lowest level below that one. False: there is none.
fn evict(w: &mut Worker, pool: PoolId, level: u8) -> bool {
    for below in (usize::from(level) + 1..LEVELS).rev() {
        while let Some(ticket) = w.waiters.of(pool).lists[below].pop_back() {
            if !unpark(w, ticket) {
                continue;
            }
            w.region.count_shed(pool, below as u8, Reason::Evicted);
            tell(w, ticket, Notice::Shed(Reason::Evicted));
            w.waiters.refused.push(ticket);
            w.shared.wake();
            return true;
        }
    }
    false
}

/// It waits for the lock no longer. False: it has not.
pub fn unpark(w: &mut Worker, ticket: TicketId) -> bool {
    let parked = w.tickets.get(ticket).and_then(|t| t.holds.parked.take());
    parked.is_some_and(|it| {
        left(w, it);
        true
    })
}

/// One that waited for the lock is gone.
pub fn left(w: &mut Worker, it: Parked) {
    let n = &mut w.waiters.of(it.pool).parked[it.level];
    *n = n.saturating_sub(1);
    w.shared.queue(false);
}

fn tell(w: &mut Worker, ticket: TicketId, notice: Notice) {
    if let Some(p) = w.tickets.get(ticket).and_then(|t| t.pending.as_mut()) {
        p.notice = Some(notice);
    }
}

/// Files what has become of those that wait; each that may go on goes to `each`, at most `room`.
/// How many.
pub fn hear(w: &mut Worker, room: usize, each: &mut impl FnMut(u32)) -> usize {
    if w.waiters.pools.is_empty() && w.waiters.refused.is_empty() {
        return 0;
    }
    let mut n = w.waiters.refused.len().min(room);
    (w.waiters.refused.drain(..n)).for_each(|ticket| each(ticket.index));

    let (now, mut missed) = (w.region.now(), false);
    for i in 0..w.waiters.pools.len() {
        if n == room {
            // Called again, at once.
            return n;
        }
        let of = &w.waiters.pools[i];
        if of.waiting() == 0 {
            continue;
        }
        if of.again > now {
            missed = true;
        } else if collect(w, i, room, &mut n, each) {
            wake_parked(w, i, room, &mut n, each);
        } else {
            missed = true;
            w.waiters.pools[i].again = Nanos(now.0 + AGAIN.as_nanos() as u64);
        }
    }
    w.waiters.pools.retain(|of| of.waiting() > 0);
    if missed {
        // Not at once: the lock's holder may need this processor.
        w.shared.wake_in(AGAIN);
    }
    n
}

/// What the pool has done for those in its queue. False: its lock is not to be had.
fn collect(
    w: &mut Worker,
    i: usize,
    room: usize,
    n: &mut usize,
    each: &mut impl FnMut(u32),
) -> bool {
    let (pool, line) = (w.waiters.pools[i].pool, w.region.line_index());
    let mut collected = std::mem::take(&mut w.waiters.collected);
    let heard = pools::touch(w, pool, |p, now, _| {
        p.collect(line, room - *n, now, &mut collected)
    });
    for c in collected.drain(..) {
        let ticket = TicketId::unpack(c.ticket);
        pools::heard(w, ticket, c.notice);
        tell(w, ticket, c.notice);
        each(ticket.index);
        *n += 1;
    }
    w.waiters.collected = collected;
    // Whoever waits for the lock of a pool that is gone hears so when it asks.
    heard.is_some() || !w.region.has_pool(pool)
}

/// The lock is free.
fn wake_parked(w: &mut Worker, i: usize, room: usize, n: &mut usize, each: &mut impl FnMut(u32)) {
    for level in 0..LEVELS {
        while *n < room
            && let Some(ticket) = w.waiters.pools[i].lists[level].pop_front()
        {
            if unpark(w, ticket) {
                // As one whose slot was withdrawn: it asks again.
                tell(w, ticket, Notice::Withdrawn);
                each(ticket.index);
                *n += 1;
            }
        }
    }
}
