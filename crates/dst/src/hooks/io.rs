//! Reading, writing and closing descriptors.

use libc::{c_int, c_void, iovec, msghdr, size_t, ssize_t};

use super::{fail, fail_length};
use crate::files::{Kind, is_ours};
use crate::world::with;
use crate::{real, sched};

/// A call that may have to wait: until it does not answer [`libc::EAGAIN`], if the descriptor waits at all.
fn waiting(fd: c_int, mut call: impl FnMut() -> Result<usize, i32>) -> ssize_t {
    sched::point(|world| world.rates.io);
    loop {
        match call() {
            Ok(count) => return count as ssize_t,
            Err(libc::EAGAIN) => {
                let waits = with(|world| {
                    let running = world.running;
                    match world.files.id(fd).and_then(|id| world.files.get(id)) {
                        Some(object) if !object.nonblocking => {
                            object.waiters.push(running);
                            true
                        }
                        _ => false,
                    }
                });
                if !waits {
                    return fail_length(libc::EAGAIN);
                }
                sched::block("socket", None);
            }
            Err(code) => return fail_length(code),
        }
    }
}

fn receive(fd: c_int, parts: &mut [&mut [u8]], peek: bool) -> ssize_t {
    waiting(fd, || {
        with(|world| {
            let id = world.files.id(fd).ok_or(libc::EBADF)?;
            let object = world.files.get(id).ok_or(libc::EBADF)?;
            match &mut object.kind {
                Kind::Counter(0) => Err(libc::EAGAIN),
                Kind::Counter(count) => {
                    let count = std::mem::take(count).to_ne_bytes();
                    let to = parts.first_mut().and_then(|part| part.get_mut(..8)).ok_or(libc::EINVAL)?;
                    to.copy_from_slice(&count);
                    Ok(8)
                }
                Kind::Stream(_) => world.receive(id, parts, peek),
                _ => Err(libc::EINVAL),
            }
        })
    })
}

fn send_parts(fd: c_int, parts: &[&[u8]]) -> ssize_t {
    waiting(fd, || {
        with(|world| {
            let id = world.files.id(fd).ok_or(libc::EBADF)?;
            let object = world.files.get(id).ok_or(libc::EBADF)?;
            match &mut object.kind {
                Kind::Counter(count) => {
                    let more = parts.first().and_then(|part| part.first_chunk::<8>()).ok_or(libc::EINVAL)?;
                    *count = count.saturating_add(u64::from_ne_bytes(*more));
                    world.edge(id);
                    Ok(8)
                }
                Kind::Stream(_) => world.send(id, parts),
                _ => Err(libc::EINVAL),
            }
        })
    })
}

/// Buffers of a call.
///
/// # Safety
/// The pointer leads to so many of them, each of which is valid for the call.
unsafe fn parts<'a>(of: *const iovec, count: usize) -> Vec<&'a [u8]> {
    (0..count)
        .map(|at| {
            // SAFETY: as the caller promises.
            let part = unsafe { &*of.add(at) };
            match part.iov_len {
                0 => &[][..],
                // SAFETY: as the caller promises.
                length => unsafe { std::slice::from_raw_parts(part.iov_base.cast::<u8>(), length) },
            }
        })
        .collect()
}

/// The same, to be filled.
///
/// # Safety
/// As for [`parts`], and nobody else uses them meanwhile.
unsafe fn parts_mut<'a>(of: *const iovec, count: usize) -> Vec<&'a mut [u8]> {
    (0..count)
        .map(|at| {
            // SAFETY: as the caller promises.
            let part = unsafe { &*of.add(at) };
            match part.iov_len {
                0 => &mut [][..],
                // SAFETY: as the caller promises.
                length => unsafe { std::slice::from_raw_parts_mut(part.iov_base.cast::<u8>(), length) },
            }
        })
        .collect()
}

/// `close(2)`.
///
/// # Safety
/// As the C library says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn close(fd: c_int) -> c_int {
    if !is_ours(fd) {
        // SAFETY: the caller's contract.
        return unsafe { real::close(fd) };
    }
    if with(|world| world.close(fd)) { 0 } else { fail(libc::EBADF) }
}

/// `read(2)`.
///
/// # Safety
/// As the C library says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn read(fd: c_int, to: *mut c_void, length: size_t) -> ssize_t {
    if !is_ours(fd) {
        // SAFETY: the caller's contract.
        return unsafe { real::read(fd, to, length) };
    }
    // SAFETY: the caller's buffer is so long.
    receive(fd, &mut [unsafe { std::slice::from_raw_parts_mut(to.cast::<u8>(), length) }], false)
}

/// `write(2)`.
///
/// # Safety
/// As the C library says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn write(fd: c_int, from: *const c_void, length: size_t) -> ssize_t {
    if !is_ours(fd) {
        // SAFETY: the caller's contract.
        return unsafe { real::write(fd, from, length) };
    }
    // SAFETY: the caller's buffer is so long.
    send_parts(fd, &[unsafe { std::slice::from_raw_parts(from.cast::<u8>(), length) }])
}

/// `readv(2)`.
///
/// # Safety
/// As the C library says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn readv(fd: c_int, to: *const iovec, count: c_int) -> ssize_t {
    if !is_ours(fd) {
        // SAFETY: the caller's contract.
        return unsafe { real::readv(fd, to, count) };
    }
    // SAFETY: the caller's buffers.
    receive(fd, &mut unsafe { parts_mut(to, count as usize) }, false)
}

/// `writev(2)`.
///
/// # Safety
/// As the C library says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn writev(fd: c_int, from: *const iovec, count: c_int) -> ssize_t {
    if !is_ours(fd) {
        // SAFETY: the caller's contract.
        return unsafe { real::writev(fd, from, count) };
    }
    // SAFETY: the caller's buffers.
    send_parts(fd, &unsafe { parts(from, count as usize) })
}

/// `recv(2)`.
///
/// # Safety
/// As the C library says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recv(fd: c_int, to: *mut c_void, length: size_t, flags: c_int) -> ssize_t {
    if !is_ours(fd) {
        // SAFETY: the caller's contract.
        return unsafe { real::recv(fd, to, length, flags) };
    }
    // SAFETY: the caller's buffer is so long.
    let to = unsafe { std::slice::from_raw_parts_mut(to.cast::<u8>(), length) };
    receive(fd, &mut [to], flags & libc::MSG_PEEK != 0)
}

/// `send(2)`.
///
/// # Safety
/// As the C library says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn send(fd: c_int, from: *const c_void, length: size_t, flags: c_int) -> ssize_t {
    if !is_ours(fd) {
        // SAFETY: the caller's contract.
        return unsafe { real::send(fd, from, length, flags) };
    }
    // SAFETY: the caller's buffer is so long.
    send_parts(fd, &[unsafe { std::slice::from_raw_parts(from.cast::<u8>(), length) }])
}

/// `recvmsg(2)`: bytes only.
///
/// # Safety
/// As the C library says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvmsg(fd: c_int, to: *mut msghdr, flags: c_int) -> ssize_t {
    if !is_ours(fd) {
        // SAFETY: the caller's contract.
        return unsafe { real::recvmsg(fd, to, flags) };
    }
    // SAFETY: the caller's message and its buffers.
    let mut parts = unsafe { parts_mut((*to).msg_iov, (*to).msg_iovlen) };
    receive(fd, &mut parts, flags & libc::MSG_PEEK != 0)
}

/// `sendmsg(2)`: bytes only.
///
/// # Safety
/// As the C library says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendmsg(fd: c_int, from: *const msghdr, flags: c_int) -> ssize_t {
    if !is_ours(fd) {
        // SAFETY: the caller's contract.
        return unsafe { real::sendmsg(fd, from, flags) };
    }
    // SAFETY: the caller's message and its buffers.
    send_parts(fd, &unsafe { parts((*from).msg_iov, (*from).msg_iovlen) })
}
