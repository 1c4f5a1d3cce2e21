//! Bans of the local store: `path.bans`, a file of its own, so that bans
//! survive whatever becomes of the region.
//!
//! Bans come and go one at a time, from any worker, so they are no snapshot
//! but a table: 4096 sets of 64 records, each record swapped whole.
//!
//! ```text
//!  127                                52 51     44 43                     0
//! +-------------------------------------+---------+-----------------------+
//! | keyed hash of the subject: 76 bits  | kind    | until, Unix seconds   |
//! +-------------------------------------+---------+-----------------------+
//!  kind: 1 + prefix length (IPv4), 34 + prefix length (IPv6), 163: a user
//!  until: all ones: for ever; 0: lifted
//! ```
//!
//! A set is filled from its first record on, and a record that was used is
//! never zero again while anybody lives: a search ends at the first zero. An
//! address is looked for once per prefix length that has been banned, which is
//! one or two in practice and none at all before the first ban. With 100,000
//! bans a set holds 24 on average, and one in 10^11 would need more than 64.
use super::error::{Error, error};
use super::memory::{Memory, PAGE, Shared};
use crate::domain::entry::Subject;
use ipnet::IpNet;
use portable_atomic::AtomicU128;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering::*};

pub const MAX_BANS: u64 = 100_000;
const RECORDS: usize = 64;
/// Miri, which runs tests on the heap and no file, counts through fewer.
const SETS: usize = if cfg!(miri) { 16 } else { 4096 };
pub const BYTES: usize = PAGE + SETS * size_of::<Set>();
const MAGIC: u64 = u64::from_le_bytes(*b"slbans\r\n");
const FORMAT: u64 = 1;

const UNTIL_BITS: u32 = 44;
const FOR_EVER: u64 = (1 << UNTIL_BITS) - 1;
const USER: u32 = 163;

#[repr(C, align(4096))]
struct Header {
    magic: AtomicU64,
    format: AtomicU64,
    seed: [AtomicU64; 2],
    /// About how many are in force; made exact when it reaches the most.
    count: AtomicU64,
    /// Bit `kind`: such a ban has been made.
    kinds: [AtomicU64; 3],
}

#[repr(C, align(64))]
struct Set([AtomicU128; RECORDS]);

// SAFETY: repr(C), atomics and padding that nobody reads.
unsafe impl Shared for Header {}
// SAFETY: repr(C), atomics and nothing else.
unsafe impl Shared for Set {}

const _: () = assert!(size_of::<Header>() == PAGE && size_of::<Set>() == 1024);

/// A record without its `until`.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Id(u128);

fn until_of(record: u128) -> u64 {
    match record as u64 & FOR_EVER {
        FOR_EVER => u64::MAX,
        until => until,
    }
}

pub struct Bans {
    memory: Memory,
}

impl Bans {
    /// Fresh memory becomes a table without bans.
    pub fn format(memory: Memory) -> Bans {
        let bans = Bans { memory };
        let header = bans.header();
        for (into, seed) in header.seed.iter().zip(super::file::random()) {
            // Relaxed: published by the magic.
            into.store(seed, Relaxed);
        }
        header.format.store(FORMAT, Relaxed);
        // Release: with the acquire in `attach`.
        header.magic.store(MAGIC, Release);
        bans
    }

    /// Memory that holds a table; `None` when it holds something else.
    pub fn attach(memory: Memory) -> Option<Bans> {
        let bans = Bans { memory };
        let header = bans.header();
        let known = bans.memory.len() == BYTES
            && header.magic.load(Acquire) == MAGIC
            && header.format.load(Relaxed) == FORMAT;
        known.then_some(bans)
    }

    fn header(&self) -> &Header {
        self.memory.at(0)
    }

    fn sets(&self) -> &[Set] {
        self.memory.slice(PAGE, SETS)
    }

    fn id(&self, kind: u32, bytes: &[u8]) -> (&Set, Id) {
        use siphasher::sip128::{Hasher128, SipHasher13};
        use std::hash::Hasher;
        // Relaxed: the seed is written once, before anybody attaches.
        let [a, b] = [0, 1].map(|i| self.header().seed[i].load(Relaxed));
        let mut hasher = SipHasher13::new_with_keys(a, b);
        hasher.write_u8(kind as u8);
        hasher.write(bytes);
        let hash = hasher.finish128();
        let set = &self.sets()[(hash.h2 >> 52) as usize % SETS];
        let wide = u128::from(hash.h1) << 12 | u128::from(hash.h2 & 0xfff);
        (set, Id(wide << 52 | u128::from(kind) << UNTIL_BITS))
    }

    fn id_of(&self, subject: &Subject) -> (u32, &Set, Id) {
        let (kind, (set, id)) = match subject {
            Subject::Net(IpNet::V4(net)) => {
                let kind = 1 + u32::from(net.prefix_len());
                (kind, self.id(kind, &net.network().octets()))
            }
            Subject::Net(IpNet::V6(net)) => {
                let kind = 34 + u32::from(net.prefix_len());
                (kind, self.id(kind, &net.network().octets()))
            }
            Subject::User(user) => (USER, self.id(USER, user)),
        };
        (kind, set, id)
    }

    fn records(set: &Set) -> impl Iterator<Item = (&AtomicU128, u128)> {
        // Acquire: a record stands for itself; with the release of `ban` so
        // that records before it in the set are seen too.
        set.0.iter().map(|slot| (slot, slot.load(Acquire)))
    }

    /// From now until that Unix second (`u64::MAX`: for ever), instead of what
    /// was said of the same subject before.
    pub fn ban(&self, subject: &Subject, until_unix: u64, now_unix: u64) -> Result<(), Error> {
        let (kind, set, id) = self.id_of(subject);
        let until = if until_unix == u64::MAX {
            FOR_EVER
        } else {
            until_unix.min(FOR_EVER - 1)
        };
        let new = id.0 | u128::from(until);
        let header = self.header();
        // Release: whoever finds the record must look for its kind.
        header.kinds[kind as usize / 64].fetch_or(1 << (kind % 64), Release);
        loop {
            let same = Self::records(set).find(|(_, r)| Id(r & !u128::from(FOR_EVER)) == id);
            let free = || Self::records(set).find(|(_, r)| until_of(*r) <= now_unix);
            let Some((slot, old)) = same.or_else(free) else {
                return Err(self.no_room());
            };
            let adds = until_of(old) <= now_unix;
            // Relaxed: the count is an estimate.
            if adds && header.count.load(Relaxed) >= MAX_BANS && self.count(now_unix) >= MAX_BANS {
                return Err(self.no_room());
            }
            if slot.compare_exchange(old, new, AcqRel, Relaxed).is_ok() {
                if adds {
                    header.count.fetch_add(1, Relaxed);
                }
                return Ok(());
            }
        }
    }

    fn no_room(&self) -> Error {
        error!("there is no room for another ban: at most {MAX_BANS} can be in force")
    }

    /// Whether there was a ban of that very subject.
    pub fn unban(&self, subject: &Subject, now_unix: u64) -> bool {
        let (_, set, id) = self.id_of(subject);
        let mut was = false;
        // Two workers that ban at once may have made two records.
        for (slot, mut old) in Self::records(set) {
            while Id(old & !u128::from(FOR_EVER)) == id && until_of(old) > now_unix {
                match slot.compare_exchange(old, id.0, AcqRel, Acquire) {
                    Ok(_) => {
                        was = true;
                        let count = &self.header().count;
                        let _ = count.fetch_update(Relaxed, Relaxed, |n| n.checked_sub(1));
                        break;
                    }
                    Err(now) => old = now,
                }
            }
        }
        was
    }

    fn holds(&self, kind: u32, bytes: &[u8], now_unix: u64) -> bool {
        let (set, id) = self.id(kind, bytes);
        Self::records(set)
            .take_while(|(_, r)| *r != 0)
            .any(|(_, r)| Id(r & !u128::from(FOR_EVER)) == id && until_of(r) > now_unix)
    }

    /// Kinds in use, of those from `first` to `last`.
    fn kinds(&self, first: u32, last: u32) -> impl Iterator<Item = u32> {
        // Acquire: with the release in `ban`.
        let kinds: [u64; 3] = std::array::from_fn(|i| self.header().kinds[i].load(Acquire));
        kinds
            .into_iter()
            .zip(0..)
            .filter(|(bits, _)| *bits != 0)
            .flat_map(move |(bits, word)| {
                (0..64)
                    .filter(move |b| bits >> b & 1 == 1)
                    .map(move |b| word * 64 + b)
            })
            .filter(move |kind| (first..=last).contains(kind))
    }

    /// Whether there may be any: near-free.
    pub fn any(&self) -> bool {
        self.kinds(0, USER).next().is_some()
    }

    pub fn address(&self, ip: IpAddr, now_unix: u64) -> bool {
        match ip.to_canonical() {
            IpAddr::V4(v4) => self.kinds(1, 33).any(|kind| {
                let mask = u32::MAX.checked_shl(33 - kind).unwrap_or(0);
                self.holds(kind, &(u32::from(v4) & mask).to_be_bytes(), now_unix)
            }),
            IpAddr::V6(v6) => self.kinds(34, 162).any(|kind| {
                let mask = u128::MAX.checked_shl(162 - kind).unwrap_or(0);
                self.holds(kind, &(u128::from(v6) & mask).to_be_bytes(), now_unix)
            }),
        }
    }

    pub fn user(&self, user: &[u8], now_unix: u64) -> bool {
        self.kinds(USER, USER)
            .any(|kind| self.holds(kind, user, now_unix))
    }

    /// How many are in force, counted.
    pub fn count(&self, now_unix: u64) -> u64 {
        let in_force = |set: &Set| {
            Self::records(set)
                .filter(|(_, r)| until_of(*r) > now_unix)
                .count()
        };
        let count = self.sets().iter().map(in_force).sum::<usize>() as u64;
        self.header().count.store(count, Relaxed);
        count
    }

    /// Forgets what has ended. Only while nobody else lives; a crash in between
    /// leaves at worst a record twice.
    pub fn compact(&self, now_unix: u64) {
        let mut kinds = [0u64; 3];
        for set in self.sets() {
            let keep: Vec<u128> = Self::records(set)
                .map(|(_, r)| r)
                .filter(|r| until_of(*r) > now_unix)
                .collect();
            let zeroes = std::iter::repeat(&0);
            for (slot, record) in set.0.iter().zip(keep.iter().chain(zeroes)) {
                // Relaxed: nobody else lives.
                slot.store(*record, Relaxed);
                let kind = (record >> UNTIL_BITS) as usize & 0xff;
                if *record != 0 && kind < 192 {
                    kinds[kind / 64] |= 1 << (kind % 64);
                }
            }
        }
        for (into, bits) in self.header().kinds.iter().zip(kinds) {
            into.store(bits, Relaxed);
        }
        self.count(now_unix);
    }
}

#[cfg(test)]
#[path = "bans_tests.rs"]
mod tests;
