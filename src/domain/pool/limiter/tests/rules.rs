//! One rule a test.
use super::window::Response;
use super::*;

const RESPONSE: u64 = 20 * MS;

/// A pool that has lived through `windows` calm windows with `in_flight`.
fn calm(windows: u32, in_flight: u32) -> Bed {
    let mut bed = Bed::new(&settings());
    for _ in 0..windows {
        bed.window(RESPONSE, false, in_flight);
    }
    bed
}

#[test]
fn a_fixed_limit_is_the_setting_and_yet_knows_when_it_is_full() {
    let mut bed = Bed::new(&Settings {
        adaptive: 0,
        limit: 16,
        ..settings()
    });
    bed.window(RESPONSE, false, 10);
    assert!(!bed.limiter.saturated());
    for _ in 0..20 {
        bed.window(10 * RESPONSE, true, 16);
        assert_eq!(bed.limiter.limit(), 16);
    }
    assert!(bed.limiter.saturated());
}

#[test]
fn saturated_from_a_fifth_of_the_completions_on() {
    let mut bed = Bed::new(&settings());
    // Every sixth: 17 %; then every fourth: 25 %.
    for (every, saturated) in [(6, false), (4, true)] {
        for at in 0..200 {
            bed.now += 2 * MS;
            bed.end(bed.answered(MS, at % every == 0));
        }
        assert_eq!(bed.limiter.saturated(), saturated, "every {every}");
    }
}

#[test]
fn nobody_waits_any_more_and_nothing_ends_is_calm() {
    let mut bed = Bed::new(&settings());
    bed.window(RESPONSE, true, 20);
    assert!(bed.limiter.saturated());
    assert!(bed.limiter.next_due(Nanos(bed.now)) <= CALM_NS);
    bed.now += CALM_NS / 2;
    bed.tick(1, 0);
    assert!(bed.limiter.saturated());
    bed.now += CALM_NS;
    bed.tick(1, 0);
    assert!(!bed.limiter.saturated());
    assert_eq!(bed.limiter.next_due(Nanos(bed.now)), u64::MAX);
}

#[test]
fn a_calm_limit_follows_half_as_much_again_as_was_in_flight() {
    // Up by 5 % + 1 a window.
    let mut bed = calm(1, 40);
    assert_eq!(bed.limiter.limit, 20.0 * 1.05 + 1.0);
    for _ in 0..30 {
        bed.window(RESPONSE, false, 40);
    }
    assert_eq!(bed.limiter.limit(), 60);
    // A minute later the peak is forgotten, and it goes down by 2 % a window.
    let mut before = bed.limiter.limit;
    bed.now += 70 * S;
    for _ in 0..3 {
        bed.window(RESPONSE, false, 4);
        let least = before * 0.98f64.powi(2);
        assert!(bed.limiter.limit < before && bed.limiter.limit > least * 0.999);
        before = bed.limiter.limit;
    }
    for _ in 0..200 {
        bed.window(RESPONSE, false, 4);
    }
    assert_eq!(bed.limiter.limit(), 6);
}

#[test]
fn a_knee_that_was_found_is_kept_while_calm() {
    let mut bed = calm(3, 4);
    bed.limiter.knee = 33.0;
    for _ in 0..60 {
        bed.window(RESPONSE, false, 4);
    }
    assert_eq!(bed.limiter.limit(), 33);
}

#[test]
fn what_is_in_flight_while_saturated_is_no_peak() {
    let mut bed = calm(3, 4);
    let most = bed.limiter.peaks.most();
    bed.window(RESPONSE, true, 500);
    bed.window(RESPONSE, true, 500);
    assert_eq!(bed.limiter.peaks.most(), most);
}

#[test]
fn routes_learn_only_while_not_saturated() {
    let mut bed = calm(5, 10);
    let usual = bed.routes.usual_ns(0).unwrap();
    assert!((usual / RESPONSE as f64 - 1.0).abs() < 1e-6);
    for _ in 0..10 {
        bed.window(5 * RESPONSE, true, 100);
    }
    assert_eq!(bed.routes.usual_ns(0), Some(usual));
    // The first responses of the calm were sent before it.
    bed.window(5 * RESPONSE, false, 10);
    bed.window(RESPONSE, false, 10);
    assert!(bed.routes.usual_ns(0).unwrap() < 2.0 * usual);
}

/// One request every ms: 10 ms and 90 ms by turns, so 50 ms on the average. Those
/// that were sent from `flood` on are of route 5, and wait for each other.
fn mixed(bed: &mut Bed, ms: std::ops::Range<u64>, flood: u64) {
    for at in ms {
        bed.now += MS;
        bed.tick(50, u32::from(at >= flood + 60));
        for (took, turn) in [(10, 0), (90, 1)] {
            if at < took || (at - took) % 2 != turn {
                continue;
            }
            let answered = bed.answered(took * MS, at >= flood + 60);
            bed.end(Done {
                route: if at - took >= flood { 5 } else { 0 },
                ..answered
            });
        }
    }
}

#[test]
fn r0_is_not_what_the_quick_took_before_the_slow_ended() {
    let mut bed = Bed::new(&settings());
    mixed(&mut bed, 0..150, u64::MAX - 100);
    assert_eq!(bed.limiter.base_ns(), None);
    mixed(&mut bed, 150..1_000, u64::MAX - 100);
    let base = bed.limiter.base_ns().unwrap();
    assert!((base / (50.0 * MS as f64) - 1.0).abs() < 0.05, "{base}");
    let healthy = bed.limiter.healthy.get().unwrap();
    assert!((healthy / 50.0 - 1.0).abs() < 0.05, "{healthy}");
}

#[test]
fn a_route_that_comes_with_a_flood_is_not_known_by_its_quick_ones() {
    for flood in (2_000..2_100).step_by(10) {
        let mut bed = Bed::new(&settings());
        mixed(&mut bed, 0..3_000, flood);
        let (usual, new) = (
            bed.routes.usual_ns(0).unwrap(),
            bed.routes.usual_ns(5).unwrap(),
        );
        assert!((new / usual - 1.0).abs() < 0.2, "{flood}: {new} of {usual}");
    }
}

#[test]
fn a_start_is_not_given_up_for_what_may_be_chance() {
    // R0 is of 20 windows. 15 % slower in one window of 50 that differ by 128 %
    // says nothing; in one of those that do not differ at all it does.
    for (spread, step) in [(1.28, steps::FIRST), (0.01, steps::PAIR_A)] {
        let mut bed = calm(21, 10);
        let x = |at: u32| {
            if at.is_multiple_of(2) {
                spread
            } else {
                -spread
            }
        };
        (0..500).for_each(|at| bed.limiter.recent.push(RESPONSE as f64, x(at)));
        // Without a spread of its own, so that `recent` keeps that one.
        bed.window(RESPONSE * 115 / 100, true, 20);
        assert_eq!(bed.limiter.step, step, "{spread}");
    }
}

#[test]
fn a_route_that_is_new_does_not_follow_its_first_response() {
    let mut routes = Routes::new();
    assert_eq!(routes.usual_ns(3), None);
    for _ in 0..100 {
        routes.learn(1, 20e6);
    }
    // Of a route without any, what others take.
    assert_eq!(routes.usual_ns(3), Some(20e6));
    routes.learn(3, 1.0);
    assert!(routes.usual_ns(3).unwrap() > 15e6);
    for _ in 0..1_500 {
        routes.learn(3, 200e6);
    }
    assert!((routes.usual_ns(3).unwrap() / 200e6 - 1.0).abs() < 0.01);
    assert!((routes.usual_ns(1).unwrap() / 20e6 - 1.0).abs() < 1e-6);
    // The common route goes before what all take.
    routes.learn(0, 50e6);
    let common = routes.usual_ns(0);
    assert_eq!(routes.usual_ns(9), common);
}

#[test]
fn only_what_was_sent_inside_counts() {
    let mut bed = calm(30, 10);
    let before = bed.limiter.base_ns();
    // Sent two seconds ago, while the window is a few ms old: late answers are
    // many, and say nothing of now.
    for _ in 0..25 {
        bed.now += MS;
        bed.end(bed.answered(2 * S, true));
    }
    assert_eq!(bed.limiter.window.n, 0);
    assert_eq!(bed.limiter.base_ns(), before);
}

#[test]
fn refused_aborted_and_failed_requests_are_no_samples() {
    let mut bed = calm(30, 10);
    let (base, usual) = (bed.limiter.base_ns(), bed.routes.usual_ns(0));
    for at in 0..600 {
        bed.now += MS;
        let sample = bed.answered(RESPONSE, false);
        bed.end(if at % 10 == 0 {
            // A tenth of them do not brake yet.
            Done {
                error: at % 100 == 0,
                response: None,
                ..sample
            }
        } else if at % 2 == 0 {
            Done {
                response: None,
                dispatched: Nanos(bed.now - MS),
                ..sample
            }
        } else {
            sample
        });
    }
    assert!((bed.limiter.base_ns().unwrap() - base.unwrap()).abs() < 1.0);
    assert!((bed.routes.usual_ns(0).unwrap() - usual.unwrap()).abs() < 1.0);
}

#[test]
fn failures_above_a_tenth_of_a_window_brake() {
    for (every, brakes) in [(12, false), (8, true)] {
        let mut bed = calm(30, 40);
        let before = bed.limiter.limit;
        // One window: 100 ms and no more.
        for at in 0..51 {
            bed.now += 2 * MS;
            let failed = at % every == 1;
            bed.end(Done {
                error: failed,
                response: (!failed).then_some(Nanos(RESPONSE)),
                ..bed.answered(RESPONSE, true)
            });
        }
        let after = bed.limiter.limit / before;
        if brakes {
            assert!((after - 0.7).abs() < 1e-9, "{after}");
        } else {
            assert!(after > 0.9, "{after}");
        }
    }
}

#[test]
fn a_backend_that_only_fails_is_left_with_the_least() {
    let mut bed = Bed::new(&Settings {
        min: 3,
        ..settings()
    });
    for _ in 0..2_000 {
        bed.now += MS;
        bed.tick(20, 5);
        bed.end(Done {
            error: true,
            response: None,
            ..bed.answered(MS, true)
        });
    }
    assert_eq!(bed.limiter.limit(), 3);
}

#[test]
fn near_the_timeout_the_limit_goes_down_and_r0_stays() {
    let mut bed = Bed::new(&Settings {
        timeout_ns: 100 * MS,
        ..settings()
    });
    for _ in 0..30 {
        bed.window(RESPONSE, false, 40);
    }
    let (limit, base) = (bed.limiter.limit, bed.limiter.base_x.get());
    for _ in 0..10 {
        bed.window(60 * MS, true, 60);
    }
    assert!(bed.limiter.limit < limit / 2.0);
    assert_eq!(bed.limiter.base_x.get(), base);
    // Nor where nobody waits.
    for _ in 0..10 {
        bed.window(60 * MS, false, 10);
    }
    assert_eq!(bed.limiter.base_x.get(), base);
}

#[test]
fn a_pair_is_a_tenth_below_and_above_and_at_least_two_apart() {
    for (limit, low, high) in [
        (100.0, 90, 110),
        (20.0, 18, 22),
        (15.6, 14, 17),
        (10.0, 9, 11),
        (6.0, 5, 7),
        (2.0, 1, 3),
        (1.0, 1, 3),
    ] {
        let mut bed = calm(3, 4);
        bed.limiter.set(limit);
        bed.limiter.begin_pair(bed.now);
        let pair = (bed.limiter.low, bed.limiter.high);
        assert_eq!(pair, (low, high), "of {limit}");
    }
}

#[test]
fn where_min_and_max_leave_no_room_nothing_is_compared() {
    let mut bed = Bed::new(&Settings {
        min: 8,
        max: 8,
        ..settings()
    });
    for _ in 0..100 {
        bed.window(RESPONSE, true, 8);
        assert_eq!(bed.limiter.limit(), 8);
    }
}

#[test]
fn pairs_come_in_alternating_order() {
    let mut bed = calm(3, 20);
    bed.limiter.begin_pair(bed.now);
    let first = bed.limiter.forced;
    bed.limiter.begin_pair(bed.now);
    let mut both = [first, bed.limiter.forced];
    both.sort_unstable();
    assert_eq!(both, [bed.limiter.low, bed.limiter.high]);
}

/// A pair whose x was `low` and `high`.
fn pair(bed: &mut Bed, low: f64, high: f64) {
    bed.limiter.begin_pair(bed.now);
    let plan = probe::Plan {
        settle_ns: 0,
        open_ns: 100,
        slowest_ns: 0,
        ended: 0,
    };
    let (first, second) = match bed.limiter.high_first & 1 {
        1 => (high, low),
        _ => (low, high),
    };
    for (x, of) in [
        (first, &mut bed.limiter.first),
        (second, &mut bed.limiter.probe),
    ] {
        of.begin(bed.now, &plan);
        for _ in 0..1_500 {
            of.add(bed.now, 0, Some(&Response::new(x.exp(), 1.0)), bed.now);
        }
    }
    bed.limiter.end_pair(bed.now);
}

#[test]
fn the_limit_moves_by_the_elasticity() {
    // 18 and 22: e = Δx / ln(22/18).
    let apart = (22.0f64 / 18.0).ln();
    for (e, factor) in [
        (0.5, 1.0),
        (0.0, 1.133),
        (1.0, 0.8825),
        // A step at most, whatever was measured.
        (5.0, 0.8),
        (-5.0, 1.22),
    ] {
        let mut bed = Bed::new(&settings());
        pair(&mut bed, 0.3, 0.3 + e * apart);
        let moved = bed.limiter.limit / 20.0;
        assert!((moved - factor).abs() < 0.001, "{e}: {moved}");
        assert_eq!(bed.limiter.knee, bed.limiter.limit);
        let rests = bed.limiter.step == steps::WATCH;
        assert_eq!(rests, (factor - 1.0f64).abs() < 0.15, "{e}");
        assert!(!rests || bed.limiter.rest_until == bed.now + 3 * S);
    }
}

#[test]
fn two_pairs_without_any_elasticity_move_it_faster() {
    let mut bed = Bed::new(&settings());
    pair(&mut bed, 0.3, 0.3);
    let before = bed.limiter.limit;
    pair(&mut bed, 0.3, 0.3);
    assert!((bed.limiter.limit / before - 0.2f64.exp()).abs() < 1e-9);
}

#[test]
fn pairs_leave_nine_tenths_of_the_healthy_mean() {
    let mut bed = Bed::new(&settings());
    bed.limiter.healthy.set(20.0);
    for _ in 0..5 {
        pair(&mut bed, 0.0, 3.0);
    }
    assert_eq!(bed.limiter.limit, 18.0);
}

#[test]
fn a_measurement_compares_each_route_with_itself() {
    // Route 1 always takes e times as long, and there is more of it at the higher
    // limit: that alone is no difference.
    let plan = probe::Plan {
        settle_ns: 10,
        open_ns: 100,
        slowest_ns: 50,
        ended: 0,
    };
    let mut probes = [Probe::new(); 2];
    for (probe, long) in probes.iter_mut().zip([10, 50]) {
        probe.begin(T0, &plan);
        for at in 0..100 {
            let route = u8::from(at < long);
            let x = f64::from(route);
            probe.add(
                T0 + 10 + at,
                route,
                Some(&Response::new(x.exp(), 1.0)),
                T0 + 150,
            );
        }
        // Sent before it began or after it closed, and ended before it began.
        probe.add(T0 + 9, 0, Some(&Response::new(100.0, 1.0)), T0 + 150);
        probe.add(T0 + 110, 0, Some(&Response::new(100.0, 1.0)), T0 + 150);
        probe.add(T0 + 10, 0, Some(&Response::new(100.0, 1.0)), T0 + 9);
        assert_eq!(probe.n(), 100);
    }
    let [first, second] = probes;
    assert!((second.mean_x() - first.mean_x() - 0.4).abs() < 1e-9);
    for by in [probe::By::X, probe::By::Ratio] {
        assert!(second.above(&first, by).abs() < 1e-9, "{by:?}");
    }
    assert!(!first.is_over(T0 + 159) && first.is_over(T0 + 160));
}

/// 100 ms in which 10 ms and 30 ms take turns, each with `wait` more, of so many in flight: by
/// Little's law.
fn uneven(bed: &mut Bed, wait: u64, found_waiter: bool, in_flight: u32) {
    let apart = (20 * MS + wait) / u64::from(in_flight);
    for at in 0..100 * MS / apart {
        bed.now += apart;
        bed.tick(in_flight, u32::from(found_waiter));
        let took = if at % 2 == 0 { 10 * MS } else { 30 * MS };
        bed.end(bed.answered(took + wait, found_waiter));
    }
}

#[test]
fn a_jump_goes_as_far_as_responses_take_longer_on_the_average() {
    let mut bed = Bed::new(&settings());
    for _ in 0..20 {
        uneven(&mut bed, 0, false, 10);
    }
    bed.limiter.set(100.0);
    // Twice as long. The means of the logarithms are 0.8 apart, as if it were 2.2 times, and the
    // quick take three times as long.
    while bed.limiter.step != steps::VERIFY {
        assert!(bed.limiter.limit == 100.0 && bed.now < T0 + 10 * S);
        uneven(&mut bed, 20 * MS, true, 100);
    }
    let jumped = bed.limiter.limit;
    assert!((54.0..60.0).contains(&jumped), "{jumped}");
}

/// 100 ms of a pool whose limit is in flight while others wait: by Little's law.
fn full(bed: &mut Bed, ns: u64) {
    let in_flight = bed.limiter.limit();
    let apart = ns / u64::from(in_flight);
    for _ in 0..100 * MS / apart {
        bed.now += apart;
        bed.tick(in_flight, 1);
        bed.end(bed.answered(ns, true));
    }
}

/// A pool that has jumped from 100, by responses of twice R0, until another step is taken.
fn jumped(then_ns: u64) -> Bed {
    let mut bed = calm(20, 40);
    bed.limiter.set(100.0);
    while bed.limiter.step != steps::VERIFY {
        full(&mut bed, 2 * RESPONSE);
    }
    // What was under way.
    full(&mut bed, 2 * RESPONSE);
    while bed.limiter.step == steps::VERIFY {
        assert!(bed.now < T0 + 20 * S);
        full(&mut bed, then_ns);
    }
    bed
}

#[test]
fn a_jump_after_which_responses_are_quicker_was_right() {
    let bed = jumped(RESPONSE);
    let limit = bed.limiter.limit;
    assert!((50.0..60.0).contains(&limit), "{limit}");
    assert!([steps::PAIR_A, steps::PAIR_B].contains(&bed.limiter.step));
}

#[test]
fn what_waits_for_the_slow_is_no_reason_to_jump() {
    // Five of route 0 for each of route 1, which usually takes 15 times as long.
    let answer = |bed: &mut Bed, took: [u64; 2], found_waiter| {
        for at in 0..48 {
            bed.now += 2 * MS;
            bed.tick(100, u32::from(found_waiter));
            let route = u8::from(at % 6 == 5);
            let done = bed.answered(took[usize::from(route)], found_waiter);
            bed.end(Done { route, ..done });
        }
    };
    let flooded = |took| {
        let mut bed = Bed::new(&settings());
        for _ in 0..40 {
            answer(&mut bed, [10 * MS, 150 * MS], false);
        }
        bed.limiter.set(100.0);
        bed.limiter.fresh = 0;
        let before = bed.limiter.limit;
        for _ in 0..4 {
            answer(&mut bed, took, true);
        }
        (bed.limiter.limit < before, bed.limiter.step)
    };
    // 22 ms more for each of the quick, 110 less for the slow: all together as long as ever.
    let (jumped, step) = flooded([32 * MS, 40 * MS]);
    assert!(!jumped && step != steps::VERIFY, "{step}");
    let (jumped, step) = flooded([32 * MS, 90 * MS]);
    assert!(jumped && step == steps::VERIFY, "{step}");
}

/// A pool with a limit of 100 that has begun a start.
fn starting(settings: &Settings) -> Bed {
    let mut bed = calm(20, 40);
    bed.limiter.configure(settings, Nanos(bed.now));
    bed.limiter.set(100.0);
    while bed.limiter.step != steps::FIRST {
        bed.window(RESPONSE, true, 100);
    }
    bed
}

#[test]
fn a_start_where_little_is_done_goes_down_at_once() {
    // As at the beginning of a flood: what ends is quick, and it is what 10 slots do.
    let mut bed = starting(&settings());
    while bed.limiter.step == steps::FIRST {
        bed.window(RESPONSE, true, 100);
    }
    assert_eq!(bed.limiter.step, steps::VERIFY);
    let limit = bed.limiter.limit;
    assert!((10.5..11.5).contains(&limit), "{limit}");
    // Where that does not help, the start goes on as if nothing had been; R0 too is what it was.
    let usual = bed.limiter.base_ratio.get();
    while matches!(bed.limiter.step, steps::VERIFY | steps::VERIFY_AGAIN) {
        full(&mut bed, 5 * RESPONSE);
    }
    assert_eq!(
        (bed.limiter.limit, bed.limiter.base_ratio.get()),
        (200.0, usual)
    );
}

#[test]
fn a_start_at_a_backend_that_does_what_is_in_flight_tries_more() {
    let tries = |settings: &Settings, ns| {
        let mut bed = starting(settings);
        while bed.limiter.step == steps::FIRST {
            match ns {
                Some(ns) => full(&mut bed, ns),
                None => bed.window(RESPONSE, true, 100),
            }
        }
        (bed.limiter.step != steps::VERIFY).then_some(bed.limiter.limit)
    };
    assert_eq!(tries(&settings(), Some(RESPONSE)), Some(200.0));
    assert_eq!(tries(&settings(), None), None);
    // The operator has said that no fewer are right.
    let least = Settings {
        min: 95,
        ..settings()
    };
    assert_eq!(tries(&least, None), Some(200.0));
}

#[test]
fn a_jump_that_brings_nothing_is_tried_once_more_before_r0_is() {
    let usual = calm(20, 40).limiter.base_x.get().unwrap();
    // The queue had only been growing: the next jump shows it.
    let mut bed = jumped(2 * RESPONSE);
    assert_eq!(bed.limiter.step, steps::VERIFY_AGAIN);
    let again = bed.limiter.limit;
    assert!((25.0..35.0).contains(&again), "{again}");
    while bed.limiter.step == steps::VERIFY_AGAIN {
        full(&mut bed, RESPONSE);
    }
    assert!(bed.limiter.limit <= again);
    assert!((bed.limiter.base_x.get().unwrap() - usual).abs() < 0.01);
    // The backend is slower: what is usual is that from now on, and the limit what it was.
    let mut bed = jumped(2 * RESPONSE);
    while bed.limiter.step == steps::VERIFY_AGAIN {
        full(&mut bed, 2 * RESPONSE);
    }
    assert_eq!(bed.limiter.limit, 100.0);
    let moved = bed.limiter.base_x.get().unwrap() - usual;
    assert!((moved - 2f64.ln()).abs() < 0.01, "{moved}");
}

#[test]
fn slots_that_a_pair_adds_come_one_after_the_other() {
    let mut bed = calm(3, 100);
    bed.limiter.set(100.0);
    bed.limiter.high_first = 1;
    bed.limiter.begin_pair(bed.now);
    assert_eq!(bed.limiter.limit(), 90);
    bed.limiter.measure(steps::PAIR_B, 110, bed.now);
    let mut seen = vec![bed.limiter.limit()];
    for _ in 0..25 {
        bed.now += MS;
        bed.tick(100, 1);
        seen.push(bed.limiter.limit());
    }
    assert_eq!((seen[0], seen[25]), (90, 110));
    assert!(seen.windows(2).all(|it| it[1] - it[0] <= 2), "{seen:?}");
}

#[test]
fn settings_that_change_hold_at_once() {
    let mut bed = calm(30, 100);
    assert!(bed.limiter.limit() > 60);
    let mut changed = settings();
    changed.max = 30;
    bed.limiter.configure(&changed, Nanos(bed.now));
    assert_eq!(bed.limiter.limit(), 30);
    (changed.min, changed.max) = (50, 60);
    bed.limiter.configure(&changed, Nanos(bed.now));
    assert_eq!(bed.limiter.limit(), 50);
    (changed.adaptive, changed.limit) = (0, 7);
    bed.limiter.configure(&changed, Nanos(bed.now));
    assert_eq!(bed.limiter.limit(), 7);
    (changed.adaptive, changed.min, changed.max) = (1, 1, 1000);
    bed.limiter.configure(&changed, Nanos(bed.now));
    assert_eq!(bed.limiter.limit(), 20);
}
