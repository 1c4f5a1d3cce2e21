//! Deciding by the bucket table: find, decide, swap; again when another worker
//! was faster.
use super::line::Line;
use super::rules::{RuleId, Rules};
use super::table::{EMPTY, KeyHash, Ranked, Slot, Table, WAYS};
use crate::domain::bucket::word::{self, InForce, Outcome, Word};
use crate::domain::units::Nanos;

/// What a decision needs.
#[derive(Clone, Copy)]
pub struct Buckets<'a> {
    pub table: Table<'a>,
    pub rules: Rules<'a>,
    /// Counts what is pushed out.
    pub line: Line<'a>,
}

/// One request at one bucket.
#[derive(Clone, Copy)]
pub struct Ask {
    pub rule: RuleId,
    pub key: KeyHash,
    pub cost: u32,
    pub now: Nanos,
}

/// What became of a new bucket once the set was read again.
enum Settled {
    /// The bucket is the key's only one, or the others went into it.
    Stands(Outcome),
    /// It was undone: another holds. Decide again.
    Again,
}

impl Buckets<'_> {
    /// What a request would get. Nothing is spent, no bucket is made.
    pub fn peek(&self, ask: Ask) -> Outcome {
        let entry = self.rules.get(ask.rule);
        let (word, force) = match self.table.set(ask.key).find(ask.key.tag) {
            Some((_, slot)) => entry.bring_up(slot.word()),
            None => {
                let (_, force) = entry.in_force();
                (word::full(force, ask.now), force)
            }
        };
        word::decide(word, force, ask.cost, ask.now).1
    }

    /// Decides, and spends what is admitted.
    pub fn spend(&self, ask: Ask) -> Outcome {
        let Ask {
            rule,
            key,
            cost,
            now,
        } = ask;
        let entry = self.rules.get(rule);
        let set = self.table.set(key);
        loop {
            let (_, force) = entry.in_force();
            let crowd = match set.search(key.tag, force, now) {
                Ok((rank, seen)) => {
                    let (word, force) = if seen.word().epoch() == force.epoch {
                        (seen.word(), force)
                    } else {
                        entry.bring_up(seen.word())
                    };
                    let (word, outcome) = word::decide(word, force, cost, now);
                    let new = Slot::new(key.tag, word);
                    if new == seen || set.swap(rank, seen, new) {
                        return outcome;
                    }
                    continue;
                }
                Err(crowd) => crowd,
            };
            let full = word::full(force, now);
            let (word, outcome) = word::decide(full, force, cost, now);
            if word == full {
                return outcome;
            }
            let Some(place) = set.place(key.tag, rule, &crowd, self.rules, now) else {
                continue;
            };
            if !set.swap(place.rank, place.seen, Slot::new(key.tag, word)) {
                continue;
            }
            if place.seen == EMPTY {
                self.line.slot_taken();
            } else if place.loses {
                self.line.eviction();
            }
            match self.settle(set, place.rank, ask, force, outcome) {
                Settled::Stands(outcome) => return outcome,
                Settled::Again => {}
            }
        }
    }

    /// Gives back what `spend` took. A bucket that is gone was full or lost.
    pub fn undo(&self, ask: Ask) {
        let set = self.table.set(ask.key);
        while let Some((rank, seen)) = set.find(ask.key.tag) {
            let (word, force) = self.rules.get(ask.rule).bring_up(seen.word());
            let word = word::undo(word, force, ask.cost, ask.now);
            if set.swap(rank, seen, Slot::new(ask.key.tag, word)) {
                return;
            }
        }
    }

    /// After an insertion at rank `own`: two workers may have chosen different
    /// slots for one key. The set is read again; of two the lower holds and the
    /// other is undone.
    fn settle(
        &self,
        set: Ranked<'_>,
        own: usize,
        ask: Ask,
        force: InForce,
        mut outcome: Outcome,
    ) -> Settled {
        for rank in 0..WAYS {
            if rank == own || set.load(rank).tag() != ask.key.tag {
                continue;
            }
            if rank < own {
                let Some(word) = self.remove(set, own, ask) else {
                    // The lower one's owner took it over, with our charge.
                    return Settled::Stands(outcome);
                };
                // Without our own charge: what others had spent there meanwhile.
                let rest = word::undo(word, force, ask.cost, ask.now);
                self.add(set, rank, ask, rest);
                return Settled::Again;
            }
            if let Some(word) = self.remove(set, rank, ask) {
                outcome = self.charge_again(set, own, ask, word, outcome);
            }
        }
        Settled::Stands(outcome)
    }

    /// Empties a slot if it still is the key's, and says what stood there.
    fn remove(&self, set: Ranked<'_>, rank: usize, ask: Ask) -> Option<Word> {
        loop {
            let seen = set.load(rank);
            if seen.tag() != ask.key.tag {
                return None;
            }
            if set.swap(rank, seen, EMPTY) {
                self.line.slots_freed(1);
                return Some(self.rules.get(ask.rule).bring_up(seen.word()).0);
            }
        }
    }

    /// Adds what `more` owes to a slot, if it still is the key's.
    fn add(&self, set: Ranked<'_>, rank: usize, ask: Ask, more: Word) {
        loop {
            let seen = set.load(rank);
            if seen.tag() != ask.key.tag || more.debt_ns(ask.now) == 0 {
                return;
            }
            let (word, force) = self.rules.get(ask.rule).bring_up(seen.word());
            let word = word::merge(word, more, force, ask.now);
            if set.swap(rank, seen, Slot::new(ask.key.tag, word)) {
                return;
            }
        }
    }

    /// Our charge at rank `own` was made as on a full bucket, but `other` had
    /// been spent: decided again on top of it.
    fn charge_again(
        &self,
        set: Ranked<'_>,
        own: usize,
        ask: Ask,
        other: Word,
        outcome: Outcome,
    ) -> Outcome {
        loop {
            let seen = set.load(own);
            if seen.tag() != ask.key.tag {
                return outcome;
            }
            let (word, force) = self.rules.get(ask.rule).bring_up(seen.word());
            let before = word::undo(word, force, ask.cost, ask.now);
            let before = word::merge(before, other, force, ask.now);
            let (word, outcome) = word::decide(before, force, ask.cost, ask.now);
            if set.swap(own, seen, Slot::new(ask.key.tag, word)) {
                return outcome;
            }
        }
    }

    /// Rewrites the words of every rule to the change in force, so that epochs
    /// can be used again.
    pub fn sweep(&self) {
        let newest: Vec<_> = self.rules.0.iter().map(|entry| entry.in_force()).collect();
        self.table.rewrite(|slot| {
            let (_, force) = newest.get(slot.rule().index())?;
            let word = slot.word();
            (word.epoch() != force.epoch)
                .then(|| Slot::new(slot.tag(), self.rules.get(slot.rule()).bring_up(word).0))
                .filter(|new| *new != slot)
        });
        for (entry, (s, _)) in self.rules.0.iter().zip(newest) {
            entry.swept(s);
        }
    }

    /// Removes the buckets of the rules that `which` names.
    pub fn purge_where(&self, which: impl Fn(RuleId) -> bool) {
        let freed = self
            .table
            .rewrite(|slot| which(slot.rule()).then_some(EMPTY));
        self.line.slots_freed(freed);
    }
}

#[cfg(test)]
#[path = "bucket_tests.rs"]
mod tests;
