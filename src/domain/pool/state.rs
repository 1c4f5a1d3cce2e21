//! What there is of a pool.
use super::class::Class;
use super::cluster::Cluster;
use super::entry::{Entry, List};
use super::fair::Fair;
use super::limiter::Limiter;
use super::measure::{Mean, TenSeconds};
use super::routes::Routes;
use super::spread::Spread;
use super::wheel::Wheel;
use super::{Counts, LEVELS, LINES, Nanos, Settings};

/// Plain numbers: any bits are a state, and `Pool::rebuild` makes a sound one of
/// them.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct State {
    pub(super) settings: Settings,
    /// The time of the last event, and of `format`.
    pub(super) now: u64,
    pub(super) born: u64,
    pub(super) free: List,
    pub(super) inboxes: [List; LINES],
    pub(super) classes: [Class; LEVELS],
    /// Among the levels below 0.
    pub(super) shares: Fair<LEVELS>,
    pub(super) wheel: Wheel,
    /// By level: granted, in flight, ghosts.
    pub(super) in_flight: [u32; LEVELS],
    /// Their sum.
    pub(super) taken: u32,
    pub(super) ghosts: u32,
    pub(super) waiting: u32,
    /// Levels that have waiters, a bit each.
    pub(super) levels: u32,
    /// How many of the waiting are blind.
    pub(super) blind: u32,
    /// 1: as `Wakes::saturation` told last.
    pub(super) saturated: u32,
    /// Since when it is otherwise; 0: it is not.
    pub(super) turned_at: u64,
    /// 1: `share`, `fallback` and `share_until` hold.
    pub(super) leased: u32,
    pub(super) share: u32,
    pub(super) fallback: u32,
    pub(super) share_until: u64,
    /// Dispatches that the levels below 0 are owed, see `Pool::account`.
    pub(super) owed: f64,
    /// How long a slot is held, seconds: by all, by level 0, by the others.
    pub(super) slot_s: Mean,
    pub(super) core_slot_s: Mean,
    pub(super) other_slot_s: Mean,
    pub(super) core_arrivals: TenSeconds,
    /// Slots × seconds of level 0, up to `core_held_at`.
    pub(super) core_held: TenSeconds,
    pub(super) core_held_at: u64,
    pub(super) spread: Spread,
    pub(super) counts: Counts,
    pub routes: Routes,
    pub limiter: Limiter,
    pub cluster: Cluster,
}

const _: () = assert!(size_of::<State>() <= 192 << 10);

impl State {
    /// For memory that is not there yet: `Pool::format` makes a pool of it.
    pub const fn new() -> State {
        State {
            settings: Settings {
                adaptive: 0,
                limit: 1,
                min: 1,
                max: 1,
                start: 1,
                capacity: 0,
                levels: 2,
                cluster: 0,
                weights: [1; LEVELS],
                max_wait_ns: 0,
                timeout_ns: 0,
            },
            now: 0,
            born: 0,
            free: List::EMPTY,
            inboxes: [List::EMPTY; LINES],
            classes: [const { Class::new() }; LEVELS],
            shares: Fair::new(),
            wheel: Wheel::new(),
            in_flight: [0; LEVELS],
            taken: 0,
            ghosts: 0,
            waiting: 0,
            levels: 0,
            blind: 0,
            saturated: 0,
            turned_at: 0,
            leased: 0,
            share: 0,
            fallback: 0,
            share_until: 0,
            owed: 0.0,
            slot_s: Mean::new(),
            core_slot_s: Mean::new(),
            other_slot_s: Mean::new(),
            core_arrivals: TenSeconds::new(),
            core_held: TenSeconds::new(),
            core_held_at: 0,
            spread: Spread::new(),
            counts: Counts::new(),
            routes: Routes::new(),
            limiter: Limiter::new(),
            cluster: Cluster {
                gateways: 0,
                limit: 0,
                differs: 0,
                strict: 0,
            },
        }
    }
}

impl Default for State {
    fn default() -> State {
        State::new()
    }
}

/// The state and its entries, for one event or several.
pub struct Pool<'a> {
    pub state: &'a mut State,
    pub entries: &'a mut [Entry],
}

/// A pool on the heap: of the simulator and of tests.
#[derive(Clone, Debug)]
pub struct Heap {
    pub state: Box<State>,
    pub entries: Vec<Entry>,
}

impl Heap {
    /// Room for that many requests, waiting and in flight.
    pub fn new(entries: usize, settings: &Settings, now: Nanos) -> Heap {
        let mut heap = Heap {
            state: Box::new(State::new()),
            entries: vec![Entry::new(); entries],
        };
        heap.pool().format(settings, now);
        heap
    }

    pub fn pool(&mut self) -> Pool<'_> {
        Pool {
            state: &mut self.state,
            entries: &mut self.entries,
        }
    }
}
