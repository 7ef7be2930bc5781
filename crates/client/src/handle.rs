//! An open file: reads and writes at any offset, appends, truncation. For fronts that change existing files.
//!
//! Writes gather in memory, at most [`DIRTY_MAX`] bytes and one write more; `sync` and `close` write them to new space by
//! the file's layout and publish exactly the bytes written. In a file of an erasure layout whole rows are striped, and
//! what does not fill a row is replicated until later writes complete it: then it is read back and written as rows, and
//! published by compare-and-set on the version that was read. Invariant: bytes leave the memory only after they were
//! published. Others see them after `sync` (close-to-open); between handles that write the same bytes the last sync wins.
mod dirty;
mod tail;

use crate::append::SEGMENT_MAX;
use crate::error::{ClientError, Result};
use crate::file_writer::body::Body;
use crate::meta::volume::{Volume, shown};
use crate::read::file_reader::FileReader;
use cairn_env::buf::SharedBuf;
use cairn_types::{ErrorCode, Layout, Stripe};
use cairn_wire::common::Extent;
use cairn_wire::meta::{Attributes, PublishRequest, SetattrRequest};
use dirty::Dirty;
use tail::{GATHER_MAX, first_row, rows_begin};

/// Bytes of writes that a handle keeps before it writes them.
pub const DIRTY_MAX: usize = 24 << 20;
/// Times that a write or read is begun anew because the file or the session was another meanwhile.
const TRIES: usize = 5;
/// Bit of a setattr: the size.
const SET_SIZE: u32 = 1 << 3;
const KIND: u32 = 0o170_000;
const REGULAR: u32 = 0o100_000;
/// Extents of one publish.
const PUBLISH_EXTENTS: usize = 2048;

/// A file opened for reading and writing. Close it: what was not synced is lost when it is dropped.
pub struct FileHandle {
    volume: Volume,
    inode: u64,
    shown_as: Vec<u8>,
    layout: Layout,
    dirty: Dirty,
}

/// A part of the file on its way: where it begins, its bytes, and the version it is based on, if it has bytes that were
/// read back.
struct Part {
    offset: u64,
    data: Vec<SharedBuf>,
    based_on: u64,
}

impl Volume {
    /// Opens an existing regular file; symbolic links are followed. The session holds it until it is closed.
    pub async fn open(&self, path: &[u8]) -> Result<FileHandle> {
        let found = self.stat(path, true).await?;
        self.open_handle(found.inode, path).await
    }
    /// Opens a file by its inode; `shown_as` is its name in errors.
    pub async fn open_handle(&self, inode: u64, shown_as: &[u8]) -> Result<FileHandle> {
        let found = self.hold(inode, shown_as).await?;
        let layout = Layout::from_bits(found.layout);
        let (Some(layout), REGULAR) = (layout, found.mode & KIND) else {
            self.let_go(inode).await?;
            let text = "only regular files can be opened for writing";
            return Err(ClientError::remote(&shown(shown_as), ErrorCode::InvalidArgument, text));
        };
        Ok(FileHandle { volume: self.clone(), inode, shown_as: shown_as.to_vec(), layout, dirty: Dirty::default() })
    }
}

impl FileHandle {
    pub fn inode(&self) -> u64 {
        self.inode
    }
    /// Attributes with what was written here and is not yet synced taken into account.
    pub async fn attributes(&self) -> Result<Attributes> {
        let mut found = self.volume.getattr(self.inode).await.map_err(|e| self.named(e))?;
        found.size = found.size.max(self.dirty.end());
        Ok(found)
    }
    fn named(&self, error: ClientError) -> ClientError {
        error.named(&shown(&self.shown_as))
    }

    /// Puts bytes into the file, over what is there or beyond its end.
    pub async fn write_at(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        if offset.checked_add(data.len() as u64).is_none_or(|end| end > i64::MAX as u64) {
            return Err(ClientError::remote(&shown(&self.shown_as), ErrorCode::FileTooLarge, "no file is that long"));
        }
        self.dirty.write(offset, data);
        if self.dirty.bytes() > DIRTY_MAX { self.sync().await } else { Ok(()) }
    }
    /// Puts bytes behind the end of the file, as this handle knows it now. Returns where they begin.
    pub async fn append(&mut self, data: &[u8]) -> Result<u64> {
        let end = self.attributes().await?.size;
        self.write_at(end, data).await.map(|()| end)
    }
    /// Cuts the file, or makes it longer with zeros that take no space.
    pub async fn truncate(&mut self, size: u64) -> Result<Attributes> {
        self.dirty.truncate(size);
        self.sync().await?;
        let request = SetattrRequest { valid: SET_SIZE, size, ..Default::default() };
        self.volume.setattr(self.inode, &self.shown_as, request).await
    }
    /// Up to `length` bytes from `offset` on; fewer only at the end of the file.
    pub async fn read_at(&self, offset: u64, length: usize) -> Result<Vec<u8>> {
        let mut last = None;
        for _ in 0..TRIES {
            match self.read_once(offset, length).await {
                Err(error @ ClientError::Changed { .. }) => last = Some(error),
                outcome => return outcome,
            }
        }
        Err(last.unwrap_or_else(|| ClientError::Changed { what: shown(&self.shown_as) }))
    }
    async fn read_once(&self, offset: u64, length: usize) -> Result<Vec<u8>> {
        let found = self.volume.getattr(self.inode).await.map_err(|e| self.named(e))?;
        let size = found.size.max(self.dirty.end());
        let wanted = size.saturating_sub(offset).min(length as u64) as usize;
        let mut bytes = Vec::with_capacity(wanted);
        let mut reader = FileReader::new(&self.volume, found, &shown(&self.shown_as), offset, wanted as u64);
        while let Some(piece) = reader.next().await? {
            bytes.extend_from_slice(&piece.data);
        }
        // Between the end of what is published and what was written behind it.
        bytes.resize(wanted, 0);
        self.dirty.overlay(offset, &mut bytes);
        Ok(bytes)
    }

    /// Makes everything written durable, and visible to whoever opens the file from now on.
    pub async fn sync(&mut self) -> Result<()> {
        if self.dirty.is_empty() {
            return Ok(());
        }
        let runs = self.dirty.take();
        let outcome = self.write_out(&runs).await;
        if outcome.is_err() {
            self.dirty.put_back(&runs);
        }
        outcome
    }
    /// Syncs, and ends this handle's hold on the file.
    pub async fn close(mut self) -> Result<()> {
        let synced = self.sync().await;
        let released = self.volume.let_go(self.inode).await;
        synced.and(released)
    }

    async fn write_out(&self, runs: &[(u64, SharedBuf)]) -> Result<()> {
        let mut last = None;
        for _ in 0..TRIES {
            match self.write_once(runs).await {
                Err(error) if matches!(error.code(), Some(ErrorCode::Conflict | ErrorCode::WrongSession)) => {
                    last = Some(error);
                }
                Err(error @ ClientError::Changed { .. }) => last = Some(error),
                outcome => return outcome,
            }
        }
        Err(last.unwrap_or_else(|| ClientError::Changed { what: shown(&self.shown_as) }))
    }

    async fn write_once(&self, runs: &[(u64, SharedBuf)]) -> Result<()> {
        let mut body = Body::new(&self.volume, self.layout).await?;
        for (offset, data) in runs {
            if self.rows().is_some() {
                // What is read back to complete rows has to have the runs before it.
                self.publish(&mut body, 0).await?;
            }
            let part = self.part(*offset, data).await?;
            let based_on = part.based_on;
            self.write_part(&mut body, part).await.map_err(|e| self.named(e))?;
            if based_on != 0 || body.places.extents.len() >= PUBLISH_EXTENTS {
                self.publish(&mut body, based_on).await?;
            }
        }
        self.publish(&mut body, 0).await
    }

    /// The bytes to write for a run: it alone, or with what is read back before it.
    async fn part(&self, offset: u64, data: &SharedBuf) -> Result<Part> {
        let end = offset + data.len() as u64;
        let alone = Part { offset, data: vec![data.clone()], based_on: 0 };
        let Some(stripe) = self.rows() else { return Ok(alone) };
        if offset == 0 {
            return Ok(alone);
        }
        let found = self.volume.getattr(self.inode).await.map_err(|e| self.named(e))?;
        let from = offset.saturating_sub(GATHER_MAX);
        let extents = self.extents(from, offset, found.data_version).await?;
        let Some(start) = rows_begin(&extents, stripe, offset, end) else { return Ok(alone) };
        let mut reader = FileReader::new(&self.volume, found, &shown(&self.shown_as), start, offset - start);
        let mut parts = Vec::new();
        while let Some(piece) = reader.next().await? {
            parts.push(piece.data);
        }
        parts.push(data.clone());
        Ok(Part { offset: start, data: parts, based_on: found.data_version })
    }
    fn rows(&self) -> Option<Stripe> {
        self.layout.stripe().filter(|_| !self.layout.scheme().is_replicated())
    }
    /// Extents of a range, all of one version of the file.
    async fn extents(&self, from: u64, to: u64, version: u64) -> Result<Vec<Extent>> {
        let mut all: Vec<Extent> = Vec::new();
        loop {
            let at = all.last().map_or(from, |e| e.file_offset + e.length);
            if at >= to {
                return Ok(all);
            }
            let page = self.volume.extents(self.inode, at, to - at).await.map_err(|e| self.named(e))?;
            if page.data_version != version {
                return Err(ClientError::Changed { what: shown(&self.shown_as) });
            }
            let end = page.end || page.extents.is_empty();
            all.extend(page.extents);
            if end {
                return Ok(all);
            }
        }
    }

    async fn write_part(&self, body: &mut Body, part: Part) -> Result<()> {
        let length: u64 = part.data.iter().map(|d| d.len() as u64).sum();
        // Bytes before the first row, or before the first block, go apart.
        let cut = self.rows().and_then(|stripe| first_row(stripe, part.offset, part.offset + length));
        let mut head = cut.map_or(0, |row| row - part.offset) as usize;
        body.seek(part.offset);
        for mut data in part.data {
            while !data.is_empty() {
                let most = if head > 0 { head.min(SEGMENT_MAX) } else { SEGMENT_MAX };
                let next = data.split_to(data.len().min(most));
                let whole = next.len();
                body.push(next).await?;
                if head > 0 {
                    head -= whole;
                    if head == 0 {
                        body.flush().await?;
                    }
                }
            }
        }
        body.flush().await
    }

    async fn publish(&self, body: &mut Body, if_data_version: u64) -> Result<()> {
        while body.places.awaited() > 0 {
            body.places.take_one(&shown(&self.shown_as)).await?;
        }
        let Some(last) = body.places.extents.last() else { return Ok(()) };
        let (size, written_by) = (last.file_offset + last.length, body.session.0);
        body.check_current_session().await.map_err(|e| self.named(e))?;
        let publish = async |extents, sets| {
            let request = PublishRequest { size, sets, if_data_version, written_by, extents, ..Default::default() };
            self.volume.publish(self.inode, &self.shown_as, request).await
        };
        body.places.publish(publish).await.map(|_| ())
    }
}

#[cfg(test)]
mod tests;
