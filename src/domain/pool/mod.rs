//! A pool: the requests that a backend works on at once, and those that wait
//! for it.
//!
//! A state machine: every event is a function of the form `(&mut state, event,
//! now) → actions`, in constant time whatever the number that waits. The state
//! is plain data with index links, so it may lie on the heap (the simulator) or
//! in memory that processes share under a lock (the gateway); time comes in as
//! an argument and never runs back within one pool.
//!
//! | module | question |
//! |---|---|
//! | `state`, `counts` | what there is, and what is shown of it |
//! | `events` | what can happen |
//! | `entry`, `slots` | one request's place, the lists of places, its way through them |
//! | `class`, `fair` | the waiters of one level, and whose turn it is |
//! | `dispatch` | who gets the next slot |
//! | `spread` | that slots do not come free all at once |
//! | `shed` | who may not wait, and who has to stop |
//! | `wheel` | what time alone ends |
//! | `cluster` | what other gateways are told of it |
//! | `measure` | how long slots are held, how many asked |
//! | `rebuild` | a sound state out of any bits |
//! | [`limiter`], [`routes`] | how many slots; what each kind of request takes |
use super::units::Nanos;

pub mod limiter;
pub mod routes;

/// As many levels as a configuration may have.
pub const LEVELS: usize = 16;
/// Sub-queues of a class: cohorts of clients.
pub const COHORTS: usize = 256;
/// Worker lines that can hold something.
pub const LINES: usize = 256;
/// Routes whose usual time is known; 0 is the common one.
pub const ROUTES: usize = 256;
/// No index.
pub const NONE: u32 = u32::MAX;

/// What the operator configured.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// 1: `limit` is found by measuring, between `min` and `max`.
    pub adaptive: u32,
    /// Requests in flight, where not adaptive.
    pub limit: u32,
    pub min: u32,
    pub max: u32,
    pub start: u32,
    /// Requests that may wait.
    pub capacity: u32,
    /// How many levels there are, 2 to 16.
    pub levels: u32,
    /// 1: the limit is one for all gateways, see `Pool::set_share`.
    pub cluster: u32,
    /// By level; that of level 0 is not used, it goes before all.
    pub weights: [u32; LEVELS],
    pub max_wait_ns: u64,
    /// The backend's longest answer.
    pub timeout_ns: u64,
}

impl Settings {
    /// The highest that the limit can be.
    pub fn most(&self) -> u32 {
        if self.adaptive == 1 {
            self.max.max(self.min)
        } else {
            self.limit
        }
    }
}

/// Names an entry: one request's place in the pool, from its arrival to the end
/// of its slot. A late call with an old generation changes nothing.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EntryId {
    pub index: u32,
    pub generation: u32,
}

/// A request that asks for a slot.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    pub level: u8,
    /// Sub-queue within the level: the hash of the client's key.
    pub cohort: u8,
    pub route: u8,
    /// Nobody would see its client leave: it waits 1 s at most and shares a
    /// quarter of `capacity` with its like.
    pub blind: bool,
    /// Counted, never refused and never made to wait.
    pub exempt: bool,
    /// The worker's line, and what it knows the request by.
    pub line: u16,
    pub ticket: u64,
    /// When the request first asked: earlier than now after a withdrawn grant.
    pub since: Nanos,
}

/// Why a request was shed.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The queue is full and nobody less important waits in it.
    Full = 0,
    /// It had to make room for somebody more important.
    Evicted = 1,
    /// It waited as long as its class may.
    Timeout = 2,
    /// It would have waited for longer than that.
    Hopeless = 3,
}

/// What comes of an arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entered {
    /// It has a slot.
    Admitted(EntryId),
    /// It waits; its worker hears of the end by `Pool::collect`.
    Queued(EntryId),
    Shed(Reason),
}

/// What became of a waiting request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// It has a slot, as of this call.
    Granted,
    Shed(Reason),
    /// Its grant was not taken up in time: it may ask again, with its `since`.
    Withdrawn,
}

/// What `Pool::collect` hands to a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Collected {
    pub entry: EntryId,
    pub ticket: u64,
    pub notice: Notice,
}

/// What a finished request says of the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feedback {
    /// Nothing: refused elsewhere, aborted, or never sent to the backend.
    None,
    /// The backend's response time.
    Response(Nanos),
    /// No connection, a timeout, or 502 to 504 of the backend.
    Error,
}

/// The end of a request that held a slot.
#[derive(Clone, Copy, Debug)]
pub struct Completion {
    pub feedback: Feedback,
    /// The client left while the backend worked, and the backend works on: the
    /// slot stays taken for the route's usual time less the time in flight.
    pub abandoned: bool,
}

/// Whom to tell, collected over one or more events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wakes {
    /// Lines that have something to collect, a bit each.
    pub lines: [u64; LINES / 64],
    /// The pool has become saturated (true) or has recovered.
    pub saturation: Option<bool>,
}

impl Wakes {
    pub fn add(&mut self, line: u16) {
        if let Some(word) = self.lines.get_mut(usize::from(line) / 64) {
            *word |= 1 << (line % 64);
        }
    }

    pub fn has(&self, line: u16) -> bool {
        let word = self.lines.get(usize::from(line) / 64);
        word.is_some_and(|word| word >> (line % 64) & 1 == 1)
    }
}

mod class;
mod cluster;
mod counts;
mod dispatch;
mod entry;
mod events;
mod fair;
mod measure;
mod rebuild;
mod shed;
mod slots;
mod spread;
mod state;
mod wheel;

#[cfg(test)]
mod tests;

pub use cluster::{Cluster, Report};
pub use counts::{Counts, View, WAIT_BOUNDS_NS};
pub use entry::Entry;
pub use state::{Heap, Pool, State};
