//! Who gets the next free slot: level 0 before all; the others by weight, and at
//! least a small share together, but never the slots that are kept for level 0, and
//! not all at once.
use super::entry::{self, By, Entry, get, get_mut};
use super::measure::{TenSeconds, seconds};
use super::{LEVELS, Nanos, Pool, Wakes};

/// A grant that its worker does not take up in this time is withdrawn.
pub(super) const GRANT_NS: u64 = 50_000_000;
/// The most that the levels below 0 are kept together, of all dispatches.
const SHARE: f64 = 0.1;
/// They are kept nothing where level 0 asks for this much of the capacity.
const CORE_MOST: f64 = 0.9;
/// Others that take this many times as long as level 0 leave it a reserve.
const LONG: f64 = 3.0;
/// Sums of seconds are not exact, and must not round up to a slot more.
const ROUNDING: f64 = 1e-6;
/// The cost of a request where nothing is known of its like.
const COST_NS: f64 = 1e6;
/// Shares are rates: in a pool that is younger than this, as if it were this old.
const LEAST_SPAN_S: f64 = 1.0;

impl Pool<'_> {
    /// The limit in force. Of a cluster: this gateway's share while its lease runs,
    /// then what remains to it without the others.
    pub(super) fn limit(&self, now: u64) -> u32 {
        let state = &*self.state;
        if state.settings.cluster == 0 || state.leased == 0 {
            state.limiter.limit()
        } else if now < state.share_until {
            state.share
        } else {
            state.fallback.max(1)
        }
    }

    /// Gives free slots to who waits for them, as many as there are.
    pub(super) fn dispatch(&mut self, now: u64, wakes: &mut Wakes) {
        if self.state.waiting == 0 {
            return;
        }
        let limit = self.limit(now);
        // Each turn ends a wait, or gives up a broken sub-queue: bounded even where
        // the counters lie.
        for _ in 0..self.entries.len() + LEVELS * super::COHORTS {
            if self.state.taken >= limit || self.state.waiting == 0 {
                return;
            }
            let Some(level) = self.turn(limit, now) else {
                return;
            };
            let Some(index) = self.state.classes[level].next(self.entries, now) else {
                let lost = self.state.classes[level].abandon();
                self.fewer_waiting(level, lost);
                continue;
            };
            if get(self.entries, index).is_some_and(|it| it.due <= now) {
                self.shed(index, super::Reason::Timeout, wakes);
            } else {
                self.grant(level, index, now, wakes);
            }
        }
    }

    /// Whether the backend has room for a request of that level, whoever waits.
    pub(super) fn room(&self, level: usize, limit: u32, now: u64) -> bool {
        self.state.taken < limit && (level == 0 || self.room_for_others(limit, now))
    }

    /// The level that the next slot is for.
    fn turn(&mut self, limit: u32, now: u64) -> Option<usize> {
        let state = &*self.state;
        let core = state.levels & 1 == 1;
        let others = state.levels > 1;
        if core && !(others && state.owed >= 1.0 && self.room_for_others(limit, now)) {
            return Some(0);
        }
        if !others || !core && !self.room_for_others(limit, now) {
            return None;
        }
        let waiting = state.levels;
        state
            .shares
            .next((1..LEVELS).filter(|it| waiting >> it & 1 == 1))
    }

    fn grant(&mut self, level: usize, index: u32, now: u64, wakes: &mut Wakes) {
        self.account(level, now);
        let Some(&old) = get(self.entries, index) else {
            return;
        };
        self.dequeue(index);
        let cost = self.cost(old.route);
        self.state.classes[level].charge(old.cohort, cost);
        let weight = self.state.settings.weights[level].max(1);
        self.state.shares.charge(level, cost / f64::from(weight));
        self.occupy(level, now);
        self.state.classes[level].dispatches.add(1.0, now);
        if let Some(entry) = get_mut(self.entries, index) {
            entry.phase = entry::GRANTED;
            entry.at = now;
            entry.due = now.saturating_add(GRANT_NS);
        }
        self.state.wheel.insert(self.entries, index);
        self.tell(index, wakes);
    }

    /// Puts the entry into its line's inbox.
    pub(super) fn tell(&mut self, index: u32, wakes: &mut Wakes) {
        let Some(line) = get(self.entries, index).map(|it| it.line) else {
            return;
        };
        if let Some(inbox) = self.state.inboxes.get_mut(usize::from(line)) {
            inbox.push_back(self.entries, By::Place, index);
            wakes.add(line);
        }
    }

    /// Keeps the books of the least share, before a waiter of `level` is served: all
    /// of them earn their part of each dispatch while any of them waits.
    fn account(&mut self, level: usize, now: u64) {
        if self.state.levels <= 1 {
            self.state.owed = 0.0;
            return;
        }
        let mut owed = self.state.owed + self.least_share(now);
        if level > 0 {
            owed -= 1.0;
        }
        // No more than a dispatch is saved up, or they would come in a row.
        self.state.owed = owed.clamp(0.0, 1.0 + SHARE);
    }

    /// What the levels below 0 are kept together, of all dispatches.
    pub(super) fn least_share(&self, now: u64) -> f64 {
        (CORE_MOST - self.core_asks(now)).clamp(0.0, SHARE)
    }

    /// ρ₁: how much of the capacity level 0 asks for.
    fn core_asks(&self, now: u64) -> f64 {
        let state = &*self.state;
        let limit = f64::from(self.limit(now).max(1));
        let slot_s = state.core_slot_s.any().or(state.slot_s.any());
        let arrivals = state.core_arrivals.sum(now);
        let per_s = arrivals / TenSeconds::span(now, state.born).max(LEAST_SPAN_S);
        per_s * slot_s.unwrap_or(0.0) / limit
    }

    fn room_for_others(&self, limit: u32, now: u64) -> bool {
        let state = &*self.state;
        let core = state.in_flight[0];
        let others = state.taken.saturating_sub(core);
        let kept = state.waiting > 0 && state.spread.keeps_ns(now) > 0;
        !kept && others < limit.saturating_sub(self.reserve(limit, now))
    }

    /// Slots that only level 0 may have: a slot that others take is gone for long.
    fn reserve(&self, limit: u32, now: u64) -> u32 {
        let state = &*self.state;
        let (Some(core), Some(other)) = (state.core_slot_s.get(), state.other_slot_s.get()) else {
            return 0;
        };
        if other <= LONG * core {
            return 0;
        }
        let mean = self.core_mean(now);
        // One slot is always left to the others.
        let kept = (mean + mean.sqrt() - ROUNDING).ceil() as u32;
        kept.min(limit.saturating_sub(1))
    }

    /// Mean of level 0's slots over the last 10 s.
    fn core_mean(&self, now: u64) -> f64 {
        let state = &*self.state;
        let span = TenSeconds::span(now, state.born).max(LEAST_SPAN_S);
        let unnoted = seconds(now.saturating_sub(state.core_held_at)).min(span);
        let pending = f64::from(state.in_flight[0]) * unnoted;
        let most = f64::from(self.limit(now));
        ((state.core_held.sum(now) + pending) / span).min(most)
    }

    /// How long a request of that route takes the backend, ns.
    fn cost(&self, route: u8) -> f64 {
        let state = &*self.state;
        let usual = state.routes.usual_ns(route);
        usual
            .or(state.slot_s.any().map(|it| it * 1e9))
            .unwrap_or(COST_NS)
            .clamp(1.0, 1e15)
    }

    /// A slot is taken.
    pub(super) fn occupy(&mut self, level: usize, now: u64) {
        self.note_core(level, now);
        let state = &mut *self.state;
        state.in_flight[level] = state.in_flight[level].saturating_add(1);
        state.taken = state.taken.saturating_add(1);
        if state.spread.is_at_work() {
            let limit = self.limit(now);
            self.state.spread.taken(limit, now);
        }
    }

    /// A slot is free.
    pub(super) fn vacate(&mut self, level: usize, now: u64) {
        self.note_core(level, now);
        let state = &mut *self.state;
        state.in_flight[level] = state.in_flight[level].saturating_sub(1);
        state.taken = state.taken.saturating_sub(1);
        if state.waiting == 0 {
            return state.spread.rest();
        }
        let limit = self.limit(now);
        self.state.spread.freed(limit, now);
    }

    /// A slot was held from `at` on, and is free. What never waits tells nothing of how
    /// fast the others get on.
    pub(super) fn learn_slot(&mut self, entry: &Entry, now: u64) {
        if entry.is(entry::EXEMPT) {
            return;
        }
        let held = seconds(now.saturating_sub(entry.at));
        if self.state.waiting > 0 {
            self.state.spread.held(held);
        }
        self.state.slot_s.add(held);
        if entry.level == 0 {
            self.state.core_slot_s.add(held);
        } else {
            self.state.other_slot_s.add(held);
        }
    }

    fn note_core(&mut self, level: usize, now: u64) {
        if level == 0 {
            let state = &mut *self.state;
            let height = f64::from(state.in_flight[0]);
            state.core_held.add_over(height, state.core_held_at, now);
            state.core_held_at = now;
        }
    }

    /// The pool's time: it never runs back.
    pub(super) fn clock(&mut self, now: Nanos) -> u64 {
        let state = &mut *self.state;
        state.now = state.now.max(now.0);
        state.now
    }
}
