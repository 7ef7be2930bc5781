//! GFNI with AVX2: a multiplication is a matrix of 8 × 8 bits, applied to 32 bytes by one instruction.
use crate::gf::AFFINE;
use crate::kernel::Group;
use crate::kernel::lanes::{self, Lanes};
use std::arch::x86_64::*;

#[derive(Clone, Copy)]
struct Bytes32(__m256i);

// SAFETY: a vector is 32 bytes. All methods but `load` and `store` touch no memory of the caller; they use
// GFNI and AVX2, which the caller vouches for.
unsafe impl Lanes for Bytes32 {
    const BYTES: usize = 32;
    /// The bit matrix, in every 64-bit lane.
    type Factor = __m256i;
    type Parts = __m256i;

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: the caller's.
        Self(unsafe { _mm256_setzero_si256() })
    }
    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: the caller's; this load takes any alignment.
        Self(unsafe { _mm256_loadu_si256(from.cast()) })
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: the caller's; this store takes any alignment.
        unsafe { _mm256_storeu_si256(to.cast(), self.0) }
    }
    #[inline(always)]
    unsafe fn prefetch(from: *const u8) {
        // SAFETY: a prefetch never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(from.cast()) }
    }
    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        // SAFETY: the caller's.
        Self(unsafe { _mm256_xor_si256(self.0, other.0) })
    }
    #[inline(always)]
    unsafe fn factor(factor: u8) -> Self::Factor {
        // SAFETY: the caller's.
        unsafe { _mm256_set1_epi64x(AFFINE[usize::from(factor)].cast_signed()) }
    }
    #[inline(always)]
    unsafe fn parts(self) -> Self::Parts {
        self.0
    }
    #[inline(always)]
    unsafe fn add_product(self, factor: Self::Factor, parts: Self::Parts) -> Self {
        // SAFETY: the caller's.
        Self(unsafe { _mm256_xor_si256(self.0, _mm256_gf2p8affine_epi64_epi8::<0>(parts, factor)) })
    }
}

/// # Safety
/// The invariant of [`Group`] holds and the processor has GFNI and AVX2.
#[target_feature(enable = "gfni,avx2")]
pub(super) unsafe fn run(group: &Group) {
    // SAFETY: the caller's.
    unsafe { lanes::run::<Bytes32, 2>(group) }
}
