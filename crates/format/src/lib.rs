//! On-disk formats: one struct a file, little-endian, checksummed, self-identifying. Layer 1: no I/O.
//!
//! Formats are described in the `//!` of each file and in docs/reference/formats.md.
pub mod backup_manifest;
pub mod bad_blocks;
pub mod checkpoint;
pub mod chunk_header;
pub mod chunk_state;
pub mod crc_table;
pub mod disk_list;
#[doc(hidden)]
pub mod fuzz;
pub mod generation;
pub mod journal_batch;
pub mod journal_header;
pub mod journal_overwrite;
pub mod journal_record;
pub mod label;
mod le;
pub mod map_scan;
pub mod marks;
pub mod overwrite_number;
pub mod partition_list;
pub mod pg_state;
pub mod record_frame;
pub mod request_log;
pub mod scrub_state;
pub mod wal_batch;
pub mod wal_mark;
pub mod wal_record;
pub mod wal_segment;
