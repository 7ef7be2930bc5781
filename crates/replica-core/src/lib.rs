//! What one disk does as a member of a placement group, as one machine: [`Replica::step`](replica::Replica::step) takes
//! what happened and says what is to be done. No I/O, no clock, no tasks.
//!
//! Each file owns one rule: who may do what ([`role`]), under which epoch ([`epoch`]), what members have and what is
//! true of it ([`reconcile`]), where bytes come from ([`source`]), what is looked after and when ([`care`]). How they
//! are put together is in `docs/internals/replica.md`.
pub mod care;
pub mod chunk_job;
pub mod config;
pub mod deleted;
pub mod disk;
pub mod epoch;
pub mod heal_job;
pub mod indices;
pub mod input;
pub mod lead;
pub mod member_op;
pub mod message;
pub mod overwrites;
pub mod pass;
pub mod reconcile;
pub mod replica;
pub mod role;
pub mod roster;
pub mod serve;
pub mod source;
mod tend;
pub mod write;
