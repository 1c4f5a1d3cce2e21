//! Address lists: one search among many networks, and how long lists take to
//! load.
//!
//! Measured: building a snapshot from entries, checking it, searches at 260,000
//! random addresses, half of them listed, so that no cache knows what they
//! find; in processor time. "Alone": each search waits for the one before it, so
//! all of a cache's misses count. Not measured: reading lists from Redis, other
//! lists of the same gateway. `SLUICE_DATA`
//! names the folder of real lists; without it lists are generated.
mod cpu_time;

use cpu_time::CpuTime;
use criterion::Criterion;
use sluice::domain::entry::{self, Subject};
use sluice::shm::Mapped;
use sluice::shm::lists::{Lists, ListsInput, Standing, build};
use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::time::{Duration, Instant};

const NOW: u64 = 1_700_000_000;
/// As many random addresses as do not fit into a cache with what they find.
const PROBES: usize = 1 << 18;

struct Random(u64);

impl Random {
    /// splitmix64
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

fn lists(block: Vec<(Subject, u64)>) -> Lists {
    let bytes = build(&ListsInput {
        block,
        ..Default::default()
    });
    Lists::new(Mapped::from_bytes(&bytes)).expect("lists that were just built")
}

/// The real lists as one text, or one of the same size.
fn texts() -> (Vec<Vec<u8>>, &'static str) {
    let folder = std::env::var("SLUICE_DATA")
        .unwrap_or_else(|_| concat!(env!("CARGO_MANIFEST_DIR"), "/../shared/data").into());
    let names = ["addresses.txt", "networks-v4.txt", "networks-v6.txt"];
    let real: Vec<_> = names
        .iter()
        .filter_map(|n| std::fs::read(PathBuf::from(&folder).join(n)).ok())
        .collect();
    if real.len() == names.len() {
        return (real, "real lists");
    }
    let mut random = Random(1);
    let mut text = String::new();
    for i in 0..171_000 {
        let n = random.next();
        let (v4, v6) = (
            Ipv4Addr::from(n as u32),
            Ipv6Addr::from(u128::from(n) << 64 | 0x2 << 124),
        );
        text += &match i % 20 {
            0 => format!("{v6}/{}\n", 32 + n % 33),
            1..6 => format!("{v4}/{}\n", 16 + n % 9),
            _ => format!("{v4}\n"),
        };
    }
    (vec![text.into_bytes()], "generated lists")
}

fn entries(texts: &[Vec<u8>]) -> Vec<(Subject, u64)> {
    let subjects = texts.iter().flat_map(|t| entry::parse_file(t).subjects);
    subjects.map(|s| (s, u64::MAX)).collect()
}

/// Addresses of which every second one lies in an entry.
fn probes(entries: &[(Subject, u64)], any: impl Fn(u64) -> IpAddr) -> Vec<IpAddr> {
    let mut random = Random(7);
    (0..PROBES)
        .map(
            |i| match &entries[random.next() as usize % entries.len()].0 {
                Subject::Net(net) if i % 2 == 0 => net.addr(),
                _ => any(random.next()),
            },
        )
        .collect()
}

/// Nanoseconds of a search: the best of several rounds over all probes.
fn search_ns(lists: &Lists, probes: &[IpAddr]) -> f64 {
    let round = || {
        let started = cpu_time::now();
        for ip in probes {
            black_box(lists.address(*ip, NOW));
        }
        (cpu_time::now() - started).as_secs_f64() * 1e9 / probes.len() as f64
    };
    (0..15).map(|_| round()).fold(f64::MAX, f64::min)
}

/// The same, each search waiting for the one before it.
fn search_alone_ns(lists: &Lists, probes: &[IpAddr]) -> f64 {
    let round = || {
        let started = cpu_time::now();
        let mut last = 0;
        for ip in probes {
            // Never changes the address, which the processor cannot know.
            let ip = match ip {
                IpAddr::V4(v4) => IpAddr::V4((u32::from(*v4) ^ last >> 1).into()),
                IpAddr::V6(v6) => IpAddr::V6((u128::from(*v6) ^ u128::from(last >> 1)).into()),
            };
            last = black_box(u32::from(lists.address(ip, NOW) == Standing::Blocked));
        }
        (cpu_time::now() - started).as_secs_f64() * 1e9 / probes.len() as f64
    };
    (0..15).map(|_| round()).fold(f64::MAX, f64::min)
}

fn any_v4(n: u64) -> IpAddr {
    IpAddr::V4((n as u32).into())
}

fn any_v6(n: u64) -> IpAddr {
    IpAddr::V6((u128::from(n) << 61 >> 1 | 0x2 << 124).into())
}

/// A million networks: IPv4 of /24 to /32, IPv6 of /40 to /64.
fn million(v6: bool) -> Vec<(Subject, u64)> {
    let mut random = Random(3);
    let net = |n: u64| {
        let (ip, prefix) = match v6 {
            false => (any_v4(n), 24 + n % 9),
            true => (any_v6(n), 40 + n % 25),
        };
        ipnet::IpNet::new(ip, prefix as u8)
            .expect("a prefix that fits")
            .trunc()
    };
    (0..1_000_000)
        .map(|_| (Subject::Net(net(random.next())), u64::MAX))
        .collect()
}

fn main() {
    let mut c = Criterion::default()
        .with_measurement(CpuTime)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(2))
        .configure_from_args();
    // In a landing's short turn times are shown, not judged.
    let asserted = !std::env::args().any(|a| a == "--test" || a == "--list")
        && std::env::var_os("SHORT_TURN").is_none();

    let (texts, which) = texts();
    let real = entries(&texts);
    let one = lists(real.clone());
    println!("{which}: {} entries", real.len());
    let mixed = probes(&real, any_v4);
    let mut i = 0;
    c.bench_function("lists/search/170,000 entries", |b| {
        b.iter(|| {
            i = (i + 1) % PROBES;
            one.address(mixed[i], NOW)
        })
    });
    c.bench_function("lists/search/empty", |b| {
        let empty = Lists::empty();
        b.iter(|| empty.address(black_box(mixed[0]), NOW))
    });
    let mut group = c.benchmark_group("lists/load");
    group.sample_size(10);
    group.bench_function("170,000 entries", |b| b.iter(|| lists(entries(&texts))));
    group.finish();
    let started = Instant::now();
    drop(lists(entries(&texts)));
    let load = started.elapsed();
    println!("{which}: parsed, built and checked in {load:?} (at most 1 s)");
    assert!(!asserted || load < Duration::from_secs(1));
    let ns = search_ns(&one, &mixed);
    let alone = search_alone_ns(&one, &mixed);
    println!("{which}: {ns:.0} ns a search, {alone:.0} ns alone");

    let mut slow = false;
    for v6 in [false, true] {
        let family = if v6 { "IPv6" } else { "IPv4" };
        let nets = million(v6);
        let started = Instant::now();
        let all = lists(nets.clone());
        let built = started.elapsed();
        let probes = probes(&nets, if v6 { any_v6 } else { any_v4 });
        let blocked = probes
            .iter()
            .filter(|ip| all.address(**ip, NOW) == Standing::Blocked)
            .count();
        assert!(blocked >= PROBES / 2);
        let ns = search_ns(&all, &probes);
        let alone = search_alone_ns(&all, &probes);
        println!(
            "1,000,000 {family} networks: {ns:.0} ns a search (at most 100), {alone:.0} ns alone, built in {built:?}"
        );
        c.bench_function(&format!("lists/search/1,000,000 {family} networks"), |b| {
            b.iter(|| {
                i = (i + 1) % PROBES;
                all.address(probes[i], NOW)
            })
        });
        slow |= ns > 100.0;
    }
    assert!(!asserted || !slow, "one search is at most 100 ns");
    c.final_summary();
}
