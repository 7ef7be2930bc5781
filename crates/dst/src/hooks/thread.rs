//! Threads: made by managed ones, they are managed, and run in turn from their first instruction to their last.

use std::ffi::CStr;
use std::sync::{Once, atomic::AtomicU32 as Word, atomic::Ordering::Relaxed};

use libc::{c_char, c_int, c_void, pthread_t};

use crate::real::{self, StartRoutine};
use crate::sched;
use crate::seat::Seat;
use crate::trace::What;
use crate::world::{State, Tid, managed, with};

struct Start {
    tid: Tid,
    seat: *const Seat,
    routine: StartRoutine,
    arg: *mut c_void,
}

/// Key of the value whose destructor is the last thing that a thread runs.
static LAST: Word = Word::new(0);
/// How often the destructor puts itself behind those of others; the C library goes round four times.
const ROUNDS: usize = 3;

fn last_key() -> libc::pthread_key_t {
    static MADE: Once = Once::new();
    MADE.call_once(|| {
        let mut key = 0;
        // SAFETY: the destructor is a function for any value.
        let made = unsafe { libc::pthread_key_create(&mut key, Some(at_last)) };
        assert!(made == 0, "there is no key for thread values left");
        LAST.store(key, Relaxed);
    });
    LAST.load(Relaxed)
}

unsafe extern "C" fn at_last(value: *mut c_void) {
    let round = value as usize;
    if round < ROUNDS {
        // SAFETY: the key was made by `last_key`.
        unsafe { libc::pthread_setspecific(LAST.load(Relaxed), std::ptr::without_provenance(round + 1)) };
    } else {
        sched::end();
    }
}

extern "C" fn first(start: *mut c_void) -> *mut c_void {
    let start = start.cast::<Start>();
    // SAFETY: whoever made the thread left it for this thread alone.
    let (tid, seat) = unsafe { ((*start).tid, (*start).seat) };
    sched::begin(tid, seat);
    // SAFETY: the key was made before the first thread.
    unsafe { libc::pthread_setspecific(LAST.load(Relaxed), std::ptr::without_provenance(1)) };
    // SAFETY: as above; from here on nobody needs it.
    let start = unsafe { Box::from_raw(start) };
    let (routine, arg) = (start.routine, start.arg);
    drop(start);
    routine(arg)
}

/// `pthread_create(3)`.
///
/// # Safety
/// As the C library says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_create(
    thread: *mut pthread_t,
    attr: *const c_void,
    routine: StartRoutine,
    arg: *mut c_void,
) -> c_int {
    if !managed() {
        // SAFETY: the caller's contract.
        return unsafe { real::pthread_create(thread, attr, routine, arg) };
    }
    last_key();
    let (tid, seat) = with(|world| {
        let host = world.threads[world.running as usize].host;
        let tid = world.new_thread(String::from("thread"), host);
        world.note(What::Spawn, u64::from(tid), host as u64);
        (tid, std::ptr::from_ref(&*world.thread(tid).seat))
    });
    let start = Box::into_raw(Box::new(Start { tid, seat, routine, arg }));
    // SAFETY: the caller's pointers, our own routine, and a box that the new thread takes.
    let failed = unsafe { real::pthread_create(thread, attr, first, start.cast()) };
    with(|world| {
        if failed == 0 {
            // SAFETY: the C library has filled it in.
            world.thread(tid).os = unsafe { *thread };
            world.ready.push(tid);
        } else {
            world.thread(tid).state = State::Ended;
        }
    });
    if failed == 0 {
        sched::point(|world| world.rates.wake);
    } else {
        // SAFETY: no thread took it.
        drop(unsafe { Box::from_raw(start) });
    }
    failed
}

/// `pthread_join(3)`.
///
/// # Safety
/// As the C library says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_join(thread: pthread_t, value: *mut *mut c_void) -> c_int {
    sched::join(thread);
    // SAFETY: the caller's contract.
    unsafe { real::pthread_join(thread, value) }
}

/// `pthread_setname_np(3)`, which tells us as well.
///
/// # Safety
/// As the C library says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_setname_np(thread: pthread_t, name: *const c_char) -> c_int {
    if managed() {
        // SAFETY: a string of C, by the contract.
        let text = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
        with(|world| {
            if let Some(known) = world.threads.iter_mut().rev().find(|known| known.os == thread) {
                known.name = text;
            }
        });
    }
    // SAFETY: the caller's contract.
    unsafe { real::pthread_setname_np(thread, name) }
}

/// `sched_getaffinity(2)`: every machine of a run has four processors.
///
/// # Safety
/// As the C library says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sched_getaffinity(pid: libc::pid_t, size: usize, set: *mut libc::cpu_set_t) -> c_int {
    if !managed() {
        // SAFETY: the caller's contract.
        return unsafe { real::sched_getaffinity(pid, size, set) };
    }
    // SAFETY: the caller's set is so large.
    let bytes = unsafe { std::slice::from_raw_parts_mut(set.cast::<u8>(), size) };
    bytes.fill(0);
    bytes[0] = 0x0f;
    0
}

/// `getpid(2)`: the same in every run.
///
/// # Safety
/// None is needed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getpid() -> libc::pid_t {
    // SAFETY: it takes nothing.
    if managed() { 4711 } else { unsafe { real::getpid() } }
}
