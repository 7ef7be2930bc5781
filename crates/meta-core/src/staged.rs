//! Files with a later scheme (`r3>rs-6-3`): their stage follows what is done to them, and those that wait are listed.
//!
//! The stage is in the layout of the file (`cairn_types::stage`). A change of its contents brings it back to waiting; a
//! publish that names a layout, on top of the version that was read, sets it. Who encodes, and when, is not here
//! (`meta`): it asks for the list, so that what does not wait costs nothing.
//!
//! Invariants: from [`STAGE_LEVEL`] on every file that is stored anew is in the list if and only if it waits; of a file
//! of which nothing is stored the stage is the first one. A file that was stored before that level comes into the list
//! when it is written.
use crate::encoding::Inode;
use crate::key::{self, Kind};
use crate::namespace::Namespace;
use cairn_types::{ExtentKind, Layout, Stage, StageAfter};

/// Feature level from which on stages are noted.
pub(crate) const STAGE_LEVEL: u16 = 12;
const LISTED: [u8; 1] = [0x10];
/// Extents of a file that are looked at, and where none of them is copies, up to the first that is.
const EXTENTS_LOOKED_AT: usize = 64;
const EXTENTS_TO_COPIES: usize = 8192;
/// Byte of a layout with its later scheme, and its stage.
const LATER: u64 = 0xff << 32;

/// A file that waits to be encoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StagedFile {
    pub inode: u64,
    pub bytes: u64,
    /// Those of them that are copies, as far as its first extents tell: of one that has many, all behind these.
    pub copies: u64,
    /// Of those that are copies: what clones have as well.
    pub shared: u64,
    pub stage: Stage,
    pub after: StageAfter,
    /// Nanoseconds since 1970 of the last change, of whatever.
    pub changed: u64,
    /// All of it.
    pub durable: bool,
    /// A placement group in which it has bytes: the first that are copies, or rows where its beginning has no copies.
    pub pg: u32,
}

impl StagedFile {
    /// Whoever encodes would find that most of it is to be left to its clones.
    pub const fn is_mostly_shared(&self) -> bool {
        self.shared > self.bytes / 2 && !self.stage.is_encoded()
    }
}

/// Whether a file is to be looked at when its time has come.
pub(crate) fn waits_for_encoding(inode: &Inode) -> bool {
    let waits = || Layout::from_bits(inode.layout).is_some_and(|layout| layout.stage().waits());
    inode.has_later_scheme() && inode.is_regular() && inode.stored > 0 && waits()
}

impl Inode {
    #[inline]
    pub(crate) const fn has_later_scheme(&self) -> bool {
        self.layout & LATER != 0
    }

    /// Its contents were changed.
    #[inline]
    pub(crate) fn note_written(&mut self) {
        if self.layout & Layout::STAGE_BITS != 0
            && let Some(layout) = Layout::from_bits(self.layout)
        {
            self.layout = layout.in_stage(layout.stage().when_written()).to_bits();
        }
    }

    /// It has other bytes, or none.
    #[inline]
    pub(crate) fn note_stored(&mut self) {
        if self.stored == 0 {
            // `Stage::Copies` is 0.
            self.layout &= !Layout::STAGE_BITS;
        }
    }

    /// Whether bytes of the other file would be kept in the same way in this one.
    pub(crate) fn holds_alike(&self, other: &Inode) -> bool {
        let encoded = |inode: &Inode| Layout::from_bits(inode.layout).is_some_and(|l| l.stage().is_encoded());
        (self.layout ^ other.layout) & !Layout::STAGE_BITS == 0 && encoded(self) == encoded(other)
    }
}

impl Namespace {
    pub(crate) fn count_staged(&self) -> u64 {
        let prefix = key::prefix(0, Kind::Staged);
        let mut range = self.tree.prefix(prefix.as_bytes());
        let mut count = 0;
        while range.next().is_some() {
            count += 1;
        }
        count
    }

    /// A file with a later scheme is stored. What is another partition's is listed there.
    pub(crate) fn list_if_waiting(&mut self, id: u64, inode: &Inode) {
        if self.level < STAGE_LEVEL || self.is_foreign(id) {
            return;
        }
        if waits_for_encoding(inode) {
            self.staged += u64::from(self.tree.put(key::staged(id).as_bytes(), &LISTED));
        } else {
            self.forget_staged(id);
        }
    }

    /// The file does not wait any more, or goes as a whole.
    pub(crate) fn forget_staged(&mut self, id: u64) {
        if self.staged > 0 {
            self.staged -= u64::from(self.tree.remove(key::staged(id).as_bytes()));
        }
    }

    /// A publish names a layout.
    pub(crate) fn set_layout(&mut self, id: u64, inode: &mut Inode, bits: u64) {
        inode.layout = bits;
        inode.note_stored();
        if !inode.has_later_scheme() {
            self.forget_staged(id);
        }
    }

    /// Files that wait to be encoded.
    pub fn staged_count(&self) -> u64 {
        self.staged
    }

    /// Of up to `max` files that are listed behind `after`, those with a name; and the last that was looked at, `None`
    /// at the end of the list.
    pub fn staged_files(&self, after: u64, max: usize) -> (Vec<StagedFile>, Option<u64>) {
        let prefix = key::prefix(0, Kind::Staged);
        let (mut files, mut looked, mut last) = (Vec::new(), 0, after);
        if self.staged == 0 {
            return (files, None);
        }
        let mut cursor = self.tree.cursor();
        let mut found = cursor.seek(key::staged(after.saturating_add(1)).as_bytes());
        while found {
            let Some(id) = cursor.key().strip_prefix(prefix.as_bytes()).and_then(key::number) else { break };
            if looked == max {
                return (files, Some(last));
            }
            (looked, last) = (looked + 1, id);
            files.extend(self.staged_file(id));
            found = cursor.advance();
        }
        (files, None)
    }

    /// The file, if it waits and has a name.
    pub fn staged_file(&self, id: u64) -> Option<StagedFile> {
        let inode = self.stored_inode(id).ok().filter(|inode| inode.nlink > 0 && waits_for_encoding(inode))?;
        let layout = Layout::from_bits(inode.layout)?;
        let (mut first, mut of_copies, mut copies, mut shared, mut seen) = (0, None, 0, 0, 0);
        let mut looked_at = 0;
        self.visit_extents(id, 0, u64::MAX, |extent| {
            if seen == 0 {
                first = extent.pg;
            }
            if extent.kind == ExtentKind::Plain {
                of_copies = of_copies.or(Some(extent.pg));
                copies += extent.length;
                let parts = self.shared_now(extent);
                shared += parts.iter().filter(|part| part.shared).map(|part| part.length).sum::<u64>();
            }
            (seen, looked_at) = (seen + 1, looked_at + extent.length);
            seen < EXTENTS_LOOKED_AT || of_copies.is_none() && seen < EXTENTS_TO_COPIES
        })
        .ok()?;
        if of_copies.is_some() && seen >= EXTENTS_LOOKED_AT {
            copies += inode.stored.saturating_sub(looked_at);
        }
        let pg = of_copies.unwrap_or(first);
        Some(StagedFile {
            inode: id,
            bytes: inode.stored,
            copies,
            shared,
            stage: layout.stage(),
            after: layout.stage_after(),
            changed: inode.ctime.max(inode.mtime.min(self.time)),
            durable: inode.volatile.is_none(),
            pg,
        })
    }
}
