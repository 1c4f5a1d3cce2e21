use super::*;
use crate::domain::config::Suspicion;
use crate::domain::units::Rate;
use crate::shm::Region;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::{Barrier, LazyLock};
use std::time::Duration;

const S: u64 = 1_000_000_000;
/// A time in the middle of a half of 5 s.
const START: Nanos = Nanos(1_002 * S);
/// Of whatever is done often.
const MANY: u64 = if cfg!(miri) { 20 } else { 1_000 };

fn region() -> Region {
    Region::on_heap(1 << 20)
}

/// 200 requests in 10 s, half of them errors, a quarter aborted.
fn bounds() -> Bounds {
    static BOUNDS: LazyLock<Bounds> = LazyLock::new(|| {
        Bounds::from(&Suspicion {
            rate: Some(Rate::parse("20/s").unwrap()),
            client_errors: Some(0.5),
            aborts: Some(0.25),
            window: Duration::from_secs(10),
        })
    });
    *BOUNDS
}

fn after(seconds: u64) -> Nanos {
    Nanos(START.0 + seconds * S)
}

/// Hashes that all belong to the first set.
fn of_one_set(n: u64) -> u64 {
    n + 1
}

fn requests(b: Behaviour<'_>, client: u64, n: u32, now: Nanos) -> u8 {
    (0..n).fold(0, |_, _| b.note_request(client, now, &bounds()))
}

#[test]
fn intent_lasts_as_long_as_its_event_says() {
    let region = region();
    let b = region.behaviour();
    let user = region.identity(0, b"alice");
    assert!(!b.intent(user, START));
    b.note_event(user, after(600));
    assert!(b.intent(user, START) && b.intent(user, after(599)));
    assert!(!b.intent(user, after(600)));
    // A shorter one does not cut it, a longer one counts.
    b.note_event(user, after(60));
    assert!(b.intent(user, after(599)));
    b.note_event(user, after(900));
    assert!(b.intent(user, after(899)));
    assert!(!b.intent(region.identity(0, b"bob"), START));
}

#[test]
fn of_too_many_users_the_one_whose_intent_ends_first_is_forgotten() {
    let region = region();
    let b = region.behaviour();
    for n in 0..=WAYS as u64 {
        b.note_event(of_one_set(n), after(100 + n));
    }
    let left: Vec<bool> = (0..=WAYS as u64)
        .map(|n| b.intent(of_one_set(n), START))
        .collect();
    let mut expected = [true; WAYS + 1];
    expected[0] = false;
    assert_eq!(left, expected);
}

#[test]
fn a_client_above_its_rate_is_lowered_at_once_and_until_it_has_been_calm() {
    let region = region();
    let b = region.behaviour();
    let client = region.identity(0, b"203.0.113.9");
    assert_eq!(requests(b, client, 200, START), 0);
    assert_eq!(requests(b, client, 1, START), 1);
    // Its requests leave the window with the half after the next, at 1010 s.
    for (second, lowered) in [(1, 1), (30, 1), (67, 1), (69, 0)] {
        assert_eq!(requests(b, client, 1, after(second)), lowered, "{second}");
    }
    assert_eq!(requests(b, region.identity(0, b"other"), 1, START), 0);
}

#[test]
fn errors_and_aborts_count_where_the_requests_have_ended() {
    let region = region();
    let b = region.behaviour();
    let (errs, leaves, both) = (of_one_set(1), of_one_set(2), of_one_set(3));
    for client in [errs, leaves, both] {
        for n in 0..10 {
            b.note_request(client, START, &bounds());
            let (error, aborted) = (n < 6 && client != leaves, n >= 6 && client != errs);
            b.note_end(client, error, aborted, START, &bounds());
        }
    }
    assert_eq!(requests(b, errs, 1, START), 1);
    assert_eq!(requests(b, leaves, 1, START), 1);
    assert_eq!(requests(b, both, 1, START), 2);
    // What ended after the last request is known when the next one comes, even
    // when it has left the window by then.
    let late = of_one_set(4);
    for _ in 0..10 {
        b.note_request(late, START, &bounds());
    }
    for _ in 0..10 {
        b.note_end(late, true, false, after(1), &bounds());
    }
    assert_eq!(requests(b, late, 1, after(30)), 1);
}

#[test]
fn new_clients_push_out_each_other_and_neither_the_busy_nor_the_suspected() {
    const CLIENTS: u64 = if cfg!(miri) { 30 } else { 10_000 };
    let region = region();
    let b = region.behaviour();
    let (suspect, busy) = (of_one_set(1), of_one_set(2));
    assert_eq!(requests(b, suspect, 201, START), 1);
    requests(b, busy, 150, START);
    for n in 10..CLIENTS {
        assert_eq!(requests(b, of_one_set(n), 1, after(1)), 0);
    }
    assert_eq!(requests(b, busy, 51, after(2)), 1, "still counted");
    // Silent, it is under suspicion all the same.
    for n in CLIENTS..2 * CLIENTS {
        requests(b, of_one_set(n), 1, after(60));
    }
    assert_eq!(requests(b, suspect, 1, after(61)), 1);
}

#[test]
fn whoever_takes_over_a_record_begins_with_nothing() {
    const EACH: u32 = if cfg!(miri) { 12 } else { 150 };
    let region = region();
    let b = region.behaviour();
    for n in 0..WAYS as u64 {
        for _ in 0..EACH {
            b.note_request(of_one_set(n), START, &bounds());
            b.note_end(of_one_set(n), true, true, START, &bounds());
        }
    }
    let used = b.watched().1;
    // All are under suspicion, so a newcomer is not watched, and not lowered.
    assert_eq!(requests(b, of_one_set(99), EACH * 10 / 3, START), 0);
    assert_eq!(b.watched().1, used);
    // When nobody has been seen for a minute and a window, their records are its.
    assert_eq!(requests(b, of_one_set(99), 200, after(71)), 0);
    assert_eq!(requests(b, of_one_set(99), 1, after(71)), 1);
    assert_eq!(b.watched().1, used);
}

#[test]
fn tags_part_what_follows_each_other_in_a_word() {
    let (a, b) = (0xaaaa_0001, 0xaaaa_0002);
    let counts = Counts {
        requests: 70_000,
        ended: 3,
        client_errors: 2,
        aborts: 1,
    };
    let (period, found) = unpack(pack(a, 7, counts), a).expect("its own");
    let expected = Counts {
        requests: 65_535,
        ..counts
    };
    assert_eq!((period, found), (7, expected));
    assert_eq!(unpack(pack(a, 7, counts), b), None);
    let three = Standing {
        above: [Some(Nanos(0)), None, Some(START)],
    };
    let bits = pack_standing(a, three);
    assert_eq!(standing(bits, a, START), three);
    assert_eq!(standing(bits, b, START), Standing::default());
    // Of a time to come: damage.
    assert_eq!(
        standing(bits, a, Nanos(S)).above,
        [Some(Nanos(0)), None, None]
    );
}

#[test]
fn any_bits_will_do() {
    let region = region();
    let b = region.behaviour();
    let mut random = 1u64;
    let mut next = || {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        u128::from(random) << 64 | u128::from(random.rotate_left(31))
    };
    for set in b.suspects {
        for record in &set.0 {
            record.key.store(next() as u64, Relaxed);
            record.seen_ns.store(next() as u64, Relaxed);
            record.above.store(next(), Relaxed);
            record
                .halves
                .iter()
                .for_each(|half| half.store(next(), Relaxed));
        }
    }
    for set in b.intents {
        set.0.iter().for_each(|word| word.store(next(), Relaxed));
    }
    for n in 0..MANY {
        let hash = region.identity(n, b"any");
        b.note_request(hash, after(n), &bounds());
        b.note_end(hash, true, true, after(n), &bounds());
        b.note_event(hash, after(n + 1));
        b.intent(hash, after(n));
    }
    // Words of a known client with everything else at random.
    let known = of_one_set(5);
    let record = &set_of(b.suspects, known).0[0];
    record.key.store(known, Relaxed);
    for n in 0..MANY {
        let own = tag(known) | next() & !(u128::from(u32::MAX) << 96);
        record.above.store(own, Relaxed);
        record.halves[n as usize % 2].store(own, Relaxed);
        assert!(b.note_request(known, after(n), &bounds()) <= 3);
        b.note_end(known, true, true, Nanos(n), &bounds());
    }
}

#[test]
fn many_threads_lose_nothing_and_double_nothing() {
    const CLIENTS: usize = if cfg!(miri) { 3 } else { 100 };
    let region = region();
    let b = region.behaviour();
    // Of each of the clients each thread brings all the requests that are allowed but one,
    // divided by 4; one more is then the bound, and one more is above it.
    let clients: Vec<u64> = (0..CLIENTS as u64)
        .map(|n| region.identity(n, b"c"))
        .collect();
    let begin = Barrier::new(4);
    let note = |rounds: u32| {
        begin.wait();
        for _ in 0..rounds {
            for client in &clients {
                b.note_request(*client, START, &bounds());
            }
        }
    };
    std::thread::scope(|scope| {
        for rounds in [50, 50, 50, 49] {
            let note = &note;
            scope.spawn(move || note(rounds));
        }
    });
    for set in b.suspects {
        let mut keys: Vec<u64> = set.0.iter().map(|r| r.key.load(Relaxed)).collect();
        keys.retain(|key| *key != 0);
        keys.sort_unstable();
        let before = keys.len();
        keys.dedup();
        assert_eq!(keys.len(), before, "a client has one record");
    }
    assert_eq!(b.watched().1, CLIENTS as u64);
    let lowered = |n: u32| {
        let at = clients.iter().map(|client| requests(b, *client, n, START));
        at.filter(|levels| *levels == 1).count()
    };
    assert_eq!(lowered(1), 0, "more was counted than came");
    // What two threads count in the moment in which both make the record is lost.
    assert!(lowered(4) + 5 >= CLIENTS, "less was counted than came");
}

#[test]
fn a_flood_of_new_clients_from_many_threads() {
    const EACH: u64 = if cfg!(miri) { 20 } else { 20_000 };
    let region = region();
    let b = region.behaviour();
    let suspect = region.identity(0, b"suspect");
    assert_eq!(requests(b, suspect, 201, START), 1);
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let region = &region;
            scope.spawn(move || {
                for n in 0..EACH {
                    let client = region.identity(thread << 32 | n, b"new");
                    assert_eq!(requests(b, client, 1, after(1)), 0);
                }
            });
        }
    });
    let (capacity, used) = b.watched();
    // So many that no place is left; not so under miri.
    assert!(capacity == used || cfg!(miri));
    assert_eq!(requests(b, suspect, 1, after(2)), 1);
}

/// As the table should do it, without a table.
#[derive(Default)]
struct Model {
    periods: BTreeMap<u32, Counts>,
    standing: Standing,
}

impl Model {
    fn count(&mut self, now: Nanos, more: Counts) -> Counts {
        let bounds = bounds();
        let period = bounds.period(now);
        if let Some((last, current)) = self.periods.last_key_value()
            && *last < period
        {
            let before = last.checked_sub(1).and_then(|p| self.periods.get(&p));
            let before = before.copied().unwrap_or_default();
            self.standing = self
                .standing
                .caught_up(&bounds, *last, *current, before, now);
        }
        let counts = self.periods.entry(period).or_default();
        *counts = counts.plus(more);
        let before = self.periods.get(&(period - 1)).copied().unwrap_or_default();
        self.periods[&period].plus(before)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 64 }))]
    #[test]
    fn the_table_judges_as_the_arithmetic_does(events in
            proptest::collection::vec((0u64..3, 0u64..40, any::<bool>(), 0u8..4), 1..MANY as usize * 3 / 2)) {
        let region = region();
        let b = region.behaviour();
        let mut models: [Model; 3] = Default::default();
        let mut now = START;
        for (client, gap, end, kind) in events {
            // Mostly close together, now and then a long silence; whole tenths, as the table keeps.
            now.0 += if gap == 0 { 21 * S } else { gap / 10 * TENTH_NS };
            let model = &mut models[client as usize];
            let hash = of_one_set(client);
            if end {
                if model.periods.is_empty() {
                    continue;
                }
                let (error, aborted) = (kind & 1 == 1, kind & 2 == 2);
                b.note_end(hash, error, aborted, now, &bounds());
                model.count(now, Counts {
                    requests: 0,
                    ended: 1,
                    client_errors: error.into(),
                    aborts: aborted.into(),
                });
            } else {
                let found = b.note_request(hash, now, &bounds());
                let counts = model.count(now, Counts { requests: 1, ..Counts::default() });
                model.standing = model.standing.judged(bounds().read(counts), now);
                prop_assert_eq!(found, model.standing.levels());
            }
        }
    }
}
