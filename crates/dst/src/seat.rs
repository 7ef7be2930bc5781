//! [`Seat`]: where a thread of the run is while another one runs, and how one goes on in place of another.
//!
//! Of all threads exactly one runs, so there is nothing for the system's scheduler to decide. Where the processor is
//! known ([`stack`]) all threads of a run take turns on one thread of the system: another stack and another place of
//! thread values are all that changes. Elsewhere ([`word`]) each waits in the system until a word of its own is set.

#[cfg(target_arch = "x86_64")]
mod stack;
#[cfg(target_arch = "x86_64")]
pub use stack::Seat;

#[cfg(not(target_arch = "x86_64"))]
mod word;
#[cfg(not(target_arch = "x86_64"))]
pub use word::Seat;

/// Whom a thread that takes over has to see off.
#[derive(Debug, Clone, Copy)]
pub struct Leaver(pub *const Seat);
// SAFETY: seats are boxed, live as long as the world, and only the thread that runs looks at them.
unsafe impl Send for Leaver {}
