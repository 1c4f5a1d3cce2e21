//! Who may not wait, and for how long the others may.
use super::*;

fn fate(news: &[(u64, Notice)], ticket: u64) -> Option<Notice> {
    news.iter().find(|it| it.0 == ticket).map(|it| it.1)
}

const TIMEOUT: Notice = Notice::Shed(Reason::Timeout);
const EVICTED: Notice = Notice::Shed(Reason::Evicted);
const HOPELESS: Notice = Notice::Shed(Reason::Hopeless);
/// The wheel's step.
const STEP: u64 = super::super::wheel::SLOT_NS;

/// How long the first and the last of a class may wait; the last comes when the class
/// has not been empty for that long.
#[test]
fn waits_are_bounded() {
    let rows = [
        // level, blind, max_wait, last comes, first's and last's bound, ms
        (0, false, 5000, 3000, 5000, 5000),
        (0, true, 5000, 3000, 5000, 5000),
        (0, false, 700, 600, 700, 700),
        (1, false, 5000, 900, 1000, 1000),
        (1, false, 5000, 300, 1000, 1000),
        (2, false, 5000, 499, 500, 500),
        (2, false, 5000, 100, 500, 500),
        // The class has to stand for 500 ms first, then those that wait too long go.
        (3, false, 5000, 450, 500, 300),
        (3, false, 5000, 100, 500, 400),
        // Levels below 3 as 3.
        (7, false, 5000, 450, 500, 300),
        // Never above max_wait.
        (1, false, 800, 700, 800, 800),
        (3, false, 200, 150, 200, 200),
        // Who is blind never waits longer than 1 s, if the class has never stood.
        (1, true, 5000, 900, 1000, 1000),
        (2, true, 5000, 400, 500, 500),
        (3, true, 100, 50, 100, 100),
    ];
    for (level, blind, max_wait, last, first_ms, last_ms) in rows {
        let mut bed = Bed::new(&Settings {
            max_wait_ns: max_wait * MS,
            levels: 9,
            ..settings(1)
        });
        bed.quiet = true;
        bed.admit(0, 0);
        let blind = |bed: &Bed| Arrival {
            blind,
            ..bed.ask(level, 1)
        };
        bed.arrive_as(blind(&bed));
        bed.wait(last * MS);
        bed.arrive_as(blind(&bed));
        let mut seen = Vec::new();
        while bed.now < T0 + 12 * S {
            bed.tick();
            for (ticket, notice) in bed.news() {
                assert_eq!(notice, TIMEOUT);
                let due = T0 + [0, first_ms, last + last_ms][ticket as usize] * MS;
                let late = bed.now.checked_sub(due).expect("not early");
                assert!(late <= STEP + MS, "level {level}: {late} ns late");
                seen.push(ticket);
            }
            bed.wait(MS);
        }
        assert_eq!(seen.len(), 2, "level {level}");
        assert_eq!(bed.view().counts.shed[usize::from(level)][2], 2);
    }
}

/// A class that was empty in between is calm again.
#[test]
fn an_empty_class_begins_anew() {
    let mut bed = Bed::new(&settings(1));
    let mut slot = bed.admit(0, 0);
    bed.queue(3, 1);
    bed.pass(290 * MS);
    bed.next(&mut slot);
    bed.queue(3, 1);
    bed.pass(450 * MS);
    assert_eq!(bed.news(), [], "450 ms, but not yet 500 since it was empty");
    bed.pass(52 * MS);
    assert_eq!(bed.news(), [(2, TIMEOUT)]);
}

/// One whose time is up is not granted, even where time was not told to the pool.
#[test]
fn nobody_is_granted_late() {
    let mut bed = Bed::new(&settings(1));
    let slot = bed.admit(0, 0);
    bed.queue(1, 1);
    bed.wait(S + 1);
    bed.release(slot);
    assert_eq!(bed.news(), [(1, TIMEOUT)]);
    assert_eq!(bed.view().in_flight, 0);
}

/// `since` is of the first time it asked, and the bound counts from then.
#[test]
fn who_asks_again_keeps_its_time() {
    let mut bed = Bed::new(&settings(1));
    bed.admit(0, 0);
    let since = bed.now();
    bed.wait(900 * MS);
    let again = Arrival {
        since,
        ..bed.ask(1, 1)
    };
    assert!(matches!(bed.arrive_as(again), Entered::Queued(_)));
    bed.pass(499 * MS);
    assert_eq!(bed.news(), []);
    bed.pass(3 * MS);
    assert_eq!(bed.news(), [(1, TIMEOUT)], "500 ms after the class began");
    bed.pass(5 * S);
    assert_eq!(bed.arrive_as(again), Entered::Shed(Reason::Timeout));
}

/// A backend of 10/s (one slot, 100 ms), nothing dispatched of late.
fn ten_per_s(level: u8) -> Bed {
    let mut bed = Bed::new(&settings(1));
    bed.teach(level, 20, 100 * MS);
    bed.pass(20 * S);
    bed.admit(0, 0);
    bed.pass(2 * S);
    bed
}

#[test]
fn the_hopeless_are_refused_at_once() {
    // 5 s at 10/s: the 51st of one client would wait for 5.1 s.
    let mut bed = ten_per_s(1);
    for _ in 0..50 {
        bed.queue(1, 9);
    }
    assert_eq!(bed.arrive(1, 9), Entered::Shed(Reason::Hopeless));
    // Of another client it is the second of two turns: 0.2 s.
    bed.queue(1, 8);
    assert_eq!(bed.view().counts.shed[1], [0, 0, 0, 2], "one of either end");

    // In level 0 all that wait are before it, whoever asked.
    let mut bed = ten_per_s(0);
    for cohort in 0..50 {
        bed.queue(0, cohort);
    }
    assert_eq!(bed.arrive(0, 99), Entered::Shed(Reason::Hopeless));

    // 26 clients of two each would be 5.2 s.
    let mut bed = ten_per_s(1);
    for cohort in 0..25 {
        bed.queue(1, cohort);
    }
    assert_eq!(bed.arrive(1, 0), Entered::Queued(last(&bed)), "2 × 25");
    bed.queue(1, 26);
    assert_eq!(bed.arrive(1, 3), Entered::Shed(Reason::Hopeless), "2 × 26");

    // Who asked before has less time left.
    let mut bed = ten_per_s(1);
    let before = Arrival {
        since: Nanos(bed.now - 4650 * MS),
        ..bed.ask(1, 5)
    };
    for _ in 0..3 {
        bed.arrive_as(before);
    }
    assert_eq!(bed.arrive_as(before), Entered::Shed(Reason::Hopeless));
    // And who is blind has 1 s.
    let mut bed = ten_per_s(1);
    let blind = Arrival {
        blind: true,
        ..bed.ask(1, 5)
    };
    for _ in 0..10 {
        assert!(matches!(bed.arrive_as(blind), Entered::Queued(_)));
    }
    assert_eq!(bed.arrive_as(blind), Entered::Shed(Reason::Hopeless));
}

/// The entry that was given out last.
fn last(bed: &Bed) -> EntryId {
    let of = |it: &Entry| it.phase == entry::WAITING && it.ticket + 1 == bed.tickets;
    let index = bed.heap.entries.iter().position(of).expect("waits");
    EntryId {
        index: index as u32,
        generation: bed.heap.entries[index].generation,
    }
}

#[test]
fn nobody_is_hopeless_where_nothing_is_known() {
    let mut bed = Bed::new(&settings(1));
    bed.teach(1, 19, 100 * MS);
    bed.pass(2 * S);
    bed.admit(0, 0);
    for _ in 0..200 {
        bed.queue(1, 9);
    }
}

/// A class's part: what weights give it beside those that stand, of what level 0
/// leaves; or what it was served in the last second, if that is more.
#[test]
fn a_class_expects_its_part() {
    // Level 2 beside level 1, that stands: 2 of 10, so 2/s: 10 in 5 s.
    let mut bed = ten_per_s(1);
    bed.queue(1, 0);
    bed.wait(101 * MS);
    for _ in 0..10 {
        bed.queue(2, 5);
    }
    assert_eq!(bed.arrive(2, 5), Entered::Shed(Reason::Hopeless));
    // Level 1 that does not stand takes nothing from it.
    let mut bed = ten_per_s(1);
    bed.queue(1, 0);
    bed.wait(99 * MS);
    for _ in 0..50 {
        bed.queue(2, 5);
    }
    assert_eq!(bed.arrive(2, 5), Entered::Shed(Reason::Hopeless));

    // Level 0 was served 4 in the last second.
    let mut bed = Bed::new(&settings(1));
    bed.teach(1, 20, 100 * MS);
    bed.pass(20 * S);
    bed.teach(0, 4, 200 * MS);
    bed.admit(1, 0);
    let rate = part(&mut bed, 2);
    assert!((4.0..6.5).contains(&rate), "what is left: {rate}");

    // Level 2 was served 8 in the last second, though level 1 stands.
    let mut bed = ten_per_s(1);
    let slot = last_slot(&bed);
    bed.release(slot);
    bed.teach(2, 8, 100 * MS);
    bed.admit(0, 0);
    bed.queue(1, 0);
    bed.wait(101 * MS);
    let rate = part(&mut bed, 2);
    assert!((6.0..9.0).contains(&rate), "what it was: {rate}");
}

/// The same where those that were served had waited.
#[test]
fn a_class_expects_what_it_was_granted() {
    let mut bed = ten_per_s(1);
    let mut slot = last_slot(&bed);
    for _ in 0..8 {
        bed.queue(2, 1);
        bed.wait(100 * MS);
        bed.next(&mut slot);
    }
    bed.queue(1, 0);
    bed.wait(101 * MS);
    let rate = part(&mut bed, 2);
    assert!((6.0..9.0).contains(&rate), "{rate}");
}

/// Level 0 was served all there is in the last second, but by its last ten it leaves
/// the others their tenth: they are not hopeless.
#[test]
fn a_class_expects_its_least_share() {
    let mut bed = ten_per_s(1);
    let slot = last_slot(&bed);
    bed.leave(slot);
    bed.teach(0, 15, 75 * MS);
    bed.admit(0, 0);
    let rate = part(&mut bed, 1);
    assert!((0.8..1.5).contains(&rate), "{rate}");
}

fn last_slot(bed: &Bed) -> EntryId {
    let index = bed.heap.entries.iter().position(Entry::has_slot);
    let index = index.expect("in flight");
    EntryId {
        index: index as u32,
        generation: bed.heap.entries[index].generation,
    }
}

/// How many of one client of that level may wait, for each second of 5.
fn part(bed: &mut Bed, level: u8) -> f64 {
    let mut n = 0;
    while matches!(bed.arrive(level, 5), Entered::Queued(_)) {
        n += 1;
    }
    f64::from(n) / 5.0
}

/// B75: one slot, 3 s, and 1 s to wait: 10 at once. One is served; the other nine are
/// told at once, or when their second is over while nothing is known.
#[test]
fn b75() {
    for level in 0..4 {
        for taught in [false, true] {
            let mut bed = Bed::new(&Settings {
                max_wait_ns: S,
                ..settings(1)
            });
            if taught {
                bed.teach(level, 20, 3 * S);
            }
            let slot = bed.admit(level, 0);
            for cohort in 1..10 {
                let entered = bed.arrive(level, cohort);
                match taught {
                    true => assert_eq!(entered, Entered::Shed(Reason::Hopeless)),
                    false => assert!(matches!(entered, Entered::Queued(_))),
                }
            }
            bed.pass(S + STEP);
            let news = bed.news();
            assert_eq!(news.len(), if taught { 0 } else { 9 });
            assert!(news.iter().all(|it| it.1 == TIMEOUT));
            bed.wait(2 * S);
            bed.release(slot);
            assert_eq!(bed.news(), []);
            bed.admit(level, 3);
        }
    }
}

/// D_c × bound: 50 in a class that is not long there, 10 in one that stands.
#[test]
fn a_class_holds_what_it_can_serve() {
    let mut bed = ten_per_s(1);
    for n in 0..50 {
        bed.queue(1, if n < 40 { 20 } else { 10 });
    }
    let first = bed.tickets - 50;
    // In the place of the oldest of the longest.
    bed.queue(1, 10);
    assert_eq!(bed.news(), [(first, HOPELESS)]);
    // The newest first: no arrival is hopeless, but as many are sent away.
    bed.wait(101 * MS);
    bed.queue(1, 20);
    assert_eq!(bed.news(), [(first + 1, HOPELESS)]);
    assert_eq!(bed.view().waiting[1], 50);
    // Standing for 500 ms, 1 s is the bound: 10. As many go as one event may send.
    bed.pass(400 * MS);
    for _ in 0..4 {
        bed.queue(1, 30);
    }
    assert_eq!(bed.view().waiting[1], 10);
    assert!(bed.news().iter().all(|it| it.1 == HOPELESS));
    // Level 0 holds D × max_wait.
    let mut bed = ten_per_s(0);
    for _ in 0..50 {
        bed.queue(0, 20);
    }
    bed.wait(600 * MS);
    bed.queue(0, 20);
    assert_eq!(bed.view().waiting[0], 50);
}

/// As many as are in flight may always wait.
#[test]
fn a_class_holds_as_many_as_the_limit() {
    let mut bed = Bed::new(&settings(20));
    bed.teach(3, 20, 2 * S);
    bed.pass(20 * S);
    for _ in 0..20 {
        bed.admit(0, 0);
    }
    bed.pass(2 * S);
    bed.queue(3, 1);
    bed.wait(400 * MS);
    for _ in 1..50 {
        bed.queue(3, 1);
    }
    bed.pass(102 * MS);
    assert_eq!(bed.view().waiting[3], 49);
    // 10/s for 0.3 s would be 3.
    for _ in 0..30 {
        bed.queue(3, 2);
    }
    assert_eq!(bed.view().waiting[3], 20);
}

fn small(capacity: u32) -> Bed {
    let mut bed = Bed::new(&Settings {
        capacity,
        ..settings(1)
    });
    bed.admit(0, 0);
    bed
}

#[test]
fn the_more_important_take_the_place_of_the_less() {
    let mut bed = small(6);
    // Tickets 1 to 6.
    for (level, cohort) in [(1, 1), (2, 1), (3, 5), (3, 9), (3, 5), (3, 9)] {
        bed.queue(level, cohort);
    }
    // The lowest class; of two as long the worst cohort; of it the oldest.
    bed.queue(1, 0);
    assert_eq!(bed.news(), [(4, EVICTED)]);
    // Now 5 is the longest.
    bed.queue(2, 0);
    assert_eq!(bed.news(), [(3, EVICTED)]);
    bed.queue(0, 0);
    assert_eq!(bed.news(), [(6, EVICTED)]);
    bed.queue(0, 0);
    assert_eq!(bed.news(), [(5, EVICTED)]);
    // Strictly below: not for its own level, and not for one below.
    assert_eq!(bed.arrive(3, 0), Entered::Shed(Reason::Full));
    assert_eq!(bed.arrive(2, 7), Entered::Shed(Reason::Full));
    bed.queue(1, 7);
    assert_eq!(fate(&bed.news(), 2), Some(EVICTED));
    assert_eq!(bed.view().waiting, [2, 3, 1, 0]);
    let counts = bed.view().counts;
    assert_eq!(counts.shed[2], [1, 1, 0, 0]);
    assert_eq!(counts.shed[3], [1, 4, 0, 0]);
}

/// A class that stands gives up one of its own, since the newest is served first.
#[test]
fn a_class_that_stands_makes_room_itself() {
    let mut bed = small(4);
    for cohort in [7, 8, 8, 7] {
        bed.queue(2, cohort);
    }
    assert_eq!(bed.arrive(2, 1), Entered::Shed(Reason::Full));
    bed.wait(101 * MS);
    bed.queue(2, 1);
    assert_eq!(bed.news(), [(2, EVICTED)]);
    bed.queue(2, 1);
    assert_eq!(bed.news(), [(1, EVICTED)]);
    // One that is not there has nothing to give, and takes nothing from above.
    assert_eq!(bed.arrive(3, 1), Entered::Shed(Reason::Full));
    // A lower class first, even where the own one stands.
    let mut bed = small(2);
    bed.queue(2, 1);
    bed.wait(101 * MS);
    bed.queue(3, 1);
    bed.queue(2, 1);
    assert_eq!(bed.news(), [(2, EVICTED)]);
    // No place at all.
    assert_eq!(small(0).arrive(0, 0), Entered::Shed(Reason::Full));
}

/// A quarter of the places is for those whose leaving nobody would see.
#[test]
fn the_blind_share_a_quarter() {
    let mut bed = small(16);
    let blind = |bed: &Bed, level: u8, cohort: u8| Arrival {
        blind: true,
        ..bed.ask(level, cohort)
    };
    for level in [2, 3, 3, 2] {
        let a = blind(&bed, level, 1);
        assert!(matches!(bed.arrive_as(a), Entered::Queued(_)));
    }
    let a = blind(&bed, 3, 1);
    assert_eq!(bed.arrive_as(a), Entered::Shed(Reason::Full));
    bed.queue(3, 1);
    // The more important takes the place of a blind one, the oldest of the lowest.
    let a = blind(&bed, 1, 1);
    assert!(matches!(bed.arrive_as(a), Entered::Queued(_)));
    assert_eq!(bed.news(), [(2, EVICTED)]);
    // A class that stands gives up its own oldest.
    bed.wait(101 * MS);
    for ticket in [3, 8] {
        let a = blind(&bed, 3, 9);
        assert!(matches!(bed.arrive_as(a), Entered::Queued(_)));
        assert_eq!(bed.news(), [(ticket, EVICTED)]);
    }
    assert_eq!(bed.view().waiting, [0, 1, 2, 2]);
}
