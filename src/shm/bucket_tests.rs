//! The table on the heap, with a clock of our own. Miri runs most of it, with
//! fewer rounds.
use super::super::region::Region;
use super::super::table::Table;
use super::*;
use crate::domain::bucket::word::Limit;
use proptest::prelude::*;
use std::collections::HashMap;
use std::sync::Barrier;

const S: u64 = 1_000_000_000;
const T0: Nanos = Nanos(1_000 * S);
const ROUNDS: u64 = if cfg!(miri) { 10 } else { 2_000 };

fn region() -> Region {
    Region::on_heap(1 << 20)
}

fn rule(region: &Region, name: &str, emission_ns: u64, capacity: u32) -> RuleId {
    region
        .take_rule_at(name, Limit::new(emission_ns, capacity), 0, None, T0)
        .unwrap()
}

fn key(region: &Region, rule: RuleId, n: u64) -> KeyHash {
    region.hash(rule, &n.to_le_bytes())
}

fn at(seconds: u64) -> Nanos {
    Nanos(T0.0 + seconds * S)
}

#[test]
fn spends_and_gives_back() {
    let region = region();
    let login = rule(&region, "login", 12 * S, 5);
    let k = key(&region, login, 1);
    // B15: looking spends nothing and makes nothing.
    for _ in 0..100 {
        assert_eq!(region.peek(login, k, 5, T0).remaining, 0);
    }
    assert_eq!(region.bucket_slots().1, 0);
    for left in (0..5).rev() {
        let said = region.spend(login, k, 1, T0);
        assert_eq!((said.admitted, said.remaining), (true, left));
    }
    let said = region.spend(login, k, 1, T0);
    assert_eq!((said.admitted, said.wait_ns), (false, 12 * S));
    assert!(!region.peek(login, k, 1, at(11)).admitted);
    assert!(region.peek(login, k, 1, at(12)).admitted);
    region.undo(login, k, 3, T0);
    assert_eq!(region.peek(login, k, 1, T0).remaining, 2);
    // Another key of the rule, and the key under another rule, are others.
    assert_eq!(
        region.spend(login, key(&region, login, 2), 1, T0).remaining,
        4
    );
    let other = rule(&region, "other", 12 * S, 5);
    assert_eq!(
        region.spend(other, key(&region, other, 1), 1, T0).remaining,
        4
    );
    assert_eq!(region.bucket_slots().1, 3);
    // Nothing to give back: no bucket is made for it.
    region.undo(other, key(&region, other, 99), 3, T0);
    assert_eq!(region.bucket_slots().1, 3);
    assert_eq!(region.totals().evictions, 0);
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 2 } else { 64 },
        failure_persistence: None,
        ..Default::default()
    })]

    /// Many keys of two rules: each is its own bucket as long as there is room.
    #[test]
    fn each_key_is_a_bucket(steps in proptest::collection::vec((0..2usize, 0..40u64, 1..4u32, 0..2*S), 1..(ROUNDS as usize / 10).max(8))) {
        let region = region();
        let rules = [rule(&region, "a", S, 5), rule(&region, "b", S / 3, 3)];
        let mut tokens: HashMap<(usize, u64), (u64, u64)> = HashMap::new();
        let mut now = T0.0;
        for (r, k, cost, gap) in steps {
            now += gap / 8;
            let (e, c) = [(S, 5), (S / 3, 3)][r];
            let (debt, then) = tokens.get(&(r, k)).copied().unwrap_or((0, now));
            let debt = debt.saturating_sub(now - then);
            let admitted = debt + u64::from(cost) * e <= c * e;
            let said = region.spend(rules[r], key(&region, rules[r], k), cost, Nanos(now));
            prop_assert_eq!(said.admitted, admitted);
            tokens.insert((r, k), (debt + if admitted { u64::from(cost) * e } else { 0 }, now));
        }
        prop_assert_eq!(region.totals().evictions, 0);
    }
}

/// B12: threads at one bucket, and all of them at many.
#[test]
fn exactly_the_capacity_is_admitted() {
    let region = region();
    let one = rule(&region, "one", 86_400 * S, 1_000);
    let many = rule(&region, "many", 86_400 * S, 3);
    let threads = 4;
    let start = Barrier::new(threads);
    let hammer = || {
        start.wait();
        let (mut of_one, mut of_many) = (0, 0);
        for i in 0..ROUNDS {
            of_one += u64::from(region.spend(one, key(&region, one, 7), 1, T0).admitted);
            of_many += u64::from(region.spend(many, key(&region, many, i), 1, T0).admitted);
        }
        (of_one, of_many)
    };
    let sums = std::thread::scope(|s| {
        let all: Vec<_> = (0..threads).map(|_| s.spawn(hammer)).collect();
        all.into_iter()
            .map(|t| t.join().unwrap())
            .fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1))
    });
    assert_eq!(sums, (1_000.min(ROUNDS * 4), 3 * ROUNDS));
}

/// What one flood does to a set that it fills: `n` keys of one rule that share
/// the first set of the table, and begin there at any slot.
fn keys_of_one_set(region: &Region, rule: RuleId, n: usize) -> Vec<KeyHash> {
    let in_first = |k: KeyHash| KeyHash {
        place: k.place % WAYS as u64,
        ..k
    };
    let keys = (0..).map(|i| in_first(key(region, rule, i)));
    keys.take(n).collect()
}

#[test]
fn a_flood_pushes_out_its_own() {
    const TIMES: usize = if cfg!(miri) { 2 } else { 5 };
    let region = region();
    let (flood, steady) = (
        rule(&region, "flood", 86_400 * S, 5),
        rule(&region, "steady", 12 * S, 5),
    );
    let [quiet] = keys_of_one_set(&region, steady, 1)[..] else {
        panic!()
    };
    for _ in 0..5 {
        assert!(region.spend(steady, quiet, 1, T0).admitted);
    }
    let keys = keys_of_one_set(&region, flood, TIMES * WAYS);
    // The first is drained, and so is the farthest from full of the flood's own.
    assert!(region.spend(flood, keys[0], 5, T0).admitted);
    for (i, k) in keys[1..].iter().enumerate() {
        assert!(region.spend(flood, *k, 1, at(i as u64 / 100)).admitted);
    }
    assert!(!region.spend(steady, quiet, 1, at(1)).admitted);
    assert!(!region.spend(flood, keys[0], 1, at(1)).admitted);
    let pushed_out = 1 + keys.len() - WAYS;
    assert_eq!(region.totals().evictions, pushed_out as u64);
    assert_eq!(region.bucket_slots().1, WAYS as u64);
}

#[test]
fn full_buckets_go_first_and_lose_nothing() {
    let region = region();
    let (slow, fast) = (
        rule(&region, "slow", 86_400 * S, 5),
        rule(&region, "fast", S, 5),
    );
    let slow_keys = keys_of_one_set(&region, slow, WAYS);
    let fast_keys = keys_of_one_set(&region, fast, 2);
    slow_keys[2..]
        .iter()
        .for_each(|k| assert!(region.spend(slow, *k, 1, T0).admitted));
    fast_keys
        .iter()
        .for_each(|k| assert!(region.spend(fast, *k, 1, T0).admitted));
    // Two seconds on, the fast ones are full: they make room, uncounted.
    slow_keys[..2]
        .iter()
        .for_each(|k| assert!(region.spend(slow, *k, 1, at(2)).admitted));
    assert_eq!(region.totals().evictions, 0);
    assert!(
        slow_keys
            .iter()
            .all(|k| region.peek(slow, *k, 1, at(2)).remaining == 3)
    );
    // A word of an older epoch never counts as full, though its time is past.
    region
        .take_rule_at("fast", Limit::new(86_400 * S, 5), 0, None, at(2))
        .unwrap();
    assert_eq!(region.peek(fast, fast_keys[0], 1, at(2)).remaining, 4);
}

/// Two workers that found no bucket may choose different slots.
#[test]
fn of_two_slots_the_lower_holds() {
    let region = region();
    let login = rule(&region, "login", 12 * S, 5);
    let k = key(&region, login, 1);
    let buckets = region.buckets();
    let set = buckets.table.set(k);
    let force = buckets.rules.get(login).in_force().1;
    let charged = |cost| word::decide(word::full(force, T0), force, cost, T0).0;
    let put = |slots: [(usize, u32); 2]| {
        for (rank, cost) in slots {
            let slot = match cost {
                0 => EMPTY,
                cost => Slot::new(k.tag, charged(cost)),
            };
            assert!(set.swap(rank, set.load(rank), slot));
        }
    };
    let ask = |cost| Ask {
        rule: login,
        key: k,
        cost,
        now: T0,
    };
    let outcome = |cost| word::decide(word::full(force, T0), force, cost, T0).1;
    let spent = || 4 - region.peek(login, k, 1, T0).remaining;

    // Ours is the higher: undone, and the charge is made on the lower.
    put([(2, 3), (5, 1)]);
    assert!(matches!(
        buckets.settle(set, 5, ask(1), force, outcome(1)),
        Settled::Again
    ));
    assert_eq!((spent(), set.load(5)), (3, EMPTY));
    // Ours is the higher, and another has spent there since: kept.
    put([(2, 1), (5, 3)]);
    assert!(matches!(
        buckets.settle(set, 5, ask(1), force, outcome(1)),
        Settled::Again
    ));
    assert_eq!((spent(), set.load(5)), (3, EMPTY));
    // Ours is the lower: what was spent on the higher is added.
    put([(2, 1), (5, 3)]);
    let Settled::Stands(said) = buckets.settle(set, 2, ask(1), force, outcome(1)) else {
        panic!()
    };
    assert!(said.admitted);
    assert_eq!((said.remaining, spent(), set.load(5)), (1, 4, EMPTY));
    // Together it would be too much: our charge is what goes.
    put([(2, 2), (5, 4)]);
    let Settled::Stands(said) = buckets.settle(set, 2, ask(2), force, outcome(2)) else {
        panic!()
    };
    assert_eq!((said.admitted, said.wait_ns), (false, 12 * S));
    assert_eq!((spent(), set.load(5)), (4, EMPTY));
    // Ours was pushed out meanwhile: nothing to settle.
    put([(2, 0), (7, 0)]);
    assert!(matches!(
        buckets.settle(set, 2, ask(1), force, outcome(1)),
        Settled::Stands(_)
    ));
}

/// A bucket that nobody touches while its limit changes many times.
#[test]
fn buckets_follow_their_limit() {
    let region = region();
    let (hour, name) = (3_600 * S, "login");
    let login = rule(&region, name, hour, 100);
    let k = key(&region, login, 1);
    assert!(region.spend(login, k, 50, T0).admitted);
    for i in 0..40u32 {
        let capacity = 100 + i % 2;
        let id = region.take_rule_at(
            name,
            Limit::new(hour, capacity),
            0,
            None,
            at(1 + u64::from(i)),
        );
        assert_eq!(id.unwrap(), login);
        assert_eq!(region.limit(login).capacity, capacity);
        // 50 and a little less are spent, whatever the epoch's number.
        let said = region.peek(login, k, 1, at(1 + u64::from(i)));
        assert_eq!(
            (said.remaining, said.capacity),
            (capacity - 51, capacity),
            "change {i}"
        );
    }
    // Lowered, it counts at once; raised again, the lower one was in force.
    region
        .take_rule_at(name, Limit::new(hour, 10), 0, None, at(60))
        .unwrap();
    assert!(!region.peek(login, k, 1, at(60)).admitted);
    region
        .take_rule_at(name, Limit::new(hour, 30), 0, None, at(60))
        .unwrap();
    assert_eq!(region.spend(login, k, 1, at(60)).remaining, 19);
}

#[test]
fn only_the_newest_setup_changes_a_limit() {
    let region = region();
    let limit = |c| Limit::new(S, c);
    let take = |c, setup, config, now| {
        region
            .take_rule_at("r", limit(c), setup, Some(config), now)
            .unwrap()
    };
    let id = take(5, 1, 1, T0);
    region.attach_worker(2).unwrap();
    take(6, 1, 9, T0);
    assert_eq!(region.limit(id), limit(5), "a setup of before");
    take(6, 2, 9, T0);
    assert_eq!(region.limit(id), limit(6));
    take(7, 2, 8, at(1));
    assert_eq!(region.limit(id), limit(6), "a configuration of before");
    // Numbers that have started anew are no reason to hold on to a limit.
    take(7, 2, 8, at(60));
    assert_eq!(region.limit(id), limit(7));
    take(8, 3, 1, at(60));
    assert_eq!(region.limit(id), limit(8));
    // A rule that nobody has yet has the limit of whoever takes it.
    let late = region.take_rule_at("new", limit(3), 1, None, T0).unwrap();
    assert_eq!(region.limit(late), limit(3));
}

/// Deciding while the limit changes: never above the larger one's capacity.
#[test]
fn changes_and_decisions_at_once() {
    let region = region();
    let id = rule(&region, "r", 86_400 * S, 200);
    let k = key(&region, id, 1);
    let admitted: u64 = std::thread::scope(|s| {
        let change = |odd: u64| {
            let region = &region;
            s.spawn(move || {
                for i in 0..ROUNDS / 4 {
                    // Only the rate changes: a capacity that falls and rises again gives tokens.
                    let limit = Limit::new(86_400 * S + (i + odd) % 3 * S, 200);
                    assert_eq!(region.take_rule_at("r", limit, 0, None, T0).unwrap(), id);
                }
            });
        };
        change(0);
        change(1);
        let spend = || {
            (0..ROUNDS)
                .filter(|_| region.spend(id, k, 1, T0).admitted)
                .count() as u64
        };
        let both = [s.spawn(spend), s.spawn(spend)];
        both.into_iter().map(|t| t.join().unwrap()).sum()
    });
    // Each change rounds to a nanosecond, which can make the last token a hair too small.
    let all = 200.min(2 * ROUNDS);
    assert!((all - 1..=all).contains(&admitted), "{admitted}");
}

/// A name that is long out of use makes room for a new one, with its buckets
/// and without its counts.
#[test]
fn names_are_forgotten_when_nobody_uses_them() {
    let region = region();
    region.attach_worker(1).unwrap();
    region.my_config_generation(1);
    let names = region.layout.rules / 2 - 1;
    assert!(names == 255 || cfg!(miri));
    let limit = Limit::new(86_400 * S, 5);
    let take = |name: &str, limit, config| region.take_rule_as_of(name, limit, 1, config);
    let ids: Vec<_> = (0..names)
        .map(|i| take(&format!("r{i}"), limit, 1).unwrap())
        .collect();
    let k = key(&region, ids[0], 1);
    region.my().rule(ids[0], super::super::RuleVerdict::Pass);
    assert!(region.spend(ids[0], k, 5, region.now()).admitted);
    let full = take("one-more", limit, 1).unwrap_err().to_string();
    assert!(full.contains(&format!("all {names} names")), "{full}");
    // Twins have room of their own.
    take("one-more~local", limit, 1).unwrap();
    for (i, id) in ids.iter().enumerate().skip(1) {
        assert_eq!(take(&format!("r{i}"), limit, 2).unwrap(), *id);
    }
    assert!(
        take("one-more", limit, 2).is_err(),
        "the first is still in force"
    );
    region.my_config_generation(2);
    let other = Limit::new(S, 7);
    // Not even a worker of an older setup meets the old limit.
    let late = region.take_rule_as_of("one-more", other, 0, 2).unwrap();
    assert_eq!(late, ids[0]);
    assert_eq!(region.limit(ids[0]), other);
    assert!(region.peek(ids[0], k, 5, region.now()).admitted);
    let totals = region.totals();
    assert_eq!(
        (totals.rules.len(), totals.rules[0].name.as_str()),
        (names, "one-more")
    );
    assert_eq!(totals.rules[0].pass, 0);
    assert!(take("too-many", limit, 2).is_err());
}

#[test]
fn names_that_cannot_be() {
    let region = region();
    let limit = Limit::new(S, 1);
    assert!(region.take_rule("", limit, 0).is_err());
    assert!(region.take_rule(&"x".repeat(81), limit, 0).is_err());
    assert!(region.take_rule(&"x".repeat(80), limit, 0).is_ok());
}

/// Any bits in the region are a state that can be decided by.
#[test]
fn damage_is_survived() {
    let region = region();
    let id = rule(&region, "r", S, 5);
    let Table(sets) = region.buckets().table;
    let words = region
        .memory
        .slice::<portable_atomic::AtomicU128>(region.layout.buckets_at, sets.len() * WAYS);
    for pattern in [u128::MAX, u128::MAX / 3, 1 << 127 | 5, 0x7ff] {
        words
            .iter()
            .for_each(|w| w.store(pattern, std::sync::atomic::Ordering::Relaxed));
        for i in 0..ROUNDS / 10 {
            let k = key(&region, id, i);
            assert!(region.spend(id, k, 1, T0).remaining <= 5);
            region.undo(id, k, 1, T0);
        }
        region.buckets().sweep();
    }
}

/// 64 MiB hold 2,000,000 partly spent buckets with at most 1 % pushed out. Smaller
/// regions have less room for buckets in proportion.
#[test]
#[cfg_attr(miri, ignore = "too long")]
fn two_million_buckets_in_64_mib() {
    let region = Region::on_heap(64 << 20);
    let n = 2_000_000;
    let id = rule(&region, "r", 86_400 * S, 5);
    for i in 0..n {
        region.spend(id, key(&region, id, i), 1, T0);
    }
    let lost = region.totals().evictions;
    println!(
        "{n} buckets in 64 MiB: {} slots, {} used, {lost} pushed out ({:.3} %)",
        region.bucket_slots().0,
        region.bucket_slots().1,
        lost as f64 * 100.0 / n as f64
    );
    assert!(lost * 100 <= n);
    assert_eq!(region.bucket_slots().1, n - lost);
}

/// Random keys on a 1/d rule, many times what the table holds: a steady
/// client's 5/m on another rule stays right while they pour in.
#[test]
#[cfg_attr(miri, ignore = "too long")]
fn random_keys_do_not_touch_another_rule() {
    let region = region();
    let flood = rule(&region, "flood", 86_400 * S, 5);
    let steady = rule(&region, "steady", 12 * S, 5);
    let k = key(&region, steady, 1);
    let (mut now, mut admitted) = (T0.0, 0);
    let rounds = 600_000u64;
    // Ten minutes, in which the client asks every second: 5 + 50.
    for i in 0..rounds {
        region.spend(flood, key(&region, flood, i), 1, Nanos(now));
        now += 600 * S / rounds;
        if i % (rounds / 600) == 0 {
            admitted += u32::from(region.spend(steady, k, 1, Nanos(now)).admitted);
        }
    }
    let (slots, used) = region.bucket_slots();
    assert!(rounds > 10 * slots && used <= slots);
    assert!((54..=55).contains(&admitted), "{admitted}");
}
