//! How fragmented files are: *seams*, places where two extents of a file meet that are not one behind the other in one
//! chunk. A hole makes no seam: what it separates cannot be joined.
//!
//! Two ways to files that have many: the namespace says which ones an operation gave extents to (no state: whoever does
//! not listen misses it), and a version of it can be walked through in steps. Memory: none beside the file at hand and
//! [`GROWN_MAX`] notes. Not here: how many are too many, and what is done about it (`meta`, and `client` on data
//! nodes).
use crate::check::Violation;
use crate::encoding::Extent;
use crate::key::{self, Kind};
use crate::namespace::Namespace;
use crate::snapshot::NamespaceSnapshot;

/// Notes that are kept until somebody takes them. Operations are applied in small batches, so more never wait.
const GROWN_MAX: usize = 1024;

/// How the extents of a file lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FileFragments {
    pub inode: u64,
    pub extents: u64,
    /// Extents that begin where another one ends.
    pub seams: u64,
    /// Bytes that extents cover.
    pub bytes: u64,
    /// Placement group of the first one.
    pub pg: u32,
}

/// A place in the walk through all files, or through one.
#[derive(Clone, Debug, Default)]
pub struct FragmentScan {
    from: Vec<u8>,
    /// Where the walk ends; empty: nowhere.
    to: Vec<u8>,
    file: FileFragments,
    /// Where the last extent of the file ended.
    end: u64,
}

impl FragmentScan {
    /// All files, from the beginning.
    pub fn all() -> Self {
        Self::default()
    }

    /// One file.
    pub fn of(inode: u64) -> Self {
        let from = key::prefix(inode, Kind::Extent).as_bytes().to_vec();
        let to = key::prefix(inode, Kind::StripeSet).as_bytes().to_vec();
        Self { from, to, ..Self::default() }
    }

    /// Looks at up to `entries` more entries and gives each file that has extents to `f` when it has been seen whole.
    /// False when there are no more. An entry that cannot be read ends the walk.
    pub fn step(
        &mut self,
        snapshot: &NamespaceSnapshot,
        entries: usize,
        mut f: impl FnMut(&FileFragments),
    ) -> Result<bool, Violation> {
        let mut cursor = snapshot.tree.cursor();
        let mut found = cursor.seek(&self.from);
        for _ in 0..entries {
            if !found || (!self.to.is_empty() && cursor.key() >= self.to.as_slice()) {
                self.finish(&mut f);
                return Ok(false);
            }
            let damaged = |inode, bytes: &[u8]| Violation { inode, rule: format!("entry {bytes:?} cannot be read") };
            match key::split(cursor.key()) {
                Some((inode, Kind::Extent, suffix)) => {
                    let extent = key::file_offset(suffix).and_then(|offset| Extent::decode(offset, cursor.value()));
                    let extent = extent.ok_or_else(|| damaged(inode, cursor.key()))?;
                    if self.file.inode != inode {
                        self.finish(&mut f);
                        (self.file.inode, self.file.pg) = (inode, extent.pg);
                    }
                    self.file.seams += u64::from(self.file.extents > 0 && self.end == extent.file_offset);
                    self.file.extents += 1;
                    self.file.bytes += extent.length;
                    self.end = extent.end();
                }
                Some(_) => {}
                None => return Err(damaged(0, cursor.key())),
            }
            found = cursor.advance();
        }
        if found {
            self.from.clear();
            self.from.extend_from_slice(cursor.key());
            return Ok(true);
        }
        self.finish(&mut f);
        Ok(false)
    }

    fn finish(&mut self, f: &mut impl FnMut(&FileFragments)) {
        let file = std::mem::take(&mut self.file);
        if file.extents > 0 {
            f(&file);
        }
    }
}

impl Namespace {
    /// An operation left a file with `after` extents where it had `before`.
    pub(crate) fn note_extents(&mut self, inode: u64, before: usize, after: usize) {
        if after > before && self.grown.len() < GROWN_MAX {
            self.grown.push((inode, (after - before) as u64));
        }
    }

    /// Files that got extents since the last call, and how many more than they had.
    pub fn take_grown(&mut self) -> Vec<(u64, u64)> {
        std::mem::take(&mut self.grown)
    }
}
