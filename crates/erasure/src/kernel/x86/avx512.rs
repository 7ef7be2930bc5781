//! AVX-512 without GFNI: products are looked up by nibble with shuffles of four times 16 bytes.
use crate::gf::NIBBLES;
use crate::kernel::Group;
use crate::kernel::lanes::{self, Lanes};
use std::arch::x86_64::*;

#[derive(Clone, Copy)]
struct Bytes64(__m512i);

// SAFETY: a vector is 64 bytes. All methods but `load` and `store` touch no memory of the caller; they use
// AVX-512 F and BW, which the caller vouches for.
unsafe impl Lanes for Bytes64 {
    const BYTES: usize = 64;
    /// Products with the low and with the high nibbles.
    type Factor = (__m512i, __m512i);
    /// The low and the high nibbles.
    type Parts = (__m512i, __m512i);

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: the caller's.
        Self(unsafe { _mm512_setzero_si512() })
    }
    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: the caller's; this load takes any alignment.
        Self(unsafe { _mm512_loadu_si512(from.cast()) })
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: the caller's; this store takes any alignment.
        unsafe { _mm512_storeu_si512(to.cast(), self.0) }
    }
    #[inline(always)]
    unsafe fn prefetch(from: *const u8) {
        // SAFETY: a prefetch never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(from.cast()) }
    }
    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        // SAFETY: the caller's.
        Self(unsafe { _mm512_xor_si512(self.0, other.0) })
    }
    #[inline(always)]
    unsafe fn factor(factor: u8) -> Self::Factor {
        let products = &NIBBLES[usize::from(factor)];
        // SAFETY: the caller's; each half of the table has 16 bytes.
        unsafe {
            let low = _mm_loadu_si128(products.low.as_ptr().cast());
            let high = _mm_loadu_si128(products.high.as_ptr().cast());
            (_mm512_broadcast_i32x4(low), _mm512_broadcast_i32x4(high))
        }
    }
    #[inline(always)]
    unsafe fn parts(self) -> Self::Parts {
        // SAFETY: the caller's.
        unsafe {
            let nibble = _mm512_set1_epi8(15);
            (_mm512_and_si512(self.0, nibble), _mm512_and_si512(_mm512_srli_epi64::<4>(self.0), nibble))
        }
    }
    #[inline(always)]
    unsafe fn add_product(self, factor: Self::Factor, parts: Self::Parts) -> Self {
        // SAFETY: the caller's.
        unsafe {
            let low = _mm512_shuffle_epi8(factor.0, parts.0);
            let high = _mm512_shuffle_epi8(factor.1, parts.1);
            // The compiler makes one instruction (vpternlog) of both.
            Self(_mm512_xor_si512(self.0, _mm512_xor_si512(low, high)))
        }
    }
}

/// # Safety
/// The invariant of [`Group`] holds and the processor has AVX-512 F and BW.
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn run(group: &Group) {
    // SAFETY: the caller's.
    unsafe { lanes::run::<Bytes64, 2>(group) }
}
