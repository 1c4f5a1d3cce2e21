//! The region.
#![allow(clippy::unused_self)]
use super::{Error, Limit, Line, Outcome, Totals};
use crate::domain::config;
use crate::domain::entry::Subject;
use crate::domain::units::Nanos;
use std::net::IpAddr;
use std::path::Path;

/// A rule's entry in the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RuleId(u16);

impl RuleId {
    /// Stands for the block lists in [`Region::refusal_log`].
    pub const BLOCKED: RuleId = RuleId(0);
}

/// Keyed hash of a rule and a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeyHash {
    pub(super) tag: u64,
    pub(super) place: u64,
}

/// What [`Region::open`] found and did; `Display` is the line for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attach {
    Created,
    Attached,
    /// To come: the rest of the cases.
    Other(String),
}

impl Attach {
    /// Worth a line at `warn`, and a place in `status`.
    pub fn is_warning(&self) -> bool {
        todo!()
    }
}

impl std::fmt::Display for Attach {
    fn fmt(&self, _f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        todo!()
    }
}

/// What is published as immutable files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Config,
    Files,
    Allow,
    Block,
    Bans,
}

/// Gauges that any worker may set and status and metrics read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cell {
    StoreUp,
    ConfigErrors,
    AllowEntries,
    AllowRejected,
    BlockEntries,
    BlockRejected,
    BansEntries,
    BansRejected,
    Spare0,
    Spare1,
    Spare2,
    Spare3,
}

/// A published file, mapped.
pub struct Mapped {
    _x: (),
}

impl std::ops::Deref for Mapped {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        todo!()
    }
}

impl Mapped {
    /// The same bytes on the heap, for tests and for what was never published.
    pub fn from_bytes(_bytes: &[u8]) -> Mapped {
        todo!()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerInfo {
    pub pid: u32,
    pub setup_generation: u64,
    pub config_generation: u64,
}

/// One per process.
pub struct Region {
    _x: (),
}

impl Region {
    /// In the master's init: creates, attaches or replaces.
    pub fn open(_cfg: &config::Shm) -> Result<(Region, Attach), Error> {
        todo!()
    }
    /// A region on the heap, for tests and benches of what stands above it.
    pub fn on_heap(_size_bytes: u64) -> Region {
        todo!()
    }
    /// On a reload in a live master.
    pub fn ensure(&self, _cfg: &config::Shm) -> Result<Attach, Error> {
        todo!()
    }
    /// In init_worker. Again in the same process: only the generation changes.
    pub fn attach_worker(&self, _setup_generation: u64) -> Result<(), Error> {
        todo!()
    }
    pub fn detach(&self) {
        todo!()
    }
    /// This worker's counters. Only the thread that runs nginx's loop may count.
    pub fn my(&self) -> &Line {
        todo!()
    }
    pub fn path(&self) -> &Path {
        todo!()
    }
    pub fn size_bytes(&self) -> u64 {
        todo!()
    }
    /// Whether this process now holds the lock of the one worker that synchronises.
    pub fn try_lock_sync(&self) -> bool {
        todo!()
    }
    pub fn unlock_sync(&self) {
        todo!()
    }
    /// `CLOCK_MONOTONIC`.
    pub fn now(&self) -> Nanos {
        todo!()
    }
    pub fn hash(&self, _rule: RuleId, _key: &[u8]) -> KeyHash {
        todo!()
    }
    pub fn new_setup_generation(&self) -> u64 {
        todo!()
    }
    pub fn setup_generation(&self) -> u64 {
        todo!()
    }
    pub fn next_config_generation(&self) -> u64 {
        todo!()
    }
    pub fn config_generation(&self) -> u64 {
        todo!()
    }
    /// The generation that this worker has in force.
    pub fn my_config_generation(&self, _generation: u64) {
        todo!()
    }
    /// The last number of gateways seen; 0: never.
    pub fn gateways(&self) -> u64 {
        todo!()
    }
    pub fn set_gateways(&self, _n: u64) {
        todo!()
    }
    pub fn store_up(&self) -> bool {
        todo!()
    }
    pub fn set_store_up(&self, _up: bool) {
        todo!()
    }
    pub fn cell(&self, _cell: Cell) -> u64 {
        todo!()
    }
    pub fn set_cell(&self, _cell: Cell, _value: u64) {
        todo!()
    }
    /// Finds or makes the entry under that name. The limit is put in force when
    /// it differs and `generation` (a setup's) is the newest that has started.
    pub fn take_rule(&self, name: &str, limit: Limit, generation: u64) -> Result<RuleId, Error> {
        self.take_rule_as_of(name, limit, generation, 0)
    }
    /// The same; a limit that comes from an older configuration than the one
    /// that set the entry last (by [`Region::config_generation`]; 0: unknown)
    /// does not change it either.
    pub fn take_rule_as_of(
        &self,
        _name: &str,
        _limit: Limit,
        _generation: u64,
        _config_generation: u64,
    ) -> Result<RuleId, Error> {
        todo!()
    }
    /// The limit in force.
    pub fn limit(&self, _rule: RuleId) -> Limit {
        todo!()
    }
    /// What a request would get; nothing is spent.
    pub fn peek(&self, _rule: RuleId, _key: KeyHash, _cost: u32, _now: Nanos) -> Outcome {
        todo!()
    }
    pub fn spend(&self, _rule: RuleId, _key: KeyHash, _cost: u32, _now: Nanos) -> Outcome {
        todo!()
    }
    /// Gives back what `spend` took.
    pub fn undo(&self, _rule: RuleId, _key: KeyHash, _cost: u32, _now: Nanos) {
        todo!()
    }
    /// (capacity, used)
    pub fn bucket_slots(&self) -> (u64, u64) {
        todo!()
    }
    pub fn totals(&self) -> Totals {
        todo!()
    }
    /// Counts one refusal. `Some(refusals since the last)` at most once a second
    /// per rule over all workers.
    pub fn refusal_log(&self, _rule: RuleId, _now: Nanos) -> Option<u64> {
        todo!()
    }
    /// The living.
    pub fn workers(&self) -> Vec<WorkerInfo> {
        todo!()
    }
    pub fn publish(&self, _kind: Kind, _bytes: &[u8]) -> Result<u64, Error> {
        todo!()
    }
    /// The generation in force; 0: none yet.
    pub fn published(&self, _kind: Kind) -> u64 {
        todo!()
    }
    pub fn open_published(&self, _kind: Kind, _generation: u64) -> Result<Mapped, Error> {
        todo!()
    }
    pub fn ban(&self, _subject: &Subject, _until_unix: u64) -> Result<(), Error> {
        todo!()
    }
    /// Whether there was such a ban.
    pub fn unban(&self, _subject: &Subject) -> Result<bool, Error> {
        todo!()
    }
    pub fn banned_address(&self, _ip: IpAddr, _now_unix: u64) -> bool {
        todo!()
    }
    pub fn banned_user(&self, _user: &[u8], _now_unix: u64) -> bool {
        todo!()
    }
    pub fn bans_count(&self) -> u64 {
        todo!()
    }
}
