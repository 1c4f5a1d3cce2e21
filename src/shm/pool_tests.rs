use super::*;
use crate::domain::pool::{Arrival, Completion, Entered, Feedback};
use crate::shm::pool::{Held, wake};

const MS: u64 = 1_000_000;
const MIB: u64 = 1 << 20;

const DONE: Completion = Completion {
    feedback: Feedback::Response(Nanos(20 * MS)),
    abandoned: false,
};

fn settings(limit: u32) -> Settings {
    Settings {
        adaptive: 0,
        limit,
        min: 1,
        max: 1000,
        start: limit,
        capacity: 1000,
        levels: 4,
        cluster: 0,
        weights: [8; 16],
        max_wait_ns: 60_000 * MS,
        timeout_ns: 60_000 * MS,
    }
}

/// A worker of a region on the heap, with one pool.
fn region(limit: u32) -> (Region, PoolId) {
    let region = Region::on_heap(MIB);
    region.attach_worker(1).unwrap();
    let pool = region.take_pool("backend", &settings(limit), 1, 1).unwrap();
    (region, pool)
}

fn arrive(region: &Region, pool: PoolId, ticket: u64) -> Option<Entered> {
    let touched = region.pool(pool, |p, now, wakes| {
        let arrival = Arrival {
            level: 1,
            cohort: 0,
            route: 0,
            blind: false,
            exempt: false,
            line: region.line_index(),
            ticket,
            since: now,
        };
        p.arrive(&arrival, now, wakes)
    });
    touched.map(|t| t.value)
}

fn admitted(region: &Region, pool: PoolId) -> EntryId {
    match arrive(region, pool, 1) {
        Some(Entered::Admitted(id)) => id,
        other => panic!("{other:?}"),
    }
}

/// In flight and waiting.
fn held(region: &Region, pool: PoolId) -> (u32, u32) {
    let view = region.pool(pool, |p, now, _| p.view(now)).unwrap().value;
    (view.in_flight, view.waiting.iter().sum())
}

fn lock(region: &Region, pool: PoolId) -> Held<'_> {
    let mut wakes = Wakes::default();
    let place = region.place(pool.index());
    region.enter(place, PATIENCE, &mut wakes).unwrap()
}

#[test]
fn the_event_s_own_worker_is_told_by_what_is_returned() {
    let (region, pool) = region(1);
    let id = admitted(&region, pool);
    assert!(matches!(arrive(&region, pool, 2), Some(Entered::Queued(_))));
    let mut seen = 0;
    let released = region.pool(pool, |p, now, wakes| {
        p.release(id, &DONE, now, wakes);
        wakes.add(5);
    });
    assert!(released.unwrap().woke_me);
    assert!(!region.wait_for_wake(&mut seen, Duration::ZERO));
    let mut other = 0;
    assert!(wake::wait(
        region.lines().get(5).head,
        &mut other,
        Duration::ZERO
    ));
    let mut got = Vec::new();
    let collected = region.pool(pool, |p, now, _| p.collect(0, 9, now, &mut got));
    assert_eq!((collected.unwrap().woke_me, got.len()), (false, 1));
}

#[test]
fn within_an_event_the_lock_is_not_to_be_had() {
    let (region, pool) = region(3);
    let id = admitted(&region, pool);
    let inner = region.pool(pool, |_, _, _| {
        // Not the same thread, nor another.
        assert!(region.pool(pool, |_, _, _| ()).is_none());
        region.defer_release(pool, id, Deferred::Release(DONE));
        assert!(region.has_deferred(pool));
    });
    assert!(inner.is_some());
    assert_eq!(held(&region, pool), (0, 0));
    assert!(!region.has_deferred(pool));
}

/// What is deferred is told apart by the entry's generation.
#[test]
fn a_late_call_does_not_displace_that_of_a_later_owner() {
    let (region, pool) = region(1);
    let old = admitted(&region, pool);
    region
        .pool(pool, |p, now, wakes| p.leave(old, now, wakes))
        .unwrap();
    let new = admitted(&region, pool);
    assert_eq!(old.index, new.index);
    assert_ne!(old.generation, new.generation);
    // In both orders; the late one by itself changes nothing.
    region.defer_release(pool, old, Deferred::Release(DONE));
    assert_eq!(held(&region, pool), (1, 0));
    region.defer_release(pool, new, Deferred::Release(DONE));
    region.defer_release(pool, old, Deferred::Leave);
    assert_eq!(held(&region, pool), (0, 0));
    let newest = admitted(&region, pool);
    region.defer_release(pool, new, Deferred::Leave);
    region.defer_release(pool, newest, Deferred::Leave);
    assert_eq!(held(&region, pool), (0, 0));
    // One that cannot be is nobody's.
    let nobody = EntryId {
        index: u32::MAX,
        generation: 0,
    };
    region.defer_release(pool, nobody, Deferred::Leave);
    assert!(!region.has_deferred(pool));
}

/// Who was told that its time is up, while the lock was not to be had, is
/// counted once, whatever has become of it.
#[test]
fn each_that_gives_up_without_the_lock_is_counted_once() {
    let (region, pool) = region(1);
    let counted = || {
        let view = region.pool(pool, |p, now, _| p.view(now)).unwrap().value;
        let beside = region.sheds(pool);
        let both = view.counts.shed[1].iter().zip(&beside[1]);
        both.map(|(a, b)| a + b).sum::<u64>()
    };
    let queued = |ticket| match arrive(&region, pool, ticket) {
        Some(Entered::Queued(id)) => id,
        other => panic!("{other:?}"),
    };
    let release = |id| {
        let done = region.pool(pool, |p, now, wakes| p.release(id, &DONE, now, wakes));
        assert!(done.is_some());
    };
    let give_up = |id| region.defer_release(pool, id, Deferred::GiveUp { level: 1 });
    let holder = admitted(&region, pool);
    give_up(queued(2));
    assert_eq!((held(&region, pool), counted()), ((1, 0), 1));
    // It had been granted a slot meanwhile, which it has not heard of.
    let late = queued(3);
    release(holder);
    give_up(late);
    assert_eq!((held(&region, pool), counted()), ((0, 0), 2));
    // It had been granted one that was withdrawn.
    let (holder, late) = (admitted(&region, pool), queued(4));
    release(holder);
    let later = region.now().0 + 60 * MS;
    region.pool(pool, |p, _, wakes| p.tick(Nanos(later), wakes));
    give_up(late);
    assert_eq!((held(&region, pool), counted()), ((0, 0), 3));
    // A late call for it is nobody's.
    give_up(late);
    assert_eq!((held(&region, pool), counted()), ((0, 0), 3));
    // What the pool is asked for without the lock: a level that is none is the
    // last, and a pool of before has nothing.
    region.count_shed(pool, 200, Reason::Full);
    assert_eq!(region.sheds(pool)[15][Reason::Full as usize], 1);
    let other = PoolId { life: 9, ..pool };
    region.count_shed(other, 1, Reason::Full);
    assert_eq!((region.sheds(other), counted()), (Sheds::default(), 3));
}

/// A holder that dies after the bits were taken, before they were applied.
#[test]
fn what_was_deferred_outlives_who_was_to_apply_it() {
    let (region, pool) = region(100);
    let all: Vec<EntryId> = (0..100).map(|_| admitted(&region, pool)).collect();
    let place = region.place(pool.index());
    let held_by_another = lock(&region, pool);
    for id in &all {
        region.defer_release(pool, *id, Deferred::Release(DONE));
    }
    place.forget_bits();
    // Dropped in the middle, as by a panic.
    drop(held_by_another);
    assert_eq!(held(&region, pool), (0, 0));
    assert_eq!(region.repairs().rebuilt, 1);
}

#[test]
fn a_panic_in_an_event_is_mended() {
    let (region, pool) = region(2);
    let _kept = admitted(&region, pool);
    let event = std::panic::AssertUnwindSafe(|| {
        region.pool(pool, |p, _, _| {
            // The middle of a change, as far as anybody knows.
            let free = p.entries[1];
            p.entries[5..9].fill(free);
            panic!("in an event");
        })
    });
    assert!(std::panic::catch_unwind(event).is_err());
    assert_eq!(held(&region, pool), (1, 0));
    assert_eq!(region.repairs().rebuilt, 1);
    admitted(&region, pool);
    assert!(matches!(arrive(&region, pool, 2), Some(Entered::Queued(_))));
}

#[test]
#[cfg_attr(miri, ignore = "miri has no robust mutexes")]
fn a_lost_lock_is_made_anew_and_the_pool_with_it() {
    let (region, pool) = region(2);
    let _kept = admitted(&region, pool);
    region.place(pool.index()).head.lose();
    assert_eq!(held(&region, pool), (1, 0));
    let mended = Repairs {
        rebuilt: 1,
        renewed: 1,
    };
    assert_eq!(region.repairs(), mended);
    assert_eq!(held(&region, pool), (1, 0));
    assert_eq!(region.repairs(), mended);
}

#[test]
fn time_never_runs_back_within_a_pool() {
    let (region, pool) = region(2);
    let now = |region: &Region| region.pool(pool, |_, now, _| now).unwrap().value;
    let first = now(&region);
    assert!(now(&region) >= first);
    // Another processor's clock is a little ahead.
    let last = &region.place(pool.index()).head;
    let ahead = region.now().0 + 400 * MS;
    last.set_last(ahead);
    assert_eq!(now(&region), Nanos(ahead));
    // But a time that none can have had does not stop it.
    last.set_last(u64::MAX);
    assert!(now(&region).0 < ahead);
}

#[test]
fn names_and_settings() {
    let region = Region::on_heap(4 * MIB);
    region.attach_worker(3).unwrap();
    region.my_config_generation(9);
    let limit = |pool| {
        let view = region.pool(pool, |p, now, _| p.view(now)).unwrap().value;
        view.limit
    };
    let take = |name: &str, n, setup, config| region.take_pool(name, &settings(n), setup, config);
    let a = take("a", 5, 3, 9).unwrap();
    let id = admitted(&region, a);
    // The same, others, those of an older setup, of an older configuration.
    for (n, setup, config, now) in [
        (5, 3, 9, 5),
        (6, 3, 9, 6),
        (7, 2, 9, 6),
        (8, 3, 8, 6),
        (9, 3, 10, 9),
    ] {
        assert_eq!(take("a", n, setup, config).unwrap(), a);
        assert_eq!(limit(a), now, "{n} {setup} {config}");
    }
    assert_eq!(held(&region, a), (1, 0), "what is in flight stays");
    let b = take("b", 1, 3, 9).unwrap();
    let c = take("c", 1, 3, 9).unwrap();
    let d = take("d", 1, 3, 9).unwrap();
    region.count_shed(b, 1, Reason::Full);
    assert_eq!(region.sheds(b)[1], [1, 0, 0, 0]);
    let names = |region: &Region| {
        let all = region.pools().into_iter();
        all.map(|(_, name)| name).collect::<Vec<_>>()
    };
    assert_eq!(names(&region), ["a", "b", "c", "d"]);
    // All are in this worker's configuration.
    let full = take("e", 1, 3, 10).unwrap_err().to_string();
    assert!(
        full.contains("pool \"e\"") && full.contains("shm.size"),
        "{full}"
    );
    // Generation 10 has "a" and "c".
    take("c", 1, 3, 10).unwrap();
    region.my_config_generation(10);
    let e = take("e", 2, 3, 10).unwrap();
    assert_eq!(e.index(), b.index());
    assert_eq!((limit(e), held(&region, e)), (2, (0, 0)));
    assert_eq!(region.sheds(e), Sheds::default(), "b's is not e's");
    assert!(region.pool(b, |_, _, _| ()).is_none(), "an id of before");
    take("f", 2, 3, 10).unwrap();
    assert!(region.pool(d, |_, _, _| ()).is_none());
    assert_eq!(names(&region), ["a", "e", "c", "f"]);
    assert_eq!(limit(c), 1);
    // A late release of a pool that is gone is nobody's.
    region.defer_release(b, id, Deferred::Leave);
    assert!(!region.has_deferred(e));
}

#[test]
fn a_worker_that_starts_again_finds_nothing_of_old() {
    let (region, pool) = region(2);
    for ticket in 0..3 {
        arrive(&region, pool, ticket).unwrap();
    }
    let _kept = region.take_user(1, 4).unwrap().unwrap();
    // Again in the same process: a reload without a master.
    region.attach_worker(2).unwrap();
    assert_eq!((held(&region, pool), region.users_held()), ((2, 1), 1));
    region.detach();
    region.attach_worker(3).unwrap();
    assert_eq!((held(&region, pool), region.users_held()), ((0, 0), 0));
}

/// Four threads, as nginx's and background ones of one process, in one pool.
#[test]
fn threads_of_a_process_are_kept_apart_too() {
    const EACH: u64 = if cfg!(miri) { 12 } else { 2_000 };
    let (region, pool) = region(3);
    std::thread::scope(|s| {
        for i in 0..4 {
            let region = &region;
            s.spawn(move || {
                for n in 0..EACH {
                    let Some(entered) = arrive(region, pool, n) else {
                        continue;
                    };
                    let (Entered::Admitted(id) | Entered::Queued(id)) = entered else {
                        continue;
                    };
                    // Some by the way of a lock that is not to be had.
                    if (n + i) % 3 == 0 {
                        region.defer_release(pool, id, Deferred::Leave);
                    } else {
                        let left = region.pool(pool, |p, now, wakes| {
                            assert!(p.view(now).in_flight <= 3);
                            p.leave(id, now, wakes)
                        });
                        if left.is_none() {
                            region.defer_release(pool, id, Deferred::Leave);
                        }
                    }
                }
            });
        }
    });
    assert_eq!(held(&region, pool), (0, 0));
}
