//! [`RecordReader`]: records of a file from any place on, in order, also while the file grows.
//!
//! It begins at the first frame that begins at or behind the place where it was told to begin, so that parts of a file can be read by
//! several: each record belongs to the part in which its frame begins. What is no record is passed over and counted. Memory: one record,
//! and what is read ahead.
use crate::error::{ClientError, Result};
use crate::meta::volume::Volume;
use crate::read::file_reader::FileReader;
use cairn_format::record_frame::{Found, record_at};

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
    /// Zeros between frames.
    pub padding: u64,
    /// Bytes of no record, or of damaged ones.
    pub damaged: u64,
}

pub struct RecordReader {
    volume: Volume,
    path: Vec<u8>,
    inode: u64,
    /// In the file, of the first byte in `buffer`.
    at: u64,
    /// No frame that begins here or later.
    end: u64,
    size: u64,
    buffer: Vec<u8>,
    consumed: usize,
    skipped: Skipped,
}

impl Volume {
    /// Reads records whose frames begin in `from..to`.
    pub async fn record_reader(&self, path: &[u8], from: u64, to: u64) -> Result<RecordReader> {
        let found = self.stat(path, true).await?;
        let (volume, path, inode, size) = (self.clone(), path.to_vec(), found.inode, found.size);
        let skipped = Skipped::default();
        Ok(RecordReader { volume, path, inode, at: from, end: to, size, buffer: Vec::new(), consumed: 0, skipped })
    }
}

impl RecordReader {
    /// The next record; `None` at the present end of the file. After that it can be asked again: more may have come.
    pub async fn next(&mut self) -> Result<Option<Record>> {
        loop {
            let offset = self.at + self.consumed as u64;
            if offset >= self.end {
                return Ok(None);
            }
            match record_at(&self.buffer[self.consumed..]) {
                Found::Record(frame, bytes) => {
                    let bytes = bytes.to_vec();
                    self.consumed += frame.framed_len();
                    return Ok(Some(Record { offset, writer: frame.writer, sequence: frame.sequence, bytes }));
                }
                Found::Skip { bytes, damaged } => {
                    self.consumed += bytes;
                    let kind = if damaged { &mut self.skipped.damaged } else { &mut self.skipped.padding };
                    *kind += bytes as u64;
                }
                Found::More => {
                    if !self.fill().await? {
                        return Ok(None);
                    }
                }
            }
        }
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
            self.size = found.size;
            if found.size < from {
                // Cut: what is there from now on is read from its new end on.
                (self.at, self.buffer) = (found.size, Vec::new());
                return Ok(false);
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
