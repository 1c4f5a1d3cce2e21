//! The thread of `engine::watch` over processes.
use crate::Case;
use crate::pools::{Words, arrive, settings, surely, surely_release, view};
use crate::processes::*;
use sluice::domain::config::Store;
use sluice::domain::pool::{Entered, Notice, Settings};
use sluice::engine::thread::{self, Shared};
use sluice::engine::watch;
use sluice::shm::Region;
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering::*;
use std::time::{Duration, Instant};

pub const CASES: &[Case] = &[
    ("watch::ten_thousand_wait", ten_thousand_wait),
    ("watch::from_release_to_nginx", from_release_to_nginx),
];

/// A region that lives as long as the process, as nginx's does.
fn open(place: &Place, mib: u64) -> &'static Region {
    Box::leak(Box::new(place.try_open(mib * MIB).unwrap().0))
}

fn shared(region: &'static Region) -> Arc<Shared> {
    Shared::new(
        Store::default(),
        sluice::bridge::socket_path(region.path()),
        || false,
        region,
    )
}

fn cpu_time() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes one timespec; this clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// 10,000 requests wait in four workers: they cost next to nothing while they
/// do, and those of a worker that is killed are gone soon after.
fn ten_thousand_wait() {
    let place = Place::new();
    let region = open(&place, 64);
    let long = Settings {
        capacity: 12_000,
        max_wait_ns: 600_000_000_000,
        ..settings(1)
    };
    let pool = region.take_pool("backend", &long, 1, 1).unwrap();
    let used = Words::new();
    let work = |i: usize| {
        let used = &used;
        let mut child = fork(move |link| {
            region.attach_worker(1).unwrap();
            watch::start(&shared(region), region, |_, _, _| ()).unwrap();
            for ticket in 0..2_500 {
                arrive(region, pool, 0, ticket);
            }
            ready(link);
            let (began, before) = (Instant::now(), cpu_time());
            pause(4_000_000);
            let share = (cpu_time() - before).as_secs_f64() / began.elapsed().as_secs_f64();
            used.at(i).store((share * 1e6) as u64, Relaxed);
            ready(link);
            hear(link);
        });
        child.wait_ready();
        child
    };
    let mut workers: Vec<Child> = (0..4).map(work).collect();
    assert_eq!(view(region, pool).waiting[0], 9_999);
    workers.iter_mut().for_each(Child::go);
    workers.iter_mut().for_each(Child::wait_ready);
    for i in 0..4 {
        let percent = used.at(i).load(Relaxed) as f64 / 1e4;
        println!("(10,000 wait: worker {i} used {percent:.3} % of a processor)");
        assert!(percent < 5.0);
    }
    // The last one: the first holds the slot.
    workers.pop().unwrap().kill();
    let killed = Instant::now();
    while view(region, pool).waiting[0] != 7_499 {
        pause(5_000);
        assert!(killed.elapsed().as_secs() < 3, "{:?}", view(region, pool));
    }
    println!(
        "(2,500 waiters of a killed worker were gone after {:?})",
        killed.elapsed()
    );
}

/// The whole way: another worker releases, this one's thread is woken, and
/// writes to the socket that nginx reads.
fn from_release_to_nginx() {
    let place = Place::new();
    let region = open(&place, 1);
    let pool = region.take_pool("backend", &settings(1), 1, 1).unwrap();
    let words = Words::new();
    const ROUNDS: u64 = 300;
    let mut waiter = fork(|link| {
        region.attach_worker(1).unwrap();
        let shared = shared(region);
        thread::start(&shared).unwrap();
        watch::start(&shared, region, |_, _, _| ()).unwrap();
        let mut reader = UnixStream::connect(shared.socket()).unwrap();
        say(link);
        let (mut took, mut done, mut got) = (Vec::new(), Vec::new(), Vec::new());
        for ticket in 0..ROUNDS {
            while words.at(3).load(Acquire) <= ticket {
                pause(20);
            }
            assert!(matches!(
                arrive(region, pool, 0, ticket),
                Entered::Queued(_)
            ));
            // The other one may release.
            words.at(1).store(ticket + 1, Release);
            let entry = loop {
                reader.read_exact(&mut [0]).unwrap();
                shared.outbox.drain(&mut done);
                got.clear();
                surely(|| {
                    region.pool(pool, |p, now, _| {
                        p.collect(region.line_index(), 8, now, &mut got)
                    })
                });
                // The first byte of all says only that there is a reader.
                if let Some(c) = got.first() {
                    assert_eq!((c.ticket, c.notice), (ticket, Notice::Granted));
                    break c.entry;
                }
            };
            took.push(region.now().0 - words.at(0).load(Acquire));
            surely_release(region, pool, entry);
            words.at(2).store(ticket + 1, Release);
        }
        took.sort_unstable();
        let at = |q: usize| Duration::from_nanos(took[(took.len() - 1) * q / 100]);
        println!(
            "(from another worker's release to nginx's loop: p50 {:?}, p99 {:?}, most {:?})",
            at(50),
            at(99),
            at(100)
        );
        assert!(at(100) < Duration::from_secs(1));
    });
    waiter.wait_ready();
    fork(|_| {
        region.attach_worker(1).unwrap();
        for round in 1..=ROUNDS {
            let Entered::Admitted(id) = arrive(region, pool, 0, round) else {
                panic!("the slot is free");
            };
            words.at(3).store(round, Release);
            while words.at(1).load(Acquire) < round {
                pause(20);
            }
            pause(500);
            words.at(0).store(region.now().0, Release);
            surely_release(region, pool, id);
            while words.at(2).load(Acquire) < round {
                pause(20);
            }
        }
    })
    .join();
    waiter.join();
}
