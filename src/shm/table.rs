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
use crate::domain::bucket::word::{InForce, Word};
use crate::domain::units::Nanos;
use portable_atomic::{AtomicU128, Ordering};
use std::cmp::Reverse;

/// Slots of a set, four cache lines. With 2,000,000 buckets in 64 MiB (0.54 of
/// the slots) sets of 8 push out 1.2 %, sets of 16 0.16 %: a test holds the 16.
pub const WAYS: usize = 16;
const RULE_MASK: u64 = (1 << RULE_BITS) - 1;
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
        let tag = (hash >> 64) as u64 & !RULE_MASK | u64::from(rule.0) & RULE_MASK;
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
        RuleId((self.tag() & RULE_MASK) as u16)
    }

    /// Whether nothing is lost with it. A rule's number that cannot be is
    /// damage, and nobody's bucket.
    fn is_spare(self, rules: Rules<'_>, now: Nanos) -> bool {
        if self == EMPTY || self.rule().index() >= rules.0.len() {
            return true;
        }
        let word = self.word();
        word.tat() <= now && word.is_full(rules.get(self.rule()).in_force().1.epoch, now)
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

    /// The bucket of `tag`.
    pub fn find(&self, tag: u64) -> Option<(usize, Slot)> {
        (0..WAYS)
            .map(|rank| (rank, self.load(rank)))
            .find(|(_, slot)| slot.tag() == tag)
    }

    /// The bucket of `tag`, or what the same pass tells of where a new one goes:
    /// while memory is waited for it costs nothing, so that a full table is no
    /// slower than an empty one.
    pub fn search(&self, tag: u64, force: InForce, now: Nanos) -> Result<(usize, Slot), Crowd> {
        let epoch = Word::new(force.epoch, Nanos(0)).0;
        let mut crowd = Crowd {
            own: 0,
            nearest: (0, EMPTY),
            older: false,
            spare: false,
        };
        let mut soonest = u64::MAX;
        for rank in 0..WAYS {
            let slot = self.load(rank);
            if slot.tag() == tag {
                return Ok((rank, slot));
            }
            let word = slot.word();
            let own = (slot.tag() ^ tag) & RULE_MASK == 0;
            // Of the epoch in force the TAT, of any other more than all TATs.
            let tat = if own { word.0 ^ epoch } else { u64::MAX };
            crowd.spare |= word.tat() <= now;
            crowd.own += u32::from(own);
            crowd.older |= own && word.epoch() != force.epoch;
            if tat < soonest {
                (soonest, crowd.nearest) = (tat, (rank, slot));
            }
        }
        Err(crowd)
    }

    /// Where a new bucket of `rule` goes: an empty slot or a full bucket, which
    /// lose nothing; else, of the rule with the most buckets in the set, the one
    /// that is nearest to full, so a flood on one rule pushes out its own.
    /// `None`: the bucket of `tag` is there by now.
    pub fn place(
        &self,
        tag: u64,
        rule: RuleId,
        crowd: &Crowd,
        rules: Rules<'_>,
        now: Nanos,
    ) -> Option<Place> {
        if !crowd.spare && !crowd.older && crowd.own as usize * 2 >= WAYS {
            let (rank, seen) = crowd.nearest;
            return Some(Place {
                rank,
                seen,
                loses: true,
            });
        }
        let mut view = [EMPTY; WAYS];
        for (rank, seen) in view.iter_mut().enumerate() {
            *seen = self.load(rank);
            if seen.tag() == tag {
                return None;
            }
            if seen.is_spare(rules, now) {
                return Some(Place {
                    rank,
                    seen: *seen,
                    loses: false,
                });
            }
        }
        let (rank, loses) = nearest_of_most(&view, rule, rules, now);
        Some(Place {
            rank,
            seen: view[rank],
            loses,
        })
    }
}

/// A set without the bucket that was looked for.
pub struct Crowd {
    /// Buckets of the same rule.
    own: u32,
    /// The one of them that is nearest to full.
    nearest: (usize, Slot),
    /// Whether any of them was written before the last change.
    older: bool,
    /// Whether a slot may be empty, or hold a full bucket.
    spare: bool,
}

/// A place for a new bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub rank: usize,
    pub seen: Slot,
    /// Whether the bucket that stands there still holds information.
    pub loses: bool,
}

/// In a set without room: of the rule with the most buckets, the one nearest to
/// full, and whether it holds information.
fn nearest_of_most(
    view: &[Slot; WAYS],
    rule: RuleId,
    rules: Rules<'_>,
    now: Nanos,
) -> (usize, bool) {
    let of = |rule: RuleId| view.iter().filter(|s| s.rule() == rule).count();
    // On a tie its own, then the lowest number.
    let most = |s: &Slot| (of(s.rule()), s.rule() == rule, Reverse(s.rule()));
    let crowd = view
        .iter()
        .max_by_key(|s| most(s))
        .map_or(rule, |s| s.rule());
    let entry = rules.get(crowd);
    let nearest = view
        .iter()
        .enumerate()
        .filter(|(_, s)| s.rule() == crowd)
        .map(|(rank, s)| (entry.bring_up(s.word()).0.debt_ns(now), rank))
        .min();
    let (debt, rank) = nearest.unwrap_or((1, 0));
    (rank, debt > 0)
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
