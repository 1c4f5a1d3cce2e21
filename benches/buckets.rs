//! The bucket table, on the heap: what a decision by one bucket costs, and what
//! a flood of random keys does to it.
//!
//! reading the clock, other workers. The outcomes at the end are asserted, in
//! processor time.
//! in processor time, at the end are asserted.
mod cpu_time;

use cpu_time::CpuTime;
use criterion::{Criterion, Throughput};
use sluice::domain::units::Nanos;
use sluice::shm::{Limit, Region, RuleId};
use std::hint::black_box;
use std::time::Duration;

const S: u64 = 1_000_000_000;
const DAY: u64 = 86_400 * S;
const T0: Nanos = Nanos(1_000 * S);

/// Keys as they come: an address, each another.
fn key(n: u64) -> [u8; 8] {
    n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()
}

fn spend(region: &Region, rule: RuleId, n: u64, now: Nanos) -> bool {
    region
        .spend(rule, region.hash(rule, &key(n)), 1, now)
        .admitted
}

fn region(size_bytes: u64) -> (Region, RuleId, RuleId) {
    let region = Region::on_heap(size_bytes);
    let take = |name, emission, capacity| {
        region
            .take_rule_at(name, Limit::new(emission, capacity), 0, None, T0)
            .expect("room for rules")
    };
    let (flood, steady) = (take("flood", DAY, 5), take("steady", 12 * S, 5));
    (region, flood, steady)
}

fn parts(c: &mut Criterion<CpuTime>) {
    let (region, slow, _) = region(32 << 20);
    let fast = region
        .take_rule_at("fast", Limit::new(1_000, 1_000_000), 0, None, T0)
        .unwrap();
    let k = region.hash(fast, b"\x01\x04\xcb\x00\x71\x09");
    let mut now = T0.0;
    c.bench_function("buckets/hash/6 bytes", |b| {
        b.iter(|| region.hash(fast, black_box(b"\x01\x04\xcb\x00\x71\x09")))
    });
    c.bench_function("buckets/hash/40 bytes", |b| {
        b.iter(|| region.hash(fast, black_box(&[7; 40])))
    });
    c.bench_function("buckets/peek/hot", |b| {
        b.iter(|| region.peek(fast, black_box(k), 1, Nanos(now)))
    });
    c.bench_function("buckets/spend/hot, admitted", |b| {
        b.iter(|| {
            now += 1_000;
            assert!(region.spend(fast, black_box(k), 1, Nanos(now)).admitted);
        })
    });
    let drained = region.hash(slow, b"drained");
    region.spend(slow, drained, 5, T0);
    c.bench_function("buckets/spend/hot, refused", |b| {
        b.iter(|| assert!(!region.spend(slow, black_box(drained), 1, T0).admitted))
    });
    c.bench_function("buckets/spend/one of 1,000,000 keys", |b| {
        for n in 0..1_000_000 {
            spend(&region, fast, n, T0);
        }
        let mut n = 0u64;
        b.iter(|| {
            n = n.wrapping_add(0x9e37_79b9);
            spend(&region, fast, n % 1_000_000, T0)
        })
    });
    let mut group = c.benchmark_group("buckets/sweep");
    group
        .sample_size(10)
        .throughput(Throughput::Bytes(32 << 20));
    group.bench_function("32 MiB, every 16th change of a limit", |b| {
        let mut n = 0;
        b.iter(|| {
            for _ in 0..16 {
                n += 1;
                let limit = Limit::new(DAY, 6 + n % 2);
                region.take_rule_at("flood", limit, 0, None, T0).unwrap();
            }
        })
    });
    group.finish();
}

/// New random keys in a table that is full of others, over the same in an
/// empty one, whose pages have been touched before. Alternating, medians.
fn full_over_empty() {
    const KEYS: u64 = 200_000;
    let (empty, flood, _) = region(64 << 20);
    let (full, _, _) = region(64 << 20);
    let slots = full.bucket_slots().0;
    let mut next = 0;
    let mut pour = |region: &Region, n: u64| {
        let started = cpu_time::now();
        for _ in 0..n {
            next += 1;
            black_box(spend(region, flood, next, T0));
        }
        (cpu_time::now() - started).as_secs_f64() * 1e9 / n as f64
    };
    pour(&empty, slots * 2);
    pour(&full, slots * 2);
    assert!(
        full.bucket_slots().1 * 1000 > slots * 999,
        "the table is full"
    );
    let rounds: Vec<(f64, f64)> = (0..15)
        .map(|_| {
            empty.empty_bucket_table();
            (pour(&empty, KEYS), pour(&full, KEYS))
        })
        .collect();
    let median = |mut all: Vec<f64>| {
        all.sort_by(f64::total_cmp);
        all[all.len() / 2]
    };
    let (e, f) = (
        median(rounds.iter().map(|r| r.0).collect()),
        median(rounds.iter().map(|r| r.1).collect()),
    );
    let ratio = median(rounds.iter().map(|r| r.1 / r.0).collect());
    println!(
        "random keys, 64 MiB: empty table {e:.0} ns, full table {f:.0} ns, ratio {ratio:.3} (at most 1.10)"
    );
    // In a landing's short turn times are shown, not judged.
    let judged = std::env::var_os("SHORT_TURN").is_none();
    assert!(
        !judged || ratio <= 1.10,
        "a full table is at most 10 % slower"
    );
}

/// 2,000,000 partly spent buckets in 64 MiB.
fn how_many_fit() {
    let (region, flood, _) = region(64 << 20);
    let n = 2_000_000;
    for i in 0..n {
        spend(&region, flood, i, T0);
    }
    let lost = region.totals().evictions;
    let percent = lost as f64 * 100.0 / n as f64;
    println!("64 MiB, 2,000,000 partly spent buckets: {percent:.3} % pushed out (at most 1 %)");
    assert!(percent <= 1.0);
}

/// 10 million random keys on a 1/d rule, while a steady client of a 5/m rule
/// asks once a second for an hour.
fn ten_million_keys() {
    let (region, flood, steady) = region(32 << 20);
    let (size, slots) = (region.size_bytes(), region.bucket_slots().0);
    let (n, seconds) = (10_000_000u64, 3_600);
    let mut admitted = 0;
    let started = cpu_time::now();
    for i in 0..n {
        let now = Nanos(T0.0 + i * seconds * S / n);
        spend(&region, flood, i, now);
        if i % (n / seconds) == 0 {
            admitted += u64::from(spend(&region, steady, 1, now));
        }
    }
    let each = (cpu_time::now() - started) / n as u32;
    let (slots_after, used) = region.bucket_slots();
    let most = 5 + 5 * 60;
    println!(
        "10,000,000 random keys at {each:?} each: {used} of {slots} slots used; the steady client got {admitted} of {most}"
    );
    assert!((region.size_bytes(), slots_after) == (size, slots) && used <= slots);
    assert!((most - 1..=most).contains(&admitted));
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
        how_many_fit();
        full_over_empty();
        ten_million_keys();
    }
    c.final_summary();
}
