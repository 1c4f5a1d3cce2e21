//! From an arrival to the end of its slot: what one entry goes through.
use super::class;
use super::entry::{self, By, Entry, get, get_mut};
use super::limiter::Done;
use super::measure::nanos;
use super::{Arrival, Completion, EntryId, Feedback, LEVELS, LINES, Nanos, Notice, Pool, Reason};

impl Pool<'_> {
    /// Notes an arrival in a free entry, in no list yet.
    pub(super) fn note(&mut self, a: &Arrival, level: usize, now: u64) -> Option<EntryId> {
        let index = self.take_free()?;
        let entry = get_mut(self.entries, index)?;
        entry.level = level as u8;
        entry.cohort = a.cohort;
        entry.route = a.route;
        entry.flags = (u8::from(a.blind) * entry::BLIND) | (u8::from(a.exempt) * entry::EXEMPT);
        entry.line = a.line;
        entry.ticket = a.ticket;
        entry.since = a.since.0.min(now);
        entry.at = now;
        Some(EntryId {
            index,
            generation: entry.generation,
        })
    }

    pub(super) fn admit(&mut self, a: &Arrival, level: usize, now: u64) -> Option<EntryId> {
        let id = self.note(a, level, now)?;
        get_mut(self.entries, id.index)?.phase = entry::HELD;
        self.occupy(level, now);
        if !a.exempt {
            self.state.classes[level].dispatches.add(1.0, now);
            // One that asks again, since its grant was withdrawn.
            let waited = now.saturating_sub(a.since.0);
            if waited > 0 {
                self.state.counts.waited(level, waited);
            }
        }
        Some(id)
    }

    /// Takes a notice out of its line's inbox.
    pub(super) fn forget_notice(&mut self, index: u32) {
        let line = get(self.entries, index).map_or(LINES, |it| usize::from(it.line));
        if let Some(inbox) = self.state.inboxes.get_mut(line) {
            inbox.remove(self.entries, By::Place, index);
        }
    }

    /// The line hears of a notice that is in no inbox any more.
    pub(super) fn hand_over(&mut self, index: u32, now: u64) -> Notice {
        let Some(&old) = get(self.entries, index) else {
            return Notice::Withdrawn;
        };
        if old.phase == entry::GRANTED {
            self.take_up(index, now);
            return Notice::Granted;
        }
        self.free(index);
        match old.phase {
            entry::SHED => Notice::Shed(Reason::of(old.reason)),
            _ => Notice::Withdrawn,
        }
    }

    /// A grant that is in no inbox any more is taken up.
    pub(super) fn take_up(&mut self, index: u32, now: u64) {
        self.state.wheel.remove(self.entries, index);
        if let Some(entry) = get_mut(self.entries, index) {
            entry.phase = entry::HELD;
            let (level, waited) = (usize::from(entry.level), now.saturating_sub(entry.since));
            self.state.counts.waited(level, waited);
        }
    }

    /// Nobody asks for an entry any more, whatever it is; what the backend works on
    /// without anybody stays.
    pub(super) fn drop_entry(&mut self, index: u32, now: u64) {
        let Some(&old) = get(self.entries, index) else {
            return;
        };
        let level = self.level(old.level);
        match old.phase {
            entry::WAITING => self.dequeue(index),
            entry::HELD => self.vacate(level, now),
            entry::GRANTED => {
                self.forget_notice(index);
                self.state.wheel.remove(self.entries, index);
                self.vacate(level, now);
            }
            entry::SHED | entry::WITHDRAWN => self.forget_notice(index),
            _ => return,
        }
        self.free(index);
    }

    /// A request that held a slot has ended.
    pub(super) fn end(&mut self, index: u32, c: &Completion, now: u64) {
        let Some(&old) = get(self.entries, index) else {
            return;
        };
        let done = Done {
            dispatched: Nanos(old.at),
            response: match c.feedback {
                Feedback::Response(time) if !c.abandoned => Some(time),
                _ => None,
            },
            error: c.feedback == Feedback::Error,
            route: old.route,
            level: old.level,
            found_waiter: self.state.waiting > 0,
        };
        let state = &mut *self.state;
        state.limiter.complete(&done, &mut state.routes, Nanos(now));
        let level = self.level(old.level);
        if c.abandoned
            && let Some(until) = self.works_until(&old).filter(|&it| it > now)
            && let Some(entry) = get_mut(self.entries, index)
        {
            entry.phase = entry::GHOST;
            entry.due = until;
            self.state.wheel.insert(self.entries, index);
            self.state.ghosts = self.state.ghosts.saturating_add(1);
            return;
        }
        self.vacate(level, now);
        self.learn_slot(&old, now);
        self.free(index);
    }

    /// Until when the backend works on a request whose client is gone.
    fn works_until(&self, entry: &Entry) -> Option<u64> {
        let state = &*self.state;
        let usual_ns = state
            .routes
            .usual_ns(entry.route)
            .map(|it| nanos(it / 1e9).0)
            .or(state.slot_s.any().map(|it| nanos(it).0))?;
        Some(
            entry
                .at
                .saturating_add(usual_ns.min(state.settings.timeout_ns)),
        )
    }

    /// After a change of `max_wait`.
    pub(super) fn set_deadlines(&mut self, now: u64) {
        let max_wait = self.state.settings.max_wait_ns;
        for index in 0..self.entries.len() as u32 {
            if get(self.entries, index).is_some_and(|it| it.phase == entry::WAITING) {
                self.set_deadline(index, max_wait, now);
            }
        }
    }

    /// Of a waiter whose class has changed, or what is configured.
    pub(super) fn set_deadline(&mut self, index: u32, max_wait: u64, now: u64) {
        self.state.wheel.remove(self.entries, index);
        let Some(entry) = get_mut(self.entries, index) else {
            return;
        };
        let level = usize::from(entry.level).min(LEVELS - 1);
        let since = self.state.classes[level].since(now);
        let blind = entry.is(entry::BLIND);
        // What it should have been may be past.
        entry.due = class::deadline(level, blind, max_wait, since, entry.since).max(now);
        self.state.wheel.insert(self.entries, index);
    }
}

impl Reason {
    fn of(bits: u8) -> Reason {
        match bits {
            0 => Reason::Full,
            1 => Reason::Evicted,
            3 => Reason::Hopeless,
            _ => Reason::Timeout,
        }
    }
}
