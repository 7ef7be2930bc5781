//! The sdk for Java: the native methods of `io.cairn.hadoop.Native`, under the Hadoop file system in `hadoop/`.
//!
//! Invariants: no panic crosses the border, every failure leaves its words for its thread ([`border`]). Java holds
//! numbers and no pointers: one that was given back is an error and never memory of something else ([`registry`]). Only
//! threads that Java called with call Java, and only about their own arrays and buffers. Each byte of a file is copied
//! once between Java's memory and ours, and counted ([`copies`]). Not here: what the calls do (`cairn-sdk`), what
//! Hadoop expects (`hadoop/`).
#![allow(clippy::missing_safety_doc, reason = "Java's virtual machine calls, as its interface says")]

pub mod border;
pub mod copies;
pub mod file;
pub mod key;
pub mod names;
pub mod record;
pub mod registry;
pub mod tree;
pub mod volume;
pub mod xattr;

#[cfg(test)]
mod tests;
