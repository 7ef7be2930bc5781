//! [`RecordReader`]: records of a file from any place on, in order, also while the file grows.
//!
//! It begins at the first frame that begins at or behind the place where it was told to begin, so that parts of a file
//! can be read by several: each record belongs to the part in which its frame begins. What is no record is passed over
//! and counted; so is a frame of which the end is not there, once a whole record stands behind its beginning. Memory:
//! one record, what is read ahead, and for the removal of repeats [`Repeats`].
use crate::error::{ClientError, Result};
use crate::meta::volume::Volume;
use crate::read::file_reader::FileReader;
use cairn_format::record_frame::{Found, record_at};
use std::collections::BTreeMap;
use std::time::Duration;

/// Bytes that are read on behalf of one another: so that a file that grows is opened seldom.
const WINDOW: u64 = 8 << 20;
/// Times that the same place is asked for again because the file was changed meanwhile.
const CHANGES_MAX: u32 = 100;

/// A record, and where its frame begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub offset: u64,
    /// Who wrote it, and that one's number of it: a record that is there twice has the same ones.
    pub writer: u64,
    pub sequence: u64,
    pub bytes: Vec<u8>,
}

/// What was passed over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Skipped {
    /// Bytes in front of the first frame of a reader that began inside of the file: the end of a record of the part
    /// before it.
    pub before: u64,
    /// Zeros between frames.
    pub padding: u64,
    /// Bytes of no record, or of damaged ones.
    pub damaged: u64,
    /// Records that were given out before, if they are not wanted again.
    pub repeats: u64,
}

pub struct RecordReader {
    volume: Volume,
    path: Vec<u8>,
    inode: u64,
    /// Where it began.
    first: u64,
    /// In the file, of the first byte in `buffer`.
    at: u64,
    /// No frame that begins here or later.
    end: u64,
    size: u64,
    buffer: Vec<u8>,
    consumed: usize,
    skipped: Skipped,
    /// No frame was met yet, and the reader did not begin with the file.
    begins: bool,
    repeats: Option<Repeats>,
    version: u64,
    was_cut: bool,
}

impl Volume {
    /// Reads records whose frames begin in `from..to`.
    pub async fn record_reader(&self, path: &[u8], from: u64, to: u64) -> Result<RecordReader> {
        let found = self.stat(path, true).await?;
        let (volume, path, inode, size) = (self.clone(), path.to_vec(), found.inode, found.size);
        Ok(RecordReader {
            volume,
            path,
            inode,
            first: from,
            at: from,
            end: to,
            size,
            buffer: Vec::new(),
            consumed: 0,
            skipped: Skipped::default(),
            begins: from > 0,
            repeats: None,
            version: found.data_version,
            was_cut: false,
        })
    }
}

impl RecordReader {
    /// The same, which gives a record that has the writer and sequence of an earlier one not out again.
    pub fn without_repeats(self) -> Self {
        Self { repeats: Some(Repeats::default()), ..self }
    }

    /// Waits until the file is not what it was when nothing more was found in it, or for so long.
    pub async fn changed(&self, at_most: Duration) -> Result<()> {
        self.volume.wait_change(self.inode, self.version, at_most).await.map(|_| ())
    }

    /// The next record; `None` at the present end of the file. After that it can be asked again: more may have come.
    pub async fn next(&mut self) -> Result<Option<Record>> {
        loop {
            let offset = self.at + self.consumed as u64;
            if offset >= self.end {
                return Ok(None);
            }
            match record_at(&self.buffer[self.consumed..]) {
                Found::Record(frame, bytes) => {
                    self.begins = false;
                    self.consumed += frame.framed_len();
                    if self.repeats.as_mut().is_some_and(|seen| !seen.add(frame.writer, frame.sequence)) {
                        self.skipped.repeats += 1;
                        continue;
                    }
                    let bytes = bytes.to_vec();
                    return Ok(Some(Record { offset, writer: frame.writer, sequence: frame.sequence, bytes }));
                }
                Found::Skip { bytes, damaged } => {
                    self.consumed += bytes;
                    let kind = match damaged {
                        true if self.begins => &mut self.skipped.before,
                        true => &mut self.skipped.damaged,
                        false => &mut self.skipped.padding,
                    };
                    *kind += bytes as u64;
                }
                Found::More => {
                    if self.fill().await? {
                        continue;
                    }
                    let Some(torn) = whole_record_behind(&self.buffer) else { return Ok(None) };
                    // Its end never came: it was cut off, and others went on behind it.
                    self.consumed += torn;
                    *(if self.begins { &mut self.skipped.before } else { &mut self.skipped.damaged }) += torn as u64;
                }
            }
        }
    }

    /// The file became shorter than what was read of it since this was asked last; it is read from its beginning (one
    /// of a part: of that).
    pub fn take_cut(&mut self) -> bool {
        std::mem::take(&mut self.was_cut)
    }

    /// Of the file that is read, whatever has its name by now.
    pub fn inode(&self) -> u64 {
        self.inode
    }

    /// What was passed over so far.
    pub fn skipped(&self) -> Skipped {
        self.skipped
    }

    /// Bytes at the present end of the file that are no whole record: one that was cut off, or something else.
    pub fn left_over(&self) -> u64 {
        (self.buffer.len() - self.consumed) as u64
    }

    /// Size of the file when it was looked at last.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Reads on; false if there is nothing more at this moment.
    async fn fill(&mut self) -> Result<bool> {
        self.buffer.drain(..self.consumed);
        self.at += self.consumed as u64;
        self.consumed = 0;
        for _ in 0..CHANGES_MAX {
            let from = self.at + self.buffer.len() as u64;
            let found = self.volume.getattr(self.inode).await?;
            (self.size, self.version) = (found.size, found.data_version);
            if found.size < from {
                // What is there may have been written since: it is read, at the price of giving records out again.
                let begin = if self.end == u64::MAX { 0 } else { self.first };
                (self.at, self.buffer, self.was_cut) = (begin, Vec::new(), true);
                if found.size <= begin {
                    return Ok(false);
                }
                continue;
            }
            if found.size == from {
                return Ok(false);
            }
            let shown = String::from_utf8_lossy(&self.path).into_owned();
            let mut reader = FileReader::new(&self.volume, found, &shown, from, WINDOW);
            loop {
                match reader.next().await {
                    Ok(Some(piece)) if piece.data.len() as u64 == piece.length => {
                        self.buffer.extend_from_slice(&piece.data);
                    }
                    Ok(Some(piece)) => self.buffer.resize(self.buffer.len() + piece.length as usize, 0),
                    Ok(None) => return Ok(true),
                    // It grew: what was read stays, the rest is asked for anew.
                    Err(ClientError::Changed { .. }) => break,
                    Err(error) => return Err(error),
                }
            }
            if self.at + self.buffer.len() as u64 > from {
                return Ok(true);
            }
        }
        let text = "its contents were changed each time that they were read; read it when less is written";
        Err(ClientError::remote(&String::from_utf8_lossy(&self.path), cairn_types::ErrorCode::Conflict, text))
    }
}

/// Where the next whole record begins behind the first byte.
fn whole_record_behind(bytes: &[u8]) -> Option<usize> {
    let mut at = 1;
    while at < bytes.len() {
        match record_at(&bytes[at..]) {
            Found::Record(..) => return Some(at),
            Found::Skip { bytes, .. } => at += bytes,
            Found::More => at += 1,
        }
    }
    None
}

/// Ranges of sequences that are remembered, over all writers.
const RANGES_MAX: usize = 256 << 10;

/// Which records were given out: ranges of sequences of each writer. A writer whose records stand in order takes one of
/// them. With more than [`RANGES_MAX`] the lowest sequences of a writer are forgotten, and a repeat of those may be
/// given out.
#[derive(Default)]
struct Repeats {
    /// By writer and first sequence: the last one.
    ranges: BTreeMap<(u64, u64), u64>,
    most: Option<usize>,
}

impl Repeats {
    /// Whether it is new.
    fn add(&mut self, writer: u64, sequence: u64) -> bool {
        let before = self.ranges.range(..=(writer, sequence)).next_back().map(|(key, last)| (*key, *last));
        let before = before.filter(|((of, _), _)| *of == writer);
        if before.is_some_and(|(_, last)| last >= sequence) {
            return false;
        }
        let behind = sequence.checked_add(1).and_then(|next| self.ranges.remove(&(writer, next)));
        let last = behind.unwrap_or(sequence);
        match before {
            Some((key, end)) if end + 1 == sequence => drop(self.ranges.insert(key, last)),
            _ => drop(self.ranges.insert((writer, sequence), last)),
        }
        if self.ranges.len() > self.most.unwrap_or(RANGES_MAX) {
            // Of the writer that was met just now there is one that is not needed soon.
            let lowest = self.ranges.range((writer, 0)..).next().map(|(key, _)| *key);
            lowest.and_then(|key| self.ranges.remove(&key));
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A record would be given out twice, or one that is new be kept back.
    #[test]
    fn records_are_known_again() {
        let mut seen = Repeats::default();
        for sequence in [1, 2, 3, 7, 5, 6, 4, 9] {
            assert!(seen.add(5, sequence) && !seen.add(5, sequence), "{sequence}");
            assert!(seen.add(u64::MAX, sequence), "of another writer");
        }
        assert!((1..=7).all(|sequence| !seen.add(5, sequence)) && seen.add(5, 8) && seen.add(5, u64::MAX));
        assert_eq!(seen.ranges.keys().filter(|(writer, _)| *writer == 5).count(), 2, "what is whole takes no room");
        let mut seen = Repeats { most: Some(10), ..Repeats::default() };
        assert!((1..100).all(|i| seen.add(1, 2 * i)));
        assert_eq!(seen.ranges.len(), 10);
        assert!(!seen.add(1, 198), "what came last is known");
    }
}
