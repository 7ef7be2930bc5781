//! [`ScrubState`]: how far a disk's scrub came, in the file `scrub` of the disk, replaced as a whole now and then.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 8 | magic `CAIRNSCB` |
//! | 8 | 4 | format version |
//! | 12 | 4 | CRC-32C of the 128 bytes with this field zero |
//! | 16 | 16 | uuid of the disk that it is on |
//! | 32 | 8 | number of the pass, from 1 on; 0: none was begun |
//! | 40 | 8 | when it began, nanoseconds since 1970 |
//! | 48 | 8 | when it ended, 0: it goes on |
//! | 56 | 4 | placement group of the next chunk |
//! | 60 | 4 | its index |
//! | 64 | 8 | bytes read |
//! | 72 | 8 | bad blocks found |
//! | 80 | 8 | of these healed at once |
//! | 88 | 8 | when the pass before it ended, 0: there was none |
//! | 96 | 8 | bad blocks that the pass before it found |
//! | 104 | 1 | 1: asked for by an operator, at full speed |
//! | 105 | 23 | zero |
//!
//! All numbers little-endian. It says what was read, nothing depends on it: one that is lost begins a pass anew.

use cairn_types::{ChunkId, DiskUuid, PgId, crc32c, crc32c_append};

use crate::le::{u32_at, u64_at};

/// Bytes of the file.
pub const SCRUB_STATE_LEN: usize = 128;
/// Newest version written and read.
pub const SCRUB_VERSION: u32 = 1;

const MAGIC: &[u8; 8] = b"CAIRNSCB";

/// How far a disk was read through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScrubState {
    /// The disk.
    pub disk: DiskUuid,
    pub pass: u64,
    /// Nanoseconds since 1970.
    pub began: u64,
    /// 0: it goes on.
    pub ended: u64,
    /// The chunk that comes next.
    pub next: ChunkId,
    pub bytes: u64,
    pub bad: u64,
    pub healed: u64,
    /// Of the pass before; 0: there was none.
    pub last_ended: u64,
    pub last_bad: u64,
    /// An operator asked for it.
    pub asked: bool,
}

/// Why bytes are no state of a scrub.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ScrubStateError {
    /// Not ours.
    #[error("no magic of a scrub")]
    Magic,
    /// Bytes changed.
    #[error("checksum of the scrub's state does not match")]
    Checksum,
    /// Written by a newer program.
    #[error("version {0} of a scrub's state is not known to this program; use a newer one")]
    Version(u32),
    /// Reserved bytes set.
    #[error("the fields of the scrub's state contradict each other")]
    Shape,
}

fn checksum(bytes: &[u8]) -> u32 {
    crc32c_append(crc32c_append(crc32c(&bytes[..12]), &[0; 4]), &bytes[16..SCRUB_STATE_LEN])
}

impl ScrubState {
    /// Of a disk that was never read through.
    pub fn new(disk: DiskUuid) -> Self {
        let next = ChunkId { pg: PgId(0), index: 0 };
        Self {
            disk,
            pass: 0,
            began: 0,
            ended: 0,
            next,
            bytes: 0,
            bad: 0,
            healed: 0,
            last_ended: 0,
            last_bad: 0,
            asked: false,
        }
    }

    /// The bytes as they go to disk.
    pub fn encode(&self) -> [u8; SCRUB_STATE_LEN] {
        let mut out = [0; SCRUB_STATE_LEN];
        out[..8].copy_from_slice(MAGIC);
        out[8..12].copy_from_slice(&SCRUB_VERSION.to_le_bytes());
        out[16..32].copy_from_slice(&self.disk.0);
        out[56..60].copy_from_slice(&self.next.pg.get().to_le_bytes());
        out[60..64].copy_from_slice(&self.next.index.to_le_bytes());
        let numbers = [
            (32, self.pass),
            (40, self.began),
            (48, self.ended),
            (64, self.bytes),
            (72, self.bad),
            (80, self.healed),
            (88, self.last_ended),
            (96, self.last_bad),
        ];
        for (at, number) in numbers {
            out[at..at + 8].copy_from_slice(&number.to_le_bytes());
        }
        out[104] = u8::from(self.asked);
        let crc = checksum(&out);
        out[12..16].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Reads and verifies the bytes.
    pub fn decode(bytes: &[u8; SCRUB_STATE_LEN]) -> Result<Self, ScrubStateError> {
        if &bytes[..8] != MAGIC {
            return Err(ScrubStateError::Magic);
        }
        if u32_at(bytes, 12) != checksum(bytes) {
            return Err(ScrubStateError::Checksum);
        }
        let version = u32_at(bytes, 8);
        if version != SCRUB_VERSION {
            return Err(ScrubStateError::Version(version));
        }
        if bytes[104] > 1 || bytes[105..].iter().any(|&b| b != 0) {
            return Err(ScrubStateError::Shape);
        }
        Ok(Self {
            disk: DiskUuid::from_slice(&bytes[16..32]).expect("the slice has 16 bytes"),
            pass: u64_at(bytes, 32),
            began: u64_at(bytes, 40),
            ended: u64_at(bytes, 48),
            next: ChunkId { pg: PgId(u32_at(bytes, 56)), index: u32_at(bytes, 60) },
            bytes: u64_at(bytes, 64),
            bad: u64_at(bytes, 72),
            healed: u64_at(bytes, 80),
            last_ended: u64_at(bytes, 88),
            last_bad: u64_at(bytes, 96),
            asked: bytes[104] == 1,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: ScrubState = ScrubState {
        disk: DiskUuid([3; 16]),
        pass: 7,
        began: 1 << 60,
        ended: 0,
        next: ChunkId { pg: PgId(9), index: 77 },
        bytes: 1 << 40,
        bad: 2,
        healed: 1,
        last_ended: 5,
        last_bad: 6,
        asked: true,
    };

    /// A scrub would begin anew with each version of the program.
    #[test]
    fn golden_bytes() {
        let bytes = SAMPLE.encode();
        assert_eq!(&bytes[..12], b"CAIRNSCB\x01\0\0\0");
        assert_eq!(&bytes[30..42], &[3, 3, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(&bytes[56..66], &[9, 0, 0, 0, 77, 0, 0, 0, 0, 0]);
        assert_eq!(&bytes[96..106], &[6, 0, 0, 0, 0, 0, 0, 0, 1, 0]);
        assert_eq!(ScrubState::decode(&bytes), Ok(SAMPLE));
        let new = ScrubState::new(DiskUuid([3; 16]));
        assert_eq!(ScrubState::decode(&new.encode()), Ok(new));
    }

    /// A damaged state could make a scrub skip chunks.
    #[test]
    fn any_flipped_bit_is_detected() {
        let bytes = SAMPLE.encode();
        for bit in 0..SCRUB_STATE_LEN * 8 {
            let mut bad = bytes;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(ScrubState::decode(&bad).is_err(), "bit {bit}");
        }
    }
}
