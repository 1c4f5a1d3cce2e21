//! Random events: nothing is lost, nothing counted twice, whatever happens.
use super::*;
use crate::domain::pool::spread::Spread;
use proptest::prelude::*;
use std::collections::HashMap;

#[derive(Clone, Debug)]
pub(super) enum Event {
    Arrive {
        level: u8,
        cohort: u8,
        route: u8,
        blind: bool,
        exempt: bool,
        line: u16,
        asked_ms: u64,
    },
    Release {
        which: usize,
        feedback: Feedback,
        abandoned: bool,
    },
    Leave(usize),
    GiveUp(usize),
    Collect(u16, usize),
    Tick,
    LineDied(u16),
    Configure(Settings),
    SetShare(u32, u64, u32),
    Rebuild,
}

pub(super) fn some_settings() -> impl Strategy<Value = Settings> {
    (0..2u32, 1..6u32, 0..20u32, 2..=5u32, 0..2u32, 1..3000u64).prop_map(
        |(adaptive, limit, capacity, levels, cluster, max_wait_ms)| Settings {
            adaptive,
            capacity,
            levels,
            cluster,
            start: limit,
            max_wait_ns: max_wait_ms * MS,
            ..settings(limit)
        },
    )
}

pub(super) fn event() -> impl Strategy<Value = Event> {
    let feedback = prop_oneof![
        Just(Feedback::None),
        Just(Feedback::Error),
        (1..200u64).prop_map(|ms| Feedback::Response(Nanos(ms * MS))),
    ];
    let blind = prop::bool::weighted(0.2);
    let exempt = prop::bool::weighted(0.05);
    let since = prop_oneof![4 => Just(0u64), 1 => 1..2000u64];
    prop_oneof![
        20 => (0..7u8, 0..5u8, 0..3u8, blind, exempt, 0..3u16, since).prop_map(
            |(level, cohort, route, blind, exempt, line, asked_ms)| Event::Arrive {
                level, cohort, route, blind, exempt, line, asked_ms
            }
        ),
        10 => (any::<usize>(), feedback, prop::bool::weighted(0.2)).prop_map(
            |(which, feedback, abandoned)| Event::Release { which, feedback, abandoned }
        ),
        3 => any::<usize>().prop_map(Event::Leave),
        3 => any::<usize>().prop_map(Event::GiveUp),
        6 => (0..3u16, 1..5usize).prop_map(|(line, room)| Event::Collect(line, room)),
        4 => Just(Event::Tick),
        1 => (0..3u16).prop_map(Event::LineDied),
        1 => some_settings().prop_map(Event::Configure),
        1 => (0..6u32, 0..300u64, 0..6u32).prop_map(|(share, ms, rest)| {
            Event::SetShare(share, ms * MS, rest)
        }),
        1 => Just(Event::Rebuild),
    ]
}

/// What the workers know: who asked and was not answered yet, and who has a slot.
#[derive(Default)]
pub(super) struct Known {
    open: HashMap<EntryId, (u16, u64, bool)>,
    order: Vec<EntryId>,
    next: u64,
}

impl Known {
    fn pick(&self, which: usize) -> Option<EntryId> {
        (!self.order.is_empty()).then(|| self.order[which % self.order.len()])
    }

    fn opened(&mut self, id: EntryId, line: u16, ticket: u64, held: bool) {
        assert!(self.open.insert(id, (line, ticket, held)).is_none());
        self.order.push(id);
    }

    fn ended(&mut self, id: EntryId) {
        assert!(self.open.remove(&id).is_some(), "ended twice");
        self.order.retain(|it| *it != id);
    }
}

pub(super) fn run(heap: &mut Heap, known: &mut Known, event: &Event, at: u64) {
    let (now, mut wakes) = (Nanos(at), Wakes::default());
    let mut pool = heap.pool();
    match event.clone() {
        Event::Arrive {
            level,
            cohort,
            route,
            blind,
            exempt,
            line,
            asked_ms,
        } => {
            let ticket = known.next;
            known.next += 1;
            let arrival = Arrival {
                level,
                cohort,
                route,
                blind,
                exempt,
                line,
                ticket,
                since: Nanos(at - asked_ms * MS),
            };
            pool.tick(now, &mut wakes);
            let would = pool.would_shed(&arrival, now);
            match pool.arrive(&arrival, now, &mut wakes) {
                Entered::Admitted(id) if id.index == NONE => assert!(exempt),
                Entered::Admitted(id) => known.opened(id, line, ticket, true),
                Entered::Queued(id) => known.opened(id, line, ticket, false),
                Entered::Shed(Reason::Timeout) => assert_eq!(would, None),
                Entered::Shed(reason) => assert_eq!(would, Some(reason)),
            }
        }
        Event::Release {
            which,
            feedback,
            abandoned,
        } => {
            let Some(id) = known.pick(which) else { return };
            // Only who has a slot gives it back.
            if known.open[&id].2 {
                let end = Completion {
                    feedback,
                    abandoned,
                };
                pool.release(id, &end, now, &mut wakes);
                known.ended(id);
                pool.release(id, &end, now, &mut wakes);
            }
        }
        Event::Leave(which) => {
            let Some(id) = known.pick(which) else { return };
            pool.leave(id, now, &mut wakes);
            known.ended(id);
            pool.leave(id, now, &mut wakes);
        }
        Event::GiveUp(which) => {
            let Some(id) = known.pick(which) else { return };
            let held = known.open[&id].2;
            match pool.give_up(id, now, &mut wakes) {
                Notice::Granted => known.open.get_mut(&id).unwrap().2 = true,
                _ => {
                    assert!(!held, "who has a slot keeps it");
                    known.ended(id);
                }
            }
        }
        Event::Collect(line, room) => {
            let mut into = Vec::new();
            pool.collect(line, room, now, &mut into);
            assert!(into.len() <= room);
            for it in into {
                let open = known.open.get_mut(&it.entry).expect("known");
                assert_eq!((open.0, open.1, open.2), (line, it.ticket, false));
                match it.notice {
                    Notice::Granted => open.2 = true,
                    _ => known.ended(it.entry),
                }
            }
        }
        Event::Tick => pool.tick(now, &mut wakes),
        Event::LineDied(line) => {
            pool.line_died(line, now, &mut wakes);
            known.open.retain(|_, it| it.0 != line);
            let open = &known.open;
            known.order.retain(|it| open.contains_key(it));
        }
        Event::Configure(settings) => pool.configure(&settings, now, &mut wakes),
        Event::SetShare(share, ns, rest) => {
            pool.set_share(share, Nanos(at + ns), rest, now, &mut wakes)
        }
        Event::Rebuild => {
            // An event first, since a rebuild is one and lets time pass too. It forgets what
            // slots are kept back by, so a waiter may get one.
            pool.state.spread = Spread::new();
            pool.tick(now, &mut wakes);
            let before = summary(heap, at);
            heap.pool().rebuild(now, &mut wakes);
            assert_eq!(summary(heap, at), before, "a sound state is kept");
        }
    }
}

/// All that a rebuild keeps. Whose time is up has until the wheel's next step.
fn summary(heap: &Heap, now: u64) -> Vec<[u64; 8]> {
    let entries = heap.entries.iter();
    entries
        .filter(|it| it.phase != entry::FREE)
        .map(|it| {
            let due = match it.phase {
                entry::GRANTED | entry::GHOST | entry::WAITING => it.due.max(now),
                _ => 0,
            };
            [
                it.generation.into(),
                it.phase.into(),
                it.level.into(),
                it.cohort.into(),
                it.line.into(),
                it.ticket,
                it.at,
                due,
            ]
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn nothing_is_lost(
        first in some_settings(),
        places in prop_oneof![Just(64usize), 1..12usize],
        events in prop::collection::vec((event(), prop_oneof![
            3 => Just(0u64), 3 => 1..20 * MS, 2 => 1..300 * MS, 1 => 1..5000 * MS
        ]), 1..150),
    ) {
        let mut heap = Heap::new(places, &first, Nanos(T0));
        let mut known = Known::default();
        let mut now = T0;
        for (event, ns) in &events {
            now += ns;
            let before = bound_slots(&heap);
            run(&mut heap, &mut known, event, now);
            let mut pool = heap.pool();
            pool.tick(Nanos(now), &mut Wakes::default());
            let limit = pool.limit(now);
            let may_wait = pool.state.waiting > 0 && pool.room(1, limit, now);
            prop_assert!(!may_wait, "a slot is free for a waiter");
            prop_assert!(bound_slots(&heap) <= before.max(limit as usize));
            check(&heap, now);
        }
        // Everything ends, once.
        let rest: Vec<EntryId> = known.order.clone();
        for id in rest {
            heap.pool().leave(id, Nanos(now), &mut Wakes::default());
            known.ended(id);
        }
        now += 100 * S;
        heap.pool().tick(Nanos(now), &mut Wakes::default());
        check(&heap, now);
        prop_assert!(heap.entries.iter().all(|it| it.phase == entry::FREE));
    }
}
