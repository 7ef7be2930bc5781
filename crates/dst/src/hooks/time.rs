//! Clocks and sleep: time of the calling thread's host, which goes on only with the run.

use libc::{c_int, clockid_t, timespec};

use crate::host::wall;
use crate::world::{managed, with};
use crate::{real, sched};

const SECOND: u64 = 1_000_000_000;

fn to_timespec(nanos: u64) -> timespec {
    timespec { tv_sec: (nanos / SECOND) as i64, tv_nsec: (nanos % SECOND) as i64 }
}

fn to_nanos(time: &timespec) -> u64 {
    (time.tv_sec as u64).saturating_mul(SECOND).saturating_add(time.tv_nsec as u64)
}

/// `clock_gettime(2)`. All clocks but the calendar count from the start of the host.
///
/// # Safety
/// As the C library says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_gettime(clock: clockid_t, to: *mut timespec) -> c_int {
    if !managed() {
        // SAFETY: the caller's contract.
        return unsafe { real::clock_gettime(clock, to) };
    }
    sched::point(|world| world.rates.clock);
    let local = with(|world| {
        // Who only asks the clock until it shows something comes to an end.
        world.now += 40;
        let now = world.now;
        world.host().local(now)
    });
    let shown = match clock {
        libc::CLOCK_REALTIME | libc::CLOCK_REALTIME_COARSE | libc::CLOCK_TAI => wall(local),
        _ => local,
    };
    // SAFETY: the caller's place for it.
    unsafe { *to = to_timespec(shown) };
    0
}

fn sleep_until(local: u64) {
    let moment = with(|world| world.host().moment(local));
    sched::block("sleep", Some(moment));
}

fn local_now() -> u64 {
    with(|world| {
        let now = world.now;
        world.host().local(now)
    })
}

/// `nanosleep(2)`.
///
/// # Safety
/// As the C library says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nanosleep(wanted: *const timespec, left: *mut timespec) -> c_int {
    if !managed() {
        // SAFETY: the caller's contract.
        return unsafe { real::nanosleep(wanted, left) };
    }
    // SAFETY: the caller's time.
    let long = to_nanos(unsafe { &*wanted });
    sleep_until(local_now().saturating_add(long));
    0
}

/// `clock_nanosleep(2)`, which returns its error.
///
/// # Safety
/// As the C library says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_nanosleep(
    clock: clockid_t,
    flags: c_int,
    wanted: *const timespec,
    left: *mut timespec,
) -> c_int {
    if !managed() {
        // SAFETY: the caller's contract.
        return unsafe { real::clock_nanosleep(clock, flags, wanted, left) };
    }
    // SAFETY: the caller's time.
    let time = to_nanos(unsafe { &*wanted });
    let absolute = flags & libc::TIMER_ABSTIME != 0;
    if absolute && clock == libc::CLOCK_REALTIME {
        crate::report::fatal("sleep until a moment of the calendar is not known");
    }
    sleep_until(if absolute { time } else { local_now().saturating_add(time) });
    0
}
