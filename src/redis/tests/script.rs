//! `bucket.lua` and `domain::bucket::spent` must agree to the last bit: in
//! LuaJIT with a clock of the test's, and in a real Redis with its own.
use crate::domain::bucket::spent::{self, Ask, Spent, Stored, decide};
use crate::redis::fixture::{Server, installed};
use crate::redis::scripts::{self, BUCKET, BucketAsk};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use redis::Value;
use std::collections::BTreeMap;

const NOW: u64 = 1_700_000_000_000_000;

/// What a key holds in the model.
#[derive(Clone, Debug, PartialEq)]
enum Held {
    Text(Vec<u8>),
    List,
}

fn stored(held: Option<&Held>) -> Stored<'_> {
    match held {
        None => Stored::Missing,
        Some(Held::Text(text)) => Stored::Text(text),
        Some(Held::List) => Stored::WrongType,
    }
}

/// Limits as the configuration makes them: rates from 1/366d to 1,000,000/s,
/// filled within 366 days.
fn limit() -> impl Strategy<Value = (f64, u32)> {
    let rates = prop_oneof![
        (1u32..=1_000_000).prop_map(|per_s| 1e6 / f64::from(per_s)),
        (
            1u32..100,
            prop_oneof![Just(60.0), Just(3600.0), Just(86_400.0), Just(7.5)]
        )
            .prop_map(|(tokens, period)| period * 1e6 / f64::from(tokens)),
        Just(366.0 * 86_400e6),
    ];
    (rates, prop_oneof![1u32..20, 1u32..=1_000_000_000]).prop_map(|(emission, capacity)| {
        let most = (366.0 * 86_400e6 / emission) as u32;
        (emission, capacity.min(most.max(1)))
    })
}

fn ask(limits: Vec<(f64, u32)>) -> impl Strategy<Value = Ask> {
    let share = prop_oneof![Just(0.0), Just(1.0), 0.0..1.0f64];
    let since = prop_oneof![
        Just(0u64),
        Just(u64::MAX),
        NOW - 10_000_000..NOW + 10_000_000
    ];
    (
        prop::sample::select(limits),
        share,
        since,
        prop::bool::weighted(0.2),
    )
        .prop_map(|((emission_us, capacity), share, since_us, shadow)| {
            let cost = (share * f64::from(capacity)) as u32;
            Ask {
                emission_us,
                capacity,
                cost,
                since_us,
                shadow,
            }
            .bounded()
        })
}

fn held() -> impl Strategy<Value = Option<Held>> {
    let time = prop_oneof![
        NOW - 20_000_000..NOW + 20_000_000,
        Just(0u64),
        Just(NOW + 172_800_000_000),
        Just(9_007_199_254_740_991u64),
    ];
    let spent = prop_oneof![0.0..10.0f64, 0.0..1e9f64, Just(1.0), Just(1e9)];
    let good = (spent, time, limit()).prop_map(|(spent, time_us, (emission_us, _))| {
        let mut text = String::new();
        let spent = if spent < 1.0 / 8192.0 { 0.0 } else { spent };
        Spent {
            spent,
            time_us,
            emission_us,
        }
        .push_to(&mut text);
        Some(Held::Text(text.into_bytes()))
    });
    let bad = prop::sample::select(vec![
        "",
        " ",
        "nan 1 1",
        "inf",
        "-5",
        "9e99",
        "1 2",
        "1 2 3 4",
        "1  2 3",
        "1 2 0",
        "1 2 0.5",
        "1 -2 3",
        "1 2.5 3",
        "1.2.3 2 3",
        "1 9007199254740992 60",
        "1000000001 2 3",
        ". 2 3",
        "5. 2 3.",
        "1 2 31622400000001",
        "0x10 2 3",
        "1e3 2 3",
        "0.00000001 2 30",
        "1 2 3\n",
        "1 2 3\0",
        "007 08 09.",
    ])
    .prop_map(|text| Some(Held::Text(text.as_bytes().to_vec())));
    prop_oneof![
        2 => Just(None),
        6 => good,
        3 => bad,
        1 => Just(Some(Held::List)),
        1 => Just(Some(Held::Text(vec![b'7'; 1_000_000]))),
    ]
}

#[derive(Clone, Debug)]
struct Trace {
    start: BTreeMap<usize, Option<Held>>,
    /// Time since the last call, and the decisions of this one: asks on distinct keys each.
    calls: Vec<(u64, Vec<BTreeMap<usize, Ask>>)>,
}

const KEYS: usize = 4;

fn trace() -> impl Strategy<Value = Trace> {
    // Few limits a trace, so that calls meet what earlier ones wrote.
    prop::collection::vec(limit(), 1..3).prop_flat_map(|limits| {
        let pause = prop_oneof![0u64..10, 0u64..2_000_000, 0u64..10_000_000_000];
        let asks = prop::collection::btree_map(0..KEYS, ask(limits), 1..=3);
        let start = prop::collection::btree_map(0..KEYS, held(), 0..=KEYS);
        let group = prop::collection::vec(asks, 1..=5);
        let calls = prop::collection::vec((pause, group), 1..25);
        (start, calls).prop_map(|(start, calls)| Trace { start, calls })
    })
}

fn key(index: usize) -> String {
    format!("sluice:b:rule{index}:ip=203.0.113.9")
}

fn bucket(index: usize, ask: &Ask) -> BucketAsk {
    let Ask {
        emission_us,
        capacity,
        cost,
        since_us,
        shadow,
    } = *ask;
    BucketAsk {
        key: key(index),
        emission_us,
        capacity,
        cost,
        since_us,
        shadow,
    }
}

/// The call that decides over each of `group`.
fn arguments(group: &[BTreeMap<usize, Ask>]) -> scripts::Arguments {
    let buckets = |asks: &BTreeMap<usize, Ask>| -> Vec<_> {
        asks.iter()
            .map(|(index, ask)| bucket(*index, ask))
            .collect()
    };
    let decisions: Vec<_> = group.iter().map(buckets).collect();
    let decisions: Vec<_> = decisions.iter().map(|it| &**it).collect();
    let scripts::Arguments { keys, values } = scripts::group_arguments(&decisions);
    let keys = keys.into_iter().map(str::to_owned).collect();
    scripts::Arguments { keys, values }
}

fn replies(value: &Value, group: &[BTreeMap<usize, Ask>]) -> Vec<scripts::Reply> {
    scripts::group_reply(value, group.iter().map(BTreeMap::len)).expect("a reply")
}

/// Applies the decisions of a call to the model, one after the other; returns what the script must
/// answer and the expiries that it must set.
fn expected(
    model: &mut BTreeMap<usize, Held>,
    group: &[BTreeMap<usize, Ask>],
    now_us: u64,
) -> (Vec<scripts::Reply>, BTreeMap<usize, u64>) {
    let mut expiries = BTreeMap::new();
    let mut replies = Vec::new();
    for asks in group {
        let (reply, more) = expected_of_one(model, asks, now_us);
        replies.push(reply);
        expiries.extend(more);
    }
    (replies, expiries)
}

fn expected_of_one(
    model: &mut BTreeMap<usize, Held>,
    asks: &BTreeMap<usize, Ask>,
    now_us: u64,
) -> (scripts::Reply, BTreeMap<usize, u64>) {
    let buckets: Vec<_> = asks
        .iter()
        .map(|(index, ask)| (stored(model.get(index)), *ask))
        .collect();
    let decision = decide(&buckets, now_us);
    let mut expiries = BTreeMap::new();
    for (index, write) in asks.keys().zip(&decision.writes) {
        if let Some(write) = write {
            let mut text = String::new();
            write.value.push_to(&mut text);
            assert_eq!(
                Spent::parse(text.as_bytes()),
                Some(write.value),
                "lossless: {text}"
            );
            model.insert(*index, Held::Text(text.into_bytes()));
            expiries.insert(*index, write.expire_ms);
        }
    }
    let reply = scripts::Reply {
        admitted: decision.admitted,
        buckets: decision.says.into(),
        now_us,
    };
    (reply, expiries)
}

#[cfg(feature = "embed")]
mod luajit {
    use super::*;
    use mlua::{Lua, Table};

    /// As an operator's tool would want every number: no exponent, no sign.
    fn well_formed(text: &[u8]) -> bool {
        let number = regex::bytes::Regex::new(r"^[0-9]+(\.[0-9]+)?$").expect("a pattern");
        text.split(|&b| b == b' ')
            .filter(|word| number.is_match(word))
            .count()
            == 3
    }

    /// A Redis of two commands, whose clock stands still.
    const FAKE: &str = r"
        data, wrong, expiry, now = {}, {}, {}, 0
        local function call(command, key, value, px, ms)
            if command == 'TIME' then
                return { string.format('%d', math.floor(now / 1000000)), string.format('%d', now % 1000000) }
            elseif command == 'GET' then
                if wrong[key] then
                    return { err = 'WRONGTYPE Operation against a key holding the wrong kind of value' }
                end
                return data[key] or false
            elseif command == 'SET' and px == 'PX' and string.match(ms, '^%d+$') then
                data[key], wrong[key], expiry[key] = value, nil, ms
                return { ok = 'OK' }
            end
            error('unexpected command')
        end
        redis = { call = call, pcall = call }
    ";

    struct Fake {
        lua: Lua,
        script: mlua::Function,
    }

    impl Fake {
        fn new() -> Fake {
            let lua = Lua::new();
            lua.load(FAKE).exec().expect("the fake loads");
            let script = lua
                .load(include_str!("../bucket.lua"))
                .into_function()
                .expect("it compiles");
            Fake { lua, script }
        }

        fn table(&self, name: &str) -> Table {
            self.lua.globals().get(name).expect("a table")
        }

        fn hold(&self, index: usize, held: Option<&Held>) {
            let text = match held {
                Some(Held::Text(text)) => Some(self.lua.create_string(text).expect("a string")),
                _ => None,
            };
            self.table("data").set(key(index), text).expect("set");
            let list = matches!(held, Some(Held::List)).then_some(true);
            self.table("wrong").set(key(index), list).expect("set");
        }

        fn call(&self, group: &[BTreeMap<usize, Ask>], now_us: u64) -> Vec<scripts::Reply> {
            let arguments = arguments(group);
            let globals = self.lua.globals();
            globals.set("now", now_us as f64).expect("set");
            globals.set("KEYS", arguments.keys).expect("set");
            let values = arguments.values.iter();
            let values = values.map(|it| self.lua.create_string(it).expect("a string"));
            globals
                .set("ARGV", values.collect::<Vec<_>>())
                .expect("set");
            let reply: Vec<f64> = self.script.call(()).expect("it runs");
            let reply = reply.into_iter().map(|number| {
                assert_eq!(number, number.trunc(), "Redis would cut it");
                Value::Int(number as i64)
            });
            replies(&Value::Array(reply.collect()), group)
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]
        #[test]
        fn script_and_arithmetic_agree_in_luajit(trace in trace()) {
            let fake = Fake::new();
            let mut model = BTreeMap::new();
            for (index, held) in &trace.start {
                fake.hold(*index, held.as_ref());
                if let Some(held) = held {
                    model.insert(*index, held.clone());
                }
            }
            let mut now_us = NOW;
            for (pause, group) in &trace.calls {
                now_us += pause;
                let (replies, expiries) = expected(&mut model, group, now_us);
                prop_assert_eq!(fake.call(group, now_us), replies);
                for (index, expire_ms) in expiries {
                    let value: mlua::LuaString = fake.table("data").get(key(index)).expect("set");
                    let Some(Held::Text(text)) = model.get(&index) else { unreachable!() };
                    prop_assert_eq!(&*value.as_bytes(), text.as_slice());
                    prop_assert!(well_formed(text));
                    let expiry: String = fake.table("expiry").get(key(index)).expect("set");
                    prop_assert_eq!(expiry, expire_ms.to_string());
                }
            }
        }
    }

    #[test]
    fn plain_refusal_writes_nothing() {
        let fake = Fake::new();
        let ask = Ask {
            emission_us: 1e6,
            capacity: 1,
            cost: 1,
            since_us: 0,
            shadow: false,
        };
        let asks = [BTreeMap::from([(0, ask)])];
        assert!(fake.call(&asks, NOW)[0].admitted);
        fake.table("expiry").set(key(0), "untouched").expect("set");
        assert!(!fake.call(&asks, NOW + 500_000)[0].admitted);
        // Nor does a call of several.
        let refused = |replies: &[scripts::Reply]| replies.iter().all(|it| !it.admitted);
        let both = [asks[0].clone(), asks[0].clone()];
        assert!(refused(&fake.call(&both, NOW + 600_000)));
        assert_eq!(
            fake.table("expiry").get::<String>(key(0)).expect("set"),
            "untouched"
        );
    }
}

/// The clock is Redis's own here: what it says is fed to the model.
#[test]
fn script_and_arithmetic_agree_in_redis() {
    if !installed() {
        return;
    }
    let server = Server::start();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("one");
    let client = redis::Client::open(server.url()).expect("a client");
    let mut conn = runtime
        .block_on(client.get_multiplexed_async_connection())
        .expect("one");
    let mut plain = server.connection();
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    for _ in 0..150 {
        let trace = trace().new_tree(&mut runner).expect("a trace").current();
        redis::cmd("FLUSHALL").exec(&mut plain).expect("flushed");
        let shift = |time_us: u64, now_us: u64| (time_us + now_us).saturating_sub(NOW);
        let (s, us): (u64, u64) = redis::cmd("TIME").query(&mut plain).expect("a time");
        let now_us = s * 1_000_000 + us;
        let mut model = BTreeMap::new();
        for (index, held) in trace.start {
            match &held {
                None => continue,
                Some(Held::List) => redis::cmd("RPUSH")
                    .arg(key(index))
                    .arg("x")
                    .exec(&mut plain),
                Some(Held::Text(text)) => {
                    redis::cmd("SET").arg(key(index)).arg(text).exec(&mut plain)
                }
            }
            .expect("set");
            model.extend(held.map(|held| (index, held)));
        }
        for (_, mut group) in trace.calls {
            for ask in group.iter_mut().flat_map(BTreeMap::values_mut) {
                ask.since_us = shift(ask.since_us.min(2 * NOW), now_us);
            }
            let value = runtime
                .block_on(BUCKET.run(&mut conn, &BUCKET.call(&arguments(&group))))
                .expect("a value");
            let replies = replies(&value, &group);
            let (must, expiries) = expected(&mut model, &group, replies[0].now_us);
            assert_eq!(replies, must);
            for (index, expire_ms) in expiries {
                let text: Vec<u8> = redis::cmd("GET")
                    .arg(key(index))
                    .query(&mut plain)
                    .expect("it");
                assert_eq!(Some(&Held::Text(text)), model.get(&index));
                let left: u64 = redis::cmd("PTTL")
                    .arg(key(index))
                    .query(&mut plain)
                    .expect("it");
                assert!(
                    left <= expire_ms && left + 10_000 > expire_ms,
                    "{left} of {expire_ms}"
                );
            }
        }
    }
}

#[test]
fn foreign_reply_is_no_reply() {
    let ints = |numbers: &[i64]| Value::Array(numbers.iter().map(|&it| Value::Int(it)).collect());
    let good = ints(&[NOW as i64, 8 * 4 + 4 + 1, 12_000_000]);
    assert!(scripts::bucket_reply(&good, 1).is_some());
    assert!(scripts::bucket_reply(&good, 2).is_none());
    for bad in [
        Value::Nil,
        ints(&[]),
        ints(&[1]),
        ints(&[1, 5]),
        ints(&[1, 5, 1, 1]),
        ints(&[1, -4, 1]),
        ints(&[1, 1 << 40, 1]),
    ] {
        assert_eq!(scripts::bucket_reply(&bad, 1), None, "{bad:?}");
    }
}

#[test]
fn numbers_are_printed_as_c_prints_them() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let strategy = prop_oneof![
        1e-4..1.0f64,
        0.0..1e9f64,
        1.0..3.2e13f64,
        (1u64..1 << 53).prop_map(|n| n as f64)
    ];
    for _ in 0..5000 {
        let number = strategy
            .new_tree(&mut runner)
            .expect("one")
            .current()
            .max(1e-4);
        let mut ours = String::new();
        spent::push_plain(number, &mut ours);
        let mut theirs = [0u8; 64];
        // SAFETY: the buffer is 64 bytes, the format takes one double.
        let length = unsafe {
            libc::snprintf(
                theirs.as_mut_ptr().cast(),
                theirs.len(),
                c"%.17g".as_ptr(),
                number,
            )
        };
        assert_eq!(ours.as_bytes(), &theirs[..length as usize]);
    }
}
