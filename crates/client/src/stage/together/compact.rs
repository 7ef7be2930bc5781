//! Compaction of whole shards: what files have in chunks that are mostly dead becomes a new chunk of the same group.
//!
//! Each disk appends to its new shard what it has in the old ones, so no data is sent; parity is computed here. Shards
//! are filled up to the longest, so all of the old chunks goes, unless clones share it or others change it meanwhile.
//! Invariants are those of [`super::shards`] and of moves. Bounds: [`FILES_MAX`] files, one chunk a call. Not here:
//! which chunks (`meta`).
use super::plan::{Piece, Together};
use super::{EXTENTS_MAX, FILES_MAX, Waiting, is_shared};
use crate::error::Result;
use crate::meta::volume::Volume;
use cairn_types::{ErrorCode, ExtentKind, Layout, MemberState, Scheme};
use cairn_wire::common::Extent;
use std::collections::BTreeSet;

impl Volume {
    /// Makes one chunk of what these files have in chunks of whole shards of a group. How many files were moved, and
    /// how many bytes; nothing where the group is not complete.
    pub async fn compact_shards(&self, pg: u32, indices: &BTreeSet<u32>, inodes: &[u64]) -> Result<(u32, u64)> {
        let view = self.cluster().view();
        let group = view.pgs.get(&pg).filter(|group| group.volume == self.id());
        let whole = |state: MemberState| state == MemberState::Serving;
        let Some(group) = group.filter(|group| group.members.iter().all(|(_, state)| whole(*state))).cloned() else {
            return Ok((0, 0));
        };
        let Scheme::Erasure { k, .. } = group.scheme else { return Ok((0, 0)) };
        let mut shards: Vec<Vec<Piece>> = vec![Vec::new(); usize::from(k)];
        let mut files = Vec::new();
        for inode in inodes.iter().take(FILES_MAX) {
            let Some((file, extents)) = self.shards_of_file(*inode, pg, indices).await? else { continue };
            for extent in extents {
                let Some(ExtentKind::Erasure(stripe)) = ExtentKind::from_flags(extent.flags) else { continue };
                let (shard, at) = stripe.locate(extent.chunk_offset);
                if let Some(pieces) = shards.get_mut(usize::from(shard)) {
                    pieces.push(Piece { file: files.len(), extent, at });
                }
            }
            files.push(file);
        }
        let Some(together) = Together::filled(&shards) else { return Ok((0, 0)) };
        let disks = group.members.iter().take(usize::from(k)).map(|(disk, _)| *disk).collect();
        self.make_chunk(&format!("pg{pg}"), group, disks, &files, together).await
    }

    /// A file as it is, and what of those chunks it alone has.
    async fn shards_of_file(
        &self,
        inode: u64,
        pg: u32,
        indices: &BTreeSet<u32>,
    ) -> Result<Option<(Waiting, Vec<Extent>)>> {
        let found = match self.getattr(inode).await {
            Ok(found) => found,
            Err(error) if matches!(error.code(), Some(ErrorCode::Stale | ErrorCode::NotFound)) => return Ok(None),
            Err(error) => return Err(error),
        };
        let Some(layout) = Layout::from_bits(found.layout).filter(|_| found.overwriter == 0) else { return Ok(None) };
        let file = Waiting { found, stage: layout.stage(), later: layout, copies_now: 0 };
        let (mut extents, mut from) = (Vec::new(), 0);
        while extents.len() < EXTENTS_MAX {
            let page = self.extents(inode, from, u64::MAX - from).await?;
            if page.data_version != found.data_version {
                return Ok(None);
            }
            let is_in = |e: &&Extent| e.pg == pg && indices.contains(&e.index) && !is_shared(e);
            let whole = |e: &&Extent| super::super::is_in_whole_shards(e);
            extents.extend(page.extents.iter().filter(is_in).filter(whole).copied());
            match page.extents.last() {
                Some(last) if !page.end => from = last.file_offset + last.length,
                _ => break,
            }
        }
        Ok((!extents.is_empty()).then_some((file, extents)))
    }
}
