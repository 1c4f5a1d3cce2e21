//! Rules of the pool, with fake time.
use super::entry::{self, By, EXEMPT};
use super::*;

mod bounds;
mod broken;
mod lives;
mod order;
mod random;
mod shares;
mod spread;

const MS: u64 = 1_000_000;
const S: u64 = 1000 * MS;
/// Not 0, so that a time before the pool's is one.
const T0: u64 = 1_000 * S;

fn settings(limit: u32) -> Settings {
    let mut weights = [1; LEVELS];
    weights[..4].copy_from_slice(&[0, 8, 2, 1]);
    Settings {
        adaptive: 0,
        limit,
        min: 1,
        max: 1000,
        start: 20,
        capacity: 1000,
        levels: 4,
        cluster: 0,
        weights,
        max_wait_ns: 5 * S,
        timeout_ns: 60 * S,
    }
}

const DONE: Completion = Completion {
    feedback: Feedback::None,
    abandoned: false,
};

fn answered(ns: u64) -> Completion {
    Completion {
        feedback: Feedback::Response(Nanos(ns)),
        abandoned: false,
    }
}

/// A pool and its time.
struct Bed {
    heap: Heap,
    now: u64,
    wakes: Wakes,
    tickets: u64,
    /// Not everything is looked at after every event.
    quiet: bool,
}

impl Bed {
    fn new(settings: &Settings) -> Bed {
        Bed {
            heap: Heap::new(1500, settings, Nanos(T0)),
            now: T0,
            wakes: Wakes::default(),
            tickets: 0,
            quiet: false,
        }
    }

    fn now(&self) -> Nanos {
        Nanos(self.now)
    }

    fn wait(&mut self, ns: u64) {
        self.now += ns;
    }

    /// Waits and lets time do its work.
    fn pass(&mut self, ns: u64) {
        self.wait(ns);
        self.tick();
    }

    fn tick(&mut self) {
        let now = self.now();
        self.heap.pool().tick(now, &mut self.wakes);
        self.check();
    }

    fn ask(&self, level: u8, cohort: u8) -> Arrival {
        Arrival {
            level,
            cohort,
            route: 0,
            blind: false,
            exempt: false,
            line: 0,
            ticket: 0,
            since: self.now(),
        }
    }

    /// Arrives with a ticket of its own, the number of arrivals before it.
    fn arrive_as(&mut self, a: Arrival) -> Entered {
        let a = Arrival {
            ticket: self.tickets,
            ..a
        };
        self.tickets += 1;
        let now = self.now();
        let mut pool = self.heap.pool();
        pool.tick(now, &mut self.wakes);
        let would = pool.would_shed(&a, now);
        let entered = pool.arrive(&a, now, &mut self.wakes);
        match entered {
            Entered::Shed(reason @ (Reason::Full | Reason::Hopeless)) => {
                assert_eq!(would, Some(reason), "would_shed agrees with arrive");
            }
            _ => assert_eq!(would, None, "would_shed agrees with arrive"),
        }
        self.check();
        entered
    }

    fn arrive(&mut self, level: u8, cohort: u8) -> Entered {
        self.arrive_as(self.ask(level, cohort))
    }

    #[track_caller]
    fn admit(&mut self, level: u8, cohort: u8) -> EntryId {
        match self.arrive(level, cohort) {
            Entered::Admitted(id) => id,
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    fn queue(&mut self, level: u8, cohort: u8) -> EntryId {
        match self.arrive(level, cohort) {
            Entered::Queued(id) => id,
            other => panic!("{other:?}"),
        }
    }

    fn release_with(&mut self, id: EntryId, c: Completion) {
        let now = self.now();
        self.heap.pool().release(id, &c, now, &mut self.wakes);
        self.check();
    }

    fn release(&mut self, id: EntryId) {
        self.release_with(id, DONE);
    }

    fn leave(&mut self, id: EntryId) {
        let now = self.now();
        self.heap.pool().leave(id, now, &mut self.wakes);
        self.check();
    }

    fn collect_of(&mut self, line: u16) -> Vec<Collected> {
        let (mut into, now) = (Vec::new(), self.now());
        self.heap.pool().collect(line, usize::MAX, now, &mut into);
        self.check();
        into
    }

    fn collect(&mut self) -> Vec<Collected> {
        self.collect_of(0)
    }

    /// Tickets and what became of them.
    fn news(&mut self) -> Vec<(u64, Notice)> {
        let news = self.collect();
        news.iter().map(|it| (it.ticket, it.notice)).collect()
    }

    /// Frees the slot, and who is granted it takes it up.
    #[track_caller]
    fn next(&mut self, slot: &mut EntryId) -> u64 {
        self.next_after(slot, DONE)
    }

    #[track_caller]
    fn next_after(&mut self, slot: &mut EntryId, end: Completion) -> u64 {
        self.release_with(*slot, end);
        let news = self.collect();
        let granted: Vec<_> = news
            .iter()
            .filter(|it| it.notice == Notice::Granted)
            .collect();
        assert_eq!(granted.len(), 1, "{news:?}");
        *slot = granted[0].entry;
        granted[0].ticket
    }

    fn next_due(&mut self) -> u64 {
        let now = self.now();
        self.heap.pool().next_due(now)
    }

    fn view(&self) -> View {
        let mut heap = self.heap.clone();
        heap.pool().view(self.now())
    }

    fn check(&self) {
        if !self.quiet {
            check(&self.heap, self.now);
        }
    }

    /// `n` requests one after the other of that level, each `ns` long: what the pool
    /// knows of how long slots are held.
    fn teach(&mut self, level: u8, n: u32, ns: u64) {
        for _ in 0..n {
            let id = self.admit(level, 0);
            self.wait(ns);
            self.heap.state.routes.learn(0, ns as f64);
            self.release_with(id, answered(ns));
        }
    }
}

/// Whatever can be said of a sound pool between two events.
fn check(heap: &Heap, now: u64) {
    let (state, entries) = (&*heap.state, &heap.entries[..]);
    let (mut phases, mut notices_due, mut timed, mut blind) = ([0u32; 7], 0, 0, 0);
    let (mut slots, mut waiting) = ([0u32; LEVELS], [0u32; LEVELS]);
    for it in entries {
        phases[usize::from(it.phase)] += 1;
        if it.phase == entry::FREE {
            assert_eq!(it.slot, super::wheel::OUT);
            continue;
        }
        notices_due += u32::from(it.is_notice());
        slots[usize::from(it.level)] += u32::from(it.has_slot());
        if it.phase == entry::WAITING {
            waiting[usize::from(it.level)] += 1;
            blind += u32::from(it.is(entry::BLIND));
        }
        let has_limit = matches!(it.phase, entry::WAITING | entry::GRANTED | entry::GHOST);
        assert_eq!(it.slot != super::wheel::OUT, has_limit, "{it:?}");
        timed += usize::from(has_limit);
    }
    assert_eq!(state.wheel.walk(entries), timed);
    assert_eq!(state.waiting, phases[usize::from(entry::WAITING)]);
    assert_eq!(state.ghosts, phases[usize::from(entry::GHOST)]);
    assert_eq!(state.in_flight, slots);
    assert_eq!(state.taken, slots.iter().sum::<u32>());
    assert_eq!(state.blind, blind);
    let mut blind_listed = 0;
    for (level, class) in state.classes.iter().enumerate() {
        assert_eq!(class.waiting, waiting[level]);
        assert_eq!(state.levels >> level & 1 == 1, class.waiting > 0);
        if class.waiting == 0 {
            continue;
        }
        let mut listed = 0;
        for (cohort, list, length) in class.queues() {
            let walked = list.walk(entries, By::Place);
            assert_eq!(walked.len(), length as usize);
            let active = class.active_bits()[usize::from(cohort) / 64] >> (cohort % 64) & 1;
            assert_eq!(active == 1, length > 0);
            listed += walked.len() as u32;
            for index in walked {
                let it = &entries[index as usize];
                assert_eq!((it.phase, it.cohort), (entry::WAITING, cohort));
                assert_eq!(usize::from(it.level), level);
                let most = it.due.saturating_add(super::wheel::SLOT_NS);
                assert!(most > now, "nobody waits longer than may be");
            }
        }
        assert_eq!(listed, class.waiting);
        for index in class.blind.walk(entries, By::Blindness) {
            let it = &entries[index as usize];
            assert!(it.phase == entry::WAITING && it.is(entry::BLIND));
            blind_listed += 1;
        }
    }
    assert_eq!(blind_listed, blind);
    let mut notices = 0;
    for (line, inbox) in state.inboxes.iter().enumerate() {
        for index in inbox.walk(entries, By::Place) {
            let it = &entries[index as usize];
            assert!(it.is_notice() && usize::from(it.line) == line);
            notices += 1;
        }
    }
    assert_eq!(notices, notices_due);
    assert_eq!(
        state.free.walk(entries, By::Place).len(),
        phases[usize::from(entry::FREE)] as usize,
        "every free place is in the list"
    );
}

/// Slots of those that are bound by the limit.
fn bound_slots(heap: &Heap) -> usize {
    let entries = heap.entries.iter();
    entries.filter(|it| it.has_slot() && !it.is(EXEMPT)).count()
}

/// The data of a pool stay what other parts count on.
#[test]
fn sizes() {
    assert!(size_of::<State>() <= 192 << 10, "{}", size_of::<State>());
    assert!(size_of::<Entry>() <= 96, "{}", size_of::<Entry>());
}
