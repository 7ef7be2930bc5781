//! Compaction of whole shards: what files have in chunks that are mostly dead becomes a new chunk of the same group.
//!
//! Each disk appends to its new shard what it has in the old ones, so no data is sent; parity is computed here. Shards
//! are filled up with zeros, as long as three quarters of the new chunk are data ([`Together::filled`]). Where shards
//! are too uneven for that, what fills a row is written anew by file, as when files are encoded by themselves.
//! Invariants are those of [`super::shards`] and of moves. Bounds: [`FILES_MAX`] files, and one chunk or
//! [`BY_FILE_BYTES`] a call. Not here: which chunks (`meta`).
use super::pace::{Best, Pace};
use super::plan::{Piece, SHARD_BLOCKS_MAX, Together};
use super::{EXTENTS_MAX, FILES_AT_ONCE, FILES_MAX, NamedFiles, Waiting, is_shared, may_be_later};
use crate::error::Result;
use crate::meta::volume::Volume;
use crate::moving::Run;
use crate::stage::fills_a_row;
use cairn_types::{ErrorCode, ExtentKind, Layout, MemberState, Scheme, Stage};
use cairn_wire::common::Extent;
use futures_util::stream::{self, StreamExt};
use std::collections::BTreeSet;

/// Bytes that are written anew by file in one call.
const BY_FILE_BYTES: u64 = 256 << 20;
const BY_FILE_AT_ONCE: usize = 4;

/// Whether a chunk gets about all of what there is, so that little stays in the old ones.
fn is_most(together: &Together, shards: &[Vec<Piece>]) -> bool {
    let blocks = |pieces: &Vec<Piece>| pieces.iter().map(Piece::blocks).sum::<u64>();
    let longest = shards.iter().map(blocks).max().unwrap_or(0).min(SHARD_BLOCKS_MAX);
    together.blocks * 2 >= longest
}

/// Runs of a file, of these extents of it, that fill rows of their own.
fn rows_of(later: Layout, extents: impl IntoIterator<Item = Extent>) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for extent in extents {
        if !runs.last_mut().is_some_and(|run| run.push(extent)) {
            let mut run = Run::default();
            run.push(extent);
            runs.push(run);
        }
    }
    runs.retain(|run| fills_a_row(later, run));
    runs
}

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
    /// Makes one chunk of what these files have in chunks of whole shards of a group, or writes it anew by file. How
    /// many files were moved, and how many bytes; nothing where the group is not complete.
    pub async fn compact_shards(&self, pg: u32, indices: &BTreeSet<u32>, inodes: &[u64]) -> Result<(u32, u64)> {
        let view = self.cluster().view();
        let group = view.pgs.get(&pg).filter(|group| group.volume == self.id());
        let whole = |state: MemberState| state == MemberState::Serving;
        let Some(group) = group.filter(|group| group.members.iter().all(|(_, state)| whole(*state))).cloned() else {
            return Ok((0, 0));
        };
        let Scheme::Erasure { k, .. } = group.scheme else { return Ok((0, 0)) };
        let mut shards: Vec<Vec<Piece>> = vec![Vec::new(); usize::from(k)];
        let (mut files, mut rows) = (Vec::new(), Vec::new());
        let look = |inode: &u64| self.shards_of_file(*inode, pg, indices);
        let mut found = stream::iter(inodes.iter().take(FILES_MAX)).map(look).buffered(FILES_AT_ONCE);
        while let Some(of_file) = found.next().await {
            let Some((file, extents)) = of_file? else { continue };
            rows.push(rows_of(file.later, extents.iter().copied()));
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
        let together = Together::filled(&shards);
        if !together.as_ref().is_some_and(|together| is_most(together, &shards)) {
            let moved = self.move_by_file(&files, &rows).await?;
            if moved.bytes > 0 {
                return Ok((moved.files, moved.bytes));
            }
        }
        let Some(together) = together else { return Ok((0, 0)) };
        let disks = group.members.iter().take(usize::from(k)).map(|(disk, _)| *disk).collect();
        let best = self.cluster().shared.of::<Best>();
        // Who asks for it rests behind each call.
        let pace = Pace::new(&best, &*self.cluster().clock, false);
        let named = self.make_chunk(&format!("pg{pg}"), group, disks, &files, (together, &pace)).await?;
        Ok((named.files, named.bytes))
    }

    /// Writes runs of files anew, as rows.
    async fn move_by_file(&self, files: &[Waiting], rows: &[Vec<Run>]) -> Result<NamedFiles> {
        let mut all = 0;
        let some = files.iter().zip(rows).filter(|(_, runs)| !runs.is_empty()).take_while(|(_, runs)| {
            let before = all;
            all += runs.iter().map(|run| run.bytes).sum::<u64>();
            before < BY_FILE_BYTES
        });
        let one = |(file, runs): (&Waiting, &Vec<Run>)| {
            let (found, later, runs) = (file.found, file.later, runs.clone());
            async move { self.move_checked(&found, later, &runs, true).await }
        };
        let mut moves = stream::iter(some.map(one).collect::<Vec<_>>()).buffer_unordered(BY_FILE_AT_ONCE);
        let (mut moved, mut failed) = (NamedFiles::default(), None);
        while let Some(outcome) = moves.next().await {
            match outcome {
                Ok(bytes) => (moved.files, moved.bytes) = (moved.files + 1, moved.bytes + bytes),
                Err(error) if may_be_later(&error) => {}
                Err(error) => failed = Some(error),
            }
        }
        failed.filter(|_| moved.bytes == 0).map_or(Ok(moved), Err)
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
        let later = layout.in_stage(Stage::Encoded);
        let file = Waiting { found, stage: layout.stage(), later, copies_now: 0 };
        let (mut extents, mut from) = (Vec::new(), 0);
        while extents.len() < EXTENTS_MAX {
            let page = self.extents_to_move(inode, from).await?;
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
