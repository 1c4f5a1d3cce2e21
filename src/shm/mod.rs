//! The shared-memory region of a gateway and what lives in it: buckets, the
//! limits in force, counters, and, in files beside it, lists and bans.
//!
//! `shm.path` *is* the gateway: made in the master's init, mapped by every
//! worker, found again by a reloaded, restarted or upgraded nginx.
//!
//! | module | what |
//! |---|---|
//! | [`region`] | [`Region`], the one type that the rest of the crate uses |
//! | `life` | the region's file: made, attached, replaced, refused |
//! | `lock` | who lives: record locks of a byte each |
//! | `file` | files made and opened so that nobody can slip us one |
//! | `memory`, `layout` | the mapping, and what lies where in it |
//! | `rules` | the limits in force and their history |
//! | `table`, `bucket` | the bucket table, and deciding by it |
//! | [`line`] | counters of each worker |
//! | `pool` | queues and limiters of pools, behind a lock each; waking workers |
//! | `users` | how much of level 0 a user holds |
//! | `published`, [`lists`] | immutable files; address and user lists among them |
//! | [`behaviour`] | who means to buy, and who is under suspicion |
//! | `bans` | bans of the local store |
//!
//! The request path (hash, peek, spend, undo, list and ban lookups, counting)
//! takes no lock, allocates nothing and does no I/O. A process that is killed
//! at any instruction leaves a state that all others can go on from: words are
//! swapped whole, changes begun are finished by whoever finds them, and what a
//! process holds is held by a record lock, which the kernel takes back.
//!
//! Pools are the exception: an event in one is under a lock that is held for
//! a microsecond, never waited for more than 2 ms, and whose next owner mends
//! what a dead one left.
//!
//! This is the only place for atomics and for most of the crate's unsafe code.
mod bans;
pub mod behaviour;
mod bucket;
pub mod error;
mod file;
mod layout;
mod life;
pub mod line;
pub mod lists;
mod lock;
mod memory;
mod pool;
mod published;
pub mod region;
mod rules;
mod table;
mod users;

pub use crate::domain::bucket::word::{Limit, Outcome};
pub use error::Error;
pub(crate) use file::random;
pub use layout::{LAYOUT, MAX_SIZE_BYTES, MIN_SIZE_BYTES, PoolRoom};
pub use life::{Attach, Case};
pub use line::{
    Histogram, LATENCY_BOUNDS_NS, Line, RuleTotals, RuleVerdict, StoreResult, Totals, Verdict,
};
pub use pool::{Deferred, PoolId};
pub use published::{Kind, Mapped};
pub use region::{Cell, Region, Repairs, Touched, WorkerInfo};
pub use rules::RuleId;
pub use table::KeyHash;
pub use users::UserSlot;
