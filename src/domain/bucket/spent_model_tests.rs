//! Against a model that is obviously right: tokens in a bucket, added to by
//! time and cut at the capacity, in whole multiples of 1/E of a token.
use super::*;
use proptest::prelude::*;

proptest! {
    /// Emission a whole number of µs, so that the model can count in 1/E of a token without
    /// rounding. Doubles may differ from it by less than a token, and never admit more in the long run.
    #[test]
    fn as_the_model(
        emission in prop_oneof![1u64..100, 1u64..1_000_000_000],
        capacity in prop_oneof![1u32..20, 1u32..1_000_000],
        calls in prop::collection::vec((0u64..3_000_000, 0.0..1.2f64), 1..200),
    ) {
        let mut bucket = Bucket::default();
        let mut now = T0;
        let full = u128::from(capacity) * u128::from(emission);
        let mut content = full;
        let mut spent = 0u128;
        for (pause, share) in calls {
            now += pause;
            content = full.min(content + u128::from(pause));
            let cost = (share * f64::from(capacity)) as u32;
            let ask = Ask { emission_us: emission as f64, capacity, cost, since_us: 0, shadow: false }.bounded();
            let price = u128::from(ask.cost) * u128::from(emission);
            let says = bucket.call(ask, now);
            // A µs is the finest that both can tell apart.
            prop_assert!(says.admitted || content < price + 1, "refused with {content} of {price}");
            prop_assert!(!says.admitted || content + 1 >= price, "admitted with {content} of {price}");
            if says.admitted {
                content = content.saturating_sub(price);
                spent += price;
            } else {
                prop_assert!(u128::from(says.wait_us).abs_diff(price - content) <= 1);
            }
            let remaining = (content / u128::from(emission)) as u32;
            prop_assert!(says.remaining.abs_diff(remaining) <= 1);
            prop_assert!(spent <= full + u128::from(now - T0) + 1, "over-admitted");
        }
    }

    /// B21: waiting exactly as long as was said is enough, and not much less is.
    #[test]
    fn the_wait_is_exact(
        emission in prop_oneof![1.0..100.0f64, 1.0..1e9f64],
        capacity in 1u32..1000,
        cost in 1u32..1000,
        pauses in prop::collection::vec(0u64..10_000_000, 1..50),
    ) {
        let ask = Ask { emission_us: emission, capacity, cost, since_us: 0, shadow: false }.bounded();
        let (mut bucket, mut now) = (Bucket::default(), T0);
        for pause in pauses {
            now += pause;
            bucket.drain(ask, now);
            let wait = bucket.call(ask, now).wait_us;
            prop_assert!(wait > 0);
            prop_assert!(bucket.clone().call(ask, now + wait).admitted);
            if wait > 2 {
                prop_assert!(!bucket.clone().call(ask, now + wait - 2).admitted);
            }
            // Asking meanwhile changes nothing.
            let half = bucket.call(ask, now + wait / 2);
            prop_assert!(half.admitted || half.wait_us == wait - wait / 2);
            if half.admitted {
                now += wait / 2;
            }
        }
    }

    /// Whatever is stored, a call is answered within the bucket's bounds, and
    /// what is written is a bucket that is full in time.
    #[test]
    fn any_value(
        text in prop_oneof!["[0-9.]{0,12} [0-9]{0,17} [0-9.]{0,15}", ".{0,40}"],
        tokens in 1u32..1000,
        capacity in 1u32..1000,
        since in prop_oneof![Just(0u64), T0 - 10 * S..T0 + S],
    ) {
        let ask = Ask { since_us: since, ..limit(f64::from(tokens), 1.0, capacity) };
        let mut bucket = Bucket::holding(&text);
        let says = bucket.call(ask, T0);
        let full_us = (f64::from(capacity) * ask.emission_us) as u64 + 2;
        prop_assert!(says.wait_us <= full_us, "{says:?}");
        prop_assert!(bucket.call(ask, T0 + full_us).admitted, "no door shut for ever");
        let drained = bucket.drain(ask, T0 + full_us);
        prop_assert!(drained <= capacity, "no door open for ever");
    }
}
