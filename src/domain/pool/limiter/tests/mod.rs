//! The limiter's rules: one by one (`rules`), at a simulated backend
//! (`backend`), of a cluster (`cluster`), and of any bits (`bits`).
use super::super::LEVELS;
use super::*;

mod backend;
mod bits;
mod cluster;
mod rules;

/// Not 0, so that a time before the pool's is one.
const T0: u64 = 1_000 * S;

fn settings() -> Settings {
    Settings {
        adaptive: 1,
        limit: 20,
        min: 1,
        max: 1000,
        start: 20,
        capacity: 1000,
        levels: 4,
        cluster: 0,
        weights: [1; LEVELS],
        max_wait_ns: 5 * S,
        timeout_ns: 60 * S,
    }
}

/// A limiter, its routes and the time, for requests that are told one by one.
struct Bed {
    limiter: Box<Limiter>,
    routes: Box<Routes>,
    now: u64,
}

impl Bed {
    fn new(settings: &Settings) -> Bed {
        let mut limiter = Box::new(Limiter::new());
        limiter.format(settings, Nanos(T0));
        Bed {
            limiter,
            routes: Box::new(Routes::new()),
            now: T0,
        }
    }

    fn tick(&mut self, in_flight: u32, waiting: u32) {
        let load = Load { in_flight, waiting };
        self.limiter.tick(load, Nanos(self.now));
    }

    /// One request that ends now.
    fn end(&mut self, done: Done) {
        self.limiter
            .complete(&done, &mut self.routes, Nanos(self.now));
    }

    fn answered(&self, ns: u64, found_waiter: bool) -> Done {
        Done {
            dispatched: Nanos(self.now - ns),
            response: Some(Nanos(ns)),
            error: false,
            route: 0,
            level: 0,
            found_waiter,
        }
    }

    /// A window: 100 ms, an answer every 2 ms.
    fn window(&mut self, ns: u64, found_waiter: bool, in_flight: u32) {
        for _ in 0..50 {
            self.now += 2 * MS;
            self.tick(in_flight, u32::from(found_waiter));
            self.end(self.answered(ns, found_waiter));
        }
    }
}
