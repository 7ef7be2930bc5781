//! Epoll and counters of events.

use libc::{c_int, c_uint, epoll_event, nfds_t, pollfd};

use super::fail;
use crate::files::{Kind, is_ours};
use crate::sched::{self, Woken};
use crate::trace::What;
use crate::world::{managed, with};
use crate::{epoll::Epoll, real};

const MILLI: u64 = 1_000_000;

/// `epoll_create1(2)`.
///
/// # Safety
/// None is needed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_create1(flags: c_int) -> c_int {
    if !managed() {
        // SAFETY: it takes no pointer.
        return unsafe { real::epoll_create1(flags) };
    }
    with(|world| {
        let host = world.threads[world.running as usize].host;
        let id = world.files.make(Kind::Epoll(Epoll::default()), false, host);
        world.files.number(id)
    })
}

/// `eventfd(2)`.
///
/// # Safety
/// None is needed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn eventfd(first: c_uint, flags: c_int) -> c_int {
    if !managed() {
        // SAFETY: it takes no pointer.
        return unsafe { real::eventfd(first, flags) };
    }
    with(|world| {
        let host = world.threads[world.running as usize].host;
        let nonblocking = flags & libc::EFD_NONBLOCK != 0;
        let id = world.files.make(Kind::Counter(u64::from(first)), nonblocking, host);
        world.files.number(id)
    })
}

/// `epoll_ctl(2)`.
///
/// # Safety
/// As the C library says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_ctl(epoll: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
    if !is_ours(epoll) {
        // SAFETY: the caller's contract.
        return unsafe { real::epoll_ctl(epoll, op, fd, event) };
    }
    // SAFETY: the caller's event, or null where it is not looked at.
    let (events, data) = if event.is_null() { (0, 0) } else { unsafe { ((*event).events, (*event).u64) } };
    match with(|world| world.control(epoll, op, fd, events, data)) {
        Ok(()) => 0,
        Err(code) => fail(code),
    }
}

/// `epoll_wait(2)`.
///
/// # Safety
/// As the C library says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn epoll_wait(epoll: c_int, to: *mut epoll_event, most: c_int, millis: c_int) -> c_int {
    if !is_ours(epoll) {
        // SAFETY: the caller's contract.
        return unsafe { real::epoll_wait(epoll, to, most, millis) };
    }
    sched::point(|world| world.rates.io);
    let Some((id, until)) = with(|world| {
        let id = world.files.id(epoll)?;
        world.note(What::EpollWait, id, millis as u64);
        let now = world.now;
        let host = world.host();
        let until = (millis >= 0).then(|| host.moment(host.local(now) + millis as u64 * MILLI));
        Some((id, until))
    }) else {
        return fail(libc::EBADF);
    };
    loop {
        let reports = match with(|world| world.reports(id, most as usize)) {
            Ok(reports) => reports,
            Err(code) => return fail(code),
        };
        if !reports.is_empty() || millis == 0 {
            for (at, report) in reports.iter().enumerate() {
                // SAFETY: there is room for `most`, and no more are reported.
                unsafe { *to.add(at) = epoll_event { events: report.events, u64: report.data } };
            }
            return reports.len() as c_int;
        }
        with(|world| world.await_news(id));
        if sched::block("epoll", until) == Woken::TimedOut {
            with(|world| world.await_no_news(id));
            return 0;
        }
    }
}

/// `poll(2)`, of the kernel's descriptors only.
///
/// # Safety
/// As the C library says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn poll(of: *mut pollfd, count: nfds_t, millis: c_int) -> c_int {
    if managed() {
        crate::report::fatal("poll is not known");
    }
    // SAFETY: the caller's contract.
    unsafe { real::poll(of, count, millis) }
}
