//! When to ask Redis, and when to look whether it is back: pure, time comes in.
//!
//! Closed: requests ask. After three failures in a row, or one that says what
//! is wrong (refused connection, READONLY, OOM …), it is open: requests skip
//! Redis at no cost, and attempts are made in the background, the first soon,
//! the later ones twice as far apart each time up to half a second, scattered
//! so that the workers of many gateways do not knock in step. The first that
//! succeeds closes it.
use std::time::Duration;

/// Time-outs in a row that open it: one alone may be a hiccup.
const FAILURES: u32 = 3;
const FIRST_DELAY: Duration = Duration::from_millis(50);
/// With an attempt's own time-out of a second this keeps recovery below two.
const LONGEST_DELAY: Duration = Duration::from_millis(500);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Closed { failures: u32 },
    Open { attempts: u32, next: Duration },
}

/// Every `now` is the time since some fixed moment.
#[derive(Clone, Debug)]
pub struct Breaker {
    state: State,
    random: u64,
}

impl Breaker {
    /// `seed`: anything that differs between workers.
    pub fn new(seed: u64) -> Breaker {
        Breaker {
            state: State::Closed { failures: 0 },
            random: seed | 1,
        }
    }

    pub fn is_open(&self) -> bool {
        matches!(self.state, State::Open { .. })
    }

    /// A request was answered.
    pub fn success(&mut self) {
        if let State::Closed { failures } = &mut self.state {
            *failures = 0;
        }
    }

    /// A request failed; `definite`: so would the next. Whether this opened it.
    pub fn failure(&mut self, definite: bool, now: Duration) -> bool {
        let State::Closed { failures } = &mut self.state else {
            return false;
        };
        *failures += 1;
        let opens = definite || *failures >= FAILURES;
        if opens {
            self.state = State::Open {
                attempts: 0,
                next: now,
            };
            self.schedule(now);
        }
        opens
    }

    /// When to try again; `None` while closed.
    pub fn next_attempt(&self) -> Option<Duration> {
        match self.state {
            State::Closed { .. } => None,
            State::Open { next, .. } => Some(next),
        }
    }

    /// Opens it if it was closed.
    pub fn attempt_failed(&mut self, now: Duration) {
        if !self.failure(true, now) {
            self.schedule(now);
        }
    }

    pub fn attempt_succeeded(&mut self) {
        self.state = State::Closed { failures: 0 };
    }

    fn schedule(&mut self, now: Duration) {
        let share = 0.75 + 0.5 * self.uniform();
        if let State::Open { attempts, next } = &mut self.state {
            let delay = FIRST_DELAY
                .saturating_mul(1 << (*attempts).min(8))
                .min(LONGEST_DELAY);
            *attempts = attempts.saturating_add(1);
            *next = now + delay.mul_f64(share);
        }
    }

    /// 0 to 1, by xorshift64.
    fn uniform(&mut self) -> f64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn opens_after_three_failures_in_a_row() {
        let mut breaker = Breaker::new(7);
        assert!(!breaker.failure(false, ms(0)));
        assert!(!breaker.failure(false, ms(1)));
        breaker.success();
        assert!(!breaker.failure(false, ms(2)));
        assert!(!breaker.failure(false, ms(3)));
        assert!(!breaker.is_open());
        assert!(breaker.failure(false, ms(4)));
        assert!(breaker.is_open());
        // Those that were under way tell nothing new, and a late success does not close it.
        assert!(!breaker.failure(true, ms(5)));
        breaker.success();
        assert!(breaker.is_open());
    }

    #[test]
    fn a_definite_failure_opens_at_once() {
        let mut breaker = Breaker::new(7);
        assert!(breaker.failure(true, ms(0)));
        breaker.attempt_succeeded();
        assert!(!breaker.is_open());
        breaker.attempt_failed(ms(0));
        assert!(breaker.is_open());
    }

    #[test]
    fn attempts_spread_out_and_never_stop() {
        let mut breaker = Breaker::new(99);
        breaker.failure(true, ms(0));
        let mut now = ms(0);
        let mut gaps = Vec::new();
        for _ in 0..10_000 {
            let next = breaker.next_attempt().expect("open");
            gaps.push(next - now);
            now = next;
            breaker.attempt_failed(now);
        }
        assert!(gaps[0] >= FIRST_DELAY.mul_f64(0.75) && gaps[0] <= FIRST_DELAY.mul_f64(1.25));
        assert!(gaps.iter().all(|gap| *gap <= LONGEST_DELAY.mul_f64(1.25)));
        assert!(
            gaps[10..]
                .iter()
                .all(|gap| *gap >= LONGEST_DELAY.mul_f64(0.75))
        );
        // Scattered: no two of the last hundred are the same.
        let mut last = gaps[9_900..].to_vec();
        last.sort();
        last.dedup();
        assert_eq!(last.len(), 100);
        // After a success it begins anew.
        breaker.attempt_succeeded();
        breaker.failure(true, now);
        assert!(breaker.next_attempt().expect("open") - now <= FIRST_DELAY.mul_f64(1.25));
    }
}
