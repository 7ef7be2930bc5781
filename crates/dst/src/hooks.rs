//! The functions that stand before the C library's own, for the whole program that links this crate.
//!
//! Threads that do not belong to a run, and descriptors that the run did not make, go through to the C library. What a
//! run does not know of a descriptor of its own ends the process: a silent guess would be a wrong proof.

pub mod futex;
pub mod io;
pub mod options;
pub mod poll;
pub mod socket;
pub mod thread;
pub mod time;

use libc::{c_int, c_long, c_void, ssize_t};

use crate::world::{managed, with};
use crate::{real, sched};

/// Sets the error and gives what a failed call returns.
pub(crate) fn fail(code: i32) -> c_int {
    // SAFETY: the place of this thread's errno is always there.
    unsafe { *libc::__errno_location() = code };
    -1
}

/// The same, as a length.
pub(crate) fn fail_length(code: i32) -> ssize_t {
    fail(code) as ssize_t
}

struct Hooks([*const (); 8]);
// SAFETY: addresses of functions, which nobody calls by them.
unsafe impl Sync for Hooks {}

/// Keeps a linker that takes members of an archive one by one from leaving hooks out.
#[used]
static ALL: Hooks = Hooks([
    syscall as *const (),
    getrandom as *const (),
    thread::pthread_create as *const (),
    time::clock_gettime as *const (),
    poll::epoll_wait as *const (),
    socket::socket as *const (),
    options::fcntl as *const (),
    io::read as *const (),
]);

/// Is named by who begins a run, so that this module is linked.
pub fn present() -> bool {
    ALL.0.iter().all(|hook| !hook.is_null())
}

/// `syscall(2)`: futexes and randomness are ours, all else is the kernel's.
///
/// # Safety
/// As the C library says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syscall(
    number: c_long,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
    f: c_long,
) -> c_long {
    if managed() {
        if number == libc::SYS_futex {
            // SAFETY: the caller's pointers, as the kernel would take them.
            return unsafe { futex::futex(a as *const u32, b as c_int, c as u32, d, f as u32) };
        }
        if number == libc::SYS_getrandom {
            // SAFETY: the caller's buffer.
            return unsafe { getrandom(a as *mut c_void, b as usize, c as u32) } as c_long;
        }
    }
    // SAFETY: the caller's contract.
    unsafe { real::syscall(number, a, b, c, d, e, f) }
}

/// `getrandom(2)`: the seed decides.
///
/// # Safety
/// As the C library says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getrandom(to: *mut c_void, length: usize, flags: u32) -> ssize_t {
    if !managed() {
        // SAFETY: the caller's contract.
        return unsafe { real::getrandom(to, length, flags) };
    }
    // SAFETY: the caller's buffer is so long.
    let bytes = unsafe { std::slice::from_raw_parts_mut(to.cast::<u8>(), length) };
    with(|world| {
        world.entropy.fill(bytes);
        world.note(crate::trace::What::Random, length as u64, crate::trace::fingerprint(bytes));
    });
    length as ssize_t
}

/// `sched_yield(2)`.
///
/// # Safety
/// None is needed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sched_yield() -> c_int {
    if managed() {
        sched::pass();
        return 0;
    }
    // SAFETY: it takes nothing.
    unsafe { real::sched_yield() }
}
