//! Who of a class is served when.
use super::*;

#[test]
fn a_slot_is_given_while_there_is_one() {
    let mut bed = Bed::new(&settings(2));
    let first = bed.admit(1, 1);
    bed.admit(3, 2);
    let waiting = bed.queue(0, 3);
    assert_eq!(bed.view().in_flight, 2);
    assert_eq!(bed.view().waiting, [1, 0, 0, 0]);
    assert_eq!(bed.wakes, Wakes::default());
    bed.release(first);
    assert!(bed.wakes.has(0));
    let news = bed.collect();
    assert_eq!(news.len(), 1);
    assert_eq!((news[0].entry, news[0].notice), (waiting, Notice::Granted));
    assert_eq!(bed.view().in_flight, 2);
    // Late, and twice.
    bed.release(first);
    assert_eq!(bed.view().in_flight, 2);
}

/// B77: one class, one client, a backend of 30 ms; the class is empty every 100 ms.
#[test]
fn a_class_that_empties_serves_the_oldest_first() {
    let mut bed = Bed::new(&settings(1));
    for _ in 0..20 {
        let mut slot = bed.admit(2, 7);
        let first = bed.tickets;
        bed.queue(2, 7);
        bed.wait(10 * MS);
        bed.queue(2, 7);
        bed.wait(10 * MS);
        bed.queue(2, 7);
        for n in 0..3 {
            bed.wait(25 * MS);
            assert_eq!(bed.next(&mut slot), first + n);
        }
        bed.wait(25 * MS);
        bed.release(slot);
    }
}

/// B77: once the class stands, the newest; and the oldest again once it was empty.
#[test]
fn a_class_that_stands_serves_the_newest_first() {
    for level in 0..4 {
        let mut bed = Bed::new(&settings(1));
        let mut slot = bed.admit(level, 7);
        for _ in 0..4 {
            bed.queue(level, 7);
            bed.wait(MS);
        }
        bed.wait(95 * MS);
        assert_eq!(bed.next(&mut slot), 1, "99 ms: not yet");
        bed.wait(MS + 1);
        assert_eq!(bed.next(&mut slot), 4);
        bed.queue(level, 7);
        assert_eq!(bed.next(&mut slot), 5);
        assert_eq!(bed.next(&mut slot), 3);
        assert_eq!(bed.next(&mut slot), 2);
        bed.queue(level, 7);
        bed.wait(MS);
        bed.queue(level, 7);
        assert_eq!(bed.next(&mut slot), 6, "it was empty a moment ago");
    }
}

/// Another level's queue that stands changes nothing.
#[test]
fn only_the_class_itself_counts() {
    let mut bed = Bed::new(&settings(1));
    let mut slot = bed.admit(0, 7);
    bed.queue(1, 7);
    bed.wait(200 * MS);
    bed.queue(0, 7);
    bed.queue(0, 7);
    assert_eq!(bed.next(&mut slot), 2);
    assert_eq!(bed.next(&mut slot), 3);
}

#[test]
fn sub_queues_take_turns() {
    for standing in [0, 200 * MS] {
        let mut bed = Bed::new(&settings(1));
        bed.teach(1, 20, 10 * MS);
        let mut slot = bed.admit(1, 0);
        let first = bed.tickets;
        for _ in 0..50 {
            bed.queue(1, 10);
        }
        for cohort in [3, 200] {
            for _ in 0..5 {
                bed.queue(1, cohort);
            }
        }
        bed.wait(standing);
        let mut served = Vec::new();
        for _ in 0..30 {
            served.push(match bed.next(&mut slot) - first {
                ..50 => 10,
                50..55 => 3,
                _ => 200,
            });
        }
        // Nobody gets a second before all have got a first.
        for round in 0..5 {
            let mut turn = served[3 * round..][..3].to_vec();
            turn.sort_unstable();
            assert_eq!(turn, [3, 10, 200], "round {round} of {served:?}");
        }
        assert_eq!(served[15..], [10; 15]);
    }
}

/// Who was away has not saved up turns.
#[test]
fn who_comes_late_gets_no_more_than_the_others() {
    let mut bed = Bed::new(&settings(1));
    bed.teach(1, 20, 10 * MS);
    let mut slot = bed.admit(1, 0);
    let first = bed.tickets;
    for _ in 0..60 {
        bed.queue(1, 10);
    }
    for _ in 0..40 {
        bed.next(&mut slot);
    }
    for _ in 0..20 {
        bed.queue(1, 20);
    }
    let late = (0..20)
        .filter(|_| bed.next(&mut slot) - first >= 60)
        .count();
    assert!((9..=11).contains(&late), "{late}");
}

/// A client whose requests take ten times as long gets a tenth of them.
#[test]
fn turns_are_of_the_same_time() {
    let mut bed = Bed::new(&Settings {
        max_wait_ns: 60 * S,
        ..settings(1)
    });
    for _ in 0..300 {
        bed.heap.state.routes.learn(1, 10e6);
        bed.heap.state.routes.learn(2, 100e6);
    }
    let mut slot = bed.admit(1, 0);
    bed.pass(2 * S);
    let first = bed.tickets;
    for n in 0..100 {
        let (cohort, route) = if n % 2 == 0 { (5, 1) } else { (6, 2) };
        let a = Arrival {
            route,
            ..bed.ask(0, cohort)
        };
        assert!(matches!(bed.arrive_as(a), Entered::Queued(_)), "{n}");
    }
    let long = (0..44)
        .filter(|_| (bed.next(&mut slot) - first) % 2 == 1)
        .count();
    assert!((4..=5).contains(&long), "{long}");
}

/// B77: levels that nobody configured are the last.
#[test]
fn odd_levels() {
    let mut bed = Bed::new(&settings(1));
    let mut slot = bed.admit(1, 0);
    for level in [255, 4, 3, 16, 0] {
        bed.queue(level, 1);
    }
    assert_eq!(bed.view().waiting, [1, 0, 0, 4]);
    let served: Vec<u64> = (0..5).map(|_| bed.next(&mut slot)).collect();
    assert_eq!(served, [5, 1, 2, 3, 4], "level 0, then as they came");
    // Fewer levels than waiters have: they are shown with the last, and served.
    bed.queue(3, 1);
    let now = bed.now();
    let fewer = Settings {
        levels: 2,
        ..settings(1)
    };
    let mut wakes = Wakes::default();
    bed.heap.pool().configure(&fewer, now, &mut wakes);
    assert_eq!(bed.view().waiting, [0, 1]);
    assert_eq!(bed.next(&mut slot), 6);
}

/// Asks again after a grant that its worker did not take up: before those that asked
/// later, where the oldest is first.
#[test]
fn who_asked_before_goes_before() {
    let mut bed = Bed::new(&settings(1));
    let slot = bed.admit(1, 0);
    let asked = bed.now();
    bed.queue(1, 5);
    bed.release(slot);
    bed.wait(10 * MS);
    bed.queue(1, 5);
    bed.wait(10 * MS);
    bed.queue(1, 5);
    // The grant of the first lapses; the second is granted.
    bed.pass(32 * MS);
    assert_eq!(bed.news(), [(1, Notice::Withdrawn), (2, Notice::Granted)]);
    let again = Arrival {
        since: asked,
        ..bed.ask(1, 5)
    };
    assert!(matches!(bed.arrive_as(again), Entered::Queued(_)));
    let mut walked = Vec::new();
    for (_, list, _) in bed.heap.state.classes[1].queues() {
        let indices = list.walk(&bed.heap.entries, By::Place);
        walked.extend(
            indices
                .iter()
                .map(|&it| bed.heap.entries[it as usize].ticket),
        );
    }
    assert_eq!(walked, [4, 3]);
}
