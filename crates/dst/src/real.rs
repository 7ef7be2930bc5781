//! The functions of the C library that [`crate::hooks`] stand before, found behind this program's own.
//!
//! Invariant: nothing here is seen by the scheduler. A pointer is looked up at the first call and kept.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use libc::{c_char, c_int, c_long, c_uint, c_void, size_t, socklen_t, ssize_t};

/// What a thread starts with.
pub type StartRoutine = extern "C" fn(*mut c_void) -> *mut c_void;

fn look_up(slot: &AtomicUsize, name: &'static str) -> usize {
    let known = slot.load(Relaxed);
    if known != 0 {
        return known;
    }
    // SAFETY: the name ends in a zero byte; the answer is only compared and kept.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr().cast::<c_char>()) } as usize;
    assert!(found != 0, "the C library has no {name}");
    slot.store(found, Relaxed);
    found
}

macro_rules! real {
    ($($name:ident($($arg:ident: $ty:ty),*) -> $out:ty;)*) => { $(
        /// The C library's own.
        ///
        /// # Safety
        /// As the C library says.
        pub unsafe fn $name($($arg: $ty),*) -> $out {
            static SLOT: AtomicUsize = AtomicUsize::new(0);
            let found = look_up(&SLOT, concat!(stringify!($name), "\0"));
            // SAFETY: the C library's function of this name has this signature.
            let call: unsafe extern "C" fn($($ty),*) -> $out = unsafe { std::mem::transmute(found) };
            // SAFETY: the caller keeps the function's contract.
            unsafe { call($($arg),*) }
        }
    )* };
}

real! {
    syscall(number: c_long, a: c_long, b: c_long, c: c_long, d: c_long, e: c_long, f: c_long) -> c_long;
    pthread_create(thread: *mut libc::pthread_t, attr: *const c_void, start: StartRoutine, arg: *mut c_void) -> c_int;
    pthread_join(thread: libc::pthread_t, value: *mut *mut c_void) -> c_int;
    pthread_setname_np(thread: libc::pthread_t, name: *const c_char) -> c_int;
    clock_gettime(clock: libc::clockid_t, to: *mut libc::timespec) -> c_int;
    nanosleep(wanted: *const libc::timespec, left: *mut libc::timespec) -> c_int;
    clock_nanosleep(
        clock: libc::clockid_t, flags: c_int, wanted: *const libc::timespec, left: *mut libc::timespec
    ) -> c_int;
    getpid() -> libc::pid_t;
    sched_yield() -> c_int;
    sched_getaffinity(pid: libc::pid_t, size: size_t, set: *mut libc::cpu_set_t) -> c_int;
    getrandom(to: *mut c_void, length: size_t, flags: c_uint) -> ssize_t;
    epoll_create1(flags: c_int) -> c_int;
    epoll_ctl(epoll: c_int, op: c_int, fd: c_int, event: *mut libc::epoll_event) -> c_int;
    epoll_wait(epoll: c_int, to: *mut libc::epoll_event, most: c_int, millis: c_int) -> c_int;
    eventfd(first: c_uint, flags: c_int) -> c_int;
    poll(of: *mut libc::pollfd, count: libc::nfds_t, millis: c_int) -> c_int;
    socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    bind(fd: c_int, at: *const libc::sockaddr, length: socklen_t) -> c_int;
    listen(fd: c_int, backlog: c_int) -> c_int;
    accept4(fd: c_int, from: *mut libc::sockaddr, length: *mut socklen_t, flags: c_int) -> c_int;
    connect(fd: c_int, to: *const libc::sockaddr, length: socklen_t) -> c_int;
    getsockname(fd: c_int, to: *mut libc::sockaddr, length: *mut socklen_t) -> c_int;
    getpeername(fd: c_int, to: *mut libc::sockaddr, length: *mut socklen_t) -> c_int;
    setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, length: socklen_t) -> c_int;
    getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, length: *mut socklen_t) -> c_int;
    shutdown(fd: c_int, how: c_int) -> c_int;
    close(fd: c_int) -> c_int;
    fcntl(fd: c_int, command: c_int, arg: c_long) -> c_int;
    ioctl(fd: c_int, request: libc::c_ulong, arg: *mut c_int) -> c_int;
    read(fd: c_int, to: *mut c_void, length: size_t) -> ssize_t;
    write(fd: c_int, from: *const c_void, length: size_t) -> ssize_t;
    readv(fd: c_int, to: *const libc::iovec, count: c_int) -> ssize_t;
    writev(fd: c_int, from: *const libc::iovec, count: c_int) -> ssize_t;
    recv(fd: c_int, to: *mut c_void, length: size_t, flags: c_int) -> ssize_t;
    send(fd: c_int, from: *const c_void, length: size_t, flags: c_int) -> ssize_t;
    recvmsg(fd: c_int, to: *mut libc::msghdr, flags: c_int) -> ssize_t;
    sendmsg(fd: c_int, from: *const libc::msghdr, flags: c_int) -> ssize_t;
}

/// Wakes, truly, who waits for the word.
pub fn futex_wake(word: *const u32) {
    let op = c_long::from(libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG);
    // SAFETY: a wake does not look at the memory, so it may even be gone.
    unsafe { syscall(libc::SYS_futex, word as c_long, op, 1, 0, 0, 0) };
}

/// This thread's number in the kernel.
pub fn os_thread() -> i32 {
    // SAFETY: it takes nothing and cannot fail.
    unsafe { syscall(libc::SYS_gettid, 0, 0, 0, 0, 0, 0) as i32 }
}

/// Waits, truly, until the word is not `seen` any more.
#[cfg(not(target_arch = "x86_64"))]
pub fn futex_wait(word: &std::sync::atomic::AtomicU32, seen: u32) {
    let op = c_long::from(libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG);
    // SAFETY: the word lives as long as the reference; a wait without limit takes no further pointer.
    unsafe { syscall(libc::SYS_futex, word.as_ptr() as c_long, op, c_long::from(seen), 0, 0, 0) };
}

/// Lets others of the system's threads run.
#[cfg(target_arch = "x86_64")]
pub fn give_way() {
    // SAFETY: it takes nothing.
    unsafe { sched_yield() };
}

/// Waits, truly, until the kernel has forgotten a thread of this process.
pub fn wait_gone(os_thread: i32) {
    // SAFETY: it takes nothing.
    let process = c_long::from(unsafe { getpid() });
    // SAFETY: signal 0 only asks whether the thread is there.
    while unsafe { syscall(libc::SYS_tgkill, process, c_long::from(os_thread), 0, 0, 0, 0) } == 0 {
        // SAFETY: it takes nothing.
        unsafe { sched_yield() };
    }
}

/// Writes to a real descriptor, past all locks and hooks.
pub fn print(fd: c_int, mut text: &[u8]) {
    while !text.is_empty() {
        // SAFETY: the bytes are there.
        let put = unsafe { write(fd, text.as_ptr().cast(), text.len()) };
        let Ok(put @ 1..) = usize::try_from(put) else { return };
        text = &text[put..];
    }
}
