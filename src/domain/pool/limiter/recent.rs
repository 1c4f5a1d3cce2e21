//! The last response times: how far they spread says how many a measurement
//! needs, and how long the slowest take says how long it must wait for them.

/// As many as are looked back on.
const KEPT: usize = 500;
/// Of fewer than this no spread is known.
const ENOUGH: usize = 20;

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Recent {
    ns: [f64; KEPT],
    /// ln(response / the route's usual).
    x: [f64; KEPT],
    written: u64,
}

impl Recent {
    pub(super) const fn new() -> Recent {
        Recent {
            ns: [0.0; KEPT],
            x: [0.0; KEPT],
            written: 0,
        }
    }

    pub(super) fn push(&mut self, ns: f64, x: f64) {
        let at = (self.written % KEPT as u64) as usize;
        (self.ns[at], self.x[at]) = (ns, x);
        self.written = self.written.wrapping_add(1);
    }

    fn len(&self) -> usize {
        self.written.min(KEPT as u64) as usize
    }

    /// Mean and 95th percentile of the response, ns; 0 when none is known.
    pub(super) fn mean_and_q95_ns(&self) -> (f64, f64) {
        let mut sorted = self.ns;
        let sorted = &mut sorted[..self.len()];
        if sorted.is_empty() {
            return (0.0, 0.0);
        }
        let mean = sorted.iter().sum::<f64>() / sorted.len() as f64;
        let at = (sorted.len() * 95 / 100).min(sorted.len() - 1);
        let (_, q95, _) = sorted.select_nth_unstable_by(at, f64::total_cmp);
        (mean, *q95)
    }

    /// Standard deviation of x; that of an exponential while it is not known.
    pub(super) fn spread(&self) -> f64 {
        const EXPONENTIAL: f64 = 1.28;
        let x = &self.x[..self.len()];
        if x.len() < ENOUGH {
            return EXPONENTIAL;
        }
        let n = x.len() as f64;
        let mean = x.iter().sum::<f64>() / n;
        let spread = (x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n).sqrt();
        if spread.is_finite() {
            spread
        } else {
            EXPONENTIAL
        }
    }

    /// Standard deviation of what x is the logarithm of, against its mean.
    pub(super) fn ratio_spread(&self) -> f64 {
        let x = &self.x[..self.len()];
        if x.len() < ENOUGH {
            return f64::INFINITY;
        }
        let n = x.len() as f64;
        let mean = x.iter().map(|x| x.exp()).sum::<f64>() / n;
        let spread = (x.iter().map(|x| (x.exp() - mean).powi(2)).sum::<f64>() / n).sqrt() / mean;
        if spread.is_finite() {
            spread
        } else {
            f64::INFINITY
        }
    }
}

#[cfg(test)]
impl Recent {
    pub(super) fn scramble(&mut self, bits: &mut impl FnMut() -> u64) {
        let all = self.ns.iter_mut().chain(&mut self.x);
        all.for_each(|it| *it = f64::from_bits(bits()));
        self.written = bits();
    }
}
