//! What a version of the namespace names on data nodes, in one walk that can be done in steps: blocks of extents, of
//! every column of a stripe set, of free records (which are being freed already, so nobody else has to), what snapshots
//! keep, and all of chunks of open appends, whatever of them is there: the file may get it.
//!
//! Memory: none beside the entry at hand. Not here: what is concluded from it ([`crate::Suspects`]).
use crate::check::Violation;
use crate::encoding::{AppendRecord, Extent, FreeRecord, KeptRecord};
use crate::key::{self, Kind};
use crate::namespace::Namespace;
use crate::snapshot::NamespaceSnapshot;
use crate::stripe_set::{columns_in, set_of};
use crate::whole_shards::{in_files, shard_of};
use cairn_types::{BLOCK_SIZE, ExtentKind};

/// Blocks of a chunk that something names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Named {
    /// The file; 0: a free record, what a snapshot keeps, or the chunk of an open append.
    pub inode: u64,
    /// Where in the file the extent begins.
    pub file_offset: u64,
    pub pg: u32,
    pub index: u32,
    /// First block in the members' files of the chunk.
    pub first_block: u64,
    /// One past the last.
    pub end_block: u64,
    /// One past the last of them that has bytes of the extent. Blocks are named by whole rows, but a column of a stripe
    /// set keeps no padding: in the last row it may have less, or nothing ([`first_block`](Self::first_block) then).
    pub held_end: u64,
    /// The extent's bytes lie there as they are in the file, in all copies: no row of shards, no column of a stripe
    /// set.
    pub is_plain: bool,
    /// Of a chunk of whole shards: the shard in which they lie. Other files may have the same blocks of the others.
    pub whole_shard: Option<u32>,
}

/// A place in the walk.
#[derive(Clone, Debug, Default)]
pub struct NamedScan {
    from: Vec<u8>,
}

impl NamedScan {
    /// At the beginning.
    pub fn new() -> Self {
        Self::default()
    }

    /// Gives what up to `entries` more entries name to `f`. False when there are no more. An entry that cannot be read
    /// ends the walk: nothing can be concluded then.
    pub fn step(
        &mut self,
        snapshot: &NamespaceSnapshot,
        entries: usize,
        mut f: impl FnMut(&Named),
    ) -> Result<bool, Violation> {
        let mut cursor = snapshot.tree.cursor();
        let mut found = cursor.seek(&self.from);
        for _ in 0..entries {
            if !found {
                return Ok(false);
            }
            visit(snapshot, cursor.key(), cursor.value(), &mut f)?;
            found = cursor.advance();
        }
        self.from.clear();
        self.from.extend_from_slice(cursor.key());
        Ok(found)
    }
}

impl Namespace {
    /// Whether the file still names these blocks at that place.
    pub fn still_names(&self, named: &Named) -> bool {
        let key = key::extent(named.inode, named.file_offset);
        let extent = self.tree.get(key.as_bytes()).and_then(|value| Extent::decode(named.file_offset, value));
        let Some(extent) = extent else { return false };
        let (first, end) = extent.blocks();
        let touches = in_files(first, end).any(|(first, end)| first < named.end_block && named.first_block < end);
        let same = match set_of(&extent) {
            None => (extent.pg, extent.index) == (named.pg, named.index),
            Some((pg, index)) => {
                self.set_columns(named.inode, pg, index).is_ok_and(|columns| columns.contains(&(named.pg, named.index)))
            }
        };
        same && touches
    }
}

fn visit(
    snapshot: &NamespaceSnapshot,
    bytes: &[u8],
    value: &[u8],
    f: &mut impl FnMut(&Named),
) -> Result<(), Violation> {
    let damaged = |inode| Violation { inode, rule: format!("entry {bytes:?} cannot be read") };
    match key::split(bytes) {
        Some((inode, Kind::Extent, suffix)) => {
            let offset = key::file_offset(suffix).ok_or_else(|| damaged(inode))?;
            let extent = Extent::decode(offset, value).ok_or_else(|| damaged(inode))?;
            name_extent(snapshot, inode, &extent, f).ok_or_else(|| damaged(inode))
        }
        Some((inode, Kind::Append, _)) => {
            let append = AppendRecord::decode(value).ok_or_else(|| damaged(inode))?;
            if append.open {
                let (pg, index, end_block) = (append.pg, append.index, cairn_types::CHUNK_BLOCKS_MAX as u64);
                f(&Named {
                    inode: 0,
                    file_offset: 0,
                    pg,
                    index,
                    first_block: 0,
                    end_block,
                    held_end: end_block,
                    is_plain: false,
                    whole_shard: None,
                });
            }
            Ok(())
        }
        Some((0, Kind::FreeRecord, suffix)) => {
            let record = key::number(suffix).and_then(|id| FreeRecord::decode(id, value)).ok_or_else(|| damaged(0))?;
            name_blocks((record.pg, record.index), (record.first_block, record.blocks), f);
            Ok(())
        }
        Some((0, Kind::Kept, _)) => {
            let record = KeptRecord::decode(value).ok_or_else(|| damaged(0))?;
            name_blocks((record.pg, record.index), (record.first_block, record.blocks), f);
            Ok(())
        }
        Some(_) => Ok(()),
        None => Err(damaged(0)),
    }
}

/// Blocks that no extent names: they are kept, or freed already.
fn name_blocks((pg, index): (u32, u32), (first, blocks): (u64, u64), f: &mut impl FnMut(&Named)) {
    for (first_block, end_block) in in_files(first, first + blocks) {
        let (inode, file_offset, held_end) = (0, 0, end_block);
        let (is_plain, whole_shard) = (false, None);
        f(&Named { inode, file_offset, pg, index, first_block, end_block, held_end, is_plain, whole_shard });
    }
}

fn name_extent(snapshot: &NamespaceSnapshot, inode: u64, extent: &Extent, f: &mut impl FnMut(&Named)) -> Option<()> {
    let (first_block, end_block) = extent.blocks();
    let (file_offset, is_plain) = (extent.file_offset, extent.kind == ExtentKind::Plain);
    let whole_shard = None;
    let mut name = |pg, index, held_end| {
        f(&Named { inode, file_offset, pg, index, first_block, end_block, held_end, is_plain, whole_shard });
    };
    match set_of(extent) {
        None if extent.is_in_whole_shard() => {
            let first_shard = shard_of(first_block);
            for (shard, (first_block, end_block)) in (first_shard..).zip(in_files(first_block, end_block)) {
                let (pg, index, held_end, whole_shard) = (extent.pg, extent.index, end_block, Some(shard));
                f(&Named { inode, file_offset, pg, index, first_block, end_block, held_end, is_plain, whole_shard });
            }
        }
        None => name(extent.pg, extent.index, end_block),
        Some((pg, index)) => {
            let columns = columns_in(&snapshot.tree, inode, pg, index).ok().filter(|columns| !columns.is_empty())?;
            for (column, (pg, index)) in columns.into_iter().enumerate() {
                name(pg, index, held_end(extent, column).max(first_block));
            }
        }
    }
    Some(())
}

/// One past the last block of a column that has bytes of an extent of a stripe set; 0 if none has.
fn held_end(extent: &Extent, column: usize) -> u64 {
    let ExtentKind::Set(stripe) = extent.kind else { return u64::MAX };
    let column = u16::try_from(column).expect("a stripe has few columns");
    let part = stripe.part(column, extent.chunk_offset, extent.chunk_end());
    part.map_or(0, |part| (part.offset + part.length).div_ceil(BLOCK_SIZE as u64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_types::Stripe;

    /// The check of a volume would call whole files lost: of the last row of a stripe set only the columns that have
    /// bytes of it keep blocks.
    #[test]
    fn columns_without_bytes_of_the_last_row_hold_less() {
        let layout: cairn_types::Layout = "r2x3/64k".parse().expect("a layout");
        let stripe: Stripe = layout.stripe().expect("it is striped");
        let unit = 64 << 10;
        let extent = |length| Extent {
            file_offset: 0,
            length,
            pg: 1,
            index: 0,
            chunk_offset: 0,
            kind: ExtentKind::Set(stripe),
            shared: false,
            birth: 0,
        };
        let held = |length| (0..3).map(|column| held_end(&extent(length), column)).collect::<Vec<u64>>();
        assert_eq!(held(3 * unit), [16, 16, 16]);
        assert_eq!(held(3 * unit + 1), [17, 16, 16]);
        assert_eq!(held(unit + 5000), [16, 2, 0]);
        assert_eq!(extent(unit + 5000).blocks(), (0, 16), "it is named by whole rows");
    }
}
