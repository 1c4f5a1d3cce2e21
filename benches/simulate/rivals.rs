//! The best published limiters, to compare with: Netflix's concurrency-limits, its
//! `VegasLimit` and `Gradient2Limit` with their defaults, each in its
//! `WindowedLimit` (of one response alone neither says anything where service
//! times vary): one look a second, at the mean of that second's.
use crate::traffic::Numbers;

/// The first limit of both.
pub const START: f64 = 20.0;
/// `WindowedLimit`: the shortest window, and the fewest responses in one.
const WINDOW_NS: u64 = 1_000_000_000;
const FEWEST: u32 = 10;

pub struct Rival {
    kind: Kind,
    limit: f64,
    due_ns: u64,
    n: u32,
    sum_s: f64,
    most_in_flight: u32,
}

enum Kind {
    /// The limit times long-term response / present response, plus a queue.
    Gradient2 { long_s: f64, n: u32 },
    /// The queue as limit × (1 - least response / present response) is kept
    /// between two bounds. The least is taken anew once in 15 to 30 times as many
    /// looks as the limit is.
    Vegas {
        least_s: f64,
        looks: f64,
        jitter: f64,
        numbers: Numbers,
    },
}

impl Rival {
    pub fn gradient2() -> Rival {
        Rival::new(Kind::Gradient2 { long_s: 0.0, n: 0 })
    }

    pub fn vegas(seed: u64) -> Rival {
        let mut numbers = Numbers::new(seed, 2_000);
        Rival::new(Kind::Vegas {
            least_s: 0.0,
            looks: 0.0,
            jitter: 0.5 + 0.5 * numbers.unit(),
            numbers,
        })
    }

    fn new(kind: Kind) -> Rival {
        Rival {
            kind,
            limit: START,
            due_ns: 0,
            n: 0,
            sum_s: 0.0,
            most_in_flight: 0,
        }
    }

    pub fn limit(&self) -> u32 {
        self.limit as u32
    }

    /// A response; true if the limit may have changed.
    pub fn add(&mut self, response_s: f64, in_flight: u32, now_ns: u64) -> bool {
        self.n += 1;
        self.sum_s += response_s;
        self.most_in_flight = self.most_in_flight.max(in_flight);
        if now_ns <= self.due_ns || self.n < FEWEST {
            return false;
        }
        let mean_s = self.sum_s / f64::from(self.n);
        let most = f64::from(self.most_in_flight);
        self.due_ns = now_ns + WINDOW_NS;
        (self.n, self.sum_s, self.most_in_flight) = (0, 0.0, 0);
        self.step(mean_s, most);
        true
    }

    fn step(&mut self, mean_s: f64, in_flight: f64) {
        let limit = self.limit;
        match &mut self.kind {
            Kind::Gradient2 { long_s, n } => {
                const LONG_WINDOW: f64 = 600.0;
                const WARM_UP: u32 = 10;
                const TOLERANCE: f64 = 1.5;
                const SMOOTHING: f64 = 0.2;
                const QUEUE: f64 = 4.0;
                *n += 1;
                let weight = if *n <= WARM_UP {
                    1.0 / f64::from(*n)
                } else {
                    2.0 / (LONG_WINDOW + 1.0)
                };
                *long_s += weight * (mean_s - *long_s);
                // The mean that was looked at, also where it is forgotten faster now.
                let long = *long_s;
                if long / mean_s > 2.0 {
                    *long_s *= 0.95;
                }
                if in_flight < limit / 2.0 {
                    return;
                }
                let gradient = (TOLERANCE * long / mean_s).clamp(0.5, 1.0);
                let new = limit * gradient + QUEUE;
                self.limit = ((1.0 - SMOOTHING) * limit + SMOOTHING * new).clamp(20.0, 200.0);
            }
            Kind::Vegas {
                least_s,
                looks,
                jitter,
                numbers,
            } => {
                const PROBE: f64 = 30.0;
                *looks += 1.0;
                if *jitter * PROBE * limit <= *looks {
                    *jitter = 0.5 + 0.5 * numbers.unit();
                    (*looks, *least_s) = (0.0, mean_s);
                    return;
                }
                if *least_s == 0.0 || mean_s < *least_s {
                    *least_s = mean_s;
                    return;
                }
                if in_flight * 2.0 < limit {
                    return;
                }
                let queue = (limit * (1.0 - *least_s / mean_s)).ceil();
                // Whole, as theirs.
                let log = limit.floor().log10().floor().max(1.0);
                let (alpha, beta, threshold) = (3.0 * log, 6.0 * log, log);
                let new = if queue <= threshold {
                    limit + beta
                } else if queue < alpha {
                    limit + log
                } else if queue > beta {
                    limit - log
                } else {
                    return;
                };
                self.limit = new.clamp(1.0, 1000.0);
            }
        }
    }
}
