//! What a client does with a directory that it leads, as one machine: [`Delegate::step`](delegate::Delegate::step)
//! takes what happened and says what is to be done. No I/O, no clock, no tasks.
//!
//! Each file owns one rule: what waits to be stored and under which number ([`queue`]), how long anything may be
//! acknowledged ([`lease`]), which times items get ([`item_clock`]), which operations are for whom ([`way`], by the
//! inodes that they name, [`named`]), how what a dead one left is stored ([`succession`]). How they are put
//! together, and what the owner has to do, is in `docs/internals/delegations.md`. What operations do is the
//! namespace's (`cairn-meta-core`).
pub mod config;
pub mod delegate;
mod ending;
pub mod input;
pub mod item_clock;
pub mod lease;
pub mod named;
pub mod queue;
pub mod succession;
pub mod way;
