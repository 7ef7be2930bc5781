//! Operations of a volume on (inode of the directory, name) instead of a path: one call each, no resolution.
//!
//! For callers that walk trees and know the directory's inode. `shown_as` is the path in errors. The operations by path
//! are in `volume`.
use super::elsewhere::{LOOKUPS_MAX, NO_INODE};
use super::totals::AT_ONCE;
use super::{Volume, attributes, shown};
use crate::attributes::Attributes;
use crate::changes::NewFile;
use crate::error::{ClientError, Result};
use crate::file_writer::{FileWriter, WriteOptions};
use cairn_types::ErrorCode;
use cairn_wire::Opcode;
use cairn_wire::common::Empty;
use cairn_wire::meta::*;
use futures_util::stream::{self, StreamExt as _};
use std::collections::BTreeMap;

/// Inodes of one release.
const RELEASES_MAX: usize = 256;

/// What was made in a directory.
pub struct MadeAt {
    pub attributes: Attributes,
    /// The directory afterwards, if the server tells it.
    pub directory: Option<Attributes>,
}

/// Whether no shard has a part of what is said of a directory.
fn is_whole(directory: &Attributes) -> bool {
    directory.shards == 0 && directory.shard_of == 0
}

impl MadeAt {
    pub(super) fn of(answer: AttributesResponse) -> Result<Self> {
        let directory = answer.directory.map(Attributes::of_wire).filter(is_whole);
        Ok(Self { attributes: attributes(answer)?, directory })
    }
}

impl Volume {
    /// Attributes of an entry; a symbolic link is not followed.
    pub async fn lookup(&self, parent: u64, name: &[u8], shown_as: &[u8]) -> Result<Attributes> {
        let what = shown(shown_as);
        for _ in 0..LOOKUPS_MAX {
            let mut found = self.look_up(parent, name, &what).await;
            if let Some(shard) = self.caller.sent_on(&found, parent, name).await? {
                found = self.look_up(shard, name, &what).await;
            }
            let found = attributes(found?)?;
            if let Some(found) = self.whole(&what, found).await? {
                return Ok(found);
            }
        }
        Err(ClientError::remote(&what, ErrorCode::Stale, NO_INODE))
    }
    async fn look_up(&self, parent: u64, name: &[u8], what: &str) -> Result<AttributesResponse> {
        let request = |header| LookupRequest { header: Some(header), parent, name: name.to_vec() };
        self.caller.read_by(what, parent, Opcode::Lookup, request).await
    }
    /// Makes a directory. `layout` 0: that of its parent.
    pub async fn mkdir_at(
        &self,
        parent: u64,
        name: &[u8],
        shown_as: &[u8],
        mode: u32,
        layout: u64,
    ) -> Result<Attributes> {
        let request = MkdirRequest { mode, layout, ..Default::default() };
        self.make_directory(parent, name, shown_as, request).await
    }
    /// The same in a partition of the volume; 0: the leader of the parent's chooses.
    pub async fn mkdir_at_in(
        &self,
        parent: u64,
        name: &[u8],
        shown_as: &[u8],
        mode: u32,
        partition: u32,
    ) -> Result<Attributes> {
        let request = MkdirRequest { mode, partition, ..Default::default() };
        self.make_directory(parent, name, shown_as, request).await
    }
    /// The same with a layout (0: that of its parent) and in a partition (0: the leader of the parent's chooses).
    pub async fn mkdir_like(
        &self,
        parent: u64,
        name: &[u8],
        shown_as: &[u8],
        (mode, layout, partition): (u32, u64, u32),
    ) -> Result<Attributes> {
        self.make_directory(parent, name, shown_as, MkdirRequest { mode, layout, partition, ..Default::default() })
            .await
    }
    pub(super) async fn make_directory(
        &self,
        parent: u64,
        name: &[u8],
        shown_as: &[u8],
        request: MkdirRequest,
    ) -> Result<Attributes> {
        let name = name.to_vec();
        let make = |header| MkdirRequest { header: Some(header), parent, name, ..request };
        attributes(self.mutate(shown_as, parent, Opcode::Mkdir, make).await?)
    }
    /// Makes a file, or answers the existing one unless `new.exclusive`.
    pub async fn create_at(&self, parent: u64, name: &[u8], shown_as: &[u8], new: NewFile) -> Result<Attributes> {
        self.create_as_at(parent, name, shown_as, new.to_wire()).await
    }
    /// The same of any file, also with contents. Header, parent and name are filled in here.
    pub(crate) async fn create_as_at(
        &self,
        parent: u64,
        name: &[u8],
        shown_as: &[u8],
        request: CreateRequest,
    ) -> Result<Attributes> {
        let (name, hold) = (name.to_vec(), request.hold);
        let make = |header| CreateRequest { header: Some(header), parent, name, ..request };
        let (made, by) = self.caller.mutate_where(&shown(shown_as), parent, Opcode::Create, make).await?;
        let made = attributes(made)?;
        if hold && self.caller.partition_of(made.inode).await? != by.partition {
            // It was there, and its partition alone can hold it.
            return self.hold_there(&made, shown_as).await;
        }
        Ok(made)
    }
    /// Holds what a create with `hold` found, for writing if that is allowed.
    async fn hold_there(&self, found: &Attributes, shown_as: &[u8]) -> Result<Attributes> {
        let inode = found.inode;
        let hold = |write| {
            self.mutate(shown_as, inode, Opcode::Hold, move |header| HoldRequest { header: Some(header), inode, write })
        };
        let held: Result<AttributesResponse> = hold(true).await;
        let held = match held {
            Err(error) if error.code() == Some(ErrorCode::PermissionDenied) => hold(false).await,
            held => held,
        };
        attributes(held?)
    }
    /// Makes a symbolic link.
    pub async fn symlink_at(&self, parent: u64, name: &[u8], shown_as: &[u8], target: &[u8]) -> Result<MadeAt> {
        let (name, target) = (name.to_vec(), target.to_vec());
        let make = |header| SymlinkRequest { header: Some(header), parent, name, target };
        MadeAt::of(self.mutate(shown_as, parent, Opcode::Symlink, make).await?)
    }
    /// Removes a file, link or special file. The directory afterwards, if the server tells it.
    pub async fn unlink_at(&self, parent: u64, name: &[u8], shown_as: &[u8]) -> Result<Option<Attributes>> {
        let name = name.to_vec();
        let make = |header| UnlinkRequest { header: Some(header), parent, name };
        let removed: RemovedResponse = self.mutate(shown_as, parent, Opcode::Unlink, make).await?;
        Ok(removed.directory.map(Attributes::of_wire).filter(is_whole))
    }
    /// Removes an empty directory. The one that it was in afterwards, if the server tells it.
    pub async fn rmdir_at(&self, parent: u64, name: &[u8], shown_as: &[u8]) -> Result<Option<Attributes>> {
        let name = name.to_vec();
        let make = |header| RmdirRequest { header: Some(header), parent, name };
        let removed: RemovedResponse = self.mutate(shown_as, parent, Opcode::Rmdir, make).await?;
        Ok(removed.directory.map(Attributes::of_wire).filter(is_whole))
    }
    /// Begins a file in a known directory; it appears when the writer is finished. The last component of `path` is its
    /// name.
    pub async fn write_at(&self, parent: u64, path: &[u8], options: WriteOptions) -> Result<FileWriter> {
        FileWriter::new(self, path, Some(parent), options).await
    }
    /// As [`release_inode`](Self::release_inode) for many: one request for up to 256 of a partition.
    pub async fn release_inodes(&self, inodes: &[u64]) -> Result<()> {
        let session = self.caller.session().await?;
        // By delegation, too: a request is for one of them, or for none.
        let mut by_partition: BTreeMap<(u32, Option<u64>), Vec<u64>> = BTreeMap::new();
        for inode in inodes {
            if session.holds.remove(*inode) {
                let place = (self.caller.partition_of(*inode).await?, self.caller.led_by(*inode));
                by_partition.entry(place).or_default().push(*inode);
            }
        }
        let parts = by_partition.values().flat_map(|list| list.chunks(RELEASES_MAX));
        let releases: Vec<_> = parts.map(|part| self.release_part(part.to_vec())).collect();
        let released: Vec<Result<()>> = stream::iter(releases).buffer_unordered(AT_ONCE).collect().await;
        released.into_iter().collect()
    }
    async fn release_part(&self, part: Vec<u64>) -> Result<()> {
        let (inode, also) = (part[0], part[1..].to_vec());
        let make = |header| ReleaseRequest { header: Some(header), inode, also };
        self.mutate::<Empty, _>(b"releasing files", inode, Opcode::Release, make).await.map(|_| ())
    }
    /// The directory that holds this directory; the root holds itself.
    pub async fn parent_of_directory(&self, inode: u64) -> Result<Attributes> {
        let what = format!("directory inode {inode}");
        if let Some(parent) = self.caller.parent_of_top(inode) {
            return self.getattr(parent).await;
        }
        for _ in 0..LOOKUPS_MAX {
            let found = self.look_up_parent(inode, &what).await?;
            if let Some(found) = self.whole(&what, found).await? {
                return Ok(found);
            }
        }
        Err(ClientError::remote(&what, ErrorCode::NotFound, "it has no parent that can be reached"))
    }
    /// Inode of the directory that holds this directory.
    pub async fn parent_inode(&self, inode: u64) -> Result<u64> {
        if let Some(parent) = self.caller.parent_of_top(inode) {
            return Ok(parent);
        }
        let found = self.look_up_parent(inode, &format!("directory inode {inode}")).await?;
        // Another partition has it, which may be a shard.
        if found.is_placeholder() { Ok(self.getattr(found.inode).await?.inode) } else { Ok(found.inode) }
    }
    async fn look_up_parent(&self, inode: u64, what: &str) -> Result<Attributes> {
        let request =
            |header| ResolveRequest { header: Some(header), start: inode, path: b"..".to_vec(), in_shard: false };
        let answer: ResolveResponse = self.caller.read_by(what, inode, Opcode::Resolve, request).await?;
        match ErrorCode::from_code(answer.error as u16) {
            Some(code) => Err(ClientError::remote(what, code, "it has no parent that can be reached")),
            None => attributes(AttributesResponse { attributes: answer.attributes, ..AttributesResponse::default() }),
        }
    }
    /// Target of a symbolic link.
    pub async fn readlink_inode(&self, inode: u64, shown_as: &[u8]) -> Result<Vec<u8>> {
        let request = |header| ReadlinkRequest { header: Some(header), inode };
        let answer: ReadlinkResponse = self.caller.read_by(&shown(shown_as), inode, Opcode::Readlink, request).await?;
        Ok(answer.target)
    }
    /// Names of the extended attributes of an inode.
    pub async fn list_xattr(&self, inode: u64) -> Result<Vec<Vec<u8>>> {
        let request = |header| ListXattrRequest { header: Some(header), inode };
        let answer: ListXattrResponse =
            self.caller.read_by("extended attributes", inode, Opcode::ListXattr, request).await?;
        Ok(answer.names)
    }
    pub async fn remove_xattr(&self, inode: u64, name: &[u8]) -> Result<()> {
        let name = name.to_vec();
        let make = |header| RemoveXattrRequest { header: Some(header), inode, name };
        self.mutate::<Empty, _>(b"extended attribute", inode, Opcode::RemoveXattr, make).await.map(|_| ())
    }
}
