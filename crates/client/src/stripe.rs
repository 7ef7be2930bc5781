//! Striped data: whole rows of a file on the shards of erasure-coded chunks, and on the chunks of stripe sets.
//!
//! Written by streams (`append`). Here: how rows become shards (`encode`), what goes together (`group`). Where an
//! extent's bytes lie is said by `cairn_types::Stripe`. Not here: reading (`read`).
pub(crate) mod encode;
pub(crate) mod group;
pub(crate) mod suspects;

#[cfg(test)]
mod tests;
