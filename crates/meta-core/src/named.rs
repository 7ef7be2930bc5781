//! What a version of the namespace names on data nodes, in one walk that can be done in steps: blocks of extents, of
//! every column of a stripe set, and of free records (which are being freed already, so nobody else has to).
//!
//! Memory: none beside the entry at hand. Not here: what is concluded from it ([`crate::Suspects`]).
use crate::check::Violation;
use crate::encoding::{Extent, FreeRecord};
use crate::key::{self, Kind};
use crate::namespace::Namespace;
use crate::snapshot::NamespaceSnapshot;
use crate::stripe_set::{columns_in, set_of};
use cairn_types::ExtentKind;

/// Blocks of a chunk that something names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Named {
    /// The file; 0: a free record.
    pub inode: u64,
    /// Where in the file the extent begins.
    pub file_offset: u64,
    pub pg: u32,
    pub index: u32,
    /// First block in the members' files of the chunk.
    pub first_block: u64,
    /// One past the last.
    pub end_block: u64,
    /// The extent's bytes lie there as they are in the file, in all copies: no row of shards, no column of a stripe set.
    pub is_plain: bool,
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
        let same = match set_of(&extent) {
            None => (extent.pg, extent.index) == (named.pg, named.index),
            Some((pg, index)) => columns_in(&self.tree, named.inode, pg, index)
                .is_ok_and(|columns| columns.contains(&(named.pg, named.index))),
        };
        same && first < named.end_block && named.first_block < end
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
        Some((0, Kind::FreeRecord, suffix)) => {
            let record = key::number(suffix).and_then(|id| FreeRecord::decode(id, value)).ok_or_else(|| damaged(0))?;
            f(&Named {
                inode: 0,
                file_offset: 0,
                pg: record.pg,
                index: record.index,
                first_block: record.first_block,
                end_block: record.first_block + record.blocks,
                is_plain: false,
            });
            Ok(())
        }
        Some(_) => Ok(()),
        None => Err(damaged(0)),
    }
}

fn name_extent(snapshot: &NamespaceSnapshot, inode: u64, extent: &Extent, f: &mut impl FnMut(&Named)) -> Option<()> {
    let (first_block, end_block) = extent.blocks();
    let is_plain = extent.kind == ExtentKind::Plain;
    let mut name = |pg, index| {
        f(&Named { inode, file_offset: extent.file_offset, pg, index, first_block, end_block, is_plain });
    };
    match set_of(extent) {
        None => name(extent.pg, extent.index),
        Some((pg, index)) => {
            let columns = columns_in(&snapshot.tree, inode, pg, index).ok().filter(|columns| !columns.is_empty())?;
            columns.into_iter().for_each(|(pg, index)| name(pg, index));
        }
    }
    Some(())
}
