//! The loop of all kernels, over vectors of an instruction set ([`Lanes`]).
//!
//! For each place in the shards it loads a vector or two of every source once and accumulates the products of up to
//! four outputs in registers, so that no output is read back. A last part shorter than a vector goes through a buffer
//! on the stack; nothing is read or written outside of the shards.
use super::{GROUP_ROWS, Group};

/// The longest vector, in bytes.
pub(super) const VECTOR_MAX: usize = 64;

/// Bytes that a source is prefetched ahead of its use; processors' own prefetchers stop at each page. With one output
/// there is so little to compute that it only costs.
const PREFETCH: usize = 1024;

/// A vector of bytes of an instruction set.
///
/// # Safety
/// Every method may be called only on a processor that has the instruction set. `BYTES` is at most [`VECTOR_MAX`].
/// Implementations are `#[inline(always)]`, so that they become part of a function that enables the instructions.
pub(super) unsafe trait Lanes: Copy {
    /// Bytes of a vector.
    const BYTES: usize;
    /// A factor, prepared.
    type Factor: Copy;
    /// A vector of data, prepared for multiplication by several factors.
    type Parts: Copy;

    unsafe fn zero() -> Self;
    /// # Safety
    /// `BYTES` bytes can be read, at any alignment.
    unsafe fn load(from: *const u8) -> Self;
    /// # Safety
    /// `BYTES` bytes can be written, at any alignment.
    unsafe fn store(self, to: *mut u8);
    /// Asks for the line at `from`, which need not be readable.
    unsafe fn prefetch(from: *const u8);
    unsafe fn xor(self, other: Self) -> Self;
    unsafe fn factor(factor: u8) -> Self::Factor;
    unsafe fn parts(self) -> Self::Parts;
    /// self + factor · data, where `parts` are of the data.
    unsafe fn add_product(self, factor: Self::Factor, parts: Self::Parts) -> Self;
}

/// Computes a group, `UNROLL` vectors at a time.
///
/// # Safety
/// The invariant of [`Group`] holds and the processor has the instructions of `L`.
#[inline(always)]
pub(super) unsafe fn run<L: Lanes, const UNROLL: usize>(group: &Group) {
    // The first parity is the XOR of the data, and so is a single lost data shard.
    let plain = group.factors.iter().step_by(group.outputs.len()).all(|factor| *factor == 1);
    // SAFETY: passed on; the number of outputs is the constant.
    unsafe {
        match (group.outputs.len(), plain) {
            (1, true) => rows::<L, 1, UNROLL, true>(group),
            (1, false) => rows::<L, 1, UNROLL, false>(group),
            (2, true) => rows::<L, 2, UNROLL, true>(group),
            (2, false) => rows::<L, 2, UNROLL, false>(group),
            (3, true) => rows::<L, 3, UNROLL, true>(group),
            (3, false) => rows::<L, 3, UNROLL, false>(group),
            (GROUP_ROWS, true) => rows::<L, GROUP_ROWS, UNROLL, true>(group),
            (GROUP_ROWS, false) => rows::<L, GROUP_ROWS, UNROLL, false>(group),
            (other, _) => unreachable!("a group has 1 to {GROUP_ROWS} outputs, not {other}"),
        }
    }
}

/// # Safety
/// As of [`run`], and the group has `R` outputs. With `PLAIN`, the factors of the first are ones.
#[inline(always)]
unsafe fn rows<L: Lanes, const R: usize, const UNROLL: usize, const PLAIN: bool>(group: &Group) {
    let mut at = group.start;
    // SAFETY: `at` never passes `end` minus what a step touches; passed on.
    unsafe {
        while group.end - at >= UNROLL * L::BYTES {
            step::<L, R, UNROLL, PLAIN>(group, at);
            at += UNROLL * L::BYTES;
        }
        while group.end - at >= L::BYTES {
            step::<L, R, 1, PLAIN>(group, at);
            at += L::BYTES;
        }
        if at < group.end {
            last::<L, R, PLAIN>(group, at);
        }
    }
}

/// Computes `U` vectors of each output.
///
/// # Safety
/// As of [`rows`], and `at + U * BYTES` is not beyond the end.
#[inline(always)]
unsafe fn step<L: Lanes, const R: usize, const U: usize, const PLAIN: bool>(group: &Group, at: usize) {
    // SAFETY: by the invariant of the group each source and output has the bytes at..at + U * BYTES, the factors have R
    // bytes for each source, and the prefetched addresses need not be readable.
    unsafe {
        let mut sums = [[L::zero(); U]; R];
        if group.add {
            for (sums, output) in sums.iter_mut().zip(group.outputs) {
                for (u, sum) in sums.iter_mut().enumerate() {
                    *sum = L::load(output.add(at + u * L::BYTES));
                }
            }
        }
        let mut factors = group.factors.as_ptr();
        for source in group.sources {
            let from = source.add(at);
            let mut data = [L::zero(); U];
            for (u, data) in data.iter_mut().enumerate() {
                *data = L::load(from.add(u * L::BYTES));
                if R > 1 {
                    L::prefetch(from.wrapping_add(PREFETCH + u * L::BYTES));
                }
            }
            accumulate::<L, R, U, PLAIN>(&mut sums, data, factors);
            factors = factors.add(R);
        }
        for (sums, output) in sums.iter().zip(group.outputs) {
            for (u, sum) in sums.iter().enumerate() {
                sum.store(output.add(at + u * L::BYTES));
            }
        }
    }
}

/// sums += factors · data.
///
/// # Safety
/// The processor has the instructions; `R` bytes can be read at `factors`.
#[inline(always)]
unsafe fn accumulate<L: Lanes, const R: usize, const U: usize, const PLAIN: bool>(
    sums: &mut [[L; U]; R],
    data: [L; U],
    factors: *const u8,
) {
    // SAFETY: the caller's.
    unsafe {
        let parts = data.map(|data| L::parts(data));
        for (row, sums) in sums.iter_mut().enumerate() {
            if PLAIN && row == 0 {
                for (sum, data) in sums.iter_mut().zip(data) {
                    *sum = sum.xor(data);
                }
            } else {
                let factor = L::factor(*factors.add(row));
                for (sum, parts) in sums.iter_mut().zip(parts) {
                    *sum = sum.add_product(factor, parts);
                }
            }
        }
    }
}

/// Computes the last bytes, fewer than a vector.
///
/// # Safety
/// As of [`rows`], and `at` is less than a vector before the end.
#[inline(always)]
unsafe fn last<L: Lanes, const R: usize, const PLAIN: bool>(group: &Group, at: usize) {
    let count = group.end - at;
    debug_assert!(count < L::BYTES && L::BYTES <= VECTOR_MAX);
    let mut buffer = [0u8; VECTOR_MAX];
    // SAFETY: `count` bytes of each source and output lie between `at` and the end, and fewer than a vector; the buffer
    // holds a vector.
    unsafe {
        let mut sums = [[L::zero(); 1]; R];
        if group.add {
            for (sum, output) in sums.iter_mut().zip(group.outputs) {
                output.add(at).copy_to_nonoverlapping(buffer.as_mut_ptr(), count);
                sum[0] = L::load(buffer.as_ptr());
            }
        }
        let mut factors = group.factors.as_ptr();
        for source in group.sources {
            source.add(at).copy_to_nonoverlapping(buffer.as_mut_ptr(), count);
            accumulate::<L, R, 1, PLAIN>(&mut sums, [L::load(buffer.as_ptr())], factors);
            factors = factors.add(R);
        }
        for (sum, output) in sums.iter().zip(group.outputs) {
            sum[0].store(buffer.as_mut_ptr());
            buffer.as_ptr().copy_to_nonoverlapping(output.add(at), count);
        }
    }
}
