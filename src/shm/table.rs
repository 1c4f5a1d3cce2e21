//! The bucket table: sets of slots, each slot a bucket, always swapped whole.
//!
//! ```text
//!  127                              64 63                     11 10       0
//! +-----------------------------------+-------------------------+----------+
//! | word: domain::bucket::word        | hash of the key: 53     | rule     |
//! +-----------------------------------+-------------------------+----------+
//!                                      `--- tag; 0: an empty slot --------'
//! ```
//!
//! A key's set and the slot with which it begins there come from other bits of
//! the hash. Slots of a set have a rank for each key, from that first slot on
//! and around; of two slots of one key the one of lower rank holds.
//!
//! An empty slot, a bucket that is not there and a full bucket are the same
//! thing. Fixed size: random keys push out buckets, never grow anything.
use super::memory::Shared;
use super::rules::{RULE_BITS, RuleId, Rules};
use crate::domain::bucket::word::Word;
use crate::domain::units::Nanos;
use portable_atomic::{AtomicU128, Ordering};

/// Slots of a set, four cache lines. With 2,000,000 buckets in 64 MiB (0.54 of
/// the slots) sets of 8 push out 1.2 %, sets of 16 0.16 %: a test holds the 16.
pub const WAYS: usize = 16;
/// An empty slot.
pub const EMPTY: Slot = Slot(0);

#[repr(C, align(256))]
pub struct Set([AtomicU128; WAYS]);

const _: () = assert!(size_of::<Set>() == 256);

// SAFETY: repr(C), atomics and nothing else.
unsafe impl Shared for Set {}

/// Keyed hash of a rule and a key; made by [`Region::hash`](super::Region::hash).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeyHash {
    /// Names the bucket inside its set.
    pub(super) tag: u64,
    /// Chooses the set (high bits) and the first slot (low bits).
    pub(super) place: u64,
}

impl KeyHash {
    pub fn new(rule: RuleId, hash: u128) -> KeyHash {
        let rule_mask = (1 << RULE_BITS) - 1;
        let tag = (hash >> 64) as u64 & !rule_mask | u64::from(rule.0) & rule_mask;
        KeyHash {
            tag,
            place: hash as u64,
        }
    }
}

/// What a slot holds; drawn above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot(u128);

impl Slot {
    pub fn new(tag: u64, word: Word) -> Slot {
        Slot(u128::from(word.0) << 64 | u128::from(tag))
    }

    pub fn tag(self) -> u64 {
        self.0 as u64
    }

    pub fn word(self) -> Word {
        Word((self.0 >> 64) as u64)
    }

    pub fn rule(self) -> RuleId {
        RuleId((self.tag() & ((1 << RULE_BITS) - 1)) as u16)
    }
}

/// The slots of one set in the order of their rank for one key.
#[derive(Clone, Copy)]
pub struct Ranked<'a> {
    set: &'a Set,
    first: usize,
}

impl Ranked<'_> {
    fn atomic(&self, rank: usize) -> &AtomicU128 {
        &self.set.0[(self.first + rank) % WAYS]
    }

    pub fn load(&self, rank: usize) -> Slot {
        // SeqCst, not acquire, for the second reading after an insertion: of
        // two workers that insert one key at a time, at least one must see the
        // other's slot (each swaps its own, then reads the other's). Acquire,
        // which it includes, for the change under which the word was written.
        Slot(self.atomic(rank).load(Ordering::SeqCst))
    }

    /// Swaps a slot whole, if it still is what was seen. Release: whoever reads
    /// the word also sees the change of the limit that it was written under.
    pub fn swap(&self, rank: usize, seen: Slot, new: Slot) -> bool {
        self.atomic(rank)
            .compare_exchange(seen.0, new.0, Ordering::SeqCst, Ordering::Relaxed)
            .is_ok()
    }

    /// The bucket of `tag`. When there is none, `view` is the whole set as it
    /// was seen, by rank.
    pub fn find(&self, tag: u64, view: &mut [Slot; WAYS]) -> Option<(usize, Slot)> {
        for (rank, seen) in view.iter_mut().enumerate() {
            let slot = self.load(rank);
            if slot.tag() == tag {
                return Some((rank, slot));
            }
            *seen = slot;
        }
        None
    }
}

/// A place for a new bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub rank: usize,
    /// Whether the bucket that stands there still holds information.
    pub loses: bool,
}

/// Where a new bucket of `rule` goes in a set: an empty slot; else a full
/// bucket, which loses nothing; else, of the rule with the most buckets in the
/// set, the bucket that is nearest to full, so a flood on one rule pushes out
/// its own.
pub fn choose(view: &[Slot; WAYS], rule: RuleId, rules: Rules<'_>, now: Nanos) -> Place {
    // Words of a damaged rule number count as empty too.
    if let Some(rank) = view
        .iter()
        .position(|s| *s == EMPTY || s.rule().index() >= rules.0.len())
    {
        return Place { rank, loses: false };
    }
    let is_full = |s: &Slot| {
        s.word().tat() <= now && {
            let (_, force) = rules.get(s.rule()).in_force();
            s.word().is_full(force.epoch, now)
        }
    };
    if let Some(rank) = view.iter().position(is_full) {
        return Place { rank, loses: false };
    }
    let of = |rule: RuleId| view.iter().filter(|s| s.rule() == rule).count();
    let own = of(rule);
    let crowd = if own * 2 >= WAYS {
        rule
    } else {
        // On a tie its own, then the lowest number.
        let most = |s: &Slot| (of(s.rule()), s.rule() == rule, std::cmp::Reverse(s.rule()));
        view.iter()
            .map(|s| (most(s), s.rule()))
            .max()
            .map_or(rule, |(_, rule)| rule)
    };
    let entry = rules.get(crowd);
    let (_, force) = entry.in_force();
    let debt = |s: &Slot| {
        let word = s.word();
        let word = if word.epoch() == force.epoch {
            word
        } else {
            entry.bring_up(word).0
        };
        word.debt_ns(now)
    };
    let nearest = view
        .iter()
        .enumerate()
        .filter(|(_, s)| s.rule() == crowd)
        .map(|(rank, s)| (debt(s), rank))
        .min();
    let (debt, rank) = nearest.unwrap_or((1, 0));
    Place {
        rank,
        loses: debt > 0,
    }
}

/// All sets.
#[derive(Clone, Copy)]
pub struct Table<'a>(pub &'a [Set]);

impl<'a> Table<'a> {
    pub fn capacity(self) -> u64 {
        (self.0.len() * WAYS) as u64
    }

    pub fn set(self, key: KeyHash) -> Ranked<'a> {
        let set = (u128::from(key.place) * self.0.len() as u128) >> 64;
        Ranked {
            set: &self.0[set as usize],
            first: key.place as usize % WAYS,
        }
    }

    /// Offers every slot that is not empty to `change`, until it has nothing to
    /// change there. Returns how many slots became empty.
    pub fn rewrite(self, change: impl Fn(Slot) -> Option<Slot>) -> u64 {
        let mut freed = 0;
        for set in self.0 {
            let ranked = Ranked { set, first: 0 };
            for rank in 0..WAYS {
                loop {
                    let seen = ranked.load(rank);
                    let Some(new) = Some(seen).filter(|s| *s != EMPTY).and_then(&change) else {
                        break;
                    };
                    if ranked.swap(rank, seen, new) {
                        freed += u64::from(new == EMPTY);
                        break;
                    }
                }
            }
        }
        freed
    }

    /// Asserts what the table stands on: a fallback would lock inside one
    /// process only.
    pub fn assert_lock_free() -> Result<(), super::Error> {
        if AtomicU128::is_lock_free() {
            return Ok(());
        }
        Err(super::error::error!(
            "this processor has no 128-bit compare-and-swap, without which buckets cannot be shared between workers"
        ))
    }
}
