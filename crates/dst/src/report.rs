//! How a run says that it failed in the scheduler itself: what every thread is at, and the last records.

use std::fmt::Write;

use crate::real;
use crate::world::{State, World, last_look};

/// Records that are shown.
const TAIL: usize = 60;

/// Ends the process: this crate met what it cannot do.
pub fn fatal(why: &str) -> ! {
    real::print(2, format!("deterministic run: {why}\n").as_bytes());
    // SAFETY: the process ends at once, without anything that could need another thread.
    unsafe { libc::_exit(70) }
}

/// Ends the process: the run cannot go on.
pub fn dead_end(why: &str) -> ! {
    // SAFETY: the caller is the only thread that runs, and the process ends behind it.
    let text = unsafe { last_look(describe) }.unwrap_or_default();
    real::print(2, text.as_bytes());
    fatal(why)
}

fn describe(world: &World) -> String {
    let name = |tid: u32| world.threads.get(tid as usize).map_or("", |thread| thread.name.as_str());
    let mut text = world.trace.tail(TAIL, name);
    for (tid, thread) in world.threads.iter().enumerate() {
        let state = match thread.state {
            State::Ended => continue,
            State::Ready => "ready",
            State::Blocked(why) => why,
        };
        // Writing to a string cannot fail.
        let _written = writeln!(text, "thread {tid} ({}) of host {}: {state}", thread.name, thread.host);
    }
    let _written = writeln!(text, "at {} ns after {} switches", world.now, world.switches);
    text
}

/// The last records of the run, for who looks at a failure. Empty outside of a run.
pub fn tail(most: usize) -> String {
    if !crate::world::managed() {
        return String::new();
    }
    crate::world::with(|world| {
        let threads = &world.threads;
        world.trace.tail(most, |tid| threads.get(tid as usize).map_or("", |thread| thread.name.as_str()))
    })
}
