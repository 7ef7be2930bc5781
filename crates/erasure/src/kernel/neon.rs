//! NEON of aarch64: products are looked up by nibble in tables of 16 bytes.
use super::Group;
use super::lanes::{self, Lanes};
use crate::gf::NIBBLES;
use std::arch::aarch64::*;

#[derive(Clone, Copy)]
struct Bytes16(uint8x16_t);

// SAFETY: a vector is 16 bytes. All methods but `load` and `store` touch no memory of the caller; they use
// NEON, which every aarch64 processor of our targets has.
unsafe impl Lanes for Bytes16 {
    const BYTES: usize = 16;
    /// Products with the low and with the high nibbles.
    type Factor = (uint8x16_t, uint8x16_t);
    /// The low and the high nibbles.
    type Parts = (uint8x16_t, uint8x16_t);

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: the caller's.
        Self(unsafe { vdupq_n_u8(0) })
    }
    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: the caller's; this load takes any alignment.
        Self(unsafe { vld1q_u8(from) })
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: the caller's; this store takes any alignment.
        unsafe { vst1q_u8(to, self.0) }
    }
    #[inline(always)]
    unsafe fn prefetch(_: *const u8) {}
    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        // SAFETY: the caller's.
        Self(unsafe { veorq_u8(self.0, other.0) })
    }
    #[inline(always)]
    unsafe fn factor(factor: u8) -> Self::Factor {
        let products = &NIBBLES[usize::from(factor)];
        // SAFETY: the caller's; each half of the table has 16 bytes.
        unsafe { (vld1q_u8(products.low.as_ptr()), vld1q_u8(products.high.as_ptr())) }
    }
    #[inline(always)]
    unsafe fn parts(self) -> Self::Parts {
        // SAFETY: the caller's.
        unsafe { (vandq_u8(self.0, vdupq_n_u8(15)), vshrq_n_u8::<4>(self.0)) }
    }
    #[inline(always)]
    unsafe fn add_product(self, factor: Self::Factor, parts: Self::Parts) -> Self {
        // SAFETY: the caller's.
        Self(unsafe { veorq_u8(self.0, veorq_u8(vqtbl1q_u8(factor.0, parts.0), vqtbl1q_u8(factor.1, parts.1))) })
    }
}

/// # Safety
/// The invariant of [`Group`] holds.
#[target_feature(enable = "neon")]
pub(super) unsafe fn run(group: &Group) {
    // SAFETY: the caller's; every aarch64 processor of our targets has NEON.
    unsafe { lanes::run::<Bytes16, 2>(group) }
}
