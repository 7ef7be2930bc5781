//! Histories of names: what clients did to a small set of names, and whether a file system can have done it.
//!
//! [`linear`] looks for an order of concurrent operations, [`tree_model`] says what one operation does, [`Round`] is a
//! directory with the history of what was done in it, [`perform`] does an operation through the client library. Nothing
//! here makes faults: the chaos test does, with processes, and `proof`, with seeds.

pub mod linear;
mod perform;
mod round;
pub mod tree_model;

pub use perform::{NAMES, REFUSALS, choose, finish, perform};
pub use round::{History, Outcome, Round};
