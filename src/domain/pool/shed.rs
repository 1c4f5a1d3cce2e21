//! Who is not let wait, and who has to stop: the hopeless at once, the less
//! important for the more important, and everybody whose time is up.
use super::class::{self, Class};
use super::entry::{self, By, List, get, get_mut};
use super::measure::seconds;
use super::{Arrival, LEVELS, Pool, Reason, Wakes};

/// How many waiters too many one arrival sends away.
const TRIMMED: usize = 16;

/// What an arrival would come to.
pub(super) enum Verdict {
    Admit,
    /// In the place of up to two others.
    Wait([Option<(u32, Reason)>; 2]),
    Shed(Reason),
}

impl Pool<'_> {
    /// What an arrival would come to, without changing anything.
    pub(super) fn judge(&self, a: &Arrival, now: u64) -> Verdict {
        let level = self.arrival_level(a.level);
        let limit = self.limit(now);
        if get(self.entries, self.state.free.head).is_none() {
            return Verdict::Shed(Reason::Full);
        }
        if self.room(level, limit, now) {
            return Verdict::Admit;
        }
        let class = &self.state.classes[level];
        let settings = &self.state.settings;
        let since = class.since(now);
        let asked = a.since.0.min(now);
        let due = class::deadline(level, a.blind, settings.max_wait_ns, since, asked);
        if due <= now {
            return Verdict::Shed(Reason::Timeout);
        }
        let bound = class::bound(level, a.blind, settings.max_wait_ns, since, now);
        let rate = self.rate(level, limit, now);
        let stands = class.stands(now);
        if let Some(rate) = rate
            && !stands
        {
            let left = bound.saturating_sub(now - asked);
            if expected_s(class, level, a.cohort, rate) > seconds(left) {
                return Verdict::Shed(Reason::Hopeless);
            }
        }

        let mut victims = [None; 2];
        let mut own = 0;
        if a.blind && self.state.blind >= settings.capacity / 4 {
            let Some((from, victim)) = self.blind_victim(level, stands) else {
                return Verdict::Shed(Reason::Full);
            };
            victims[0] = Some((victim, Reason::Evicted));
            own = u32::from(from == level);
        }
        let waiting = class.waiting.saturating_sub(own);
        if waiting >= self.most(level, rate, limit, now) {
            // Where the oldest goes first, an arrival whose own sub-queue is the longest has
            // been hopeless before it comes to this: (length + 1) × active > D_c × bound.
            let longest = class.longest();
            victims[1] = longest.map(|it| (class.oldest_of(it), Reason::Hopeless));
        }
        if victims == [None; 2] && self.state.waiting >= settings.capacity {
            let Some(victim) = self.victim(level, stands) else {
                return Verdict::Shed(Reason::Full);
            };
            victims[0] = Some((victim, Reason::Evicted));
        }
        Verdict::Wait(victims)
    }

    /// Makes room for an arrival that will wait.
    pub(super) fn make_room(
        &mut self,
        level: usize,
        victims: [Option<(u32, Reason)>; 2],
        now: u64,
        wakes: &mut Wakes,
    ) {
        for (victim, reason) in victims.into_iter().flatten() {
            self.shed(victim, reason, wakes);
        }
        if victims[1].is_none() {
            return;
        }
        // The bound may have fallen far below what waits already.
        let limit = self.limit(now);
        let most = self.most(level, self.rate(level, limit, now), limit, now);
        for _ in 0..TRIMMED {
            let class = &self.state.classes[level];
            let Some(cohort) = class.longest().filter(|_| class.waiting >= most) else {
                return;
            };
            self.shed(class.oldest_of(cohort), Reason::Hopeless, wakes);
        }
    }

    /// D and D_c: how many of the class the backend will serve in a second. None:
    /// too little is known.
    fn rate(&self, level: usize, limit: u32, now: u64) -> Option<f64> {
        let state = &*self.state;
        let slot_s = state.slot_s.get()?;
        // A gateway without a share has no rate of its own yet.
        let all = f64::from(Some(limit).filter(|&it| it > 0)?) / slot_s.max(1e-9);
        if level == 0 {
            return Some(all);
        }
        let weight = |it: usize| f64::from(state.settings.weights[it].max(1));
        let standing: f64 = (1..LEVELS)
            .filter(|&it| it == level || state.classes[it].stands(now))
            .map(weight)
            .sum();
        // Level 0 may take all there is, but for what the others are kept of it.
        let kept = all * self.least_share(now);
        let left = (all - self.dispatched_per_s(0, now)).max(kept);
        let share = left * weight(level) / standing;
        // No class is served faster than all are: after one dispatch in the last
        // second the next need not follow within a second.
        Some(self.dispatched_per_s(level, now).max(share).min(all))
    }

    fn dispatched_per_s(&self, level: usize, now: u64) -> f64 {
        let span = super::measure::Second::span(now, 0);
        self.state.classes[level].dispatches.sum(now) / span
    }

    /// How many of a class may wait.
    fn most(&self, level: usize, rate: Option<f64>, limit: u32, now: u64) -> u32 {
        let Some(rate) = rate else {
            return u32::MAX;
        };
        let since = self.state.classes[level].since(now);
        let max_wait = self.state.settings.max_wait_ns;
        let bound = class::bound(level, false, max_wait, since, now);
        limit.max((rate * seconds(bound)) as u32)
    }

    /// Whose place an arrival takes where all are taken: in the lowest class below
    /// its own, or its own if that stands.
    fn victim(&self, level: usize, stands: bool) -> Option<u32> {
        let classes = &self.state.classes;
        let lowest = (level + 1..LEVELS)
            .rev()
            .find(|&it| classes[it].waiting > 0);
        let class = &classes[lowest.or(stands.then_some(level))?];
        class.longest().map(|it| class.oldest_of(it))
    }

    /// The same among the blind, who are few: the oldest.
    fn blind_victim(&self, level: usize, stands: bool) -> Option<(usize, u32)> {
        let has = |it: usize| get(self.entries, self.state.classes[it].blind.head).is_some();
        let lowest = (level + 1..LEVELS).rev().find(|&it| has(it));
        let from = lowest.or((stands && has(level)).then_some(level))?;
        Some((from, self.state.classes[from].blind.head))
    }

    /// Ends a wait; its line is told.
    pub(super) fn shed(&mut self, index: u32, reason: Reason, wakes: &mut Wakes) {
        let Some(&old) = get(self.entries, index) else {
            return;
        };
        if old.phase != entry::WAITING {
            return;
        }
        self.dequeue(index);
        if let Some(entry) = get_mut(self.entries, index) {
            entry.phase = entry::SHED;
            entry.reason = reason as u8;
        }
        self.state.counts.shed(self.level(old.level), reason);
        self.tell(index, wakes);
    }

    /// Takes a waiter out of its class and of the wheel.
    pub(super) fn dequeue(&mut self, index: u32) {
        let Some(&old) = get(self.entries, index) else {
            return;
        };
        self.state.wheel.remove(self.entries, index);
        let level = self.level(old.level);
        self.state.classes[level].remove(self.entries, index);
        self.fewer_waiting(level, 1);
        if old.is(entry::BLIND) {
            self.state.blind = self.state.blind.saturating_sub(1);
        }
    }

    pub(super) fn fewer_waiting(&mut self, level: usize, fewer: u32) {
        let state = &mut *self.state;
        state.waiting = state.waiting.saturating_sub(fewer);
        if state.classes[level].waiting == 0 {
            state.levels &= !(1 << level);
        }
    }

    /// Puts an entry whose fields are set among the waiters.
    pub(super) fn enqueue(&mut self, index: u32, now: u64) {
        let Some(&new) = get(self.entries, index) else {
            return;
        };
        let level = self.level(new.level);
        let state = &mut *self.state;
        let class = &mut state.classes[level];
        if class.waiting == 0 {
            if state.levels <= 1 {
                state.shares.settle();
            }
            state.shares.join(level);
        }
        class.push(self.entries, index, now);
        state.levels |= 1 << level;
        state.waiting = state.waiting.saturating_add(1);
        let blind = new.is(entry::BLIND);
        state.blind = state.blind.saturating_add(u32::from(blind));
        let (since, max_wait) = (class.since(now), state.settings.max_wait_ns);
        if let Some(entry) = get_mut(self.entries, index) {
            entry.phase = entry::WAITING;
            entry.due = class::deadline(level, blind, max_wait, since, new.since);
        }
        state.wheel.insert(self.entries, index);
    }

    /// What time alone ends.
    pub(super) fn expire(&mut self, now: u64, wakes: &mut Wakes) {
        // Each entry once, unless links go in circles.
        for _ in 0..=self.entries.len() {
            let Some(index) = self.state.wheel.pop(self.entries, now) else {
                return;
            };
            let Some(&old) = get(self.entries, index) else {
                continue;
            };
            let level = self.level(old.level);
            match old.phase {
                entry::WAITING => self.shed(index, Reason::Timeout, wakes),
                entry::GRANTED => {
                    // It is in its line's inbox, and stays there with other news.
                    self.vacate(level, now);
                    if let Some(entry) = get_mut(self.entries, index) {
                        entry.phase = entry::WITHDRAWN;
                    }
                    wakes.add(old.line);
                }
                entry::GHOST => {
                    self.vacate(level, now);
                    self.learn_slot(&old, now);
                    self.state.ghosts = self.state.ghosts.saturating_sub(1);
                    self.free(index);
                }
                _ => {}
            }
        }
    }

    /// A free place in the memory.
    pub(super) fn take_free(&mut self) -> Option<u32> {
        let index = self.state.free.pop_front(self.entries, By::Place)?;
        let Some(entry) = get_mut(self.entries, index).filter(|it| it.phase == entry::FREE) else {
            // A broken list, whose places are out of reach until a rebuild.
            self.state.free = List::EMPTY;
            return None;
        };
        entry.generation = entry.generation.wrapping_add(1);
        Some(index)
    }

    /// The entry is in no list any more.
    pub(super) fn free(&mut self, index: u32) {
        if let Some(entry) = get_mut(self.entries, index) {
            entry.phase = entry::FREE;
            self.state.free.push_front(self.entries, By::Place, index);
        }
    }

    /// Of an entry: it keeps its level where later fewer are configured.
    pub(super) fn level(&self, level: u8) -> usize {
        usize::from(level).min(LEVELS - 1)
    }

    /// Of an arrival: what is below the last level is the last.
    pub(super) fn arrival_level(&self, level: u8) -> usize {
        let levels = self.state.settings.levels.clamp(1, LEVELS as u32);
        usize::from(level).min(levels as usize - 1)
    }
}

/// What a class that serves the oldest first lets an arrival expect, in seconds.
fn expected_s(class: &Class, level: usize, cohort: u8, rate: f64) -> f64 {
    let ahead = if level == 0 {
        f64::from(class.waiting) + 1.0
    } else {
        let own = class.length(cohort);
        let active = class.active() + u32::from(own == 0);
        (f64::from(own) + 1.0) * f64::from(active)
    };
    ahead / rate
}
