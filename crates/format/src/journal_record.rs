//! [`JournalRecord`]: one change of a chunk in a disk's journal. Records stand one behind the other in a batch, whose
//! checksum covers them.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 1 | kind: 1 create, 2 extent, 3 punch, 4 delete, 5 overwrite |
//! | 1 | 1 | flags: bit 0 sealed (extent and overwrite only) |
//! | 2 | 2 | zero |
//! | 4 | 4 | bytes of the body |
//! | 8 | 4 | placement group |
//! | 12 | 4 | index |
//! | 16 | | body |
//!
//! | kind | body |
//! |---|---|
//! | create | scheme code `u8`, shard `u8`, 2 zero bytes, volume `u32`, epoch of creation `u64`, session `u64` |
//! | extent | length of the chunk after it `u64`, bytes that are promised once this is durable `u64`, offset of the data in the chunk `u64` (a multiple of 4096), first block of the CRCs `u32`, number of CRCs `u32`, bytes of data `u32`, tables of row CRCs `u32` (k in parity shards, else 0); CRCs `u32` each; for each table of row CRCs as many, of the same blocks; data (whole blocks) |
//! | punch | first sector of the PUNCHED bits `u32`, 4 zero bytes, whole sectors of 512 bytes |
//! | delete | nothing |
//! | overwrite | see [`crate::journal_overwrite`] |
//!
//! All numbers little-endian. Invariants: everything in a record is absolute, so replaying it twice gives the same;
//! CRCs start at a sector of the table and PUNCHED bits come by whole sectors, so replay mends sectors torn at home.

use cairn_types::{BLOCK_SIZE, CHUNK_SIZE_MAX, ChunkId, Epoch, PgId, Scheme, SessionId, VolumeId};

use crate::crc_table::{CRCS_A_SECTOR, PUNCHED_LEN, blocks_of, encode_crcs};
use crate::journal_overwrite::OverwriteRecord;
use crate::le::{u32_at, u64_at};

/// Bytes of a record before its body.
pub const RECORD_HEAD_LEN: usize = 16;
const CREATE_LEN: usize = 24;
const EXTENT_LEN: usize = 40;
const PUNCH_LEN: usize = 8;
/// Most data shards of a scheme.
const ROW_TABLES_MAX: usize = 31;
const SECTOR: usize = 512;
const SEALED: u8 = 1;

/// A change of one chunk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JournalRecord<'a> {
    /// The chunk begins to exist.
    Create(CreateRecord),
    /// Bytes, checksums, length, seal.
    Extent(ExtentRecord<'a>),
    /// Blocks were freed.
    Punch {
        /// The chunk.
        chunk: ChunkId,
        /// Number of the first 512-byte sector of PUNCHED bits.
        first_sector: u32,
        /// The sectors.
        bits: &'a [u8],
    },
    /// The chunk is gone for ever.
    Delete {
        /// The chunk.
        chunk: ChunkId,
    },
    /// Blocks were overwritten in place.
    Overwrite(OverwriteRecord<'a>),
}

/// What a new chunk is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CreateRecord {
    /// The chunk.
    pub chunk: ChunkId,
    /// How members relate.
    pub scheme: Scheme,
    /// Shard of an erasure group.
    pub shard: u8,
    /// The volume.
    pub volume: VolumeId,
    /// The group's epoch.
    pub creation_epoch: Epoch,
    /// Who may append.
    pub session: SessionId,
}

/// What a chunk holds from now on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExtentRecord<'a> {
    /// The chunk.
    pub chunk: ChunkId,
    /// Length as far as it was written, durable or not.
    pub length: u64,
    /// Bytes that are promised once this record is durable.
    pub durable: u64,
    /// No further appends.
    pub sealed: bool,
    /// First block of `crcs`, a multiple of [`CRCS_A_SECTOR`].
    pub crcs_first: u32,
    /// Checksums of the blocks from there.
    pub crcs: Vec<u32>,
    /// In parity shards: for each data shard the checksums of the same blocks of it; else none.
    pub row_tables: Vec<Vec<u32>>,
    /// Where `data` goes in the chunk, a multiple of 4096.
    pub data_offset: u64,
    /// Whole blocks, or nothing.
    pub data: &'a [u8],
}

/// Why bytes are no record. A batch with a good checksum has none of these; a program error or a newer format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// Ends in the middle of a record.
    #[error("a journal record is cut off")]
    Short,
    /// A kind that this program does not know.
    #[error("journal record of unknown kind {0}; use a newer program")]
    Kind(u8),
    /// Fields out of range.
    #[error("the fields of a journal record contradict each other")]
    Shape,
}

fn head(out: &mut Vec<u8>, kind: u8, flags: u8, body: usize, chunk: ChunkId) {
    out.extend([kind, flags, 0, 0]);
    out.extend(u32::try_from(body).expect("records are far below 4 GiB").to_le_bytes());
    out.extend(chunk.pg.0.to_le_bytes());
    out.extend(chunk.index.to_le_bytes());
}

impl JournalRecord<'_> {
    /// The chunk that it is about.
    pub fn chunk(&self) -> ChunkId {
        match self {
            Self::Create(create) => create.chunk,
            Self::Extent(extent) => extent.chunk,
            Self::Punch { chunk, .. } | Self::Delete { chunk } => *chunk,
            Self::Overwrite(overwrite) => overwrite.chunk,
        }
    }

    /// Appends the record's bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Create(create) => {
                head(out, 1, 0, CREATE_LEN, create.chunk);
                out.extend([create.scheme.code(), create.shard, 0, 0]);
                out.extend(create.volume.0.to_le_bytes());
                out.extend(create.creation_epoch.0.to_le_bytes());
                out.extend(create.session.0.to_le_bytes());
            }
            Self::Extent(extent) => {
                let tables = 1 + extent.row_tables.len();
                let body = EXTENT_LEN + extent.crcs.len() * tables * 4 + extent.data.len();
                head(out, 2, if extent.sealed { SEALED } else { 0 }, body, extent.chunk);
                out.extend(extent.length.to_le_bytes());
                out.extend(extent.durable.to_le_bytes());
                out.extend(extent.data_offset.to_le_bytes());
                out.extend(extent.crcs_first.to_le_bytes());
                out.extend((extent.crcs.len() as u32).to_le_bytes());
                out.extend((extent.data.len() as u32).to_le_bytes());
                out.extend((extent.row_tables.len() as u32).to_le_bytes());
                encode_crcs(&extent.crcs, out);
                for table in &extent.row_tables {
                    assert_eq!(table.len(), extent.crcs.len(), "row CRCs of {} are of other blocks", extent.chunk);
                    encode_crcs(table, out);
                }
                out.extend_from_slice(extent.data);
            }
            Self::Punch { chunk, first_sector, bits } => {
                head(out, 3, 0, PUNCH_LEN + bits.len(), *chunk);
                out.extend(first_sector.to_le_bytes());
                out.extend([0; 4]);
                out.extend_from_slice(bits);
            }
            Self::Delete { chunk } => head(out, 4, 0, 0, *chunk),
            Self::Overwrite(overwrite) => {
                let flags = if overwrite.sealed { SEALED } else { 0 };
                head(out, 5, flags, overwrite.body_len(), overwrite.chunk);
                overwrite.encode_body(out);
            }
        }
    }
}

/// Takes the first record off `bytes`.
pub fn decode_record<'a>(bytes: &mut &'a [u8]) -> Result<JournalRecord<'a>, RecordError> {
    let head = bytes.get(..RECORD_HEAD_LEN).ok_or(RecordError::Short)?;
    let chunk = ChunkId { pg: PgId(u32_at(head, 8)), index: u32_at(head, 12) };
    let (kind, flags) = (head[0], head[1]);
    let end = RECORD_HEAD_LEN.checked_add(u32_at(head, 4) as usize).ok_or(RecordError::Short)?;
    let body = bytes.get(RECORD_HEAD_LEN..end).ok_or(RecordError::Short)?;
    if head[2..4] != [0, 0] || flags & !SEALED != 0 || flags != 0 && ![2, 5].contains(&kind) {
        return Err(RecordError::Shape);
    }
    let record = match kind {
        1 => decode_create(chunk, body)?,
        2 => decode_extent(chunk, flags & SEALED != 0, body)?,
        3 => decode_punch(chunk, body)?,
        4 if body.is_empty() => JournalRecord::Delete { chunk },
        4 => return Err(RecordError::Shape),
        5 => JournalRecord::Overwrite(OverwriteRecord::decode_body(chunk, flags & SEALED != 0, body)?),
        other => return Err(RecordError::Kind(other)),
    };
    *bytes = &bytes[end..];
    Ok(record)
}

fn decode_create(chunk: ChunkId, body: &[u8]) -> Result<JournalRecord<'_>, RecordError> {
    if body.len() != CREATE_LEN || body[2..4] != [0, 0] {
        return Err(RecordError::Shape);
    }
    let scheme = Scheme::from_code(body[0]).ok_or(RecordError::Shape)?;
    if usize::from(body[1]) >= scheme.members() {
        return Err(RecordError::Shape);
    }
    Ok(JournalRecord::Create(CreateRecord {
        chunk,
        scheme,
        shard: body[1],
        volume: VolumeId(u32_at(body, 4)),
        creation_epoch: Epoch(u64_at(body, 8)),
        session: SessionId(u64_at(body, 16)),
    }))
}

fn decode_extent(chunk: ChunkId, sealed: bool, body: &[u8]) -> Result<JournalRecord<'_>, RecordError> {
    if body.len() < EXTENT_LEN {
        return Err(RecordError::Short);
    }
    let (length, durable, data_offset) = (u64_at(body, 0), u64_at(body, 8), u64_at(body, 16));
    let (crcs_first, crcs_count, data_len) = (u32_at(body, 24), u32_at(body, 28) as usize, u32_at(body, 32) as usize);
    let row_tables = u32_at(body, 36) as usize;
    let rest = &body[EXTENT_LEN..];
    let table_bytes = crcs_count.checked_mul(4).ok_or(RecordError::Shape)?;
    let crc_bytes = row_tables.checked_add(1).and_then(|tables| table_bytes.checked_mul(tables));
    let crc_bytes = crc_bytes.ok_or(RecordError::Shape)?;
    if crc_bytes.checked_add(data_len) != Some(rest.len()) || row_tables > ROW_TABLES_MAX {
        return Err(RecordError::Shape);
    }
    let (crcs, data) = rest.split_at(crc_bytes);
    let (crcs, rows) = crcs.split_at(table_bytes);
    let last_crc = u64::from(crcs_first) + crcs_count as u64;
    let data_end = data_offset.checked_add(data_len as u64).ok_or(RecordError::Shape)?;
    let fine = length <= CHUNK_SIZE_MAX
        && durable <= length
        && crcs_first.is_multiple_of(CRCS_A_SECTOR)
        && last_crc <= u64::from(blocks_of(CHUNK_SIZE_MAX))
        && data_offset.is_multiple_of(BLOCK_SIZE as u64)
        && data_len.is_multiple_of(BLOCK_SIZE)
        && data_end <= CHUNK_SIZE_MAX;
    if !fine {
        return Err(RecordError::Shape);
    }
    let crcs = crate::crc_table::decode_crcs(crcs).ok_or(RecordError::Shape)?;
    let table = |i: usize| crate::crc_table::decode_crcs(&rows[i * table_bytes..(i + 1) * table_bytes]);
    let row_tables: Option<Vec<_>> = (0..row_tables).map(table).collect();
    let row_tables = row_tables.ok_or(RecordError::Shape)?;
    let extent = ExtentRecord { chunk, length, durable, sealed, crcs_first, crcs, row_tables, data_offset, data };
    Ok(JournalRecord::Extent(extent))
}

fn decode_punch(chunk: ChunkId, body: &[u8]) -> Result<JournalRecord<'_>, RecordError> {
    if body.len() < PUNCH_LEN || u32_at(body, 4) != 0 {
        return Err(RecordError::Shape);
    }
    let (first_sector, bits) = (u32_at(body, 0), &body[PUNCH_LEN..]);
    let end = (first_sector as usize).checked_mul(SECTOR).and_then(|at| at.checked_add(bits.len()));
    if !bits.len().is_multiple_of(SECTOR) || end.is_none_or(|end| end > PUNCHED_LEN) {
        return Err(RecordError::Shape);
    }
    Ok(JournalRecord::Punch { chunk, first_sector, bits })
}

impl std::fmt::Display for JournalRecord<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Create(c) => {
                write!(
                    f,
                    "create {} {} volume {} epoch {} session {}",
                    c.chunk, c.scheme, c.volume, c.creation_epoch, c.session
                )
            }
            Self::Extent(e) => {
                write!(f, "extent {} length {} durable {}", e.chunk, e.length, e.durable)?;
                write!(f, " data {}+{}", e.data_offset, e.data.len())?;
                write!(f, " crcs of blocks {}+{}", e.crcs_first, e.crcs.len())?;
                if !e.row_tables.is_empty() {
                    write!(f, " rows of {} shards", e.row_tables.len())?;
                }
                f.write_str(if e.sealed { " sealed" } else { "" })
            }
            Self::Punch { chunk, first_sector, bits } => {
                write!(f, "punch {chunk} sectors {first_sector}+{}", bits.len() / SECTOR)
            }
            Self::Delete { chunk } => write!(f, "delete {chunk}"),
            Self::Overwrite(overwrite) => overwrite.fmt(f),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    const CHUNK: ChunkId = ChunkId { pg: PgId(1), index: 2 };

    fn samples() -> [JournalRecord<'static>; 5] {
        [
            JournalRecord::Create(CreateRecord {
                chunk: CHUNK,
                scheme: Scheme::Replicated(3),
                shard: 0,
                volume: VolumeId(4),
                creation_epoch: Epoch(5),
                session: SessionId(6),
            }),
            JournalRecord::Extent(ExtentRecord {
                chunk: CHUNK,
                length: 4100,
                durable: 4096,
                sealed: true,
                crcs_first: 0,
                crcs: vec![8, 9],
                row_tables: Vec::new(),
                data_offset: 4096,
                data: &[7; BLOCK_SIZE],
            }),
            JournalRecord::Punch { chunk: CHUNK, first_sector: 3, bits: &[5; 512] },
            JournalRecord::Delete { chunk: CHUNK },
            JournalRecord::Extent(ExtentRecord {
                chunk: CHUNK,
                length: 8192,
                durable: 8192,
                sealed: false,
                crcs_first: 0,
                crcs: vec![8, 9],
                row_tables: vec![vec![1, 2], vec![3, 4], vec![5, 6]],
                data_offset: 0,
                data: &[],
            }),
        ]
    }

    /// An old journal could not be replayed any more if the bytes changed without a new version.
    #[test]
    fn golden_bytes() {
        let mut out = Vec::new();
        samples().iter().for_each(|record| record.encode(&mut out));
        assert_eq!(&out[..16], &[1, 0, 0, 0, 24, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0]);
        assert_eq!(&out[16..40], &[3, 0, 0, 0, 4, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0]);
        let extent = &out[40..];
        assert_eq!(&extent[..8], &[2, 1, 0, 0, 0x30, 0x10, 0, 0]);
        assert_eq!(&extent[16..24], &[4, 16, 0, 0, 0, 0, 0, 0]);
        assert_eq!(&extent[40..64], &[0, 0, 0, 0, 2, 0, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 9, 0, 0, 0]);
        let parity = &out[out.len() - 88..];
        assert_eq!(&parity[..8], &[2, 0, 0, 0, 72, 0, 0, 0]);
        assert_eq!(&parity[52..64], &[3, 0, 0, 0, 8, 0, 0, 0, 9, 0, 0, 0]);
        assert_eq!(&parity[64..], &[1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0, 5, 0, 0, 0, 6, 0, 0, 0]);
        all_decode(&out, &samples());
        assert!(samples()[1].to_string().ends_with("sealed"));
    }

    /// Garbage must not panic nor allocate by its lengths: every truncation and every flipped bit is refused or decodes
    /// to something within limits (the batch's checksum is what detects the change).
    #[test]
    fn damage_never_panics() {
        damage(&samples(), RECORD_HEAD_LEN + EXTENT_LEN + 8, |found, good| {
            if let JournalRecord::Extent(e) = found {
                assert!(e.length <= CHUNK_SIZE_MAX && e.data.len() <= good && e.crcs.len() <= good);
            }
        });
    }

    /// Cuts each record at every byte, which has to be refused, and flips every bit of its first `head` bytes: what
    /// decodes all the same is looked at, with the length of the good one.
    pub(crate) fn damage(records: &[JournalRecord<'_>], head: usize, look: impl Fn(JournalRecord<'_>, usize)) {
        for record in records {
            let mut good = Vec::new();
            record.encode(&mut good);
            for cut in 0..good.len() {
                assert!(decode_record(&mut &good[..cut]).is_err(), "{record} cut at {cut}");
            }
            for bit in 0..good.len().min(head) * 8 {
                let mut bad = good.clone();
                bad[bit / 8] ^= 1 << (bit % 8);
                if let Ok(found) = decode_record(&mut &bad[..]) {
                    look(found, good.len());
                }
            }
        }
    }

    /// What was encoded one behind the other is decoded again, and nothing is left.
    pub(crate) fn all_decode(encoded: &[u8], records: &[JournalRecord<'_>]) {
        let mut rest = encoded;
        for record in records {
            assert_eq!(decode_record(&mut rest).as_ref(), Ok(record));
        }
        assert!(rest.is_empty());
    }
}
