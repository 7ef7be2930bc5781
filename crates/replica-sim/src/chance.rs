//! [`Chance`]: the only source of chance of a run: the same seed, the same numbers.

use std::ops::Range;

/// A seeded generator (splitmix64, Steele et al., OOPSLA 2014).
#[derive(Debug, Clone)]
pub struct Chance(u64);

impl Chance {
    /// Of a seed.
    pub fn seeded(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d)
    }

    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// One of a range.
    pub fn range(&mut self, range: Range<u64>) -> u64 {
        range.start + self.draw() % (range.end - range.start).max(1)
    }

    /// An index below `len`.
    pub fn index(&mut self, len: usize) -> usize {
        (self.draw() % len.max(1) as u64) as usize
    }

    /// True so often in a thousand.
    pub fn per_mille(&mut self, often: u64) -> bool {
        self.draw() % 1000 < often
    }

    /// One of several.
    pub fn one<T: Copy>(&mut self, of: &[T]) -> Option<T> {
        if of.is_empty() { None } else { Some(of[self.index(of.len())]) }
    }
}
