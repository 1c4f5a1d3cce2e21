//! What clients and users do: who means to buy, and who is under suspicion.
//!
//! ```text
//!  behaviour  +----------------------------------------------------------+
//!             | Intents × …: sets of 8: hash of a user, until when       |
//!             +----------------------------------------------------------+
//!             | Suspects × …: sets of 8 records of a client each         |
//!             +----------------------------------------------------------+
//!
//!  half  127     96 95      64 63    48 47    32 31          16 15      0
//!       +----------+----------+--------+--------+--------------+---------+
//!       | tag      | period   | came   | ended  | client errors| aborted |
//!       +----------+----------+--------+--------+--------------+---------+
//!  above 127     96 95      64 63          32 31                        0
//!       +----------+----------+--------------+---------------------------+
//!       | tag      | requests | client errors | aborts      (1/10 s, + 1)|
//!       +----------+----------+--------------+---------------------------+
//! ```
//!
//! Every word is swapped whole and says by its tag whose it is, so a record
//! changes hands with one swap of its key: what the one before has counted, or
//! counts a moment too late, is nobody's. A process that is killed at any
//! instruction leaves nothing half done. Counts that are lost when two workers
//! meet a client for the first time at one instant are lost in its favour.
//!
//! Fixed size. Of a set without room the client that did least within the
//! window goes first, so random addresses push out each other; one under
//! suspicion never goes before its suspicion ends: a newcomer that finds
//! nothing but such is not watched.
use super::memory::Shared;
use crate::domain::priority::suspicion::{Bounds, Counts, KINDS, Standing};
use crate::domain::units::Nanos;
use portable_atomic::AtomicU128;
use std::sync::atomic::{AtomicU64, Ordering::*};

/// Records of a set.
const WAYS: usize = 8;
/// The section is 1/32 of the region, and a quarter of it is for intents.
const PART: usize = 32;
const MAX_BYTES: usize = 64 << 20;
/// What standings are kept in.
const TENTH_NS: u64 = 100_000_000;
/// A swap that fails so often has been overtaken so often that its own part
/// does not matter.
const TRIES: usize = 16;

#[repr(C, align(128))]
pub struct Intents([AtomicU128; WAYS]);

#[repr(C, align(64))]
struct Record {
    /// Hash of the client's key; 0: free.
    key: AtomicU64,
    /// When a request of it came last.
    seen_ns: AtomicU64,
    /// By the period's lowest bit.
    halves: [AtomicU128; 2],
    above: AtomicU128,
}

#[repr(C)]
pub struct Suspects([Record; WAYS]);

const _: () = assert!(size_of::<Intents>() == 128 && size_of::<Suspects>() == 512);

// SAFETY: repr(C), atomics and nothing else.
unsafe impl Shared for Intents {}
// SAFETY: repr(C), atomics and nothing else.
unsafe impl Shared for Suspects {}

/// How many sets of each a region of this size has.
pub fn sets_for(region_bytes: usize) -> (usize, usize) {
    let bytes = (region_bytes / PART).min(MAX_BYTES);
    let intents = bytes / 4 / size_of::<Intents>();
    let suspects = (bytes - intents * size_of::<Intents>()) / size_of::<Suspects>();
    (intents, suspects)
}

/// What sets of that number take.
pub fn bytes_of((intents, suspects): (usize, usize)) -> usize {
    intents * size_of::<Intents>() + suspects * size_of::<Suspects>()
}

/// Both tables. Hashes are those of [`Region::identity`](super::Region::identity).
#[derive(Clone, Copy)]
pub struct Behaviour<'a> {
    pub(super) intents: &'a [Intents],
    pub(super) suspects: &'a [Suspects],
}

/// The set that a hash belongs to: by its high bits, as its low ones are its tag.
fn set_of<T>(sets: &[T], hash: u64) -> &T {
    &sets[((u128::from(hash) * sets.len() as u128) >> 64) as usize]
}

/// 0 is a free place.
fn key_of(hash: u64) -> u64 {
    hash.max(1)
}

impl Behaviour<'_> {
    /// A user has shown intent, which lasts until then. A longer one is not cut.
    pub fn note_event(&self, user: u64, until: Nanos) {
        let key = key_of(user);
        let set = set_of(self.intents, user);
        let new = u128::from(key) << 64 | u128::from(until.0);
        for _ in 0..TRIES {
            // Relaxed all through: each word stands for itself.
            let seen = set.0.each_ref().map(|word| word.load(Relaxed));
            let own = seen.iter().position(|word| (word >> 64) as u64 == key);
            if own.is_some_and(|at| seen[at] as u64 >= until.0) {
                return;
            }
            // Else the one that ends first: free and ended ones come before all.
            let at = own
                .or_else(|| (0..WAYS).min_by_key(|at| seen[*at] as u64))
                .unwrap_or(0);
            if set.0[at]
                .compare_exchange(seen[at], new, Relaxed, Relaxed)
                .is_ok()
            {
                return;
            }
        }
    }

    /// Whether an event of the user still counts.
    pub fn intent(&self, user: u64, now: Nanos) -> bool {
        let key = key_of(user);
        let set = set_of(self.intents, user);
        set.0.iter().any(|word| {
            let word = word.load(Relaxed);
            (word >> 64) as u64 == key && word as u64 > now.0
        })
    }

    /// Counts a request of a client; by how many levels it is lowered.
    pub fn note_request(&self, client: u64, now: Nanos, bounds: &Bounds) -> u8 {
        let set = set_of(self.suspects, client);
        let Some(record) = set.find(client).or_else(|| set.place(client, now, bounds)) else {
            return 0;
        };
        // Relaxed: only who looks for a place reads it, and a late value only
        // makes a record a little older.
        record.seen_ns.store(now.0, Relaxed);
        let came = Counts {
            requests: 1,
            ..Counts::default()
        };
        let counts = record.count(client, came, now, bounds);
        let readings = bounds.read(counts);
        let judged = record.change(client, now, |standing| standing.judged(readings, now));
        judged.levels()
    }

    /// Counts the end of a request that was counted when it came.
    /// `client_error`: its status is 400 to 498, and not Sluice's own; `aborted`:
    /// the client left before.
    pub fn note_end(
        &self,
        client: u64,
        client_error: bool,
        aborted: bool,
        now: Nanos,
        bounds: &Bounds,
    ) {
        let ended = Counts {
            requests: 0,
            ended: 1,
            client_errors: client_error.into(),
            aborts: aborted.into(),
        };
        // One that is not there any more had to make room.
        if let Some(record) = set_of(self.suspects, client).find(client) {
            record.count(client, ended, now, bounds);
        }
    }

    /// (capacity, used) of the clients that are watched.
    pub fn watched(&self) -> (u64, u64) {
        let records = self.suspects.iter().flat_map(|set| &set.0);
        let used = records.filter(|r| r.key.load(Relaxed) != 0).count();
        ((self.suspects.len() * WAYS) as u64, used as u64)
    }
}

impl Suspects {
    fn find(&self, client: u64) -> Option<&Record> {
        let key = key_of(client);
        // SeqCst: with `place`.
        self.0.iter().find(|r| r.key.load(SeqCst) == key)
    }

    /// Gives a record to a client that has none. `None`: all are taken by
    /// clients under suspicion.
    fn place(&self, client: u64, now: Nanos, bounds: &Bounds) -> Option<&Record> {
        let key = key_of(client);
        for _ in 0..TRIES {
            let (record, seen) = self
                .0
                .iter()
                .map(|record| (record, record.key.load(SeqCst)))
                .filter_map(|(record, key)| Some((record.worth(key, now, bounds)?, record, key)))
                .min_by_key(|(worth, ..)| *worth)
                .map(|(_, record, key)| (record, key))?;
            // SeqCst, and so in `find`: of two workers that give one client a
            // record each, at least one sees the other's and takes back its own.
            if record
                .key
                .compare_exchange(seen, key, SeqCst, Relaxed)
                .is_err()
            {
                if let Some(record) = self.find(client) {
                    return Some(record);
                }
                continue;
            }
            let first = self.find(client)?;
            if !std::ptr::eq(first, record) {
                // Whoever has it by now may keep it.
                let _ = record.key.compare_exchange(key, 0, SeqCst, Relaxed);
            }
            return Some(first);
        }
        None
    }
}

impl Record {
    /// What is lost with it: requests within the window, then how lately the
    /// last came. `None`: it may not go.
    fn worth(&self, key: u64, now: Nanos, bounds: &Bounds) -> Option<(u32, u64)> {
        if key == 0 {
            return Some((0, 0));
        }
        // Relaxed: what is read belongs to the key, by its tag; a word that is
        // written meanwhile makes the choice no worse than a moment ago.
        let seen = self.seen_ns.load(Relaxed);
        if now.0.saturating_sub(seen) >= bounds.remembered_ns() {
            return Some((0, seen));
        }
        if !standing(self.above.load(Relaxed), key, now).is_clean() {
            return None;
        }
        let period = bounds.period(now);
        let halves = [period, period.wrapping_sub(1)];
        let counts = halves.map(|p| self.half(p, key).unwrap_or_default());
        Some((counts[0].plus(counts[1]).requests, seen))
    }

    fn half(&self, period: u32, key: u64) -> Option<Counts> {
        let (of, counts) = unpack(self.halves[period as usize % 2].load(Relaxed), key)?;
        (of == period).then_some(counts)
    }

    /// Adds to the current half; what the client did within the window.
    fn count(&self, client: u64, more: Counts, now: Nanos, bounds: &Bounds) -> Counts {
        let key = key_of(client);
        let period = bounds.period(now);
        let cell = &self.halves[period as usize % 2];
        let mut sum = more;
        for _ in 0..TRIES {
            // Relaxed: a half stands for itself.
            let seen = cell.load(Relaxed);
            let mine = unpack(seen, key);
            sum = match mine {
                Some((of, counts)) if of == period => counts.plus(more),
                _ => {
                    // The first of this half: what went before leaves the window.
                    self.catch_up(client, mine, period, now, bounds);
                    more
                }
            };
            let new = pack(key, period, sum);
            if cell.compare_exchange(seen, new, Relaxed, Relaxed).is_ok() {
                break;
            }
        }
        let before = self.half(period.wrapping_sub(1), key);
        sum.plus(before.unwrap_or_default())
    }

    /// `older`: what the current half's place still holds of this client.
    fn catch_up(
        &self,
        client: u64,
        older: Option<(u32, Counts)>,
        period: u32,
        now: Nanos,
        bounds: &Bounds,
    ) {
        let other = self.halves[(period as usize + 1) % 2].load(Relaxed);
        let other = unpack(other, key_of(client));
        let known = [older, other].into_iter().flatten();
        let Some((last, current)) = known
            .filter(|(of, _)| *of < period)
            .max_by_key(|(of, _)| *of)
        else {
            return;
        };
        let before = [older, other]
            .into_iter()
            .flatten()
            .find(|(of, _)| Some(*of) == last.checked_sub(1))
            .map_or_else(Counts::default, |(_, counts)| counts);
        self.change(client, now, |standing| {
            standing.caught_up(bounds, last, current, before, now)
        });
    }

    fn change(&self, client: u64, now: Nanos, f: impl Fn(Standing) -> Standing) -> Standing {
        let key = key_of(client);
        let mut next = Standing::default();
        for _ in 0..TRIES {
            // Relaxed: it stands for itself.
            let seen = self.above.load(Relaxed);
            let old = standing(seen, key, now);
            next = f(old);
            let new = pack_standing(key, next);
            // A client without suspicion, which is nearly every one, has nothing
            // written.
            if new == seen || (old.is_clean() && next.is_clean()) {
                break;
            }
            if self
                .above
                .compare_exchange(seen, new, Relaxed, Relaxed)
                .is_ok()
            {
                break;
            }
        }
        next
    }
}

fn tag(key: u64) -> u128 {
    u128::from(key as u32) << 96
}

fn pack(key: u64, period: u32, counts: Counts) -> u128 {
    let field = |count: u32, at: u32| u128::from(count.min(u32::from(u16::MAX))) << at;
    tag(key)
        | u128::from(period) << 64
        | field(counts.requests, 48)
        | field(counts.ended, 32)
        | field(counts.client_errors, 16)
        | field(counts.aborts, 0)
}

/// `None`: another client's.
fn unpack(bits: u128, key: u64) -> Option<(u32, Counts)> {
    let field = |at: u32| u32::from((bits >> at) as u16);
    let counts = Counts {
        requests: field(48),
        ended: field(32),
        client_errors: field(16),
        aborts: field(0),
    };
    (bits >> 96 == tag(key) >> 96).then_some(((bits >> 64) as u32, counts))
}

fn pack_standing(key: u64, standing: Standing) -> u128 {
    let mut bits = tag(key);
    for (kind, above) in standing.above.iter().enumerate() {
        let Some(at) = above else { continue };
        // Rounded up: nobody is forgiven early.
        let tenths = (at.0.div_ceil(TENTH_NS) + 1).min(u64::from(u32::MAX));
        bits |= u128::from(tenths) << (32 * (KINDS - 1 - kind));
    }
    bits
}

/// Another client's is none, and so is a time to come, which nobody wrote.
fn standing(bits: u128, key: u64, now: Nanos) -> Standing {
    if bits >> 96 != tag(key) >> 96 {
        return Standing::default();
    }
    let above = std::array::from_fn(|kind| {
        let tenths = (bits >> (32 * (KINDS - 1 - kind))) as u32;
        let at = u64::from(tenths.checked_sub(1)?) * TENTH_NS;
        (at <= now.0.saturating_add(10 * TENTH_NS)).then_some(Nanos(at))
    });
    Standing { above }
}

#[cfg(test)]
#[path = "behaviour_tests.rs"]
mod tests;
