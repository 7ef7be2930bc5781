//! A volume: the operations of its namespace by path. One method an operation, under the operation's name.
mod append_turn;
pub mod by_inode;
pub mod clone;
mod elsewhere;
mod fsck;
mod lease;
mod listing;
pub mod posix;
pub mod snapshots;
mod totals;
mod wait_change;

pub(crate) use elsewhere::NO_INODE;

use super::call::MetaCaller;
use super::delegations::memory::QueueMemory;
use super::path::{resolve, resolve_directory};
use super::route::Addressed;
use super::shards::Places;
use crate::again::Again;
use crate::append::stream::WriteStream;
use crate::append::streams::Streams;
use crate::append::target::Target;
use crate::attributes::Attributes;
use crate::changes::{NewFile, SetAttributes};
use crate::cluster::Cluster;
use crate::credentials::Credentials;
use crate::discard::{CLOSE_PATIENCE, Discards};
use crate::error::{ClientError, Result};
use crate::extent::{Extent, ExtentPage};
use crate::overwrite::Overwrites;
use crate::read::latency::Latency;
use crate::volatile::VolatileFiles;
use cairn_types::{ErrorCode, PgClass, Scheme, Stripe};
use cairn_wire::Opcode;
use cairn_wire::common::Empty;
use cairn_wire::meta::*;
use std::sync::Arc;
use std::time::Duration;

/// Streams of a volume for one class of groups and one stripe, each with its own open chunk.
const STREAMS_MAX: usize = 4;
/// Extents of a page.
const PAGE_EXTENTS: u32 = 1024;
/// Entries of a directory page.
pub const READDIR_PAGE: u32 = 1024;

/// How `rename` treats an existing target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RenameMode {
    Replace = 0,
    NoReplace = 1,
    Exchange = 2,
}

/// A volume of a connected cluster. Clones share everything.
#[derive(Clone)]
pub struct Volume {
    pub(crate) caller: Arc<MetaCaller>,
    name: Arc<str>,
    streams: Arc<Streams>,
    /// Streams of segments for one class.
    streams_max: usize,
    /// Asks to lead the directories that it makes for mounts.
    leads: bool,
    latency: Arc<Latency>,
    pub(crate) discards: Arc<Discards>,
    pub(crate) volatile: Arc<VolatileFiles>,
    pub(crate) overwrites: Arc<Overwrites>,
}

impl Volume {
    pub(crate) fn new(cluster: Arc<Cluster>, id: u32, name: &str, who: Credentials) -> Self {
        Self {
            caller: MetaCaller::new(cluster, id, who),
            name: name.into(),
            streams: Arc::default(),
            streams_max: STREAMS_MAX,
            leads: false,
            latency: Arc::default(),
            discards: Arc::default(),
            volatile: Arc::default(),
            overwrites: Arc::default(),
        }
    }
    /// The same volume, session, streams and caches on behalf of another user.
    pub fn as_user(&self, who: Credentials) -> Volume {
        Volume { caller: self.caller.as_user(who), ..self.clone() }
    }
    /// The same with one write stream for a scheme: what is written through it lies close together in few chunks.
    pub fn with_one_stream(self) -> Volume {
        Volume { streams_max: 1, ..self }
    }
    /// The same, which may lead the directories that [`mkdir_masked`](Self::mkdir_masked) makes: what is done below one
    /// is answered by this client, and stored within two seconds, by [`commit`](Self::commit), or when others look.
    pub fn leading(self) -> Volume {
        Volume { leads: true, ..self }
    }
    /// What is acknowledged in led directories is kept there until it is stored, for a successor of this process
    /// ([`dead_session`](Self::dead_session)).
    pub fn keep_queues_in(&self, memory: Arc<dyn QueueMemory>) {
        self.caller.delegations().keep_in(memory);
    }
    /// Waits until everything is durable that was done before in the led directory that has an inode.
    pub async fn commit(&self, inode: u64) -> Result<()> {
        self.caller.commit(inode).await
    }
    /// The same of all led directories. What was lost for good is an error once.
    pub async fn commit_all(&self) -> Result<()> {
        self.caller.commit_all().await
    }
    /// Directories that this client leads, and changes in them that are not durable yet.
    pub fn led_counts(&self) -> (u64, u64) {
        self.caller.led_counts()
    }
    /// Directories that were led and of which something was lost, which are errors from then on, and lost changes.
    pub fn lost_counts(&self) -> (u64, u64) {
        self.caller.lost_counts()
    }
    /// Leads no directory any more, with everything stored but what was lost before, and asks for none. False: that
    /// took longer.
    pub async fn end_leading(&self, patience: Duration) -> bool {
        self.caller.end_leading(patience).await
    }
    /// Whether this client leads nothing for the time being. What it leads ends, and is not waited for.
    pub fn rest_leading(&self, rests: bool) {
        self.caller.rest_leading(rests);
    }
    /// Behind [`end_leading`](Self::end_leading): directories that are made from now on may be led.
    pub fn lead_again(&self) {
        self.caller.lead_again();
    }
    /// On whose behalf.
    pub fn who(&self) -> &Credentials {
        &self.caller.who
    }
    pub fn name(&self) -> &str {
        &self.name
    }
    pub fn id(&self) -> u32 {
        self.caller.volume
    }
    pub(crate) fn cluster(&self) -> &Arc<Cluster> {
        &self.caller.cluster
    }
    /// Ends the session: waits for nothing, releases what was held. Writers have to be finished before.
    pub async fn close(&self) {
        self.close_within(CLOSE_PATIENCE).await;
    }
    /// The same; what writers left that failed or were dropped is freed before, if that takes no longer than
    /// `patience`. False: some of it is left to the garbage scan.
    pub async fn close_within(&self, patience: Duration) -> bool {
        // Streams without a handle make durable what they have and end; what is not durable has no place that could be
        // freed.
        self.streams.clear();
        let freed = self.discards.finish(patience).await;
        self.caller.end_session().await;
        freed
    }

    /// A stream for a segment of so many bytes that follows on what was written to `before`.
    pub(crate) async fn stream(
        &self,
        class: impl Into<PgClass>,
        bytes: u64,
        before: Option<&WriteStream>,
    ) -> Result<WriteStream> {
        let target = self.target(class.into()).await?;
        self.streams.get(self.cluster(), target, None, self.streams_max, (bytes, before))
    }
    /// A stream of whole rows.
    pub(crate) async fn striped_stream(&self, scheme: Scheme, stripe: Stripe) -> Result<WriteStream> {
        let target = self.target(scheme.into()).await?;
        self.streams.get(self.cluster(), target, Some(stripe), STREAMS_MAX, (0, None))
    }
    async fn target(&self, class: PgClass) -> Result<Target> {
        let session = self.caller.writer_session().await?.id;
        Ok(Target { volume: self.caller.volume, class, session })
    }
    /// What was shown becomes durable now.
    pub(crate) fn sync_streams(&self) {
        self.streams.sync_now();
    }

    /// Attributes of a path; `follow`: of what a symbolic link at the end points at.
    pub async fn stat(&self, path: &[u8], follow: bool) -> Result<Attributes> {
        self.with_shards(resolve(&self.caller, path, follow).await?).await
    }
    /// Like [`stat`](Self::stat); `None` if there is nothing.
    pub async fn try_stat(&self, path: &[u8], follow: bool) -> Result<Option<Attributes>> {
        match self.stat(path, follow).await {
            Ok(found) => Ok(Some(found)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }
    /// Attributes of an inode.
    pub async fn getattr(&self, inode: u64) -> Result<Attributes> {
        let found = self.getattr_itself(inode).await?;
        match found.shard_of {
            0 => self.with_shards(found).await,
            // Somebody came to it from what is in it.
            directory => Box::pin(self.getattr(directory)).await,
        }
    }
    /// What its partition says of an inode, be it a shard or a directory that has some.
    pub(crate) async fn getattr_itself(&self, inode: u64) -> Result<Attributes> {
        let request = |header| GetattrRequest { header: Some(header), inode };
        attributes(self.caller.read_by(&format!("inode {inode}"), inode, Opcode::Getattr, request).await?)
    }
    /// The directory that holds the last component of `path`, and that component.
    pub(crate) async fn parent_of<'p>(&self, path: &'p [u8]) -> Result<(u64, &'p [u8])> {
        let cut = path.iter().rposition(|b| *b == b'/').unwrap_or(0);
        let name = &path[(cut + 1).min(path.len())..];
        if name.is_empty() {
            let text = "the root of a volume cannot be made, removed or renamed";
            return Err(ClientError::remote("/", ErrorCode::InvalidArgument, text));
        }
        Ok((resolve_directory(&self.caller, &path[..cut.max(1)]).await?, name))
    }

    /// Makes a directory. `layout` 0: that of its parent.
    pub async fn mkdir(&self, path: &[u8], mode: u32, layout: u64) -> Result<Attributes> {
        self.mkdir_in(path, mode, layout, 0).await
    }
    /// The same in a partition of the volume; 0: the leader of the parent's chooses. What will be in it is there, too,
    /// but for the directories in it.
    pub async fn mkdir_in(&self, path: &[u8], mode: u32, layout: u64, partition: u32) -> Result<Attributes> {
        let (parent, name) = self.parent_of(path).await?;
        self.make_directory(parent, name, path, MkdirRequest { mode, layout, partition, ..Default::default() }).await
    }
    /// Makes a directory and all that are missing above it; an existing one is fine.
    pub async fn mkdir_all(&self, path: &[u8], mode: u32) -> Result<Attributes> {
        match self.mkdir(path, mode, 0).await {
            Err(error) if error.code() == Some(ErrorCode::Exists) => {
                let found = self.stat(path, true).await?;
                if found.is_directory() { Ok(found) } else { Err(error) }
            }
            Err(error) if error.is_not_found() => {
                let cut = path.iter().rposition(|b| *b == b'/').unwrap_or(0).max(1);
                if cut >= path.len() || path.len() <= 1 {
                    return Err(error);
                }
                Box::pin(self.mkdir_all(&path[..cut], mode)).await?;
                match self.mkdir(path, mode, 0).await {
                    Err(error) if error.code() == Some(ErrorCode::Exists) => self.stat(path, true).await,
                    result => result,
                }
            }
            _ if path == b"/" => self.stat(path, true).await,
            result => result,
        }
    }
    /// Removes a file, link or special file.
    pub async fn unlink(&self, path: &[u8]) -> Result<()> {
        let (parent, name) = self.parent_of(path).await?;
        let name = name.to_vec();
        let make = |header| UnlinkRequest { header: Some(header), parent, name };
        self.mutate::<Empty, _>(path, parent, Opcode::Unlink, make).await.map(|_| ())
    }
    /// Removes an empty directory.
    pub async fn rmdir(&self, path: &[u8]) -> Result<()> {
        let (parent, name) = self.parent_of(path).await?;
        let name = name.to_vec();
        let make = |header| RmdirRequest { header: Some(header), parent, name };
        self.mutate::<Empty, _>(path, parent, Opcode::Rmdir, make).await.map(|_| ())
    }
    /// Removes a whole tree at once; its space comes back behind.
    pub async fn remove_tree(&self, path: &[u8]) -> Result<()> {
        let (parent, name) = self.parent_of(path).await?;
        let name = name.to_vec();
        let make = |header| RemoveTreeRequest { header: Some(header), parent, name };
        self.mutate::<Empty, _>(path, parent, Opcode::RemoveTree, make).await.map(|_| ())
    }
    /// Moves an entry; atomic.
    pub async fn rename(&self, from: &[u8], to: &[u8], mode: RenameMode) -> Result<()> {
        let (parent, name) = self.parent_of(from).await?;
        let (new_parent, new_name) = self.parent_of(to).await?;
        let (name, new_name) = (name.to_vec(), new_name.to_vec());
        let flags = mode as u32;
        let make = |header| RenameRequest { header: Some(header), parent, name, new_parent, new_name, flags };
        self.mutate::<Empty, _>(from, parent, Opcode::Rename, make).await.map(|_| ())
    }
    /// Gives an existing file another name.
    pub async fn link(&self, existing: &[u8], path: &[u8], replace: bool) -> Result<Attributes> {
        let inode = self.stat(existing, false).await?.inode;
        self.link_inode(inode, path, replace).await
    }
    pub(crate) async fn link_inode(&self, inode: u64, path: &[u8], replace: bool) -> Result<Attributes> {
        let (parent, name) = self.parent_of(path).await?;
        let name = name.to_vec();
        let make = |header| LinkRequest { header: Some(header), inode, parent, name, replace };
        attributes(self.mutate(path, parent, Opcode::Link, make).await?)
    }
    pub async fn symlink(&self, target: &[u8], path: &[u8]) -> Result<Attributes> {
        let (parent, name) = self.parent_of(path).await?;
        let (name, target) = (name.to_vec(), target.to_vec());
        let make = |header| SymlinkRequest { header: Some(header), parent, name, target };
        attributes(self.mutate(path, parent, Opcode::Symlink, make).await?)
    }
    pub async fn readlink(&self, path: &[u8]) -> Result<Vec<u8>> {
        let inode = self.stat(path, false).await?.inode;
        self.readlink_inode(inode, path).await
    }
    /// Makes a file, or answers the existing one unless `new.exclusive`.
    pub async fn create(&self, path: &[u8], new: NewFile) -> Result<Attributes> {
        self.create_as(path, new.to_wire()).await
    }
    /// The same of any file, also with contents. Header, parent and name are filled in here.
    pub(crate) async fn create_as(&self, path: &[u8], request: CreateRequest) -> Result<Attributes> {
        let (parent, name) = self.parent_of(path).await?;
        self.create_as_at(parent, name, path, request).await
    }
    /// A file without a name, held by this session, in the directory of `path`.
    pub(crate) async fn create_unnamed(&self, path: &[u8], mode: u32, layout: u64) -> Result<Attributes> {
        let (parent, _) = self.parent_of(path).await?;
        let make = |header| CreateUnnamedRequest { header: Some(header), parent, mode, layout, umask: 0 };
        attributes(self.mutate(path, parent, Opcode::CreateUnnamed, make).await?)
    }
    /// Changes attributes.
    pub async fn setattr(&self, inode: u64, shown_as: &[u8], set: SetAttributes) -> Result<Attributes> {
        self.setattr_under(inode, shown_as, set, 0).await
    }
    /// The same by who may have the file's overwrite lease of that number; 0: nobody has.
    pub(crate) async fn setattr_under(
        &self,
        inode: u64,
        shown_as: &[u8],
        set: SetAttributes,
        lease: u64,
    ) -> Result<Attributes> {
        let request = SetattrRequest { lease, ..set.to_wire() };
        let make = |header| SetattrRequest { header: Some(header), inode, ..request };
        self.with_shards(attributes(self.mutate(shown_as, inode, Opcode::Setattr, make).await?)?).await
    }
    pub async fn set_xattr(&self, inode: u64, name: &[u8], value: &[u8], flags: u32) -> Result<()> {
        let (name, value) = (name.to_vec(), value.to_vec());
        let make = |header| SetXattrRequest { header: Some(header), inode, name, value, flags };
        self.mutate::<Empty, _>(b"extended attribute", inode, Opcode::SetXattr, make).await.map(|_| ())
    }
    pub async fn get_xattr(&self, inode: u64, name: &[u8]) -> Result<Vec<u8>> {
        let request = |header| GetXattrRequest { header: Some(header), inode, name: name.to_vec() };
        let answer: GetXattrResponse =
            self.caller.read_by("extended attribute", inode, Opcode::GetXattr, request).await?;
        Ok(answer.value)
    }
    /// Swaps extents of an inode; see the message.
    pub(crate) async fn publish(&self, inode: u64, shown_as: &[u8], request: PublishRequest) -> Result<Attributes> {
        let opcode = if request.durability == 0 { Opcode::Publish } else { Opcode::PublishVolatile };
        let make = |header| PublishRequest { header: Some(header), inode, ..request };
        attributes(self.mutate(shown_as, inode, opcode, make).await?)
    }
    /// The same, with what was set of the file before.
    pub(crate) async fn publish_attributes(
        &self,
        inode: u64,
        shown_as: &[u8],
        (request, set): (PublishRequest, SetAttributes),
    ) -> Result<Attributes> {
        let publish = Some(PublishRequest { inode, ..request });
        let set = Some(SetattrRequest { inode, ..set.to_wire() });
        let make = |header| PublishAttributesRequest { header: Some(header), publish, attributes: set };
        attributes(self.mutate(shown_as, inode, Opcode::PublishAttributes, make).await?)
    }
    /// What came of a publish without an answer.
    pub(crate) async fn publish_again(&self, shown_as: &[u8], again: &Again) -> Result<Attributes> {
        attributes(self.caller.ask_again(&shown(shown_as), again).await?)
    }
    /// A page of the extents that overlap the range, for readers and writers of this library.
    pub(crate) async fn extents(&self, inode: u64, offset: u64, length: u64) -> Result<GetExtentsResponse> {
        self.some_extents(inode, offset, length, PAGE_EXTENTS).await
    }
    /// The same for whoever moves bytes: what was shared once and is not shared any more is not said to be.
    pub(crate) async fn extents_to_move(&self, inode: u64, offset: u64) -> Result<GetExtentsResponse> {
        let length = u64::MAX - offset;
        let request = |header| GetExtentsRequest {
            header: Some(header),
            inode,
            offset,
            length,
            count_max: PAGE_EXTENTS,
            shared_now: true,
        };
        self.caller.read_by(&format!("inode {inode}"), inode, Opcode::GetExtents, request).await
    }
    /// The same for whoever looks at them.
    pub async fn extents_page(&self, inode: u64, offset: u64, length: u64) -> Result<ExtentPage> {
        Ok(ExtentPage::of_wire(&self.extents(inode, offset, length).await?))
    }
    /// All extents of a file.
    pub async fn all_extents(&self, inode: u64) -> Result<Vec<Extent>> {
        let mut all: Vec<Extent> = Vec::new();
        loop {
            let from = all.last().map_or(0, Extent::file_end);
            let page = self.extents_page(inode, from, u64::MAX - from).await?;
            let end = page.end || page.extents.is_empty();
            all.extend(page.extents);
            if end {
                return Ok(all);
            }
        }
    }
    /// Holds an inode for one more handle, which may write it from now on.
    pub async fn hold(&self, inode: u64, shown_as: &[u8]) -> Result<Attributes> {
        self.hold_inode(inode, shown_as, true).await
    }
    /// A handle is closed; the hold ends with the last one.
    pub async fn let_go(&self, inode: u64) -> Result<()> {
        self.release_inode(inode).await
    }
    /// Ends this session's hold on an inode; an unlinked one goes with its last holder.
    pub(crate) async fn release(&self, inode: u64) -> Result<()> {
        let make = |header| ReleaseRequest { header: Some(header), inode, also: Vec::new() };
        self.mutate::<Empty, _>(b"releasing a file", inode, Opcode::Release, make).await.map(|_| ())
    }
    pub(crate) fn caller(&self) -> &Arc<MetaCaller> {
        &self.caller
    }
    pub(crate) fn read_latency(&self) -> Arc<Latency> {
        self.latency.clone()
    }

    pub(crate) async fn mutate<A: prost::Message + Default, R: prost::Message + Addressed + Places>(
        &self,
        path: &[u8],
        at: u64,
        opcode: Opcode,
        make: impl FnOnce(MetaHeader) -> R,
    ) -> Result<A> {
        let answer = self.caller.mutate(&shown(path), at, opcode, make).await?;
        if matches!(
            opcode,
            Opcode::Unlink | Opcode::RemoveTree | Opcode::Rename | Opcode::Setattr | Opcode::Punch | Opcode::Release
        ) {
            // It may have been the last of some bytes.
            self.cluster().full.removed(self.id());
        }
        Ok(answer)
    }
}

pub(crate) fn shown(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}

fn attributes(answer: AttributesResponse) -> Result<Attributes> {
    Attributes::of_answer(answer.attributes).map_err(|odd| odd.of("attributes"))
}
