//! On-disk formats: one struct a file, little-endian, checksummed, self-identifying. Layer 1: no I/O.
//!
//! Formats are described in the `//!` of each file and in docs/reference/formats.md.
pub mod checkpoint;
pub mod label;
mod le;
pub mod wal_batch;
pub mod wal_record;
pub mod wal_segment;
