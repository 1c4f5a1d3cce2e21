//! Skeleton: replaced by the queue's author.
use super::*;

#[repr(C)]
#[derive(Clone, Copy)]
pub struct State {
    todo: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Entry {
    todo: u64,
}

/// What status and metrics show.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct View {
    /// The limit in force: the configured or found one, less what other gateways hold.
    pub limit: u32,
    pub saturated: bool,
    /// Ghosts included.
    pub in_flight: u32,
    pub ghosts: u32,
    /// By level, as many as there are.
    pub waiting: Vec<u32>,
    pub counts: Counts,
}

/// Upper bounds of the histogram of waits, ns; a last bucket has none.
pub const WAIT_BOUNDS_NS: [u64; 13] = [
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
    500_000_000,
    1_000_000_000,
    2_500_000_000,
    5_000_000_000,
    10_000_000_000,
];

/// Since the pool was made.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counts {
    /// By level and `Reason as usize`.
    pub shed: [[u64; 4]; LEVELS],
    /// By level, of those that were granted a slot: not cumulative.
    pub waits: [[u64; WAIT_BOUNDS_NS.len() + 1]; LEVELS],
    pub waits_sum_ns: [u64; LEVELS],
}

/// The state and its entries, for one event or several.
pub struct Pool<'a> {
    pub state: &'a mut State,
    pub entries: &'a mut [Entry],
}

#[allow(unused_variables)]
impl Pool<'_> {
    /// Makes a pool out of any bits: nothing in flight, nothing waits. Keeps `counts` at 0.
    pub fn format(&mut self, settings: &Settings, now: Nanos) {
        todo!()
    }
    /// Takes changed settings; what is in flight and what waits stays.
    pub fn configure(&mut self, settings: &Settings, now: Nanos, wakes: &mut Wakes) {
        todo!()
    }
    /// What `arrive` would refuse at once, without changing anything.
    pub fn would_shed(&self, a: &Arrival, now: Nanos) -> Option<Reason> {
        todo!()
    }
    pub fn arrive(&mut self, a: &Arrival, now: Nanos, wakes: &mut Wakes) -> Entered {
        todo!()
    }
    /// The end of a request that held a slot.
    pub fn release(&mut self, id: EntryId, c: &Completion, now: Nanos, wakes: &mut Wakes) {
        todo!()
    }
    /// The client of a request left while it waited (or was just granted, or shed): its place, or
    /// its slot, is free at once.
    pub fn leave(&mut self, id: EntryId, now: Nanos, wakes: &mut Wakes) {
        todo!()
    }
    /// A waiter's own clock says that it has waited long enough: removes it with `Timeout`, unless
    /// something else became of it meanwhile, which is then the answer (`Granted` is taken up).
    pub fn give_up(&mut self, id: EntryId, now: Nanos, wakes: &mut Wakes) -> Notice {
        todo!()
    }
    /// Hands a line up to `room` of what became of its waiters; grants are taken up by it.
    pub fn collect(&mut self, line: u16, room: usize, now: Nanos, into: &mut Vec<Collected>) {
        todo!()
    }
    /// What time alone brings about: bounds, grants not taken up, ghosts, the limiter, leases.
    pub fn tick(&mut self, now: Nanos, wakes: &mut Wakes) {
        todo!()
    }
    /// When `tick` should come next, ns from now; `u64::MAX`: never, without another event.
    pub fn next_due(&self, now: Nanos) -> u64 {
        todo!()
    }
    /// A worker died: what it held is free, its waiters are gone.
    pub fn line_died(&mut self, line: u16, now: Nanos, wakes: &mut Wakes) {
        todo!()
    }
    /// Who changed the state died in the middle: everything that follows from the entries' own
    /// fields is made anew; lists are never followed. Whatever the bits, a sound state results.
    pub fn rebuild(&mut self, now: Nanos, wakes: &mut Wakes) {
        todo!()
    }
    /// Of a pool with one limit for all gateways: this gateway's part of it, `until`; then
    /// `fallback`, level 0 first.
    pub fn set_share(
        &mut self,
        share: u32,
        until: Nanos,
        fallback: u32,
        now: Nanos,
        wakes: &mut Wakes,
    ) {
        todo!()
    }
    pub fn view(&self, now: Nanos) -> View {
        todo!()
    }
}
