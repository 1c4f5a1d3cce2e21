use super::*;
use crate::bridge;
use crate::domain::config::Store;
use crate::domain::pool::{Arrival, Completion, Entered, EntryId, Feedback, Settings};
use crate::domain::units::Nanos;
use parking_lot::Mutex;

const MS: u64 = 1_000_000;

fn region() -> &'static Region {
    let region = Box::leak(Box::new(Region::on_heap(1 << 20)));
    region.attach_worker(1).expect("a line");
    region
}

fn shared(region: &'static Region, exiting: fn() -> bool) -> Arc<Shared> {
    let socket = bridge::socket_path(region.path());
    Shared::new(Store::default(), socket, exiting, region)
}

fn take(region: &Region, limit: u32, max_wait_ms: u64) -> PoolId {
    let settings = Settings {
        adaptive: 0,
        limit,
        min: 1,
        max: 1000,
        start: 20,
        capacity: 100,
        levels: 4,
        cluster: 0,
        weights: [8; 16],
        max_wait_ns: max_wait_ms * MS,
        timeout_ns: 60_000 * MS,
    };
    region.take_pool("backend", &settings, 1, 1).expect("room")
}

fn arrival(region: &Region, ticket: u64, now: Nanos) -> Arrival {
    Arrival {
        level: 0,
        cohort: 0,
        route: 0,
        blind: false,
        exempt: false,
        line: region.line_index(),
        ticket,
        since: now,
    }
}

fn arrive(region: &Region, pool: PoolId, ticket: u64) -> Entered {
    let event = region.pool(pool, |p, now, wakes| {
        p.arrive(&arrival(region, ticket, now), now, wakes)
    });
    event.expect("the lock").value
}

const DONE: Completion = Completion {
    feedback: Feedback::Response(Nanos(20 * MS)),
    abandoned: false,
};

fn release(region: &Region, pool: PoolId, id: EntryId) {
    region.pool(pool, |p, now, wakes| p.release(id, &DONE, now, wakes));
}

fn in_flight(region: &Region, pool: PoolId) -> u32 {
    let look = region.pool(pool, |p, now, _| p.view(now).in_flight);
    look.expect("the lock").value
}

#[test]
fn sleeps_for_as_long_as_nothing_is_due() {
    let region = region();
    let shared = shared(region, || false);
    let mut watch = Watch::new(&shared, region, |_: &str, _, _: &View| ());
    let mut now = Instant::now();
    let mut look = |forward: Duration| {
        now += forward;
        watch.look(now)
    };
    assert_eq!(look(Duration::ZERO), IDLE, "no pool");
    let pool = take(region, 1, 30_000);
    assert!(look(IDLE) <= IDLE);
    let Entered::Admitted(id) = arrive(region, pool, 1) else {
        panic!("it is empty");
    };
    assert!(look(IDLE) <= BUSY, "something is in flight");
    assert!(matches!(arrive(region, pool, 2), Entered::Queued(_)));
    assert!(look(BUSY) <= BUSY, "and waits");
    // Woken in between: nothing is due, so nothing is looked at.
    let rest = look(Duration::from_millis(1));
    assert!(rest < BUSY && rest > Duration::from_millis(1), "{rest:?}");
    // The grant has to be taken up within 50 ms.
    release(region, pool, id);
    let rest = look(BUSY);
    assert!(
        (LEAST..Duration::from_millis(70)).contains(&rest),
        "{rest:?}"
    );
}

#[test]
fn what_was_deferred_is_applied_though_nobody_asks() {
    let region = region();
    let pool = take(region, 1, 30_000);
    let Entered::Admitted(id) = arrive(region, pool, 1) else {
        panic!("it is empty");
    };
    region.defer_release(pool, id, crate::shm::Deferred::Leave);
    let shared = shared(region, || false);
    let mut watch = Watch::new(&shared, region, |_: &str, _, _: &View| ());
    watch.look(Instant::now());
    assert!(!region.has_deferred(pool));
    assert_eq!(in_flight(region, pool), 0);
}

fn lines(shared: &Shared) -> Vec<String> {
    std::iter::from_fn(|| shared.messages.pop())
        .map(|(_, line)| line)
        .collect()
}

#[test]
fn a_recovery_that_time_brings_about_is_told() {
    let region = region();
    let shared = shared(region, || false);
    let pool = take(region, 1, 30_000);
    let told = Mutex::new(Vec::new());
    let mut watch = Watch::new(&shared, region, |name: &str, on, view: &View| {
        told.lock().push((name.to_string(), on, view.saturated));
    });
    // For one second and a half everybody finds the pool full; then nobody comes.
    let event = region.pool(pool, |p, now, wakes| {
        let mut got = Vec::new();
        let mut held = None;
        for i in 0..150 {
            let now = Nanos(now.0 + i * 10 * MS);
            let entered = p.arrive(&arrival(region, i, now), now, wakes);
            if let Some(id) = held.replace(match entered {
                Entered::Admitted(id) | Entered::Queued(id) => id,
                Entered::Shed(reason) => panic!("{reason:?}"),
            }) {
                p.release(id, &DONE, now, wakes);
                p.collect(region.line_index(), 9, now, &mut got);
            }
        }
        p.leave(held.expect("the last"), Nanos(now.0 + 1500 * MS), wakes);
    });
    assert_eq!(event.expect("the lock").saturation, Some(true));
    until("the pool recovers", || {
        watch.look(Instant::now());
        !told.lock().is_empty()
    });
    assert_eq!(*told.lock(), [("backend".to_string(), false, false)]);
}

#[test]
fn repairs_are_told() {
    let region = region();
    let shared = shared(region, || false);
    let pool = take(region, 1, 30_000);
    let mut watch = Watch::new(&shared, region, |_: &str, _, _: &View| ());
    watch.look(Instant::now());
    assert!(lines(&shared).is_empty());
    let event = std::panic::AssertUnwindSafe(|| region.pool(pool, |_, _, _| panic!("here")));
    assert!(std::panic::catch_unwind(event).is_err());
    // Whoever of this process is next mends it.
    assert_eq!(in_flight(region, pool), 0);
    watch.look(Instant::now());
    let told = lines(&shared);
    assert!(
        told.len() == 1 && told[0].contains("made sound"),
        "{told:?}"
    );
}

#[test]
fn a_lock_that_is_held_for_long_is_worth_a_word() {
    let region = region();
    let shared = shared(region, || false);
    let pool = take(region, 1, 30_000);
    let mut watch = Watch::new(&shared, region, |_: &str, _, _: &View| ());
    region.pool(pool, |_, _, _| {
        let mut now = Instant::now();
        for _ in 0..10 {
            assert!(watch.look(now) <= BUSY);
            assert!(lines(&shared).is_empty());
            now += BUSY;
        }
        now += BUSY;
        watch.look(now);
        let told = lines(&shared);
        assert_eq!(told.len(), 1);
        assert!(told[0].contains("pool \"backend\""), "{told:?}");
        now += STUCK;
        watch.look(now);
        assert!(lines(&shared).is_empty(), "not again");
        now += STUCK_AGAIN;
        watch.look(now);
        assert_eq!(lines(&shared).len(), 1);
    });
}

fn watching() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").expect("Linux");
    let names = tasks.filter_map(|t| std::fs::read_to_string(t.ok()?.path().join("comm")).ok());
    names.filter(|n| n.trim_end() == "sluice-watch").count()
}

fn until(what: &str, mut f: impl FnMut() -> bool) {
    let began = Instant::now();
    while !f() {
        assert!(began.elapsed().as_secs() < 20, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// One test, since threads are counted by process.
#[test]
fn ends_when_another_worker_takes_over_but_not_before_its_process() {
    let region = region();
    let replaced = shared(region, || false);
    let quitting = shared(region, || true);
    for shared in [&replaced, &quitting] {
        start(shared, region, |_, _, _| ()).expect("a thread");
    }
    until("both run", || watching() == 2);
    // nginx quits: requests may still wait here.
    quitting.quit();
    replaced.quit();
    until("one ends", || watching() == 1);
    let pool = take(region, 1, 50);
    let (Entered::Admitted(_), Entered::Queued(_)) =
        (arrive(region, pool, 1), arrive(region, pool, 2))
    else {
        panic!("one slot");
    };
    // Nobody else sees to its bound.
    let waiting = || {
        let look = region.pool(pool, |p, now, _| p.view(now).waiting[0]);
        look.map(|l| l.value)
    };
    until("the wait ends", || waiting() == Some(0));
    assert_eq!(watching(), 1);
}
