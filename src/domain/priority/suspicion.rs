//! What a client did within the last 10 to 30 s, against bounds: each that it
//! exceeds makes it one level less important.
//!
//! Down at once, up again after [`CALM`] at no more than half the bound, so that
//! a client that hovers about a bound does not change levels with every
//! request. A client that is merely new has done nothing yet, and shares are
//! not judged before [`LEAST_ENDED`] requests.
//!
//! The window is two halves, the current one and the one before: at most a
//! whole window of requests, at least half of one, so nobody who keeps to a
//! bound is ever found above it.
use crate::domain::config;
use crate::domain::units::{Nanos, Rate};
use std::time::Duration;

/// How long a client has to keep to half a bound that it has exceeded.
pub const CALM: Duration = Duration::from_secs(60);
/// As few requests have to have ended before their shares mean anything.
pub const LEAST_ENDED: u32 = 10;
/// Requests, client errors, aborts.
pub const KINDS: usize = 3;

/// The requests that a rate allows within a window.
pub fn requests(rate: Rate, window: Duration) -> f64 {
    window.as_nanos() as f64 / 1e3 / rate.emission_us()
}

/// What a client did in a half of the window, or in both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// That came.
    pub requests: u32,
    /// That ended.
    pub ended: u32,
    pub client_errors: u32,
    pub aborts: u32,
}

impl Counts {
    pub fn plus(self, other: Counts) -> Counts {
        Counts {
            requests: self.requests.saturating_add(other.requests),
            ended: self.ended.saturating_add(other.ended),
            client_errors: self.client_errors.saturating_add(other.client_errors),
            aborts: self.aborts.saturating_add(other.aborts),
        }
    }
}

/// Where a client stands with a bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// At no more than half of it.
    Calm,
    Within,
    Exceeded,
}

/// The bounds, as they are compared; infinite where none was given.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bounds {
    /// Requests in a window.
    requests: f64,
    client_errors: f64,
    aborts: f64,
    half_ns: u64,
}

impl From<&config::Suspicion> for Bounds {
    fn from(written: &config::Suspicion) -> Bounds {
        let share = |share: Option<f64>| share.unwrap_or(f64::INFINITY);
        Bounds {
            requests: written
                .rate
                .map_or(f64::INFINITY, |rate| requests(rate, written.window)),
            client_errors: share(written.client_errors),
            aborts: share(written.aborts),
            half_ns: (Nanos::from(written.window).0 / 2).max(1),
        }
    }
}

impl Bounds {
    /// The half of a window that an instant lies in; counted from the clock's
    /// beginning, so the same for all who count.
    pub fn period(&self, now: Nanos) -> u32 {
        (now.0 / self.half_ns) as u32
    }

    /// When a half begins.
    pub fn begins(&self, period: u32) -> Nanos {
        Nanos(u64::from(period).saturating_mul(self.half_ns))
    }

    /// How long a client is remembered that does nothing more.
    pub fn remembered_ns(&self) -> u64 {
        2 * self.half_ns + Nanos::from(CALM).0
    }

    pub fn read(&self, counts: Counts) -> [Reading; KINDS] {
        let share = |part: u32| {
            if counts.ended < LEAST_ENDED {
                return 0.0;
            }
            f64::from(part) / f64::from(counts.ended)
        };
        let reading = |value: f64, bound: f64| {
            if value > bound {
                Reading::Exceeded
            } else if value > bound / 2.0 {
                Reading::Within
            } else {
                Reading::Calm
            }
        };
        [
            reading(f64::from(counts.requests), self.requests),
            reading(share(counts.client_errors), self.client_errors),
            reading(share(counts.aborts), self.aborts),
        ]
    }
}

/// For each bound that counts against a client: when it was last above half of
/// it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    pub above: [Option<Nanos>; KINDS],
}

impl Standing {
    /// How many levels a client is lowered by.
    pub fn levels(&self) -> u8 {
        self.above.iter().flatten().count() as u8
    }

    pub fn is_clean(&self) -> bool {
        self.levels() == 0
    }

    /// What follows from readings taken at `now`.
    #[must_use]
    pub fn judged(self, readings: [Reading; KINDS], now: Nanos) -> Standing {
        let calm_ns = Nanos::from(CALM).0;
        let mut above = self.above;
        for (above, reading) in above.iter_mut().zip(readings) {
            *above = match (reading, *above) {
                (Reading::Exceeded, _) | (Reading::Within, Some(_)) => Some(now),
                (Reading::Calm, Some(at)) if now.0.saturating_sub(at.0) < calm_ns => Some(at),
                (Reading::Calm | Reading::Within, _) => None,
            };
        }
        Standing { above }
    }

    /// What follows from the time since a client was last seen, in the half
    /// `last` of which `current` are its counts and `before` those of the half
    /// before: what it had done still stood until each half's end. `now` lies in
    /// a later half.
    #[must_use]
    pub fn caught_up(
        self,
        bounds: &Bounds,
        last: u32,
        current: Counts,
        before: Counts,
        now: Nanos,
    ) -> Standing {
        let mut standing = self;
        for (next, counts) in [(1, current.plus(before)), (2, current)] {
            let end = bounds.begins(last.saturating_add(next));
            if end > now {
                break;
            }
            standing = standing.judged(bounds.read(counts), end);
        }
        standing
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const S: u64 = 1_000_000_000;

    /// 200 requests in 10 s, half of them errors, a quarter aborted.
    fn bounds() -> Bounds {
        Bounds::from(&config::Suspicion {
            rate: Some(Rate::parse("20/s").unwrap()),
            client_errors: Some(0.5),
            aborts: Some(0.25),
            window: Duration::from_secs(10),
        })
    }

    fn counts(requests: u32, ended: u32, client_errors: u32, aborts: u32) -> Counts {
        Counts {
            requests,
            ended,
            client_errors,
            aborts,
        }
    }

    #[test]
    fn readings() {
        use Reading::*;
        let rows = [
            ("nothing yet", counts(0, 0, 0, 0), [Calm, Calm, Calm]),
            ("one of one", counts(1, 1, 1, 1), [Calm, Calm, Calm]),
            ("nine are too few", counts(9, 9, 9, 9), [Calm, Calm, Calm]),
            (
                "ten will do",
                counts(10, 10, 6, 3),
                [Calm, Exceeded, Exceeded],
            ),
            (
                "at a bound is not above it",
                counts(200, 100, 50, 25),
                [Within, Within, Within],
            ),
            (
                "above it",
                counts(201, 100, 51, 26),
                [Exceeded, Exceeded, Exceeded],
            ),
            (
                "half of it is calm",
                counts(100, 100, 25, 12),
                [Calm, Calm, Calm],
            ),
            (
                "more than half is not",
                counts(101, 100, 26, 13),
                [Within, Within, Within],
            ),
            // What is still on its way has neither failed nor succeeded.
            (
                "of those that ended",
                counts(150, 10, 5, 3),
                [Within, Within, Exceeded],
            ),
        ];
        for (why, counts, expected) in rows {
            assert_eq!(bounds().read(counts), expected, "{why}");
        }
        let none = Bounds::from(&config::Suspicion {
            rate: None,
            client_errors: None,
            aborts: Some(0.0),
            window: Duration::from_secs(30),
        });
        assert_eq!(none.read(counts(u32::MAX, 100, 100, 0)), [Calm; 3]);
        assert_eq!(none.read(counts(1, 100, 0, 1))[2], Exceeded);
    }

    #[test]
    fn down_at_once_and_up_after_a_minute_of_calm() {
        use Reading::*;
        let mut standing = Standing::default();
        // second, reading of the rate, levels lowered by
        let rows = [
            (0, Within, 0),
            (1, Exceeded, 1),
            (2, Within, 1),
            // Calm counts from the last moment that was not.
            (3, Calm, 1),
            (61, Calm, 1),
            (62, Calm, 0),
            (63, Exceeded, 1),
            (100, Calm, 1),
            (122, Within, 1),
            (124, Calm, 1),
            (181, Calm, 1),
            (182, Calm, 0),
            (183, Within, 0),
        ];
        for (second, reading, levels) in rows {
            standing = standing.judged([reading, Calm, Calm], Nanos(second * S));
            assert_eq!(standing.levels(), levels, "second {second}");
        }
        let all = standing.judged([Exceeded; 3], Nanos(200 * S));
        assert_eq!(all.levels(), 3, "each bound is a level");
        let two = all.judged([Calm, Exceeded, Within], Nanos(261 * S));
        assert_eq!(two.levels(), 2, "each recovers by itself");
    }

    #[test]
    fn what_a_silent_client_had_done_stands_until_it_leaves_the_window() {
        let lowered = Standing::default().judged([Reading::Exceeded; 3], Nanos(3 * S));
        // Halves of 5 s; it was last seen in half 0, and half 1 ends at 10 s.
        let rows = [
            (
                "both halves, then none",
                counts(201, 0, 0, 0),
                counts(0, 0, 0, 0),
                100,
                Some(10),
            ),
            (
                "seen within the next half",
                counts(201, 0, 0, 0),
                counts(0, 0, 0, 0),
                7,
                Some(5),
            ),
            (
                "the older half alone leaves first",
                counts(50, 0, 0, 0),
                counts(150, 0, 0, 0),
                100,
                Some(5),
            ),
            (
                "little enough all along",
                counts(50, 0, 0, 0),
                counts(50, 0, 0, 0),
                50,
                Some(3),
            ),
        ];
        for (why, current, before, at, expected) in rows {
            let found = lowered.caught_up(&bounds(), 0, current, before, Nanos(at * S));
            assert_eq!(found.above[0], expected.map(|s| Nanos(s * S)), "{why}");
        }
        // Aborts that came after the last request count when the next one comes.
        let clean = Standing::default();
        let aborted = counts(20, 20, 0, 20);
        let found = clean.caught_up(&bounds(), 0, aborted, Counts::default(), Nanos(7 * S));
        assert_eq!(found.above, [None, None, Some(Nanos(5 * S))]);
    }

    /// Counts in two halves, as the table does.
    #[derive(Default)]
    struct Client {
        period: u32,
        current: Counts,
        before: Counts,
        standing: Standing,
    }

    impl Client {
        fn request(&mut self, bounds: &Bounds, now: Nanos) -> u8 {
            let period = bounds.period(now);
            if period != self.period {
                self.standing =
                    self.standing
                        .caught_up(bounds, self.period, self.current, self.before, now);
                let next = period == self.period + 1;
                self.before = if next {
                    self.current
                } else {
                    Counts::default()
                };
                self.current = Counts::default();
                self.period = period;
            }
            self.current.requests += 1;
            let readings = bounds.read(self.current.plus(self.before));
            self.standing = self.standing.judged(readings, now);
            self.standing.levels()
        }
    }

    proptest! {
        #[test]
        fn whoever_keeps_to_the_rate_is_never_lowered(start in 0u64..100 * S, gaps in
                proptest::collection::vec(50_000_000u64..4 * S, 1..2000)) {
            let (bounds, mut client) = (bounds(), Client::default());
            let mut now = start;
            client.period = bounds.period(Nanos(now));
            for gap in gaps {
                // 20/s is one in 50 ms.
                now += gap;
                prop_assert_eq!(client.request(&bounds, Nanos(now)), 0);
            }
        }

        #[test]
        fn twice_the_rate_is_noticed_within_a_window_and_forgotten_in_time(start in 0u64..100 * S) {
            let (bounds, mut client) = (bounds(), Client::default());
            let mut now = start;
            client.period = bounds.period(Nanos(now));
            let mut lowered = 0;
            while lowered == 0 {
                prop_assert!(now - start <= 10 * S, "not noticed");
                lowered = client.request(&bounds, Nanos(now));
                now += S / 40;
            }
            // A quarter of the rate from then on.
            let stopped = now;
            while lowered > 0 {
                now += S / 5;
                lowered = client.request(&bounds, Nanos(now));
                let took = now - stopped;
                prop_assert!(lowered > 0 || took >= 60 * S, "forgotten too early, {took}");
                prop_assert!(took < 72 * S, "not forgotten");
            }
        }
    }
}
