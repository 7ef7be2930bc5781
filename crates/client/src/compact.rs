//! Moving bytes of files out of chunks that are mostly dead.
//!
//! Invariant: places are taken for hints: only what the file names in those chunks now is moved. What cannot be moved
//! at this moment stays; whoever asked comes again. Not here: which chunks, and how bytes are moved (`moving`).
use crate::attributes::Attributes;
use crate::convert::is_race;
use crate::error::Result;
use crate::meta::volume::Volume;
use crate::moving::Run;
use cairn_types::{ErrorCode, ExtentKind, Layout};
use cairn_wire::common::Extent;
use std::collections::BTreeSet;

/// Extents of a file that are moved together.
const EXTENTS_MAX: usize = 16 << 10;
const ESTALE: i32 = 116;
const KIND: u32 = 0o170_000;
const REGULAR: u32 = 0o100_000;

impl Volume {
    /// Moves what a file has in these chunks (group, index) elsewhere. `offsets`, ascending: where such extents began.
    /// The number of bytes that were moved; `None` if the file is gone, in the way of others, or was changed meanwhile.
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
        let (mut runs, mut seen, mut count): (Vec<Run>, u64, usize) = (Vec::new(), 0, 0);
        let Some(last) = offsets.last() else { return Ok(Some(runs)) };
        for offset in offsets {
            if *offset < seen || count >= EXTENTS_MAX {
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
                count += 1;
                if !runs.last_mut().is_some_and(|run| run.push(*extent)) {
                    let mut run = Run::default();
                    run.push(*extent);
                    runs.push(run);
                }
            }
        }
        Ok(Some(runs))
    }
}

#[cfg(test)]
mod tests;
