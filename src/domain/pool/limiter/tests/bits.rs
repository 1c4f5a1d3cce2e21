//! Whatever bits the memory held, and whatever is told: no panic, and a limit
//! between `min` and `max`.
use proptest::prelude::*;

use super::*;

/// Overwrites what `steps` goes by.
fn scramble(limiter: &mut Limiter, bits: &mut impl FnMut() -> u64) {
    let float = |bits: u64| f64::from_bits(bits);
    limiter.limit = float(bits());
    limiter.knee = float(bits());
    limiter.elasticity = float(bits());
    limiter.before_limit = float(bits());
    limiter.before_in_force = float(bits());
    limiter.before_work = float(bits());
    limiter.per_s = float(bits());
    (limiter.ramp, limiter.ramp_from) = (float(bits()), float(bits()));
    (limiter.ramp_at, limiter.ramp_ns) = (bits(), bits());
    limiter.base_x.set(float(bits()));
    limiter.base_ratio.set(float(bits()));
    limiter.base_ns.set(float(bits()));
    limiter.tries = bits() as u32;
    limiter.healthy.set(float(bits()));
    limiter.step = bits() as u32 % 9;
    limiter.forced = bits() as u32;
    (limiter.saturated, limiter.fresh) = (bits() as u32 % 3, bits() as u32 % 3);
    (limiter.pairs, limiter.high_first) = (bits() as u32, bits() as u32);
    (limiter.low, limiter.high) = (bits() as u32, bits() as u32);
    (limiter.rest_until, limiter.waited_at) = (bits(), bits());
    (limiter.calm_since, limiter.pooled_at) = (bits(), bits());
    (limiter.min, limiter.max) = (bits() as u32 % 200, bits() as u32 % 200);
    (limiter.cluster, limiter.adaptive) = (bits() as u32 % 3, bits() as u32 % 3);
    limiter.timeout_ns = bits();
    limiter.starting = bits() as u32 % 3;
    limiter.window.scramble(bits);
    limiter.recent.scramble(bits);
    limiter.pending.scramble(bits);
    limiter.upload.scramble(bits);
    limiter.probe.scramble(bits);
    limiter.first.scramble(bits);
}

fn numbers(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed | 1;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        // Often an edge.
        match state % 7 {
            0 => 0,
            1 => u64::MAX,
            2 => state % 100,
            _ => state,
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Tick {
        in_flight: u32,
        waiting: u32,
    },
    End {
        ns: u64,
        route: u8,
        found_waiter: bool,
        error: bool,
        sample: bool,
    },
    Pass(u64),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        (0..2_000u32, 0..3u32).prop_map(|(in_flight, waiting)| Event::Tick { in_flight, waiting }),
        (
            0..200 * MS,
            any::<u8>(),
            any::<bool>(),
            0..20u8,
            any::<bool>()
        )
            .prop_map(|(ns, route, found_waiter, error, sample)| Event::End {
                ns,
                route,
                found_waiter,
                error: error == 0,
                sample,
            }),
        (0..50 * MS).prop_map(Event::Pass),
    ]
}

impl Bed {
    fn play(&mut self, event: Event) {
        match event {
            Event::Tick { in_flight, waiting } => self.tick(in_flight, waiting),
            Event::End {
                ns,
                route,
                found_waiter,
                error,
                sample,
            } => {
                let done = Done {
                    route,
                    error,
                    response: sample.then_some(Nanos(ns)),
                    ..self.answered(ns, found_waiter)
                };
                self.end(done);
            }
            Event::Pass(ns) => self.now += ns,
        }
    }
}

proptest! {
    #[test]
    fn the_limit_is_always_within_min_and_max(
        min in 0..50u32,
        more in 0..100u32,
        start in 0..300u32,
        events in prop::collection::vec(event(), 1..1_500),
    ) {
        let mut bed = Bed::new(&Settings { min, max: min + more, start, ..settings() });
        for event in events {
            bed.play(event);
            let limit = bed.limiter.limit();
            prop_assert!(limit >= min.max(1) && limit <= (min + more).max(1), "{limit}");
            prop_assert!(bed.limiter.next_due(Nanos(bed.now)) > 0);
        }
    }

    #[test]
    fn any_bits_can_be_read_and_are_mended_by_settings(
        seed in any::<u64>(),
        events in prop::collection::vec(event(), 1..400),
    ) {
        let mut bits = numbers(seed);
        let mut bed = Bed::new(&settings());
        scramble(&mut bed.limiter, &mut bits);
        let mut taken = Vec::new();
        for event in events {
            bed.play(event);
            bed.limiter.next_due(Nanos(bed.now));
            bed.limiter.take_samples(&mut taken);
            prop_assert!(taken.len() <= SAMPLES);
            taken.clear();
        }
        bed.limiter.configure(&settings(), Nanos(bed.now));
        let limit = bed.limiter.limit();
        prop_assert!((1..=1000).contains(&limit), "{limit}");
    }
}
