//! The kernels of x86-64, a file an instruction set, and which of them a processor can run.
use super::{Group, Kernel};
use std::arch::is_x86_feature_detected as has;

mod avx2;
mod avx512;
mod gfni_avx2;
mod gfni_avx512;
mod ssse3;

pub(super) fn is_available(kernel: Kernel) -> bool {
    match kernel {
        Kernel::Ssse3 => has!("ssse3"),
        Kernel::Avx2 => has!("avx2"),
        Kernel::Avx512 => has!("avx512f") && has!("avx512bw"),
        Kernel::GfniAvx2 => has!("gfni") && has!("avx2"),
        Kernel::GfniAvx512 => has!("gfni") && has!("avx512f") && has!("avx512bw"),
        Kernel::Portable | Kernel::Neon => false,
    }
}

/// # Safety
/// The invariant of [`Group`] holds and [`is_available`] says yes.
pub(super) unsafe fn run(kernel: Kernel, group: &Group) {
    // SAFETY: the caller's.
    unsafe {
        match kernel {
            Kernel::Ssse3 => ssse3::run(group),
            Kernel::Avx2 => avx2::run(group),
            Kernel::Avx512 => avx512::run(group),
            Kernel::GfniAvx2 => gfni_avx2::run(group),
            Kernel::GfniAvx512 => gfni_avx512::run(group),
            Kernel::Portable | Kernel::Neon => unreachable!("{kernel} is no kernel of x86"),
        }
    }
}
