//! Kernels: the product of a matrix of factors with shards, as fast as the processor can.
//!
//! One loop (`lanes`) is compiled for each instruction set; an instruction set gives only loads, stores, XOR and the
//! multiplication of a vector by one factor. Invariants owned here: a kernel runs only on a processor that has its
//! instructions; all slices of a product have one length, so that no kernel reads or writes outside of them.
use crate::SHARDS_MAX;
use std::fmt;
use std::str::FromStr;

mod lanes;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;
#[cfg(target_arch = "x86_64")]
mod x86;

/// Rows of factors (output shards) that are computed in one pass over the sources.
const GROUP_ROWS: usize = 4;

/// Bytes of each source that one group of rows reads before the next group has its turn: with up to 31 sources they
/// stay in the second-level cache.
const BLOCK: usize = 16 << 10;

/// A set of instructions that multiplication can run on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kernel {
    /// Any processor: 64-bit integers.
    Portable,
    /// x86-64 with SSSE3: shuffles of 16 bytes.
    Ssse3,
    /// aarch64 (always has NEON): table lookups of 16 bytes.
    Neon,
    /// x86-64 with AVX2: shuffles of 32 bytes.
    Avx2,
    /// x86-64 with AVX-512 BW: shuffles of 64 bytes.
    Avx512,
    /// x86-64 with GFNI and AVX2: bit matrices on 32 bytes.
    GfniAvx2,
    /// x86-64 with GFNI and AVX-512: bit matrices on 64 bytes.
    GfniAvx512,
}

impl Kernel {
    /// From the slowest to the fastest.
    pub const ALL: [Kernel; 7] = [
        Kernel::Portable,
        Kernel::Ssse3,
        Kernel::Neon,
        Kernel::Avx2,
        Kernel::Avx512,
        Kernel::GfniAvx2,
        Kernel::GfniAvx512,
    ];

    /// Whether this processor (and operating system) can run it.
    pub fn is_available(self) -> bool {
        match self {
            Kernel::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Kernel::Ssse3 | Kernel::Avx2 | Kernel::Avx512 | Kernel::GfniAvx2 | Kernel::GfniAvx512 => {
                x86::is_available(self)
            }
            #[cfg(target_arch = "aarch64")]
            Kernel::Neon => true,
            _ => false,
        }
    }
    /// Those that this processor can run, the slowest first.
    pub fn available() -> Vec<Kernel> {
        Kernel::ALL.into_iter().filter(|kernel| kernel.is_available()).collect()
    }
    /// The fastest that this processor can run.
    pub fn best() -> Kernel {
        Kernel::ALL.into_iter().rev().find(|kernel| kernel.is_available()).unwrap_or(Kernel::Portable)
    }
    pub fn name(self) -> &'static str {
        match self {
            Kernel::Portable => "portable",
            Kernel::Ssse3 => "ssse3",
            Kernel::Neon => "neon",
            Kernel::Avx2 => "avx2",
            Kernel::Avx512 => "avx512",
            Kernel::GfniAvx2 => "gfni-avx2",
            Kernel::GfniAvx512 => "gfni-avx512",
        }
    }
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Kernel {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let found = Kernel::ALL.into_iter().find(|kernel| kernel.name() == text);
        found.ok_or_else(|| format!("{text:?} is no kernel; there are {}", names(&Kernel::ALL)))
    }
}

pub(crate) fn names(kernels: &[Kernel]) -> String {
    kernels.iter().map(|kernel| kernel.name()).collect::<Vec<_>>().join(", ")
}

/// A matrix of factors, a row for each output and a column for each source, in groups of [`GROUP_ROWS`] rows.
#[derive(Clone, Debug)]
pub(crate) struct Factors {
    rows: usize,
    columns: usize,
    /// Group after group, within a group column after column. Unused places are zero.
    bytes: FactorBytes,
}

#[derive(Clone, Debug)]
enum FactorBytes {
    Matrix(Box<[u8]>),
    Column([u8; SHARDS_MAX]),
}

impl Factors {
    pub fn new(rows: usize, columns: usize, factor: impl Fn(usize, usize) -> u8) -> Self {
        let mut bytes = Vec::with_capacity(rows * columns);
        for start in (0..rows).step_by(GROUP_ROWS) {
            for column in 0..columns {
                bytes.extend((start..rows.min(start + GROUP_ROWS)).map(|row| factor(row, column)));
            }
        }
        Factors { rows, columns, bytes: FactorBytes::Matrix(bytes.into()) }
    }
    /// One column, without allocation.
    pub fn column(factors: &[u8]) -> Self {
        let mut bytes = [0; SHARDS_MAX];
        bytes[..factors.len()].copy_from_slice(factors);
        Factors { rows: factors.len(), columns: 1, bytes: FactorBytes::Column(bytes) }
    }
    fn bytes(&self) -> &[u8] {
        match &self.bytes {
            FactorBytes::Matrix(bytes) => bytes,
            FactorBytes::Column(bytes) => &bytes[..self.rows],
        }
    }
}

/// How a product is computed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Product {
    pub kernel: Kernel,
    /// Add to what the outputs hold, instead of replacing it.
    pub add: bool,
}

/// Some rows of a product over some bytes of the shards: what one call of a kernel computes.
///
/// Invariant, on which the unsafe code of the kernels rests, established by [`multiply`] alone: `factors` has
/// `sources.len() * outputs.len()` bytes, column after column; there are 1 to [`GROUP_ROWS`] outputs; all of
/// `start..end` can be read from each source and written to each output for as long as the group lives; no output
/// overlaps a source or another output.
struct Group<'a> {
    factors: &'a [u8],
    sources: &'a [*const u8],
    outputs: &'a [*mut u8],
    start: usize,
    end: usize,
    add: bool,
}

/// outputs = (outputs +) factors × sources. All slices have one length, as many as the factors have rows and columns.
pub(crate) fn multiply(factors: &Factors, sources: &[&[u8]], outputs: &mut [&mut [u8]], product: Product) {
    let Some(length) = sources.first().map(|s| s.len()) else { return };
    // These guard the unsafe code below: checked in release builds too.
    assert_eq!((outputs.len(), sources.len()), (factors.rows, factors.columns));
    assert_eq!(factors.bytes().len(), factors.rows * factors.columns);
    assert!(sources.len() <= SHARDS_MAX && outputs.len() <= SHARDS_MAX);
    assert!(sources.iter().all(|s| s.len() == length) && outputs.iter().all(|o| o.len() == length));
    let mut source_pointers = [std::ptr::null(); SHARDS_MAX];
    for (pointer, source) in source_pointers.iter_mut().zip(sources) {
        *pointer = source.as_ptr();
    }
    let mut output_pointers = [std::ptr::null_mut(); SHARDS_MAX];
    for (pointer, output) in output_pointers.iter_mut().zip(outputs.iter_mut()) {
        *pointer = output.as_mut_ptr();
    }
    let block = if outputs.len() > GROUP_ROWS { BLOCK } else { length.max(1) };
    for start in (0..length).step_by(block) {
        for first in (0..outputs.len()).step_by(GROUP_ROWS) {
            let last = outputs.len().min(first + GROUP_ROWS);
            let group = Group {
                factors: &factors.bytes()[first * sources.len()..last * sources.len()],
                sources: &source_pointers[..sources.len()],
                outputs: &output_pointers[first..last],
                start,
                end: length.min(start + block),
                add: product.add,
            };
            // SAFETY: the pointers come from slices of `length` bytes that are borrowed until this function returns,
            // the outputs mutably, so they overlap nothing; the counts were asserted.
            unsafe { run(product.kernel, &group) };
        }
    }
}

/// # Safety
/// The invariant of [`Group`] holds.
unsafe fn run(kernel: Kernel, group: &Group) {
    // A codec is made with available kernels alone; it guards against illegal instructions all the same.
    assert!(kernel.is_available(), "the {kernel} kernel cannot run here");
    // SAFETY: the processor has the instructions, as just asserted; the rest is the caller's.
    unsafe {
        match kernel {
            #[cfg(target_arch = "x86_64")]
            Kernel::Ssse3 | Kernel::Avx2 | Kernel::Avx512 | Kernel::GfniAvx2 | Kernel::GfniAvx512 => {
                x86::run(kernel, group);
            }
            #[cfg(target_arch = "aarch64")]
            Kernel::Neon => neon::run(group),
            _ => portable::run(group),
        }
    }
}

#[cfg(test)]
mod tests;
