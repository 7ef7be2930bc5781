//! Who runs: the turn goes from one thread to the next ([`crate::seat`]), and nowhere else does a thread wait for
//! another.
//!
//! Invariant: of all threads of the run exactly one is outside of [`hand_over`] (or its counterpart at a thread's start
//! and end) at any moment.

use std::cell::Cell;

use crate::report::{dead_end, fatal};
use crate::seat::{Leaver, Seat};
use crate::trace::What;
use crate::world::{OUTSIDE, State, Tid, World, managed, with};

thread_local! {
    static ME: Cell<Tid> = const { Cell::new(OUTSIDE) };
}

/// The calling thread's number.
pub fn me() -> Tid {
    ME.get()
}

/// The calling thread is this one, or none of the run.
pub fn set_me(tid: Tid) {
    ME.set(tid);
}

/// How a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Woken {
    /// By somebody.
    Called,
    /// Its time was over.
    TimedOut,
}

/// A turn that is given: from whose seat to whose, unless the same thread goes on.
struct Hand {
    own: *const Seat,
    next: Option<*const Seat>,
}

fn choose(world: &mut World) -> Hand {
    let me = me();
    let own: *const Seat = &*world.threads[me as usize].seat;
    let Some(next) = world.pick() else { dead_end("no thread can run any more, and nothing is to come") };
    let limits = world.config;
    if world.switches > limits.switches_max || world.now > limits.time_max.as_nanos() as u64 {
        dead_end("the run does not come to its end");
    }
    world.running = next;
    world.note(What::Run, u64::from(me), world.ready.len() as u64);
    let next = (next != me).then(|| std::ptr::from_ref(&*world.threads[next as usize].seat));
    Hand { own, next }
}

/// What a thread does first whenever its turn has come: who ended before it is gone when it goes on.
fn take_over() {
    if let Some(leaver) = with(|world| world.leaver.take()) {
        // SAFETY: seats are boxed and live as long as the world.
        unsafe { (*leaver.0).let_go() };
    }
}

fn hand_over(hand: Hand) {
    if let Some(next) = hand.next {
        // SAFETY: seats are boxed and live as long as the world.
        unsafe { (*hand.own).give_to(&*next) };
        take_over();
    }
}

/// The calling thread waits until somebody wakes it or the moment has come.
pub fn block(why: &'static str, until: Option<u64>) -> Woken {
    let hand = with(|world| {
        let me = me();
        let thread = world.thread(me);
        thread.state = State::Blocked(why);
        thread.timed_out = false;
        if let Some(moment) = until {
            world.wait_until(me, moment);
        }
        choose(world)
    });
    hand_over(hand);
    let timed_out = with(|world| {
        let timed_out = world.thread(me()).timed_out;
        if timed_out {
            world.note(What::TimedOut, 0, 0);
        }
        timed_out
    });
    if timed_out { Woken::TimedOut } else { Woken::Called }
}

/// The calling thread lets others run, if chance wants it.
pub fn pass() {
    let hand = with(|world| {
        let me = me();
        world.ready.push(me);
        choose(world)
    });
    hand_over(hand);
}

/// A point at which the thread may be interrupted, once in `times`.
pub fn point(times: impl FnOnce(&mut World) -> u64) {
    let (switch, stall) = with(|world| {
        let (times, stall) = (times(world), world.rates.stall);
        if world.chance.one_in(stall) {
            let long = world.chance.below(30_000_000);
            return (false, Some(world.now + long));
        }
        (world.chance.one_in(times), None)
    });
    if let Some(until) = stall {
        with(|world| world.note(What::Stall, until, 0));
        block("held up", Some(until));
    } else if switch {
        pass();
    }
}

/// The first thing that a thread does, on its own seat.
pub fn begin(tid: Tid, seat: *const Seat) {
    set_me(tid);
    // SAFETY: seats are boxed and live as long as the world.
    unsafe { (*seat).wait_first() };
    take_over();
}

/// The last thing that a thread does.
pub fn end() {
    let hand = with(|world| {
        let me = me();
        world.note(What::Exit, u64::from(me), 0);
        let thread = world.thread(me);
        thread.state = State::Ended;
        let leaver = Leaver(&*thread.seat);
        let joiners = std::mem::take(&mut thread.joiners);
        world.leaver = Some(leaver);
        joiners.into_iter().for_each(|joiner| world.wake(joiner));
        choose(world)
    });
    set_me(OUTSIDE);
    match hand.next {
        // SAFETY: seats are boxed and live as long as the world.
        Some(next) => unsafe { (*hand.own).leave_to(&*next) },
        None => fatal("a thread that ended was chosen to run"),
    }
}

/// Waits until a thread has ended.
pub fn join(os: libc::pthread_t) {
    if !managed() {
        return;
    }
    loop {
        let ended = with(|world| {
            let me = me();
            // Numbers of the system are used again: the latest thread of this number is meant.
            match world.threads.iter().rposition(|thread| thread.os == os) {
                Some(tid) if world.threads[tid].state != State::Ended => {
                    world.threads[tid].joiners.push(me);
                    false
                }
                _ => true,
            }
        });
        if ended {
            return;
        }
        block("join", None);
    }
}
