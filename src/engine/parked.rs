//! Requests that wait for a pool's lock, not for a slot: whoever holds it is off
//! its processor, which the kernel does to anybody on a machine with more to run
//! than processors. They are in no queue yet. This worker tries the lock once a
//! millisecond for all of them, and lets them ask again once it is to be had.
use super::pools;
use super::ticket::{TicketId, Tickets};
use super::worker::Worker;
use crate::shm::PoolId;
use std::time::Duration;

/// A holder that has not come back after this is stopped: nobody waits longer.
pub const MOST_NS: u64 = 1_000_000_000;
/// Between two tries.
pub const AGAIN: Duration = Duration::from_millis(1);

/// In the order in which they came.
#[derive(Default)]
pub struct Parked(Vec<(PoolId, TicketId)>);

/// False: `most` wait for that lock already.
pub fn park(w: &mut Worker, pool: PoolId, ticket: TicketId, most: usize) -> bool {
    let of_pool = |parked: &Parked| parked.0.iter().filter(|it| it.0 == pool).count();
    if of_pool(&w.parked) >= most {
        forget_gone(w);
        if of_pool(&w.parked) >= most {
            return false;
        }
    }
    w.parked.0.push((pool, ticket));
    // The thread that wakes this worker has to be there as long.
    w.shared.queue(true);
    w.shared.wake_in(AGAIN);
    true
}

/// Tries the locks. Each request that may ask again goes to `each`; at most `room`, how many.
pub fn try_again(
    w: &mut Worker,
    room: usize,
    mut each: impl FnMut(&mut Worker, TicketId),
) -> usize {
    if w.parked.0.is_empty() {
        return 0;
    }
    forget_gone(w);
    let mut n = 0;
    let mut tried: Option<(PoolId, bool)> = None;
    for (pool, ticket) in std::mem::take(&mut w.parked.0) {
        let free = match tried {
            Some((last, free)) if last == pool => free,
            _ => pools::touch(w, pool, |_, _, _| ()).is_some(),
        };
        tried = Some((pool, free));
        if free && n < room {
            n += 1;
            w.shared.queue(false);
            each(w, ticket);
        } else {
            w.parked.0.push((pool, ticket));
        }
    }
    if !w.parked.0.is_empty() {
        w.shared.wake_in(AGAIN);
    }
    n
}

/// Whoever was refused meanwhile, or has left.
fn forget_gone(w: &mut Worker) {
    let Worker {
        parked,
        tickets,
        shared,
        ..
    } = w;
    parked.0.retain(|&(_, ticket)| {
        let waits = waits(tickets, ticket);
        if !waits {
            shared.queue(false);
        }
        waits
    });
}

fn waits(tickets: &mut Tickets, ticket: TicketId) -> bool {
    tickets
        .get(ticket)
        .is_some_and(|t| t.pending.is_some() && t.holds.slot.is_none())
}
