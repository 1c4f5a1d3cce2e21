//! One limit for all gateways: what is told to the leader, and who moves it.
use super::*;

fn bed() -> Bed {
    Bed::new(&Settings {
        cluster: 1,
        ..settings()
    })
}

#[test]
fn what_ends_is_kept_for_the_leader_the_last_256_of_it() {
    let mut bed = bed();
    let mut taken = Vec::new();
    for at in 0..10 {
        bed.now += MS;
        let failed = at == 3;
        bed.end(Done {
            route: at,
            level: 2,
            error: failed,
            response: (!failed).then_some(Nanos(5 * MS)),
            ..bed.answered(5 * MS, at == 4)
        });
    }
    bed.limiter.take_samples(&mut taken);
    let routes: Vec<u8> = taken.iter().map(|it| it.route).collect();
    assert_eq!(routes, (0..10).collect::<Vec<u8>>());
    let at = |at: usize| taken[at].done();
    assert!(at(3).error && at(3).response.is_none() && !at(4).error);
    assert!(at(4).found_waiter && !at(3).found_waiter && at(4).level == 2);
    assert_eq!(at(4).response, Some(Nanos(5 * MS)));
    assert_eq!(
        (taken[0].completed, taken[0].dispatched),
        (T0 + MS, T0 - 4 * MS)
    );
    // Once.
    taken.clear();
    bed.limiter.take_samples(&mut taken);
    assert!(taken.is_empty());
    for at in 0..300u64 {
        bed.now += MS;
        bed.end(bed.answered(at + 1, false));
    }
    bed.limiter.take_samples(&mut taken);
    assert_eq!(taken.len(), SAMPLES);
    assert_eq!(taken.first().unwrap().response_ns, 300 - 256 + 1);
    assert_eq!(taken.last().unwrap().response_ns, 300);
}

#[test]
fn a_pool_of_one_gateway_keeps_nothing_for_others() {
    let mut bed = Bed::new(&settings());
    bed.window(MS, false, 1);
    let mut taken = Vec::new();
    bed.limiter.take_samples(&mut taken);
    assert!(taken.is_empty());
}

#[test]
fn only_the_leader_moves_the_limit() {
    let mut bed = bed();
    for _ in 0..20 {
        bed.window(20 * MS, false, 100);
    }
    assert_eq!(bed.limiter.limit(), 20);
    assert!(!bed.limiter.saturated());
    // It knows all the same whether it is full.
    bed.window(20 * MS, true, 100);
    bed.window(20 * MS, true, 100);
    assert!(bed.limiter.saturated());
    bed.limiter.set_limit(33.4);
    assert_eq!(bed.limiter.limit(), 33);
    bed.limiter.set_limit(f64::NAN);
    assert_eq!(bed.limiter.limit(), 1);
}

#[test]
fn the_leader_moves_it_by_what_all_gateways_tell() {
    let mut bed = bed();
    bed.tick(60, 0);
    // 60 in flight in sum: 3,000 answers a second of 20 ms, in batches that
    // overlap by some ms.
    for batch in 0..100u64 {
        for at in 0..300u64 {
            let time = T0 + batch * 100 * MS + at * MS / 3;
            let late = if at % 3 == 0 { 0 } else { 5 * MS };
            let done = Done {
                dispatched: Nanos(time - late - 20 * MS),
                response: Some(Nanos(20 * MS)),
                error: false,
                route: 0,
                level: 0,
                found_waiter: false,
            };
            bed.limiter
                .pooled(&done, &mut bed.routes, Nanos(time - late));
        }
    }
    let limit = bed.limiter.limit();
    assert!((80..=100).contains(&limit), "{limit}");
    let found = bed.limiter.found();
    assert!((found.healthy - 60.0).abs() < 5.0, "{found:?}");
    // Its own answers are among them, and not told twice.
    bed.now = T0 + 10 * S;
    let seen = bed.limiter.window.ended;
    bed.end(bed.answered(20 * MS, false));
    assert_eq!(bed.limiter.window.ended, seen);
}

#[test]
fn the_next_leader_goes_on_where_the_last_one_was() {
    let found = Found {
        limit: 60.0,
        knee: 55.0,
        healthy: 50.0,
    };
    let mut bed = bed();
    bed.limiter.adopt(&found);
    assert_eq!(bed.limiter.found(), found);
    assert_eq!(bed.limiter.fresh, 0);
    // What cannot be is not taken over.
    bed.limiter.adopt(&Found {
        limit: 61.0,
        knee: f64::NAN,
        healthy: -1.0,
    });
    let kept = bed.limiter.found();
    assert_eq!((kept.limit, kept.knee, kept.healthy), (61.0, 55.0, 50.0));
}

/// Four gateways that tell every 100 ms, each at another time, of 1,000 requests a
/// second that found waiters.
fn told(bed: &mut Bed, ms: std::ops::Range<u64>, order: &mut Order) {
    for at in ms {
        bed.now = T0 + at * MS;
        bed.tick(5, 1);
        let gateway = match at % 100 {
            10 => 0,
            35 => 1,
            60 => 2,
            85 => 3,
            _ => continue,
        };
        for ago in (0..100).filter(|ago| ago % 4 == gateway) {
            let ended = bed.now - (100 - ago) * MS;
            let done = Done {
                dispatched: Nanos(ended - 20 * MS),
                response: Some(Nanos(20 * MS)),
                error: false,
                route: 0,
                level: 0,
                found_waiter: true,
            };
            order.add(done, Nanos(ended));
        }
        if gateway == 0 {
            for (done, ended) in order.take(Nanos(bed.now)) {
                bed.limiter.pooled(&done, &mut bed.routes, ended);
            }
        }
    }
}

#[test]
fn the_leader_measures_by_the_time_of_what_it_was_told() {
    let mut bed = bed();
    let mut order = Order::default();
    let mut at = 1_000;
    while bed.limiter.before_work == 0.0 {
        assert!(at < 4_000, "nothing is measured");
        told(&mut bed, at..at + 1, &mut order);
        at += 1;
    }
    // A thousand a second, each usually a millisecond.
    let off = bed.limiter.before_work - 1.0;
    assert!(off.abs() < 0.05, "{}", bed.limiter.before_work);
    // Nothing is told any more: nothing is over.
    let step = bed.limiter.step;
    for _ in 0..3_000 {
        bed.now += MS;
        bed.tick(5, 1);
    }
    assert_eq!(bed.limiter.step, step);
}

#[test]
fn what_is_told_comes_in_its_order_and_whole() {
    let mut order = Order::default();
    let done = bed().answered(MS, false);
    for ended in [30, 10, 100, 20] {
        order.add(done, Nanos(T0 + ended * MS));
    }
    let mut take = |now: u64| -> Vec<u64> {
        let all = order.take(Nanos(T0 + now * MS));
        all.map(|(_, ended)| (ended.0 - T0) / MS).collect()
    };
    assert!(take(150).is_empty());
    assert_eq!(take(190), [10, 20, 30]);
    assert!(take(249).is_empty());
    assert_eq!(take(1_000), [100]);
}

#[test]
fn who_led_before_measures_nothing_any_more() {
    let mut bed = bed();
    let mut order = Order::default();
    let mut at = 1_000;
    while bed.limiter.forced == 0 {
        assert!(at < 60_000, "no pair");
        told(&mut bed, at..at + 1, &mut order);
        at += 1;
    }
    bed.limiter.set_limit(77.0);
    assert_eq!((bed.limiter.limit(), bed.limiter.step), (77, WATCH));
}

#[test]
fn what_ends_here_alone_is_not_the_healthy_mean_of_all() {
    let mut bed = bed();
    for _ in 0..20 {
        bed.window(20 * MS, false, 10);
    }
    assert!(bed.limiter.base_ns().is_some());
    assert_eq!(bed.limiter.found().healthy, 0.0);
}
