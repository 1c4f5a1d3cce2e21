//! A sound state out of any bits.
use super::cluster::Cluster;
use super::entry::{self, By, Entry, List, get, get_mut};
use super::measure::{Mean, TenSeconds};
use super::{COHORTS, Counts, LEVELS, LINES, Nanos, Pool, Settings, State, Wakes};
use super::{class, dispatch::GRANT_NS};

/// No slot is held longer than that: 11 days.
const LONGEST_S: f64 = 1e6;

impl Pool<'_> {
    /// Makes a pool out of any bits: nothing in flight, nothing waits, nothing counted. Ids
    /// of what lay there before name nothing.
    pub fn format(&mut self, settings: &Settings, now: Nanos) {
        for entry in self.entries.iter_mut() {
            // The next to get the place has a generation of its own.
            let generation = entry.generation;
            *entry = Entry::new();
            entry.generation = generation;
        }
        let state = &mut *self.state;
        state.settings = *settings;
        (state.now, state.born) = (now.0, now.0);
        state.routes.format();
        state.limiter.format(settings, now);
        state.counts = Counts::new();
        state.cluster = Cluster::default();
        state.leased = 0;
        (state.share, state.fallback, state.share_until) = (0, 0, 0);
        for class in state.classes.iter_mut() {
            *class = class::Class::new();
        }
        (state.slot_s, state.core_slot_s) = (Mean::new(), Mean::new());
        state.other_slot_s = Mean::new();
        (state.core_arrivals, state.core_held) = (TenSeconds::new(), TenSeconds::new());
        state.core_held_at = now.0;
        state.saturated = u32::from(state.limiter.saturated());
        self.relink(now.0);
    }

    /// A worker died: what it held is free, its waiters are gone. Its ghosts stay, for the
    /// backend still works on them.
    pub fn line_died(&mut self, line: u16, now: Nanos, wakes: &mut Wakes) {
        let now = self.clock(now);
        for index in 0..self.entries.len() as u32 {
            if get(self.entries, index).is_some_and(|it| it.line == line) {
                self.drop_entry(index, now);
            }
        }
        self.advance(now, wakes);
    }

    /// Who changed the state died in the middle: everything that follows from the entries' own
    /// fields is made anew; lists are never followed. Whatever the bits, a sound state results.
    pub fn rebuild(&mut self, now: Nanos, wakes: &mut Wakes) {
        let now = now.0;
        let state = &mut *self.state;
        // Not the greater of both: a time that is none would stop the pool's.
        state.now = now;
        state.born = state.born.min(now);
        state.core_held_at = state.core_held_at.min(now);
        state.settings.levels = state.settings.levels.clamp(2, LEVELS as u32);
        state.slot_s.mend(LONGEST_S);
        state.core_slot_s.mend(LONGEST_S);
        state.other_slot_s.mend(LONGEST_S);
        for entry in self.entries.iter_mut() {
            mend(entry, state.settings.timeout_ns, now);
        }
        self.relink(now);
        for line in 0..LINES as u16 {
            let inbox = self.state.inboxes[usize::from(line)];
            if get(self.entries, inbox.head).is_some() {
                wakes.add(line);
            }
        }
        self.advance(now, wakes);
    }

    /// Puts every entry into the lists that it belongs to, and counts it.
    fn relink(&mut self, now: u64) {
        let state: &mut State = self.state;
        state.free = List::EMPTY;
        state.inboxes = [List::EMPTY; LINES];
        state.wheel.format(now);
        state.shares = super::fair::Fair::new();
        state.in_flight = [0; LEVELS];
        (state.taken, state.ghosts) = (0, 0);
        (state.waiting, state.levels, state.blind) = (0, 0, 0);
        state.owed = 0.0;
        state.spread = super::spread::Spread::new();
        let since = std::array::from_fn::<_, LEVELS, _>(|level| {
            let class = &mut state.classes[level];
            let since = class.raw_since();
            class.clear();
            since
        });

        let mut waiters = Vec::new();
        let mut notices = Vec::new();
        // From the last, since a free place is put before the others.
        for index in (0..self.entries.len() as u32).rev() {
            let Some(entry) = get_mut(self.entries, index) else {
                continue;
            };
            entry.unlink_all();
            let old = *entry;
            if old.phase == entry::FREE {
                self.state.free.push_front(self.entries, By::Place, index);
            }
            if old.phase == entry::WAITING {
                waiters.push((old.since, old.at, index));
            }
            if old.is_notice() {
                notices.push((old.at, index));
            }
            if old.has_slot() {
                let level = self.level(old.level);
                self.state.in_flight[level] += 1;
                self.state.taken += 1;
                self.state.ghosts += u32::from(old.phase == entry::GHOST);
            }
            if matches!(old.phase, entry::GRANTED | entry::GHOST) {
                self.state.wheel.insert(self.entries, index);
            }
        }
        notices.sort_unstable();
        for (_, index) in notices {
            self.tell(index, &mut Wakes::default());
        }
        waiters.sort_unstable();
        let first = first_came(self.entries, &waiters);
        for (_, _, index) in waiters {
            self.enqueue_again(index, &first, &since, now);
        }
    }

    /// Puts a waiter back, and its class to where it was.
    fn enqueue_again(&mut self, index: u32, first: &[u64], since: &[u64], now: u64) {
        let level = get(self.entries, index).map_or(0, |it| self.level(it.level));
        let new = self.state.classes[level].waiting == 0;
        // Sorted: behind all the others, whatever the class is.
        self.enqueue(index, now);
        if new {
            // It came to be not empty when its first waiter came, or before.
            let since = since[level].min(first[level]);
            self.state.classes[level].set_since(since);
        }
        let max_wait = self.state.settings.max_wait_ns;
        self.set_deadline(index, max_wait, now);
    }
}

/// When the first of each level's waiters came.
fn first_came(entries: &[Entry], waiters: &[(u64, u64, u32)]) -> [u64; LEVELS] {
    let mut first = [u64::MAX; LEVELS];
    for &(_, at, index) in waiters {
        let level = get(entries, index).map_or(0, |it| usize::from(it.level));
        if let Some(first) = first.get_mut(level) {
            *first = at.min(*first);
        }
    }
    first
}

/// Gives an entry fields that it can have.
fn mend(entry: &mut Entry, timeout_ns: u64, now: u64) {
    let known = entry.phase <= entry::WITHDRAWN;
    let reachable = usize::from(entry.line) < LINES || entry.phase == entry::GHOST;
    if !known || !reachable || usize::from(entry.level) >= LEVELS {
        entry.phase = entry::FREE;
    }
    entry.flags &= entry::BLIND | entry::EXEMPT;
    entry.at = entry.at.min(now);
    entry.since = entry.since.min(entry.at);
    let most = match entry.phase {
        entry::GRANTED => GRANT_NS,
        _ => timeout_ns,
    };
    entry.due = entry.due.min(entry.at.saturating_add(most));
}

const _: () = assert!(COHORTS == 256, "any u8 is a cohort");
