//! The environment seam: clock, randomness, disk and message transport behind object-safe traits, with the real
//! implementations.
//!
//! All calls block; they are made from I/O threads. Not here: rules of the file system, and the network of the
//! product (the rpc crate has it).

pub mod buf;
pub mod clock;
