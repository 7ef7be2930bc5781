//! A run of a whole program, its threads, its time and its network, that one number decides.
//!
//! A program that links this crate has functions of its own in place of those of the C library by which threads wait
//! for each other, ask for the time and talk over sockets ([`hooks`]). Inside of [`run`] they belong to a scheduler:
//!
//! - **Threads** have what threads of the system have, but exactly one runs at a time ([`seat`]); which one is next is
//!   chosen by the seed wherever a thread waits, and now and then where it could be interrupted ([`sched`]).
//! - **Time** stands still while a thread runs and jumps to the next event when none can; waiting costs nothing. Each
//!   [`host`] has a clock of its own, which can drift, and can be paused as a whole.
//! - **The network** is in memory ([`tcp`]): seeded latency, connections that are refused, reset and held on
//!   [`links`] between hosts.
//! - **Chance** that the program asks the system for comes from the seed.
//!
//! So the same program with the same seed does the same, whatever else the machine does; [`Report::hash`] is the proof.
//! A run is a process: the state is global and is not taken down, as threads may be left that wait for ever.
//!
//! What a seed does not decide: the order of single instructions of two threads. A thread is interrupted only at calls,
//! so code that is wrong without any lock, wait or call between is not found here.
//!
//! Not here: disks (crate `sim`), and what the program is to do (crate `proof`). Linux with glibc only.
#![cfg(target_os = "linux")]

mod aslr;
mod chance;
mod epoll;
mod files;
mod hooks;
pub mod host;
pub mod links;
mod memory;
mod real;
mod report;
mod sched;
mod seat;
mod tcp;
mod trace;
mod world;

use std::time::Duration;

pub use aslr::{fix_layout, restart, stay_on_processor};
pub use memory::Memory;
pub use report::tail;
pub use world::managed;

/// Writes to standard error, past all that belongs to the run.
pub fn print_error(bytes: &[u8]) {
    real::print(2, bytes);
}

/// How a run goes.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    /// Decides everything.
    pub seed: u64,
    /// Prints every record of the trace.
    pub echo: bool,
    /// A run with more switches has gone astray.
    pub switches_max: u64,
    /// The same for time of the run.
    pub time_max: Duration,
}

impl Config {
    /// A run with limits that no sound one meets.
    pub fn seeded(seed: u64) -> Self {
        Self { seed, echo: false, switches_max: 200_000_000, time_max: Duration::from_secs(4 * 3600) }
    }
}

/// What a run was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Report {
    /// Of all records of the trace.
    pub hash: u64,
    /// Records of the trace.
    pub records: u64,
    /// Times that another thread was chosen.
    pub switches: u64,
    /// Time of the run.
    pub time: Duration,
}

/// Runs it on a thread: where the first thread's stack is depends on the environment and the program's path.
fn on_own_stack<T: Send>(body: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("main".into()).stack_size(STACK_BYTES);
        let thread = thread.spawn_scoped(scope, body).expect("a run has threads");
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Of the run's first thread.
const STACK_BYTES: usize = 16 << 20;

/// Runs `body` under the scheduler, once in a process. Threads that it leaves behind stand still for ever: the process
/// should end soon after.
///
/// # Panics
/// When it is called twice.
pub fn run<T: Send>(config: Config, body: impl FnOnce() -> T + Send) -> (T, Report) {
    static ONCE: std::sync::Once = std::sync::Once::new();
    assert!(!ONCE.is_completed(), "a process has one run");
    ONCE.call_once(|| {});
    assert!(hooks::present(), "the hooks are linked");
    // SAFETY: it takes numbers. One arena, as threads never allocate at the same time: addresses repeat.
    unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
    memory::reserve();
    let world = world::World::new(config);
    world.threads[0].seat.take();
    world::install(world);
    sched::set_me(0);
    let out = on_own_stack(body);
    let report = world::with(|world| Report {
        hash: world.trace.hash(),
        records: world.trace.count(),
        switches: world.switches,
        time: Duration::from_nanos(world.now),
    });
    sched::set_me(world::OUTSIDE);
    (out, report)
}
