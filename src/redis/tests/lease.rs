//! `lease.lua` and `slot.lua`: what gateways may have in flight together, whatever
//! gets lost between them and the store. In LuaJIT with a clock of the test's,
//! and in a real Redis.
use super::*;
use crate::domain::pool::limiter::Found;
use crate::domain::pool::{LEVELS, Report};
use crate::domain::units::Nanos;
use crate::redis::client::StoreError;
use crate::redis::fixture::{Server, installed};
use crate::redis::lease::{Keys, LEASE, Share, Told};

const WEIGHTS: [u32; LEVELS] = [1, 8, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1];
const TIMEOUT_NS: u64 = 5_000_000_000;

fn report(cap: u32, held: u32, in_force: u32, demand: [u32; 4]) -> Report {
    let mut all = [0; LEVELS];
    all[..4].copy_from_slice(&demand);
    Report {
        held,
        in_force,
        leased: true,
        cap,
        adaptive: false,
        demand: all,
        levels: 4,
    }
}

fn told(gateway: &str, report: Report, heard: u64) -> Told<'_> {
    Told {
        gateway,
        report,
        weights: WEIGHTS,
        timeout_ns: TIMEOUT_NS,
        p99_ns: Some(50_000_000),
        known: 1,
        heard,
        limit: report.cap,
        found: Found {
            limit: f64::from(report.cap),
            knee: 0.0,
            healthy: 0.0,
        },
        samples: &[],
        now: Nanos(10_000_000_000),
    }
}

fn keys() -> Keys {
    Keys::new("sluice", "backend")
}

#[cfg(feature = "embed")]
mod luajit {
    use super::*;
    use crate::domain::pool::limiter::Sample;
    use crate::redis::embedded::Store;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    struct Fake(Store);

    impl Fake {
        fn new() -> Fake {
            Fake(Store::new())
        }

        fn lease(&self, told: &Told<'_>) -> Share {
            self.0.lease(&keys(), told)
        }

        fn slots(&self, gateway: &str, limit: u32, wanted: u32) -> u32 {
            self.0.slots(&keys(), gateway, limit, wanted)
        }

        fn flush(&self) {
            self.0.flush();
        }

        fn pass(&mut self, ms: u64) {
            self.0.pass(ms * 1000);
        }

        fn now_us(&self) -> u64 {
            self.0.now_us
        }
    }

    /// A gateway as the engine is one, of plain numbers.
    #[derive(Clone, Debug, Default)]
    struct Gateway {
        name: String,
        heard: u64,
        share: u32,
        until_us: u64,
        held: u32,
        waiting: [u32; 4],
        cap: u32,
        strict: bool,
    }

    impl Gateway {
        fn new(n: usize, cap: u32) -> Gateway {
            Gateway {
                name: format!("gw{n}"),
                cap,
                ..Gateway::default()
            }
        }

        /// What it may have in flight by a lease, not by the fallback.
        fn may(&self, now_us: u64) -> u32 {
            if now_us < self.until_us {
                self.share
            } else {
                0
            }
        }

        fn dispatch(&mut self, now_us: u64) {
            let mut free = self.may(now_us).saturating_sub(self.held);
            for waiting in &mut self.waiting {
                let take = free.min(*waiting);
                *waiting -= take;
                self.held += take;
                free -= take;
            }
        }

        fn report(&self, now_us: u64) -> Report {
            let mut demand = self.waiting;
            demand[3] += self.held;
            report(self.cap, self.held, self.may(now_us), demand)
        }

        fn hear(&mut self, share: &Share, before_us: u64) {
            self.heard = share.number;
            self.share = share.share;
            self.until_us = before_us + LEASE.as_micros() as u64;
            self.strict = share.strict;
        }

        fn call(&mut self, fake: &Fake) -> Share {
            let report = self.report(fake.now_us());
            let share = fake.lease(&told(&self.name, report, self.heard));
            self.hear(&share, fake.now_us());
            self.dispatch(fake.now_us());
            share
        }
    }

    fn settle(fake: &mut Fake, gateways: &mut [Gateway], rounds: usize) {
        for _ in 0..rounds {
            fake.pass(100);
            for gateway in &mut *gateways {
                gateway.call(fake);
            }
        }
    }

    #[test]
    fn what_is_asked_for_is_shared_out_level_0_first() {
        // Demands of two gateways by level, and the shares of a limit of 40.
        let rows = [
            ("alike", [0, 0, 0, 500], [0, 0, 0, 500], [20, 20]),
            ("by demand", [0, 0, 0, 300], [0, 0, 0, 100], [30, 10]),
            ("level 0 first", [30, 0, 0, 0], [0, 0, 0, 900], [30, 10]),
            (
                "more of level 0 than there is",
                [60, 0, 0, 0],
                [20, 9, 9, 9],
                [30, 10],
            ),
            ("then by weight", [0, 800, 0, 0], [0, 0, 800, 0], [32, 8]),
            (
                "what one does not need is the other's",
                [0, 5, 0, 0],
                [0, 0, 0, 99],
                [5, 35],
            ),
            (
                "room for all: in proportion",
                [0, 0, 5, 0],
                [0, 0, 0, 1],
                [31, 9],
            ),
            ("idle", [0; 4], [0; 4], [20, 20]),
        ];
        for (what, one, two, shares) in rows {
            let mut fake = Fake::new();
            let mut gateways = [Gateway::new(1, 40), Gateway::new(2, 40)];
            for _ in 0..30 {
                fake.pass(100);
                for (gateway, demand) in gateways.iter_mut().zip([one, two]) {
                    // What is in flight is part of the demand, and stays so.
                    let report = report(40, gateway.share, gateway.share, demand);
                    let share = fake.lease(&told(&gateway.name, report, gateway.heard));
                    gateway.hear(&share, fake.now_us());
                    assert_eq!((share.limit, share.strict), (40, false));
                }
            }
            assert_eq!(gateways.map(|it| it.share), shares, "{what}");
        }
    }

    #[test]
    fn a_gateway_that_went_leaves_its_share_for_as_long_as_the_backend_works_on() {
        let mut fake = Fake::new();
        let mut gateways = [Gateway::new(1, 40), Gateway::new(2, 40)];
        for gateway in &mut gateways {
            gateway.waiting[3] = 10_000;
        }
        settle(&mut fake, &mut gateways, 20);
        assert_eq!(gateways.clone().map(|it| it.share), [20, 20]);
        let [stays, _] = &mut gateways;
        // Its lease of a second, and the p99 of 50 ms.
        for _ in 0..10 {
            fake.pass(100);
            assert_eq!(stays.call(&fake).share, 20);
        }
        fake.pass(49);
        assert_eq!(
            (stays.call(&fake).share, stays.call(&fake).gateways),
            (20, 1)
        );
        fake.pass(1);
        assert_eq!(stays.call(&fake).share, 40);
    }

    #[test]
    fn after_a_flush_nobody_gets_more_than_it_had_for_a_lease() {
        let mut fake = Fake::new();
        let mut gateways = [Gateway::new(1, 40), Gateway::new(2, 40)];
        gateways[0].waiting[3] = 10_000;
        gateways[1].waiting[3] = 2_000;
        settle(&mut fake, &mut gateways, 20);
        let before = gateways.clone().map(|it| it.share);
        fake.flush();
        // The other is not heard of before its lease ends.
        for _ in 0..9 {
            fake.pass(100);
            assert_eq!(gateways[0].call(&fake).share, before[0]);
        }
        fake.pass(200);
        assert_eq!(gateways[0].call(&fake).share, 40);
    }

    /// Else those that ask first would be left nothing until the others have asked twice.
    #[test]
    fn when_the_limit_falls_each_gives_up_what_is_above_its_part() {
        let mut fake = Fake::new();
        let mut gateways: Vec<_> = (0..8).map(|n| Gateway::new(n, 64)).collect();
        for gateway in &mut gateways {
            gateway.waiting[3] = 100_000;
        }
        settle(&mut fake, &mut gateways, 20);
        assert!(gateways.iter().all(|it| it.share == 8));
        for gateway in &mut gateways {
            gateway.cap = 48;
        }
        for round in 0..5 {
            fake.pass(100);
            for gateway in &mut gateways {
                // As they are held, so that all that is given up is free at once.
                gateway.held = gateway.held.min(gateway.share);
                gateway.call(&fake);
                assert!((5..=7).contains(&gateway.share), "{}", gateway.share);
            }
            let sum: u32 = gateways.iter().map(|it| it.share).sum();
            assert!(round == 0 || sum <= 48, "{sum}");
        }
        // One is not heard of any more: what it holds is nobody's part.
        gateways.pop();
        for gateway in &mut gateways {
            gateway.cap = 32;
        }
        for _ in 0..9 {
            fake.pass(100);
            for gateway in &mut gateways {
                gateway.held = gateway.held.min(gateway.share);
                gateway.call(&fake);
            }
        }
        let sum: u32 = gateways.iter().map(|it| it.share).sum();
        assert!((20..=32 - 6).contains(&sum), "{sum}");
    }

    #[test]
    fn a_slot_more_than_its_part_is_kept_while_nobody_lacks_more_than_one() {
        let mut fake = Fake::new();
        let mut gateways = [Gateway::new(1, 40), Gateway::new(2, 40)];
        let mut call = |gateways: &mut [Gateway], demands: [u32; 2]| {
            for _ in 0..15 {
                fake.pass(100);
                for (gateway, demand) in gateways.iter_mut().zip(demands) {
                    let report = report(40, gateway.share, gateway.share, [0, 0, 0, demand]);
                    let share = fake.lease(&told(&gateway.name, report, gateway.heard));
                    gateway.hear(&share, fake.now_us());
                }
            }
            [gateways[0].share, gateways[1].share]
        };
        assert_eq!(call(&mut gateways, [200, 200]), [20, 20]);
        // 19.05 and 20.95.
        assert_eq!(call(&mut gateways, [200, 220]), [20, 20]);
        assert_eq!(call(&mut gateways, [200, 250]), [18, 22]);
    }

    /// Each goes on by its part while the store is away, and has that when it is back.
    #[test]
    fn after_an_outage_nobody_gets_more_than_its_part_for_a_lease() {
        let mut fake = Fake::new();
        let mut gateways: Vec<_> = (0..4).map(|n| Gateway::new(n, 40)).collect();
        settle(&mut fake, &mut gateways, 20);
        fake.pass(5_000);
        let mut holds = [10; 4];
        for _ in 0..9 {
            for (gateway, holds) in gateways.iter_mut().zip(&mut holds) {
                let report = report(40, *holds, *holds, [0, 0, 0, 500]);
                let share = fake.lease(&told(&gateway.name, report, gateway.heard));
                gateway.hear(&share, fake.now_us());
                *holds = share.share;
            }
            let sum: u32 = holds.iter().sum();
            assert!((30..=40).contains(&sum), "{holds:?}");
            fake.pass(100);
        }
    }

    #[test]
    fn the_lowest_limit_holds_and_it_is_said() {
        let mut fake = Fake::new();
        let mut gateways = [Gateway::new(1, 40), Gateway::new(2, 30)];
        settle(&mut fake, &mut gateways, 15);
        for gateway in &mut gateways {
            let share = gateway.call(&fake);
            assert_eq!((share.limit, share.differs, share.share), (30, true, 15));
        }
        gateways[0].cap = 30;
        settle(&mut fake, &mut gateways, 1);
        assert!(!gateways[0].call(&fake).differs);
    }

    fn finding<'a>(gateway: &'a str, heard: u64, limit: f64, samples: &'a [Sample]) -> Told<'a> {
        let report = Report {
            adaptive: true,
            ..report(1000, 0, 20, [0, 0, 0, 50])
        };
        let found = Found {
            limit,
            knee: 12.5,
            healthy: 8.25,
        };
        let limit = limit as u32;
        Told {
            limit,
            found,
            samples,
            ..told(gateway, report, heard)
        }
    }

    #[test]
    fn one_gateway_leads_and_hears_of_all_requests() {
        let mut fake = Fake::new();
        let first = fake.lease(&finding("a", 0, 20.0, &[]));
        assert!(first.leads && first.found.is_none());
        assert_eq!(first.limit, 20);
        fake.pass(50);
        let sample = Sample {
            dispatched: 9_900_000_000,
            completed: 9_990_000_000,
            response_ns: 90_000_000,
            route: 7,
            level: 2,
            found_waiter: 1,
            error: 0,
            unused: 0,
        };
        let failed = Sample {
            dispatched: 9_800_000_000,
            completed: 9_980_000_000,
            response_ns: u64::MAX,
            error: 1,
            found_waiter: 0,
            ..sample
        };
        let other = fake.lease(&finding("b", 0, 77.0, &[sample, failed]));
        assert!(!other.leads && other.ended.is_empty());
        assert_eq!(other.limit, 20, "only the leader's counts");
        fake.pass(25);
        let second = fake.lease(&finding("a", first.number, 24.6, &[]));
        assert_eq!((second.limit, second.leads), (24, true));
        let ago: Vec<_> = second.ended.iter().map(|it| it.completed_ago_ns).collect();
        assert_eq!(ago, [45_000_000, 35_000_000], "in the order of their ends");
        assert_eq!(second.ended[0].response_ns, None);
        assert!(second.ended[0].error && !second.ended[0].found_waiter);
        let whole = second.ended[1];
        assert_eq!(whole.dispatched_ago_ns, 125_000_000);
        assert_eq!(
            (whole.response_ns, whole.route, whole.level),
            (Some(90_000_000), 7, 2)
        );
        assert!(whole.found_waiter && !whole.error);
        // Each is handed over once.
        let third = fake.lease(&finding("a", second.number, 24.6, &[]));
        assert!(third.ended.is_empty());

        // The leader is gone: the next one begins where it was.
        fake.pass(999);
        assert!(!fake.lease(&finding("b", other.number, 77.0, &[])).leads);
        fake.pass(1);
        let heir = fake.lease(&finding("b", 2, 77.0, &[]));
        let found = heir.found.expect("handed on");
        assert_eq!((heir.leads, heir.limit), (true, 24));
        assert_eq!((found.limit, found.knee, found.healthy), (24.6, 12.5, 8.25));
        // That reply is lost: it has not adopted anything, and is told again.
        fake.pass(100);
        let again = fake.lease(&finding("b", 2, 77.0, &[]));
        assert_eq!((again.limit, again.found), (24, Some(found)));
        let known = fake.lease(&finding("b", again.number, 25.0, &[]));
        assert_eq!((known.limit, known.found), (25, None));
    }

    #[test]
    fn small_limits_are_taken_slot_by_slot() {
        let mut fake = Fake::new();
        let mut gateways = [Gateway::new(1, 7), Gateway::new(2, 7)];
        settle(&mut fake, &mut gateways, 15);
        assert!(gateways.iter().all(|it| it.strict));
        let [a, b] = ["gw1", "gw2"];
        assert_eq!(fake.slots(a, 7, 5), 5);
        assert_eq!(fake.slots(b, 7, 4), 2);
        // B72: the reply was lost, and the next call puts it right either way.
        assert_eq!(fake.slots(a, 7, 5), 5);
        assert_eq!(fake.slots(a, 7, 3), 3);
        assert_eq!(fake.slots(b, 7, 4), 4);
        assert_eq!(fake.slots(a, 7, 9), 3);
        // Who stays away keeps nothing beyond the lease.
        fake.pass(600);
        assert_eq!(fake.slots(a, 7, 3), 3);
        fake.pass(399);
        assert_eq!(fake.slots(a, 7, 7), 3);
        fake.pass(1);
        assert_eq!(fake.slots(a, 7, 7), 7);
        // One that is alone needs none of that.
        settle(&mut fake, &mut gateways[..1], 30);
        assert!(!gateways[0].strict);
    }

    #[derive(Clone, Debug)]
    enum Event {
        /// A gateway calls; the reply arrives, or does not.
        Call(usize, bool),
        Arrive(usize, usize, u32),
        End(usize, u32),
        Pass(u64),
        Cap(u32),
    }

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![
            8 => (0..4usize, prop::bool::weighted(0.8)).prop_map(|(g, heard)| Event::Call(g, heard)),
            4 => (0..4usize, 0..4usize, 0..60u32).prop_map(|(g, level, n)| Event::Arrive(g, level, n)),
            4 => (0..4usize, 0..20u32).prop_map(|(g, n)| Event::End(g, n)),
            6 => (1..200u64).prop_map(Event::Pass),
            1 => Just(Event::Pass(1500)),
            1 => (16..60u32).prop_map(Event::Cap),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]
        /// Whatever is lost: leases that run never add up to more than the largest limit that any
        /// of them was granted under. (Gateways are young for the first second.)
        #[test]
        fn shares_never_add_up_to_more_than_the_limit(events in prop::collection::vec(event(), 1..200)) {
            let mut fake = Fake::new();
            let mut gateways: Vec<_> = (0..4).map(|n| Gateway::new(n, 40)).collect();
            let mut limits = VecDeque::from([(0u64, 40u32)]);
            for event in events {
                match event {
                    Event::Call(n, heard) => {
                        let gateway = &mut gateways[n];
                        let report = gateway.report(fake.now_us());
                        let share = fake.lease(&told(&gateway.name, report, gateway.heard));
                        if heard {
                            gateway.hear(&share, fake.now_us());
                        }
                    }
                    Event::Arrive(n, level, many) => gateways[n].waiting[level] += many,
                    Event::End(n, many) => {
                        let held = &mut gateways[n].held;
                        *held = held.saturating_sub(many);
                    }
                    Event::Pass(ms) => fake.pass(ms),
                    Event::Cap(cap) => {
                        limits.push_back((fake.now_us(), cap));
                        for gateway in &mut gateways {
                            gateway.cap = cap;
                        }
                    }
                }
                for gateway in &mut gateways {
                    gateway.dispatch(fake.now_us());
                }
                // A limit ends with the leases that were granted under it.
                let lease_us = LEASE.as_micros() as u64;
                while limits.len() > 1 && limits[1].0 + 2 * lease_us < fake.now_us() {
                    limits.pop_front();
                }
                let most = limits.iter().map(|it| it.1).max().expect("one");
                let sum: u32 = gateways.iter().map(|it| it.may(fake.now_us())).sum();
                prop_assert!(sum <= most, "{sum} of {most}: {gateways:?}");
            }
        }
    }
}

/// Four gateways against a real Redis, one of them cut off, Redis stopped, flushed, restarted.
#[test]
fn together_never_more_than_the_limit() {
    if !installed() {
        return;
    }
    let mut server = Server::start();
    in_thread(async || {
        let clients: Vec<_> = (0..4).map(|_| client(&server.url())).collect();
        let names: Vec<_> = (0..4).map(|n| format!("gw{n}")).collect();
        let mut shares: Vec<Option<(Share, Instant)>> = vec![None; 4];
        let sum = |shares: &[Option<(Share, Instant)>]| -> u32 {
            let running = shares.iter().flatten().filter(|it| it.1.elapsed() < LEASE);
            running.map(|it| it.0.share).sum()
        };
        let round = async |shares: &mut Vec<Option<(Share, Instant)>>, who: &[usize]| {
            for &n in who {
                let running = shares[n].as_ref().filter(|it| it.1.elapsed() < LEASE);
                let share = running.map_or(10, |it| it.0.share);
                let heard = shares[n].as_ref().map_or(0, |it| it.0.number);
                let report = report(40, share, share, [0, 0, 0, 100 * (n as u32 + 1)]);
                let before = Instant::now();
                let told = told(&names[n], report, heard);
                match clients[n].lease(&keys(), &told, before + LEASE / 5).await {
                    Ok(share) => shares[n] = Some((share, before)),
                    Err(StoreError::Timeout | StoreError::Unavailable(_)) => {}
                    Err(other) => panic!("{other}"),
                }
                assert!(sum(shares) <= 40, "{shares:?}");
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        let all = [0, 1, 2, 3];
        for client in &clients {
            client.time_us(soon()).await.expect("connected");
        }
        for _ in 0..32 {
            round(&mut shares, &all).await;
        }
        assert_eq!(sum(&shares), 40, "all of it is used: {shares:?}");
        let of = |shares: &[Option<(Share, Instant)>]| -> Vec<u32> {
            shares.iter().flatten().map(|it| it.0.share).collect()
        };
        assert_eq!(of(&shares), [4, 8, 12, 16]);
        // One is cut off for longer than its lease, and comes back.
        for _ in 0..30 {
            round(&mut shares, &all[..3]).await;
        }
        assert_eq!(sum(&shares), 40, "{shares:?}");
        for _ in 0..12 {
            round(&mut shares, &all).await;
        }
        assert_eq!(of(&shares), [4, 8, 12, 16]);
        // Nothing lives for ever.
        for key in server.run::<Vec<String>>("KEYS sluice:pool:*") {
            let left: i64 = server.run(&format!("PTTL {key}"));
            assert!(left > 0, "{key}: {left}");
        }
        server.hang();
        for _ in 0..6 {
            round(&mut shares, &all).await;
        }
        assert_eq!(sum(&shares), 0, "leases end by the gateways' own clocks");
        server.wake();
        for _ in 0..40 {
            round(&mut shares, &all).await;
        }
        assert_eq!(of(&shares), [4, 8, 12, 16]);
        let _: () = server.run("FLUSHALL");
        for _ in 0..32 {
            round(&mut shares, &all).await;
        }
        assert_eq!(of(&shares), [4, 8, 12, 16]);
        server.restart();
        for _ in 0..50 {
            round(&mut shares, &all).await;
        }
        assert_eq!(of(&shares), [4, 8, 12, 16]);
    });
}

/// B72: a call that was carried out after its gateway had given up leaves nothing behind.
#[test]
fn a_lost_reply_leaks_no_slot() {
    if !installed() {
        return;
    }
    let server = Server::start();
    in_thread(async || {
        let (a, b) = (client(&server.url()), client(&server.url()));
        a.time_us(soon()).await.expect("connected");
        b.time_us(soon()).await.expect("connected");
        let short = || Instant::now() + Duration::from_millis(30);
        for _ in 0..5 {
            server.hang();
            let lost = a.slots(&keys(), "a", 5, 5, short()).await;
            assert_eq!(lost, Err(StoreError::Timeout));
            server.wake();
            // Taken, though nobody knows; the next call knows.
            assert_eq!(a.slots(&keys(), "a", 5, 0, soon()).await, Ok(0));
            assert_eq!(b.slots(&keys(), "b", 5, 5, soon()).await, Ok(5));
            assert_eq!(b.slots(&keys(), "b", 5, 0, soon()).await, Ok(0));
        }
        server.hang();
        let lost = a.slots(&keys(), "a", 5, 5, short()).await;
        assert_eq!(lost, Err(StoreError::Timeout));
        server.wake();
        // Without another call: gone with the lease.
        let took = until("the slots are free", async || {
            b.slots(&keys(), "b", 5, 5, soon()).await == Ok(5)
        });
        assert!(took.await < LEASE + Duration::from_millis(300));
    });
}
