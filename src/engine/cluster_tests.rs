//! Gateways that share a pool's limit through a real Redis.
use super::*;
use crate::domain::pool::{Arrival, Completion, Entered, EntryId, Feedback, View};
use crate::domain::units::Nanos;
use crate::engine::current::Current;
use crate::engine::fake::worker;
use crate::engine::pools::NOTHING;
use crate::engine::worker::Worker;
use crate::redis::fixture::{Server, installed};
use crate::redis::lease::LEASE;
use std::time::Duration;

fn in_thread<T>(work: impl AsyncFnOnce() -> T) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("one");
    let done = tokio::task::LocalSet::new().block_on(&runtime, work());
    runtime.shutdown_background();
    done
}

/// A gateway with one pool.
struct Gateway {
    worker: Worker,
    client: Client,
    member: Member,
    held: Vec<EntryId>,
}

impl Gateway {
    fn new(server: &Server, name: &str, pool: &str) -> Gateway {
        let worker = worker(&format!(
            "[store]\nurl = \"{}\"\n[[pools]]\nname = \"p\"\nscope = \"cluster\"\n{pool}\n",
            server.url()
        ));
        let client = Client::new(&worker.setup.config.store).expect("a client");
        Gateway {
            worker,
            client,
            member: Member::new(Keys::new("sluice", "p"), name.into()),
            held: Vec::new(),
        }
    }

    async fn connect(&self) {
        let now = self.client.time_us(Instant::now() + LEASE).await;
        now.expect("connected");
    }

    fn pool(&self) -> PoolId {
        self.worker.force.rules.pools[0].id
    }

    async fn lease(&mut self) -> Result<Put, StoreError> {
        let pool = &self.worker.force.rules.pools[0];
        let region = self.worker.region;
        self.member.lease(&self.client, region, pool).await
    }

    async fn slots(&mut self) -> Result<Put, StoreError> {
        let pool = &self.worker.force.rules.pools[0];
        let region = self.worker.region;
        self.member.slots(&self.client, region, pool).await
    }

    fn arrive(&mut self, level: u8, n: u32) {
        for _ in 0..n {
            let touched = self.worker.region.pool(self.pool(), |p, now, wakes| {
                let arrival = Arrival {
                    level,
                    cohort: 0,
                    route: 0,
                    blind: false,
                    exempt: false,
                    line: 0,
                    ticket: 0,
                    since: now,
                };
                p.arrive(&arrival, now, wakes)
            });
            if let Entered::Admitted(id) = touched.expect("nobody else holds it").value {
                self.held.push(id);
            }
        }
    }

    /// What was granted to those that waited.
    fn collect(&mut self) {
        let mut granted = Vec::new();
        let touched = self.worker.region.pool(self.pool(), |p, now, _| {
            p.collect(0, 1000, now, &mut granted);
        });
        assert!(touched.is_some());
        let granted = granted.iter();
        let granted = granted.filter(|it| it.notice == crate::domain::pool::Notice::Granted);
        self.held.extend(granted.map(|it| it.entry));
    }

    fn end(&mut self, n: usize, how: Completion) {
        for id in self
            .held
            .drain(..n.min(self.held.len()))
            .collect::<Vec<_>>()
        {
            let pool = self.pool();
            let touched = self.worker.region.pool(pool, |p, now, wakes| {
                p.release(id, &how, now, wakes);
            });
            assert!(touched.is_some());
        }
    }

    fn view(&self) -> View {
        let touched = self.worker.region.pool(self.pool(), |p, now, wakes| {
            p.tick(now, wakes);
            p.view(now)
        });
        touched.expect("nobody else holds it").value
    }
}

async fn two(server: &Server, pool: &str) -> [Gateway; 2] {
    let gateways = ["a", "b"].map(|name| Gateway::new(server, name, pool));
    for gateway in &gateways {
        gateway.connect().await;
    }
    gateways
}

fn in_flight(gateways: &[Gateway]) -> u32 {
    gateways.iter().map(|it| it.view().in_flight).sum()
}

const QUEUE: &str = "queue = { capacity = 500, max_wait = \"60s\" }\ntimeout = \"1s\"";

#[test]
fn one_limit_for_all_gateways_and_its_part_without_the_store() {
    if !installed() {
        return;
    }
    let server = Server::start();
    in_thread(async || {
        let pool = format!("limit = 20\n{QUEUE}");
        let mut gateways = two(&server, &pool).await;
        for gateway in &mut gateways {
            assert_eq!(gateway.view().limit, 20, "nobody has spoken yet");
            gateway.lease().await.expect("a share");
        }
        // All waits for its share, whatever the gateway would let in alone.
        let (begin, mut most) = (Instant::now(), 0);
        while begin.elapsed() < Duration::from_millis(2500) {
            for (gateway, load) in gateways.iter_mut().zip([9, 3]) {
                gateway.arrive(3, load);
                gateway.lease().await.expect("a share");
                gateway.collect();
                gateway.end(2, NOTHING);
                gateway.collect();
            }
            let sum = in_flight(&gateways);
            assert!(sum <= 20, "{sum}");
            most = most.max(sum);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(most, 20, "all of it is used");
        let [a, b] = gateways.each_ref().map(|it| it.view().limit);
        assert!(a > b && b > 0 && a + b <= 20, "{a} {b}");
        let shown = gateways[0]
            .worker
            .region
            .pool(gateways[0].pool(), |p, _, _| p.state.cluster);
        let cluster = shown.expect("nobody else holds it").value;
        assert_eq!(
            (cluster.gateways, cluster.limit, cluster.differs),
            (2, 20, 0)
        );

        // Redis hangs: the share until the lease ends, then half of the limit.
        server.hang();
        let pool = gateways[0].worker.force.rules.pools[0].id;
        let region = gateways[0].worker.region;
        let before = Instant::now();
        gateways[0].lease().await.map(drop).expect_err("it hangs");
        assert!(before.elapsed() < PATIENCE + Duration::from_millis(200));
        assert_eq!(gateways[0].view().limit, a);
        tokio::time::sleep(LEASE).await;
        let limit = region.pool(pool, |p, now, _| p.view(now).limit);
        assert_eq!(limit.expect("nobody else holds it").value, 10);
        assert_eq!(gateways[1].view().limit, 10);
        server.wake();
        let health = gateways.each_ref().map(|it| it.client.health());
        while !health.iter().all(|it| it.is_up()) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        for gateway in &mut gateways {
            gateway.lease().await.expect("a share again");
        }
    });
}

#[test]
fn small_limits_go_slot_by_slot_and_to_who_waits() {
    if !installed() {
        return;
    }
    let server = Server::start();
    in_thread(async || {
        let pool = format!("limit = 3\n{QUEUE}");
        let mut gateways = two(&server, &pool).await;
        let (begin, mut most, mut served) = (Instant::now(), 0, [0, 0]);
        for gateway in &mut gateways {
            gateway.worker.region.set_gateways(2);
            gateway.lease().await.expect("a share");
        }
        while begin.elapsed() < Duration::from_millis(4000) {
            for (n, gateway) in gateways.iter_mut().enumerate() {
                gateway.lease().await.expect("a share");
                for _ in 0..2 {
                    // Without slots of its own the first of them waits.
                    if gateway.view().waiting.iter().sum::<u32>() < 5 {
                        gateway.arrive(2, 2);
                    }
                    if gateway.member.strict() {
                        gateway.slots().await.expect("slots");
                    }
                    gateway.collect();
                    served[n] += gateway.held.len().min(1);
                    gateway.end(1, NOTHING);
                    gateway.collect();
                }
            }
            let sum = in_flight(&gateways);
            if begin.elapsed() > LEASE * 2 {
                assert!(gateways.iter().all(|it| it.member.strict()));
                most = most.max(sum);
            }
            assert!(sum <= 3, "{sum}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert!(
            most > 0 && served.iter().all(|it| *it > 10),
            "{most} {served:?}"
        );
        // What it has taken just now is not the limit that anybody asks for.
        let shown = |gateway: &Gateway| {
            let shown = gateway
                .worker
                .region
                .pool(gateway.pool(), |p, now, _| p.limit_shown(now));
            shown.expect("nobody else holds it").value
        };
        for gateway in &mut gateways {
            gateway.end(9, NOTHING);
            gateway.slots().await.expect("slots");
            assert_eq!(shown(gateway), 3);
        }

        // One goes. The other is alone long before the heartbeats say so.
        let begin = Instant::now();
        while gateways[0].member.strict() {
            assert!(begin.elapsed() < Duration::from_secs(10), "slot by slot");
            gateways[0].lease().await.expect("a share");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert!(begin.elapsed() > Duration::from_secs(5), "it may come back");
        assert_eq!(gateways[0].worker.region.gateways(), 2);
        while gateways[0].view().limit < 3 {
            assert!(begin.elapsed() < Duration::from_secs(15), "not all of it");
            gateways[0].lease().await.expect("a share");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
}

/// What it knew of the gateways is gone. Each has its half by then, and the first that calls again
/// is not alone.
#[test]
fn a_store_that_comes_back_empty_gives_nobody_the_part_of_another() {
    if !installed() {
        return;
    }
    let server = Server::start();
    in_thread(async || {
        let pool = format!("limit = 4\n{QUEUE}");
        let mut gateways = two(&server, &pool).await;
        for gateway in &mut gateways {
            gateway.worker.region.set_gateways(2);
        }
        let begin = Instant::now();
        while begin.elapsed() < LEASE * 2 {
            for gateway in &mut gateways {
                gateway.lease().await.expect("a share");
                if gateway.member.strict() {
                    gateway.slots().await.expect("slots");
                }
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert!(gateways.iter().all(|it| it.member.strict()));
        tokio::time::sleep(LEASE + Duration::from_millis(100)).await;
        for gateway in &mut gateways {
            gateway.arrive(2, 10);
            assert_eq!(gateway.view().in_flight, 2);
        }
        let _: () = server.run("FLUSHALL");
        for gateway in &gateways {
            // Their heartbeats are gone too.
            gateway.worker.region.set_gateways(1);
        }
        // The other is back within a second or two; the leases of before have long ended.
        let begin = Instant::now();
        while begin.elapsed() < LEASE * 3 / 2 {
            let first = &mut gateways[0];
            first.lease().await.expect("a share");
            first.collect();
            if first.member.strict() {
                first.slots().await.expect("slots");
            }
            first.collect();
            let sum = in_flight(&gateways);
            assert!(sum <= 4 || begin.elapsed() > LEASE, "{sum}");
            assert!(gateways[0].member.fallback() <= 2);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        gateways[1].lease().await.expect("a share");
        assert!(gateways.iter().all(|it| it.member.strict()));
        assert_eq!(gateways[1].member.fallback(), 2);
    });
}

/// The leader's limiter hears of what ended elsewhere.
#[test]
fn requests_of_all_gateways_reach_the_leader() {
    if !installed() {
        return;
    }
    let server = Server::start();
    in_thread(async || {
        let pool = format!("limit = \"adaptive\"\nstart = 20\n{QUEUE}");
        let mut gateways = two(&server, &pool).await;
        for gateway in &mut gateways {
            gateway.lease().await.expect("a share");
        }
        assert!(gateways[0].member.leads() && !gateways[1].member.leads());
        let usual = |gateway: &Gateway| {
            let usual = gateway
                .worker
                .region
                .pool(gateway.pool(), |p, _, _| p.state.routes.usual_ns(0));
            usual.expect("nobody else holds it").value
        };
        assert_eq!(usual(&gateways[0]), None);
        // What waits for a share at the start is answered first.
        for _ in 0..90 {
            tokio::time::sleep(Duration::from_millis(30)).await;
            let b = &mut gateways[1];
            b.arrive(1, 5);
            tokio::time::sleep(Duration::from_millis(10)).await;
            let took = Feedback::Response(Nanos(10_000_000));
            let how = Completion {
                feedback: took,
                abandoned: false,
            };
            b.collect();
            b.end(5, how);
            for gateway in &mut gateways {
                gateway.lease().await.expect("a share");
            }
        }
        assert_eq!(usual(&gateways[0]), Some(10e6));
    });
}

/// The thread: one worker of a gateway speaks for it, until it quits.
#[test]
fn the_thread_puts_shares_into_the_pool() {
    if !installed() {
        return;
    }
    let server = Server::start();
    in_thread(async || {
        let pool = format!("limit = 40\n{QUEUE}");
        let mut other = Gateway::new(&server, "b", &pool);
        let own = Gateway::new(&server, "", &pool);
        let setup = Arc::clone(&own.worker.setup);
        let current = Arc::new(Current::new(own.worker.force.clone()));
        start(setup, current, Arc::clone(&own.worker.shared)).expect("it starts");
        other.connect().await;
        let mut reaches = async |ours: u32, theirs: u32| {
            let begin = Instant::now();
            while (own.view().limit, other.view().limit) != (ours, theirs) {
                assert!(
                    begin.elapsed() < Duration::from_secs(10),
                    "{:?}",
                    own.view()
                );
                other.lease().await.expect("a share");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        reaches(20, 20).await;
        own.worker.shared.quit();
        // What the other may use, this one has given up: it is left with its part, as if cut off.
        reaches(20, 40).await;
    });
}
