//! What each level gets.
use super::*;

fn fill(bed: &mut Bed, level: u8, n: u32) {
    for cohort in 0..n {
        bed.queue(level, (cohort % 256) as u8);
    }
}

/// A pool of one slot where nobody is hopeless.
fn with_patience() -> Bed {
    Bed::new(&Settings {
        max_wait_ns: 600 * S,
        ..settings(1)
    })
}

/// How many of each level are served of the next `n`.
fn served(bed: &mut Bed, slot: &mut EntryId, n: u32) -> [u32; 4] {
    let mut by_level = [0; 4];
    for _ in 0..n {
        bed.next(slot);
        let level = bed.heap.entries[slot.index as usize].level;
        by_level[usize::from(level)] += 1;
    }
    by_level
}

#[test]
fn the_others_share_by_weight() {
    let mut bed = with_patience();
    bed.teach(1, 20, 10 * MS);
    let mut slot = bed.admit(1, 0);
    for level in [3, 2, 1] {
        fill(&mut bed, level, 200);
    }
    for _ in 0..20 {
        assert_eq!(served(&mut bed, &mut slot, 11), [0, 8, 2, 1]);
    }
    // Who does not want his share leaves it to the others.
    let mut bed = with_patience();
    bed.teach(1, 20, 10 * MS);
    let mut slot = bed.admit(1, 0);
    fill(&mut bed, 2, 100);
    fill(&mut bed, 3, 100);
    assert_eq!(served(&mut bed, &mut slot, 90), [0, 0, 60, 30]);
    // And gets nothing of it later.
    fill(&mut bed, 1, 100);
    let got = served(&mut bed, &mut slot, 77);
    assert!(
        got[1].abs_diff(56) <= 1 && got[2].abs_diff(14) <= 1,
        "{got:?}"
    );
}

/// Nobody waits any more: nobody owes anything.
#[test]
fn an_empty_queue_forgives() {
    let mut bed = with_patience();
    bed.teach(1, 20, 10 * MS);
    let mut slot = bed.admit(1, 0);
    fill(&mut bed, 2, 1);
    served(&mut bed, &mut slot, 1);
    fill(&mut bed, 3, 1);
    fill(&mut bed, 2, 1);
    assert_eq!(served(&mut bed, &mut slot, 1), [0, 0, 1, 0]);
}

/// Weights are shares of the backend's time, not of its requests.
#[test]
fn weights_are_shares_of_time() {
    let mut bed = Bed::new(&settings(1));
    for _ in 0..300 {
        bed.heap.state.routes.learn(1, 10e6);
        bed.heap.state.routes.learn(2, 40e6);
    }
    bed.wait(2 * S);
    let mut slot = bed.admit(1, 0);
    for n in 0..60 {
        for (level, route) in [(1, 2), (2, 1)] {
            let a = Arrival {
                route,
                ..bed.ask(level, n)
            };
            assert!(matches!(bed.arrive_as(a), Entered::Queued(_)));
        }
    }
    // 8:2 of time, and what is level 1's takes four times as long: 1:1.
    assert_eq!(served(&mut bed, &mut slot, 40), [0, 20, 20, 0]);
}

/// 300 of level 0 at once, while level 1 stands.
fn core_burst(bed: &mut Bed) -> [u32; 4] {
    let mut slot = bed.admit(1, 0);
    fill(bed, 1, 100);
    bed.wait(200 * MS);
    fill(bed, 0, 300);
    let served = served(bed, &mut slot, 300);
    assert_eq!(served[0] + served[1], 300);
    served
}

#[test]
fn level_0_goes_before_all_but_for_a_tenth() {
    let got = core_burst(&mut Bed::new(&settings(1)));
    assert!((24..=31).contains(&got[1]), "at least 8 %: {got:?}");
}

/// Where level 0 alone asks for all there is, it gets it.
#[test]
fn level_0_is_not_kept_from_what_it_needs() {
    // ρ₁: 300 arrivals within 10 s, 40 ms each: 1.2; then 0.6 and 0.84.
    for (ms, least, most) in [(40, 0, 0), (20, 8, 11), (28, 4, 9)] {
        let mut bed = with_patience();
        bed.teach(0, 20, ms * MS);
        // Out of sight: the arrivals that taught.
        bed.pass(11 * S);
        let mut slot = bed.admit(1, 0);
        fill(&mut bed, 1, 100);
        bed.wait(200 * MS);
        fill(&mut bed, 0, 300);
        let mut low = 0;
        for n in 0..100 {
            bed.wait(ms * MS);
            // Where level 0 takes all there is, it is hopeless.
            bed.arrive(1, n);
            low += served(&mut bed, &mut slot, 1)[1];
        }
        assert!((least..=most).contains(&low), "{ms} ms: {low}");
    }
}

/// The share is not saved up while nobody wants it.
#[test]
fn no_share_is_saved_up() {
    let mut bed = Bed::new(&settings(1));
    let mut slot = bed.admit(0, 0);
    fill(&mut bed, 0, 200);
    served(&mut bed, &mut slot, 100);
    fill(&mut bed, 1, 100);
    assert_eq!(served(&mut bed, &mut slot, 9), [9, 0, 0, 0]);
    assert_eq!(served(&mut bed, &mut slot, 11)[1], 1);
}

/// A pool of 10 where level 0 has had 4 in flight for 10 s.
fn with_long_others(core_ms: u64, other_ms: u64) -> (Bed, Vec<EntryId>) {
    let mut bed = Bed::new(&settings(10));
    bed.teach(0, 20, core_ms * MS);
    bed.teach(2, 20, other_ms * MS);
    let core = (0..4).map(|_| bed.admit(0, 0)).collect();
    bed.pass(12 * S);
    (bed, core)
}

/// ⌈4 + √4⌉ = 6 of 10 slots are kept for level 0.
#[test]
fn long_requests_leave_a_reserve() {
    let (mut bed, core) = with_long_others(10, 31);
    let other: Vec<EntryId> = (0..4).map(|n| bed.admit(1 + n % 3, 0)).collect();
    bed.queue(1, 0);
    assert_eq!(bed.view().in_flight, 8);
    // The two that are free are for level 0.
    bed.admit(0, 0);
    // One that it gives back goes to nobody else (and says nothing of its time).
    bed.leave(core[0]);
    assert_eq!(bed.news(), []);
    let due = bed.next_due();
    assert!(due <= 100 * MS, "what is kept changes with time: {due}");
    // But what the others give back does.
    bed.release(other[0]);
    assert_eq!(bed.news(), [(48, Notice::Granted)]);
}

#[test]
fn no_reserve_where_others_are_as_quick() {
    let (mut bed, _) = with_long_others(10, 30);
    for _ in 0..6 {
        bed.admit(1, 0);
    }
    bed.queue(1, 0);
}

/// Level 0 has been gone for 10 s: nothing is kept. And one slot is always the others'.
#[test]
fn the_reserve_is_of_the_last_10_s() {
    let (mut bed, core) = with_long_others(10, 40);
    for id in core {
        bed.leave(id);
    }
    bed.pass(11 * S);
    for _ in 0..10 {
        bed.admit(3, 0);
    }
    let (mut bed, core) = with_long_others(10, 40);
    let fewer = settings(3);
    let now = bed.now();
    let mut wakes = Wakes::default();
    bed.heap.pool().configure(&fewer, now, &mut wakes);
    for id in &core[..2] {
        bed.leave(*id);
    }
    bed.admit(1, 0);
}

/// B76: a level offered 120 % of what there is, for 30 s, and 5 requests a second
/// of one below it.
#[test]
fn a_low_level_is_served_or_answered() {
    for (high, low) in [(1, 3), (0, 3)] {
        let mut bed = Bed::new(&settings(4));
        bed.quiet = true;
        let mut busy: Vec<(u64, EntryId)> = Vec::new();
        let mut asked = std::collections::HashMap::new();
        let mut waits = [Vec::new(), Vec::new()];
        let (mut answered, mut served) = ([0, 0], [0, 0]);
        let mut arrivals = [0, 0];
        // 4 slots of 20 ms are 200/s.
        let end = T0 + 30 * S;
        while bed.now < end + 10 * S {
            let ms = (bed.now - T0) / MS;
            for (who, level, every) in [(0, high, 25), (1, low, 1200)] {
                // In sixths of a millisecond: 240/s and 5/s.
                for tick in 6 * ms..6 * ms + 6 {
                    if tick % every != 0 || bed.now >= end {
                        continue;
                    }
                    arrivals[who] += 1;
                    match bed.arrive(level, (tick % 256) as u8) {
                        Entered::Admitted(id) => {
                            waits[who].push(0);
                            served[who] += 1;
                            answered[who] += 1;
                            busy.push((bed.now + 20 * MS, id));
                        }
                        Entered::Queued(id) => {
                            asked.insert(id, (who, bed.now));
                        }
                        Entered::Shed(_) => {
                            waits[who].push(u64::MAX);
                            answered[who] += 1;
                        }
                    }
                }
            }
            let now = bed.now;
            for (_, id) in busy.extract_if(.., |it| it.0 <= now) {
                bed.release(id);
            }
            bed.tick();
            for it in bed.collect() {
                let (who, since) = asked.remove(&it.entry).expect("asked");
                answered[who] += 1;
                let waited = bed.now - since;
                let served_after = match it.notice {
                    Notice::Granted => waited,
                    _ => u64::MAX,
                };
                waits[who].push(served_after);
                assert!(waited <= 5 * S + 2 * MS, "{waited}");
                if it.notice == Notice::Granted {
                    served[who] += 1;
                    busy.push((bed.now + 20 * MS, it.entry));
                }
            }
            bed.wait(MS);
        }
        assert_eq!(answered, arrivals, "each has its answer");
        assert_eq!(bed.view().in_flight, 0);
        if high == 1 {
            assert!(
                served[1] >= 140,
                "its share is more than it asks: {served:?}"
            );
            continue;
        }
        assert!(served[1] <= 75, "level 0 goes first: {served:?}");
        let [high, low] = waits.map(|mut waits| {
            waits.sort_unstable();
            waits[waits.len() / 2]
        });
        assert!(high < low, "{high} {low}");
    }
}
