//! What lies where in the region.
//!
//! ```text
//!  0        +---------------------------------------------------------------+
//!           | Header: who made it, generations, gauges             one page |
//!  rules    +---------------------------------------------------------------+
//!           | RuleEntry × rules: the limits in force and their history      |
//!  lines    +---------------------------------------------------------------+
//!           | per worker (and one for who is none): LineHead,               |
//!           | then RuleCounters × rules/2                                   |
//!  pools    +---------------------------------------------------------------+
//!           | per pool: PoolHead, a word per entry for what is deferred,    |
//!           | then, behind the pool's lock, State and Entry × entries       |
//!  users    +---------------------------------------------------------------+
//!           | UsersHead, then UserSlot × users: who holds how much of P0    |
//!  behaviour+---------------------------------------------------------------+
//!           | what clients and users do: see `behaviour`                    |
//!  buckets  +---------------------------------------------------------------+
//!           | Set × sets: the bucket table, all that is left                |
//!  size     +---------------------------------------------------------------+
//! ```
//!
//! Every section starts at a page. A region whose layout number or size is
//! another's is never read beyond its first three words, so a change of
//! anything here, or of any type that lies here, is a change of [`LAYOUT`].
use super::behaviour;
use super::error::{Error, error};
use super::line::{LineHead, RuleCounters};
use super::memory::{PAGE, Shared};
use super::pool::PoolHead;
use super::rules::RuleEntry;
use super::table::Set;
use super::users::{UserCell, UsersHead};
use crate::domain::pool::{Entry, State};
use std::sync::atomic::AtomicU64;

/// Number of this layout.
pub const LAYOUT: u64 = 4;
/// First word of a region that was finished.
pub const MAGIC: u64 = u64::from_le_bytes(*b"sluice\r\n");
/// Smallest and largest region.
pub const MIN_SIZE_BYTES: u64 = 1 << 20;
pub const MAX_SIZE_BYTES: u64 = 1 << 40;

/// From how many MiB: pools, entries of each, users. What is documented of
/// buckets stays true beside them (a test holds it): two million partly spent
/// ones in 64 MiB, a million in 32 MiB, which lets pools have a tenth to an
/// eighth of such a region.
const ROOM: [(usize, usize, usize, usize); 7] = [
    (128, 16, 16_384, 16_384),
    (64, 6, 16_384, 16_384),
    (32, 4, 8_192, 8_192),
    (8, 4, 2_048, 2_048),
    (4, 4, 1_024, 1_024),
    (2, 2, 1_024, 1_024),
    (1, 1, 1_024, 512),
];

/// What a region has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolRoom {
    pub pools: usize,
    /// In flight and waiting in a pool, with 3 of 128 entries left over for those
    /// that were shed and whose worker has not heard of it yet.
    pub requests: usize,
}

impl PoolRoom {
    fn new(pools: usize, entries: usize) -> PoolRoom {
        PoolRoom {
            pools,
            requests: entries / 128 * 125,
        }
    }

    pub fn for_size(size_bytes: u64) -> PoolRoom {
        let fits = |(from, ..): &&(usize, usize, usize, usize)| size_bytes >= (*from as u64) << 20;
        let (_, pools, entries, _) = *ROOM.iter().find(fits).unwrap_or(&ROOM[ROOM.len() - 1]);
        PoolRoom::new(pools, entries)
    }

    /// The smallest region that has so much; `None`: none has.
    pub fn least_size(self) -> Option<u64> {
        let has = |(_, pools, entries, _): &&(usize, usize, usize, usize)| {
            let room = PoolRoom::new(*pools, *entries);
            room.pools >= self.pools && room.requests >= self.requests
        };
        ROOM.iter()
            .rev()
            .find(has)
            .map(|(from, ..)| (*from as u64) << 20)
    }
}

/// First page of the region. What does not change after creation is written
/// before `magic`.
#[repr(C, align(4096))]
pub struct Header {
    pub magic: AtomicU64,
    pub layout: AtomicU64,
    pub size: AtomicU64,
    /// Inode of `path.lock`, so that a region whose lock file was replaced
    /// (and in which nobody can be seen to live) is not taken for ours.
    pub lock_inode: AtomicU64,
    pub seed: [AtomicU64; 2],
    pub boot: [AtomicU64; 2],
    /// `CLOCK_MONOTONIC` at creation: a region from the future is of another boot.
    pub created_ns: AtomicU64,
    _own_line: [AtomicU64; 7],
    /// The newest number given to a setup, and the newest one a worker started with.
    pub setup_generation: AtomicU64,
    pub started_generation: AtomicU64,
    pub config_generation: AtomicU64,
    pub gateways: AtomicU64,
    /// By `Kind as usize`.
    pub published: [AtomicU64; 8],
    /// By `Cell as usize`.
    pub cells: [AtomicU64; 32],
    _rest: [AtomicU64; 452],
}

const _: () = assert!(size_of::<Header>() == PAGE);

// SAFETY: repr(C), atomics and nothing else.
unsafe impl Shared for Header {}

/// Offsets and counts for a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    pub size: usize,
    /// Entries; the upper half is for names with `~`.
    pub rules: usize,
    pub rules_at: usize,
    /// Workers that can live at a time.
    pub lines: usize,
    pub line_bytes: usize,
    pub lines_at: usize,
    pub pools: usize,
    /// Requests in flight and waiting that a pool has room for.
    pub entries: usize,
    pub pool_bytes: usize,
    pub pools_at: usize,
    pub users: usize,
    pub users_at: usize,
    /// Of intents and of suspects.
    pub behaviour_sets: (usize, usize),
    pub behaviour_at: usize,
    pub sets: usize,
    pub buckets_at: usize,
}

impl Layout {
    pub fn pool_room(&self) -> PoolRoom {
        PoolRoom::new(self.pools, self.entries)
    }

    pub fn for_size(size_bytes: u64) -> Result<Layout, Error> {
        if !(MIN_SIZE_BYTES..=MAX_SIZE_BYTES).contains(&size_bytes) {
            return Err(error!(
                "shm.size is {size_bytes} bytes; it must be from {} to {}",
                size_text(MIN_SIZE_BYTES),
                size_text(MAX_SIZE_BYTES)
            ));
        }
        let size = size_bytes as usize / PAGE * PAGE;
        // 512 rules each with a twin, and as many names again that are gone
        // from the configuration; where memory is very short, 255 in all.
        let rules = if size >= 8 << 20 { 2048 } else { 512 };
        let lines = (size / (256 << 10)).clamp(16, 256);
        let page_up = |n: usize| n.next_multiple_of(PAGE);
        let rules_at = size_of::<Header>();
        let lines_at = page_up(rules_at + rules * size_of::<RuleEntry>());
        let line_bytes = (size_of::<LineHead>() + rules / 2 * size_of::<RuleCounters>())
            .next_multiple_of(align_of::<LineHead>());
        // One more: that of processes that are no workers.
        let pools_at = page_up(lines_at + (lines + 1) * line_bytes);
        let (_, pools, entries, users) = *ROOM
            .iter()
            .find(|(from, ..)| size >= from << 20)
            .unwrap_or(&ROOM[ROOM.len() - 1]);
        let pool_bytes = Layout::pool_entries_at(entries) + page_up(entries * size_of::<Entry>());
        let users_at = pools_at + pools * pool_bytes;
        let users_bytes = size_of::<UsersHead>() + users * size_of::<UserCell>();
        let behaviour_at = page_up(users_at + users_bytes);
        let behaviour_sets = behaviour::sets_for(size);
        let buckets_at = page_up(behaviour_at + behaviour::bytes_of(behaviour_sets));
        let sets = (size - buckets_at) / size_of::<Set>();
        Ok(Layout {
            size,
            rules,
            rules_at,
            lines,
            line_bytes,
            lines_at,
            pools,
            entries,
            pool_bytes,
            pools_at,
            users,
            users_at,
            behaviour_sets,
            behaviour_at,
            sets,
            buckets_at,
        })
    }

    /// Offset of a pool's state from its head, which the words for what is
    /// deferred follow.
    pub const fn pool_state_at(entries: usize) -> usize {
        (size_of::<PoolHead>() + entries * size_of::<AtomicU64>()).next_multiple_of(PAGE)
    }

    /// Offset of a pool's entries from its head.
    pub const fn pool_entries_at(entries: usize) -> usize {
        (Layout::pool_state_at(entries) + size_of::<State>()).next_multiple_of(PAGE)
    }
}

/// `33554432` as `32.0 MiB`.
pub fn size_text(bytes: u64) -> String {
    let (mut size, mut unit) = (bytes as f64, "bytes");
    for next in ["KiB", "MiB", "GiB", "TiB"] {
        if size < 1024.0 {
            break;
        }
        (size, unit) = (size / 1024.0, next);
    }
    if unit == "bytes" {
        format!("{bytes} bytes")
    } else {
        format!("{size:.1} {unit}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::pool::MAX_ENTRIES;
    use crate::shm::table::WAYS;

    #[test]
    fn sections_do_not_overlap() {
        for size in [
            MIN_SIZE_BYTES,
            2 << 20,
            (8 << 20) - 1,
            8 << 20,
            32 << 20,
            64 << 20,
            1 << 32,
        ] {
            let l = Layout::for_size(size).unwrap();
            assert!(l.rules_at + l.rules * size_of::<RuleEntry>() <= l.lines_at);
            assert!(l.lines_at + (l.lines + 1) * l.line_bytes <= l.pools_at);
            assert!(l.pools_at + l.pools * l.pool_bytes <= l.users_at);
            let users = size_of::<UsersHead>() + l.users * size_of::<UserCell>();
            assert!(l.users_at + users <= l.behaviour_at);
            assert!(l.behaviour_at + behaviour::bytes_of(l.behaviour_sets) <= l.buckets_at);
            assert!(l.behaviour_sets.0 > 0 && l.behaviour_sets.1 > 0);
            assert!(l.buckets_at + l.sets * size_of::<Set>() <= l.size);
            assert!(l.size as u64 <= size);
            assert!(l.pools > 0 && l.entries >= 1024 && l.entries <= MAX_ENTRIES);
            // The smallest has room for one pool, whose queues take a third.
            let least = if size < 2 << 20 { 2 } else { 4 };
            assert!(
                l.sets * size_of::<Set>() * 10 > l.size * least,
                "{size}: most is for buckets"
            );
        }
        // Sets of 16 push out 1 % when 0.69 of the slots are wanted.
        for (mib, buckets) in [(64, 2_000_000), (32, 1_000_000)] {
            let l = Layout::for_size(mib << 20).unwrap();
            assert!(buckets as f64 / (l.sets * WAYS) as f64 <= 0.69, "{mib} MiB");
        }
        assert!(Layout::for_size(MIN_SIZE_BYTES - 1).is_err());
        assert!(Layout::for_size(u64::MAX).is_err());
    }

    #[test]
    fn sizes_read_well() {
        assert_eq!(size_text(32 << 20), "32.0 MiB");
        assert_eq!(size_text(999), "999 bytes");
    }
}
