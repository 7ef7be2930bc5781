//! Frames of records in files that many append to: header, then the record. The bytes of the chunk are the list of what
//! is in it.
//!
//! | offset | bytes | what |
//! |---|---|---|
//! | 0 | 4 | magic `CRr1` |
//! | 4 | 4 | length of the record, at most [`RECORD_MAX`] |
//! | 8 | 8 | writer: a random number of whoever appends |
//! | 16 | 8 | sequence: the writer's number of the record, from 1 |
//! | 24 | 4 | CRC-32C of the record |
//! | 28 | 4 | CRC-32C of bytes 0 to 27 |
//!
//! All numbers are little-endian. Between frames there may be zeros, up to the end of a block of 4096 bytes. A reader
//! that loses its place goes on where magic and CRC of a header match. Invariant: a record is given out only if both
//! CRCs match.

use cairn_types::crc32c;

use crate::le::{u32_at, u64_at};

/// Bytes of a header.
pub const RECORD_FRAME_LEN: usize = 32;
/// Bytes of the longest record.
pub const RECORD_MAX: usize = 16 << 20;
/// What a frame begins with.
pub const RECORD_MAGIC: [u8; 4] = *b"CRr1";

/// The header of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecordFrame {
    pub length: u32,
    pub writer: u64,
    pub sequence: u64,
    pub crc: u32,
}

impl RecordFrame {
    /// Of this record.
    pub fn of(writer: u64, sequence: u64, record: &[u8]) -> RecordFrame {
        assert!(record.len() <= RECORD_MAX, "a record of {} bytes", record.len());
        RecordFrame { length: record.len() as u32, writer, sequence, crc: crc32c(record) }
    }

    pub fn encode(&self) -> [u8; RECORD_FRAME_LEN] {
        let mut bytes = [0; RECORD_FRAME_LEN];
        bytes[..4].copy_from_slice(&RECORD_MAGIC);
        bytes[4..8].copy_from_slice(&self.length.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.writer.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.crc.to_le_bytes());
        let crc = crc32c(&bytes[..28]);
        bytes[28..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Of the bytes at the beginning; `None` if that is no header.
    pub fn decode(bytes: &[u8]) -> Option<RecordFrame> {
        let bytes = bytes.get(..RECORD_FRAME_LEN)?;
        let length = u32_at(bytes, 4);
        if bytes[..4] != RECORD_MAGIC || length as usize > RECORD_MAX || u32_at(bytes, 28) != crc32c(&bytes[..28]) {
            return None;
        }
        Some(RecordFrame { length, writer: u64_at(bytes, 8), sequence: u64_at(bytes, 16), crc: u32_at(bytes, 24) })
    }

    /// Bytes of header and record.
    pub fn framed_len(&self) -> usize {
        RECORD_FRAME_LEN + self.length as usize
    }
}

/// What stands at a place of a file or chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found<'a> {
    /// A whole record.
    Record(RecordFrame, &'a [u8]),
    /// So many bytes that belong to no record: zeros between frames, or (`damaged`) something else.
    Skip { bytes: usize, damaged: bool },
    /// What is there may be the beginning of a frame: more bytes are needed.
    More,
}

/// Looks at what the bytes begin with. Where that is no frame it says how far it is to what may be one.
pub fn record_at(bytes: &[u8]) -> Found<'_> {
    let Some(&first) = bytes.first() else { return Found::More };
    if first == 0 {
        let zeros = bytes.iter().position(|byte| *byte != 0).unwrap_or(bytes.len());
        return Found::Skip { bytes: zeros, damaged: false };
    }
    let begins = bytes.iter().zip(&RECORD_MAGIC).all(|(byte, magic)| byte == magic);
    if begins && bytes.len() < RECORD_FRAME_LEN {
        return Found::More;
    }
    if let Some(frame) = RecordFrame::decode(bytes) {
        let Some(record) = bytes.get(RECORD_FRAME_LEN..frame.framed_len()) else { return Found::More };
        if crc32c(record) == frame.crc {
            return Found::Record(frame, record);
        }
    }
    // Up to what may be a frame, or padding.
    let next = bytes[1..].iter().position(|byte| [0, RECORD_MAGIC[0]].contains(byte)).map_or(bytes.len(), |at| at + 1);
    Found::Skip { bytes: next, damaged: true }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn framed(sequence: u64, record: &[u8]) -> Vec<u8> {
        [&RecordFrame::of(7, sequence, record).encode()[..], record].concat()
    }

    /// Files of earlier builds would not be read.
    #[test]
    fn golden_bytes() {
        let bytes = RecordFrame::of(0x0102_0304_0506_0708, 9, b"record").encode();
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "435272310600000008070605040302010900000000000000d4ac967993d0c0b2");
        assert_eq!(bytes.len(), RECORD_FRAME_LEN);
    }

    /// A damaged record would be given out.
    #[test]
    fn any_flipped_bit_is_found() {
        let good = framed(3, b"some bytes");
        assert!(matches!(record_at(&good), Found::Record(frame, b"some bytes") if frame.sequence == 3));
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(!matches!(record_at(&bad), Found::Record(..)), "bit {bit}");
        }
    }

    /// Records behind padding, foreign bytes or a torn record would be lost, or a torn one be given out.
    #[test]
    fn frames_are_found_again_behind_anything() {
        let mut bytes = framed(1, b"one");
        bytes.extend([0; 100]);
        bytes.extend(b"foreign C CR CRr1 bytes");
        bytes.extend(&framed(2, &[9; 500])[..200]);
        bytes.extend(framed(3, b"three"));
        let (mut at, mut seen, mut damaged) = (0, Vec::new(), 0);
        while at < bytes.len() {
            match record_at(&bytes[at..]) {
                Found::Record(frame, record) => {
                    seen.push((frame.sequence, record.to_vec()));
                    at += frame.framed_len();
                }
                Found::Skip { bytes, damaged: is_damaged } => {
                    damaged += if is_damaged { bytes } else { 0 };
                    at += bytes;
                }
                // A torn one at the end of what there is: whoever knows that no more comes goes on behind its first
                // byte.
                Found::More => {
                    damaged += 1;
                    at += 1;
                }
            }
        }
        assert_eq!(seen, [(1, b"one".to_vec()), (3, b"three".to_vec())]);
        assert_eq!(damaged, 23 + 200 - 16, "what is zero of the torn header counts as padding");
    }

    /// The beginning of a frame would be taken for damage while the rest is on its way.
    #[test]
    fn a_beginning_waits_for_the_rest() {
        let bytes = framed(1, b"one");
        for length in 0..bytes.len() {
            assert_eq!(record_at(&bytes[..length]), Found::More, "{length}");
        }
    }
}
