//! CRC-32C of three blocks at a time with the processor's CRC-32C instruction, whose result takes three cycles while
//! one can begin in each: a single chain leaves two thirds of it unused. Processors that multiply polynomials in wide
//! registers (VPCLMULQDQ) are faster without it.
//!
//! Invariant: the instructions used are known to be there ([`available`]).

use crate::units::BLOCK_SIZE;
use std::arch::x86_64::_mm_crc32_u64;
use std::is_x86_feature_detected;

/// Blocks of [`crc_of_three`].
pub(super) const BLOCKS: usize = 3;

/// Whether [`crc_of_three`] can be called, and is worth it.
pub(super) fn available() -> bool {
    is_x86_feature_detected!("sse4.2") && !is_x86_feature_detected!("vpclmulqdq")
}

/// CRC-32C of each of three blocks that lie one behind the other.
///
/// # Safety
/// The processor has SSE 4.2: [`available`] said so.
#[target_feature(enable = "sse4.2")]
pub(super) unsafe fn crc_of_three(blocks: &[u8; BLOCKS * BLOCK_SIZE]) -> [u32; BLOCKS] {
    let (first, rest) = blocks.as_chunks::<8>().0.split_at(BLOCK_SIZE / 8);
    let (second, third) = rest.split_at(BLOCK_SIZE / 8);
    let (mut a, mut b, mut c) = (u64::from(u32::MAX), u64::from(u32::MAX), u64::from(u32::MAX));
    for ((x, y), z) in first.iter().zip(second).zip(third) {
        a = _mm_crc32_u64(a, u64::from_le_bytes(*x));
        b = _mm_crc32_u64(b, u64::from_le_bytes(*y));
        c = _mm_crc32_u64(c, u64::from_le_bytes(*z));
    }
    [!(a as u32), !(b as u32), !(c as u32)]
}
