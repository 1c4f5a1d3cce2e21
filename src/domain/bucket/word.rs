//! The bucket arithmetic of the shared memory: a token bucket as one 64-bit
//! word.
//!
//! A token bucket that refills continuously is the same thing as the generic
//! cell rate algorithm, whose only state is a theoretical arrival time (TAT):
//! the instant at which the bucket will be full again. With `E` nanoseconds per
//! token, what is spent at `now` is `(tat - now) / E` tokens, never less than
//! none, and a request of `cost` tokens is admitted when
//! `max(tat, now) + cost × E - now` is at most `capacity × E`. All of it is
//! whole numbers, so it is exact: waiting `wait_ns` is enough, and one
//! nanosecond less is not.
//!
//! ```text
//!  63    60 59                                                        0
//! +--------+-----------------------------------------------------------+
//! | epoch  | tat_ns: CLOCK_MONOTONIC of the instant at which it is full |
//! +--------+-----------------------------------------------------------+
//! ```
//!
//! The epoch is the number, modulo 16, of the change of the rule's limit under
//! which the TAT was written: a TAT means tokens only together with its limit.
//! A word of an older epoch is carried forward by [`carry`] before anything is
//! decided by it.
//!
//! (GCRA: ITU-T I.371; as a limiter: Brandur Leach's redis-cell, `governor`.)
use crate::domain::units::Nanos;

/// Longest time to fill that a word can carry: 2^59 ns, 18 years. Longer limits
/// (a small share of a slow rate) refill faster than they were meant to.
pub const MAX_FILL_NS: u64 = 1 << 59;
/// How many epochs a word can tell apart.
pub const EPOCHS: u64 = 16;
/// A TAT further ahead than empty by more than this is damage. By less it is
/// another worker's clock reading, taken a little later than ours.
pub const SLACK_NS: u64 = 1_000_000_000;

const TAT_BITS: u32 = 60;
const TAT_MASK: u64 = (1 << TAT_BITS) - 1;
const _: () = assert!(MAX_FILL_NS + SLACK_NS < TAT_MASK);
const _: () = assert!(EPOCHS == 1 << (64 - TAT_BITS));

/// A bucket's rate and size. [`Limit::new`] keeps both inside what a word can
/// carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Nanoseconds per token, at least 1.
    pub emission_ns: u64,
    /// Tokens, at least 1.
    pub capacity: u32,
}

impl Limit {
    /// Clamps capacity to at least 1 and the time to fill to [`MAX_FILL_NS`].
    pub fn new(emission_ns: u64, capacity: u32) -> Limit {
        let capacity = capacity.max(1);
        Limit {
            emission_ns: emission_ns.clamp(1, MAX_FILL_NS / u64::from(capacity)),
            capacity,
        }
    }

    /// Time from empty to full, at most [`MAX_FILL_NS`].
    pub fn fill_ns(self) -> u64 {
        self.emission_ns
            .saturating_mul(u64::from(self.capacity))
            .min(MAX_FILL_NS)
    }

    /// What a cost is worth in time. More than the capacity is never asked for:
    /// it could not be admitted at any time.
    fn price_ns(self, cost: u32) -> u64 {
        self.emission_ns
            .saturating_mul(u64::from(cost.min(self.capacity)))
            .min(MAX_FILL_NS)
    }
}

/// A limit and the instant from which it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    pub at: Nanos,
    pub limit: Limit,
}

/// The limit that decides, and the number that words written under it carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InForce {
    pub epoch: u8,
    pub limit: Limit,
}

/// What a bucket says of one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    pub admitted: bool,
    /// Whole tokens left after this request.
    pub remaining: u32,
    /// Refused: until the cost fits. Admitted: until the bucket is full.
    pub wait_ns: u64,
    /// In force, whatever the caller believes.
    pub capacity: u32,
    /// In force, whatever the caller believes.
    pub emission_ns: u64,
}

/// State of one bucket; drawn at the head of this module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Word(pub u64);

impl Word {
    pub fn new(epoch: u8, tat: Nanos) -> Word {
        Word((u64::from(epoch) % EPOCHS) << TAT_BITS | tat.0.min(TAT_MASK))
    }

    pub fn epoch(self) -> u8 {
        (self.0 >> TAT_BITS) as u8
    }

    pub fn tat(self) -> Nanos {
        Nanos(self.0 & TAT_MASK)
    }

    /// How long until the bucket is full, if the word is of the epoch in force.
    pub fn debt_ns(self, now: Nanos) -> u64 {
        self.tat().0.saturating_sub(now.0)
    }

    /// Whether evicting the bucket would lose nothing. A word of another epoch
    /// never counts as full: its TAT was written under another rate.
    pub fn is_full(self, epoch: u8, now: Nanos) -> bool {
        self.epoch() == epoch && self.tat() <= now
    }
}

/// Decides a request of `cost` tokens at `now` by a word of the epoch in force
/// (else [`carry`] it first; of a bucket that does not exist, [`full`]).
///
/// The word that comes back is to be stored when it differs: the charge of what
/// was admitted, or the repair of a TAT that was beyond empty.
pub fn decide(word: Word, force: InForce, cost: u32, now: Nanos) -> (Word, Outcome) {
    let InForce { epoch, limit } = force;
    let (fill, price) = (limit.fill_ns(), limit.price_ns(cost));
    let mut debt = word.debt_ns(now);
    let mut word = word;
    if debt > fill + SLACK_NS {
        debt = fill;
        word = Word::new(epoch, Nanos(now.0.saturating_add(debt)));
    }
    let admitted = debt + price <= fill;
    let wait_ns;
    if admitted {
        debt += price;
        wait_ns = debt;
        if price > 0 {
            word = Word::new(epoch, Nanos(now.0.saturating_add(debt)));
        }
    } else {
        wait_ns = debt + price - fill;
    }
    let remaining = (fill.saturating_sub(debt) / limit.emission_ns).min(u64::from(u32::MAX)) as u32;
    let Limit {
        emission_ns,
        capacity,
    } = limit;
    (
        word,
        Outcome {
            admitted,
            remaining,
            wait_ns,
            capacity,
            emission_ns,
        },
    )
}

/// The word of a bucket that has not been used.
pub fn full(force: InForce, now: Nanos) -> Word {
    Word::new(force.epoch, now)
}

/// Gives `cost` tokens back; never beyond full.
pub fn undo(word: Word, force: InForce, cost: u32, now: Nanos) -> Word {
    let debt = word.debt_ns(now).saturating_sub(force.limit.price_ns(cost));
    Word::new(force.epoch, Nanos(now.0.saturating_add(debt)))
}

/// A word that owes what both owe, at most everything.
pub fn merge(a: Word, b: Word, force: InForce, now: Nanos) -> Word {
    let debt = a
        .debt_ns(now)
        .saturating_add(b.debt_ns(now))
        .min(force.limit.fill_ns());
    Word::new(force.epoch, Nanos(now.0.saturating_add(debt)))
}

/// Carries a TAT written under `from` through the changes that came later, in
/// their order. At each, spent = min(spent just before, new capacity),
/// refilling at the new rate from then on. Fractions of a nanosecond are
/// rounded towards owing more, one at most per change.
pub fn carry(tat: Nanos, from: Limit, later: impl IntoIterator<Item = Change>) -> Nanos {
    let (mut tat, mut limit) = (tat, from);
    for change in later {
        let debt = u128::from(tat.0.saturating_sub(change.at.0));
        let spent = (debt * u128::from(change.limit.emission_ns))
            .div_ceil(u128::from(limit.emission_ns.max(1)))
            .min(u128::from(change.limit.fill_ns()));
        // At most MAX_FILL_NS after the minimum.
        tat = Nanos(change.at.0.saturating_add(spent as u64));
        limit = change.limit;
    }
    tat
}

#[cfg(test)]
#[path = "word_tests.rs"]
mod tests;
