//! A small generator (SplitMix64), so that a run can be repeated by its seed.

#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from 0 to `bound - 1`.
    pub fn below(&mut self, bound: u32) -> u32 {
        ((u64::from(self.next_u64() as u32) * u64::from(bound)) >> 32) as u32
    }

    /// Exponentially distributed, of the given mean: the gaps of a Poisson process.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        // 53 random bits, shifted by a half so that neither 0 nor 1 can come.
        let uniform = ((self.next_u64() >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
        -mean * uniform.ln()
    }
}

#[cfg(test)]
mod tests {
    use super::Random;

    #[test]
    fn exponential_has_its_mean() {
        let mut random = Random::new(7);
        let sum: f64 = (0..200_000).map(|_| random.exponential(3.0)).sum();
        assert!((sum / 200_000.0 - 3.0).abs() < 0.05);
    }

    #[test]
    fn below_reaches_both_ends_and_no_further() {
        let mut random = Random::new(1);
        let mut seen = [false; 5];
        for _ in 0..1000 {
            seen[random.below(5) as usize] = true;
        }
        assert_eq!(seen, [true; 5]);
    }
}
