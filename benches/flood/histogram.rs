//! Times in microseconds, in log-linear steps: 32 to the octave, so a percentile is at
//! most 1/32 above the true value. Histograms of seconds add up to those of any phase.

/// log2 of the steps in an octave.
const STEP_BITS: u32 = 5;
const STEPS: usize = 1 << STEP_BITS;
/// Up to 2^27 µs, more than two minutes; what is above counts as that.
const OCTAVES: usize = 27;
const SIZE: usize = (OCTAVES - STEP_BITS as usize + 1) * STEPS;

#[derive(Clone, Default, Debug)]
pub struct Histogram {
    /// Empty until something is recorded.
    counts: Vec<u32>,
    count: u64,
    sum_us: u64,
    max_us: u64,
}

fn slot(us: u64) -> usize {
    let us = us.min((1 << OCTAVES) - 1);
    if us < STEPS as u64 {
        return us as usize;
    }
    let octave = us.ilog2();
    let within = (us >> (octave - STEP_BITS)) as usize - STEPS;
    (octave - STEP_BITS + 1) as usize * STEPS + within
}

/// The largest value that falls into a slot.
fn upper_us(slot: usize) -> u64 {
    if slot < STEPS {
        return slot as u64;
    }
    let shift = (slot / STEPS - 1) as u32;
    let within = (slot % STEPS + STEPS) as u64;
    ((within + 1) << shift) - 1
}

impl Histogram {
    pub fn record(&mut self, us: u64) {
        if self.counts.is_empty() {
            self.counts = vec![0; SIZE];
        }
        self.counts[slot(us)] += 1;
        self.count += 1;
        self.sum_us += us;
        self.max_us = self.max_us.max(us);
    }

    pub fn add(&mut self, other: &Histogram) {
        if other.count == 0 {
            return;
        }
        if self.counts.is_empty() {
            self.counts = vec![0; SIZE];
        }
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine += theirs;
        }
        self.count += other.count;
        self.sum_us += other.sum_us;
        self.max_us = self.max_us.max(other.max_us);
    }

    pub fn count(&self) -> u64 {
        self.count
    }

    pub fn max_ms(&self) -> f64 {
        self.max_us as f64 / 1000.0
    }

    pub fn mean_ms(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum_us as f64 / self.count as f64 / 1000.0)
    }

    /// `share` of 0.5 is the median.
    pub fn percentile_ms(&self, share: f64) -> Option<f64> {
        if self.count == 0 {
            return None;
        }
        let rank = ((share * self.count as f64).ceil() as u64).clamp(1, self.count);
        let mut seen = 0;
        for (slot, &count) in self.counts.iter().enumerate() {
            seen += u64::from(count);
            if seen >= rank {
                return Some(upper_us(slot).min(self.max_us) as f64 / 1000.0);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_lies_in_its_slot_within_a_32nd() {
        let mut us = 0u64;
        while us < 1 << OCTAVES {
            let upper = upper_us(slot(us));
            assert!(upper >= us && upper - us <= us / 32, "{us} {upper}");
            us += 1 + us / 100;
        }
        assert_eq!(slot(u64::MAX), SIZE - 1);
    }

    #[test]
    fn percentiles_of_a_thousand() {
        let mut all = Histogram::default();
        for half in [1..=500u64, 501..=1000] {
            let mut part = Histogram::default();
            half.for_each(|ms| part.record(ms * 1000));
            all.add(&part);
        }
        let near = |share: f64, ms: f64| {
            let is = all.percentile_ms(share).unwrap();
            assert!(
                is >= ms && is <= ms * 33.0 / 32.0,
                "{share}: {is}, not {ms}"
            );
        };
        near(0.5, 500.0);
        near(0.95, 950.0);
        near(1.0, 1000.0);
        assert_eq!(all.mean_ms(), Some(500.5));
        assert_eq!(Histogram::default().percentile_ms(0.5), None);
    }
}
