//! The limiter in front of a backend of K workers behind a FIFO, with more
//! requests than that can do, or fewer.
use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::*;

/// Requests that come as soon as they may.
const CROWD: f64 = f64::INFINITY;

struct Backend {
    bed: Bed,
    workers: usize,
    /// When each worker is free.
    free_at: BinaryHeap<Reverse<u64>>,
    /// When each ends, and was sent.
    sent: BinaryHeap<Reverse<(u64, u64)>>,
    service_ns: f64,
    exponential: bool,
    /// Arrivals a second, the next one, and who waits.
    per_s: f64,
    next: u64,
    waiting: u32,
    /// One in twenty answers comes with an aborted request.
    nuisance: bool,
    seed: u64,
}

impl Backend {
    fn new(settings: &Settings, workers: usize, exponential: bool) -> Backend {
        let bed = Bed::new(settings);
        Backend {
            next: bed.now,
            workers,
            free_at: (0..workers).map(|_| Reverse(bed.now)).collect(),
            bed,
            sent: BinaryHeap::new(),
            service_ns: 20.0 * MS as f64,
            exponential,
            per_s: CROWD,
            waiting: 0,
            nuisance: false,
            seed: 7,
        }
    }

    /// What the backend does a second.
    fn capacity(&self) -> f64 {
        self.workers as f64 * 1e9 / self.service_ns
    }

    fn unit(&mut self) -> f64 {
        self.seed = self.seed.wrapping_mul(6364136223846793005).wrapping_add(1);
        ((self.seed >> 33) + 1) as f64 / (1u64 << 31) as f64
    }

    fn set_workers(&mut self, workers: usize) {
        let now = self.bed.now;
        while self.free_at.len() > workers {
            // Those that are busy longest go on to the end of what they do.
            self.free_at.pop();
        }
        while self.free_at.len() < workers {
            self.free_at.push(Reverse(now));
        }
        self.workers = workers;
    }

    /// Goes on for so many seconds; the mean limit of the last of them.
    fn run(&mut self, seconds: f64) -> f64 {
        let until = self.bed.now + (seconds * 1e9) as u64;
        let last = until.saturating_sub(S);
        let (mut sum, mut n) = (0.0, 0);
        loop {
            let ends = self.sent.peek().map_or(u64::MAX, |it| it.0.0);
            let comes = if self.per_s.is_finite() {
                self.next
            } else {
                u64::MAX
            };
            let time = ends.min(comes).min(self.bed.now + 10 * MS);
            if time > until {
                break;
            }
            self.bed.now = time;
            if comes == time {
                let gap = -self.unit().ln() * 1e9 / self.per_s;
                self.next = time + gap as u64;
                self.waiting = (self.waiting + 1).min(1000);
            }
            if ends == time {
                let Reverse((_, dispatched)) = self.sent.pop().expect("it was looked at");
                let response = time - dispatched;
                let found_waiter = self.waits();
                let done = self.bed.answered(response, found_waiter);
                self.bed.end(done);
                if self.nuisance && self.unit() < 0.05 {
                    let nothing = Done {
                        response: None,
                        ..self.bed.answered(MS, true)
                    };
                    self.bed.end(nothing);
                }
            }
            self.fill();
            if time >= last {
                sum += f64::from(self.bed.limiter.limit());
                n += 1;
            }
        }
        sum / f64::from(n.max(1))
    }

    fn waits(&self) -> bool {
        self.per_s == CROWD || self.waiting > 0
    }

    fn fill(&mut self) {
        let now = self.bed.now;
        self.bed
            .tick(self.sent.len() as u32, u32::from(self.waits()));
        while self.waits() && (self.sent.len() as u32) < self.bed.limiter.limit() {
            self.waiting = self.waiting.saturating_sub(1);
            let drawn = if self.exponential {
                -self.unit().ln()
            } else {
                1.0
            };
            let Reverse(free) = self.free_at.pop().expect("there are workers");
            let ends = free.max(now) + (self.service_ns * drawn) as u64;
            self.free_at.push(Reverse(ends));
            self.sent.push(Reverse((ends, now)));
        }
        self.bed
            .tick(self.sent.len() as u32, u32::from(self.waits()));
    }

    /// The limit's mean over ten seconds.
    fn settled(&mut self) -> f64 {
        (0..10).map(|_| self.run(1.0)).sum::<f64>() / 10.0
    }
}

fn bounds(min: u32, max: u32) -> Settings {
    Settings {
        min,
        max,
        ..settings()
    }
}

/// At 60 % of its capacity for half a minute, then more than it can do.
fn flooded(workers: usize, exponential: bool) -> Backend {
    let mut backend = Backend::new(&bounds(2, 200), workers, exponential);
    backend.per_s = 0.6 * backend.capacity();
    backend.run(30.0);
    backend.per_s = CROWD;
    backend
}

#[track_caller]
fn assert_within(measured: f64, wanted: f64, part: f64) {
    let off = measured / wanted - 1.0;
    assert!(
        off.abs() <= part,
        "{measured} is not within {part} of {wanted}"
    );
}

#[test]
fn a_start_in_mid_flood_finds_a_large_backend_by_doubling() {
    let mut backend = Backend::new(&bounds(1, 1000), 200, false);
    let limit = backend.run(2.0);
    assert!((150.0..260.0).contains(&limit), "{limit}");
}

#[test]
fn a_start_in_mid_flood_finds_a_small_backend_by_halving() {
    let mut backend = Backend::new(&bounds(1, 1000), 4, false);
    let limit = backend.run(3.0);
    assert!((3.0..8.0).contains(&limit), "{limit}");
}

#[test]
fn a_flood_finds_the_limit_in_a_second() {
    for (workers, exponential) in [(16, false), (16, true), (64, false), (64, true)] {
        let mut backend = flooded(workers, exponential);
        let k = workers as f64;
        assert!(
            backend.bed.limiter.limit > 1.3 * k,
            "{}",
            backend.bed.limiter.limit
        );
        let base = backend.bed.limiter.base_ns();
        let limit = backend.run(1.0).min(backend.run(0.5));
        assert!(limit < 1.35 * k && limit > 0.45 * k, "{limit} of {k}");
        // The window in which the flood began may have been calm.
        assert_within(backend.bed.limiter.base_ns().unwrap(), base.unwrap(), 0.03);
        backend.run(20.0);
        assert_within(backend.settled(), k, 0.25);
    }
}

/// B80 (a).
#[test]
fn a_backend_that_is_slower_for_a_while_keeps_its_limit() {
    for exponential in [false, true] {
        let mut backend = flooded(16, exponential);
        backend.run(20.0);
        let steady = backend.settled();
        backend.service_ns *= 20.0;
        // What the jump takes is given back when it has been verified.
        backend.run(15.0);
        let slow = backend.settled();
        // Of 40 answers a second that are spread widely little can be told.
        let part = if exponential { 0.5 } else { 0.8 };
        assert!(slow > part * steady, "{slow} of {steady}, {exponential}");
        backend.service_ns /= 20.0;
        backend.run(60.0);
        assert_within(backend.settled(), steady, 0.2);
    }
}

/// B80 (b).
#[test]
fn a_backend_that_loses_half_of_its_workers_and_has_them_back() {
    for exponential in [false, true] {
        // At a third of its capacity before, so that half of it is more than usual.
        let mut backend = Backend::new(&bounds(2, 200), 32, exponential);
        backend.per_s = 0.33 * backend.capacity();
        backend.run(30.0);
        backend.per_s = CROWD;
        backend.run(30.0);
        backend.set_workers(16);
        backend.run(10.0);
        // Ratios of logarithms make more of a queue than it is where services are
        // spread: the jump goes too far, and pairs come back in steps of an eighth.
        let part = if exponential { 0.35 } else { 0.25 };
        assert_within(backend.settled(), 16.0, part);
        backend.set_workers(32);
        backend.run(60.0);
        assert!(backend.settled() > 0.8 * 32.0);
    }
}

/// B80, the last sentence.
#[test]
fn a_start_at_a_slow_backend_ends_where_one_at_a_fast_one_does() {
    let mut fast = Backend::new(&bounds(2, 200), 16, false);
    fast.run(60.0);
    let mut slow = Backend::new(&bounds(2, 200), 16, false);
    slow.service_ns *= 20.0;
    slow.run(30.0);
    slow.service_ns /= 20.0;
    slow.run(60.0);
    assert_within(slow.settled(), fast.settled(), 0.2);
}

/// B81, at a fifth of its ten minutes for each of the services.
#[test]
fn under_a_long_flood_neither_limit_nor_r0_drift() {
    for exponential in [false, true] {
        let mut backend = Backend::new(&bounds(2, 200), 16, exponential);
        backend.per_s = 0.6 * backend.capacity();
        backend.run(30.0);
        backend.per_s = 1.5 * backend.capacity();
        backend.nuisance = true;
        backend.run(10.0);
        let base = backend.bed.limiter.base_ns();
        let minute = |backend: &mut Backend| (0..6).map(|_| backend.settled()).sum::<f64>() / 6.0;
        let first = minute(&mut backend);
        backend.run(120.0);
        assert_within(minute(&mut backend), first, 0.2);
        assert_eq!(backend.bed.limiter.base_ns(), base);
        assert_within(base.unwrap(), 20.0 * MS as f64, 0.15);
    }
}

#[test]
fn after_failures_the_limit_is_found_again_in_seconds() {
    let mut backend = flooded(64, false);
    backend.run(20.0);
    let steady = backend.settled();
    for _ in 0..400 {
        backend.bed.now += 2 * MS;
        let failed = Done {
            error: true,
            response: None,
            ..backend.bed.answered(MS, true)
        };
        backend.bed.end(failed);
    }
    assert!(
        backend.bed.limiter.limit() <= 8,
        "{}",
        backend.bed.limiter.limit()
    );
    backend.next = backend.bed.now;
    backend.run(10.0);
    assert!(backend.settled() > 0.8 * steady);
}

#[test]
fn calm_is_where_a_flood_ends() {
    let mut backend = flooded(16, true);
    backend.run(20.0);
    assert!(backend.bed.limiter.saturated());
    backend.per_s = 0.6 * backend.capacity();
    backend.next = backend.bed.now;
    backend.run(5.0);
    assert!(!backend.bed.limiter.saturated());
    assert!(backend.bed.limiter.limit >= 0.99 * backend.bed.limiter.knee.min(16.0));
}
