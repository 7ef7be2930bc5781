//! [`Chance`]: the scheduler's own source of chance: small, fast, and the same on every machine.

/// SplitMix64.
#[derive(Debug, Clone)]
pub struct Chance(u64);

impl Chance {
    /// A stream of its own for each use, so that one use does not shift another.
    pub fn derived(seed: u64, stream: u64) -> Self {
        let mut first = Self(seed ^ stream.wrapping_mul(0xa076_1d64_78bd_642f));
        let state = first.next();
        Self(state ^ stream)
    }

    /// The next 64 bits.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// One of `0..below`; 0 if there is none.
    pub fn below(&mut self, below: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(below)) >> 64) as u64
    }

    /// True once in so many times; never for 0.
    pub fn one_in(&mut self, times: u64) -> bool {
        times != 0 && self.below(times) == 0
    }

    /// True with this probability.
    pub fn chance(&mut self, p: f64) -> bool {
        ((self.next() >> 11) as f64) < p * (1u64 << 53) as f64
    }

    /// Fills bytes.
    pub fn fill(&mut self, to: &mut [u8]) {
        for part in to.chunks_mut(8) {
            let bytes = self.next().to_le_bytes();
            part.copy_from_slice(&bytes[..part.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A seed would be another run after a change of the generator, or two uses of chance would go along with each
    /// other.
    #[test]
    fn streams_are_fixed_and_differ() {
        let mut one = Chance::derived(7, 1);
        let mut same = Chance::derived(7, 1);
        let mut other = Chance::derived(7, 2);
        let first: Vec<u64> = (0..4).map(|_| one.next()).collect();
        assert_eq!(first, (0..4).map(|_| same.next()).collect::<Vec<_>>());
        assert_ne!(first, (0..4).map(|_| other.next()).collect::<Vec<_>>());
        assert!((0..1000).all(|_| one.below(3) < 3));
        assert_eq!(one.below(0), 0);
        assert!(!one.one_in(0) && one.one_in(1));
        let often = (0..10_000).filter(|_| one.chance(0.1)).count();
        assert!(!one.chance(0.0) && one.chance(1.0) && (800..1200).contains(&often), "{often}");
    }
}
