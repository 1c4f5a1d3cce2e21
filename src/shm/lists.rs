//! Address and user lists: an immutable snapshot, built once and looked up
//! without a lock by every worker that maps it.
//!
//! Addresses are a step function: sorted positions at which the standing
//! changes, each with the number of a value, a pair (allowed until, blocked
//! until). Networks that overlap are flattened when the snapshot is built, so
//! one lookup answers for all prefix lengths, allow and block together. IPv4 is
//! found through an index of the upper 16 bits; IPv6 through sampled levels of
//! 16 keys each, a static B+ tree. Users stand in a hash table with a secret
//! seed. (The flattening is the classic interval sweep; the sampled levels are
//! what "static search tree" means in the literature.)
//!
//! ```text
//! header  magic, version, then offset and count of each part, u64 each
//! values  (allowed until, blocked until), Unix seconds, u64 each; 0 is "not"
//! v4      index u32[65537] | start u32[n] | value u32[n]
//! v6      high u64[n] | low u64[n] | value u32[n] | levels u64[…]
//! users   slots of (hash u64, hash u64, allowed until, blocked until)
//! ```
use super::{Error, Mapped};
use crate::domain::entry::Subject;
use siphasher::sip128::{Hasher128, SipHasher13};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::IpAddr;

/// What an immutable snapshot is built from. The second of each pair is the
/// Unix second at which the entry ends, `u64::MAX` for never. Of duplicates the
/// later end holds.
#[derive(Clone, Debug, Default)]
pub struct ListsInput {
    pub allow: Vec<(Subject, u64)>,
    pub block: Vec<(Subject, u64)>,
    pub bans: Vec<(Subject, u64)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    None,
    Allowed,
    Blocked,
}

/// Distinct entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub allow: u64,
    pub block: u64,
    pub bans: u64,
}

const MAGIC: u64 = u64::from_ne_bytes(*b"sluiceLs");
const VERSION: u64 = 1;
/// Keys of one node of the IPv6 tree: two cache lines.
const NODE: usize = 16;

/// The numbers of the header, in this order, each a u64.
#[derive(Clone, Copy, Debug)]
#[repr(usize)]
enum Head {
    Magic,
    Version,
    Seed0,
    Seed1,
    Allow,
    Block,
    Bans,
    UserAllow,
    Values,
    ValueCount,
    V4Index,
    V4Start,
    V4Value,
    V4Count,
    V6High,
    V6Low,
    V6Value,
    V6Count,
    V6Levels,
    V6LevelsLen,
    Users,
    UserSlots,
    Length,
}
const HEAD: usize = Head::Length as usize + 1;

/// (allowed until, blocked until)
type Value = (u64, u64);

// --- building ---------------------------------------------------------------

/// One network as positions of its family, with its class and end.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Span {
    first: u128,
    last: u128,
    class: u8,
    until: u64,
}

const ALLOW: u8 = 0;
const BLOCK: u8 = 1;
const BANS: u8 = 2;

/// The live ends of one class at a position of the sweep, with how many have each.
#[derive(Default)]
struct Active(BTreeMap<u64, u32>);

impl Active {
    fn add(&mut self, until: u64) {
        *self.0.entry(until).or_default() += 1;
    }
    fn remove(&mut self, until: u64) {
        if let Some(n) = self.0.get_mut(&until) {
            *n -= 1;
            if *n == 0 {
                self.0.remove(&until);
            }
        }
    }
    fn latest(&self) -> u64 {
        self.0.last_key_value().map_or(0, |(u, _)| *u)
    }
}

/// Flattens spans into positions at which the value changes.
fn flatten(spans: &[Span]) -> Vec<(u128, Value)> {
    // (position, is a beginning, allow?, until)
    let mut events: Vec<(u128, bool, bool, u64)> = Vec::with_capacity(spans.len() * 2);
    for s in spans {
        let allow = s.class == ALLOW;
        events.push((s.first, true, allow, s.until));
        if let Some(behind) = s.last.checked_add(1) {
            events.push((behind, false, allow, s.until));
        }
    }
    events.sort_unstable();
    let (mut allow, mut block) = (Active::default(), Active::default());
    let mut out: Vec<(u128, Value)> = Vec::with_capacity(events.len());
    let mut i = 0;
    while i < events.len() {
        let at = events[i].0;
        while i < events.len() && events[i].0 == at {
            let (_, begins, allowed, until) = events[i];
            let active = if allowed { &mut allow } else { &mut block };
            if begins {
                active.add(until)
            } else {
                active.remove(until)
            }
            i += 1;
        }
        let value = (allow.latest(), block.latest());
        if out.last().map_or((0, 0), |l| l.1) != value {
            out.push((at, value));
        }
    }
    out
}

struct Writer {
    bytes: Vec<u8>,
    head: [u64; HEAD],
    values: HashMap<Value, u32>,
    value_list: Vec<Value>,
}

impl Writer {
    fn new() -> Writer {
        let head = [0; HEAD];
        Writer {
            bytes: vec![0; HEAD * 8],
            head,
            values: HashMap::from([((0, 0), 0)]),
            value_list: vec![(0, 0)],
        }
    }

    fn value(&mut self, v: Value) -> u32 {
        let list = &mut self.value_list;
        *self.values.entry(v).or_insert_with(|| {
            list.push(v);
            (list.len() - 1) as u32
        })
    }

    /// Appends a part, aligned to a cache line; its offset goes into the header.
    fn part<const N: usize>(&mut self, at: Head, items: impl Iterator<Item = [u8; N]>) {
        let aligned = self.bytes.len().next_multiple_of(64);
        self.bytes.resize(aligned, 0);
        self.head[at as usize] = aligned as u64;
        for i in items {
            self.bytes.extend_from_slice(&i);
        }
    }

    fn finish(mut self) -> Vec<u8> {
        let values = std::mem::take(&mut self.value_list);
        self.head[Head::ValueCount as usize] = values.len() as u64;
        self.part(
            Head::Values,
            values
                .iter()
                .flat_map(|v| [v.0.to_ne_bytes(), v.1.to_ne_bytes()]),
        );
        self.head[Head::Magic as usize] = MAGIC;
        self.head[Head::Version as usize] = VERSION;
        self.head[Head::Length as usize] = self.bytes.len() as u64;
        for (i, n) in self.head.iter().enumerate() {
            self.bytes[i * 8..i * 8 + 8].copy_from_slice(&n.to_ne_bytes());
        }
        self.bytes
    }
}

/// How many distinct networks a class has. `spans` is sorted.
fn distinct(spans: &[Span], class: u8) -> u64 {
    let mut last = None;
    let mut n = 0;
    for s in spans.iter().filter(|s| s.class == class) {
        if last != Some((s.first, s.last)) {
            n += 1;
            last = Some((s.first, s.last));
        }
    }
    n
}

/// Bytes for [`Region::publish`](super::Region::publish).
pub fn build(input: &ListsInput) -> Vec<u8> {
    let mut w = Writer::new();
    let random = RandomState::new();
    let seed = (random.hash_one(1u8), random.hash_one(2u8));
    (w.head[Head::Seed0 as usize], w.head[Head::Seed1 as usize]) = seed;

    let mut v4 = Vec::new();
    let mut v6 = Vec::new();
    let mut users: HashMap<&[u8], Value> = HashMap::new();
    let mut counts = [0u64; 3];
    let classes = [
        (ALLOW, &input.allow),
        (BLOCK, &input.block),
        (BANS, &input.bans),
    ];
    for (class, entries) in classes {
        let mut seen: HashSet<&[u8]> = HashSet::new();
        for (subject, until) in entries {
            match subject {
                Subject::Net(net) => {
                    let span = |first, last| Span {
                        first,
                        last,
                        class,
                        until: *until,
                    };
                    match (net.network(), net.broadcast()) {
                        (IpAddr::V4(a), IpAddr::V4(b)) => {
                            v4.push(span(u32::from(a).into(), u32::from(b).into()));
                        }
                        (IpAddr::V6(a), IpAddr::V6(b)) => v6.push(span(a.into(), b.into())),
                        // One network has one family.
                        _ => {}
                    }
                }
                Subject::User(name) => {
                    let value = users.entry(name).or_default();
                    let slot = if class == ALLOW {
                        &mut value.0
                    } else {
                        &mut value.1
                    };
                    *slot = (*slot).max(*until);
                    seen.insert(name);
                }
            }
        }
        counts[class as usize] = seen.len() as u64;
    }
    for spans in [&mut v4, &mut v6] {
        spans.sort_unstable();
        for class in [ALLOW, BLOCK, BANS] {
            counts[class as usize] += distinct(spans, class);
        }
    }
    w.head[Head::Allow as usize] = counts[ALLOW as usize];
    w.head[Head::Block as usize] = counts[BLOCK as usize];
    w.head[Head::Bans as usize] = counts[BANS as usize];
    w.head[Head::UserAllow as usize] = users.values().filter(|v| v.0 > 0).count() as u64;
    write_v4(&mut w, &flatten(&v4));
    write_v6(&mut w, &flatten(&v6));
    write_users(&mut w, &users, seed);
    w.finish()
}

fn write_v4(w: &mut Writer, steps: &[(u128, Value)]) {
    // A network that ends at the last address has no step behind it; none begins there either.
    let steps: Vec<(u32, Value)> = steps
        .iter()
        .filter_map(|(at, v)| Some((u32::try_from(*at).ok()?, *v)))
        .collect();
    let mut index = vec![0u32; (1 << 16) + 1];
    for (at, _) in &steps {
        index[(at >> 16) as usize + 1] += 1;
    }
    for i in 1..index.len() {
        index[i] += index[i - 1];
    }
    let values: Vec<u32> = steps.iter().map(|s| w.value(s.1)).collect();
    w.head[Head::V4Count as usize] = steps.len() as u64;
    w.part(Head::V4Index, index.iter().map(|n| n.to_ne_bytes()));
    w.part(Head::V4Start, steps.iter().map(|s| s.0.to_ne_bytes()));
    w.part(Head::V4Value, values.iter().map(|n| n.to_ne_bytes()));
}

fn write_v6(w: &mut Writer, steps: &[(u128, Value)]) {
    let values: Vec<u32> = steps.iter().map(|s| w.value(s.1)).collect();
    let high: Vec<u64> = steps.iter().map(|s| (s.0 >> 64) as u64).collect();
    let mut levels = Vec::new();
    let mut below = high.clone();
    while below.len() > NODE {
        // The first key of every node below; a whole number of nodes, padded with keys that no
        // address reaches behind.
        let mut level: Vec<u64> = below.chunks(NODE).map(|c| c[0]).collect();
        below.clone_from(&level);
        level.resize(level.len().next_multiple_of(NODE), u64::MAX);
        levels.push(level);
    }
    levels.reverse();
    let flat: Vec<u64> = levels.concat();
    w.head[Head::V6Count as usize] = steps.len() as u64;
    w.head[Head::V6LevelsLen as usize] = flat.len() as u64;
    w.part(Head::V6High, high.iter().map(|n| n.to_ne_bytes()));
    w.part(
        Head::V6Low,
        steps.iter().map(|s| (s.0 as u64).to_ne_bytes()),
    );
    w.part(Head::V6Value, values.iter().map(|n| n.to_ne_bytes()));
    w.part(Head::V6Levels, flat.iter().map(|n| n.to_ne_bytes()));
}

fn hash(seed: (u64, u64), user: &[u8]) -> (u64, u64) {
    let mut h = SipHasher13::new_with_keys(seed.0, seed.1);
    h.write(user);
    let h = h.finish128();
    // (0, 0) marks an empty slot.
    if (h.h1, h.h2) == (0, 0) {
        (1, 0)
    } else {
        (h.h1, h.h2)
    }
}

fn write_users(w: &mut Writer, users: &HashMap<&[u8], Value>, seed: (u64, u64)) {
    let size = if users.is_empty() {
        0
    } else {
        (users.len() * 2).next_power_of_two()
    };
    let mut slots = vec![[0u64; 4]; size];
    for (user, v) in users {
        let (a, b) = hash(seed, user);
        let mut i = a as usize & (size - 1);
        while slots[i][..2] != [0, 0] {
            i = (i + 1) & (size - 1);
        }
        slots[i] = [a, b, v.0, v.1];
    }
    w.head[Head::UserSlots as usize] = size as u64;
    w.part(Head::Users, slots.iter().flatten().map(|n| n.to_ne_bytes()));
}

// --- looking up --------------------------------------------------------------

/// A snapshot. All offsets and counts were checked when it was opened, so that
/// lookups can trust them.
pub struct Lists {
    mapped: Mapped,
    head: [u64; HEAD],
    /// Offset (in keys) and length of each level of the IPv6 tree, the top first.
    levels: Vec<(usize, usize)>,
}

impl std::fmt::Debug for Lists {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lists")
            .field("counts", &self.counts())
            .finish_non_exhaustive()
    }
}

/// Types of which any bytes are a value.
trait Plain: Copy {}
impl Plain for u32 {}
impl Plain for u64 {}

impl Lists {
    /// Errors: not a snapshot, another version, or damaged.
    pub fn new(mapped: Mapped) -> Result<Lists, Error> {
        let bad = |what: &str| Error(format!("the list snapshot is unusable: {what}"));
        if mapped.len() < HEAD * 8 || !mapped.as_ptr().cast::<u64>().is_aligned() {
            return Err(bad("it is too short"));
        }
        let mut head = [0u64; HEAD];
        for (n, b) in head.iter_mut().zip(mapped.chunks_exact(8)) {
            *n = u64::from_ne_bytes(b.try_into().unwrap_or_default());
        }
        if head[Head::Magic as usize] != MAGIC || head[Head::Version as usize] != VERSION {
            return Err(bad("it was written by another version"));
        }
        let mut lists = Lists {
            mapped,
            head,
            levels: Vec::new(),
        };
        lists.check().ok_or_else(|| bad("it is damaged"))?;
        Ok(lists)
    }

    /// Lists without an entry, for the time before any was published.
    pub fn empty() -> Lists {
        match Lists::new(Mapped::from_bytes(&build(&ListsInput::default()))) {
            Ok(l) => l,
            Err(e) => unreachable!("a snapshot that was just built: {e}"),
        }
    }

    fn n(&self, at: Head) -> usize {
        self.head[at as usize] as usize
    }

    /// Does a part of `count` items of `size` bytes lie inside, aligned?
    fn part_fits(&self, at: Head, count: usize, size: usize) -> bool {
        let end = count
            .checked_mul(size)
            .and_then(|b| b.checked_add(self.n(at)));
        end.is_some_and(|e| e <= self.mapped.len()) && self.n(at).is_multiple_of(64)
    }

    fn check(&mut self) -> Option<()> {
        let (v4, v6) = (self.n(Head::V4Count), self.n(Head::V6Count));
        let (values, users) = (self.n(Head::ValueCount), self.n(Head::UserSlots));
        let fits = self.n(Head::Length) <= self.mapped.len()
            && self.part_fits(Head::Values, values, 16)
            && self.part_fits(Head::V4Index, (1 << 16) + 1, 4)
            && self.part_fits(Head::V4Start, v4, 4)
            && self.part_fits(Head::V4Value, v4, 4)
            && self.part_fits(Head::V6High, v6, 8)
            && self.part_fits(Head::V6Low, v6, 8)
            && self.part_fits(Head::V6Value, v6, 4)
            && self.part_fits(Head::V6Levels, self.n(Head::V6LevelsLen), 8)
            && self.part_fits(Head::Users, users, 32)
            && (users == 0 || users.is_power_of_two());
        if !fits {
            return None;
        }
        let index: &[u32] = self.slice(Head::V4Index, (1 << 16) + 1);
        let ordered = index.windows(2).all(|w| w[0] <= w[1]) && *index.last()? as usize == v4;
        let known = |s: &[u32]| s.iter().all(|v| (*v as usize) < values);
        let good = ordered
            && known(self.slice(Head::V4Value, v4))
            && known(self.slice(Head::V6Value, v6))
            // A table without an empty slot would be searched for ever.
            && (users == 0 || self.slice::<u64>(Head::Users, users * 4)
                .chunks_exact(4).any(|s| s[..2] == [0, 0]));
        if !good {
            return None;
        }
        // The shape of the tree follows from the number of keys.
        let mut sizes = Vec::new();
        let mut n = v6;
        while n > NODE {
            n = n.div_ceil(NODE);
            sizes.push(n);
        }
        let mut at = 0;
        for size in sizes.into_iter().rev() {
            self.levels.push((at, size));
            at += size.next_multiple_of(NODE);
        }
        (at == self.n(Head::V6LevelsLen)).then_some(())
    }

    fn slice<T: Plain>(&self, at: Head, count: usize) -> &[T] {
        debug_assert!(self.part_fits(at, count, size_of::<T>()));
        // SAFETY: `check` made sure that the part lies inside the mapping (the counts passed here
        // are the ones checked there) and starts at a multiple of 64 of an 8-aligned base; any
        // bytes are a value of a `Plain` type; a published file is never changed.
        unsafe {
            std::slice::from_raw_parts(self.mapped.as_ptr().add(self.n(at)).cast::<T>(), count)
        }
    }

    fn standing(&self, value: u32, now_unix: u64) -> Standing {
        let values: &[u64] = self.slice(Head::Values, self.n(Head::ValueCount) * 2);
        let (allow, block) = (values[value as usize * 2], values[value as usize * 2 + 1]);
        if allow > now_unix {
            Standing::Allowed
        } else if block > now_unix {
            Standing::Blocked
        } else {
            Standing::None
        }
    }

    /// Where an address stands at `now_unix` (Unix s); allow beats block.
    pub fn address(&self, ip: IpAddr, now_unix: u64) -> Standing {
        let value = match ip {
            IpAddr::V4(a) => self.v4(a.into()),
            IpAddr::V6(a) => self.v6(a.into()),
        };
        value.map_or(Standing::None, |v| self.standing(v, now_unix))
    }

    fn v4(&self, ip: u32) -> Option<u32> {
        let n = self.n(Head::V4Count);
        let index: &[u32] = self.slice(Head::V4Index, (1 << 16) + 1);
        let start: &[u32] = self.slice(Head::V4Start, n);
        let upper = (ip >> 16) as usize;
        let (from, to) = (index[upper] as usize, index[upper + 1] as usize);
        let behind = from + start[from..to].partition_point(|s| *s <= ip);
        let at = behind.checked_sub(1)?;
        Some(self.slice::<u32>(Head::V4Value, n)[at])
    }

    fn v6(&self, ip: u128) -> Option<u32> {
        let n = self.n(Head::V6Count);
        let high: &[u64] = self.slice(Head::V6High, n);
        let levels: &[u64] = self.slice(Head::V6Levels, self.n(Head::V6LevelsLen));
        let key = (ip >> 64) as u64;
        // Each level narrows down to one node of the next.
        let mut node = 0;
        for &(at, len) in &self.levels {
            let from = node * NODE;
            let keys = &levels[at + from..at + from + NODE];
            let below = keys.iter().map(|k| usize::from(*k <= key)).sum::<usize>();
            // Before the first key of all: no step is at or before this address.
            node = (from + below.checked_sub(1)?).min(len - 1);
        }
        let from = node * NODE;
        let leaf = &high[from.min(n)..(from + NODE).min(n)];
        let below = leaf.iter().map(|k| usize::from(*k <= key)).sum::<usize>();
        let mut at = (from + below).checked_sub(1)?;
        let low: &[u64] = self.slice(Head::V6Low, n);
        if high[at] == key && low[at] > ip as u64 {
            // Networks longer than /64: several steps share the upper half.
            let whole = |i: usize| u128::from(high[i]) << 64 | u128::from(low[i]);
            let (mut lo, mut hi) = (0, at);
            while lo < hi {
                let mid = (lo + hi) / 2;
                if whole(mid) <= ip {
                    lo = mid + 1
                } else {
                    hi = mid
                }
            }
            at = lo.checked_sub(1)?;
        }
        Some(self.slice::<u32>(Head::V6Value, n)[at])
    }

    pub fn user(&self, user: &[u8], now_unix: u64) -> Standing {
        let size = self.n(Head::UserSlots);
        if size == 0 {
            return Standing::None;
        }
        let seed = (
            self.head[Head::Seed0 as usize],
            self.head[Head::Seed1 as usize],
        );
        let (a, b) = hash(seed, user);
        let slots: &[u64] = self.slice(Head::Users, size * 4);
        let mut i = a as usize & (size - 1);
        loop {
            let s = &slots[i * 4..i * 4 + 4];
            if s[..2] == [a, b] {
                return if s[2] > now_unix {
                    Standing::Allowed
                } else if s[3] > now_unix {
                    Standing::Blocked
                } else {
                    Standing::None
                };
            }
            if s[..2] == [0, 0] {
                return Standing::None;
            }
            i = (i + 1) & (size - 1);
        }
    }

    pub fn has_user_allow(&self) -> bool {
        self.n(Head::UserAllow) > 0
    }

    pub fn has_users(&self) -> bool {
        self.n(Head::UserSlots) > 0
    }

    pub fn counts(&self) -> Counts {
        let h = |at: Head| self.head[at as usize];
        Counts {
            allow: h(Head::Allow),
            block: h(Head::Block),
            bans: h(Head::Bans),
        }
    }
}

#[cfg(test)]
#[path = "lists_tests.rs"]
mod tests;
