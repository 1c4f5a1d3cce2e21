//! One request's way through the pool, to each of its ends.
use super::*;

#[test]
fn a_grant_lapses() {
    let mut bed = Bed::new(&settings(1));
    let slot = bed.admit(1, 0);
    let a = Arrival {
        line: 3,
        ..bed.ask(1, 1)
    };
    assert!(matches!(bed.arrive_as(a), Entered::Queued(_)));
    bed.queue(1, 2);
    bed.release(slot);
    assert!(bed.wakes.has(3) && !bed.wakes.has(0));
    bed.wakes = Wakes::default();
    bed.pass(50 * MS - 1);
    assert_eq!(bed.news(), []);
    assert!(bed.next_due() < 2 * MS);
    bed.pass(2 * MS);
    assert!(bed.wakes.has(3), "the one has to ask again");
    assert!(bed.wakes.has(0), "the other is next");
    assert_eq!(bed.news(), [(2, Notice::Granted)]);
    let late = bed.collect_of(3);
    assert_eq!(late.len(), 1);
    assert_eq!((late[0].ticket, late[0].notice), (1, Notice::Withdrawn));
    assert_eq!(bed.view().in_flight, 1);
    // Too late for everything.
    bed.release(late[0].entry);
    bed.leave(late[0].entry);
    assert_eq!(bed.view().in_flight, 1);
}

#[test]
fn a_grant_that_was_taken_up_stays() {
    let mut bed = Bed::new(&settings(1));
    let mut slot = bed.admit(1, 0);
    bed.queue(1, 1);
    bed.next(&mut slot);
    bed.pass(10 * S);
    assert_eq!(bed.view().in_flight, 1);
    bed.release(slot);
    assert_eq!(bed.view().in_flight, 0);
}

/// Each way of leaving, in each phase.
#[test]
fn who_leaves_gives_back_what_it_had() {
    let mut bed = Bed::new(&settings(1));
    let held = bed.admit(1, 0);
    let (one, two) = (bed.queue(1, 1), bed.queue(1, 2));
    let three = bed.queue(1, 3);
    bed.leave(one);
    assert_eq!(bed.view().waiting[1], 2);
    bed.leave(one);
    assert_eq!(bed.view().waiting[1], 2);
    // In flight: the next is granted. Granted: the next.
    bed.leave(held);
    assert_eq!(bed.view().waiting[1], 1);
    bed.leave(two);
    assert_eq!(bed.news(), [(3, Notice::Granted)]);
    bed.leave(three);
    assert_eq!((bed.view().in_flight, bed.view().waiting[1]), (0, 0));
    // Shed, and withdrawn.
    let slot = bed.admit(1, 0);
    let late = bed.queue(3, 1);
    bed.pass(502 * MS);
    bed.leave(late);
    let withdrawn = bed.queue(1, 1);
    bed.release(slot);
    bed.pass(52 * MS);
    bed.leave(withdrawn);
    assert_eq!(bed.news(), []);
    assert!(bed.heap.entries.iter().all(|it| it.phase == entry::FREE));
}

#[test]
fn who_gives_up_hears_what_became_of_it() {
    let mut bed = Bed::new(&settings(1));
    let give_up = |bed: &mut Bed, id| {
        let (now, mut wakes) = (bed.now(), Wakes::default());
        let notice = bed.heap.pool().give_up(id, now, &mut wakes);
        bed.check();
        notice
    };
    let timeout = Notice::Shed(Reason::Timeout);
    let slot = bed.admit(1, 0);
    let waits = bed.queue(1, 0);
    assert_eq!(give_up(&mut bed, waits), timeout);
    assert_eq!(bed.view().counts.shed[1][2], 1);
    assert_eq!(give_up(&mut bed, waits), timeout, "it is not there");
    let granted = bed.queue(1, 0);
    bed.release(slot);
    assert_eq!(give_up(&mut bed, granted), Notice::Granted);
    bed.pass(S);
    assert_eq!(bed.view().in_flight, 1, "taken up");
    let shed = bed.queue(3, 0);
    bed.pass(502 * MS);
    assert_eq!(give_up(&mut bed, shed), timeout);
    assert_eq!(bed.view().counts.shed[3][2], 1, "counted once");
    let withdrawn = bed.queue(1, 0);
    bed.release(granted);
    bed.pass(52 * MS);
    assert_eq!(give_up(&mut bed, withdrawn), Notice::Withdrawn);
    assert_eq!(bed.news(), []);
    assert!(bed.heap.entries.iter().all(|it| it.phase == entry::FREE));
}

const GONE: Completion = Completion {
    feedback: Feedback::None,
    abandoned: true,
};

#[test]
fn the_backend_works_on_without_its_client() {
    let mut bed = Bed::new(&settings(1));
    bed.teach(1, 20, 100 * MS);
    let slot = bed.admit(1, 0);
    bed.wait(30 * MS);
    bed.queue(1, 1);
    bed.release_with(slot, GONE);
    assert_eq!(bed.view().ghosts, 1);
    bed.pass(70 * MS - 1);
    assert_eq!(bed.news(), []);
    bed.pass(2 * MS);
    assert_eq!(bed.news(), [(21, Notice::Granted)]);
    assert_eq!((bed.view().ghosts, bed.view().in_flight), (0, 1));
    // A ghost is nobody's: late calls and a dead worker change nothing.
    let mut bed = Bed::new(&settings(1));
    bed.teach(1, 20, 100 * MS);
    let slot = bed.admit(1, 0);
    bed.release_with(slot, GONE);
    bed.leave(slot);
    bed.release(slot);
    let (now, mut wakes) = (bed.now(), Wakes::default());
    bed.heap.pool().line_died(0, now, &mut wakes);
    bed.check();
    assert_eq!((bed.view().ghosts, bed.view().in_flight), (1, 1));
    // One that has been there for longer than usual is over.
    let mut bed = Bed::new(&settings(1));
    bed.teach(1, 20, 100 * MS);
    let slot = bed.admit(1, 0);
    bed.wait(100 * MS);
    bed.release_with(slot, GONE);
    assert_eq!((bed.view().ghosts, bed.view().in_flight), (0, 0));
    // No backend works longer than its timeout.
    let mut bed = Bed::new(&Settings {
        timeout_ns: 50 * MS,
        ..settings(1)
    });
    bed.teach(1, 20, 100 * MS);
    let slot = bed.admit(1, 0);
    bed.release_with(slot, GONE);
    bed.pass(52 * MS);
    assert_eq!((bed.view().ghosts, bed.view().in_flight), (0, 0));
    // Nothing is known yet.
    let mut bed = Bed::new(&settings(1));
    let slot = bed.admit(1, 0);
    bed.release_with(slot, GONE);
    assert_eq!((bed.view().ghosts, bed.view().in_flight), (0, 0));
}

/// No response was ever seen, but slots were held: for as long as those.
#[test]
fn a_ghost_of_an_unknown_route() {
    let mut bed = Bed::new(&settings(1));
    let slot = bed.admit(1, 0);
    bed.wait(80 * MS);
    bed.release(slot);
    let slot = bed.admit(1, 0);
    bed.release_with(slot, GONE);
    bed.pass(79 * MS);
    assert_eq!(bed.view().ghosts, 1);
    bed.pass(3 * MS);
    assert_eq!(bed.view().ghosts, 0);
}

#[test]
fn exempt_requests_are_only_counted() {
    let mut bed = Bed::new(&Settings {
        capacity: 0,
        ..settings(1)
    });
    let exempt = Arrival {
        exempt: true,
        ..bed.ask(3, 0)
    };
    let mut ids = Vec::new();
    for _ in 0..3 {
        let Entered::Admitted(id) = bed.arrive_as(exempt) else {
            panic!("never refused");
        };
        ids.push(id);
    }
    assert_eq!(bed.view().in_flight, 3);
    assert_eq!(bed.arrive(0, 0), Entered::Shed(Reason::Full));
    for &id in &ids {
        bed.release(id);
    }
    bed.admit(0, 0);
    // Where there is no place left to note it in, it goes through all the same.
    let mut heap = Heap::new(1, &settings(1), Nanos(T0));
    let mut wakes = Wakes::default();
    for _ in 0..2 {
        let entered = heap.pool().arrive(&exempt, Nanos(T0), &mut wakes);
        let Entered::Admitted(id) = entered else {
            panic!("never refused");
        };
        ids = vec![id];
    }
    heap.pool().release(ids[0], &DONE, Nanos(T0), &mut wakes);
    assert_eq!(heap.state.taken, 1);
}

/// What is never made to wait says nothing of how long the others wait.
#[test]
fn exempt_requests_teach_nothing() {
    let mut bed = Bed::new(&settings(1));
    for _ in 0..30 {
        let exempt = Arrival {
            exempt: true,
            ..bed.ask(1, 0)
        };
        let Entered::Admitted(id) = bed.arrive_as(exempt) else {
            panic!("never refused");
        };
        bed.wait(S);
        bed.release(id);
    }
    bed.admit(0, 0);
    for _ in 0..100 {
        bed.queue(1, 1);
    }
}

#[test]
fn a_dead_worker_holds_nothing() {
    let mut bed = Bed::new(&settings(2));
    let on = |bed: &Bed, line, level| Arrival {
        line,
        ..bed.ask(level, 1)
    };
    // Line 5: in flight, granted, shed, waiting; line 6: in flight, waiting.
    for line in [5, 6] {
        let a = on(&bed, line, 1);
        assert!(matches!(bed.arrive_as(a), Entered::Admitted(_)));
    }
    let a = on(&bed, 5, 3);
    bed.arrive_as(a);
    bed.pass(502 * MS);
    for line in [5, 6, 5, 6] {
        let a = on(&bed, line, 1);
        assert!(matches!(bed.arrive_as(a), Entered::Queued(_)));
        bed.wait(MS);
    }
    let (now, mut wakes) = (bed.now(), Wakes::default());
    bed.heap.pool().line_died(5, now, &mut wakes);
    bed.check();
    assert!(wakes.has(6) && !wakes.has(5));
    assert_eq!(bed.collect_of(5), []);
    let news = bed.collect_of(6);
    assert_eq!(news.len(), 1);
    assert_eq!(bed.view().in_flight, 2);
    assert_eq!(bed.view().waiting[1], 1);
    assert!(
        bed.heap
            .entries
            .iter()
            .all(|it| it.phase == entry::FREE || it.line == 6)
    );
}

/// One limit for all gateways: this one's share of it, and what remains after it.
#[test]
fn a_share_of_a_cluster() {
    let cluster = Settings {
        cluster: 1,
        ..settings(5)
    };
    let mut bed = Bed::new(&cluster);
    let share = |bed: &mut Bed, share, ms: u64, rest| {
        let (now, until) = (bed.now(), Nanos(bed.now + ms * MS));
        bed.heap
            .pool()
            .set_share(share, until, rest, now, &mut bed.wakes);
        bed.check();
    };
    assert_eq!(bed.view().limit, 5, "alone, until it hears of others");
    share(&mut bed, 3, 1000, 2);
    let ids: Vec<EntryId> = (0..3).map(|_| bed.admit(1, 0)).collect();
    bed.queue(1, 0);
    // More than another has left.
    share(&mut bed, 4, 1000, 2);
    assert_eq!(bed.news(), [(3, Notice::Granted)]);
    // Shrunk: nothing until it fits.
    bed.queue(0, 0);
    bed.queue(1, 0);
    share(&mut bed, 2, 1000, 2);
    bed.release(ids[0]);
    bed.release(ids[1]);
    assert_eq!(bed.news(), []);
    assert_eq!((bed.view().in_flight, bed.view().limit), (2, 2));
    bed.release(ids[2]);
    assert_eq!(bed.news(), [(4, Notice::Granted)], "level 0 first");
    // The lease runs out while two wait: what remains.
    share(&mut bed, 2, 300, 3);
    let due = bed.next_due();
    assert!(due <= 300 * MS, "{due}");
    bed.pass(299 * MS);
    assert_eq!(bed.news(), []);
    bed.pass(MS);
    assert_eq!(bed.view().limit, 3);
    assert_eq!(bed.news(), [(5, Notice::Granted)]);
    share(&mut bed, 0, 0, 0);
    assert_eq!(bed.view().limit, 1, "never nothing");
    // A share of none is no rate: nobody is hopeless for it.
    share(&mut bed, 0, 1000, 1);
    bed.queue(2, 0);
    // No cluster any more.
    let (now, mut wakes) = (bed.now(), Wakes::default());
    bed.heap.pool().configure(&settings(7), now, &mut wakes);
    assert_eq!(bed.view().limit, 7);
}

#[test]
fn settings_change_at_once() {
    let mut bed = Bed::new(&settings(1));
    bed.admit(1, 0);
    for _ in 0..4 {
        bed.queue(1, 0);
    }
    let (now, mut wakes) = (bed.now(), Wakes::default());
    let more = Settings {
        max_wait_ns: 100 * MS,
        ..settings(3)
    };
    bed.heap.pool().configure(&more, now, &mut wakes);
    assert_eq!(bed.news().len(), 2);
    assert_eq!(bed.view().in_flight, 3);
    bed.pass(102 * MS);
    let news = bed.news();
    assert_eq!(news.len(), 2, "the new bound is also for those that wait");
    assert!(news.iter().all(|it| it.1 == Notice::Shed(Reason::Timeout)));
}

/// As the limiter says, when it lasts: told once, and again when it is over.
#[test]
fn saturation_is_told() {
    let mut bed = Bed::new(&settings(1));
    let mut slot = bed.admit(1, 0);
    for round in 0..200 {
        if round == 60 {
            assert!(bed.view().saturated);
            assert_eq!(bed.wakes.saturation, None, "a burst is not worth a word");
        }
        bed.queue(1, 0);
        bed.queue(1, 0);
        for _ in 0..2 {
            bed.wait(5 * MS);
            bed.next_after(&mut slot, answered(5 * MS));
        }
    }
    assert_eq!(bed.wakes.saturation, Some(true));
    assert!(bed.view().saturated);
    bed.wakes.saturation = None;
    bed.tick();
    assert_eq!(bed.wakes.saturation, None);
    bed.release(slot);
    bed.teach(1, 40, 50 * MS);
    assert!(!bed.view().saturated);
    assert_eq!(bed.wakes.saturation, None, "nor is a pause");
    bed.teach(1, 160, 50 * MS);
    assert_eq!(bed.wakes.saturation, Some(false));
}

#[test]
fn waits_are_counted() {
    let mut bed = Bed::new(&settings(1));
    let mut slot = bed.admit(1, 0);
    for ms in [1, 7, 60] {
        bed.queue(1, 0);
        bed.wait(ms * MS);
        bed.next(&mut slot);
    }
    let counts = bed.view().counts;
    let mut expected = [0; 14];
    (expected[0], expected[3], expected[6]) = (1, 1, 1);
    assert_eq!(counts.waits[1], expected);
    assert_eq!(counts.waits_sum_ns[1], 68 * MS);
    // A grant that nobody took up was none; who asks again has waited since it first did.
    bed.queue(1, 0);
    bed.release(slot);
    bed.pass(52 * MS);
    assert_eq!(bed.view().counts.waits[1], expected);
    let again = Arrival {
        since: Nanos(bed.now - 52 * MS),
        ..bed.ask(1, 0)
    };
    assert!(matches!(bed.arrive_as(again), Entered::Admitted(_)));
    expected[6] += 1;
    assert_eq!(bed.view().counts.waits[1], expected);
}

/// A pool made anew forgets everything, and old names are no names.
#[test]
fn format_makes_a_new_pool() {
    let mut bed = Bed::new(&settings(1));
    let old = bed.admit(1, 0);
    bed.queue(1, 0);
    let now = bed.now();
    bed.heap.pool().format(&settings(2), now);
    bed.check();
    assert_eq!(bed.view().in_flight, 0);
    let new = bed.admit(1, 0);
    assert_eq!(old.index, new.index);
    bed.release(old);
    assert_eq!(bed.view().in_flight, 1);
    bed.release(new);
    assert_eq!(bed.next_due(), u64::MAX);
}

/// No place in the memory: refused, and nobody loses its own for it.
#[test]
fn no_place_left() {
    let mut heap = Heap::new(2, &settings(1), Nanos(T0));
    let mut wakes = Wakes::default();
    let bed = Bed::new(&settings(1));
    let ask = |level| bed.ask(level, 0);
    let now = Nanos(T0);
    heap.pool().arrive(&ask(3), now, &mut wakes);
    heap.pool().arrive(&ask(3), now, &mut wakes);
    assert_eq!(heap.pool().would_shed(&ask(0), now), Some(Reason::Full));
    let entered = heap.pool().arrive(&ask(0), now, &mut wakes);
    assert_eq!(entered, Entered::Shed(Reason::Full));
    assert_eq!(heap.state.waiting, 1);
}

/// A rebuild keeps the order, and how long a class has stood.
#[test]
fn a_rebuild_keeps_the_order() {
    let mut bed = Bed::new(&settings(1));
    let mut slot = bed.admit(1, 0);
    for _ in 0..3 {
        bed.wait(MS);
        bed.queue(1, 5);
    }
    let calm = |bed: &mut Bed| {
        let now = bed.now();
        bed.heap.pool().rebuild(now, &mut Wakes::default());
        bed.check();
    };
    calm(&mut bed);
    assert_eq!(bed.next(&mut slot), 1);
    bed.wait(101 * MS);
    calm(&mut bed);
    assert_eq!(bed.next(&mut slot), 3, "it has stood since before");
    // Notices that nobody collected, and whose line is told of them again.
    bed.release(slot);
    let (now, mut wakes) = (bed.now(), Wakes::default());
    bed.heap.pool().rebuild(now, &mut wakes);
    assert!(wakes.has(0));
    assert_eq!(bed.news(), [(2, Notice::Granted)]);
}
