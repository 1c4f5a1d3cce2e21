//! A gateway: the pool's own code, and what became of the requests it was asked
//! for.
use sluice::domain::pool::{
    Arrival, Collected, Completion, Entered, EntryId, Feedback, Heap, Notice, Reason, Settings,
    Wakes,
};
use sluice::domain::units::Nanos;

/// All requests are of one worker.
const LINE: u16 = 0;
const ENTRIES: usize = 4096;
const NOBODY: EntryId = EntryId {
    index: u32::MAX,
    generation: 0,
};

/// A request as the model knows it.
#[derive(Clone, Copy)]
pub struct Ask {
    pub request: u32,
    pub level: u8,
    pub cohort: u8,
    pub route: u8,
}

pub struct Gate {
    pub heap: Heap,
    wakes: Wakes,
    /// By request: its place in the pool.
    places: Vec<EntryId>,
    collected: Vec<Collected>,
    /// Since they were last taken.
    pub granted: Vec<u32>,
    pub shed: Vec<(u32, Reason)>,
    pub withdrawn: Vec<u32>,
}

impl Gate {
    pub fn new(settings: &Settings, now: u64) -> Gate {
        Gate {
            heap: Heap::new(ENTRIES, settings, Nanos(now)),
            wakes: Wakes::default(),
            places: Vec::new(),
            collected: Vec::new(),
            granted: Vec::new(),
            shed: Vec::new(),
            withdrawn: Vec::new(),
        }
    }

    pub fn limit(&self) -> u32 {
        self.heap.state.limiter.limit()
    }

    pub fn configure(&mut self, settings: &Settings, now: u64) {
        let mut wakes = self.wakes;
        self.heap.pool().configure(settings, Nanos(now), &mut wakes);
        self.hear(wakes, now);
    }

    /// `since`: when it first asked.
    pub fn arrive(&mut self, ask: Ask, since: u64, now: u64) {
        let arrival = Arrival {
            level: ask.level,
            cohort: ask.cohort,
            route: ask.route,
            blind: false,
            exempt: false,
            line: LINE,
            ticket: u64::from(ask.request),
            since: Nanos(since),
        };
        let mut wakes = self.wakes;
        let at = ask.request as usize;
        if self.places.len() <= at {
            self.places.resize(at + 1, NOBODY);
        }
        let mut pool = self.heap.pool();
        match pool.arrive(&arrival, Nanos(now), &mut wakes) {
            Entered::Admitted(place) => {
                self.places[at] = place;
                self.granted.push(ask.request);
            }
            Entered::Queued(place) => self.places[at] = place,
            Entered::Shed(reason) => self.shed.push((ask.request, reason)),
        }
        self.hear(wakes, now);
    }

    /// The end of a request at the backend. An abandoned one: the backend works on.
    pub fn release(&mut self, request: u32, feedback: Feedback, abandoned: bool, now: u64) {
        let mut wakes = self.wakes;
        let place = std::mem::replace(&mut self.places[request as usize], NOBODY);
        let completion = Completion {
            feedback,
            abandoned,
        };
        let mut pool = self.heap.pool();
        pool.release(place, &completion, Nanos(now), &mut wakes);
        self.hear(wakes, now);
    }

    /// The client of a waiting request left.
    pub fn leave(&mut self, request: u32, now: u64) {
        let mut wakes = self.wakes;
        let place = std::mem::replace(&mut self.places[request as usize], NOBODY);
        self.heap.pool().leave(place, Nanos(now), &mut wakes);
        self.hear(wakes, now);
    }

    pub fn tick(&mut self, now: u64) {
        let mut wakes = self.wakes;
        self.heap.pool().tick(Nanos(now), &mut wakes);
        self.hear(wakes, now);
    }

    /// Takes what became of waiters, and of those that it lets in thereby.
    pub fn hear(&mut self, wakes: Wakes, now: u64) {
        if !wakes.has(LINE) {
            return;
        }
        let mut collected = std::mem::take(&mut self.collected);
        let mut pool = self.heap.pool();
        pool.collect(LINE, usize::MAX, Nanos(now), &mut collected);
        for it in collected.drain(..) {
            let request = it.ticket as u32;
            match it.notice {
                Notice::Granted => self.granted.push(request),
                Notice::Shed(reason) => self.shed.push((request, reason)),
                Notice::Withdrawn => self.withdrawn.push(request),
            }
        }
        self.collected = collected;
    }
}
