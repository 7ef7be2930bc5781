//! Options of descriptors.

use libc::{c_int, c_long, c_ulong, c_void, socklen_t};

use super::fail;
use crate::files::{Kind, is_ours};
use crate::real;
use crate::world::with;

/// `setsockopt(2)`: nothing that a run would notice.
///
/// # Safety
/// As the C library says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    length: socklen_t,
) -> c_int {
    if is_ours(fd) {
        return 0;
    }
    // SAFETY: the caller's contract.
    unsafe { real::setsockopt(fd, level, name, value, length) }
}

/// `getsockopt(2)`: the error of a connection; 0 for anything else.
///
/// # Safety
/// As the C library says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: *mut socklen_t,
) -> c_int {
    if !is_ours(fd) {
        // SAFETY: the caller's contract.
        return unsafe { real::getsockopt(fd, level, name, value, length) };
    }
    // SAFETY: the caller's room.
    if unsafe { *length } as usize != size_of::<c_int>() {
        return fail(libc::EINVAL);
    }
    let shown = with(|world| {
        let Some(id) = world.files.id(fd) else { return 0 };
        match (level, name) {
            (libc::SOL_SOCKET, libc::SO_ERROR) => {
                world.files.stream(id).map_or(0, |stream| std::mem::take(&mut stream.error))
            }
            (libc::SOL_SOCKET, libc::SO_TYPE) => libc::SOCK_STREAM,
            (libc::SOL_SOCKET, libc::SO_ACCEPTCONN) => {
                c_int::from(world.files.get(id).is_some_and(|object| matches!(object.kind, Kind::Listener(_))))
            }
            (libc::SOL_SOCKET, libc::SO_DOMAIN) => libc::AF_INET,
            _ => 0,
        }
    });
    // SAFETY: there is room for a number.
    unsafe { value.cast::<c_int>().write_unaligned(shown) };
    0
}

/// `fcntl(2)`, which has one argument at most.
///
/// # Safety
/// As the C library says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcntl(fd: c_int, command: c_int, arg: c_long) -> c_int {
    if !is_ours(fd) {
        // SAFETY: the caller's contract.
        return unsafe { real::fcntl(fd, command, arg) };
    }
    with(|world| {
        let Some(id) = world.files.id(fd) else { return fail(libc::EBADF) };
        match command {
            libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => return world.files.number(id),
            libc::F_GETFD => return libc::FD_CLOEXEC,
            libc::F_SETFD => return 0,
            _ => {}
        }
        let Some(object) = world.files.get(id) else { return fail(libc::EBADF) };
        match command {
            libc::F_GETFL => libc::O_RDWR | if object.nonblocking { libc::O_NONBLOCK } else { 0 },
            libc::F_SETFL => {
                object.nonblocking = arg as c_int & libc::O_NONBLOCK != 0;
                0
            }
            _ => fail(libc::EINVAL),
        }
    })
}

/// `fcntl64`, the same.
///
/// # Safety
/// As the C library says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcntl64(fd: c_int, command: c_int, arg: c_long) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { fcntl(fd, command, arg) }
}

/// `ioctl(2)`: only whether calls wait.
///
/// # Safety
/// As the C library says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, arg: *mut c_int) -> c_int {
    if !is_ours(fd) {
        // SAFETY: the caller's contract.
        return unsafe { real::ioctl(fd, request, arg) };
    }
    if request != libc::FIONBIO {
        return fail(libc::ENOTTY);
    }
    // SAFETY: the caller's number.
    let nonblocking = unsafe { *arg } != 0;
    with(|world| {
        if let Some(object) = world.files.id(fd).and_then(|id| world.files.get(id)) {
            object.nonblocking = nonblocking;
        }
    });
    0
}
