//! Records that are longer than a payload: their parts are put together in memory before anything of them goes into a
//! chunk.
//!
//! Bounds: [`BYTES_MAX`] bytes, each of which was announced by a first part, and of one volume no more than are left
//! for others; one of which nothing comes for [`FORGET_AFTER`] is forgotten. Who is refused begins again with the first
//! part.

use std::collections::BTreeMap;
use std::time::Duration;

use cairn_format::record_frame::{RECORD_FRAME_LEN, RECORD_MAX};
use cairn_types::{ChunkId, DiskId, ErrorCode, Time, VolumeId};
use cairn_wire::data::RecordPart;
use cairn_wire::error::WireError;
use parking_lot::Mutex;

use super::bad_request;

/// Bytes of records that are put together at a time; of one volume half at most.
const BYTES_MAX: usize = 128 << 20;
const FORGET_AFTER: Duration = Duration::from_secs(15);

type Key = (DiskId, ChunkId, u64, u64);

struct Gathered {
    volume: VolumeId,
    bytes: Vec<u8>,
    total: usize,
    last: Time,
}

#[derive(Default)]
pub(super) struct Parts(Mutex<BTreeMap<Key, Gathered>>);

impl Parts {
    /// Takes a part. Gives the whole frame with the last one.
    pub(super) fn add(
        &self,
        (disk, id, volume): (DiskId, ChunkId, VolumeId),
        part: &RecordPart,
        payload: &[u8],
        now: Time,
    ) -> Result<Option<Vec<u8>>, WireError> {
        let (total, at, key) = (part.total as usize, part.at as usize, (disk, id, part.writer, part.sequence));
        if !(RECORD_FRAME_LEN..=RECORD_FRAME_LEN + RECORD_MAX).contains(&total) || payload.len() > total - at.min(total)
        {
            return Err(bad_request("a record has up to 16 MiB, and its parts not more"));
        }
        let mut all = self.0.lock();
        if at == 0 {
            all.remove(&key);
            let announced = |of: &dyn Fn(&Gathered) -> bool| -> usize {
                all.values().filter(|one| of(one)).map(|one| one.total).sum::<usize>() + total
            };
            if announced(&|one| one.volume == volume) > BYTES_MAX.saturating_sub(announced(&|_| true)) {
                return Err(again("too many long records are on their way"));
            }
            all.insert(key, Gathered { volume, bytes: Vec::with_capacity(total), total, last: now });
        }
        let Some(one) = all.get_mut(&key).filter(|one| one.bytes.len() == at && one.total == total) else {
            return Err(again("a part of a record came without the one before it"));
        };
        one.bytes.extend_from_slice(payload);
        one.last = now;
        Ok(if one.bytes.len() == total { all.remove(&key).map(|one| one.bytes) } else { None })
    }

    pub(super) fn forget_old(&self, now: Time) {
        self.0.lock().retain(|_, one| now.since(one.last) < FORGET_AFTER);
    }
}

fn again(why: &str) -> WireError {
    WireError::new(ErrorCode::Overloaded, format!("{why}; send the record again from its beginning"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_types::PgId;

    fn add(
        parts: &Parts,
        sequence: u64,
        (total, at): (u32, u32),
        bytes: usize,
        seconds: u64,
    ) -> Result<Option<usize>, ErrorCode> {
        let part = RecordPart { writer: 1, sequence, total, at };
        let id = (DiskId(1), ChunkId { pg: PgId(1), index: 1 }, VolumeId(sequence as u32 / 100));
        let whole = parts.add(id, &part, &vec![7; bytes], Time(seconds * 1_000_000_000));
        whole.map(|whole| whole.map(|bytes| bytes.len())).map_err(|error| error.code)
    }

    /// A record would be put together of parts of two attempts, or with a hole.
    #[test]
    fn parts_follow_each_other() {
        let parts = Parts::default();
        assert_eq!(add(&parts, 1, (100, 0), 60, 0), Ok(None));
        assert_eq!(add(&parts, 1, (100, 70), 30, 0), Err(ErrorCode::Overloaded));
        assert_eq!(add(&parts, 2, (100, 60), 40, 0), Err(ErrorCode::Overloaded), "of another record");
        assert_eq!(add(&parts, 1, (100, 60), 41, 0), Err(ErrorCode::BadRequest));
        assert_eq!(add(&parts, 1, (100, 0), 50, 0), Ok(None), "it begins again");
        assert_eq!(add(&parts, 1, (100, 60), 40, 0), Err(ErrorCode::Overloaded));
        assert_eq!(add(&parts, 1, (100, 50), 50, 0), Ok(Some(100)));
        assert_eq!(add(&parts, 1, (100, 50), 50, 0), Err(ErrorCode::Overloaded), "nothing is left of it");
    }

    /// Records that never come to their end would take all memory, or keep others out for ever.
    #[test]
    fn memory_has_a_bound() {
        let parts = Parts::default();
        let most = (RECORD_FRAME_LEN + RECORD_MAX) as u32;
        (1..=3).for_each(|i| assert_eq!(add(&parts, i, (most, 0), 10, i), Ok(None)));
        assert_eq!(add(&parts, 4, (most, 0), 10, 4), Err(ErrorCode::Overloaded));
        assert_eq!(add(&parts, 5, (most + 1, 0), 10, 4), Err(ErrorCode::BadRequest));
        // Another volume gets what is left for it.
        assert_eq!([101, 102, 103].map(|i| add(&parts, i, (most, 0), 10, 4).is_ok()), [true, true, false]);
        parts.forget_old(Time(17_000_000_000));
        assert_eq!(add(&parts, 101, (most, 10), 10, 17), Ok(None), "it is still there");
        assert_eq!(add(&parts, 4, (most, 0), 10, 17), Ok(None));
        assert_eq!(add(&parts, 1, (most, 10), 10, 17), Err(ErrorCode::Overloaded), "it was forgotten");
        assert_eq!(add(&parts, 3, (most, 10), 10, 17), Ok(None));
    }
}
