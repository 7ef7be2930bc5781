//! Compaction of whole shards: what files have in chunks that are mostly dead becomes a new chunk of the same group.
//!
//! Each disk appends to its new shard what it has in the old ones, so no data is sent; parity is computed here. Shards
//! are filled up with zeros, as long as three quarters of the new chunk are data ([`Together::filled`]).
//! Invariants are those of [`super::shards`] and of moves. Bounds: [`FILES_MAX`] files, one chunk a call. Not here:
//! which chunks (`meta`).
use super::plan::{Piece, SHARD_BLOCKS_MAX, Together};
use super::{EXTENTS_MAX, FILES_AT_ONCE, FILES_MAX, Waiting, is_shared};
use crate::error::Result;
use crate::meta::volume::Volume;
use cairn_types::{ErrorCode, ExtentKind, Layout, MemberState, Scheme};
use cairn_wire::common::Extent;
use futures_util::stream::{self, StreamExt};
use std::collections::BTreeSet;

/// What an extent has in each shard: extents that go on in the next one are joined in the metadata.
fn by_shard(file: usize, extent: Extent) -> Vec<(usize, Piece)> {
    let Some(ExtentKind::Erasure(stripe)) = ExtentKind::from_flags(extent.flags) else { return Vec::new() };
    let (mut rest, mut pieces) = (extent, Vec::new());
    while rest.length > 0 {
        let (shard, at) = stripe.locate(rest.chunk_offset);
        let length = rest.length.min(stripe.unit() - at % stripe.unit());
        pieces.push((usize::from(shard), Piece { file, extent: Extent { length, ..rest }, at }));
        rest.file_offset += length;
        rest.chunk_offset += length;
        rest.length -= length;
    }
    pieces
}

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
        let look = |inode: &u64| self.shards_of_file(*inode, pg, indices);
        let mut found = stream::iter(inodes.iter().take(FILES_MAX)).map(look).buffered(FILES_AT_ONCE);
        while let Some(of_file) = found.next().await {
            let Some((file, extents)) = of_file? else { continue };
            for (shard, piece) in extents.into_iter().flat_map(|extent| by_shard(files.len(), extent)) {
                if let Some(pieces) = shards.get_mut(shard) {
                    pieces.push(piece);
                }
            }
            files.push(file);
            if shards.iter().all(|pieces| pieces.iter().map(Piece::blocks).sum::<u64>() >= SHARD_BLOCKS_MAX) {
                break;
            }
        }
        drop(found);
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

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_types::{Stripe, WHOLE_SHARD};

    /// A file that goes on from one shard to the next would be read beyond its end, and nothing be moved with it.
    #[test]
    fn an_extent_over_two_shards_has_a_piece_in_each() {
        let stripe = Stripe::new(3, WHOLE_SHARD).expect("valid");
        let flags = ExtentKind::Erasure(stripe).to_flags();
        let chunk_offset = stripe.logical(1, WHOLE_SHARD - 8192);
        let extent = Extent { file_offset: 4096, length: 10_000, pg: 9, index: 7, chunk_offset, flags };
        let pieces = by_shard(5, extent);
        let told: Vec<_> =
            pieces.iter().map(|(shard, p)| (*shard, p.at, p.extent.file_offset, p.extent.length)).collect();
        assert_eq!(told, [(1, WHOLE_SHARD - 8192, 4096, 8192), (2, 0, 4096 + 8192, 1808)]);
        assert_eq!(pieces[1].1.extent.chunk_offset, stripe.logical(2, 0));
        assert_eq!(by_shard(5, Extent { flags: 0, ..extent }), []);
    }
}
