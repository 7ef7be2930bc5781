//! Writing data: parts of files flow through write streams into chunks, be they replicated or striped.
//!
//! A stream owns one open chunk at a time and shares it among all files that are written through it, so that thousands
//! of small files cost few chunks and few syncs. Files of one session never share a 4 KiB block.
pub(crate) mod chunk;
pub(crate) mod columns;
pub(crate) mod fullness;
pub(crate) mod lane;
pub(crate) mod open;
pub(crate) mod part;
pub(crate) mod pick;
mod queue;
pub(crate) mod retry;
pub mod segment;
pub(crate) mod shape;
pub(crate) mod silence;
pub(crate) mod stream;
pub(crate) mod streams;
pub(crate) mod target;

pub use segment::SEGMENT_MAX;

#[cfg(test)]
mod sent_again;
#[cfg(test)]
mod stalls;
