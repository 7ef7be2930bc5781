//! Moving bytes of a file elsewhere: runs of it are read, written anew by its layout, and the extents swapped.
//! Compaction and defragmentation do nothing else.
//!
//! Invariants: a move never covers a newer write. The swap is a compare-and-set on the version that was read; if that
//! is another one by now, it goes on only if the file still names the same places there, and nobody can have changed
//! blocks of them in place since ([`is_untouched`]). Whoever answered the reads had all that was acknowledged before
//! ([`ReadEpochs`]). No attribute changes but the version. What was not published is discarded. Not here: what is
//! moved.
use crate::attributes::Attributes;
use crate::convert::parts::Parts;
use crate::error::{ClientError, Result};
use crate::file_writer::body::Body;
use crate::meta::volume::Volume;
use crate::read::file_reader::FileReader;
use crate::read::read_epochs::ReadEpochs;
use crate::stage::read_back::check_at_rest;
use cairn_types::{EXTENT_SHARED, ErrorCode, ExtentKind, Layout};
use cairn_wire::common::Extent;
use cairn_wire::meta::PublishRequest;
use std::sync::Arc;

/// Extents of one publish.
const PUBLISH_EXTENTS: usize = 1024;
/// Times that a swap is tried while others publish elsewhere in the file. Each takes three calls.
const SWAPS_MAX: usize = 32;

/// A range of the file without holes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Run {
    pub offset: u64,
    pub bytes: u64,
    /// All of it and nothing else, in order.
    pub extents: Vec<Extent>,
}

impl Run {
    pub fn end(&self) -> u64 {
        self.offset + self.bytes
    }
    /// Adds what continues it in the file; false if this does not.
    pub fn push(&mut self, extent: Extent) -> bool {
        if self.extents.is_empty() {
            self.offset = extent.file_offset;
        } else if self.end() != extent.file_offset {
            return false;
        }
        self.bytes += extent.length;
        self.extents.push(extent);
        true
    }
}

/// The part of an extent within a range that it overlaps.
pub(crate) fn clipped(extent: &Extent, from: u64, to: u64) -> Extent {
    let start = extent.file_offset.max(from);
    let end = (extent.file_offset + extent.length).min(to);
    let chunk_offset = extent.chunk_offset + (start - extent.file_offset);
    Extent { file_offset: start, length: end - start, chunk_offset, ..*extent }
}

/// Whether the version tells of every change of these bytes since `found`: nobody overwrites blocks in place now or has
/// got the right to since. Each lease raises the generation and not the version, and nothing raises the version more
/// than the generation. Rows of shards are never changed in place.
fn is_untouched(found: &Attributes, now: &Attributes, runs: &[Run]) -> bool {
    let distance = |a: &Attributes| a.generation.wrapping_sub(a.data_version);
    let is_row = |e: &Extent| matches!(ExtentKind::from_flags(e.flags), Some(ExtentKind::Erasure(_)));
    now.overwriter == 0 && (distance(now) == distance(found) || runs.iter().flat_map(|run| &run.extents).all(is_row))
}

/// Where the bytes lie, however they are cut, and whoever else has them; in their order.
pub(crate) fn joined(extents: impl IntoIterator<Item = Extent>) -> Vec<Extent> {
    let mut all: Vec<Extent> = Vec::new();
    for extent in extents.into_iter().map(|e| Extent { flags: e.flags & !EXTENT_SHARED, ..e }) {
        match all.last_mut() {
            Some(last)
                if (last.pg, last.index, last.flags) == (extent.pg, extent.index, extent.flags)
                    && last.file_offset + last.length == extent.file_offset
                    && last.chunk_offset + last.length == extent.chunk_offset =>
            {
                last.length += extent.length;
            }
            _ => all.push(extent),
        }
    }
    all
}

impl Volume {
    /// Moves runs of a file, ascending, as it was `found`, when nobody was overwriting it in place. The bytes that were
    /// moved.
    pub(crate) async fn move_runs(&self, found: &Attributes, layout: Layout, runs: &[Run]) -> Result<u64> {
        self.move_checked(found, layout, runs, false).await
    }

    /// The same; `read_back`: what was written is read from the disks and compared before the file names it, so before
    /// what it had may be freed.
    pub(crate) async fn move_checked(
        &self,
        found: &Attributes,
        layout: Layout,
        runs: &[Run],
        read_back: bool,
    ) -> Result<u64> {
        let shown_as = format!("inode {}", found.inode);
        let mut body = Body::new(self, layout).await?;
        let (mut moved, epochs) = (0, Arc::new(ReadEpochs::default()));
        for run in runs {
            let reader = FileReader::of_run(self, *found, &shown_as, run).under(&epochs);
            self.write_anew(reader, run, &mut body, &shown_as).await?;
            moved += run.bytes;
        }
        epochs.confirm(self.cluster(), &shown_as).await?;
        while body.places.awaited() > 0 {
            body.places.take_one(&shown_as).await?;
        }
        if read_back {
            check_at_rest(self.cluster(), &body.places.extents).await?;
        }
        self.swap_moved(found, &shown_as, runs, &mut body).await?;
        Ok(moved)
    }

    async fn write_anew(&self, mut reader: FileReader, run: &Run, body: &mut Body, shown_as: &str) -> Result<()> {
        body.seek(run.offset);
        let mut parts = Parts::of(run.offset);
        let mut got = 0;
        while let Some(piece) = reader.next().await? {
            if piece.hole {
                // Not what was listed: the size was cut.
                return Err(ClientError::Changed { what: shown_as.into() });
            }
            got += piece.data.len() as u64;
            parts.take(&piece.data, body, shown_as).await?;
        }
        if got != run.bytes {
            return Err(ClientError::Changed { what: shown_as.into() });
        }
        parts.end(body, shown_as).await
    }

    /// Puts the new extents in the place of the old ones. What was not published is discarded with the body.
    pub(crate) async fn swap_moved(
        &self,
        found: &Attributes,
        shown_as: &str,
        runs: &[Run],
        body: &mut Body,
    ) -> Result<()> {
        let mut later = std::mem::take(&mut body.places.extents);
        let mut now = *found;
        while !later.is_empty() {
            let rest = later.split_off(later.len().min(PUBLISH_EXTENTS));
            body.places.extents = std::mem::replace(&mut later, rest);
            match self.swap_part(found, now, shown_as, runs, body).await {
                Ok(after) => now = after,
                Err(error) => {
                    body.places.extents.append(&mut later);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Publishes what the body has, and again if others published something else in the file meanwhile.
    async fn swap_part(
        &self,
        found: &Attributes,
        mut now: Attributes,
        shown_as: &str,
        runs: &[Run],
        body: &mut Body,
    ) -> Result<Attributes> {
        let mut attempts = 0;
        loop {
            attempts += 1;
            body.check_current_session().await?;
            let written_by = body.session.0;
            let publish = async |extents, sets| {
                let request = PublishRequest {
                    extents,
                    sets,
                    if_data_version: now.data_version,
                    mtime_ns: now.mtime_ns as u64,
                    keep_mtime: true,
                    layout: now.layout,
                    written_by,
                    ..Default::default()
                };
                self.publish(found.inode, shown_as.as_bytes(), request).await
            };
            let error = match body.places.publish(publish).await {
                Ok(after) => return Ok(after),
                Err(error) => error,
            };
            if error.code() != Some(ErrorCode::Conflict) || attempts == SWAPS_MAX {
                return Err(error);
            }
            now = self.getattr(found.inode).await?;
            let same = now.layout == found.layout
                && is_untouched(found, &now, runs)
                && self.still_names(&now, &body.places.extents, runs).await?;
            if !same {
                return Err(error);
            }
        }
    }

    /// Whether this version of the file names, where `moved` has bytes, the places of `runs`.
    async fn still_names(&self, now: &Attributes, moved: &[Extent], runs: &[Run]) -> Result<bool> {
        let (mut page, mut page_from, mut page_to) = (Vec::new(), 0, 0);
        let end = moved.last().map_or(0, |e| e.file_offset + e.length);
        for new in moved {
            let (mut from, to) = (new.file_offset, new.file_offset + new.length);
            let first = runs.partition_point(|run| run.end() <= from);
            let old = runs[first..].iter().take_while(|run| run.offset < to).flat_map(|run| &run.extents);
            let overlaps = |e: &&Extent| e.file_offset < to && e.file_offset + e.length > new.file_offset;
            let old = joined(old.filter(overlaps).map(|e| clipped(e, new.file_offset, to)));
            let mut present: Vec<Extent> = Vec::new();
            while from < to {
                if from < page_from || from >= page_to {
                    let answer = self.extents(now.inode, from, end - from).await?;
                    if answer.data_version != now.data_version {
                        return Ok(false);
                    }
                    page_from = from;
                    page_to = match answer.extents.last() {
                        Some(last) if !answer.end => last.file_offset + last.length,
                        _ => end,
                    };
                    page = answer.extents;
                }
                let until = to.min(page_to);
                let within = |e: &&Extent| e.file_offset < until && e.file_offset + e.length > from;
                present.extend(page.iter().filter(within).map(|e| clipped(e, from, until)));
                from = until;
            }
            if joined(present) != old {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
