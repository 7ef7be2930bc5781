//! What is set before a run: the same addresses in every run (the program starts itself once more, without chance in
//! its layout), and one processor, as only one thread runs at a time.

use std::os::unix::process::CommandExt;

/// What the kernel is told to leave alone.
const NO_RANDOM_LAYOUT: libc::c_ulong = libc::ADDR_NO_RANDOMIZE as libc::c_ulong;

/// Starts the program anew with a fixed layout, unless it has one. Where that is forbidden it goes on as it is: the
/// layout matters only to what depends on addresses.
pub fn fix_layout() {
    // SAFETY: it takes and gives numbers; this one only asks.
    let persona = unsafe { libc::personality(0xffff_ffff) };
    if persona < 0 || persona as libc::c_ulong & NO_RANDOM_LAYOUT == 0 {
        restart(std::env::args_os().skip(1));
    }
}

/// Starts the program anew with a fixed layout and these arguments. They should be equally long for all runs of a seed,
/// as they lie in memory before everything else. Comes back only where that fails.
pub fn restart(args: impl IntoIterator<Item = impl AsRef<std::ffi::OsStr>>) {
    // SAFETY: it takes and gives numbers; the first one only asks.
    unsafe {
        let persona = libc::personality(0xffff_ffff);
        libc::personality(persona.max(0) as libc::c_ulong | NO_RANDOM_LAYOUT);
    }
    let Ok(program) = std::env::current_exe() else { return };
    let _stayed = std::process::Command::new(program).args(args).exec();
}

/// Keeps the process on one processor, another one for each lane (as far as there are so many): handing over to a
/// thread on another one costs far more. What a run does is the same without it.
pub fn stay_on_processor(lane: usize) {
    // SAFETY: zero bytes are an empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    let size = size_of::<libc::cpu_set_t>();
    // SAFETY: the set is there for the call.
    if unsafe { crate::real::sched_getaffinity(0, size, &mut set) } != 0 {
        return;
    }
    // SAFETY: within the size of a set.
    let allowed: Vec<usize> =
        (0..libc::CPU_SETSIZE as usize).filter(|cpu| unsafe { libc::CPU_ISSET(*cpu, &set) }).collect();
    if allowed.is_empty() {
        return;
    }
    // SAFETY: as above; a failure leaves everything as it is.
    unsafe {
        libc::CPU_ZERO(&mut set);
        libc::CPU_SET(allowed[lane % allowed.len()], &mut set);
        libc::sched_setaffinity(0, size, &set);
    }
}
