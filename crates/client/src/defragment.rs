//! Defragmentation of a file: where its extents have become too short they are written anew, whole, by its layout.
//!
//! A file is worked through from front to back in parts of [`PART`] bytes or a page of extents. What of a part is
//! written anew is in [`plan`]; that is moved like everything else (`moving`), so a newer write is never covered and
//! attributes stay. A writer that changes blocks in place is asked to give its lease back before a part is read. A part
//! that keeps changing is made smaller, and then left to a later pass. Memory: a page of extents, a reader's and a
//! writer's windows. Not here: which files (`meta`).
pub(crate) mod plan;

use crate::attributes::Attributes;
use crate::convert::is_race;
use crate::error::{ClientError, Result};
use crate::meta::volume::Volume;
use crate::moving::clipped;
use cairn_types::{ErrorCode, Layout};
use cairn_wire::common::Extent;
use cairn_wire::meta::PublishRequest;
use std::time::Duration;

pub use plan::FragmentRules;

/// Bytes of a file that are looked at, and read, together.
const PART: u64 = 32 << 20;
/// Times that a part is read; each time it is a quarter of what it was before.
const TRIES: u32 = 4;
const KIND: u32 = 0o170_000;
const REGULAR: u32 = 0o100_000;

/// How far the defragmentation of a file came.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Defragmented {
    /// Where to go on; `None`: the file is done, or gone.
    pub next: Option<u64>,
    /// Bytes that were written anew.
    pub moved: u64,
    /// Parts that were left as they are, because others were in the way.
    pub kept: u32,
}

/// What became of a part.
enum Part {
    /// It is no file that has a layout to write by.
    NotOne,
    /// It ends here; so many bytes were written anew.
    Done(u64, u64),
    /// It ends here, and others were in the way.
    Kept(u64),
}

impl Volume {
    /// Writes anew what is fragmented in a file from an offset on. After `work` it begins nothing new and says where to
    /// go on.
    pub async fn defragment(
        &self,
        inode: u64,
        from: u64,
        rules: FragmentRules,
        work: Duration,
    ) -> Result<Defragmented> {
        let clock = self.cluster().clock.clone();
        let started = clock.now();
        let (mut done, mut at) = (Defragmented::default(), from);
        loop {
            match self.defragment_part(inode, at, rules).await {
                Ok(Part::NotOne) => return Ok(done),
                Ok(Part::Done(end, moved)) => {
                    done.moved += moved;
                    at = end;
                }
                Ok(Part::Kept(end)) => {
                    done.kept += 1;
                    at = end;
                }
                Err(error) if matches!(error.code(), Some(ErrorCode::Stale | ErrorCode::NotFound)) => return Ok(done),
                Err(error) => return Err(error),
            }
            if at == u64::MAX {
                return Ok(done);
            }
            if clock.now().since(started) >= work {
                done.next = Some(at);
                return Ok(done);
            }
        }
    }

    async fn defragment_part(&self, inode: u64, from: u64, rules: FragmentRules) -> Result<Part> {
        let (mut length, mut end) = (PART, from);
        for _ in 0..TRIES {
            let found = self.getattr(inode).await?;
            let layout = Layout::from_bits(found.layout).filter(|layout| layout.stripe_width().is_none());
            let Some(layout) = layout.filter(|_| found.mode & KIND == REGULAR) else { return Ok(Part::NotOne) };
            let extents;
            (extents, end) = self.part_of(inode, from, length, plan::cell_of(layout)).await?;
            let runs = plan::fragmented(layout, rules, &extents);
            if runs.is_empty() {
                return Ok(Part::Done(end, 0));
            }
            let outcome = match found.overwriter {
                0 => self.move_runs(&found, layout, &runs).await,
                // Read after that, so that what was changed in place is moved as it is.
                _ => match self.call_lease_back(&found).await {
                    Err(error) if !is_race(&error) => Err(error),
                    _ => continue,
                },
            };
            match outcome {
                Ok(moved) => return Ok(Part::Done(end, moved)),
                Err(error) if is_race(&error) || error.code() == Some(ErrorCode::SessionEnded) => {}
                Err(error) if is_in_the_way(&error) => return Ok(Part::Kept(end)),
                Err(error) => return Err(error),
            }
            length /= 4;
        }
        Ok(Part::Kept(end))
    }

    /// The extents of a part of the file, cut at its ends, and where it ends: at a cell, if it has a whole one.
    pub(crate) async fn part_of(&self, inode: u64, from: u64, length: u64, cell: u64) -> Result<(Vec<Extent>, u64)> {
        let to = from.saturating_add(length).next_multiple_of(cell);
        // A hole is no work.
        let page = self.extents_to_move(inode, from).await?;
        let (Some(first), Some(last)) = (page.extents.first(), page.extents.last()) else {
            return Ok((Vec::new(), u64::MAX));
        };
        let last_end = last.file_offset + last.length;
        let to = to.max(first.file_offset.saturating_add(length).next_multiple_of(cell));
        let end = match (page.end, last_end > to) {
            (true, false) => u64::MAX,
            (_, true) => to,
            // More follow in the cell that the page ends in.
            (false, false) if last_end / cell > from / cell => last_end / cell * cell,
            (false, false) => last_end,
        };
        let within = |e: &&Extent| e.file_offset < end;
        Ok((page.extents.iter().filter(within).map(|e| clipped(e, from, end)).collect(), end))
    }

    /// Has whoever overwrites the file in place give that right back. An error of a race: he did, and changed
    /// something.
    pub(crate) async fn call_lease_back(&self, found: &Attributes) -> Result<()> {
        // Moves nothing. It is refused, and repeated, as long as somebody has the lease.
        let request = PublishRequest {
            if_data_version: found.data_version,
            mtime_ns: found.mtime_ns as u64,
            keep_mtime: true,
            layout: found.layout,
            ..Default::default()
        };
        let shown_as = format!("inode {}", found.inode);
        self.publish(found.inode, shown_as.as_bytes(), request).await.map(|_| ())
    }
}

/// What keeps this part from being moved now, and others perhaps not: a lease that is not given back in time (nobody
/// else can say so than a call that was repeated in vain), or bytes that cannot be read.
pub(crate) fn is_in_the_way(error: &ClientError) -> bool {
    let unread = matches!(error, ClientError::Unreadable { .. } | ClientError::Unavailable { .. });
    error.is_unknown() || unread || matches!(error, ClientError::Unreachable { .. })
}

#[cfg(test)]
mod tests;
