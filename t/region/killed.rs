//! Workers that are killed at random moments, over and over.
use crate::Case;
use crate::processes::*;
use sluice::domain::entry::Subject;
use sluice::shm::lists::{Lists, ListsInput, Standing, build};
use sluice::shm::{Kind, Limit, Region, Verdict};
use std::net::IpAddr;

pub const CASES: &[Case] = &[
    ("killed::while_they_decide", while_they_decide),
    ("killed::in_a_crowded_table", in_a_crowded_table),
    ("killed::while_limits_change", while_limits_change),
    ("killed::while_names_are_reused", while_names_are_reused),
    ("killed::while_they_publish", while_they_publish),
    ("killed::while_they_ban", while_they_ban),
];

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

fn while_they_decide() {
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
fn in_a_crowded_table() {
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

fn while_limits_change() {
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
fn while_names_are_reused() {
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
fn while_they_publish() {
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

fn while_they_ban() {
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
