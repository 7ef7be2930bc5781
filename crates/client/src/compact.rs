//! Moving bytes of files out of chunks that are mostly dead: they are read, written anew beside others, and the extents swapped.
//!
//! Invariants: the swap is a compare-and-set on the version that was read, so a move never covers a newer write, and it is refused
//! while somebody may be changing blocks in place; no attribute changes but the version. Places are taken for hints: only what
//! the file names in those chunks now is moved. What cannot be moved at this moment stays; whoever asked comes again. Not here:
//! which chunks.
use crate::append::SEGMENT_MAX;
use crate::append::segment::segment_buffer;
use crate::convert::is_race;
use crate::error::{ClientError, Result};
use crate::file_writer::body::Body;
use crate::meta::volume::Volume;
use crate::read::file_reader::FileReader;
use cairn_types::{ErrorCode, ExtentKind, Layout};
use cairn_wire::common::Extent;
use cairn_wire::meta::{Attributes, PublishRequest};
use std::collections::BTreeSet;

/// Extents of one publish.
const PUBLISH_EXTENTS: usize = 1024;
/// Extents of a file that are moved together.
const RUNS_MAX: usize = 16 << 10;
const ESTALE: i32 = 116;
const KIND: u32 = 0o170_000;
const REGULAR: u32 = 0o100_000;

/// A range of the file: offset, bytes.
type Run = (u64, u64);

impl Volume {
    /// Moves what a file has in these chunks (group, index) elsewhere. `offsets`, ascending: where such extents began. The
    /// number of bytes that were moved; `None` if the file is gone, in the way of others, or was changed meanwhile.
    pub async fn move_out(&self, inode: u64, offsets: &[u64], packs: &BTreeSet<(u32, u32)>) -> Result<Option<u64>> {
        let found = match self.getattr(inode).await {
            Ok(found) => found,
            Err(error) if error.errno() == ESTALE || error.is_not_found() => return Ok(None),
            Err(error) => return Err(error),
        };
        let layout = Layout::from_bits(found.layout).filter(|layout| layout.stripe_width().is_none());
        let Some(layout) = layout.filter(|_| found.mode & KIND == REGULAR && found.overwriter == 0) else {
            return Ok(None);
        };
        let outcome = match self.runs_in(&found, offsets, packs).await? {
            Some(runs) if !runs.is_empty() => self.move_runs(&found, layout, &runs).await,
            _ => return Ok(None),
        };
        match outcome {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if is_race(&error) || error.code() == Some(ErrorCode::LeaseHeld) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// What the file has in those chunks, neighbours joined. `None`: it is another version by now.
    async fn runs_in(
        &self,
        found: &Attributes,
        offsets: &[u64],
        packs: &BTreeSet<(u32, u32)>,
    ) -> Result<Option<Vec<Run>>> {
        let (mut runs, mut seen): (Vec<Run>, u64) = (Vec::new(), 0);
        let Some(last) = offsets.last() else { return Ok(Some(runs)) };
        for offset in offsets {
            if *offset < seen || runs.len() >= RUNS_MAX {
                continue;
            }
            let page = self.extents(found.inode, *offset, last.saturating_add(1) - offset).await?;
            if page.data_version != found.data_version {
                return Ok(None);
            }
            seen = page.extents.last().map_or(*offset + 1, |extent| extent.file_offset + extent.length);
            let is_in = |extent: &&Extent| {
                packs.contains(&(extent.pg, extent.index))
                    && ExtentKind::from_flags(extent.flags) == Some(ExtentKind::Plain)
            };
            for extent in page.extents.iter().filter(is_in) {
                match runs.last_mut() {
                    Some((start, bytes)) if *start + *bytes == extent.file_offset => *bytes += extent.length,
                    _ => runs.push((extent.file_offset, extent.length)),
                }
            }
        }
        Ok(Some(runs))
    }

    async fn move_runs(&self, found: &Attributes, layout: Layout, runs: &[Run]) -> Result<u64> {
        let shown_as = format!("inode {}", found.inode);
        let mut body = Body::new(self, layout).await?;
        let (mut part, mut moved) = (segment_buffer(), 0);
        for (offset, bytes) in runs {
            body.seek(*offset);
            // All parts but the first begin and end on block boundaries.
            let mut room = SEGMENT_MAX - (*offset % SEGMENT_MAX as u64) as usize;
            let mut reader = FileReader::new(self, *found, &shown_as, *offset, *bytes);
            let mut got = 0;
            while let Some(piece) = reader.next().await? {
                if piece.hole {
                    // Not what was listed: the size was cut.
                    return Err(ClientError::Changed { what: shown_as });
                }
                got += piece.data.len() as u64;
                let mut rest = &piece.data[..];
                while !rest.is_empty() {
                    let (now, later) = rest.split_at(rest.len().min(room));
                    part.extend_from_slice(now);
                    (rest, room) = (later, room - now.len());
                    if room == 0 {
                        self.push(&mut body, &mut part, &shown_as).await?;
                        room = SEGMENT_MAX;
                    }
                }
            }
            if got != *bytes {
                return Err(ClientError::Changed { what: shown_as });
            }
            self.push(&mut body, &mut part, &shown_as).await?;
            body.flush().await.map_err(|e| e.named(&shown_as))?;
            moved += got;
        }
        while body.places.awaited() > 0 {
            body.places.take_one(&shown_as).await?;
        }
        self.swap_moved(found, &shown_as, &mut body).await?;
        Ok(moved)
    }

    /// Puts the new extents in the place of the old ones. What was not published is discarded with the body.
    async fn swap_moved(&self, found: &Attributes, shown_as: &str, body: &mut Body) -> Result<()> {
        let mut later = std::mem::take(&mut body.places.extents);
        let mut version = found.data_version;
        while !later.is_empty() {
            let rest = later.split_off(later.len().min(PUBLISH_EXTENTS));
            body.places.extents = std::mem::replace(&mut later, rest);
            if let Err(error) = body.check_current_session().await {
                body.places.extents.append(&mut later);
                return Err(error);
            }
            let written_by = body.session.0;
            let publish = async |extents, sets| {
                let (if_data_version, mtime_ns, layout, keep_mtime) = (version, found.mtime_ns, found.layout, true);
                let request = PublishRequest {
                    extents,
                    sets,
                    if_data_version,
                    mtime_ns,
                    keep_mtime,
                    layout,
                    written_by,
                    ..Default::default()
                };
                self.publish(found.inode, shown_as.as_bytes(), request).await
            };
            match body.places.publish(publish).await {
                Ok(now) => version = now.data_version,
                Err(error) => {
                    body.places.extents.append(&mut later);
                    return Err(error);
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
