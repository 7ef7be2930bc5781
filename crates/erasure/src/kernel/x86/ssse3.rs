//! SSSE3: products are looked up by nibble with shuffles of 16 bytes.
use crate::gf::NIBBLES;
use crate::kernel::Group;
use crate::kernel::lanes::{self, Lanes};
use std::arch::x86_64::*;

#[derive(Clone, Copy)]
struct Bytes16(__m128i);

// SAFETY: a vector is 16 bytes. All methods but `load` and `store` touch no memory of the caller; they use
// SSSE3, which the caller vouches for.
unsafe impl Lanes for Bytes16 {
    const BYTES: usize = 16;
    /// Products with the low and with the high nibbles.
    type Factor = (__m128i, __m128i);
    /// The low and the high nibbles.
    type Parts = (__m128i, __m128i);

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: the caller's.
        Self(unsafe { _mm_setzero_si128() })
    }
    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: the caller's; this load takes any alignment.
        Self(unsafe { _mm_loadu_si128(from.cast()) })
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: the caller's; this store takes any alignment.
        unsafe { _mm_storeu_si128(to.cast(), self.0) }
    }
    #[inline(always)]
    unsafe fn prefetch(from: *const u8) {
        // SAFETY: a prefetch never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(from.cast()) }
    }
    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        // SAFETY: the caller's.
        Self(unsafe { _mm_xor_si128(self.0, other.0) })
    }
    #[inline(always)]
    unsafe fn factor(factor: u8) -> Self::Factor {
        let products = &NIBBLES[usize::from(factor)];
        // SAFETY: the caller's; each half of the table has 16 bytes.
        unsafe {
            let low = _mm_loadu_si128(products.low.as_ptr().cast());
            let high = _mm_loadu_si128(products.high.as_ptr().cast());
            (low, high)
        }
    }
    #[inline(always)]
    unsafe fn parts(self) -> Self::Parts {
        // SAFETY: the caller's.
        unsafe {
            let nibble = _mm_set1_epi8(15);
            (_mm_and_si128(self.0, nibble), _mm_and_si128(_mm_srli_epi64::<4>(self.0), nibble))
        }
    }
    #[inline(always)]
    unsafe fn add_product(self, factor: Self::Factor, parts: Self::Parts) -> Self {
        // SAFETY: the caller's.
        unsafe {
            let low = _mm_shuffle_epi8(factor.0, parts.0);
            let high = _mm_shuffle_epi8(factor.1, parts.1);
            Self(_mm_xor_si128(self.0, _mm_xor_si128(low, high)))
        }
    }
}

/// # Safety
/// The invariant of [`Group`] holds and the processor has SSSE3.
#[target_feature(enable = "ssse3")]
pub(super) unsafe fn run(group: &Group) {
    // SAFETY: the caller's.
    unsafe { lanes::run::<Bytes16, 2>(group) }
}
