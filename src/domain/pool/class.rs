//! The waiters of one level: 256 sub-queues, one a cohort of clients.
use super::entry::{self, BLIND, By, Entry, List, get};
use super::fair::Fair;
use super::measure::Second;
use super::{COHORTS, NONE};

const MS: u64 = 1_000_000;
/// A class that was empty within this time serves the oldest first.
pub(super) const CALM_NS: u64 = 100 * MS;
/// Who has not been empty for this long waits no longer than `STANDING_NS`.
pub(super) const STANDS_AFTER_NS: u64 = 500 * MS;
/// By level; levels below the last as the last.
const STANDING_NS: [u64; 4] = [u64::MAX, 1000 * MS, 500 * MS, 300 * MS];
/// Nobody would notice that its client left.
const BLIND_NS: u64 = 1000 * MS;

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Class {
    queues: [List; COHORTS],
    lengths: [u16; COHORTS],
    /// Which are not empty.
    active: [u64; COHORTS / 64],
    fair: Fair<COHORTS>,
    pub(super) blind: List,
    pub(super) waiting: u32,
    /// The cohort that was served last.
    last: u32,
    /// When it became what it is, not empty. A wait in the class lies wholly
    /// behind it, so what follows from it is known when the wait begins.
    since: u64,
    pub(super) dispatches: Second,
}

impl Class {
    pub(super) const fn new() -> Class {
        Class {
            queues: [List::EMPTY; COHORTS],
            lengths: [0; COHORTS],
            active: [0; COHORTS / 64],
            fair: Fair::new(),
            blind: List::EMPTY,
            waiting: 0,
            last: 0,
            since: 0,
            dispatches: Second::new(),
        }
    }

    /// Forgets its waiters, keeps what it measured.
    pub(super) fn clear(&mut self) {
        *self = Class {
            dispatches: self.dispatches,
            ..Class::new()
        };
    }

    /// Since when the class has not been empty.
    pub(super) fn since(&self, now: u64) -> u64 {
        if self.waiting == 0 {
            now
        } else {
            self.since.min(now)
        }
    }

    /// After a rebuild: not before the first of its waiters came.
    pub(super) fn set_since(&mut self, since: u64) {
        self.since = since;
    }

    pub(super) fn raw_since(&self) -> u64 {
        self.since
    }

    /// It has not been empty of late: the newest goes first.
    pub(super) fn stands(&self, now: u64) -> bool {
        now - self.since(now) > CALM_NS
    }

    pub(super) fn active(&self) -> u32 {
        self.active.iter().map(|word| word.count_ones()).sum()
    }

    pub(super) fn length(&self, cohort: u8) -> u32 {
        u32::from(self.lengths[usize::from(cohort)])
    }

    /// The longest sub-queue; of several the one with the highest number.
    pub(super) fn longest(&self) -> Option<u8> {
        let (mut found, mut most) = (0, 0);
        for (cohort, &length) in self.lengths.iter().enumerate() {
            if length >= most {
                (found, most) = (cohort, length);
            }
        }
        (most > 0).then_some(found as u8)
    }

    pub(super) fn oldest_of(&self, cohort: u8) -> u32 {
        self.queues[usize::from(cohort)].head
    }

    /// Puts a waiter into its sub-queue: behind the others, but where the oldest is
    /// served first one that asked before all of them goes before them.
    pub(super) fn push(&mut self, entries: &mut [Entry], index: u32, now: u64) {
        let Some(&new) = get(entries, index) else {
            return;
        };
        if self.waiting == 0 {
            self.since = now;
            self.fair.settle();
        }
        let cohort = usize::from(new.cohort);
        let queue = &mut self.queues[cohort];
        let first = get(entries, queue.head).map(|it| it.since);
        if now.saturating_sub(self.since) <= CALM_NS && first.is_some_and(|it| new.since < it) {
            queue.push_front(entries, By::Place, index);
        } else {
            queue.push_back(entries, By::Place, index);
        }
        if self.lengths[cohort] == 0 {
            self.active[cohort / 64] |= 1 << (cohort % 64);
            self.fair.join(cohort);
        }
        self.lengths[cohort] = self.lengths[cohort].saturating_add(1);
        self.waiting = self.waiting.saturating_add(1);
        if new.is(BLIND) {
            self.blind.push_back(entries, By::Blindness, index);
        }
    }

    pub(super) fn remove(&mut self, entries: &mut [Entry], index: u32) {
        let Some(&old) = get(entries, index) else {
            return;
        };
        let cohort = usize::from(old.cohort);
        self.queues[cohort].remove(entries, By::Place, index);
        self.lengths[cohort] = self.lengths[cohort].saturating_sub(1);
        if self.lengths[cohort] == 0 {
            self.active[cohort / 64] &= !(1 << (cohort % 64));
        }
        self.waiting = self.waiting.saturating_sub(1);
        if old.is(BLIND) {
            self.blind.remove(entries, By::Blindness, index);
        }
    }

    /// Who is next: of the sub-queue whose turn it is the oldest, or in a class that
    /// stands the newest. None: nobody waits, or the links are broken.
    pub(super) fn next(&mut self, entries: &[Entry], now: u64) -> Option<u32> {
        let cohort = self.fair.next(self.turns())?;
        self.last = cohort as u32;
        let queue = &self.queues[cohort];
        let index = if self.stands(now) {
            queue.tail
        } else {
            queue.head
        };
        get(entries, index)
            .filter(|it| it.phase == entry::WAITING && usize::from(it.cohort) == cohort)
            .map(|_| index)
    }

    /// A waiter of that cohort is served.
    pub(super) fn charge(&mut self, cohort: u8, cost: f64) {
        self.fair.charge(usize::from(cohort), cost);
    }

    /// The active cohorts, beginning behind the one that was served last.
    fn turns(&self) -> impl Iterator<Item = usize> + use<> {
        let active = self.active;
        let first = (self.last as usize + 1) % COHORTS;
        let (word, bit) = (first / 64, first % 64);
        (0..=active.len()).flat_map(move |turn| {
            let at = (word + turn) % active.len();
            let mut bits = active[at];
            if turn == 0 {
                bits &= u64::MAX << bit;
            }
            if turn == active.len() {
                bits &= !(u64::MAX << bit);
            }
            std::iter::from_fn(move || {
                let next = bits.trailing_zeros() as usize;
                bits &= bits.wrapping_sub(1);
                (next < 64).then_some(at * 64 + next)
            })
        })
    }

    /// The links of the sub-queue whose turn it was are broken: its waiters are out
    /// of reach until a rebuild. How many they were.
    pub(super) fn abandon(&mut self) -> u32 {
        let (cohort, before) = (self.last as usize % COHORTS, self.waiting);
        let lost = u32::from(std::mem::take(&mut self.lengths[cohort]));
        self.queues[cohort] = List {
            head: NONE,
            tail: NONE,
        };
        self.active[cohort / 64] &= !(1 << (cohort % 64));
        self.waiting = self.waiting.saturating_sub(lost);
        if self.active() == 0 {
            self.waiting = 0;
        }
        before - self.waiting
    }

    #[cfg(test)]
    pub(super) fn queues(&self) -> impl Iterator<Item = (u8, List, u32)> {
        self.queues
            .iter()
            .zip(&self.lengths)
            .enumerate()
            .map(|(cohort, (list, length))| (cohort as u8, *list, u32::from(*length)))
    }

    #[cfg(test)]
    pub(super) fn active_bits(&self) -> [u64; COHORTS / 64] {
        self.active
    }
}

/// The longest wait while the class is calm.
pub(super) fn calm_bound(level: usize, blind: bool, max_wait: u64) -> u64 {
    if blind && level > 0 {
        max_wait.min(BLIND_NS)
    } else {
        max_wait
    }
}

/// The longest wait in a class that has not been empty since then.
pub(super) fn bound(level: usize, blind: bool, max_wait: u64, since: u64, now: u64) -> u64 {
    let calm = calm_bound(level, blind, max_wait);
    if level > 0 && now.saturating_sub(since) >= STANDS_AFTER_NS {
        calm.min(standing(level))
    } else {
        calm
    }
}

/// When the wait of a request that first asked at `asked` is over, whatever becomes
/// of the class while it waits: it will not be empty, so it will stand from a time
/// that is known.
pub(super) fn deadline(level: usize, blind: bool, max_wait: u64, since: u64, asked: u64) -> u64 {
    let calm = asked.saturating_add(calm_bound(level, blind, max_wait));
    let stands = since.saturating_add(STANDS_AFTER_NS);
    calm.min(asked.saturating_add(standing(level)).max(stands))
}

fn standing(level: usize) -> u64 {
    STANDING_NS[level.min(STANDING_NS.len() - 1)]
}

#[cfg(test)]
impl Class {
    pub(super) fn scramble(&mut self, bits: &mut dyn FnMut() -> u64) {
        self.queues.iter_mut().for_each(|it| it.scramble(bits));
        self.lengths = std::array::from_fn(|_| bits() as u16);
        self.active = std::array::from_fn(|_| bits());
        self.fair.scramble(bits);
        self.blind.scramble(bits);
        self.waiting = bits() as u32;
        self.last = bits() as u32;
        self.since = bits();
        self.dispatches.scramble(bits);
    }
}
