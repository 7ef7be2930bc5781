//! [`GenerationRecord`]: the generation of a disk, in the file `generation` of the disk: two slots, written in turn.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 8 | magic `CAIRNGEN` |
//! | 8 | 4 | format version |
//! | 12 | 4 | CRC-32C of the 512 bytes with this field zero |
//! | 16 | 16 | uuid of the disk that it is on |
//! | 32 | 8 | the manager has logged this number, or a later one; 0: none |
//! | 40 | 1 | number of runs, 1 to 16 |
//! | 41 | 23 | zero |
//! | 64 | 16 × 16 | runs, oldest first: number `u64`, nonce `u64`; unused ones zero |
//! | 320 | 192 | zero |
//!
//! All numbers little-endian. The slot of number n begins at (n mod 2) × 4096, the file has 8192 bytes from the
//! beginning: so a rise needs no room and changes no metadata of the file system, and an interrupted one leaves the
//! generation before it.

use cairn_types::generation::{Generation, LINEAGE_MAX, Lineage};
use cairn_types::{DiskUuid, crc32c, crc32c_append};

use crate::le::{u32_at, u64_at};

/// Bytes of a slot that are used.
pub const GENERATION_LEN: usize = 512;
/// From one slot to the next.
pub const GENERATION_SLOT: u64 = 4096;
/// Bytes of the file.
pub const GENERATION_FILE_LEN: u64 = 2 * GENERATION_SLOT;
/// Newest version written and read.
pub const GENERATION_VERSION: u32 = 1;

const MAGIC: &[u8; 8] = b"CAIRNGEN";
const RUNS_AT: usize = 64;
const RUN_LEN: usize = 16;
const END: usize = RUNS_AT + LINEAGE_MAX * RUN_LEN;
const _: () = assert!(END <= GENERATION_LEN);

/// What a disk went through.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GenerationRecord {
    /// The disk.
    pub disk: DiskUuid,
    /// Its generations; at least one.
    pub lineage: Lineage,
}

/// Why bytes are no generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum GenerationError {
    /// Not ours, or never written.
    #[error("no magic of a generation")]
    Magic,
    /// Bytes changed.
    #[error("checksum of the generation does not match")]
    Checksum,
    /// Written by a newer program.
    #[error("version {0} of the generation is not known to this program; use a newer one")]
    Version(u32),
    /// Reserved bytes set, or numbers that do not rise.
    #[error("the fields of the generation contradict each other")]
    Shape,
}

fn checksum(bytes: &[u8; GENERATION_LEN]) -> u32 {
    crc32c_append(crc32c_append(crc32c(&bytes[..12]), &[0; 4]), &bytes[16..])
}

impl GenerationRecord {
    /// Where its slot begins.
    pub fn offset(&self) -> u64 {
        self.lineage.present().map_or(0, |present| present.number % 2 * GENERATION_SLOT)
    }

    /// The bytes as they go to disk.
    ///
    /// # Panics
    /// Without a run, or with more than [`LINEAGE_MAX`].
    pub fn encode(&self) -> [u8; GENERATION_LEN] {
        let runs = &self.lineage.runs;
        assert!((1..=LINEAGE_MAX).contains(&runs.len()), "a generation has {} runs", runs.len());
        let mut out = [0; GENERATION_LEN];
        out[..8].copy_from_slice(MAGIC);
        out[8..12].copy_from_slice(&GENERATION_VERSION.to_le_bytes());
        out[16..32].copy_from_slice(&self.disk.0);
        out[32..40].copy_from_slice(&self.lineage.confirmed.to_le_bytes());
        out[40] = runs.len() as u8;
        for (run, at) in runs.iter().zip(out[RUNS_AT..END].chunks_exact_mut(RUN_LEN)) {
            at[..8].copy_from_slice(&run.number.to_le_bytes());
            at[8..].copy_from_slice(&run.nonce.to_le_bytes());
        }
        let crc = checksum(&out);
        out[12..16].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Reads and verifies the bytes.
    pub fn decode(bytes: &[u8; GENERATION_LEN]) -> Result<Self, GenerationError> {
        if &bytes[..8] != MAGIC {
            return Err(GenerationError::Magic);
        }
        if u32_at(bytes, 12) != checksum(bytes) {
            return Err(GenerationError::Checksum);
        }
        let version = u32_at(bytes, 8);
        if version != GENERATION_VERSION {
            return Err(GenerationError::Version(version));
        }
        let count = usize::from(bytes[40]);
        let used = RUNS_AT + count * RUN_LEN;
        if !(1..=LINEAGE_MAX).contains(&count) || bytes[41..RUNS_AT].iter().chain(&bytes[used..]).any(|&b| b != 0) {
            return Err(GenerationError::Shape);
        }
        let run = |at: &[u8]| Generation { number: u64_at(at, 0), nonce: u64_at(at, 8) };
        let runs: Vec<Generation> = bytes[RUNS_AT..used].chunks_exact(RUN_LEN).map(run).collect();
        // So that a number can always rise.
        let rises = runs.windows(2).all(|pair| pair[0].number < pair[1].number);
        if !rises || runs[0].number == 0 || runs[count - 1].number > u64::MAX / 2 {
            return Err(GenerationError::Shape);
        }
        let disk = DiskUuid::from_slice(&bytes[16..32]).expect("the slice has 16 bytes");
        Ok(Self { disk, lineage: Lineage { runs, confirmed: u64_at(bytes, 32) } })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> GenerationRecord {
        let runs = vec![Generation { number: 7, nonce: 1 << 63 }, Generation { number: 10, nonce: 3 }];
        GenerationRecord { disk: DiskUuid([3; 16]), lineage: Lineage { runs, confirmed: 8 } }
    }

    /// A disk would be taken for an older copy of itself after an upgrade.
    #[test]
    fn golden_bytes() {
        let (record, bytes) = (sample(), sample().encode());
        assert_eq!(&bytes[..12], b"CAIRNGEN\x01\0\0\0");
        assert_eq!(&bytes[30..42], &[3, 3, 8, 0, 0, 0, 0, 0, 0, 0, 2, 0]);
        assert_eq!(&bytes[64..80], &[7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x80]);
        assert_eq!(&bytes[80..96], &[10, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(GenerationRecord::decode(&bytes), Ok(record.clone()));
        assert_eq!(record.offset(), 0, "an even number");
        let mut odd = record;
        odd.lineage.rise();
        assert_eq!(odd.offset(), GENERATION_SLOT);
        assert_eq!(u32_at(&bytes, 12), 0xAF20_753D);
    }

    /// A damaged generation would be taken for another one.
    #[test]
    fn any_flipped_bit_is_detected() {
        let bytes = sample().encode();
        for bit in 0..GENERATION_LEN * 8 {
            let mut bad = bytes;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(GenerationRecord::decode(&bad).is_err(), "bit {bit}");
        }
    }

    /// Numbers would be given twice.
    #[test]
    fn numbers_that_do_not_rise_are_refused() {
        let with = |numbers: &[u64]| {
            let runs = numbers.iter().map(|number| Generation { number: *number, nonce: 1 }).collect();
            let record = GenerationRecord { disk: DiskUuid([3; 16]), lineage: Lineage { runs, confirmed: 0 } };
            GenerationRecord::decode(&record.encode())
        };
        assert!(with(&[1, 2, 9]).is_ok());
        for bad in [&[2, 2][..], &[3, 2], &[0], &[u64::MAX]] {
            assert_eq!(with(bad), Err(GenerationError::Shape), "{bad:?}");
        }
    }
}
