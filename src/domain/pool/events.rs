//! The events that change a pool, and what is read of it.
//!
//! Every event brings the state up to its time (`advance`): waits, grants and
//! ghosts whose time is over end, the limiter hears of the time, and free slots go
//! to who waits. So between two events no slot is free for which somebody waits
//! who may have it (`reserve` and `spread` say who may not).
use super::entry::{self, By, get, named};
use super::limiter::Load;
use super::shed::Verdict;
use super::{
    Arrival, Collected, Completion, Entered, EntryId, NONE, Nanos, Notice, Pool, Reason, Settings,
    View, Wakes,
};

/// While a slot is free and yet somebody waits (it is kept for level 0), what the
/// reserve is made of changes without an event.
const LOOK_AGAIN_NS: u64 = 100_000_000;

/// A pool is told to be saturated, or to have recovered, when it has been for so long.
const SATURATED_NS: u64 = 1_000_000_000;
const RECOVERED_NS: u64 = 3_000_000_000;

impl Pool<'_> {
    /// Takes changed settings; what is in flight and what waits stays.
    pub fn configure(&mut self, settings: &Settings, now: Nanos, wakes: &mut Wakes) {
        let now = self.clock(now);
        let before = self.state.settings.max_wait_ns;
        self.state.settings = *settings;
        self.state.limiter.configure(settings, Nanos(now));
        if settings.cluster == 0 {
            self.state.leased = 0;
        }
        if before != settings.max_wait_ns {
            self.set_deadlines(now);
        }
        self.advance(now, wakes);
    }

    /// What `arrive` at the same time would refuse at once as `Full` or `Hopeless`,
    /// without changing anything. Where time has brought something about since the
    /// last event, call `tick` first.
    pub fn would_shed(&self, a: &Arrival, now: Nanos) -> Option<Reason> {
        if a.exempt {
            return None;
        }
        match self.judge(a, now.0.max(self.state.now)) {
            Verdict::Shed(reason @ (Reason::Full | Reason::Hopeless)) => Some(reason),
            _ => None,
        }
    }

    /// A request asks for a slot.
    pub fn arrive(&mut self, a: &Arrival, now: Nanos, wakes: &mut Wakes) -> Entered {
        let now = self.clock(now);
        self.advance(now, wakes);
        if self.state.waiting > 0 {
            self.state.spread.arrived(now);
        }
        let level = self.arrival_level(a.level);
        if a.exempt {
            // Where there is no place to note it in, it goes uncounted.
            let unnoted = EntryId {
                index: NONE,
                generation: 0,
            };
            return Entered::Admitted(self.admit(a, level, now).unwrap_or(unnoted));
        }
        if level == 0 {
            self.state.core_arrivals.add(1.0, now);
        }
        let entered = match self.judge(a, now) {
            Verdict::Admit => self.admit(a, level, now).map(Entered::Admitted),
            Verdict::Wait(victims) => {
                self.make_room(level, victims, now, wakes);
                self.note(a, level, now).map(|id| {
                    self.enqueue(id.index, now);
                    Entered::Queued(id)
                })
            }
            Verdict::Shed(reason) => Some(Entered::Shed(reason)),
        };
        let entered = entered.unwrap_or(Entered::Shed(Reason::Full));
        if let Entered::Shed(reason) = entered {
            self.state.counts.shed(level, reason);
        }
        entered
    }

    /// The end of a request that held a slot.
    pub fn release(&mut self, id: EntryId, c: &Completion, now: Nanos, wakes: &mut Wakes) {
        let now = self.clock(now);
        if let Some(&old) = named(self.entries, id)
            && matches!(old.phase, entry::GRANTED | entry::HELD)
        {
            if old.phase == entry::GRANTED {
                self.forget_notice(id.index);
                self.take_up(id.index, now);
            }
            self.end(id.index, c, now);
        }
        self.advance(now, wakes);
    }

    /// The client of a request left while it waited (or was just granted, or shed): its place, or
    /// its slot, is free at once.
    pub fn leave(&mut self, id: EntryId, now: Nanos, wakes: &mut Wakes) {
        let now = self.clock(now);
        if named(self.entries, id).is_some() {
            self.drop_entry(id.index, now);
        }
        self.advance(now, wakes);
    }

    /// A waiter's own clock says that it has waited long enough: removes it with `Timeout`, unless
    /// something else became of it meanwhile, which is then the answer (`Granted` is taken up).
    pub fn give_up(&mut self, id: EntryId, now: Nanos, wakes: &mut Wakes) -> Notice {
        let now = self.clock(now);
        let notice = match named(self.entries, id).copied() {
            None => Notice::Shed(Reason::Timeout),
            Some(old) => match old.phase {
                entry::WAITING => {
                    self.dequeue(id.index);
                    self.free(id.index);
                    let level = self.level(old.level);
                    self.state.counts.shed(level, Reason::Timeout);
                    Notice::Shed(Reason::Timeout)
                }
                entry::SHED | entry::WITHDRAWN | entry::GRANTED => {
                    self.forget_notice(id.index);
                    self.hand_over(id.index, now)
                }
                // It was collected before.
                _ => Notice::Granted,
            },
        };
        self.advance(now, wakes);
        notice
    }

    /// Hands a line up to `room` of what became of its waiters; grants are taken up by it.
    pub fn collect(&mut self, line: u16, room: usize, now: Nanos, into: &mut Vec<Collected>) {
        let now = self.clock(now);
        for _ in 0..room {
            let Some(inbox) = self.state.inboxes.get_mut(usize::from(line)) else {
                return;
            };
            let Some(index) = inbox.pop_front(self.entries, By::Place) else {
                return;
            };
            let Some(&old) = get(self.entries, index).filter(|it| it.is_notice()) else {
                continue;
            };
            into.push(Collected {
                entry: EntryId {
                    index,
                    generation: old.generation,
                },
                ticket: old.ticket,
                notice: self.hand_over(index, now),
            });
        }
    }

    /// What time alone brings about: bounds, grants not taken up, ghosts, the limiter, leases.
    pub fn tick(&mut self, now: Nanos, wakes: &mut Wakes) {
        let now = self.clock(now);
        self.advance(now, wakes);
    }

    /// When `tick` should come next, ns from now; `u64::MAX`: never, without another event.
    pub fn next_due(&self, now: Nanos) -> u64 {
        let state = &*self.state;
        let now = now.0.max(state.now);
        let mut due = state
            .wheel
            .next_due(now)
            .min(state.limiter.next_due(Nanos(now)));
        if state.leased != 0 && now < state.share_until {
            due = due.min(state.share_until - now);
        }
        if state.waiting > 0 && state.taken < self.limit(now) {
            due = due.min(LOOK_AGAIN_NS);
            if let kept @ 1.. = state.spread.keeps_ns(now) {
                due = due.min(kept);
            }
        }
        due
    }

    /// Of a pool with one limit for all gateways: this gateway's part of it, `until`; then
    /// `fallback`, level 0 first.
    pub fn set_share(
        &mut self,
        share: u32,
        until: Nanos,
        fallback: u32,
        now: Nanos,
        wakes: &mut Wakes,
    ) {
        let now = self.clock(now);
        let state = &mut *self.state;
        state.leased = 1;
        state.share = share;
        state.share_until = until.0;
        state.fallback = fallback;
        self.advance(now, wakes);
    }

    /// What status and metrics show; of levels that are configured no more the waiters
    /// are counted with the last.
    pub fn view(&self, now: Nanos) -> View {
        let state = &*self.state;
        let levels = self.arrival_level(u8::MAX) + 1;
        let mut waiting = vec![0u32; levels];
        for (level, class) in state.classes.iter().enumerate() {
            let shown = &mut waiting[level.min(levels - 1)];
            *shown = shown.saturating_add(class.waiting);
        }
        View {
            limit: self.limit(now.0.max(state.now)),
            saturated: state.limiter.saturated(),
            in_flight: state.taken,
            ghosts: state.ghosts,
            waiting,
            counts: state.counts,
        }
    }

    /// Brings the state up to `now`.
    pub(super) fn advance(&mut self, now: u64, wakes: &mut Wakes) {
        self.expire(now, wakes);
        let load = Load {
            in_flight: self.state.taken,
            waiting: self.state.waiting,
        };
        self.state.limiter.tick(load, Nanos(now));
        self.tell_saturation(now, wakes);
        self.dispatch(now, wakes);
    }

    /// Bursts make somebody wait now and then in every pool that is well used: of
    /// interest is what lasts.
    fn tell_saturation(&mut self, now: u64, wakes: &mut Wakes) {
        let saturated = self.state.limiter.saturated();
        let state = &mut *self.state;
        if u32::from(saturated) == state.saturated {
            state.turned_at = 0;
            return;
        }
        if state.turned_at == 0 || state.turned_at > now {
            state.turned_at = now.max(1);
        }
        let lasts = if saturated {
            SATURATED_NS
        } else {
            RECOVERED_NS
        };
        if now.saturating_sub(state.turned_at) >= lasts {
            state.saturated = u32::from(saturated);
            state.turned_at = 0;
            wakes.saturation = Some(saturated);
        }
    }
}
