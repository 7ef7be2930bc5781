//! libcairn: the sdk for C. What the functions do is in `include/cairn.h`, which is kept by hand; a test compares it
//! with them.
//!
//! Invariants: no panic crosses the border ([`border::guard`]), and every failure leaves a text for its thread.
//! Pointers are checked for null, and otherwise taken to be what the header says. Not here: what the calls do
//! (`cairn-sdk`).
#![allow(clippy::missing_safety_doc, reason = "the header says what callers have to keep to")]

pub mod border;
pub mod dir;
pub mod file;
pub mod layout;
pub mod volume;
pub mod xattr;

#[cfg(test)]
mod tests;
