//! The instructions that this machine may lack, in software, and the loop around them.
use super::lanes::{self, Lanes};
use super::*;
use crate::gf::{AFFINE, mul};

/// `gf2p8affineqb` of one byte, as the processor's manual defines it: bit i of the result is the parity of byte 7 − i
/// of the matrix and the operand.
fn affine(matrix: u64, operand: u8) -> u8 {
    (0..8).fold(0, |result, bit| {
        let row = (matrix >> ((7 - bit) * 8)) as u8;
        result | ((row & operand).count_ones() as u8 & 1) << bit
    })
}

/// A wrong bit matrix would corrupt parity on machines with GFNI only.
#[test]
#[cfg_attr(miri, ignore = "long, and no unsafe code")]
fn bit_matrices_multiply_all_pairs() {
    for factor in 0..=255u8 {
        for x in 0..=255u8 {
            assert_eq!(affine(AFFINE[usize::from(factor)], x), mul(factor, x), "{factor} · {x}");
        }
    }
}

/// A vector of 64 bytes with the instruction above, as the GFNI kernels have it.
#[derive(Clone, Copy)]
struct SoftGfni([u8; 64]);

// SAFETY: needs no special instructions; a vector is 64 bytes.
unsafe impl Lanes for SoftGfni {
    const BYTES: usize = 64;
    type Factor = u64;
    type Parts = [u8; 64];
    unsafe fn zero() -> Self {
        SoftGfni([0; 64])
    }
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: the caller's.
        SoftGfni(unsafe { from.cast::<[u8; 64]>().read_unaligned() })
    }
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: the caller's.
        unsafe { to.cast::<[u8; 64]>().write_unaligned(self.0) }
    }
    unsafe fn prefetch(_: *const u8) {}
    unsafe fn xor(self, other: Self) -> Self {
        SoftGfni(std::array::from_fn(|i| self.0[i] ^ other.0[i]))
    }
    unsafe fn factor(factor: u8) -> u64 {
        AFFINE[usize::from(factor)]
    }
    unsafe fn parts(self) -> [u8; 64] {
        self.0
    }
    unsafe fn add_product(self, factor: u64, parts: [u8; 64]) -> Self {
        SoftGfni(std::array::from_fn(|i| self.0[i] ^ affine(factor, parts[i])))
    }
}

/// The loop, its tails and its unrolling with every number of outputs, as the GFNI kernels instantiate it.
#[test]
#[cfg_attr(miri, ignore = "long; there the kernels themselves run")]
fn the_loop_of_the_gfni_kernels_multiplies() {
    for rows in 1..=GROUP_ROWS {
        for (length, shift) in [(0, 0), (1, 3), (63, 1), (64, 0), (65, 0), (255, 7), (256, 0), (321, 0), (448, 64)] {
            let sources: Vec<Vec<u8>> =
                (0..3usize).map(|s| (0..length).map(|i| (i * 31 + s * 77 + 5) as u8).collect()).collect();
            let factors: Vec<u8> = (0..3 * rows).map(|i| (i * 59 + 1) as u8).collect();
            let mut backing = vec![[0u8; 640]; rows];
            let expected: Vec<Vec<u8>> = (0..rows)
                .map(|row| {
                    (0..length)
                        .map(|i| (0..3).fold(0, |sum, s| sum ^ mul(factors[s * rows + row], sources[s][i])))
                        .collect()
                })
                .collect();
            let starts: Vec<usize> = backing.iter().map(|b| b.as_ptr().align_offset(64) + shift).collect();
            let outputs: Vec<*mut u8> =
                backing.iter_mut().zip(&starts).map(|(b, s)| b[*s..*s + length].as_mut_ptr()).collect();
            let group = Group {
                factors: &factors,
                sources: &sources.iter().map(|s| s.as_ptr()).collect::<Vec<_>>(),
                outputs: &outputs,
                start: 0,
                end: length,
                add: false,
            };
            // SAFETY: sources and outputs have `length` bytes, none overlaps another.
            unsafe { lanes::run::<SoftGfni, 4>(&group) };
            for ((backing, start), expected) in backing.iter().zip(&starts).zip(&expected) {
                assert_eq!(&backing[*start..*start + length], &expected[..]);
                assert!(backing[..*start].iter().chain(&backing[*start + length..]).all(|x| *x == 0));
            }
        }
    }
}

/// All 256 × 256 products, through the loop of every kernel that can run here, alone and beside a row of ones.
#[test]
fn kernels_multiply_all_pairs() {
    let every_byte: Vec<u8> = (0..=255).collect();
    for kernel in Kernel::available() {
        for factor in (0..=255u8).step_by(if cfg!(miri) { 50 } else { 1 }) {
            let expected: Vec<u8> = every_byte.iter().map(|x| mul(factor, *x)).collect();
            for (row, rows) in [(0, 1), (0, 2), (1, 2), (3, 4), (4, 5)] {
                let factors = Factors::new(rows, 1, |r, _| if r == row { factor } else { 1 });
                let mut outputs = vec![vec![0; 256]; rows];
                let mut slices: Vec<&mut [u8]> = outputs.iter_mut().map(|o| &mut o[..]).collect();
                multiply(&factors, &[&every_byte], &mut slices, Product { kernel, add: false });
                assert_eq!(outputs[row], expected, "{kernel}, factor {factor}, row {row} of {rows}");
            }
        }
    }
}

#[test]
fn kernels_have_names() {
    for kernel in Kernel::ALL {
        assert_eq!(kernel.name().parse(), Ok(kernel));
    }
    assert!("avx3".parse::<Kernel>().is_err());
    assert!(Kernel::best().is_available());
    assert_eq!(Kernel::available().last(), Some(&Kernel::best()));
    // Whoever compiles for a processor with GFNI, as under miri, means to test its kernels.
    #[cfg(all(target_feature = "gfni", target_feature = "avx512bw"))]
    assert!(Kernel::GfniAvx2.is_available() && Kernel::best() == Kernel::GfniAvx512);
}
