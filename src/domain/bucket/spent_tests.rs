//! The lives of buckets, and the faults that others had, by their numbers.
use super::*;

#[path = "spent_model_tests.rs"]
mod model;

const T0: u64 = 1_700_000_000_000_000;
const S: u64 = 1_000_000;

/// One bucket, as the script would leave it in Redis.
#[derive(Clone, Debug, Default)]
struct Bucket {
    text: Option<String>,
    expire_ms: u64,
    writes: u32,
}

impl Bucket {
    fn holding(text: &str) -> Bucket {
        Bucket {
            text: Some(text.to_owned()),
            ..Bucket::default()
        }
    }

    fn call(&mut self, ask: Ask, now_us: u64) -> Says {
        let stored = self
            .text
            .as_ref()
            .map_or(Stored::Missing, |it| Stored::Text(it.as_bytes()));
        let decision = decide(&[(stored, ask)], now_us);
        assert_eq!(decision.admitted, decision.says[0].admitted);
        if let Some(write) = decision.writes[0] {
            let mut text = String::new();
            write.value.push_to(&mut text);
            assert_eq!(
                Spent::parse(text.as_bytes()),
                Some(write.value),
                "lossless: {text}"
            );
            self.text = Some(text);
            self.expire_ms = write.expire_ms;
            self.writes += 1;
        }
        assert!(decision.says[0].remaining <= ask.capacity);
        decision.says[0]
    }

    /// Calls until refused; how many were admitted.
    fn drain(&mut self, ask: Ask, now_us: u64) -> u32 {
        (0..)
            .take_while(|_| self.call(ask, now_us).admitted)
            .count() as u32
    }
}

/// `tokens` per `seconds`, this capacity, cost 1, taken long ago.
fn limit(tokens: f64, seconds: f64, capacity: u32) -> Ask {
    Ask {
        emission_us: seconds * 1e6 / tokens,
        capacity,
        cost: 1,
        since_us: 0,
        shadow: false,
    }
}

#[test]
fn a_fresh_bucket_is_full_and_counts_down() {
    let (mut bucket, five) = (Bucket::default(), limit(1.0, 3600.0, 5));
    for remaining in (0..5).rev() {
        let says = bucket.call(five, T0);
        assert!(says.admitted && says.remaining == remaining && !says.damaged);
        assert_eq!(
            says.wait_us,
            u64::from(5 - remaining) * 3600 * S,
            "until full"
        );
    }
    let refused = bucket.call(five, T0);
    assert!(!refused.admitted && refused.remaining == 0 && refused.wait_us == 3600 * S);
    assert_eq!(
        bucket.text.as_deref(),
        Some("5 1700000000000000 3600000000")
    );
}

/// A table of lives: (tokens, seconds, capacity), a call each `step` for `total` µs, admitted from..=to.
#[test]
fn lives() {
    let table = [
        (
            "B06: no refill at once when a period ends",
            (3.0, 1.0, 3),
            100_000,
            10 * S,
            32..=33,
        ),
        (
            "B07: no whole seconds",
            (10.0, 1.0, 1),
            20_000,
            3 * S,
            25..=31,
        ),
        (
            "B08: below one a second",
            (0.1, 1.0, 1),
            2 * S,
            25 * S,
            3..=3,
        ),
        (
            "B14: refusals cost nothing",
            (2.0, 4.0, 2),
            S,
            60 * S,
            30..=33,
        ),
        (
            "B11: three thousand a second",
            (3000.0, 1.0, 3000),
            167,
            10 * S,
            32_990..=33_001,
        ),
    ];
    for (what, (tokens, seconds, capacity), step, total, range) in table {
        let mut bucket = Bucket::default();
        let ask = limit(tokens, seconds, capacity);
        let calls = (0..total / step).map(|n| T0 + n * step);
        let admitted = calls.filter(|now| bucket.call(ask, *now).admitted).count();
        assert!(range.contains(&admitted), "{what}: {admitted}");
    }
}

/// B23: exactly the rate, or just below it, is never refused.
#[test]
fn the_rate_itself_passes() {
    for step in [S, 1_020_000] {
        let mut bucket = Bucket::default();
        assert!((0..300).all(|n| bucket.call(limit(1.0, 1.0, 1), T0 + n * step).admitted));
    }
}

/// B04: however long ago, no more than the capacity.
#[test]
fn long_idle_is_full_and_no_more() {
    for ago in [3600 * S, 10 * 366 * 86_400 * S, T0] {
        let mut bucket = Bucket::holding(&format!("10 {} 200000", T0 - ago));
        assert_eq!(bucket.drain(limit(5.0, 1.0, 10), T0), 10);
    }
}

/// B03: a time in the future counts as now, once.
#[test]
fn a_clock_that_was_set_back() {
    for ahead in [1, 172_800 * S, 9_000_000_000_000_000 - T0] {
        let mut bucket = Bucket::holding(&format!("10 {} 200000", T0 + ahead));
        let (ten, mut now) = (limit(5.0, 1.0, 10), T0);
        let refused = bucket.call(ten, now);
        assert_eq!(
            (refused.admitted, refused.wait_us, bucket.writes),
            (false, 200_000, 1)
        );
        now += 200_000;
        assert!(bucket.call(ten, now).admitted);
        assert_eq!(bucket.drain(ten, now + 2 * S), 10);
    }
}

/// B26: one full bucket, and then a bucket like any other.
#[test]
fn damaged_values() {
    let huge = "7".repeat(1_000_000);
    for text in [
        "", "nan", "inf", "-5", "9e99", "x 1 2", "1 2", "-1 2 3", "1 2 3 ", &huge,
    ] {
        let (mut bucket, two) = (Bucket::holding(text), limit(1.0, 60.0, 2));
        let first = bucket.call(two, T0);
        assert!(first.admitted && first.damaged && first.remaining == 1);
        let second = bucket.call(two, T0);
        assert!(second.admitted && !second.damaged);
        assert!(!bucket.call(two, T0).admitted);
    }
    let list = decide(&[(Stored::WrongType, limit(1.0, 60.0, 2))], T0);
    assert!(list.admitted && list.says[0].damaged && list.writes[0].is_some());
}

/// B24, B08: time to full and a minute.
#[test]
fn expiry() {
    let table = [
        (limit(0.1, 1.0, 1), 70_000),
        (limit(10.0, 1.0, 10), 60_100),
        (limit(1e6, 1.0, 9), 60_001),
    ];
    for (ask, expire_ms) in table {
        let mut bucket = Bucket::default();
        bucket.call(ask, T0);
        assert_eq!(bucket.expire_ms, expire_ms);
        bucket.drain(ask, T0);
        let writes = bucket.writes;
        bucket.call(ask, T0);
        assert_eq!(bucket.writes, writes, "a plain refusal writes nothing");
    }
}

/// CONTRACT section 4's examples, and a refusal under another rate is written.
#[test]
fn changes_of_rate_and_capacity() {
    // 100/s drained and lowered to 1/m has nothing.
    let mut bucket = Bucket::default();
    assert_eq!(bucket.drain(limit(100.0, 1.0, 100), T0), 100);
    let writes = bucket.writes;
    let lowered = Ask {
        since_us: T0,
        ..limit(1.0, 60.0, 5)
    };
    let refused = bucket.call(lowered, T0 + 1);
    assert_eq!((refused.admitted, refused.remaining), (false, 0));
    assert_eq!(refused.wait_us, 60 * S - 1);
    assert_eq!(bucket.writes, writes + 1);
    assert_eq!(bucket.expire_ms, 60_000 + 300_000);
    bucket.call(lowered, T0 + 2);
    assert_eq!(bucket.writes, writes + 1, "once");
    assert!(bucket.call(lowered, T0 + 60 * S).admitted);
    // 10/h drained and raised to 20/h with capacity 20 has 10.
    let mut bucket = Bucket::default();
    assert_eq!(bucket.drain(limit(10.0, 3600.0, 10), T0), 10);
    let raised = Ask {
        since_us: T0 + 2,
        ..limit(20.0, 3600.0, 20)
    };
    assert_eq!(bucket.drain(raised, T0 + 2), 10);
    // Refilled at the old rate until the change, at the new one after it.
    let mut bucket = Bucket::default();
    bucket.drain(limit(1.0, 1.0, 100), T0);
    let slower = Ask {
        since_us: T0 + 10 * S,
        ..limit(1.0, 10.0, 100)
    };
    assert_eq!(bucket.drain(slower, T0 + 30 * S), 12);
    // A capacity alone (B82): cut when it was lowered, not when somebody asks.
    let mut bucket = Bucket::default();
    assert_eq!(bucket.drain(limit(1.0, 1.0, 100), T0), 100);
    let smaller = Ask {
        since_us: T0 + S,
        ..limit(1.0, 1.0, 10)
    };
    assert_eq!(bucket.drain(smaller, T0 + 4 * S), 3);
    // A moment in the future is now.
    let mut bucket = Bucket::default();
    bucket.drain(limit(1.0, 1.0, 100), T0);
    let later = Ask {
        since_us: u64::MAX,
        ..limit(1.0, 10.0, 100)
    }
    .bounded();
    assert_eq!(bucket.drain(later, T0 + 10 * S), 10);
}

/// In the second in which one gateway has a change and another has not they
/// do not empty the bucket for one another.
#[test]
fn two_gateways_of_which_one_lags() {
    for (old, new) in [
        (limit(1000.0, 1.0, 1000), limit(1.0, 1.0, 10)),
        (limit(1.0, 1.0, 1000), limit(1.0, 1.0, 10)),
        (limit(1.0, 1.0, 10), limit(1.0, 2.0, 1000)),
    ] {
        let new = Ask {
            since_us: T0,
            ..new
        };
        let mut bucket = Bucket::default();
        bucket.drain(old, T0 - 1);
        let mut admitted = [0, 0];
        for step in 0..10_000 {
            let now = T0 + step * 100;
            admitted[0] += u32::from(bucket.call(old, now).admitted);
            admitted[1] += u32::from(bucket.call(new, now).admitted);
        }
        // A second of the faster rate, and once the difference of the capacities.
        let faster = (1e6 / old.emission_us.min(new.emission_us)) as u32;
        let most = faster + old.capacity.abs_diff(new.capacity) + 2;
        assert!(admitted[0] + admitted[1] <= most, "{admitted:?} of {most}");
        // Once all have it, and the bucket has rested, it is as large as it should be.
        let rested = T0 + 2 * S + (new.emission_us * f64::from(new.capacity)) as u64;
        assert_eq!(bucket.drain(new, rested), new.capacity);
        assert_eq!(bucket.drain(new, rested), 0);
    }
}

#[test]
fn all_or_nothing() {
    let (one, five) = (limit(1.0, 60.0, 1), limit(1.0, 60.0, 5));
    let shadow = Ask {
        shadow: true,
        ..one
    };
    let empty = Stored::Text(b"1 1700000000000000 60000000");
    // (asks, admitted, what each says, what is written)
    let table = [
        (
            vec![(Stored::Missing, five), (empty, one)],
            false,
            [true, false],
            [false, false],
        ),
        (
            vec![(Stored::Missing, shadow), (empty, one)],
            false,
            [true, false],
            [false, false],
        ),
        (
            vec![(Stored::Missing, five), (empty, shadow)],
            true,
            [true, false],
            [true, false],
        ),
        (
            vec![(Stored::Missing, five), (Stored::Missing, shadow)],
            true,
            [true, true],
            [true, true],
        ),
    ];
    for (asks, admitted, says, writes) in table {
        let decision = decide(&asks, T0);
        assert_eq!(decision.admitted, admitted);
        assert_eq!(
            decision
                .says
                .iter()
                .map(|it| it.admitted)
                .collect::<Vec<_>>(),
            says
        );
        assert_eq!(
            decision
                .writes
                .iter()
                .map(Option::is_some)
                .collect::<Vec<_>>(),
            writes
        );
    }
    assert!(decide(&[], T0).admitted);
}

#[test]
fn what_is_asked_is_bounded() {
    let asked = Ask {
        emission_us: 0.0,
        capacity: 0,
        cost: 9,
        since_us: u64::MAX,
        shadow: false,
    };
    let bounded = asked.bounded();
    assert_eq!(
        (bounded.emission_us, bounded.capacity, bounded.cost),
        (1.0, 1, 1)
    );
    let slow = Ask {
        emission_us: f64::INFINITY,
        capacity: u32::MAX,
        ..asked
    }
    .bounded();
    assert_eq!(
        (slow.emission_us, slow.capacity, slow.cost),
        (MAX_EMISSION_US, 1_000_000_000, 9)
    );
}
