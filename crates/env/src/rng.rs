//! Randomness behind a trait: the operating system's for identities and secrets, a fast seeded one for the rest.
//!
//! Invariant: a [`FastRng`] with the same seed and the same order of calls gives the same numbers on every machine.

use std::sync::atomic::{AtomicU64, Ordering};

/// A source of random numbers.
pub trait Rng: Send + Sync {
    /// The next 64 bits.
    fn u64(&self) -> u64;

    /// Fills `buf` with random bytes.
    fn fill(&self, buf: &mut [u8]) {
        for part in buf.chunks_mut(8) {
            let bytes = self.u64().to_le_bytes();
            part.copy_from_slice(&bytes[..part.len()]);
        }
    }

    /// A number below `bound`, each equally likely (Lemire's multiply and reject).
    ///
    /// # Panics
    /// When `bound` is zero.
    fn below(&self, bound: u64) -> u64 {
        assert!(bound > 0, "no number is below zero");
        let threshold = bound.wrapping_neg() % bound;
        loop {
            let product = u128::from(self.u64()) * u128::from(bound);
            if product as u64 >= threshold {
                return (product >> 64) as u64;
            }
        }
    }
}

/// The operating system's randomness (`getrandom`). For identities and secrets; a system call each.
#[derive(Debug, Clone, Copy, Default)]
pub struct OsRng;

impl Rng for OsRng {
    fn u64(&self) -> u64 {
        let mut bytes = [0; 8];
        self.fill(&mut bytes);
        u64::from_le_bytes(bytes)
    }

    fn fill(&self, buf: &mut [u8]) {
        let mut rest = buf;
        while !rest.is_empty() {
            // By its number: the C library has the function from glibc 2.25 on, packages are for older ones too.
            // SAFETY: the pointer and length are those of a live, exclusively borrowed slice.
            let got = unsafe { libc::syscall(libc::SYS_getrandom, rest.as_mut_ptr(), rest.len(), 0) };
            if let Ok(got) = usize::try_from(got) {
                rest = &mut rest[got..];
                continue;
            }
            let error = std::io::Error::last_os_error();
            assert!(
                error.kind() == std::io::ErrorKind::Interrupted,
                "the operating system gave no randomness ({error}); identities would not be unique"
            );
        }
    }
}

/// A fast generator (SplitMix64, Steele et al., OOPSLA 2014) that threads can share. For jitter, sampling and
/// choices; not for secrets.
#[derive(Debug)]
pub struct FastRng {
    state: AtomicU64,
}

impl FastRng {
    /// Starts from a seed.
    pub const fn seeded(seed: u64) -> Self {
        Self { state: AtomicU64::new(seed) }
    }

    /// Starts from the operating system's randomness.
    pub fn from_os() -> Self {
        Self::seeded(OsRng.u64())
    }
}

impl Rng for FastRng {
    fn u64(&self) -> u64 {
        const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;
        let mut z = self.state.fetch_add(GAMMA, Ordering::Relaxed).wrapping_add(GAMMA);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Recorded seeds would replay differently if the generator changed; values are the published ones of
    /// SplitMix64 for seed 1234567.
    #[test]
    fn fast_rng_is_splitmix64() {
        let rng = FastRng::seeded(1_234_567);
        let got = [rng.u64(), rng.u64(), rng.u64()];
        assert_eq!(got, [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]);
    }

    /// Placement would favour some disks if `below` were skewed or out of range.
    #[test]
    fn below_is_even_and_in_range() {
        let rng = FastRng::seeded(7);
        let mut counts = [0u32; 7];
        for _ in 0..70_000 {
            counts[rng.below(7) as usize] += 1;
        }
        assert!(counts.iter().all(|&c| (9_500..10_500).contains(&c)), "{counts:?}");
        assert_eq!(rng.below(1), 0);
    }

    /// Two clusters would share an id if the system's randomness were not used in full.
    #[test]
    fn os_rng_fills_everything() {
        let mut a = [0u8; 1000];
        let mut b = [0u8; 1000];
        OsRng.fill(&mut a);
        OsRng.fill(&mut b);
        assert_ne!(a, b);
        assert!(a.chunks(100).all(|part| part.iter().any(|&x| x != 0)));
        assert_ne!(FastRng::from_os().u64(), FastRng::from_os().u64());
    }
}
