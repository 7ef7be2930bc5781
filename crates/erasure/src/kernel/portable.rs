//! Multiplication with 64-bit integers, bit by bit of the factor: for processors without byte shuffles, and the kernel
//! that the others are tested against. Compilers turn it into whatever vectors they may use.
use super::Group;
use super::lanes::{self, Lanes};

const WORDS: usize = 4;

/// 32 bytes.
#[derive(Clone, Copy)]
struct Words([u64; WORDS]);

/// Each byte of the word times x.
const fn double(word: u64) -> u64 {
    const HIGH: u64 = 0x8080_8080_8080_8080;
    let high = word & HIGH;
    // 0x1D in every byte whose high bit was set.
    let carry = (high >> 7) * 0x1D;
    ((word & !HIGH) << 1) ^ carry
}

// SAFETY: needs no special instructions; a vector is 32 bytes.
unsafe impl Lanes for Words {
    const BYTES: usize = 8 * WORDS;
    /// For each bit of the factor all ones or zero.
    type Factor = [u64; 8];
    /// The data times x to the power of 0 to 7.
    type Parts = [Words; 8];

    #[inline(always)]
    unsafe fn zero() -> Self {
        Words([0; WORDS])
    }
    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: the caller's.
        Words(unsafe { from.cast::<[u64; WORDS]>().read_unaligned() })
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: the caller's.
        unsafe { to.cast::<[u64; WORDS]>().write_unaligned(self.0) }
    }
    #[inline(always)]
    unsafe fn prefetch(_: *const u8) {}
    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        Words(std::array::from_fn(|i| self.0[i] ^ other.0[i]))
    }
    #[inline(always)]
    unsafe fn factor(factor: u8) -> Self::Factor {
        std::array::from_fn(|bit| 0u64.wrapping_sub(u64::from(factor >> bit & 1)))
    }
    #[inline(always)]
    unsafe fn parts(self) -> Self::Parts {
        let mut power = self;
        std::array::from_fn(|_| {
            let now = power;
            power = Words(power.0.map(double));
            now
        })
    }
    #[inline(always)]
    unsafe fn add_product(self, factor: Self::Factor, parts: Self::Parts) -> Self {
        let mut sum = self;
        for (mask, part) in factor.iter().zip(parts) {
            sum = Words(std::array::from_fn(|i| sum.0[i] ^ (part.0[i] & mask)));
        }
        sum
    }
}

/// # Safety
/// The invariant of [`Group`] holds.
pub(super) unsafe fn run(group: &Group) {
    // SAFETY: the caller's; no instructions are needed.
    unsafe { lanes::run::<Words, 1>(group) }
}
