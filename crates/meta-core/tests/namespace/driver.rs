//! A client of one namespace for tests: builds requests with the generated protobuf code, numbers them, and decodes
//! answers with it, so that every test holds the hand-written messages against the generated ones.
use cairn_meta_core::{AppliedAt, Namespace, NamespaceBuilder, NamespaceConfig};
use cairn_types::{ErrorCode, Layout, PartitionId, VolumeId, WallTime};
use cairn_wire::Opcode;
use cairn_wire::common::{Credentials, Empty, Extent};
use cairn_wire::meta::*;
use prost::Message;
use std::collections::BTreeMap;

pub const ROOT: u64 = 1;

/// One logged operation, to be applied again elsewhere.
#[derive(Clone, Debug)]
pub struct Logged {
    pub at: AppliedAt,
    pub opcode: Opcode,
    pub request: Vec<u8>,
}

pub struct Driver {
    pub namespace: Namespace,
    pub log: Vec<Logged>,
    pub session: u64,
    pub slot: u32,
    pub who: Credentials,
    pub now: u64,
    sequences: BTreeMap<(u64, u32), u64>,
}

pub type Answer<T> = Result<T, ErrorCode>;

pub fn config() -> NamespaceConfig {
    let mut config = NamespaceConfig::new(VolumeId(1), PartitionId(1), Layout::replicated(3));
    config.root_mode = 0o755;
    config.created = WallTime(1_000);
    config
}

pub fn user(uid: u32, gid: u32, groups: &[u32]) -> Credentials {
    Credentials { uid, gid, groups: groups.to_vec() }
}

/// An extent of whole or partial blocks in chunk (pg 7, index).
pub fn extent(file_offset: u64, length: u64, index: u32, chunk_offset: u64) -> Extent {
    Extent { file_offset, length, pg: 7, index, chunk_offset, flags: 0 }
}

impl Driver {
    pub fn new() -> Self {
        Self::on(Namespace::new(&config()))
    }

    pub fn on(namespace: Namespace) -> Self {
        Driver {
            namespace,
            log: Vec::new(),
            session: 1,
            slot: 0,
            who: user(0, 0, &[]),
            now: 1_000_000,
            sequences: BTreeMap::new(),
        }
    }

    pub fn header(&self, sequence: u64) -> Option<MetaHeader> {
        let who = Some(self.who.clone());
        Some(MetaHeader { volume: 1, partition: 1, session: self.session, slot: self.slot, sequence, who })
    }

    /// The header of the next mutation.
    pub fn next(&mut self) -> Option<MetaHeader> {
        let sequence = self.sequences.entry((self.session, self.slot)).or_default();
        *sequence += 1;
        let sequence = *sequence;
        self.header(sequence)
    }

    /// Where a test does not say who wrote the extents, the session did.
    fn writer(&self, said: u64) -> u64 {
        if said == 0 { self.session } else { said }
    }

    /// Applies encoded bytes as the next log entry.
    pub fn log(&mut self, opcode: Opcode, request: Vec<u8>) -> Result<Vec<u8>, ErrorCode> {
        self.now += 10;
        let at = AppliedAt { index: self.log.len() as u64 + 1, term: 1, time: WallTime(self.now) };
        self.log.push(Logged { at, opcode, request: request.clone() });
        let mut out = b"before".to_vec();
        let before = self.distances();
        let result = self.namespace.apply(at, opcode, &request, &mut out);
        self.check_distances(&before);
        assert_eq!(&out[..6], b"before", "what was in the buffer stays");
        match result {
            Ok(()) => Ok(out.split_off(6)),
            Err(error) => {
                assert_eq!(out.len(), 6, "an error leaves no part of an answer");
                if matches!(
                    error.code,
                    ErrorCode::Overloaded | ErrorCode::LeaseHeld | ErrorCode::UnknownPartition | ErrorCode::CrossVolume
                ) && let Some(sequence) = self.sequences.get_mut(&(self.session, self.slot))
                {
                    // It was not used.
                    *sequence -= 1;
                }
                Err(error.code)
            }
        }
    }

    /// Of every file, where there are few: by how much its generation is ahead of its version, and the number of its
    /// lease.
    fn distances(&self) -> BTreeMap<u64, (u64, Option<u64>)> {
        let next = (u64::MAX - self.namespace.inodes_left()).wrapping_add(1);
        // Whoever looks at what is led recalls it.
        let next = if next < 32 && !self.namespace.has_delegations() { next } else { 1 };
        let of = |inode| {
            let found = self.getattr(inode).ok().filter(|found| found.mode & 0o170_000 == 0o100_000)?;
            let number = self.namespace.overwrite_lease_of(found.overwriter, inode);
            Some((inode, (found.generation - found.data_version, number)))
        };
        (1..next).filter_map(of).collect()
    }

    /// Whoever moves bytes of a file would not notice that somebody overwrote them in place meanwhile: nothing raises a
    /// version by more than the generation, and each lease raises the generation alone.
    fn check_distances(&self, before: &BTreeMap<u64, (u64, Option<u64>)>) {
        for (inode, (now, lease)) in self.distances() {
            if let Some((then, lease_then)) = before.get(&inode) {
                assert!(now >= *then, "inode {inode}: a version rose more than the generation");
                let is_new = lease.is_some() && lease != *lease_then;
                assert!(!is_new || now > *then, "inode {inode}: a lease was given and leaves no trace");
            }
        }
    }

    pub fn mutate<A: Message + Default>(&mut self, opcode: Opcode, request: &impl Message) -> Answer<A> {
        self.log(opcode, request.encode_to_vec()).map(|bytes| {
            let answer = A::decode(bytes.as_slice()).expect("the answer is protobuf");
            assert_eq!(answer.encode_to_vec(), bytes, "the answer is as the generated code writes it");
            answer
        })
    }

    pub fn read<A: Message + Default>(&self, opcode: Opcode, request: &impl Message) -> Answer<A> {
        let mut out = b"before".to_vec();
        self.namespace.read(opcode, &request.encode_to_vec(), &mut out).map_err(|error| error.code)?;
        let answer = A::decode(&out[6..]).expect("the answer is protobuf");
        assert_eq!(answer.encode_to_vec(), &out[6..], "the answer is as the generated code writes it");
        Ok(answer)
    }

    fn attributes(&mut self, opcode: Opcode, request: &impl Message) -> Answer<Attributes> {
        self.mutate::<AttributesResponse>(opcode, request).map(|a| a.attributes.expect("attributes are answered"))
    }

    fn done(&mut self, opcode: Opcode, request: &impl Message) -> Answer<()> {
        self.mutate::<Empty>(opcode, request).map(|_| ())
    }

    pub fn check(&self) {
        if let Err(violation) = self.namespace.check_invariants() {
            panic!("{violation}");
        }
    }

    /// The namespace from its own checkpoint.
    pub fn restored(&self) -> Namespace {
        restore(&self.pages())
    }

    pub fn pages(&self) -> Vec<Vec<u8>> {
        self.namespace.snapshot().pages(16 << 10).collect()
    }
}

pub fn restore(pages: &[Vec<u8>]) -> Namespace {
    let mut builder = NamespaceBuilder::new();
    for page in pages {
        builder.push_page(page).expect("a page of a checkpoint");
    }
    builder.finish().expect("a whole checkpoint")
}

/// The operations.
impl Driver {
    pub fn mkdir(&mut self, parent: u64, name: &str, mode: u32) -> Answer<Attributes> {
        let header = self.next();
        self.attributes(Opcode::Mkdir, &MkdirRequest { header, parent, name: name.into(), mode, ..Default::default() })
    }
    pub fn create(&mut self, parent: u64, name: &str, mode: u32) -> Answer<Attributes> {
        self.create_with(CreateRequest { parent, name: name.into(), mode, exclusive: true, ..Default::default() })
    }
    pub fn create_with(&mut self, request: CreateRequest) -> Answer<Attributes> {
        let (header, written_by) = (self.next(), self.writer(request.written_by));
        self.attributes(Opcode::Create, &CreateRequest { header, written_by, ..request })
    }
    pub fn symlink(&mut self, parent: u64, name: &str, target: &str) -> Answer<Attributes> {
        let header = self.next();
        let request = SymlinkRequest { header, parent, name: name.into(), target: target.into() };
        self.attributes(Opcode::Symlink, &request)
    }
    pub fn create_unnamed(&mut self, parent: u64, mode: u32) -> Answer<Attributes> {
        let header = self.next();
        self.attributes(Opcode::CreateUnnamed, &CreateUnnamedRequest { header, parent, mode, layout: 0, umask: 0 })
    }
    pub fn link(&mut self, inode: u64, parent: u64, name: &str, replace: bool) -> Answer<Attributes> {
        let header = self.next();
        self.attributes(Opcode::Link, &LinkRequest { header, inode, parent, name: name.into(), replace })
    }
    pub fn unlink(&mut self, parent: u64, name: &str) -> Answer<()> {
        let header = self.next();
        self.done(Opcode::Unlink, &UnlinkRequest { header, parent, name: name.into() })
    }
    pub fn rmdir(&mut self, parent: u64, name: &str) -> Answer<()> {
        let header = self.next();
        self.done(Opcode::Rmdir, &RmdirRequest { header, parent, name: name.into() })
    }
    pub fn remove_tree(&mut self, parent: u64, name: &str) -> Answer<()> {
        let header = self.next();
        self.done(Opcode::RemoveTree, &RemoveTreeRequest { header, parent, name: name.into() })
    }
    pub fn rename(&mut self, parent: u64, name: &str, new_parent: u64, new_name: &str, flags: u32) -> Answer<()> {
        let header = self.next();
        let (name, new_name) = (name.into(), new_name.into());
        self.done(Opcode::Rename, &RenameRequest { header, parent, name, new_parent, new_name, flags })
    }
    pub fn setattr(&mut self, request: SetattrRequest) -> Answer<Attributes> {
        let header = self.next();
        self.attributes(Opcode::Setattr, &SetattrRequest { header, ..request })
    }
    pub fn chmod(&mut self, inode: u64, mode: u32) -> Answer<Attributes> {
        self.setattr(SetattrRequest { inode, valid: 1, mode, ..Default::default() })
    }
    pub fn chown(&mut self, inode: u64, uid: Option<u32>, gid: Option<u32>) -> Answer<Attributes> {
        let valid = u32::from(uid.is_some()) << 1 | u32::from(gid.is_some()) << 2;
        let (uid, gid) = (uid.unwrap_or(0), gid.unwrap_or(0));
        self.setattr(SetattrRequest { inode, valid, uid, gid, ..Default::default() })
    }
    pub fn truncate(&mut self, inode: u64, size: u64) -> Answer<Attributes> {
        self.setattr(SetattrRequest { inode, valid: 8, size, ..Default::default() })
    }
    pub fn set_xattr(&mut self, inode: u64, name: &str, value: &[u8], flags: u32) -> Answer<()> {
        let header = self.next();
        let request = SetXattrRequest { header, inode, name: name.into(), value: value.to_vec(), flags };
        self.done(Opcode::SetXattr, &request)
    }
    pub fn remove_xattr(&mut self, inode: u64, name: &str) -> Answer<()> {
        let header = self.next();
        self.done(Opcode::RemoveXattr, &RemoveXattrRequest { header, inode, name: name.into() })
    }
    pub fn publish(&mut self, inode: u64, extents: &[Extent]) -> Answer<Attributes> {
        self.publish_with(PublishRequest { inode, extents: extents.to_vec(), ..Default::default() })
    }
    pub fn publish_with(&mut self, request: PublishRequest) -> Answer<Attributes> {
        let (header, written_by) = (self.next(), self.writer(request.written_by));
        let opcode = if request.durability == 0 { Opcode::Publish } else { Opcode::PublishVolatile };
        self.attributes(opcode, &PublishRequest { header, written_by, ..request })
    }
    pub fn publish_attributes(&mut self, request: PublishRequest, set: SetattrRequest) -> Answer<Attributes> {
        let (header, written_by) = (self.next(), self.writer(request.written_by));
        let publish = Some(PublishRequest { written_by, ..request });
        self.attributes(Opcode::PublishAttributes, &PublishAttributesRequest { header, publish, attributes: Some(set) })
    }
    /// Closes a file when its bytes are in the members' memory.
    pub fn publish_volatile(&mut self, inode: u64, extents: &[Extent]) -> Answer<Attributes> {
        self.publish_with(PublishRequest { inode, extents: extents.to_vec(), durability: 1, ..Default::default() })
    }
    pub fn note_durable(&mut self, files: &[(u64, u64)]) -> Answer<()> {
        let header = self.next();
        let files = files.iter().map(|(inode, to)| DurableFile { inode: *inode, to: *to }).collect();
        self.done(Opcode::NoteDurable, &NoteDurableRequest { header, files })
    }
    pub fn end_volatile(&mut self, request: EndVolatile) {
        self.done(Opcode::EndVolatile, &request).expect("an internal entry");
    }
    pub fn hold(&mut self, inode: u64, write: bool) -> Answer<Attributes> {
        let header = self.next();
        self.attributes(Opcode::Hold, &HoldRequest { header, inode, write })
    }
    /// The number of the lease, 0 if somebody has it, and the attributes.
    pub fn take_lease(&mut self, inode: u64) -> Answer<(u64, Attributes)> {
        let header = self.next();
        let request = OverwriteLeaseRequest { header, inode, ..Default::default() };
        let answer: OverwriteLeaseResponse = self.mutate(Opcode::OverwriteLease, &request)?;
        Ok((answer.number, answer.attributes.expect("attributes are answered")))
    }
    pub fn give_lease(&mut self, inode: u64, number: u64, changed: bool, mtime_ns: u64) -> Answer<Attributes> {
        self.give_lease_that(inode, number, changed, mtime_ns, true)
    }
    /// `answered`: all that was sent under it.
    pub fn give_lease_that(
        &mut self,
        inode: u64,
        number: u64,
        changed: bool,
        mtime_ns: u64,
        answered: bool,
    ) -> Answer<Attributes> {
        let header = self.next();
        let request = OverwriteLeaseRequest { header, inode, release: true, number, changed, mtime_ns, answered };
        let answer: OverwriteLeaseResponse = self.mutate(Opcode::OverwriteLease, &request)?;
        assert_eq!(answer.number, 0);
        Ok(answer.attributes.expect("attributes are answered"))
    }
    pub fn clone_range(&mut self, request: CloneRangeRequest) -> Answer<CloneRangeResponse> {
        let header = self.next();
        self.mutate(Opcode::CloneRange, &CloneRangeRequest { header, ..request })
    }
    pub fn punch(&mut self, request: PunchRequest) -> Answer<Attributes> {
        let header = self.next();
        self.attributes(Opcode::Punch, &PunchRequest { header, ..request })
    }
    pub fn release(&mut self, inode: u64) -> Answer<()> {
        let header = self.next();
        self.done(Opcode::Release, &ReleaseRequest { header, inode, also: Vec::new() })
    }
    pub fn end_session(&mut self) -> Answer<()> {
        let header = self.header(0);
        self.done(Opcode::EndSession, &EndSessionRequest { header })
    }
    pub fn expire(&mut self, sessions: &[u64]) {
        self.done(Opcode::ExpireSessions, &ExpireSessions { sessions: sessions.to_vec(), ..Default::default() })
            .expect("an internal entry");
    }
    pub fn reclaim(&mut self, inodes_max: u32, extents_max: u32) {
        let request = ReclaimBatch { inodes_max, extents_max, deferred_to: 0 };
        self.done(Opcode::ReclaimBatch, &request).expect("an internal entry");
    }
    /// Takes apart what died up to a number, and what is not deferred.
    pub fn reclaim_to(&mut self, deferred_to: u64) {
        let request = ReclaimBatch { inodes_max: 0, extents_max: 0, deferred_to };
        self.done(Opcode::ReclaimBatch, &request).expect("an internal entry");
    }
    pub fn set_deferral(&mut self, on: bool) {
        self.done(Opcode::SetDeferral, &SetDeferral { on }).expect("an internal entry");
    }
    pub fn set_fullness(&mut self, degree: u32) {
        self.done(Opcode::SetFullness, &SetFullness { degree, node: 17 }).expect("an internal entry");
    }
    pub fn set_schedule(&mut self, rules: &[SnapshotRule]) -> Answer<()> {
        self.set_schedule_of(0, rules)
    }
    pub fn set_schedule_of(&mut self, directory: u64, rules: &[SnapshotRule]) -> Answer<()> {
        let header = self.next();
        let rules = rules.to_vec();
        self.done(Opcode::SetSnapshotSchedule, &SetSnapshotScheduleRequest { header, rules, directory })
    }

    pub fn run_schedule(&mut self, up_to_ns: u64) -> Answer<()> {
        self.done(Opcode::RunSchedule, &RunSchedule { up_to_ns, ..RunSchedule::default() })
    }

    pub fn set_feature_level(&mut self, level: u32) {
        self.done(Opcode::SetFeatureLevel, &SetFeatureLevel { level }).expect("an internal entry");
    }
    pub fn create_snapshot(&mut self, name: &str) -> Answer<CreateSnapshotResponse> {
        self.create_snapshot_of(0, name)
    }
    pub fn create_snapshot_of(&mut self, directory: u64, name: &str) -> Answer<CreateSnapshotResponse> {
        let header = self.next();
        self.mutate(Opcode::CreateSnapshot, &CreateSnapshotRequest { header, name: name.into(), directory })
    }
    pub fn delete_snapshot(&mut self, name: &str) -> Answer<()> {
        self.delete_snapshot_of(0, name)
    }
    /// Of any, by its number.
    pub fn delete_snapshot_of(&mut self, number: u64, name: &str) -> Answer<()> {
        let header = self.next();
        self.done(Opcode::DeleteSnapshot, &DeleteSnapshotRequest { header, name: name.into(), number })
    }
    pub fn rename_snapshot(&mut self, name: &str, new_name: &str) -> Answer<()> {
        self.rename_snapshot_of(0, name, new_name)
    }
    pub fn rename_snapshot_of(&mut self, number: u64, name: &str, new_name: &str) -> Answer<()> {
        let header = self.next();
        let (name, new_name) = (name.into(), new_name.into());
        self.done(Opcode::RenameSnapshot, &RenameSnapshotRequest { header, name, new_name, number })
    }
    pub fn skip_inodes(&mut self) {
        self.done(Opcode::SkipInodes, &SkipInodes {}).expect("an internal entry");
    }
    pub fn open(&self, inode: u64, access: u32, extents_max: u32) -> Answer<OpenResponse> {
        let request = OpenRequest { header: self.header(0), inode, access, extents_max, ..Default::default() };
        self.read(Opcode::Open, &request)
    }
    pub fn open_at(&self, parent: u64, name: &str, access: u32) -> Answer<OpenResponse> {
        let header = self.header(0);
        self.read(Opcode::Open, &OpenRequest { header, parent, name: name.into(), access, ..Default::default() })
    }
    /// As a session that has no locks.
    pub fn get_lock(&self, inode: u64, flock: bool, byte: u64) -> Answer<GetLockResponse> {
        let header = self.header(0).map(|header| MetaHeader { session: u64::MAX, ..header });
        let (kind, start, end) = (flock.into(), byte, byte);
        self.read(Opcode::GetLock, &GetLockRequest { header, inode, owner: 0, kind, r#type: 2, start, end })
    }
    pub fn set_quota(&mut self, inode: u64, bytes_max: u64, inodes_max: u64) -> Answer<()> {
        let (header, remove) = (self.next(), bytes_max == 0 && inodes_max == 0);
        self.done(Opcode::SetQuota, &SetQuotaRequest { header, inode, bytes_max, inodes_max, remove })
    }
    pub fn quota(&self, inode: u64) -> Answer<Quota> {
        let request = GetQuotaRequest { header: self.header(0), inode };
        self.read::<QuotaResponse>(Opcode::GetQuota, &request).map(|a| a.quota.expect("a quota"))
    }
    pub fn quotas(&self) -> Vec<Quota> {
        let request = ListQuotasRequest { header: self.header(0), ..Default::default() };
        self.read::<ListQuotasResponse>(Opcode::ListQuotas, &request).expect("a list").quotas
    }
    pub fn getattr_many(&self, inodes: &[u64]) -> Answer<Vec<Attributes>> {
        let request = GetattrManyRequest { header: self.header(0), inodes: inodes.to_vec(), apart: false };
        self.read::<GetattrManyResponse>(Opcode::GetattrMany, &request).map(|a| a.attributes)
    }
    pub fn free_done(&mut self, free_ids: &[u64]) {
        self.done(Opcode::FreeDone, &FreeDone { free_ids: free_ids.to_vec() }).expect("an internal entry");
    }

    pub fn lookup(&self, parent: u64, name: &str) -> Answer<Attributes> {
        let request = LookupRequest { header: self.header(0), parent, name: name.into() };
        self.read::<AttributesResponse>(Opcode::Lookup, &request).map(|a| a.attributes.expect("attributes"))
    }
    pub fn getattr(&self, inode: u64) -> Answer<Attributes> {
        let request = GetattrRequest { header: self.header(0), inode };
        self.read::<AttributesResponse>(Opcode::Getattr, &request).map(|a| a.attributes.expect("attributes"))
    }
    pub fn resolve(&self, start: u64, path: &str) -> Answer<ResolveResponse> {
        self.read(
            Opcode::Resolve,
            &ResolveRequest { header: self.header(0), start, path: path.into(), in_shard: false },
        )
    }
    pub fn readlink(&self, inode: u64) -> Answer<Vec<u8>> {
        let request = ReadlinkRequest { header: self.header(0), inode };
        self.read::<ReadlinkResponse>(Opcode::Readlink, &request).map(|a| a.target)
    }
    pub fn readdir_page(&self, inode: u64, after: &[u8], count_max: u32) -> Answer<ReaddirResponse> {
        let after = after.to_vec();
        let request =
            ReaddirRequest { header: self.header(0), inode, after, count_max, attributes: true, shards: false };
        self.read(Opcode::Readdir, &request)
    }
    /// All entries, in pages of three. What they say of extended attributes is so.
    pub fn readdir(&self, inode: u64) -> Answer<Vec<DirEntry>> {
        let (mut all, mut after) = (Vec::new(), Vec::new());
        loop {
            let page = self.readdir_page(inode, &after, 3)?;
            if let Some(last) = page.entries.last() {
                after = last.cookie.clone();
            }
            for entry in page.entries.iter().filter(|entry| entry.no_xattrs) {
                assert!(entry.attributes.is_some(), "{entry:?}");
                assert_eq!(self.list_xattr(entry.inode).as_deref(), Ok(&[][..]), "{entry:?}");
            }
            all.extend(page.entries);
            if page.end {
                return Ok(all);
            }
        }
    }
    pub fn names(&self, inode: u64) -> Vec<String> {
        let entries = self.readdir(inode).expect("a readable directory");
        entries.into_iter().map(|e| String::from_utf8_lossy(&e.name).into_owned()).collect()
    }
    pub fn extents(&self, inode: u64) -> Answer<Vec<Extent>> {
        let request = GetExtentsRequest { header: self.header(0), inode, ..Default::default() };
        self.read::<GetExtentsResponse>(Opcode::GetExtents, &request).map(|a| a.extents)
    }
    /// As whoever moves bytes asks for them.
    pub fn extents_to_move(&self, inode: u64) -> Vec<Extent> {
        let (mut all, mut offset): (Vec<Extent>, u64) = (Vec::new(), 0);
        loop {
            // In pages of one, so that some end within an extent.
            let header = self.header(0);
            let request = GetExtentsRequest { header, inode, offset, length: 0, count_max: 1, shared_now: true };
            let page = self.read::<GetExtentsResponse>(Opcode::GetExtents, &request).expect("extents");
            offset = page.extents.last().map_or(offset, |last| last.file_offset + last.length);
            all.extend(page.extents);
            if page.end {
                return all;
            }
        }
    }
    pub fn get_xattr(&self, inode: u64, name: &str) -> Answer<Vec<u8>> {
        let request = GetXattrRequest { header: self.header(0), inode, name: name.into() };
        self.read::<GetXattrResponse>(Opcode::GetXattr, &request).map(|a| a.value)
    }
    pub fn list_xattr(&self, inode: u64) -> Answer<Vec<String>> {
        let request = ListXattrRequest { header: self.header(0), inode };
        let answer = self.read::<ListXattrResponse>(Opcode::ListXattr, &request)?;
        Ok(answer.names.into_iter().map(|n| String::from_utf8_lossy(&n).into_owned()).collect())
    }
    pub fn access(&self, inode: u64, mask: u32) -> Answer<()> {
        let request = AccessRequest { header: self.header(0), inode, mask };
        self.read::<Empty>(Opcode::Access, &request).map(|_| ())
    }
    pub fn statfs(&self) -> StatfsResponse {
        self.read(Opcode::Statfs, &StatfsRequest { header: self.header(0), ..Default::default() }).expect("statfs")
    }
    /// (index, first block, blocks) of all pending free records.
    pub fn frees(&self) -> Vec<(u32, u64, u64)> {
        self.namespace.pending_frees(0, 1 << 20).iter().map(|f| (f.index, f.first_block, f.blocks)).collect()
    }
}
