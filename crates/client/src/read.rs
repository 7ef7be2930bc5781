//! Reading data: extents become pieces, pieces come from members in parallel, every block is checked against its CRC.
//! Whole pieces of replicated chunks come from one member (`piece`), rows of striped ones from several (`rows`).
mod block_rows;
pub(crate) mod decode;
pub mod file_reader;
mod gather;
pub(crate) mod health;
pub(crate) mod latency;
mod news;
pub(crate) mod piece;
pub(crate) mod read_epochs;
pub(crate) mod row_read;
pub(crate) mod rows;
pub(crate) mod salvage;
pub(crate) mod set;
pub(crate) mod shard;
pub(crate) mod shard_reads;
mod verdict;

#[cfg(test)]
mod tests;
