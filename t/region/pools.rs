//! Pools over processes: workers that are killed, stopped, and woken.
use crate::Case;
use crate::processes::*;
use sluice::domain::pool::{
    Arrival, Collected, Completion, Entered, EntryId, Feedback, Notice, Reason, Settings, View,
};
use sluice::domain::units::Nanos;
use sluice::shm::{Deferred, PoolId, Region, UserSlot};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::time::{Duration, Instant};

pub const CASES: &[Case] = &[
    ("pools::killed_under_the_lock", killed_under_the_lock),
    ("pools::nothing_leaks", nothing_leaks),
    (
        "pools::a_line_is_handed_over_empty",
        a_line_is_handed_over_empty,
    ),
    ("pools::a_stopped_owner", a_stopped_owner),
    (
        "pools::a_stopped_worker_keeps_no_grant",
        a_stopped_worker_keeps_no_grant,
    ),
    ("pools::workers_wake_each_other", workers_wake_each_other),
    ("pools::places_of_pools", places_of_pools),
    (
        "pools::killed_while_names_change",
        killed_while_names_change,
    ),
];

const MS: u64 = 1_000_000;

pub fn settings(limit: u32) -> Settings {
    Settings {
        adaptive: 0,
        limit,
        min: 1,
        max: 1000,
        start: limit,
        capacity: 1000,
        levels: 4,
        cluster: 0,
        weights: [8, 8, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1],
        max_wait_ns: 60_000 * MS,
        timeout_ns: 60_000 * MS,
    }
}

pub fn take(region: &Region, limit: u32) -> PoolId {
    region.take_pool("backend", &settings(limit), 1, 1).unwrap()
}

pub fn arrival(region: &Region, level: u8, ticket: u64, now: Nanos) -> Arrival {
    Arrival {
        level,
        cohort: ticket as u8,
        route: 0,
        blind: false,
        exempt: false,
        line: region.line_index(),
        ticket,
        since: now,
    }
}

/// As often as it takes: a test has time.
pub fn arrive(region: &Region, pool: PoolId, level: u8, ticket: u64) -> Entered {
    let arrive = || {
        region.pool(pool, |p, now, wakes| {
            p.arrive(&arrival(region, level, ticket, now), now, wakes)
        })
    };
    surely(arrive).value
}

const DONE: Completion = Completion {
    feedback: Feedback::Response(Nanos(20 * MS)),
    abandoned: false,
};

fn release(region: &Region, pool: PoolId, id: EntryId) {
    let release = region.pool(pool, |p, now, wakes| p.release(id, &DONE, now, wakes));
    if release.is_none() {
        region.defer_release(pool, id, Deferred::Release(DONE));
    }
}

pub fn view(region: &Region, pool: PoolId) -> View {
    let look = || {
        region.pool(pool, |p, now, wakes| {
            p.tick(now, wakes);
            p.view(now)
        })
    };
    surely(look).value
}

/// In flight and waiting.
fn held(region: &Region, pool: PoolId) -> (u32, u32) {
    let view = view(region, pool);
    (view.in_flight, view.waiting.iter().sum())
}

/// Nothing, too, where the lock is not to be had.
fn collect(region: &Region, pool: PoolId) -> Vec<Collected> {
    let mut got = Vec::new();
    region.pool(pool, |p, now, _| {
        p.collect(region.line_index(), 64, now, &mut got)
    });
    got
}

/// As often as it takes: where nobody looks regularly, what is deferred waits.
pub fn surely<T>(mut event: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        match event() {
            Some(done) => return done,
            None => assert!(began.elapsed().as_secs() < 20, "the lock"),
        }
    }
}

pub fn surely_release(region: &Region, pool: PoolId, id: EntryId) {
    let release = || region.pool(pool, |p, now, wakes| p.release(id, &DONE, now, wakes));
    surely(release);
}

fn surely_collect(region: &Region, pool: PoolId) -> Vec<Collected> {
    let mut got = Vec::new();
    let mut collect = || {
        region.pool(pool, |p, now, _| {
            p.collect(region.line_index(), 64, now, &mut got)
        })
    };
    surely(&mut collect);
    got
}

/// A worker as nginx's is, at random: requests arrive, wait, leave, give up and
/// end. Returns when told, having ended all that it held.
struct Worker<'a> {
    region: &'a Region,
    pool: PoolId,
    dice: u64,
    ticket: u64,
    waiting: HashMap<u64, EntryId>,
    in_flight: Vec<(EntryId, Option<UserSlot>)>,
    slots: HashMap<u64, UserSlot>,
}

impl<'a> Worker<'a> {
    fn new(region: &'a Region, pool: PoolId, seed: u64) -> Worker<'a> {
        Worker {
            region,
            pool,
            dice: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15),
            ticket: 0,
            waiting: HashMap::new(),
            in_flight: Vec::new(),
            slots: HashMap::new(),
        }
    }

    fn step(&mut self) {
        let (region, pool) = (self.region, self.pool);
        match dice(&mut self.dice, 8) {
            0..3 => {
                self.ticket += 1;
                let level = dice(&mut self.dice, 4) as u8;
                let user = dice(&mut self.dice, 50).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                let slot = region.take_user(user, 4).unwrap_or_default();
                match arrive(region, pool, level, self.ticket) {
                    Entered::Admitted(id) => self.in_flight.push((id, slot)),
                    Entered::Queued(id) => {
                        self.waiting.insert(self.ticket, id);
                        slot.map(|s| self.slots.insert(self.ticket, s));
                    }
                    Entered::Shed(_) => slot.into_iter().for_each(|s| region.give_user(s)),
                }
            }
            3..6 => {
                if !self.in_flight.is_empty() {
                    let which = dice(&mut self.dice, self.in_flight.len() as u64) as usize;
                    let (id, slot) = self.in_flight.swap_remove(which);
                    release(region, pool, id);
                    slot.into_iter().for_each(|s| region.give_user(s));
                }
            }
            6 => {
                let Some((&ticket, &id)) = self.waiting.iter().next() else {
                    return;
                };
                self.waiting.remove(&ticket);
                let slot = self.slots.remove(&ticket);
                if ticket % 2 == 0 {
                    if region.pool(pool, |p, now, w| p.leave(id, now, w)).is_none() {
                        region.defer_release(pool, id, Deferred::Leave);
                    }
                } else {
                    let gave_up = region.pool(pool, |p, now, w| p.give_up(id, now, w));
                    match gave_up.map(|t| t.value) {
                        Some(Notice::Granted) => {
                            self.in_flight.push((id, slot));
                            return;
                        }
                        Some(_) => {}
                        None => region.defer_release(pool, id, Deferred::Leave),
                    }
                }
                slot.into_iter().for_each(|s| region.give_user(s));
            }
            _ => self.collect(),
        }
    }

    fn collect(&mut self) {
        for c in collect(self.region, self.pool) {
            // Gone meanwhile, in a call that was deferred.
            let Some(id) = self.waiting.remove(&c.ticket) else {
                if c.notice == Notice::Granted {
                    release(self.region, self.pool, c.entry);
                }
                continue;
            };
            assert_eq!(id, c.entry);
            let slot = self.slots.remove(&c.ticket);
            match c.notice {
                Notice::Granted => self.in_flight.push((id, slot)),
                _ => slot.into_iter().for_each(|s| self.region.give_user(s)),
            }
        }
    }

    fn end(&mut self) {
        self.collect();
        let waiting: Vec<_> = self.waiting.drain().collect();
        for (_, id) in waiting {
            let left = self.region.pool(self.pool, |p, now, w| p.leave(id, now, w));
            if left.is_none() {
                self.region.defer_release(self.pool, id, Deferred::Leave);
            }
        }
        for (id, slot) in self.in_flight.drain(..) {
            release(self.region, self.pool, id);
            slot.into_iter().for_each(|s| self.region.give_user(s));
        }
        let slots = self.slots.drain().map(|(_, slot)| slot);
        slots.for_each(|s| self.region.give_user(s));
    }
}

/// Looks for dead workers until what they held is given back.
fn reclaim(region: &Region) {
    let began = Instant::now();
    // The lock of a pool is given back before the record lock of its dead owner.
    while began.elapsed() < Duration::from_secs(5) {
        if region.reclaim() == 0 && began.elapsed() > Duration::from_millis(20) {
            return;
        }
        pause(1_000);
    }
}

const LIMIT: u32 = 20;

/// Four workers at work in one pool, and killed, over and over, mostly in the
/// middle of an event.
fn killed_under_the_lock() {
    let place = Place::new();
    let region = place.open();
    let pool = take(&region, LIMIT);
    let rebuilt = Words::new();
    let work = |i: u64| {
        let mut child = fork(|link| {
            region.attach_worker(1).unwrap();
            say(link);
            let mut worker = Worker::new(&region, pool, i);
            let (mut tickets, mut mended) = (0, region.repairs().rebuilt);
            loop {
                worker.step();
                let so_far = region.repairs().rebuilt;
                rebuilt.at(0).fetch_add(so_far - mended, Relaxed);
                mended = so_far;
                // Several events under one lock, so that it is held most of the time.
                region.pool(pool, |p, now, wakes| {
                    for _ in 0..20 {
                        tickets += 1;
                        let a = arrival(&region, 1, 1 << 40 | tickets, now);
                        match p.arrive(&a, now, wakes) {
                            Entered::Admitted(id) => p.release(id, &DONE, now, wakes),
                            Entered::Queued(id) => p.leave(id, now, wakes),
                            Entered::Shed(_) => {}
                        }
                    }
                });
            }
        });
        child.wait_ready();
        child
    };
    let mut state = 7;
    let mut workers: Vec<Child> = (0..4).map(work).collect();
    for i in 0..150 {
        pause(dice(&mut state, 4_000));
        let victim = dice(&mut state, 4) as usize;
        workers.swap_remove(victim).kill();
        let (in_flight, waiting) = held(&region, pool);
        assert!(
            in_flight <= LIMIT && waiting <= 1000,
            "{in_flight} {waiting}"
        );
        workers.push(work(4 + i));
    }
    workers.into_iter().for_each(Child::kill);
    reclaim(&region);
    assert_eq!(held(&region, pool), (0, 0));
    assert_eq!(region.users_held(), 0);
    let rebuilt = rebuilt.at(0).load(Relaxed) + region.repairs().rebuilt;
    println!("({rebuilt} of 154 were killed with the lock held)");
    assert!(rebuilt > 10, "some were killed in the middle of an event");
    // And it works as on the first day.
    fork(|_| {
        region.attach_worker(1).unwrap();
        for ticket in 0..u64::from(LIMIT) {
            assert!(matches!(
                arrive(&region, pool, 0, ticket),
                Entered::Admitted(_)
            ));
        }
        assert!(matches!(arrive(&region, pool, 0, 99), Entered::Queued(_)));
    })
    .join();
}

/// Thousands of requests of four workers, of which some are killed; the others
/// end all that they have. Nothing is left, and nobody had to wait for that.
fn nothing_leaks() {
    let place = Place::new();
    let region = place.open();
    let pool = take(&region, LIMIT);
    let stop = Words::new();
    let work = |i: u64| {
        let mut child = fork(|link| {
            region.attach_worker(1).unwrap();
            say(link);
            let mut worker = Worker::new(&region, pool, 1_000 + i);
            while stop.at(0).load(Relaxed) == 0 {
                worker.step();
                stop.at(1).fetch_add(1, Relaxed);
            }
            worker.end();
        });
        child.wait_ready();
        child
    };
    let mut state = 9;
    let mut workers: Vec<Child> = (0..4).map(work).collect();
    for i in 0..40 {
        pause(dice(&mut state, 40_000));
        if i % 2 == 0 {
            let victim = dice(&mut state, 4) as usize;
            workers.swap_remove(victim).kill();
            workers.push(work(4 + i));
        }
        assert!(held(&region, pool).0 <= LIMIT);
        region.reclaim();
    }
    stop.at(0).store(1, Relaxed);
    workers.into_iter().for_each(Child::join);
    // Of those that ended, nothing has to be taken back: only of the killed.
    reclaim(&region);
    println!("({} steps)", stop.at(1).load(Relaxed));
    assert!(stop.at(1).load(Relaxed) > 10_000);
    assert_eq!(held(&region, pool), (0, 0));
    assert_eq!(region.users_held(), 0);
}

fn a_line_is_handed_over_empty() {
    let place = Place::new();
    let region = place.open();
    let pool = take(&region, 2);
    let mut first = fork(|link| {
        region.attach_worker(1).unwrap();
        assert_eq!(region.line_index(), 0);
        for ticket in 0..5 {
            arrive(&region, pool, 1, ticket);
        }
        for _ in 0..4 {
            let _kept = region.take_user(77, 4).unwrap().unwrap();
        }
        ready(link);
        hear(link);
    });
    first.wait_ready();
    assert_eq!(held(&region, pool), (2, 3));
    // It lives: nothing is taken from it.
    assert_eq!(region.reclaim(), 0);
    assert_eq!((held(&region, pool), region.users_held()), ((2, 3), 4));
    first.kill();
    assert_eq!(held(&region, pool), (2, 3), "nobody has looked yet");
    fork(|_| {
        region.attach_worker(1).unwrap();
        assert_eq!(region.line_index(), 0, "the same line");
        assert_eq!((held(&region, pool), region.users_held()), ((0, 0), 0));
        assert!(matches!(arrive(&region, pool, 1, 0), Entered::Admitted(_)));
        assert!(matches!(region.take_user(77, 1), Ok(Some(_))));
    })
    .join();
    // That one went without a word; a worker that never held anything costs nothing.
    assert_eq!(region.reclaim(), 1);
    assert_eq!(region.reclaim(), 0);
    assert_eq!((held(&region, pool), region.users_held()), ((0, 0), 0));
}

/// A worker that is stopped in the middle of an event stops nobody.
fn a_stopped_owner() {
    let place = Place::new();
    let region = place.open();
    let pool = take(&region, 10);
    let mut other = fork(|link| {
        region.attach_worker(1).unwrap();
        let admitted: Vec<EntryId> = (0..10)
            .map(|ticket| match arrive(&region, pool, 1, ticket) {
                Entered::Admitted(id) => id,
                other => panic!("{other:?}"),
            })
            .collect();
        let Entered::Queued(waiter) = arrive(&region, pool, 1, 10) else {
            panic!("the limit is 10");
        };
        ready(link);
        // The owner is stopped now.
        let began = Instant::now();
        assert!(region.pool(pool, |_, _, _| ()).is_none());
        let took = began.elapsed();
        println!("(not got after {took:?})");
        assert!(took >= Duration::from_millis(2), "{took:?}");
        // The machine may be busy with something else for a while.
        assert!(took < Duration::from_secs(1), "{took:?}");
        // Those that come after the first do not wait at all.
        let began = Instant::now();
        for _ in 0..2_000 {
            assert!(region.pool(pool, |_, _, _| ()).is_none());
        }
        let each = began.elapsed() / 2_000;
        println!("(nor, {each:?} each, by the next 2,000)");
        assert!(each < Duration::from_millis(1), "{each:?}");
        let began = Instant::now();
        for id in &admitted[..4] {
            region.defer_release(pool, *id, Deferred::Release(DONE));
            // Twice is once.
            region.defer_release(pool, *id, Deferred::Release(DONE));
        }
        region.defer_release(pool, waiter, Deferred::GiveUp { level: 1 });
        region.count_shed(pool, 1, Reason::Full);
        assert!(began.elapsed() < Duration::from_secs(1), "without the lock");
        ready(link);
        hear(link);
    });
    other.wait_ready();
    let mut owner = fork(|link| {
        region.attach_worker(1).unwrap();
        let mut once = Some(link);
        region.pool(pool, |_, _, _| ready(once.take().unwrap()));
    });
    owner.wait_ready();
    owner.signal(libc::SIGSTOP);
    other.go();
    other.wait_ready();
    pause(2_000_000);
    owner.signal(libc::SIGCONT);
    owner.go();
    owner.join();
    assert_eq!(held(&region, pool), (6, 0), "what was deferred is applied");
    assert!(!region.has_deferred(pool));
    let counts = region.pool(pool, |p, now, _| p.view(now).counts);
    let timeout = counts.unwrap().value.shed[1][Reason::Timeout as usize];
    assert_eq!((timeout, region.sheds(pool)[1]), (1, [1, 0, 0, 0]));
    other.kill();
    reclaim(&region);
    assert_eq!(held(&region, pool), (0, 0));

    // One that is killed while it is stopped frees the lock.
    let mut owner = fork(|link| {
        region.attach_worker(1).unwrap();
        let mut once = Some(link);
        region.pool(pool, |p, now, wakes| {
            p.arrive(&arrival(&region, 1, 1, now), now, wakes);
            ready(once.take().unwrap());
        });
    });
    owner.wait_ready();
    owner.signal(libc::SIGSTOP);
    assert!(region.pool(pool, |_, _, _| ()).is_none());
    let before = region.repairs().rebuilt;
    owner.kill();
    assert_eq!(view(&region, pool).waiting, [0, 0, 0, 0]);
    assert_eq!(region.repairs().rebuilt, before + 1);
    reclaim(&region);
    assert_eq!(held(&region, pool), (0, 0));
}

/// What is granted to a worker that is stopped goes to the next after 50 ms.
fn a_stopped_worker_keeps_no_grant() {
    let place = Place::new();
    let region = place.open();
    let pool = take(&region, 1);
    let mut holder = fork(|link| {
        region.attach_worker(1).unwrap();
        let Entered::Admitted(id) = arrive(&region, pool, 0, 1) else {
            panic!("empty");
        };
        ready(link);
        assert!(matches!(arrive(&region, pool, 0, 2), Entered::Queued(_)));
        // The stopped one waits for longer.
        surely_release(&region, pool, id);
        let granted = Instant::now();
        loop {
            view(&region, pool);
            if let Some(got) = surely_collect(&region, pool).first() {
                assert_eq!((got.ticket, got.notice), (2, Notice::Granted));
                break;
            }
            pause(1_000);
            assert!(granted.elapsed() < Duration::from_secs(2), "not withdrawn");
        }
        let took = granted.elapsed();
        println!("(withdrawn and granted to the next after {took:?})");
        assert!(took >= Duration::from_millis(50), "{took:?}");
        ready(link);
        hear(link);
    });
    holder.wait_ready();
    let mut waiter = fork(|link| {
        region.attach_worker(1).unwrap();
        assert!(matches!(arrive(&region, pool, 0, 1), Entered::Queued(_)));
        ready(link);
        let got = surely_collect(&region, pool);
        assert_eq!(got.len(), 1);
        assert_eq!(got[0].notice, Notice::Withdrawn);
    });
    waiter.wait_ready();
    waiter.signal(libc::SIGSTOP);
    holder.go();
    holder.wait_ready();
    assert_eq!(held(&region, pool), (1, 0));
    waiter.signal(libc::SIGCONT);
    waiter.go();
    waiter.join();
    assert_eq!(
        held(&region, pool),
        (1, 0),
        "what was withdrawn holds nothing"
    );
}

/// Two workers in turn release what the other waits for. Latency from the
/// release to the collection is shown.
fn workers_wake_each_other() {
    let place = Place::new();
    let region = place.open();
    let pool = take(&region, 1);
    let words = Words::new();
    const ROUNDS: u64 = 500;
    let work = |me: usize| {
        let (region, words) = (&region, &words);
        let mut child = fork(move |link| {
            region.attach_worker(1).unwrap();
            let mut seen = 0;
            let ask = |ticket| match arrive(region, pool, 0, ticket) {
                Entered::Admitted(id) => Some(id),
                _ => None,
            };
            let mut mine = ask(1);
            ready(link);
            let began = Instant::now();
            let mut took = Vec::new();
            for round in 0..ROUNDS {
                if let Some(id) = mine.take() {
                    // The other is to be asleep, as it mostly is.
                    pause(200);
                    words.at(0).store(region.now().0, Release);
                    surely_release(region, pool, id);
                    // And waits behind the other, for the next round.
                    mine = ask(round);
                }
                while mine.is_none() {
                    assert!(began.elapsed() < Duration::from_secs(60), "not woken");
                    if region.wait_for_wake(&mut seen, Duration::from_secs(30)) {
                        for it in surely_collect(region, pool) {
                            mine = match it.notice {
                                Notice::Granted => Some(it.entry),
                                // The machine did not run this process for 50 ms.
                                _ => ask(round),
                            };
                        }
                    }
                }
                took.push(region.now().0 - words.at(0).load(Acquire));
            }
            took.sort_unstable();
            let at = |q: usize| Duration::from_nanos(took[(took.len() - 1) * q / 100]);
            println!(
                "(worker {me}: from release to collection p50 {:?}, p99 {:?}, most {:?})",
                at(50),
                at(99),
                at(100)
            );
            assert!(at(100) < Duration::from_secs(1));
            // Its last slot goes to the other, who may be waiting for it.
            mine.into_iter()
                .for_each(|id| surely_release(region, pool, id));
        });
        child.wait_ready();
        child
    };
    let mut workers: Vec<Child> = (0..2).map(work).collect();
    workers.iter_mut().for_each(Child::go);
    workers.into_iter().for_each(Child::join);
}

/// Names over processes: whose settings hold, and whose place may be given away.
/// There is one place in a region of this size.
fn places_of_pools() {
    let place = Place::new();
    let region = place.open();
    let one = region.take_pool("one", &settings(3), 1, 1).unwrap();
    let mut worker = fork(|link| {
        region.attach_worker(1).unwrap();
        region.my_config_generation(3);
        assert!(matches!(arrive(&region, one, 1, 1), Entered::Admitted(_)));
        ready(link);
        // Of an older setup than the newest that has started.
        assert_eq!(region.take_pool("one", &settings(9), 1, 3).unwrap(), one);
        assert_eq!(view(&region, one).limit, 5);
        region.my_config_generation(4);
        ready(link);
        hear(link);
    });
    worker.wait_ready();
    let mut younger = fork(|link| {
        region.attach_worker(2).unwrap();
        assert_eq!(region.take_pool("one", &settings(5), 2, 3).unwrap(), one);
        assert_eq!(view(&region, one).limit, 5);
        region.my_config_generation(4);
        ready(link);
        hear(link);
    });
    younger.wait_ready();
    let other = |config| region.take_pool("two", &settings(7), 2, config);
    let full = |why: &str| {
        let e = other(4).expect_err(why).to_string();
        assert!(e.contains("\"two\"") && e.contains("shm.size"), "{e}");
    };
    full("one worker's configuration has it");
    worker.go();
    worker.wait_ready();
    full("nobody's has, but a request is in flight");
    worker.kill();
    full("nobody has looked for the dead yet");
    reclaim(&region);
    // As when nginx starts: this one, and one more, have not reported yet.
    let starting = idle_worker_of(&region, 5);
    let mut newest = fork(|link| {
        region.attach_worker(5).unwrap();
        let two = other(5).unwrap();
        region.my_config_generation(5);
        assert_ne!(two, one);
        assert_eq!(view(&region, two).limit, 7);
        assert_eq!(region.pools(), [(two, "two".to_string())]);
        assert!(region.pool(one, |_, _, _| ()).is_none(), "that one is gone");
        ready(link);
    });
    newest.wait_ready();
    newest.kill();
    starting.kill();
    for name in ["", &"x".repeat(81)] {
        assert!(region.take_pool(name, &settings(1), 2, 5).is_err());
    }
}

/// More names than there are places for, coming and going, while workers are
/// killed: whoever gets a pool gets one of its own, and sound.
fn killed_while_names_change() {
    let place = Place::new();
    let region = place.try_open(8 * MIB).unwrap().0;
    let taken = Words::new();
    let work = |i: u64| {
        let mut child = fork(|link| {
            region.attach_worker(1).unwrap();
            say(link);
            let mut state = i;
            loop {
                let config = region.next_config_generation();
                for _ in 0..2 {
                    let n = dice(&mut state, 20) as u32;
                    let name = format!("p{n}");
                    match region.take_pool(&name, &settings(n + 1), 1, config) {
                        Ok(pool) => {
                            taken.at(0).fetch_add(1, Relaxed);
                            let view = region.pool(pool, |p, now, wakes| {
                                let a = arrival(&region, 1, 1, now);
                                if let Entered::Admitted(id) = p.arrive(&a, now, wakes) {
                                    p.release(id, &DONE, now, wakes);
                                }
                                p.view(now)
                            });
                            // Another may have it by now: its configuration is newer.
                            if let Some(view) = view {
                                assert_eq!(view.value.limit, n + 1);
                            }
                        }
                        Err(e) => assert!(e.to_string().contains("no room"), "{e}"),
                    }
                }
                region.my_config_generation(config);
            }
        });
        child.wait_ready();
        child
    };
    let mut state = 5;
    let mut workers: Vec<Child> = (0..4).map(work).collect();
    for i in 0..100 {
        pause(dice(&mut state, 3_000));
        let victim = dice(&mut state, 4) as usize;
        workers.swap_remove(victim).kill();
        workers.push(work(4 + i));
    }
    workers.into_iter().for_each(Child::kill);
    reclaim(&region);
    println!("({} taken)", taken.at(0).load(Relaxed));
    let config = region.next_config_generation();
    fork(|_| {
        region.attach_worker(config).unwrap();
        let names = ["a", "b", "c", "d"];
        let pools = names.map(|n| region.take_pool(n, &settings(5), config, config).unwrap());
        let mut found = region.pools();
        found.sort_by(|a, b| a.1.cmp(&b.1));
        for ((pool, name), (id, found)) in pools.iter().zip(names).zip(found) {
            assert_eq!((*pool, name), (id, &*found));
            assert_eq!(
                (held(&region, *pool), view(&region, *pool).limit),
                ((0, 0), 5)
            );
        }
    })
    .join();
}

fn idle_worker_of(region: &Region, setup: u64) -> Child {
    let mut worker = fork(|link| {
        region.attach_worker(setup).unwrap();
        ready(link);
        hear(link);
    });
    worker.wait_ready();
    worker
}

/// Words that parent and children share.
pub struct Words(*mut AtomicU64);

impl Words {
    pub fn new() -> Words {
        // SAFETY: a new mapping of a page, at an address of the kernel's choice.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                4096,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(start, libc::MAP_FAILED);
        Words(start.cast())
    }

    pub fn at(&self, index: usize) -> &AtomicU64 {
        assert!(index < 512);
        // SAFETY: inside of the page, zeroes, atomics only; never unmapped.
        unsafe { &*self.0.add(index) }
    }
}
