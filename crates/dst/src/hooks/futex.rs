//! Futexes: what locks, condition variables and parked threads of Rust wait on.

use libc::{c_int, c_long};

use super::fail;
use crate::sched::{self, Woken};
use crate::trace::What;
use crate::world::with;

/// Nanoseconds of a `timespec` in the caller's memory; `None` for a null pointer.
///
/// # Safety
/// The pointer is null or leads to a `timespec`.
unsafe fn nanos(at: *const libc::timespec) -> Option<u64> {
    // SAFETY: as the caller promises.
    let time = unsafe { at.as_ref() }?;
    Some((time.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(time.tv_nsec as u64))
}

/// `futex(2)`, as far as Rust's libraries use it.
///
/// # Safety
/// As the kernel says.
pub(super) unsafe fn futex(word: *const u32, op: c_int, value: u32, timeout: c_long, bits: u32) -> c_long {
    let plain = op & !(libc::FUTEX_PRIVATE_FLAG | libc::FUTEX_CLOCK_REALTIME);
    let timeout = timeout as *const libc::timespec;
    match plain {
        // SAFETY: for these two the fourth argument is a pointer to a time, or null.
        libc::FUTEX_WAIT => wait(word, value, unsafe { nanos(timeout) }.map(Limit::For)),
        libc::FUTEX_WAIT_BITSET if bits == u32::MAX => {
            let calendar = op & libc::FUTEX_CLOCK_REALTIME != 0;
            // SAFETY: as above.
            let limit = unsafe { nanos(timeout) };
            wait(word, value, limit.map(|at| if calendar { Limit::Calendar(at) } else { Limit::Until(at) }))
        }
        libc::FUTEX_WAKE | libc::FUTEX_WAKE_BITSET => wake(word, value),
        _ => crate::report::fatal(&format!("futex operation {op:#x} is not known")),
    }
}

enum Limit {
    For(u64),
    Until(u64),
    Calendar(u64),
}

fn wait(word: *const u32, value: u32, limit: Option<Limit>) -> c_long {
    let key = word as usize;
    // SAFETY: who waits for a word has it; nobody else runs, so a plain look is enough.
    let seen = unsafe { word.read_volatile() };
    if seen != value {
        return c_long::from(fail(libc::EAGAIN));
    }
    let until = with(|world| {
        let running = world.running;
        world.futexes.entry(key).or_default().push(running);
        world.note(What::FutexWait, 0, 0);
        let now = world.now;
        let host = world.host();
        limit.map(|limit| match limit {
            Limit::For(long) => host.moment(host.local(now).saturating_add(long)),
            Limit::Until(at) => host.moment(at),
            Limit::Calendar(at) => {
                let offset = crate::host::wall(host.local(now)) - host.local(now);
                host.moment(at.saturating_sub(offset))
            }
        })
    });
    let woken = sched::block("futex", until);
    match woken {
        Woken::Called => 0,
        Woken::TimedOut => {
            with(|world| {
                let running = world.running;
                if let Some(waiting) = world.futexes.get_mut(&key) {
                    waiting.retain(|tid| *tid != running);
                    if waiting.is_empty() {
                        world.futexes.remove(&key);
                    }
                }
            });
            c_long::from(fail(libc::ETIMEDOUT))
        }
    }
}

fn wake(word: *const u32, most: u32) -> c_long {
    let key = word as usize;
    let (woken, strangers) = with(|world| {
        let Some(mut waiting) = world.futexes.remove(&key) else { return (0, true) };
        let mut woken = 0;
        while woken < most && !waiting.is_empty() {
            let at = world.chance.below(waiting.len() as u64) as usize;
            let tid = waiting.remove(at);
            // One whose time is over already was woken by that.
            if matches!(world.thread(tid).state, crate::world::State::Blocked(_)) {
                world.wake(tid);
                woken += 1;
            }
        }
        if !waiting.is_empty() {
            world.futexes.insert(key, waiting);
        }
        world.note(What::FutexWake, u64::from(woken), 0);
        (woken, false)
    });
    if strangers {
        // A thread outside of the run may wait.
        crate::real::futex_wake(word);
    } else {
        sched::point(|world| world.rates.wake);
    }
    c_long::from(woken)
}
