//! Striped data: whole rows of a file on the shards of erasure-coded chunks, and on the chunks of stripe sets.
//!
//! Written by streams (`stream`) that encode row groups (`encode`) and send a shard each to the members of a placement
//! group; `chunk` is the bookkeeping of one open chunk. Memory of a stream: [`WINDOW_BYTES`](stream::WINDOW_BYTES) of
//! file data that is not yet durable, and the parity of what is on its way (m/k of it). Where an extent's bytes lie is
//! said by `cairn_types::Stripe`. Not here: what does not fill a row (`append`), reading (`read`).
pub(crate) mod chunk;
pub(crate) mod encode;
pub(crate) mod group;
pub(crate) mod open;
pub(crate) mod set;
pub(crate) mod stream;
pub(crate) mod streams;
pub(crate) mod suspects;
pub(crate) mod waiting;

#[cfg(test)]
mod tests;
