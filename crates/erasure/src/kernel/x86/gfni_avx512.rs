//! GFNI with AVX-512: a multiplication is a matrix of 8 × 8 bits, applied to 64 bytes by one instruction.
use crate::gf::AFFINE;
use crate::kernel::Group;
use crate::kernel::lanes::{self, Lanes};
use std::arch::x86_64::*;

#[derive(Clone, Copy)]
struct Bytes64(__m512i);

// SAFETY: a vector is 64 bytes. All methods but `load` and `store` touch no memory of the caller; they use
// GFNI, AVX-512 F and BW, which the caller vouches for.
unsafe impl Lanes for Bytes64 {
    const BYTES: usize = 64;
    /// The bit matrix, in every 64-bit lane.
    type Factor = __m512i;
    type Parts = __m512i;

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
        // SAFETY: the caller's.
        unsafe { _mm512_set1_epi64(AFFINE[usize::from(factor)].cast_signed()) }
    }
    #[inline(always)]
    unsafe fn parts(self) -> Self::Parts {
        self.0
    }
    #[inline(always)]
    unsafe fn add_product(self, factor: Self::Factor, parts: Self::Parts) -> Self {
        // SAFETY: the caller's.
        Self(unsafe { _mm512_xor_si512(self.0, _mm512_gf2p8affine_epi64_epi8::<0>(parts, factor)) })
    }
}

/// # Safety
/// The invariant of [`Group`] holds and the processor has GFNI, AVX-512 F and BW.
#[target_feature(enable = "gfni,avx512f,avx512bw")]
pub(super) unsafe fn run(group: &Group) {
    // SAFETY: the caller's.
    unsafe { lanes::run::<Bytes64, 4>(group) }
}
