//! Reading the tables of a chunk file: checksums of blocks, those of rows, PUNCHED bits.
//!
//! Invariant: what does not match its sum is read again, past the page cache, before it is believed: a bit may have
//! flipped on its way, and what is in memory stays there.

use cairn_env::{AlignedBuf, BUF_ALIGN, DiskError, File};
use cairn_format::chunk_header::{ChunkHeader, PUNCHED_OFFSET, table_offset};
use cairn_format::crc_table::{PUNCHED_LEN, PunchedBits, decode_crcs, row_tables_crc, table_crc};

use super::files::ChunkFiles;

/// Reads of what does not match its sum.
const READS_MAX: usize = 6;

/// What is known of the tables of a chunk.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sums {
    pub(super) blocks: u32,
    pub(super) table: u32,
    pub(super) rows: u32,
    /// Blocks that were freed.
    pub(super) punched: u32,
}

/// Tables as they are at home, and whether they are what was written.
pub(super) struct Tables {
    pub(super) crcs: Vec<u32>,
    pub(super) rows: Vec<Vec<u32>>,
    pub(super) crcs_match: bool,
    pub(super) rows_match: bool,
}

impl Tables {
    pub(super) fn read(files: &ChunkFiles, header: &ChunkHeader, sums: Sums) -> Result<Self, DiskError> {
        let crcs = |crcs: &Vec<u32>| table_crc(crcs);
        let (crcs, crcs_match) = until_sure(files, sums.table, |file| read_table(file, 0, sums.blocks), crcs)?;
        let rows = |rows: &Vec<Vec<u32>>| row_tables_crc(rows.iter().map(|row| &row[..]));
        let (rows, rows_match) = until_sure(files, sums.rows, |file| read_rows(file, header, sums.blocks), rows)?;
        Ok(Self { crcs, rows, crcs_match, rows_match })
    }
}

/// The PUNCHED bits of a chunk.
pub(super) fn punched(files: &ChunkFiles, sums: Sums) -> Result<PunchedBits, DiskError> {
    let count = |bits: &PunchedBits| bits.count().min(sums.blocks);
    until_sure(files, sums.punched, read_punched, count).map(|(bits, _)| bits)
}

/// Reads until the sum is right, or two reads past the page cache say the same.
fn until_sure<T>(
    files: &ChunkFiles,
    wanted: u32,
    read: impl Fn(&dyn File) -> Result<T, DiskError>,
    sum: impl Fn(&T) -> u32,
) -> Result<(T, bool), DiskError> {
    let mut found = read(files.cached.as_ref())?;
    let mut seen = Vec::new();
    for _ in 1..READS_MAX {
        if sum(&found) == wanted {
            return Ok((found, true));
        }
        found = read(files.direct()?.as_ref())?;
        let now = sum(&found);
        if seen.contains(&now) {
            break;
        }
        seen.push(now);
    }
    let matches = sum(&found) == wanted;
    Ok((found, matches))
}

/// The CRCs of the first `blocks` blocks in one of the tables of a file.
pub(super) fn read_table(file: &dyn File, table: usize, blocks: u32) -> Result<Vec<u32>, DiskError> {
    let bytes = read_bytes(file, table_offset(table), blocks as usize * 4)?;
    Ok(decode_crcs(&bytes).expect("whole numbers of at most a chunk's blocks"))
}

/// The sum of the CRCs of the first `blocks` blocks as they are in the file.
pub(super) fn sum_at_home(file: &dyn File, blocks: u32) -> Result<u32, DiskError> {
    read_table(file, 0, blocks).map(|table| table_crc(&table))
}

/// The row CRCs of a parity shard; none of any other.
pub(super) fn read_rows(file: &dyn File, header: &ChunkHeader, blocks: u32) -> Result<Vec<Vec<u32>>, DiskError> {
    (1..=header.row_tables()).map(|table| read_table(file, table, blocks)).collect()
}

/// The PUNCHED bits.
pub(super) fn read_punched(file: &dyn File) -> Result<PunchedBits, DiskError> {
    let bytes = read_bytes(file, PUNCHED_OFFSET, PUNCHED_LEN)?;
    Ok(PunchedBits::from_bytes(&bytes).expect("exactly the bytes of a chunk"))
}

/// Bytes from anywhere of a file, by whole sectors of it. What lies behind its end reads as zeros, which match no sum:
/// a disk that forgot a sync may have less of a file than its state says, and its chunk must still be healed, sealed
/// and deleted.
fn read_bytes(file: &dyn File, offset: u64, bytes: usize) -> Result<Vec<u8>, DiskError> {
    let start = offset - offset % BUF_ALIGN as u64;
    let skip = (offset - start) as usize;
    let whole = (skip + bytes).next_multiple_of(BUF_ALIGN);
    let mut buffer = AlignedBuf::unpooled(whole);
    let got = file.read_at(&mut buffer.spare_mut()[..whole], start)?;
    buffer.advance(got);
    buffer.resize(whole);
    Ok(buffer[skip..skip + bytes].to_vec())
}
