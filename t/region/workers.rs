//! Workers that live and die over one region.
use crate::Case;
use crate::processes::*;
use sluice::domain::entry::Subject;
use sluice::shm::{Kind, Region, RuleVerdict, Verdict};

pub const CASES: &[Case] = &[
    ("workers::death_frees_the_line", death_frees_the_line),
    (
        "workers::as_many_as_there_are_lines",
        as_many_as_there_are_lines,
    ),
    ("workers::exactly_the_capacity", exactly_the_capacity),
    ("workers::one_synchronises", one_synchronises),
    (
        "workers::a_stopped_worker_stops_nobody",
        a_stopped_worker_stops_nobody,
    ),
    ("workers::refusals_are_told_once", refusals_are_told_once),
];

/// Runs `body` in `n` workers at once and waits for all.
fn all(region: &Region, n: u64, body: impl Fn(u64)) {
    let start = |i| {
        let mut child = fork(|link| {
            region.attach_worker(1).unwrap();
            ready(link);
            body(i);
        });
        child.wait_ready();
        child
    };
    let mut workers: Vec<Child> = (0..n).map(start).collect();
    workers.iter_mut().for_each(Child::go);
    workers.into_iter().for_each(Child::join);
}

fn death_frees_the_line() {
    let place = Place::new();
    let region = place.open();
    assert!(region.workers().is_empty());
    let rule = region.take_rule("login", slow(3), 1).unwrap();
    let count = |link: &mut _| {
        region.attach_worker(1).unwrap();
        region.my().verdict(Verdict::Pass);
        region.my().rule(rule, RuleVerdict::Limited);
        ready(link);
        hear(link);
    };
    let mut workers: Vec<Child> = (0..3).map(|_| fork(count)).collect();
    workers.iter_mut().for_each(Child::wait_ready);
    let pids = |region: &Region| {
        let mut pids: Vec<i32> = region.workers().iter().map(|w| w.pid as i32).collect();
        pids.sort_unstable();
        pids
    };
    let mut expected: Vec<i32> = workers.iter().map(|w| w.pid).collect();
    expected.sort_unstable();
    assert_eq!(pids(&region), expected);
    // B108: its numbers stay, and whoever takes its line over counts on.
    let dead = workers.remove(1);
    expected.retain(|pid| *pid != dead.pid);
    dead.kill();
    assert_eq!(pids(&region), expected);
    assert_eq!(region.totals().verdicts[0], 3);
    let mut next = fork(count);
    next.wait_ready();
    assert_eq!(
        (region.workers().len(), region.totals().verdicts[0]),
        (3, 4)
    );
    assert_eq!(region.totals().rules[0].limited, 4);
    // A worker that says good-bye, and one that is told to go.
    next.go();
    next.go();
    next.join();
    assert_eq!(
        (region.workers().len(), region.totals().verdicts[0]),
        (2, 4)
    );
    // A child of a worker is not that worker.
    fork(|_| {
        region.attach_worker(5).unwrap();
        fork(|_| {
            region.attach_worker(6).unwrap();
            assert_eq!(region.workers().len(), 4);
        })
        .join();
        region.detach();
        assert_eq!(region.workers().len(), 2);
    })
    .join();
}

fn as_many_as_there_are_lines() {
    let place = Place::new();
    let region = place.open();
    let workers: Vec<Child> = (0..16).map(|_| idle_worker(&region)).collect();
    fork(|_| {
        let error = region.attach_worker(1).unwrap_err().to_string();
        assert!(
            error.contains("16 workers") && error.contains("shm.size"),
            "{error}"
        );
    })
    .join();
    drop(workers);
    fork(|_| region.attach_worker(1).unwrap()).join();
}

/// B12: four processes at one bucket, and at a thousand.
fn exactly_the_capacity() {
    let place = Place::new();
    let region = place.open();
    let one = region.take_rule("one", slow(50_000), 1).unwrap();
    let many = region.take_rule("many", slow(5), 1).unwrap();
    all(&region, 4, |_| {
        let now = region.now();
        for i in 0..50_000u64 {
            let key = region.hash(one, b"all");
            if region.spend(one, key, 1, now).admitted {
                region.my().verdict(Verdict::Pass);
            }
            let key = region.hash(many, &(i % 2_000).to_le_bytes());
            if region.spend(many, key, 1, now).admitted {
                region.my().rule(many, RuleVerdict::Pass);
            }
        }
    });
    let totals = region.totals();
    assert_eq!(totals.verdicts[0], 50_000);
    assert_eq!(
        totals.rules.iter().find(|r| r.name == "many").unwrap().pass,
        5 * 2_000
    );
    assert_eq!((totals.evictions, region.bucket_slots().1), (0, 2_001));
}
fn one_synchronises() {
    let place = Place::new();
    let region = place.open();
    let holder = || {
        let mut worker = fork(|link| {
            region.attach_worker(1).unwrap();
            assert!(region.try_lock_sync());
            ready(link);
            region.unlock_sync();
            ready(link);
        });
        worker.wait_ready();
        worker
    };
    let try_it = |expected: bool| fork(|_| assert_eq!(region.try_lock_sync(), expected)).join();
    for _ in 0..20 {
        let first = holder();
        try_it(false);
        first.kill();
        try_it(true);
    }
    let mut polite = holder();
    try_it(false);
    polite.go();
    polite.wait_ready();
    try_it(true);
    // The worker still lives.
    assert_eq!(region.workers().len(), 1);
}

/// B94: whatever a stopped worker is in the middle of.
fn a_stopped_worker_stops_nobody() {
    let place = Place::new();
    let region = place.open();
    let limit = |i: u64| slow(100 + (i % 3) as u32);
    let rule = region.take_rule("r", limit(0), 1).unwrap();
    let mut state = 3;
    for _ in 0..20 {
        let mut busy = fork(|link| {
            region.attach_worker(1).unwrap();
            say(link);
            for i in 0.. {
                region.take_rule("r", limit(i), 1).unwrap();
                region.spend(rule, region.hash(rule, b"all"), 1, region.now());
                region.publish(Kind::Config, b"x").unwrap();
                region.ban(&Subject::User(b"a".to_vec()), i).unwrap();
            }
        });
        busy.wait_ready();
        pause(dice(&mut state, 2_000));
        busy.signal(libc::SIGSTOP);
        let started = std::time::Instant::now();
        all(&region, 2, |seed| {
            for i in seed..seed + 100 {
                region.take_rule("r", limit(i), 1).unwrap();
                region.spend(rule, region.hash(rule, b"all"), 1, region.now());
                region.publish(Kind::Config, b"y").unwrap();
                region.ban(&Subject::User(b"a".to_vec()), i).unwrap();
            }
        });
        assert!(started.elapsed().as_secs() < 5);
        busy.kill();
    }
}

fn refusals_are_told_once() {
    let place = Place::new();
    let region = place.open();
    let rule = region.take_rule("r", slow(1), 1).unwrap();
    let now = region.now();
    let counted = |n: u64| {
        // Counts of what was told, in counters that all can read.
        (0..n).for_each(|_| region.my().verdict(Verdict::Limited));
        region.my().verdict(Verdict::Blocked);
    };
    all(&region, 4, |_| {
        for _ in 0..10_000 {
            region
                .refusal_log(rule, now)
                .map(counted)
                .unwrap_or_default();
        }
    });
    let told = region.totals().verdicts;
    assert_eq!(
        told[Verdict::Blocked as usize],
        1,
        "one line in that second"
    );
    let rest = region
        .refusal_log(rule, sluice::domain::units::Nanos(now.0 + 1_000_000_000))
        .unwrap();
    assert_eq!(
        told[Verdict::Limited as usize] + rest,
        40_001,
        "none is forgotten"
    );
}
