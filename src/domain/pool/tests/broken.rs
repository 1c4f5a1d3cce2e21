//! State that a killed process left behind: no bits panic or hang, and a rebuild
//! makes a sound pool of any.
use super::random::{Event, Known, event, run, some_settings};
use super::*;
use proptest::prelude::*;

/// Random bits of all kinds: small, large, almost right.
fn source(seed: u64, places: u64) -> impl FnMut() -> u64 {
    let mut state = seed;
    move || {
        // splitmix64
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        match z % 8 {
            0 => 0,
            1 | 2 => (z >> 8) % 7,
            3 | 4 => (z >> 8) % places.max(1),
            5 => u64::MAX,
            6 => T0 + (z >> 8) % (10 * S),
            _ => z,
        }
    }
}

/// Everything but the limiter and the routes, which have tests of their own.
fn scramble(heap: &mut Heap, parts: u16, bits: &mut dyn FnMut() -> u64) {
    let state = &mut *heap.state;
    let has = |part: u16| parts >> part & 1 == 1;
    if has(0) {
        heap.entries.iter_mut().for_each(|it| it.scramble(bits));
    }
    if has(1) {
        state.classes.iter_mut().for_each(|it| it.scramble(bits));
    }
    if has(2) {
        state.wheel.scramble(bits);
    }
    if has(3) {
        state.inboxes.iter_mut().for_each(|it| it.scramble(bits));
        state.free.scramble(bits);
    }
    if has(4) {
        state.in_flight = std::array::from_fn(|_| bits() as u32);
        state.taken = bits() as u32;
        state.ghosts = bits() as u32;
        state.waiting = bits() as u32;
        state.levels = bits() as u32;
        state.blind = bits() as u32;
    }
    if has(5) {
        state.shares.scramble(bits);
        state.owed = f64::from_bits(bits());
        state.slot_s.scramble(bits);
        state.core_slot_s.scramble(bits);
        state.other_slot_s.scramble(bits);
        state.core_arrivals.scramble(bits);
        state.core_held.scramble(bits);
        state.core_held_at = bits();
        state.spread.scramble(bits);
        (state.now, state.born) = (bits(), bits());
    }
    if has(6) {
        let settings = &mut state.settings;
        settings.capacity = bits() as u32;
        settings.levels = bits() as u32;
        settings.cluster = bits() as u32;
        settings.weights = std::array::from_fn(|_| bits() as u32);
        settings.max_wait_ns = bits();
        settings.timeout_ns = bits();
        state.saturated = bits() as u32;
        state.leased = bits() as u32;
        (state.share, state.fallback) = (bits() as u32, bits() as u32);
        state.share_until = bits();
    }
}

/// What a worker that knows nothing of the damage does.
fn blunder(heap: &mut Heap, event: &Event, now: u64, bits: &mut dyn FnMut() -> u64) {
    let (now, mut wakes) = (Nanos(now), Wakes::default());
    let id = EntryId {
        index: bits() as u32,
        generation: heap.entries[bits() as usize % heap.entries.len()].generation,
    };
    let mut pool = heap.pool();
    let _ = pool.next_due(now);
    let _ = pool.view(now);
    match *event {
        Event::Arrive { level, line, .. } => {
            let a = Arrival {
                level,
                cohort: bits() as u8,
                route: bits() as u8,
                blind: bits().is_multiple_of(2),
                exempt: bits().is_multiple_of(9),
                line,
                ticket: 0,
                since: Nanos(bits()),
            };
            let _ = pool.would_shed(&a, now);
            pool.arrive(&a, now, &mut wakes);
        }
        Event::Release {
            feedback,
            abandoned,
            ..
        } => {
            let end = Completion {
                feedback,
                abandoned,
            };
            pool.release(id, &end, now, &mut wakes);
        }
        Event::Leave(_) => pool.leave(id, now, &mut wakes),
        Event::GiveUp(_) => {
            pool.give_up(id, now, &mut wakes);
        }
        Event::Collect(line, room) => pool.collect(line, room, now, &mut Vec::new()),
        Event::LineDied(line) => pool.line_died(line, now, &mut wakes),
        Event::Configure(settings) => pool.configure(&settings, now, &mut wakes),
        Event::SetShare(share, ns, rest) => {
            pool.set_share(share, Nanos(now.0 + ns), rest, now, &mut wakes)
        }
        Event::Tick | Event::Rebuild => pool.tick(now, &mut wakes),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Before, after and without a rebuild.
    #[test]
    fn no_bits_are_too_bad(
        settings in some_settings(),
        before in prop::collection::vec(event(), 0..40),
        blunders in prop::collection::vec(event(), 0..20),
        after in prop::collection::vec(event(), 0..40),
        parts in 1..128u16,
        seed in any::<u64>(),
        places in 1..40usize,
    ) {
        let mut heap = Heap::new(places, &settings, Nanos(T0));
        let mut now = T0;
        let mut known = Known::default();
        for event in &before {
            now += 3 * MS;
            run(&mut heap, &mut known, event, now);
        }
        let mut bits = source(seed, places as u64);
        scramble(&mut heap, parts, &mut bits);
        for event in &blunders {
            now += 3 * MS;
            blunder(&mut heap, event, now, &mut bits);
        }
        heap.pool().rebuild(Nanos(now), &mut Wakes::default());
        check(&heap, now);
        // From here on it is a pool like any other.
        heap.pool().configure(&settings, Nanos(now), &mut Wakes::default());
        // Ghosts end within the timeout that is configured now.
        heap.pool().rebuild(Nanos(now), &mut Wakes::default());
        for line in 0..LINES as u16 {
            heap.pool().line_died(line, Nanos(now), &mut Wakes::default());
        }
        check(&heap, now);
        let mut known = Known::default();
        for event in &after {
            now += 3 * MS;
            run(&mut heap, &mut known, event, now);
            heap.pool().tick(Nanos(now), &mut Wakes::default());
            check(&heap, now);
        }
    }
}
