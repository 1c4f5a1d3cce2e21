//! What became of requests.

use crate::histogram::Histogram;

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Answered by the backend.
    Full,
    /// Answered by the gateway with the page that stands in for the backend's answer.
    Degraded,
    /// Refused without one (429, 503), failed (5xx), or no connection.
    Unavailable,
    /// Not answered: cut off, or out of time.
    Lost,
    /// Cut off because the worker that its connection was in was killed.
    Killed,
    /// Given up by the client itself, which meant to.
    Torn,
}

/// Requests of one class, at one target, due (or over) in one second or more.
#[derive(Clone, Default, Debug)]
pub struct Tally {
    pub asked: u64,
    pub full: Histogram,
    pub degraded: Histogram,
    pub unavailable: u64,
    pub lost: u64,
    pub killed: u64,
    pub torn: u64,
}

impl Tally {
    fn record(&mut self, end: End, took_us: u64) {
        self.asked += 1;
        match end {
            End::Full => self.full.record(took_us),
            End::Degraded => self.degraded.record(took_us),
            End::Unavailable => self.unavailable += 1,
            End::Lost => self.lost += 1,
            End::Killed => self.killed += 1,
            End::Torn => self.torn += 1,
        }
    }

    pub fn add(&mut self, other: &Tally) {
        self.asked += other.asked;
        self.full.add(&other.full);
        self.degraded.add(&other.degraded);
        self.unavailable += other.unavailable;
        self.lost += other.lost;
        self.killed += other.killed;
        self.torn += other.torn;
    }
}

/// One class at one target.
#[derive(Default)]
pub struct Track {
    /// By the second in which requests were due.
    by_due: Vec<Tally>,
    /// By the second in which they were over.
    by_over: Vec<Tally>,
}

impl Track {
    pub fn record(&mut self, end: End, due_us: u64, now_us: u64) {
        let took_us = now_us.saturating_sub(due_us);
        for (seconds, at_us) in [(&mut self.by_due, due_us), (&mut self.by_over, now_us)] {
            second(seconds, at_us).record(end, took_us);
        }
    }

    /// Requests that were due from and before the given seconds.
    pub fn due(&self, from_s: usize, until_s: usize) -> Tally {
        sum(&self.by_due, from_s, until_s)
    }

    /// Requests that were over from and before the given seconds.
    pub fn over(&self, from_s: usize, until_s: usize) -> Tally {
        sum(&self.by_over, from_s, until_s)
    }
}

/// The entry for the second in which a time is.
pub fn second<T: Default>(seconds: &mut Vec<T>, at_us: u64) -> &mut T {
    let index = (at_us / 1_000_000) as usize;
    if seconds.len() <= index {
        seconds.resize_with(index + 1, T::default);
    }
    &mut seconds[index]
}

fn sum(seconds: &[Tally], from_s: usize, until_s: usize) -> Tally {
    let mut all = Tally::default();
    seconds
        .iter()
        .take(until_s)
        .skip(from_s)
        .for_each(|second| all.add(second));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_counts_where_it_was_due_and_where_it_was_over() {
        let mut track = Track::default();
        track.record(End::Full, 900_000, 2_100_000);
        track.record(End::Lost, 1_000_000, 2_000_000);
        assert_eq!(track.due(0, 1).asked, 1);
        assert_eq!(track.due(0, 1).full.mean_ms(), Some(1200.0));
        assert_eq!(track.due(1, 9).lost, 1);
        assert_eq!(track.over(0, 2).asked, 0);
        assert_eq!(track.over(2, 3).asked, 2);
    }
}
