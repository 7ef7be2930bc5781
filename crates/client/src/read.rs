//! Reading data: extents become pieces, pieces come from members in parallel, every block is checked against its CRC.
pub mod file_reader;
pub(crate) mod latency;
pub(crate) mod piece;
