//! Sockets of IPv4 streams: made, bound, connected, accepted, shut.

use libc::{c_int, sockaddr, sockaddr_in, socklen_t};

use super::fail;
use crate::files::{Id, Kind, is_ours};
use crate::real;
use crate::sched;
use crate::tcp::{Phase, Stream};
use crate::trace::What;
use crate::world::{managed, with};

/// Address and port, in the machine's own order of bytes.
///
/// # Safety
/// The pointer leads to an address of this length.
unsafe fn address(at: *const sockaddr, length: socklen_t) -> Option<(u32, u16)> {
    if (length as usize) < size_of::<sockaddr_in>() {
        return None;
    }
    // SAFETY: it is long enough, and the family is looked at first.
    let address = unsafe { &*at.cast::<sockaddr_in>() };
    if c_int::from(address.sin_family) != libc::AF_INET {
        return None;
    }
    Some((u32::from_be(address.sin_addr.s_addr), u16::from_be(address.sin_port)))
}

/// Gives an address to the caller.
///
/// # Safety
/// Both are null, or the first has room for as many bytes as the second says.
unsafe fn tell(to: *mut sockaddr, length: *mut socklen_t, (host, port): (u32, u16)) {
    if to.is_null() || length.is_null() {
        return;
    }
    // SAFETY: zero bytes are an address.
    let mut address: sockaddr_in = unsafe { std::mem::zeroed() };
    address.sin_family = libc::AF_INET as u16;
    address.sin_port = port.to_be();
    address.sin_addr.s_addr = host.to_be();
    let size = size_of::<sockaddr_in>();
    // SAFETY: as the caller promises; no more than its room is filled.
    unsafe {
        let room = (*length as usize).min(size);
        std::ptr::copy_nonoverlapping(std::ptr::from_ref(&address).cast::<u8>(), to.cast::<u8>(), room);
        *length = size as socklen_t;
    }
}

/// `socket(2)`.
///
/// # Safety
/// None is needed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    if !managed() || domain == libc::AF_UNIX {
        // SAFETY: it takes no pointer.
        return unsafe { real::socket(domain, kind, protocol) };
    }
    if domain != libc::AF_INET || kind & 0xf != libc::SOCK_STREAM {
        return fail(libc::EAFNOSUPPORT);
    }
    with(|world| {
        let host = world.threads[world.running as usize].host;
        let id = world.files.make(Kind::Fresh, kind & libc::SOCK_NONBLOCK != 0, host);
        world.files.number(id)
    })
}

/// `bind(2)`.
///
/// # Safety
/// As the C library says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bind(fd: c_int, at: *const sockaddr, length: socklen_t) -> c_int {
    if !is_ours(fd) {
        // SAFETY: the caller's contract.
        return unsafe { real::bind(fd, at, length) };
    }
    // SAFETY: the caller's address.
    let Some((host, port)) = (unsafe { address(at, length) }) else { return fail(libc::EAFNOSUPPORT) };
    with(|world| {
        let Some(id) = world.files.id(fd) else { return fail(libc::EBADF) };
        let port = if port == 0 { world.files.free_port() } else { port };
        if world.files.listener(host, port).is_some() {
            return fail(libc::EADDRINUSE);
        }
        let Some(object) = world.files.get(id) else { return fail(libc::EBADF) };
        object.local = (host, port);
        0
    })
}

/// `listen(2)`.
///
/// # Safety
/// None is needed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn listen(fd: c_int, backlog: c_int) -> c_int {
    if !is_ours(fd) {
        // SAFETY: it takes no pointer.
        return unsafe { real::listen(fd, backlog) };
    }
    with(|world| match world.files.id(fd) {
        Some(id) if world.files.listen(id) => 0,
        _ => fail(libc::EINVAL),
    })
}

/// `accept4(2)`.
///
/// # Safety
/// As the C library says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn accept4(fd: c_int, from: *mut sockaddr, length: *mut socklen_t, flags: c_int) -> c_int {
    if !is_ours(fd) {
        // SAFETY: the caller's contract.
        return unsafe { real::accept4(fd, from, length, flags) };
    }
    sched::point(|world| world.rates.io);
    loop {
        let accepted = with(|world| {
            let id = world.files.id(fd).ok_or(libc::EBADF)?;
            let running = world.running;
            let object = world.files.get(id).ok_or(libc::EBADF)?;
            let nonblocking = object.nonblocking;
            let Kind::Listener(listener) = &mut object.kind else { return Err(libc::EINVAL) };
            let Some(other) = listener.backlog.pop_front() else {
                if !nonblocking {
                    object.waiters.push(running);
                }
                return Err(if nonblocking { libc::EAGAIN } else { 0 });
            };
            world.note(What::Accept, id, other);
            if let Some(object) = world.files.get(other) {
                object.nonblocking = flags & libc::SOCK_NONBLOCK != 0;
            }
            let remote = world.files.stream(other).map_or((0, 0), |stream| stream.remote);
            Ok((world.files.number(other), remote))
        });
        match accepted {
            Ok((number, remote)) => {
                // SAFETY: the caller's room for it.
                unsafe { tell(from, length, remote) };
                return number;
            }
            Err(0) => {
                sched::block("accept", None);
            }
            Err(code) => return fail(code),
        }
    }
}

/// `accept(2)`.
///
/// # Safety
/// As the C library says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn accept(fd: c_int, from: *mut sockaddr, length: *mut socklen_t) -> c_int {
    // SAFETY: the caller's contract.
    unsafe { accept4(fd, from, length, 0) }
}

/// How far a connection of a descriptor has come; whoever waits for more is woken.
fn progress(fd: c_int) -> Phase {
    with(|world| {
        let running = world.running;
        let Some(id) = world.files.id(fd) else { return Phase::Failed };
        let phase = world.files.stream(id).map_or(Phase::Failed, |stream| stream.phase);
        if phase == Phase::Connecting
            && let Some(object) = world.files.get(id)
        {
            object.waiters.push(running);
        }
        phase
    })
}

/// `connect(2)`.
///
/// # Safety
/// As the C library says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn connect(fd: c_int, to: *const sockaddr, length: socklen_t) -> c_int {
    if !is_ours(fd) {
        // SAFETY: the caller's contract.
        return unsafe { real::connect(fd, to, length) };
    }
    sched::point(|world| world.rates.io);
    // SAFETY: the caller's address.
    let Some(to) = (unsafe { address(to, length) }) else { return fail(libc::EAFNOSUPPORT) };
    let begun = with(|world| {
        let id = world.files.id(fd).ok_or(libc::EBADF)?;
        world.connect(id, to)?;
        Ok(world.files.get(id).is_some_and(|object| object.nonblocking))
    });
    match begun {
        Ok(true) => return fail(libc::EINPROGRESS),
        Ok(false) => {}
        Err(code) => return fail(code),
    }
    while progress(fd) == Phase::Connecting {
        sched::block("connect", None);
    }
    if progress(fd) == Phase::Connected { 0 } else { fail(libc::ECONNREFUSED) }
}

fn names(fd: c_int, name: impl FnOnce(&mut crate::world::World, Id) -> Option<(u32, u16)>) -> Option<(u32, u16)> {
    with(|world| {
        let id = world.files.id(fd)?;
        name(world, id)
    })
}

/// `getsockname(2)`.
///
/// # Safety
/// As the C library says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getsockname(fd: c_int, to: *mut sockaddr, length: *mut socklen_t) -> c_int {
    if !is_ours(fd) {
        // SAFETY: the caller's contract.
        return unsafe { real::getsockname(fd, to, length) };
    }
    match names(fd, |world, id| world.files.get(id).map(|object| object.local)) {
        Some(local) => {
            // SAFETY: the caller's room for it.
            unsafe { tell(to, length, local) };
            0
        }
        None => fail(libc::EBADF),
    }
}

/// `getpeername(2)`.
///
/// # Safety
/// As the C library says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getpeername(fd: c_int, to: *mut sockaddr, length: *mut socklen_t) -> c_int {
    if !is_ours(fd) {
        // SAFETY: the caller's contract.
        return unsafe { real::getpeername(fd, to, length) };
    }
    let connected = |stream: &&mut Stream| stream.phase == Phase::Connected;
    match names(fd, |world, id| world.files.stream(id).filter(connected).map(|stream| stream.remote)) {
        Some(remote) => {
            // SAFETY: the caller's room for it.
            unsafe { tell(to, length, remote) };
            0
        }
        None => fail(libc::ENOTCONN),
    }
}

/// `shutdown(2)`: the end of what is sent; what comes is read on.
///
/// # Safety
/// None is needed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shutdown(fd: c_int, how: c_int) -> c_int {
    if !is_ours(fd) {
        // SAFETY: it takes no pointer.
        return unsafe { real::shutdown(fd, how) };
    }
    let done = with(|world| {
        let id = world.files.id(fd).ok_or(libc::EBADF)?;
        if how == libc::SHUT_RD { Ok(()) } else { world.send_end(id) }
    });
    match done {
        Ok(()) => 0,
        Err(code) => fail(code),
    }
}
