//! Random tests that can be repeated: which seeds and how many steps, and where their numbers come from.
//!
//! `CAIRN_SEED=n` runs one seed, `CAIRN_SEEDS=n` so many from `CAIRN_FIRST` on, `CAIRN_STEPS=n` makes each longer.
use std::env;

/// Repeatable numbers (SplitMix64).
#[derive(Clone)]
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Rng {
        Rng(seed ^ 0x6361_6972_6e00_0000)
    }
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    /// Below `end`; 0 if that is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        if end == 0 { 0 } else { self.next() % end }
    }
    pub fn index(&mut self, length: usize) -> usize {
        self.below(length as u64) as usize
    }
    /// True once in so many times.
    pub fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.index(from.len())]
    }
}

fn number(name: &str) -> Option<u64> {
    let text = env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text:?} is not a number")))
}

/// Seeds to run: those that every test run has, or what the environment says.
pub fn seeds(usual: std::ops::Range<u64>) -> Vec<u64> {
    match (number("CAIRN_SEED"), number("CAIRN_SEEDS")) {
        (Some(seed), _) => vec![seed],
        (None, Some(count)) => {
            let first = number("CAIRN_FIRST").unwrap_or(usual.start);
            (first..first + count).collect()
        }
        (None, None) => usual.collect(),
    }
}

/// Steps of each seed.
pub fn steps(usual: u64) -> u64 {
    number("CAIRN_STEPS").unwrap_or(usual)
}
