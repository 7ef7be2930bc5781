//! Protobuf without allocations: requests are borrowed from the bytes of the frame, answers are written straight.
//!
//! The messages are those of `wire`'s `meta.proto`; tests hold both sides against the generated code. Hostile bytes
//! give `BadRequest`, never a panic and never an allocation.
pub(crate) mod reader;
pub(crate) mod request;
pub(crate) mod writer;

#[cfg(test)]
mod tests;
