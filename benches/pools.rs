//! An event in a pool, in the region, under its lock: what a request pays for a
//! slot when nobody else is at it, in processor time.
//!
//! Not in here: the wait for a slot, waking a worker (`t/region` shows that),
//! and how the queue behaves (`benches/simulate`). The sum of an arrival and a
//! release is asserted.
mod cpu_time;

use cpu_time::CpuTime;
use criterion::Criterion;
use sluice::domain::pool::{Arrival, Completion, Entered, EntryId, Feedback, Settings};
use sluice::domain::units::Nanos;
use sluice::shm::{PoolId, Region};
use std::hint::black_box;
use std::time::Duration;

const MS: u64 = 1_000_000;

fn settings(limit: u32) -> Settings {
    Settings {
        adaptive: 0,
        limit,
        min: 1,
        max: 1000,
        start: 20,
        capacity: 12_000,
        levels: 4,
        cluster: 0,
        weights: [8, 8, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1],
        max_wait_ns: 3_600_000 * MS,
        timeout_ns: 60_000 * MS,
    }
}

fn arrive(region: &Region, pool: PoolId, level: u8, ticket: u64) -> Entered {
    let touched = region.pool(pool, |pool, now, wakes| {
        let arrival = Arrival {
            level,
            cohort: ticket as u8,
            route: 0,
            blind: false,
            exempt: false,
            line: region.line_index(),
            ticket,
            since: now,
        };
        pool.arrive(&arrival, now, wakes)
    });
    touched.expect("nobody else has it").value
}

fn admitted(region: &Region, pool: PoolId) -> EntryId {
    match arrive(region, pool, 1, 7) {
        Entered::Admitted(id) => id,
        other => panic!("{other:?}"),
    }
}

fn release(region: &Region, pool: PoolId, id: EntryId) {
    let completion = Completion {
        feedback: Feedback::Response(Nanos(20 * MS)),
        abandoned: false,
    };
    region
        .pool(pool, |pool, now, wakes| {
            pool.release(id, &completion, now, wakes)
        })
        .expect("nobody else has it");
}

fn parts(c: &mut Criterion<CpuTime>) {
    let region = Region::on_heap(64 << 20);
    region.attach_worker(1).expect("a line");
    let take =
        |name: &str, settings: &Settings| region.take_pool(name, settings, 1, 1).expect("a place");
    let pool = take("backend", &settings(100));
    c.bench_function("pools/lock, clock and unlock", |b| {
        b.iter(|| region.pool(black_box(pool), |_, now, _| now))
    });
    c.bench_function("pools/arrive and release", |b| {
        b.iter(|| release(&region, pool, admitted(&region, pool)))
    });
    let found = Settings {
        adaptive: 1,
        ..settings(0)
    };
    let pool = take("found", &found);
    c.bench_function("pools/arrive and release, the limit is found", |b| {
        b.iter(|| release(&region, pool, admitted(&region, pool)))
    });
    // 10,000 wait, each release grants the next, whom this worker collects.
    let queue = take("queue", &settings(1));
    let mut holds = match arrive(&region, queue, 0, 0) {
        Entered::Admitted(id) => id,
        other => panic!("{other:?}"),
    };
    for ticket in 1..=10_000 {
        assert!(matches!(
            arrive(&region, queue, 0, ticket),
            Entered::Queued(_)
        ));
    }
    let mut got = Vec::new();
    c.bench_function("pools/release, collect, queue again, 10,000 wait", |b| {
        b.iter(|| {
            release(&region, queue, holds);
            got.clear();
            region.pool(queue, |pool, now, _| {
                pool.collect(region.line_index(), 1, now, &mut got)
            });
            holds = got[0].entry;
            arrive(&region, queue, 0, got[0].ticket)
        })
    });
    c.bench_function("pools/tick, 10,000 wait", |b| {
        b.iter(|| region.pool(queue, |pool, now, wakes| pool.tick(now, wakes)))
    });
    c.bench_function("pools/user taken and given back", |b| {
        b.iter(|| {
            let slot = region
                .take_user(black_box(77), 4)
                .expect("the lock")
                .expect("room");
            region.give_user(slot)
        })
    });
}

/// What a pool costs a request that finds a free slot.
fn arrive_and_release() {
    let region = Region::on_heap(64 << 20);
    region.attach_worker(1).expect("a line");
    let pool = region
        .take_pool("backend", &settings(100), 1, 1)
        .expect("a place");
    const N: u32 = 200_000;
    let round = || {
        let started = cpu_time::now();
        for _ in 0..N {
            release(&region, pool, admitted(&region, pool));
        }
        (cpu_time::now() - started) / N
    };
    let mut rounds: Vec<Duration> = (0..9).map(|_| round()).collect();
    rounds.sort_unstable();
    let median = rounds[4];
    println!("arrive and release in the region: {median:?} together (at most 200 ns)");
    // In a landing's short turn times are shown, not judged.
    let judged = std::env::var_os("SHORT_TURN").is_none();
    assert!(!judged || median <= Duration::from_nanos(200));
}

fn main() {
    let mut c = Criterion::default()
        .with_measurement(CpuTime)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .configure_from_args();
    parts(&mut c);
    // Not when cargo only asks that the benches run at all.
    if !std::env::args().any(|a| a == "--test" || a == "--list") {
        arrive_and_release();
    }
    c.final_summary();
}
