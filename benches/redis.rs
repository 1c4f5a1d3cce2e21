//! Decisions through one connection to a real Redis on the same machine.
//!
//! Measured: `redis::Client` end to end, Redis's own work included (with 64
//! callers decisions share calls, alone each is one), and beside it, over a connection of the same kind, the script that most limiters use
//! (two keys, `GET` and `SETEX` of each, whole seconds), and a `PING` as the
//! floor. Not measured: nginx, a network. Redis and this share the machine's
//! cores, so the numbers are ratios. What is asserted is Redis's own processor time,
//! which other work on the machine disturbs least.
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use fixture::Server;
use redis::aio::MultiplexedConnection;
use sluice::domain::config;
use sluice::redis::{BucketAsk, Client};
use std::time::{Duration, Instant};
use tokio::task::{LocalSet, spawn_local};

#[path = "../src/redis/fixture.rs"]
#[allow(dead_code)]
mod fixture;

/// The token bucket of two keys: tokens, and when they were counted.
const TWO_KEYS: &str = r"
    local rate, capacity, requested = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
    local now = redis.call('TIME')[1]
    local ttl = math.floor(capacity / rate * 2)
    local last_tokens = tonumber(redis.call('get', KEYS[1]))
    if last_tokens == nil then last_tokens = capacity end
    local last_refreshed = tonumber(redis.call('get', KEYS[2]))
    if last_refreshed == nil then last_refreshed = 0 end
    local delta = math.max(0, now - last_refreshed)
    local filled_tokens = math.min(capacity, last_tokens + delta * rate)
    local allowed = filled_tokens >= requested
    local new_tokens = filled_tokens
    local allowed_num = 0
    if allowed then
        new_tokens = filled_tokens - requested
        allowed_num = 1
    end
    if ttl > 0 then
        redis.call('setex', KEYS[1], ttl, new_tokens)
        redis.call('setex', KEYS[2], ttl, now)
    end
    return { allowed_num, new_tokens }
";

/// Callers at once.
const CALLERS: [usize; 2] = [1, 64];

#[derive(Clone)]
enum What {
    /// This many rules, none of which refuses.
    Decide(Client, u32),
    /// An empty bucket: nothing is written.
    Refuse(Client),
    TwoKeys(MultiplexedConnection, redis::Script),
    Ping(MultiplexedConnection),
}

fn ask(rule: u32, key: usize, capacity: u32) -> BucketAsk {
    BucketAsk {
        key: format!("sluice:b:rule{rule}:ip=203.0.113.{}", key % 200),
        emission_us: if capacity == 1 { 1e12 } else { 10.0 },
        capacity,
        cost: 1,
        since_us: 0,
        shadow: false,
    }
}

impl What {
    async fn once(&mut self, n: usize) {
        match self {
            What::Decide(client, rules) => {
                let asks: Vec<_> = (0..*rules).map(|rule| ask(rule, n, 1_000_000)).collect();
                let reply = client.decide(&asks, patience()).await.expect("a reply");
                assert!(reply.admitted);
            }
            What::Refuse(client) => {
                client
                    .decide(&[ask(99, n, 1)], patience())
                    .await
                    .expect("a reply");
            }
            What::TwoKeys(conn, script) => {
                let key = format!("limiter.{{203.0.113.{}}}", n % 200);
                let mut call = script.key(format!("{key}.tokens"));
                call.key(format!("{key}.timestamp"));
                call.arg(100_000).arg(1_000_000).arg(1);
                let reply: Vec<i64> = call.invoke_async(conn).await.expect("a reply");
                assert_eq!(reply.len(), 2);
            }
            What::Ping(conn) => {
                redis::cmd("PING").exec_async(conn).await.expect("a reply");
            }
        }
    }
}

fn patience() -> Instant {
    Instant::now() + Duration::from_secs(10)
}

/// Time for `total` calls of so many callers.
async fn run(what: &What, callers: usize, total: u64) -> Duration {
    let start = Instant::now();
    let each = (total as usize).div_ceil(callers);
    let callers: Vec<_> = (0..callers)
        .map(|caller| {
            let mut what = what.clone();
            spawn_local(async move {
                for n in 0..each {
                    what.once(caller * 31 + n).await;
                }
            })
        })
        .collect();
    for caller in callers {
        caller.await.expect("it ran");
    }
    start.elapsed()
}

fn decisions(criterion: &mut Criterion) {
    if !fixture::installed() {
        return;
    }
    let server = Server::start();
    let toml = format!("[store]\nbackend = \"redis\"\nurl = \"{}\"\n", server.url());
    let store = config::from_toml(&toml).expect("a configuration").store;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("one");
    let local = LocalSet::new();
    let (client, conn) = local.block_on(&runtime, async {
        let conn = redis::Client::open(server.url()).expect("a client");
        let conn = conn
            .get_multiplexed_async_connection()
            .await
            .expect("a connection");
        (Client::new(&store).expect("a client"), conn)
    });
    let all = [
        ("decide-1-rule", What::Decide(client.clone(), 1)),
        ("decide-3-rules", What::Decide(client.clone(), 3)),
        ("refuse", What::Refuse(client)),
        (
            "two-keys",
            What::TwoKeys(conn.clone(), redis::Script::new(TWO_KEYS)),
        ),
        ("ping", What::Ping(conn)),
    ];
    let mut group = criterion.benchmark_group("redis");
    group.throughput(Throughput::Elements(1));
    for callers in CALLERS {
        for (name, what) in &all {
            group.bench_function(BenchmarkId::new(*name, callers), |bencher| {
                bencher.iter_custom(|total| local.block_on(&runtime, run(what, callers, total)));
            });
        }
    }
    group.finish();
    // In turns, so that both see the same machine; the best of each.
    let cost = |what: &What, callers| {
        let before = cpu_s(&server);
        local.block_on(&runtime, run(what, callers, CALLS));
        (cpu_s(&server) - before) / CALLS as f64 * 1e6
    };
    let mut best = [[f64::INFINITY; 2]; 2];
    for _ in 0..9 {
        for (callers, [ours, theirs]) in CALLERS.into_iter().zip(&mut best) {
            *ours = ours.min(cost(&all[0].1, callers));
            *theirs = theirs.min(cost(&all[3].1, callers));
        }
    }
    for (callers, [ours, theirs]) in CALLERS.into_iter().zip(best) {
        println!(
            "redis: {callers} at once: {ours:.1} µs of Redis a decision, {theirs:.1} with the \
             script of two keys"
        );
    }
    // It counts in µs and doubles, and costs no more than what counts in seconds; half of that
    // where decisions share calls. Judged where there is time to measure; in a landing's short
    // turn it is only shown.
    if std::env::var_os("SHORT_TURN").is_none() {
        let [alone, many] = best.map(|[ours, theirs]| ours / theirs);
        assert!(alone < 1.25, "dearer than the script of two keys");
        assert!(many < 0.8, "decisions that share calls are not cheaper");
    }
}

const CALLS: u64 = 20_000;

/// Processor time that Redis has used.
fn cpu_s(server: &Server) -> f64 {
    let info: String = server.run("INFO cpu");
    let field = |name: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|it| it.trim().parse::<f64>().ok())
            .expect(name)
    };
    field("used_cpu_user:") + field("used_cpu_sys:")
}

criterion_group!(benches, decisions);
criterion_main!(benches);
