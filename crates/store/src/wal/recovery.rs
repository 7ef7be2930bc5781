//! Opening a log: verify, replay, find the end.
//!
//! What a bad batch means, by what lies behind it:
//!
//! | behind the first place without the expected batch | meaning |
//! |---|---|
//! | no valid batch with a later number in any segment | torn tail (or the end): the log ends here |
//! | the next segment starts with exactly the expected batch | the segment was left early; go on there |
//! | any valid batch with a later number | a batch that was synced is gone: corruption, reported by file and offset |
//!
//! What is not bad in itself may still lack something that was durable:
//!
//! | found | meaning |
//! |---|---|
//! | a segment shorter than it was made | its end is gone, or bytes of another file stand here: corruption |
//! | a valid batch with the expected number that names another one before it | a segment of another history or an older copy of itself: corruption |
//! | a log that does not reach the [`mark`](super::mark), or has another batch there | its end, or its last segment, is gone: corruption |
//!
//! Not found here: records of the last moments, behind the last mark, in a file of the right length.
//!
//! The end of the log is then synced, so that nothing that was replayed can vanish later. Nothing is written or cut
//! here; the next batch overwrites the torn one.

use std::collections::BTreeMap;

use bytes::Bytes;
use cairn_env::{AlignedBuf, Disk, OpenOptions};
use cairn_format::wal_batch::{BATCH_ALIGN, BatchHeader};
use cairn_format::wal_mark::WalMark;
use cairn_format::wal_record::WalRecord;
use cairn_format::wal_segment::{SEGMENT_HEADER_LEN, SEGMENT_VERSION, SegmentHeader, SegmentHeaderError};
use cairn_types::GroupId;

use super::groups::{Groups, RecoveredGroup, Replay};
use super::reader::SegmentReader;
use super::segments::{Segment, list, segment_path};
use super::{WalConfig, mark};
use crate::StoreError;

/// Where the writer goes on.
pub(super) struct Position {
    /// Segments with batches, oldest first; the last one is the present one.
    pub segments: Vec<Segment>,
    /// Prepared, empty segments behind it.
    pub prepared: Vec<Segment>,
    /// Where the next batch goes in the present segment.
    pub offset: u64,
    /// Number of the next batch.
    pub next_batch: u64,
    /// What it names as the one before it.
    pub chain: u32,
    /// The present mark.
    pub mark: Option<WalMark>,
    /// Number of the next segment to be made.
    pub next_segment: u64,
    /// Spare files.
    pub spares: Vec<u64>,
    pub groups: Groups,
}

pub(super) struct Recovered {
    pub position: Position,
    pub groups: BTreeMap<GroupId, RecoveredGroup>,
}

struct Scan<'a> {
    disk: &'a dyn Disk,
    config: &'a WalConfig,
    replay: Replay,
    /// Number of the batch that must come next; none before the first.
    expected: Option<u64>,
    /// [`BatchHeader::chain`] of the last batch.
    chain: u32,
    /// How far the log must reach.
    mark: Option<WalMark>,
    /// File and offset where the expected batch was missing in an earlier segment.
    broken: Option<(String, u64)>,
}

pub(super) fn recover(disk: &dyn Disk, config: &WalConfig) -> Result<Recovered, StoreError> {
    disk.create_dir_all(&config.dir)?;
    let (numbers, spares) = list(disk, &config.dir)?;
    for pair in numbers.windows(2) {
        if pair[1] != pair[0] + 1 {
            return Err(corrupt(disk, &segment_path(&config.dir, pair[0] + 1), 0, lost("the segment is missing")));
        }
    }
    let mark = mark::read(disk, config)?;
    let mut scan = Scan { disk, config, replay: Replay::default(), expected: None, chain: 0, mark, broken: None };
    let mut segments: Vec<(Segment, u64, bool)> = Vec::new();
    for &number in &numbers {
        let segment = scan.open(number)?;
        let (end, any) = scan.segment(&segment)?;
        segments.push((segment, end, any));
    }
    scan.reaches_mark(segments.last().map(|(segment, end, _)| (segment.number, *end)))?;
    let used = segments.iter().rposition(|(_, _, any)| *any).map_or(0, |last| last + 1).max(1).min(segments.len());
    let offset = segments[..used].last().map_or(SEGMENT_HEADER_LEN as u64, |(_, end, _)| *end);
    if let Some((segment, _, _)) = segments[..used].last() {
        segment.file.sync_data()?;
    }
    disk.sync_dir(&config.dir)?;
    let next_batch = scan.expected.unwrap_or(1);
    let (groups, live) = scan.replay.finish();
    let prepared = segments.split_off(used).into_iter().map(|(segment, _, _)| segment).collect();
    let position = Position {
        segments: segments.into_iter().map(|(segment, _, _)| segment).collect(),
        prepared,
        offset,
        next_batch,
        chain: scan.chain,
        mark,
        next_segment: numbers.last().map_or(1, |last| last + 1),
        spares,
        groups: live,
    };
    Ok(Recovered { position, groups })
}

/// Says what to do where acknowledged records are missing.
fn lost(what: &str) -> String {
    format!(
        "{what}: acknowledged records are missing; nothing was changed. Restore the file from a copy of the device, or, \
         where the groups have other members, let the node join again with an empty directory (guide \"Recover\")"
    )
}

fn corrupt(disk: &dyn Disk, path: &str, offset: u64, what: impl Into<String>) -> StoreError {
    StoreError::Corrupt { file: format!("{}/{path}", disk.name()), offset, what: what.into() }
}

impl Scan<'_> {
    fn open(&self, number: u64) -> Result<Segment, StoreError> {
        let path = segment_path(&self.config.dir, number);
        let file = self.disk.open(&path, OpenOptions::READ_WRITE.direct())?;
        let len = file.len()?;
        if len < SEGMENT_HEADER_LEN as u64 {
            return Err(corrupt(self.disk, &path, len, lost(&format!("the segment has only {len} bytes"))));
        }
        let mut block = AlignedBuf::unpooled(SEGMENT_HEADER_LEN);
        block.resize(SEGMENT_HEADER_LEN);
        file.read_exact_at(&mut block, 0)?;
        let block: &[u8; SEGMENT_HEADER_LEN] = block[..].try_into().expect("the buffer was made with this length");
        let header = SegmentHeader::decode(block).map_err(|error| match error {
            SegmentHeaderError::Version(found) => {
                StoreError::Version { file: format!("{}/{path}", self.disk.name()), found, known: SEGMENT_VERSION }
            }
            other => corrupt(self.disk, &path, 0, other.to_string()),
        })?;
        if header.log != self.config.log {
            let what = format!("it belongs to the log of node {}, not {}", header.log, self.config.log);
            return Err(corrupt(self.disk, &path, 16, what));
        }
        if header.number != number {
            return Err(corrupt(self.disk, &path, 32, format!("it says that it is segment {}", header.number)));
        }
        // Version 1 does not say it; its segments were always made as long as they are now.
        let made = header.length.unwrap_or(self.config.segment_bytes);
        if len < made || (header.length.is_some() && len != made) {
            let what = lost(&format!("the segment has {len} bytes and was made with {made}"));
            return Err(corrupt(self.disk, &path, len.min(made), what));
        }
        Ok(Segment { number, file, len, chained: header.length.is_some() })
    }

    /// Whether a batch in its turn follows the one that was read before it; and it is the one that the mark names.
    fn joins(&self, segment: &Segment, offset: u64, header: &BatchHeader) -> Result<(), StoreError> {
        let follows = match self.expected {
            // What came before the first segment is gone.
            None => true,
            Some(_) if segment.chained => header.before == self.chain,
            Some(_) => header.before == 0,
        };
        let marked = self.mark.is_none_or(|mark| {
            header.number != mark.batch
                || (header.chain() == mark.chain
                    && segment.number == mark.segment
                    && offset + u64::from(header.length) == mark.end)
        });
        if follows && marked {
            return Ok(());
        }
        let what = format!("batch {} belongs to another history of this log than what is around it", header.number);
        Err(corrupt(self.disk, &segment_path(&self.config.dir, segment.number), offset, lost(&what)))
    }

    /// Fails if the log ends, at `end` of the last segment, before what is known to have been durable.
    fn reaches_mark(&self, end: Option<(u64, u64)>) -> Result<(), StoreError> {
        let Some(mark) = self.mark else { return Ok(()) };
        let last = self.expected.map_or(0, |expected| expected - 1);
        if last >= mark.batch {
            return Ok(());
        }
        let (path, offset) = match (&self.broken, end) {
            (Some((path, offset)), _) => (path.clone(), *offset),
            (None, Some((number, offset))) if number >= mark.segment => {
                (segment_path(&self.config.dir, number), offset)
            }
            _ => (segment_path(&self.config.dir, mark.segment), 0),
        };
        let what = format!("the log ends with batch {last}, and batch {} was durable", mark.batch);
        Err(corrupt(self.disk, &path, offset, lost(&what)))
    }

    fn ours(&self, segment: &Segment, header: &BatchHeader) -> bool {
        header.log == self.config.log && header.segment == segment.number
    }

    /// Replays a segment; gives where its valid batches end, and whether there are any.
    fn segment(&mut self, segment: &Segment) -> Result<(u64, bool), StoreError> {
        let mut reader = SegmentReader::new(segment.file.as_ref())?;
        let mut offset = SEGMENT_HEADER_LEN as u64;
        while offset < reader.len {
            let Some(header) = reader.header(offset)?.filter(|h| self.ours(segment, h)) else { break };
            let in_turn = self.expected.is_none_or(|expected| header.number == expected);
            if !in_turn {
                break;
            }
            let batch = reader.bytes(offset, header.length as usize)?;
            let Ok(body) = header.body(batch).map(Bytes::copy_from_slice) else { break };
            self.joins(segment, offset, &header)?;
            if let Some((path, at)) = self.broken.take()
                && self.expected.is_none()
            {
                // A segment gets batches only after the one before has some.
                return Err(corrupt(self.disk, &path, at, "the first batch of the log is damaged"));
            }
            self.batch(segment, offset, &header, &body)?;
            self.expected = Some(header.number + 1);
            self.chain = header.chain();
            offset += u64::from(header.length);
        }
        self.look_behind(segment, &mut reader, offset)?;
        if offset < reader.len {
            self.broken.get_or_insert_with(|| (segment_path(&self.config.dir, segment.number), offset));
        }
        Ok((offset, offset > SEGMENT_HEADER_LEN as u64))
    }

    /// Fails if a later batch exists behind the end of the valid ones.
    fn look_behind(&self, segment: &Segment, reader: &mut SegmentReader<'_>, end: u64) -> Result<(), StoreError> {
        let mut at = end;
        while at < reader.len {
            if let Some(header) = reader.header(at)?.filter(|h| self.ours(segment, h)) {
                let valid = header.body(reader.bytes(at, header.length as usize)?).is_ok();
                let later = match self.expected {
                    Some(expected) => header.number > expected || (header.number == expected && at != end),
                    None => at != end,
                };
                if later && valid {
                    let (path, offset) = match &self.broken {
                        Some((path, offset)) if end == SEGMENT_HEADER_LEN as u64 => (path.clone(), *offset),
                        _ => (segment_path(&self.config.dir, segment.number), end),
                    };
                    let what =
                        lost(&format!("a batch is damaged although a later one ({}) was written", header.number));
                    return Err(corrupt(self.disk, &path, offset, what));
                }
            }
            at += BATCH_ALIGN as u64;
        }
        Ok(())
    }

    fn batch(&mut self, segment: &Segment, offset: u64, header: &BatchHeader, body: &Bytes) -> Result<(), StoreError> {
        let path = segment_path(&self.config.dir, segment.number);
        let mut at = 0;
        for _ in 0..header.records {
            let (group, record, len) = WalRecord::decode(&body[at..])
                .map_err(|error| corrupt(self.disk, &path, offset + at as u64, error.to_string()))?;
            self.replay
                .apply(segment.number, group, &record, body)
                .map_err(|what| corrupt(self.disk, &path, offset + at as u64, format!("{group}: {what}")))?;
            at += len;
        }
        if at != body.len() {
            return Err(corrupt(self.disk, &path, offset + at as u64, "bytes behind the last record of a batch"));
        }
        Ok(())
    }
}
