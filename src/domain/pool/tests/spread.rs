//! Slots that come free all at once are spread.
use super::super::spread::Spread;
use super::*;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// How long requests take the backend.
#[derive(Clone, Copy, PartialEq)]
enum Times {
    Alike,
    Exponential,
}

/// What a pool of 16 under a flood came to in 10 s.
#[derive(Debug)]
struct Came {
    /// Mean wait of level 0, ms.
    core_ms: f64,
    /// Requests/s by what 16 slots of 20 ms can do.
    throughput: f64,
}

/// 16 slots that all begin at once, level 0 at a fifth of the capacity, `flood` requests/s
/// of the lowest level.
fn bunched(times: Times, flood: u64) -> Came {
    const SERVICE: u64 = 20 * MS;
    let mut bed = Bed::new(&settings(16));
    bed.quiet = true;
    let mut state = 7u64;
    // 0 to 1, never 0.
    let mut chance = move || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        ((state >> 33) + 1) as f64 / (1u64 << 31) as f64
    };
    // Time, number (0: level 0, 1: others, 2: the end of a request), entry.
    let mut events = BinaryHeap::new();
    let (mut ends, mut n) = (Vec::new(), 0u64);
    events.push(Reverse((T0, 0u8, 0usize)));
    events.push(Reverse((T0, 1, 0)));
    let (mut waits, mut served) = (Vec::new(), 0);
    let mut asked = std::collections::HashMap::new();
    let (from, until) = (T0 + 2 * S, T0 + 12 * S);
    while let Some(Reverse((at, what, which))) = events.pop() {
        if at >= until {
            break;
        }
        bed.now = at;
        let mut begun = Vec::new();
        match what {
            2 => {
                let (id, took) = ends[which];
                bed.release_with(id, answered(took));
                served += u32::from(at >= from);
            }
            _ => {
                let per_s = if what == 0 { 160 } else { flood };
                n += 1;
                match bed.arrive(if what == 0 { 0 } else { 3 }, (n % 256) as u8) {
                    Entered::Admitted(id) => {
                        begun.push(id);
                        if what == 0 && at >= from {
                            waits.push(0);
                        }
                    }
                    Entered::Queued(id) => {
                        asked.insert(id, (what, at));
                    }
                    Entered::Shed(_) => {}
                }
                let gap = (-chance().ln() * 1e9 / per_s as f64) as u64;
                events.push(Reverse((at + gap, what, 0)));
            }
        }
        for it in bed.collect() {
            let (what, since) = asked.remove(&it.entry).expect("asked");
            if it.notice == Notice::Granted {
                begun.push(it.entry);
                if what == 0 && at >= from {
                    waits.push(at - since);
                }
            }
        }
        for id in begun {
            let took = match times {
                Times::Alike => SERVICE,
                Times::Exponential => (-chance().ln() * SERVICE as f64) as u64,
            };
            ends.push((id, took));
            events.push(Reverse((at + took, 2, ends.len() - 1)));
        }
    }
    let mean = waits.iter().sum::<u64>() as f64 / waits.len() as f64;
    Came {
        core_ms: mean / MS as f64,
        throughput: f64::from(served) / 8000.0,
    }
}

/// Bunches of 16 would be 20 ms apart: 10 ms of waiting. Evenly spread, half of 1.25 ms
/// and what level 0 waits for itself.
#[test]
fn bunched_slots_are_spread() {
    let came = bunched(Times::Alike, 2400);
    assert!(came.core_ms < 2.0, "{came:?}");
    assert!(came.throughput > 0.98, "{came:?}");
}

/// Nothing of the backend is given away where times vary by themselves, and none where
/// too few come to be the clock of it.
#[test]
fn nothing_is_kept_back_without_need() {
    let came = bunched(Times::Exponential, 2400);
    assert!(came.throughput > 0.97 && came.core_ms < 2.5, "{came:?}");
    let came = bunched(Times::Alike, 700);
    assert!(came.throughput > 0.98, "{came:?}");
}

/// A slot that is kept back is level 0's at once, and the others' after its moment.
#[test]
fn what_is_kept_back_is_level_0s_for_the_asking() {
    let mut bed = Bed::new(&settings(4));
    let mut slots: Vec<EntryId> = (0..4).map(|n| bed.admit(1, n)).collect();
    for n in 0..100 {
        bed.queue(1, n);
    }
    // Four at a time, every 20 ms, and arrivals all the time.
    for turn in 0..40 {
        for _ in 0..40 {
            bed.wait(MS / 2);
            bed.arrive(3, 0);
            for it in bed.collect() {
                if it.notice == Notice::Granted {
                    slots.push(it.entry);
                }
            }
        }
        if turn < 39 || slots.len() < 4 {
            for slot in std::mem::take(&mut slots) {
                bed.release_with(slot, answered(20 * MS));
            }
        }
    }
    let first = slots.remove(0);
    bed.release(first);
    for it in bed.collect() {
        assert_eq!(it.notice, Notice::Granted);
    }
    let second = slots.remove(0);
    bed.release(second);
    assert_eq!(bed.news(), [], "one was granted just now");
    let due = bed.next_due();
    assert!((1..=4 * MS).contains(&due), "{due}");
    let core = bed.admit(0, 0);
    bed.release(core);
    bed.pass(5 * MS);
    let news = bed.news();
    assert_eq!(news.len(), 1, "{news:?}");
    assert_eq!(news[0].1, Notice::Granted);
}

/// What is kept back, µs, when a slot is taken `late` ns after 400 bunches of `bunch` slots
/// that come free 5 ms apart, one of which is held for `held_s`, with an arrival every
/// `arrivals` ns.
fn kept_us(
    (slots, bunch): (u32, u32),
    held_s: impl Fn(u32) -> f64,
    arrivals: u64,
    late: u64,
) -> u64 {
    let mut spread = Spread::new();
    let mut now = T0;
    for n in 0..400 * bunch {
        if n % bunch == 0 {
            for _ in 0..5 * MS / arrivals {
                now += arrivals;
                spread.arrived(now);
            }
        }
        spread.held(held_s(n));
        spread.freed(slots, now);
    }
    now += late;
    spread.taken(slots, now);
    spread.keeps_ns(now) / 1000
}

#[test]
fn only_bunches_that_last_and_cost_something_are_spread() {
    let (four, same, often) = ((16, 4), |_| 0.02, MS / 10);
    // 5 ms by 4 are 1.25 ms, of which eight tenths, less two ticks of 0.1 ms.
    let kept = kept_us(four, same, often, 0);
    assert!((750..=850).contains(&kept), "{kept}");
    let alike = |n| if n % 2 == 0 { 0.018 } else { 0.022 };
    assert!(kept_us(four, alike, often, 0) > 0);
    let varying = |n| if n % 2 == 0 { 0.01 } else { 0.03 };
    assert_eq!(kept_us(four, varying, often, 0), 0, "spread by themselves");
    assert_eq!(kept_us((16, 1), same, often, 0), 0, "spread");
    assert!(kept_us((32, 4), same, often, 0) > 0);
    assert_eq!(kept_us((64, 4), same, often, 0), 0, "close even so");
    assert_eq!(kept_us(four, same, MS, 0), 0, "no clock");
    assert_eq!(kept_us(four, same, often, 5 * MS), 0, "the clock stands");
}

/// Nobody waited in between: that was no gap.
#[test]
fn a_pause_is_no_gap() {
    let mut spread = Spread::new();
    let mut now = T0;
    for n in 0..400 {
        // Even, but for a tenth of a second after each sixteen.
        let ticks = if n % 16 == 0 { 1000 } else { 10 };
        for _ in 0..ticks {
            now += MS / 10;
            spread.arrived(now);
        }
        spread.held(0.02);
        match n % 16 {
            15 => spread.rest(),
            _ => spread.freed(16, now),
        }
    }
    spread.taken(16, now);
    assert_eq!(spread.keeps_ns(now), 0);
}
