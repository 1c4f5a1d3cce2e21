//! Workers that live and die over one region.
use crate::Case;
use crate::processes::*;
use sluice::domain::entry::Subject;
use sluice::shm::lists::{Lists, ListsInput, Standing, build};
use sluice::shm::{Kind, Limit, Region, RuleVerdict, Verdict};
use std::net::IpAddr;

pub const CASES: &[Case] = &[
    ("workers::death_frees_the_line", death_frees_the_line),
    (
        "workers::as_many_as_there_are_lines",
        as_many_as_there_are_lines,
    ),
    ("workers::exactly_the_capacity", exactly_the_capacity),
    (
        "workers::killed_while_they_decide",
        killed_while_they_decide,
    ),
    (
        "workers::killed_in_a_crowded_table",
        killed_in_a_crowded_table,
    ),
    (
        "workers::killed_while_limits_change",
        killed_while_limits_change,
    ),
    (
        "workers::killed_while_names_are_reused",
        killed_while_names_are_reused,
    ),
    (
        "workers::killed_while_they_publish",
        killed_while_they_publish,
    ),
    ("workers::killed_while_they_ban", killed_while_they_ban),
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

/// Keeps four workers at `body`, which never ends, and kills `deaths` of them
/// at random moments; `check` after each. At the end all are killed.
fn kill_often(region: &Region, deaths: u64, body: impl Fn(u64), mut check: impl FnMut()) {
    let start = |i| {
        let mut child = fork(|link| {
            region.attach_worker(1).unwrap();
            say(link);
            body(i);
        });
        child.wait_ready();
        child
    };
    let mut state = 11;
    let mut workers: Vec<Child> = (0..4).map(start).collect();
    for i in 0..deaths {
        pause(dice(&mut state, 2_000));
        let victim = dice(&mut state, 4) as usize;
        workers.swap_remove(victim).kill();
        check();
        workers.push(start(4 + i));
    }
    workers.into_iter().for_each(Child::kill);
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

fn killed_while_they_decide() {
    let place = Place::new();
    let region = place.open();
    let capacity = 3_000_000;
    let rule = region.take_rule("one", slow(capacity), 1).unwrap();
    let key = region.hash(rule, b"all");
    let now = region.now();
    let deaths = 100;
    let before = std::cell::Cell::new(0);
    let work = |_| {
        loop {
            if region.spend(rule, key, 3, now).admitted {
                region.undo(rule, key, 2, now);
                region.my().verdict(Verdict::Pass);
            }
        }
    };
    kill_often(&region, deaths, work, || {
        let counted = region.totals().verdicts[0];
        assert!(counted >= before.replace(counted), "counters never fall");
    });
    // Each killed worker was at most in the middle of one request, whose three
    // tokens are spent and not counted.
    let counted = region.totals().verdicts[0];
    let spent = u64::from(capacity - region.peek(rule, key, 0, now).remaining);
    let killed = deaths + 4;
    assert!(
        (counted..=counted + 3 * killed).contains(&spent),
        "{spent} spent, {counted} counted"
    );
    assert!(counted > killed);
}

/// Random keys push each other out while workers die; the table stays sound.
fn killed_in_a_crowded_table() {
    let place = Place::new();
    let region = place.open();
    let flood = region.take_rule("flood", slow(5), 1).unwrap();
    let steady = region.take_rule("steady", slow(20), 1).unwrap();
    let now = region.now();
    let work = |seed: u64| {
        let mut state = seed;
        loop {
            let key = dice(&mut state, 1 << 30).to_le_bytes();
            region.spend(flood, region.hash(flood, &key), 1, now);
            region.spend(steady, region.hash(steady, b"client"), 1, now);
        }
    };
    kill_often(&region, 60, work, || {});
    let (slots, used) = region.bucket_slots();
    // A worker killed between swap and count leaves the number wrong by one.
    assert!(used <= slots && used + 64 >= slots, "{used} of {slots}");
    assert!(
        !region
            .peek(steady, region.hash(steady, b"client"), 1, now)
            .admitted
    );
    assert!(
        region
            .peek(steady, region.hash(steady, b"other"), 20, now)
            .admitted
    );
}

fn killed_while_limits_change() {
    let place = Place::new();
    let region = place.open();
    let hour = 3_600_000_000_000;
    let limit = |i: u64| Limit::new(hour, 100 + (i % 50) as u32);
    let rule = region.take_rule("r", limit(0), 1).unwrap();
    let key = region.hash(rule, b"client");
    // A bucket that is not touched in all these changes.
    assert!(region.spend(rule, key, 60, region.now()).admitted);
    let work = |seed: u64| {
        let mut state = seed;
        loop {
            let i = dice(&mut state, 50);
            assert_eq!(region.take_rule("r", limit(i), 1).unwrap(), rule);
            let other = region.hash(rule, &i.to_le_bytes());
            let said = region.spend(rule, other, 1, region.now());
            assert!((100..150).contains(&said.capacity) && said.emission_ns == hour);
        }
    };
    kill_often(&region, 100, work, || {
        let said = region.peek(rule, key, 1, region.now());
        assert_eq!(
            said.remaining,
            said.capacity - 61,
            "60 are spent, whatever the capacity"
        );
    });
    assert_eq!(region.take_rule("r", limit(7), 1).unwrap(), rule);
    assert_eq!(region.limit(rule), limit(7));
    assert_eq!(region.peek(rule, key, 1, region.now()).remaining, 107 - 61);
}

/// Names come and go for ever, more than there is room for.
fn killed_while_names_are_reused() {
    let place = Place::new();
    let region = place.open();
    let work = |seed: u64| {
        let mut state = seed;
        loop {
            let config = region.next_config_generation();
            let take = |name: &str| region.take_rule_as_of(name, slow(5), 1, config);
            for _ in 0..40 {
                let name = format!("r{}", dice(&mut state, 100_000));
                match take(&name) {
                    Ok(rule) => {
                        let key = region.hash(rule, b"client");
                        region.spend(rule, key, 1, region.now());
                    }
                    // The others hold too many of an old configuration.
                    Err(e) => assert!(e.to_string().contains("no room"), "{e}"),
                }
            }
            region.my_config_generation(config);
        }
    };
    kill_often(&region, 60, work, || {});
    // Nobody lives, so everybody's names may go; those of one time stay apart.
    let generation = region.next_config_generation();
    fork(|_| {
        region.attach_worker(1).unwrap();
        region.my_config_generation(generation);
        let take = |i: u32| {
            region
                .take_rule(&format!("new{i}"), slow(i + 1), 1)
                .unwrap()
        };
        let rules: Vec<_> = (0..255).map(take).collect();
        let distinct: std::collections::HashSet<_> = rules.iter().collect();
        assert_eq!(distinct.len(), 255);
        for (i, rule) in rules.iter().enumerate() {
            assert_eq!(region.limit(*rule), slow(i as u32 + 1));
            let key = region.hash(*rule, b"client");
            assert_eq!(
                region.peek(*rule, key, 1, region.now()).remaining,
                i as u32,
                "no bucket of old"
            );
        }
        assert_eq!(region.totals().rules.len(), 255);
    })
    .join();
}

/// Lists are whole at all times, whoever dies publishing.
fn killed_while_they_publish() {
    let place = Place::new();
    let region = place.open();
    let list = |i: u64| {
        let block = (0..200u32).map(|n| {
            let ip = IpAddr::from([10, (i % 250) as u8, (n / 250) as u8, (n % 250) as u8]);
            (Subject::Net(ip.into()), u64::MAX)
        });
        build(&ListsInput {
            block: block.collect(),
            ..Default::default()
        })
    };
    region.publish(Kind::Block, &list(0)).unwrap();
    let newest = std::cell::Cell::new(0);
    let look = || {
        let mut tries = 0;
        let mapped = loop {
            let number = region.published(Kind::Block);
            assert!(number >= newest.replace(number), "numbers rise");
            match region.open_published(Kind::Block, number) {
                Ok(mapped) => break mapped,
                // Two newer ones since.
                Err(e) => assert!(
                    {
                        tries += 1;
                        tries < 1000
                    },
                    "{e}"
                ),
            }
        };
        let lists = Lists::new(mapped).unwrap();
        assert_eq!(lists.counts().block, 200);
        let of = |i: u8| lists.address(IpAddr::from([10, i, 0, 7]), 0) == Standing::Blocked;
        assert_eq!((0..250).filter(|i| of(*i)).count(), 1, "all of one list");
    };
    let work = |seed: u64| {
        for i in seed.. {
            region.publish(Kind::Block, &list(i)).unwrap();
        }
    };
    kill_often(&region, 60, work, look);
    look();
    // What killed publishers left behind goes once the numbers are past it.
    let last = region.publish(Kind::Block, &list(1)).unwrap();
    let numbers = std::fs::read_dir(place.dir()).unwrap().filter_map(|e| {
        let name = e.unwrap().file_name().into_string().unwrap();
        name.strip_prefix("sluice.lists.block.")
            .map(|n| n.parse::<u64>().unwrap())
    });
    assert!(numbers.filter(|n| *n <= last).count() <= 2);
}

fn killed_while_they_ban() {
    let place = Place::new();
    let region = place.open();
    let subject = |i: u64| Subject::User(format!("u{i}").into_bytes());
    let fixed = Subject::Net("192.0.2.0/24".parse().unwrap());
    region.ban(&fixed, u64::MAX).unwrap();
    let work = |seed: u64| {
        let mut state = seed;
        loop {
            let s = subject(dice(&mut state, 2_000));
            region.ban(&s, u64::MAX).unwrap();
            region.unban(&s).unwrap();
        }
    };
    kill_often(&region, 60, work, || {
        assert!(region.banned_address(IpAddr::from([192, 0, 2, 77]), 0));
        assert!(!region.banned_address(IpAddr::from([192, 0, 3, 77]), 0));
    });
    for i in 0..2_000 {
        region.unban(&subject(i)).unwrap();
        assert!(!region.banned_user(format!("u{i}").as_bytes(), 0));
    }
    assert_eq!(region.bans_count(), 1);
    drop(region);
    let region = place.open();
    assert!(region.unban(&fixed).unwrap());
    drop(region);
    assert!(!place.open().any_bans());
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
