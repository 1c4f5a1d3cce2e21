//! The best published limiters, by their formulas, to compare with.
//!
//! Both look at one response time a second, the mean of that second's, as their
//! implementations do by default, and start at 20.

/// The first limit of both.
pub const START: f64 = 20.0;
const MOST: f64 = 1000.0;

pub struct Rival {
    kind: Kind,
    limit: f64,
    from_ns: u64,
    n: u32,
    sum_s: f64,
    most_in_flight: u32,
}

enum Kind {
    /// The limit times long-term response / present response, plus a queue.
    Gradient2 { long_s: f64, n: u32 },
    /// The queue as limit × (1 - least response / present response) is kept
    /// between two bounds.
    Vegas { least_s: f64, until_reset: f64 },
}

impl Rival {
    pub fn gradient2() -> Rival {
        Rival::new(Kind::Gradient2 { long_s: 0.0, n: 0 })
    }

    pub fn vegas() -> Rival {
        Rival::new(Kind::Vegas {
            least_s: f64::MAX,
            until_reset: 30.0 * START,
        })
    }

    fn new(kind: Kind) -> Rival {
        Rival {
            kind,
            limit: START,
            from_ns: 0,
            n: 0,
            sum_s: 0.0,
            most_in_flight: 0,
        }
    }

    pub fn limit(&self) -> u32 {
        self.limit.round().clamp(1.0, MOST) as u32
    }

    /// A response; true if the limit may have changed.
    pub fn add(&mut self, response_s: f64, in_flight: u32, now_ns: u64) -> bool {
        self.n += 1;
        self.sum_s += response_s;
        self.most_in_flight = self.most_in_flight.max(in_flight);
        if now_ns - self.from_ns < 1_000_000_000 || self.n < 10 {
            return false;
        }
        let mean_s = self.sum_s / f64::from(self.n);
        let (n, most) = (f64::from(self.n), f64::from(self.most_in_flight));
        (self.n, self.sum_s, self.most_in_flight, self.from_ns) = (0, 0.0, 0, now_ns);
        self.step(mean_s, n, most);
        self.limit = self.limit.clamp(1.0, MOST);
        true
    }

    fn step(&mut self, mean_s: f64, n: f64, in_flight: f64) {
        let limit = self.limit;
        match &mut self.kind {
            Kind::Gradient2 { long_s, n } => {
                // 600 means long; the first ten count evenly.
                *n += 1;
                let weight = if *n <= 10 {
                    1.0 / f64::from(*n)
                } else {
                    2.0 / 601.0
                };
                *long_s += weight * (mean_s - *long_s);
                if *long_s / mean_s > 2.0 {
                    *long_s *= 0.95;
                }
                if in_flight < limit / 2.0 {
                    return;
                }
                let gradient = (1.5 * *long_s / mean_s).clamp(0.5, 1.0);
                self.limit = 0.8 * limit + 0.2 * (limit * gradient + 4.0);
            }
            Kind::Vegas {
                least_s,
                until_reset,
            } => {
                *until_reset -= n;
                if *until_reset <= 0.0 {
                    *until_reset = 30.0 * limit;
                    *least_s = mean_s;
                    return;
                }
                if mean_s < *least_s {
                    *least_s = mean_s;
                    return;
                }
                if in_flight * 2.0 < limit {
                    return;
                }
                let queue = (limit * (1.0 - *least_s / mean_s)).ceil();
                let log = limit.log10().max(1.0);
                if queue <= log {
                    self.limit += 6.0 * log;
                } else if queue < 3.0 * log {
                    self.limit += log;
                } else if queue > 6.0 * log {
                    self.limit -= log;
                }
            }
        }
    }
}
