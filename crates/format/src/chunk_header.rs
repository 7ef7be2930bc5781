//! [`ChunkHeader`]: the first sector of a chunk file: what the chunk is. Written once, never changed.
//!
//! A chunk file is laid out as
//!
//! | offset | bytes | what |
//! |---|---|---|
//! | 0 | 512 | this header |
//! | 512 | 512 | [`ChunkState`](crate::chunk_state::ChunkState): length, sealed, sums |
//! | 1024 | 1024 | zero |
//! | 2048 | 2048 | one bit per block: PUNCHED (see [`crc_table`](crate::crc_table)) |
//! | 4096 | 65536 | CRC-32C per 4 KiB block (see [`crc_table`](crate::crc_table)) |
//! | 69632 | 65536 × k | parity shards only: for each of the k data shards a CRC-32C per 4 KiB block (row CRCs) |
//! | 69632, parity shards 69632 + 65536 × k | up to 64 MiB | data; the last block is filled up with zeros |
//!
//! The header itself:
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 8 | magic `CAIRNCHK` |
//! | 8 | 4 | format version |
//! | 12 | 4 | CRC-32C of the sector with this field zero |
//! | 16 | 16 | cluster id |
//! | 32 | 4 | placement group |
//! | 36 | 4 | index |
//! | 40 | 1 | scheme code |
//! | 41 | 1 | shard (0 in replicated groups) |
//! | 42 | 2 | zero |
//! | 44 | 4 | volume |
//! | 48 | 8 | epoch of creation |
//! | 56 | 8 | session of the writer |
//! | 64 | 448 | zero |
//!
//! All numbers little-endian. Invariant: a chunk file says by itself what belongs in it, so that what belongs where can
//! be rebuilt from the disks alone.

use cairn_types::{ChunkId, ClusterId, Epoch, PgId, Scheme, SessionId, VolumeId, crc32c, crc32c_append};

use crate::crc_table::TABLE_LEN;
use crate::le::{u32_at, u64_at};

/// Bytes of the header sector.
pub const CHUNK_HEADER_LEN: usize = 512;
/// Newest version written and read.
pub const CHUNK_VERSION: u32 = 1;
/// Offset of the state sector in the file.
pub const STATE_OFFSET: u64 = 512;
/// Offset of the PUNCHED bits in the file.
pub const PUNCHED_OFFSET: u64 = 2048;
/// Offset of the CRC table in the file.
pub const TABLE_OFFSET: u64 = 4096;
/// Where the tables end that every chunk has: the data of all but parity shards begins there. See
/// [`ChunkHeader::data_offset`].
pub const DATA_OFFSET: u64 = 69_632;

const MAGIC: &[u8; 8] = b"CAIRNCHK";
const _: () = assert!(DATA_OFFSET == TABLE_OFFSET + 4 * cairn_types::CHUNK_BLOCKS_MAX as u64);
const _: () = assert!(DATA_OFFSET.is_multiple_of(4096));

/// Identity of a chunk file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkHeader {
    /// The cluster.
    pub cluster: ClusterId,
    /// The chunk.
    pub chunk: ChunkId,
    /// How the members of its group relate.
    pub scheme: Scheme,
    /// Which shard this file is; 0 in replicated groups.
    pub shard: u8,
    /// The volume that owns the group.
    pub volume: VolumeId,
    /// The group's epoch when the chunk was made.
    pub creation_epoch: Epoch,
    /// The only session that may append.
    pub session: SessionId,
}

/// Why a sector is no chunk header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ChunkHeaderError {
    /// Not ours.
    #[error("no magic of a chunk")]
    Magic,
    /// Bytes changed.
    #[error("checksum of the chunk header does not match")]
    Checksum,
    /// Written by a newer program.
    #[error("chunk format version {0} is not known to this program; use a newer one")]
    Version(u32),
    /// An unknown scheme, or reserved bytes set.
    #[error("the fields of the chunk header contradict each other")]
    Shape,
}

fn checksum(sector: &[u8; CHUNK_HEADER_LEN]) -> u32 {
    crc32c_append(crc32c_append(crc32c(&sector[..12]), &[0; 4]), &sector[16..])
}

/// Tables of row CRCs in a shard's file: k in parity shards, none in others.
pub fn row_tables(scheme: Scheme, shard: u8) -> usize {
    match scheme {
        Scheme::Erasure { k, .. } if shard >= k => usize::from(k),
        _ => 0,
    }
}

/// Offset of a table of CRCs in the file: 0 is that of the file's own blocks, 1 and on those of the data shards.
pub fn table_offset(table: usize) -> u64 {
    TABLE_OFFSET + (table * TABLE_LEN) as u64
}

impl ChunkHeader {
    /// Tables of row CRCs in the file.
    pub fn row_tables(&self) -> usize {
        row_tables(self.scheme, self.shard)
    }

    /// Offset of the data in the file, aligned for direct I/O.
    pub fn data_offset(&self) -> u64 {
        table_offset(1 + self.row_tables())
    }

    /// The sector as it goes to disk.
    pub fn encode(&self) -> [u8; CHUNK_HEADER_LEN] {
        let mut out = [0; CHUNK_HEADER_LEN];
        out[..8].copy_from_slice(MAGIC);
        out[8..12].copy_from_slice(&CHUNK_VERSION.to_le_bytes());
        out[16..32].copy_from_slice(&self.cluster.0);
        out[32..36].copy_from_slice(&self.chunk.pg.0.to_le_bytes());
        out[36..40].copy_from_slice(&self.chunk.index.to_le_bytes());
        out[40] = self.scheme.code();
        out[41] = self.shard;
        out[44..48].copy_from_slice(&self.volume.0.to_le_bytes());
        out[48..56].copy_from_slice(&self.creation_epoch.0.to_le_bytes());
        out[56..64].copy_from_slice(&self.session.0.to_le_bytes());
        let crc = checksum(&out);
        out[12..16].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Reads and verifies the sector.
    pub fn decode(sector: &[u8; CHUNK_HEADER_LEN]) -> Result<Self, ChunkHeaderError> {
        if &sector[..8] != MAGIC {
            return Err(ChunkHeaderError::Magic);
        }
        if u32_at(sector, 12) != checksum(sector) {
            return Err(ChunkHeaderError::Checksum);
        }
        let version = u32_at(sector, 8);
        if version != CHUNK_VERSION {
            return Err(ChunkHeaderError::Version(version));
        }
        let scheme = Scheme::from_code(sector[40]).ok_or(ChunkHeaderError::Shape)?;
        if sector[42..44].iter().chain(&sector[64..]).any(|&b| b != 0) || usize::from(sector[41]) >= scheme.members() {
            return Err(ChunkHeaderError::Shape);
        }
        Ok(Self {
            cluster: ClusterId::from_slice(&sector[16..32]).expect("the slice has 16 bytes"),
            chunk: ChunkId { pg: PgId(u32_at(sector, 32)), index: u32_at(sector, 36) },
            scheme,
            shard: sector[41],
            volume: VolumeId(u32_at(sector, 44)),
            creation_epoch: Epoch(u64_at(sector, 48)),
            session: SessionId(u64_at(sector, 56)),
        })
    }
}

impl std::fmt::Display for ChunkHeader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "chunk           {}", self.chunk)?;
        writeln!(f, "cluster         {}", self.cluster)?;
        writeln!(f, "volume          {}", self.volume)?;
        writeln!(f, "scheme          {} (shard {})", self.scheme, self.shard)?;
        writeln!(f, "creation epoch  {}", self.creation_epoch)?;
        write!(f, "session         {}", self.session)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: ChunkHeader = ChunkHeader {
        cluster: ClusterId([7; 16]),
        chunk: ChunkId { pg: PgId(3), index: 9 },
        scheme: Scheme::Replicated(3),
        shard: 0,
        volume: VolumeId(2),
        creation_epoch: Epoch(5),
        session: SessionId(11),
    };

    /// An old chunk could not be read any more if the bytes changed without a new version.
    #[test]
    fn golden_bytes() {
        let sector = SAMPLE.encode();
        assert_eq!(&sector[..12], b"CAIRNCHK\x01\0\0\0");
        assert_eq!(
            &sector[32..64],
            &[3, 0, 0, 0, 9, 0, 0, 0, 3, 0, 0, 0, 2, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 11, 0, 0, 0, 0, 0, 0, 0]
        );
        assert_eq!(u32_at(&sector, 12), 0x2817_F3B3);
        assert_eq!(ChunkHeader::decode(&sector), Ok(SAMPLE));
        assert!(SAMPLE.to_string().contains("pg3/c9"));
    }

    /// Data would be read from tables, or tables from data, if places changed or overlapped.
    #[test]
    fn parity_shards_have_tables_for_their_rows() {
        assert_eq!(SAMPLE.data_offset(), DATA_OFFSET);
        let shard = |shard| ChunkHeader { scheme: Scheme::Erasure { k: 6, m: 3 }, shard, ..SAMPLE };
        assert_eq!((shard(5).row_tables(), shard(5).data_offset()), (0, DATA_OFFSET));
        assert_eq!((shard(6).row_tables(), shard(6).data_offset()), (6, 69_632 + 6 * 65_536));
        assert_eq!((table_offset(0), table_offset(6)), (TABLE_OFFSET, shard(8).data_offset() - 65_536));
        for scheme in Scheme::all() {
            for shard in 0..scheme.members() as u8 {
                let header = ChunkHeader { scheme, shard, ..SAMPLE };
                assert!(header.data_offset().is_multiple_of(4096));
                assert_eq!(ChunkHeader::decode(&header.encode()), Ok(header));
            }
        }
    }

    /// A chunk could be taken for another one if a flipped bit went unnoticed.
    #[test]
    fn any_flipped_bit_is_detected() {
        let sector = SAMPLE.encode();
        for bit in 0..CHUNK_HEADER_LEN * 8 {
            let mut bad = sector;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(ChunkHeader::decode(&bad).is_err(), "bit {bit}");
        }
    }
}
