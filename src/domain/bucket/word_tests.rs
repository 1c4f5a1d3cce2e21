//! Against a model that is obviously right: tokens in a bucket, added to by
//! time and cut at the capacity, in whole multiples of 1/E token.
use super::*;
use proptest::prelude::*;

const DAY_NS: u64 = 86_400_000_000_000;
const EPOCH: u8 = 3;

/// A bucket as one would explain it. Content is in tokens × `emission_ns`.
struct Naive {
    limit: Limit,
    content: u128,
    at: u64,
}

impl Naive {
    fn full(limit: Limit, at: u64) -> Naive {
        Naive {
            limit,
            content: u128::from(limit.emission_ns) * u128::from(limit.capacity),
            at,
        }
    }

    fn refill(&mut self, now: u64) {
        let most = u128::from(self.limit.emission_ns) * u128::from(self.limit.capacity);
        // One token per emission_ns, so one of these units per nanosecond.
        self.content = (self.content + u128::from(now - self.at)).min(most);
        self.at = now;
    }

    fn take(&mut self, cost: u32, now: u64) -> bool {
        self.refill(now);
        let price = u128::from(cost) * u128::from(self.limit.emission_ns);
        let fits = price <= self.content;
        if fits {
            self.content -= price;
        }
        fits
    }

    fn whole(&self) -> u128 {
        self.content / u128::from(self.limit.emission_ns)
    }
}

fn force(limit: Limit) -> InForce {
    InForce {
        epoch: EPOCH,
        limit,
    }
}

/// From 1/366d to 1,000,000/s, any capacity that fills within 366 days.
fn limits() -> impl Strategy<Value = Limit> {
    (3.0..16.501_f64, 0.0..9.01_f64).prop_map(|(e, c)| {
        let emission_ns = (10f64.powf(e) as u64).clamp(1_000, 366 * DAY_NS);
        let most = (366 * DAY_NS / emission_ns).clamp(1, 1_000_000_000) as u32;
        Limit::new(emission_ns, (10f64.powf(c) as u32).clamp(1, most))
    })
}

/// (gap in parts of the time to fill, part of the capacity as cost)
fn steps() -> impl Strategy<Value = Vec<(f64, f64)>> {
    let gap = prop_oneof![3 => 0.0..0.01_f64, 1 => 0.0..1.5_f64, 1 => Just(0.0)];
    let cost = prop_oneof![2 => Just(0.0), 2 => 0.0..0.2_f64, 1 => 0.0..1.0_f64];
    proptest::collection::vec((gap, cost), 1..120)
}

/// A word's clock ends after 36 years of uptime; no test goes beyond.
fn word_ends(limit: Limit, now: u64) -> bool {
    now + limit.fill_ns() > TAT_MASK
}

fn cost_of(limit: Limit, part: f64) -> u32 {
    ((f64::from(limit.capacity) * part) as u32).clamp(1, limit.capacity)
}

proptest! {
    #[test]
    fn decides_as_the_naive_bucket_does(limit in limits(), start in 0..DAY_NS * 3650, steps in steps()) {
        let f = force(limit);
        let mut now = start;
        let mut naive = Naive::full(limit, now);
        let mut word = full(f, Nanos(now));
        for (gap, part) in steps {
            now += (limit.fill_ns() as f64 * gap) as u64;
            if word_ends(limit, now) {
                break;
            }
            let cost = cost_of(limit, part);
            let (next, said) = decide(word, f, cost, Nanos(now));
            prop_assert_eq!(said.admitted, naive.take(cost, now));
            prop_assert_eq!(u128::from(said.remaining), naive.whole());
            prop_assert!(said.remaining <= limit.capacity);
            if said.admitted {
                // Full then, and not a nanosecond earlier.
                let till = Nanos(now + said.wait_ns);
                prop_assert!(next.is_full(EPOCH, till));
                prop_assert!(!next.is_full(EPOCH, Nanos(till.0 - 1)));
            } else {
                // B14: a refusal spends nothing.
                prop_assert_eq!(next, word);
                prop_assert!(said.wait_ns > 0);
                prop_assert!(decide(word, f, cost, Nanos(now + said.wait_ns)).1.admitted);
                prop_assert!(!decide(word, f, cost, Nanos(now + said.wait_ns - 1)).1.admitted);
            }
            word = next;
        }
    }

    /// Admitted in any stretch of time ≤ capacity + rate × t.
    #[test]
    fn never_admits_more_than_capacity_and_refill(limit in limits(), steps in steps()) {
        let f = force(limit);
        let (mut now, mut word) = (0, full(f, Nanos(0)));
        let mut admitted: Vec<(u64, u64)> = Vec::new();
        for (gap, part) in steps {
            now += (limit.fill_ns() as f64 * gap) as u64;
            if word_ends(limit, now) {
                break;
            }
            let cost = cost_of(limit, part);
            let (next, said) = decide(word, f, cost, Nanos(now));
            word = next;
            if said.admitted {
                admitted.push((now, u64::from(cost)));
            }
        }
        for (i, (from, _)) in admitted.iter().enumerate() {
            let mut sum = 0u128;
            for (at, cost) in &admitted[i..] {
                sum += u128::from(*cost);
                let most = u128::from(limit.capacity) * u128::from(limit.emission_ns)
                    + u128::from(at - from);
                prop_assert!(sum * u128::from(limit.emission_ns) <= most);
            }
        }
    }

    #[test]
    fn undo_gives_back_what_was_taken(limit in limits(), a in 0.0..1.0_f64, b in 0.0..1.0_f64, gap in 0.0..1.0_f64) {
        let f = force(limit);
        let t = Nanos(DAY_NS);
        let (word, _) = decide(full(f, t), f, cost_of(limit, a), t);
        let (more, said) = decide(word, f, cost_of(limit, b), t);
        if said.admitted {
            let later = Nanos(t.0 + (more.debt_ns(t) as f64 * gap) as u64);
            let back = undo(more, f, cost_of(limit, b), later);
            prop_assert_eq!(back.debt_ns(later), word.debt_ns(later));
        }
    }

    /// Through changes the word follows tokens spent, within a token's
    /// thousandth (the model is in f64).
    #[test]
    fn carries_tokens_spent_through_changes(
        limits in proptest::collection::vec(limits(), 2..17),
        gaps in proptest::collection::vec(0.0..0.7_f64, 17),
        drained in 0.0..1.0_f64,
    ) {
        let first = limits[0];
        let mut at = 10 * DAY_NS;
        let (word, _) = decide(full(force(first), Nanos(at)), force(first), cost_of(first, drained), Nanos(at));
        let mut spent = f64::from(cost_of(first, drained));
        let mut changes = Vec::new();
        let mut limit = first;
        for (next, gap) in limits[1..].iter().zip(&gaps) {
            let dt = (limit.fill_ns().min(next.fill_ns()) as f64 * gap) as u64;
            at += dt;
            spent = (spent - dt as f64 / limit.emission_ns as f64).max(0.0).min(f64::from(next.capacity));
            changes.push(Change { at: Nanos(at), limit: *next });
            limit = *next;
        }
        let tat = carry(word.tat(), first, changes);
        let got = tat.0.saturating_sub(at) as f64 / limit.emission_ns as f64;
        // Each change rounds to a nanosecond, which is so much of a token under its limit.
        let rounded: f64 = limits.iter().map(|l| 2.0 / l.emission_ns as f64).sum();
        prop_assert!((got - spent).abs() <= 1e-6 + spent * 1e-9 + rounded,
            "{got} tokens spent, not {spent}");
        prop_assert!(got <= f64::from(limit.capacity) + rounded);
    }

    #[test]
    fn any_word_at_any_time_is_a_bucket(bits: u64, now in 0..1u64 << 59, limit in limits(), cost: u32) {
        let f = force(limit);
        let (next, said) = decide(Word(bits), f, cost, Nanos(now));
        prop_assert!(said.remaining <= limit.capacity);
        prop_assert!(said.wait_ns <= 2 * limit.fill_ns() + SLACK_NS);
        let (_, after) = decide(next, f, cost, Nanos(now + limit.fill_ns() + SLACK_NS));
        prop_assert!(after.admitted);
        undo(Word(bits), f, cost, Nanos(now));
        let _ = carry(Word(bits).tat(), limit, [Change { at: Nanos(now), limit }]);
    }
}

/// The examples of CONTRACT's section on changes.
#[test]
fn changes_by_example() {
    let drained = |limit: Limit, at| {
        decide(
            full(force(limit), Nanos(at)),
            force(limit),
            limit.capacity,
            Nanos(at),
        )
        .0
        .tat()
    };
    let hour = 3_600_000_000_000;
    let at = 5 * DAY_NS;
    // 100/s drained and lowered to 1/m has nothing.
    let (old, new) = (Limit::new(10_000_000, 100), Limit::new(60_000_000_000, 1));
    let tat = carry(
        drained(old, at),
        old,
        [Change {
            at: Nanos(at),
            limit: new,
        }],
    );
    assert_eq!(
        decide(Word::new(EPOCH, tat), force(new), 1, Nanos(at))
            .1
            .wait_ns,
        60_000_000_000
    );
    // 10/h drained and raised to 20/h with capacity 20 has 10 (B14).
    let (old, new) = (Limit::new(hour / 10, 10), Limit::new(hour / 20, 20));
    let tat = carry(
        drained(old, at),
        old,
        [Change {
            at: Nanos(at),
            limit: new,
        }],
    );
    let word = Word::new(EPOCH, tat);
    assert_eq!(decide(word, force(new), 10, Nanos(at)).1.remaining, 0);
    assert!(!decide(word, force(new), 11, Nanos(at)).1.admitted);
    // 100 with 90 left lowered to 2: nothing left of the 10 spent (B82).
    let (old, new) = (Limit::new(1_000_000_000, 100), Limit::new(1_000_000_000, 2));
    let (word, _) = decide(full(force(old), Nanos(at)), force(old), 10, Nanos(at));
    let tat = carry(
        word.tat(),
        old,
        [Change {
            at: Nanos(at),
            limit: new,
        }],
    );
    let said = decide(Word::new(EPOCH, tat), force(new), 1, Nanos(at)).1;
    assert_eq!((said.admitted, said.wait_ns), (false, 1_000_000_000));
    // 2 with both spent raised to 20: 18 at once.
    let tat = carry(
        drained(new, at),
        new,
        [Change {
            at: Nanos(at),
            limit: Limit::new(new.emission_ns, 20),
        }],
    );
    let said = decide(
        Word::new(EPOCH, tat),
        force(Limit::new(new.emission_ns, 20)),
        18,
        Nanos(at),
    )
    .1;
    assert_eq!((said.admitted, said.remaining), (true, 0));
}

/// B03, B04: a clock that jumped, or a TAT from anywhere, is an empty bucket at
/// worst, and a full one at best.
#[test]
fn damage_is_clamped() {
    let limit = Limit::new(200_000_000, 10);
    let f = force(limit);
    let now = Nanos(DAY_NS);
    let ahead = Word::new(EPOCH, Nanos(now.0 + 2 * DAY_NS));
    let (repaired, said) = decide(ahead, f, 1, now);
    assert_eq!(
        (said.admitted, said.remaining, said.wait_ns),
        (false, 0, limit.emission_ns)
    );
    assert_eq!(repaired.debt_ns(now), limit.fill_ns());
    let behind = Word::new(EPOCH, Nanos(1));
    assert_eq!(decide(behind, f, 10, now).1.remaining, 0);
    assert!(!decide(behind, f, 11, Nanos(0)).1.admitted || limit.capacity < 11);
    // A word that another worker wrote a millisecond ahead of our clock is not
    // damage: repairing it would hand out a millisecond of refill.
    let (word, _) = decide(
        full(f, Nanos(now.0 + 1_000_000)),
        f,
        10,
        Nanos(now.0 + 1_000_000),
    );
    assert_eq!(decide(word, f, 1, now).0, word);
}

/// B06, B07, B08 with a simulated clock.
#[test]
fn refill_is_continuous() {
    let run = |limit: Limit, every_ns: u64, for_ns: u64| -> Vec<u64> {
        let f = force(limit);
        let mut word = full(f, Nanos(0));
        let mut admitted = Vec::new();
        for i in 0..=for_ns / every_ns {
            let (next, said) = decide(word, f, 1, Nanos(i * every_ns));
            word = next;
            if said.admitted {
                admitted.push(i * every_ns);
            }
        }
        admitted
    };
    let (s, ms) = (1_000_000_000, 1_000_000);
    assert!(run(Limit::new(s / 3, 3), 100 * ms, 10 * s).len() <= 33);
    let gaps = run(Limit::new(s / 10, 1), 20 * ms, 3 * s);
    assert!(
        gaps.windows(2)
            .all(|w| (95..=150).contains(&((w[1] - w[0]) / ms)))
    );
    assert_eq!(
        run(Limit::new(10 * s, 1), 2 * s, 25 * s),
        [0, 10 * s, 20 * s]
    );
    // B11 at the highest rate: all that refills is handed out.
    let admitted = run(Limit::new(1_000, 100), 500, 10 * ms).len();
    assert_eq!(admitted, 100 + 10_000);
}

#[test]
fn a_limit_fits_into_a_word() {
    // A twentieth of 1/366d.
    let slow = Limit::new(20 * 366 * DAY_NS, 3);
    assert!(slow.fill_ns() <= MAX_FILL_NS);
    assert_eq!(
        Limit::new(0, 0),
        Limit {
            emission_ns: 1,
            capacity: 1
        }
    );
    let force = force(slow);
    let now = Nanos(1 << 58);
    let (word, _) = decide(full(force, now), force, 3, now);
    assert_eq!(word.debt_ns(now), slow.fill_ns());
    assert_eq!(word.epoch(), EPOCH);
}
