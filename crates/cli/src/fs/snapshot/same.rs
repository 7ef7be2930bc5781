//! [`Compare`]: whether a file, link or directory is the same in two states, as a user sees it: contents and
//! attributes, not places.
//!
//! Contents: files of other sizes differ. Of two of one size the extents are gone through side by side; where both name
//! the same blocks the bytes are the same, since nothing that a snapshot names is overwritten in place. Only where they
//! name others (the file was written, encoded, converted, moved or put back from elsewhere) the bytes themselves are
//! read, up to the first difference.
//!
//! Bounds: a page of extents and [`PART`] bytes of either state.
use crate::error::Result;
use crate::mode::{TYPE_MASK, is_directory, is_regular, is_symlink};
use cairn_client::attributes::Attributes;
use cairn_client::extent::Extent;
use cairn_client::{ClientError, FileReader, Volume};
use cairn_types::{ChunkId, ErrorCode, ExtentKind};
use std::collections::VecDeque;

/// Lower bits of an inode's number, which are its own; above them is the snapshot.
pub const INODE_BITS: u32 = 48;
pub const INNER: u64 = (1 << INODE_BITS) - 1;
/// Bytes that are read of either state at a time.
const PART: u64 = 4 << 20;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Difference {
    pub contents: bool,
    pub attributes: bool,
    /// Of a directory: a change of its entries sets it, too.
    pub mtime: bool,
}

/// See the module.
pub struct Compare {
    volume: Volume,
    /// The time of a change before the older state is before this one.
    since_ns: i64,
    /// Bytes that were compared.
    pub bytes: u64,
}

impl Compare {
    pub fn new(volume: &Volume, since_ns: i64) -> Compare {
        Compare { volume: volume.clone(), since_ns, bytes: 0 }
    }

    /// Of two of one type: an inode in two states, or what has its name now.
    pub async fn difference(&mut self, path: &[u8], old: &Attributes, new: &Attributes) -> Result<Difference> {
        let is_one = old.inode & INNER == new.inode & INNER;
        if is_one && is_untouched(old, new, self.since_ns) {
            return Ok(Difference::default());
        }
        let contents = self.contents(path, old, new, is_one).await?;
        let mut attributes = (old.mode, old.uid, old.gid) != (new.mode, new.uid, new.gid);
        // What a file's bytes are stored as is no difference; what new files of a directory get is one.
        attributes |= is_directory(new.mode) && old.layout != new.layout;
        let mtime = old.mtime_ns != new.mtime_ns;
        attributes |= mtime && !contents && !is_directory(new.mode);
        if !attributes {
            attributes = self.xattrs_differ(old.inode, new.inode).await?;
        }
        Ok(Difference { contents, attributes, mtime })
    }

    async fn contents(&mut self, path: &[u8], old: &Attributes, new: &Attributes, is_one: bool) -> Result<bool> {
        if is_symlink(new.mode) {
            return Ok(!is_one
                && self.volume.readlink_inode(old.inode, path).await?
                    != self.volume.readlink_inode(new.inode, path).await?);
        }
        if !is_regular(new.mode) {
            return Ok(!is_directory(new.mode) && old.rdev != new.rdev);
        }
        if old.size != new.size {
            return Ok(true);
        }
        if is_one && old.data_version == new.data_version && new.volatile_of == 0 {
            return Ok(false);
        }
        match self.bytes_differ(path, old, new).await {
            // It was changed or removed while it was read.
            Err(error) if is_changed(&error) => Ok(true),
            differ => Ok(differ?),
        }
    }

    async fn bytes_differ(
        &mut self,
        path: &[u8],
        old: &Attributes,
        new: &Attributes,
    ) -> std::result::Result<bool, ClientError> {
        let volume = self.volume.clone();
        let (mut then, mut now) = (Places::new(&volume, old), Places::new(&volume, new));
        let mut at = 0;
        while at < old.size {
            let ((one, one_end), (other, other_end)) = (then.at(at).await?, now.at(at).await?);
            let end = one_end.min(other_end).min(old.size);
            if one != other {
                let (mut from, end) = (at, end);
                while from < end {
                    let to = end.min(from + PART);
                    self.bytes += to - from;
                    if part(&volume, path, old, from, to).await? != part(&volume, path, new, from, to).await? {
                        return Ok(true);
                    }
                    from = to;
                }
            }
            at = end;
        }
        Ok(false)
    }

    async fn xattrs_differ(&self, old: u64, new: u64) -> Result<bool> {
        let names = self.volume.list_xattr(old).await?;
        let (mut sorted, mut others) = (names.clone(), self.volume.list_xattr(new).await?);
        sorted.sort_unstable();
        others.sort_unstable();
        if sorted != others {
            return Ok(true);
        }
        for name in names {
            let there = match self.volume.get_xattr(new, &name).await {
                Err(error) if error.code() == Some(ErrorCode::NoAttribute) => return Ok(true),
                value => value?,
            };
            if self.volume.get_xattr(old, &name).await? != there {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Nothing that is seen of one inode changed. Encoding, converting, moving and cloning leave the time of the last
/// change as it is.
pub fn is_untouched(old: &Attributes, new: &Attributes, since_ns: i64) -> bool {
    old.ctime_ns == new.ctime_ns && (old.generation == new.generation || new.ctime_ns < since_ns)
}

/// Two that can be compared.
pub fn is_one_type(old: &Attributes, new: &Attributes) -> bool {
    old.mode & TYPE_MASK == new.mode & TYPE_MASK
}

fn is_changed(error: &ClientError) -> bool {
    error.is_not_found() || error.code() == Some(ErrorCode::Stale) || matches!(error, ClientError::Changed { .. })
}

/// Where bytes lie: chunk, kind, and place in it; `None`: a hole.
type Place = Option<(ChunkId, Option<ExtentKind>, u64)>;

/// Extents of a file, asked for in their order.
struct Places<'a> {
    volume: &'a Volume,
    inode: u64,
    page: VecDeque<Extent>,
    /// Behind it no extents are known yet.
    known_to: u64,
}

impl<'a> Places<'a> {
    fn new(volume: &'a Volume, of: &Attributes) -> Places<'a> {
        Places { volume, inode: of.inode, page: VecDeque::new(), known_to: 0 }
    }

    /// The place of a byte, and where what lies together with it ends. Each asks for a byte behind the one before.
    async fn at(&mut self, at: u64) -> std::result::Result<(Place, u64), ClientError> {
        while self.page.front().is_some_and(|extent| extent.file_end() <= at) {
            self.page.pop_front();
        }
        if self.page.is_empty() && self.known_to != u64::MAX {
            let found = self.volume.extents_page(self.inode, at, u64::MAX - at).await?;
            let last = found.extents.last().map(Extent::file_end);
            self.known_to = if found.end { u64::MAX } else { last.unwrap_or(u64::MAX) };
            self.page = found.extents.into();
        }
        Ok(match self.page.front() {
            None => (None, u64::MAX),
            Some(next) if next.file_offset > at => (None, next.file_offset),
            Some(extent) => {
                let place = extent.chunk_offset + (at - extent.file_offset);
                (Some((extent.chunk, extent.kind, place)), extent.file_end())
            }
        })
    }
}

/// Some bytes of a state.
async fn part(
    volume: &Volume,
    path: &[u8],
    of: &Attributes,
    from: u64,
    to: u64,
) -> std::result::Result<Vec<u8>, ClientError> {
    let mut reader = FileReader::new(volume, *of, &String::from_utf8_lossy(path), from, to - from);
    let mut bytes = Vec::with_capacity((to - from) as usize);
    while let Some(piece) = reader.next().await? {
        bytes.extend_from_slice(&piece.data);
    }
    Ok(bytes)
}
