//! The limits in force.
//!
//! Each rule has an entry under its name, which holds the limit in force and
//! the last 16 changes with their times; every worker decides by the entry,
//! never by its own copy, and carries words of older epochs forward through the
//! changes. Change number `s` is in slot `s % 16`, and words written under it
//! carry `s % 16` as their epoch.
//!
//! ```text
//!  limits[s % 16]   127     96 95      64 63                          0
//!                  +----------+----------+-----------------------------+
//!                  | s (low)  | capacity | emission_ns                 |
//!                  +----------+----------+-----------------------------+
//!  times[s % 16]    127                64 63                          0
//!                  +---------------------+-----------------------------+
//!                  | s                   | ns from which it holds      |
//!                  +---------------------+-----------------------------+
//!  newest           s of the change in force; 0: no limit yet
//! ```
//!
//! A change is made in three compare-and-swaps: the limit (whose winner decides
//! what the change is), its time, and `newest`, which puts it in force. Whoever
//! finds one begun finishes it, so a worker killed in between leaves nothing to
//! repair, and of several that take the same change all but one find it done.
use super::error::{Error, error};
use super::line::Lines;
use super::memory::Shared;
use crate::domain::bucket::word::{Change, EPOCHS, InForce, Limit, Word, carry};
use crate::domain::units::Nanos;
use portable_atomic::AtomicU128;
use std::sync::atomic::{AtomicU64, Ordering::*};

/// A rule's entry in the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RuleId(pub(super) u16);

impl RuleId {
    /// Stands for the block lists in
    /// [`Region::refusal_log`](super::Region::refusal_log).
    pub const BLOCKED: RuleId = RuleId(0);

    /// Place in arrays by rule.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// Bits of a bucket's tag that name the rule.
pub const RULE_BITS: u32 = 11;
/// Longest name of an entry, bytes.
pub const NAME_BYTES: usize = 80;
const DEPTH: u64 = EPOCHS;
/// A configuration that is older than one that came in this time is late.
pub const LATE_NS: u64 = 10_000_000_000;
/// Key of an entry that is being given to another name.
pub const IN_TRANSIT: u128 = 1;

/// Writes a name of an entry, which has room for it.
pub fn write_text(words: &[AtomicU64; NAME_BYTES / 8], name: &str) {
    let mut bytes = [0u8; NAME_BYTES];
    bytes[..name.len()].copy_from_slice(name.as_bytes());
    for (word, bytes) in words.iter().zip(bytes.chunks_exact(8)) {
        let bytes = bytes.try_into().expect("8 bytes");
        // Relaxed: the caller publishes it.
        word.store(u64::from_le_bytes(bytes), Relaxed);
    }
}

/// Reads what [`write_text`] wrote, `len` bytes of it.
pub fn read_text(words: &[AtomicU64; NAME_BYTES / 8], len: u64) -> String {
    let mut bytes = Vec::with_capacity(NAME_BYTES);
    // Relaxed: after what publishes it was read.
    let all = words.iter().map(|w| w.load(Relaxed).to_le_bytes());
    all.for_each(|w| bytes.extend(w));
    bytes.truncate(len as usize);
    String::from_utf8_lossy(&bytes).into_owned()
}

#[repr(C, align(64))]
pub struct RuleEntry {
    /// Keyed hash of the name; 0: free.
    key: AtomicU128,
    newest: AtomicU64,
    /// No word carries an older change.
    oldest: AtomicU64,
    /// [`Taker::order`] of who made the newest change.
    made_by: AtomicU64,
    /// Newest configuration generation for which the entry was taken.
    taken_at: AtomicU64,
    refusals: AtomicU64,
    refusals_told_ns: AtomicU64,
    /// What was counted under the names before this one.
    before: [AtomicU64; 3],
    name_len: AtomicU64,
    name: [AtomicU64; NAME_BYTES / 8],
    _pad: [AtomicU64; 2],
    limits: [AtomicU128; DEPTH as usize],
    times: [AtomicU128; DEPTH as usize],
}

const _: () = assert!(size_of::<RuleEntry>() == 704);

// SAFETY: repr(C), atomics and nothing else.
unsafe impl Shared for RuleEntry {}

fn pack_limit(s: u64, limit: Limit) -> u128 {
    u128::from(s as u32) << 96 | u128::from(limit.capacity) << 64 | u128::from(limit.emission_ns)
}

fn unpack_limit(bits: u128) -> (u32, Limit) {
    (
        (bits >> 96) as u32,
        Limit::new(bits as u64, (bits >> 64) as u32),
    )
}

/// An entry's name, and its hash under the region's seed, which stands for it.
#[derive(Clone, Copy, Debug)]
pub struct Name<'a> {
    pub text: &'a str,
    pub hash: u128,
}

impl Name<'_> {
    pub fn key(self) -> u128 {
        self.hash.max(IN_TRANSIT + 1)
    }
}

/// Who takes a rule.
#[derive(Clone, Copy, Debug)]
pub struct Taker {
    /// Whether it is of the newest setup that has started.
    pub newest_setup: bool,
    pub setup: u64,
    /// The configuration generation that it will report as its own
    /// ([`Region::my_config_generation`](super::Region::my_config_generation));
    /// `None` when it does not say.
    pub config: Option<u64>,
    pub now: Nanos,
}

impl Taker {
    /// Orders configurations: by setup (24 bits), then by generation (40 bits).
    pub fn order(self) -> u64 {
        self.config.map_or(u64::MAX, |config| {
            self.setup << 40 | config & ((1 << 40) - 1)
        })
    }
}

impl RuleEntry {
    fn slot(s: u64) -> usize {
        (s % DEPTH) as usize
    }

    /// Number and limit of the change in force.
    pub fn in_force(&self) -> (u64, InForce) {
        let mut tries = 0;
        loop {
            // Acquire: with the release that put this change in force, so that
            // its limit is there to be read.
            let s = self.newest.load(Acquire);
            let (written, limit) = unpack_limit(self.limits[Self::slot(s)].load(Acquire));
            // Other only when 15 changes came between the two loads, or when
            // the region is damaged: then some limit is better than none.
            if written == s as u32 || tries == 100 {
                return (
                    s,
                    InForce {
                        epoch: (s % EPOCHS) as u8,
                        limit,
                    },
                );
            }
            tries += 1;
        }
    }

    /// The word as one of the change in force, and that change. To be called
    /// after the word was read with acquire: it may be newer than what the
    /// caller knew.
    pub fn bring_up(&self, word: Word) -> (Word, InForce) {
        let mut tries = 0;
        loop {
            let (s, force) = self.in_force();
            if word.epoch() == force.epoch {
                return (word, force);
            }
            if let Some(tat) = self.carried(word, s) {
                return (Word::new(force.epoch, tat), force);
            }
            // Overtaken by changes; or damage: an epoch that was never given.
            if self.newest.load(Acquire) == s || tries == 100 {
                return (Word::new(force.epoch, word.tat()), force);
            }
            tries += 1;
        }
    }

    fn carried(&self, word: Word, newest: u64) -> Option<Nanos> {
        let age = (newest.wrapping_sub(u64::from(word.epoch()))) % EPOCHS;
        let first = newest.checked_sub(age).filter(|s| *s > 0)?;
        let mut changes = [None; DEPTH as usize];
        for (change, s) in changes.iter_mut().zip(first..=newest) {
            // Acquire on both: with the swaps that wrote them, before `newest`.
            let (written, limit) = unpack_limit(self.limits[Self::slot(s)].load(Acquire));
            let time = self.times[Self::slot(s)].load(Acquire);
            if written != s as u32 || (time >> 64) as u64 != s {
                return None;
            }
            *change = Some(Change {
                at: Nanos(time as u64),
                limit,
            });
        }
        let mut changes = changes.into_iter().flatten();
        let from = changes.next()?.limit;
        Some(carry(word.tat(), from, changes))
    }

    /// Whether another change would give a word's epoch a second meaning.
    fn is_deep(&self) -> bool {
        // Relaxed: `oldest` only ever rises, an older value sweeps once more.
        self.newest.load(Acquire) + 1 >= self.oldest.load(Relaxed).max(1) + DEPTH
    }

    /// Puts `limit` in force if it is another and `taker` may. `sweep` rewrites
    /// the words of all rules to the epochs in force and calls
    /// [`RuleEntry::swept`]; it is called before an epoch would be reused.
    fn set_limit(&self, limit: Limit, taker: Taker, sweep: impl Fn()) {
        loop {
            let s = self.newest.load(Acquire);
            let next = s + 1;
            let begun = self.limits[Self::slot(next)].load(Acquire);
            if begun != 0 && unpack_limit(begun).0 == next as u32 {
                self.finish(next, taker.now);
                continue;
            }
            // Relaxed: `made_by` only keeps a worker that is late from undoing
            // for a moment what another has just changed.
            let late = taker.order() < self.made_by.load(Relaxed)
                && taker.now.0 < self.changed_at(s).saturating_add(LATE_NS);
            if s > 0 && (self.in_force().1.limit == limit || !taker.newest_setup || late) {
                return;
            }
            if self.is_deep() {
                sweep();
            }
            let swap = self.limits[Self::slot(next)].compare_exchange(
                begun,
                pack_limit(next, limit),
                // Release: with the acquire of all who read a limit.
                AcqRel,
                Relaxed,
            );
            if swap.is_ok() {
                self.made_by.store(taker.order(), Relaxed);
                self.finish(next, taker.now);
                return;
            }
        }
    }

    fn changed_at(&self, s: u64) -> u64 {
        self.times[Self::slot(s)].load(Acquire) as u64
    }

    fn finish(&self, s: u64, now: Nanos) {
        let time = &self.times[Self::slot(s)];
        let old = time.load(Acquire);
        if (old >> 64) as u64 != s {
            // Whoever is first says when it was; release: read with acquire
            // by `carried`.
            let new = u128::from(s) << 64 | u128::from(now.0);
            let _ = time.compare_exchange(old, new, AcqRel, Relaxed);
        }
        // Release: pairs with the acquire of `newest` in `in_force`.
        let _ = self.newest.compare_exchange(s - 1, s, AcqRel, Relaxed);
    }

    /// All words of this rule have been rewritten to change `s` or newer.
    pub fn swept(&self, s: u64) {
        // One is left over: a worker that had read the change before `s` may
        // have written its word behind the sweep's back.
        self.oldest.fetch_max(s.saturating_sub(1), Relaxed);
    }

    pub fn is_used(&self) -> bool {
        // Relaxed: the name that belongs to it is written by then or empty.
        self.key.load(Relaxed) > IN_TRANSIT
    }

    fn write_name(&self, name: &str) {
        // All who write, write the same.
        write_text(&self.name, name);
        // Release: pairs with the acquire in `name`.
        self.name_len.store(name.len() as u64, Release);
    }

    pub fn name(&self) -> String {
        read_text(&self.name, self.name_len.load(Acquire))
    }

    /// Counts one refusal; the number since the last time when a second has
    /// passed.
    pub fn refusal(&self, now: Nanos) -> Option<u64> {
        // Relaxed: a counter and a time, each for itself. Who wins the swap of
        // the time takes the count; a refusal in between is in the next one.
        self.refusals.fetch_add(1, Relaxed);
        let told = self.refusals_told_ns.load(Relaxed);
        if told != 0
            && now.0.saturating_sub(told) < 1_000_000_000
            && told <= now.0.saturating_add(1_000_000_000)
        {
            return None;
        }
        self.refusals_told_ns
            .compare_exchange(told, now.0.max(1), Relaxed, Relaxed)
            .ok()?;
        Some(self.refusals.swap(0, Relaxed)).filter(|n| *n > 0)
    }

    /// To be subtracted from what the lines have counted.
    pub fn before(&self) -> [u64; 3] {
        // Relaxed: written while nobody counts under this entry.
        std::array::from_fn(|i| self.before[i].load(Relaxed))
    }
}

/// All entries. Entry 0 is no rule: its cells serve the block lists.
#[derive(Clone, Copy)]
pub struct Rules<'a>(pub &'a [RuleEntry]);

impl<'a> Rules<'a> {
    pub fn get(self, rule: RuleId) -> &'a RuleEntry {
        // A rule of another region, or a damaged tag, is no reason to panic.
        self.0.get(rule.index()).unwrap_or(&self.0[0])
    }

    /// Entries for names without and with `~`.
    fn half(self, name: &str) -> std::ops::Range<usize> {
        let middle = self.0.len() / 2;
        if name.contains('~') {
            middle..self.0.len()
        } else {
            1..middle
        }
    }

    /// Finds the entry of `name` or claims a free one. Entries are claimed in
    /// order and never given up, so two workers that look for one name end at
    /// one entry. `None`: all are taken by others.
    fn find_or_claim(self, name: Name<'_>) -> Option<usize> {
        let key = name.key();
        for i in self.half(name.text) {
            let entry = &self.0[i];
            let mut found = entry.key.load(Acquire);
            if found == 0 {
                found = match entry.key.compare_exchange(0, key, AcqRel, Acquire) {
                    Ok(_) => key,
                    Err(other) => other,
                };
            }
            if found == key {
                return Some(i);
            }
        }
        None
    }

    /// Finds or makes the entry of `name` and puts `limit` in force.
    pub fn take(
        self,
        name: Name<'_>,
        limit: Limit,
        taker: Taker,
        sweep: impl Fn(),
        recycle: impl Fn() -> Result<(), Error>,
    ) -> Result<RuleId, Error> {
        let length = name.text.len();
        if !(1..=NAME_BYTES).contains(&length) {
            return Err(error!(
                "a rule's name has 1 to {NAME_BYTES} bytes, not {length}"
            ));
        }
        loop {
            let Some(i) = self.find_or_claim(name) else {
                recycle()?;
                continue;
            };
            let entry = &self.0[i];
            // SeqCst here, on the key below, and in `recycle`: either it sees
            // that the entry has been taken, or we see that it is in transit.
            entry
                .taken_at
                .fetch_max(taker.config.unwrap_or(u64::MAX - 1), SeqCst);
            if entry.name_len.load(Acquire) == 0 {
                entry.write_name(name.text);
            }
            entry.set_limit(Limit::new(limit.emission_ns, limit.capacity), taker, &sweep);
            if entry.key.load(SeqCst) == name.key() {
                return Ok(RuleId(i as u16));
            }
        }
    }

    /// Gives the entry that has been out of use for longest to `name`. For one
    /// caller at a time, who holds the lock for it; a caller that is killed
    /// leaves an entry in transit, which the next one takes first.
    /// `unused_below`: entries last taken for an older configuration generation
    /// are nobody's, since every living worker reports a newer one. `purge` removes a rule's buckets.
    pub fn recycle(
        self,
        name: Name<'_>,
        unused_below: u64,
        lines: Lines<'_>,
        purge: impl Fn(RuleId),
    ) -> Result<(), Error> {
        let half = self.half(name.text);
        let age = |i: &usize| match self.0[*i].key.load(SeqCst) {
            IN_TRANSIT => 0,
            _ => self.0[*i].taken_at.load(SeqCst) + 1,
        };
        if half
            .clone()
            .any(|i| [0, name.key()].contains(&self.0[i].key.load(Acquire)))
        {
            return Ok(());
        }
        let oldest = half
            .clone()
            .min_by_key(age)
            .filter(|i| age(i) <= unused_below);
        let Some(i) = oldest else {
            return Err(error!(
                "no room for rule \"{}\": all {} names that the region has room for are in use by living workers",
                name.text,
                half.len()
            ));
        };
        let entry = &self.0[i];
        let old = entry.key.load(SeqCst);
        let taken = entry.taken_at.load(SeqCst);
        if old != IN_TRANSIT
            && entry
                .key
                .compare_exchange(old, IN_TRANSIT, SeqCst, Relaxed)
                .is_err()
        {
            return Ok(());
        }
        if entry.taken_at.load(SeqCst) != taken {
            entry.key.store(old, SeqCst);
            return Ok(());
        }
        purge(RuleId(i as u16));
        // Relaxed: nobody uses the entry, and the key's release publishes them.
        entry.newest.store(0, Relaxed);
        entry.oldest.store(0, Relaxed);
        entry
            .limits
            .iter()
            .chain(&entry.times)
            .for_each(|slot| slot.store(0, Relaxed));
        for (before, sum) in entry.before.iter().zip(lines.rule(RuleId(i as u16))) {
            before.store(sum, Relaxed);
        }
        entry.refusals.store(0, Relaxed);
        entry.made_by.store(0, Relaxed);
        entry.taken_at.store(0, Relaxed);
        entry.name_len.store(0, Release);
        entry.write_name(name.text);
        entry.key.store(name.key(), SeqCst);
        Ok(())
    }
}
