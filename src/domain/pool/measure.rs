//! Averages: over the last requests, and over the last seconds.
use super::Nanos;

/// Before this many completions there is no estimate.
pub(super) const ENOUGH: u32 = 20;
const WEIGHT: f64 = 0.03;

/// The first `ENOUGH` count alike, then each newer one for 3 %. Any bits are
/// valid: what is not a number is as good as nothing learned.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Mean {
    value: f64,
    seen: u32,
    unused: u32,
}

impl Mean {
    pub(super) const fn new() -> Mean {
        Mean {
            value: 0.0,
            seen: 0,
            unused: 0,
        }
    }

    pub(super) fn add(&mut self, x: f64) {
        let Some(before) = self.any() else {
            (self.value, self.seen) = (x, 1);
            return;
        };
        self.seen = self.seen.min(ENOUGH) + 1;
        let weight = match self.seen {
            n if n <= ENOUGH => 1.0 / f64::from(n),
            _ => WEIGHT,
        };
        self.value = before + weight * (x - before);
    }

    /// Forgets what cannot be.
    pub(super) fn mend(&mut self, most: f64) {
        if self.any().is_none_or(|it| it > most) {
            *self = Mean::new();
        }
    }

    /// From the first one on.
    pub(super) fn any(&self) -> Option<f64> {
        (self.seen > 0 && self.value.is_finite() && self.value >= 0.0).then_some(self.value)
    }

    /// Once it can be relied on.
    pub(super) fn get(&self) -> Option<f64> {
        self.any().filter(|_| self.seen >= ENOUGH)
    }
}

/// A sum over the last `N` buckets of `WIDTH` ns, the present one included.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Window<const N: usize, const WIDTH: u64> {
    sums: [f64; N],
    /// Number of the newest bucket.
    newest: u64,
}

/// The last second, and the last ten: whole, and what has begun of a bucket more.
pub(super) type Second = Window<11, 100_000_000>;
pub(super) type TenSeconds = Window<21, 500_000_000>;

impl<const N: usize, const WIDTH: u64> Window<N, WIDTH> {
    pub(super) const fn new() -> Self {
        Window {
            sums: [0.0; N],
            newest: 0,
        }
    }

    pub(super) fn add(&mut self, x: f64, now: u64) {
        self.roll(now / WIDTH);
        let sum = &mut self.sums[(now / WIDTH % N as u64) as usize];
        *sum = if sum.is_finite() { *sum + x } else { x };
    }

    /// Adds `height` × seconds for the time from `from` to `now`.
    pub(super) fn add_over(&mut self, height: f64, from: u64, now: u64) {
        let mut from = from.max(now.saturating_sub(N as u64 * WIDTH));
        while from < now {
            let to = (from / WIDTH + 1).saturating_mul(WIDTH).min(now);
            self.add(height * seconds(to - from), from);
            from = to;
        }
    }

    pub(super) fn sum(&self, now: u64) -> f64 {
        let current = now / WIDTH;
        let age = match current.checked_sub(self.newest) {
            Some(age) if age < N as u64 => age,
            _ => return 0.0,
        };
        let sum: f64 = (0..N as u64 - age)
            .filter_map(|back| self.newest.checked_sub(back))
            .map(|number| self.sums[(number % N as u64) as usize])
            .sum();
        if sum.is_finite() { sum.max(0.0) } else { 0.0 }
    }

    /// How many seconds `sum` is about, in a pool of that age.
    pub(super) fn span(now: u64, born: u64) -> f64 {
        let whole = (N as u64 - 1) * WIDTH + now % WIDTH;
        seconds(whole.min(now.saturating_sub(born)))
    }

    fn roll(&mut self, current: u64) {
        match current.checked_sub(self.newest) {
            Some(0) => return,
            Some(gap) if gap < N as u64 => {
                for number in self.newest + 1..=current {
                    self.sums[(number % N as u64) as usize] = 0.0;
                }
            }
            _ => self.sums = [0.0; N],
        }
        self.newest = current;
    }
}

pub(super) fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// Nanoseconds of a duration in seconds; of what is no duration, 0.
pub(super) fn nanos(seconds: f64) -> Nanos {
    Nanos((seconds * 1e9).max(0.0) as u64)
}

#[cfg(test)]
impl Mean {
    pub(super) fn scramble(&mut self, bits: &mut dyn FnMut() -> u64) {
        self.value = f64::from_bits(bits());
        self.seen = bits() as u32;
    }
}

#[cfg(test)]
impl<const N: usize, const WIDTH: u64> Window<N, WIDTH> {
    pub(super) fn scramble(&mut self, bits: &mut dyn FnMut() -> u64) {
        self.sums = std::array::from_fn(|_| f64::from_bits(bits()));
        self.newest = bits();
    }
}
