//! [`Namespace`]: the state machine, its entry points, and the order of checks that is common to all operations.
use crate::counters::Counters;
use crate::delegation::Delegations;
use crate::encoding::{Extent, Inode, NodeType};
use crate::error::{OpError, Result};
use crate::fullness::Fullness;
use crate::layers::Layers;
use crate::lend::Lending;
use crate::message::request::{Header, SetDeferral, SetFeatureLevel, Who};
use crate::session::{Gate, SessionState, SessionTable};
use crate::shards::Huge;
use crate::snapshots::{SNAPSHOT_LEVEL, Snapshots};
use crate::tx::TxTable;
use crate::waiting::Waiting;
use cairn_types::{ErrorCode, InodeId, Layout, PartitionId, VolumeId, WallTime, era_of};
use cairn_wire::Opcode;
use cairn_wire::error::WireError;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// Where in the log an operation stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AppliedAt {
    /// Raft index of the entry.
    pub index: u64,
    /// Term of the leader that proposed it.
    pub term: u64,
    /// Logged time.
    pub time: WallTime,
}

/// What a partition is; the same on every replica.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NamespaceConfig {
    pub volume: VolumeId,
    pub partition: PartitionId,
    /// Inode ids that the partition gives out, ascending, never twice. The partition whose range has 1 has the root.
    pub inodes: RangeInclusive<u64>,
    /// Layout of the root directory.
    pub layout: Layout,
    pub root_mode: u16,
    pub root_uid: u32,
    pub root_gid: u32,
    /// Times of the root directory.
    pub created: WallTime,
}

impl NamespaceConfig {
    /// A partition with all inode ids and a root directory where everybody may make entries and only the owner removes
    /// them (mode 1777), as a cluster without users has it.
    pub fn new(volume: VolumeId, partition: PartitionId, layout: Layout) -> Self {
        Self {
            volume,
            partition,
            inodes: 1..=u64::MAX,
            layout,
            root_mode: 0o1777,
            root_uid: 0,
            root_gid: 0,
            created: WallTime(0),
        }
    }
}

/// The namespace of a partition.
#[derive(Debug)]
pub struct Namespace {
    pub(crate) volume: u32,
    pub(crate) partition: u32,
    /// Ids from here to `inode_last` are this partition's own.
    pub(crate) inode_first: u64,
    pub(crate) inode_last: u64,
    /// The next inode id to give; past `inode_last` (or 0 after the last u64) when there is none left.
    pub(crate) inode_next: u64,
    pub(crate) free_next: u64,
    /// Position of the last operation.
    pub(crate) applied: u64,
    pub(crate) time: u64,
    /// Feature level that all members understand.
    pub(crate) level: u16,
    pub(crate) counters: Counters,
    /// Files that are being cut, counted when a checkpoint is loaded.
    pub(crate) cuts: u64,
    /// Files with volatile bytes, counted when a checkpoint is loaded.
    pub(crate) volatiles: u64,
    /// Open appends that are listed.
    pub(crate) appending: u64,
    /// Files that wait to be encoded, counted when a checkpoint is loaded.
    pub(crate) staged: u64,
    /// Records of shared blocks, counted when a checkpoint is loaded.
    pub(crate) shares: u64,
    /// Sessions use Open; found again when a checkpoint is loaded, as the next two.
    pub(crate) deferring: bool,
    /// Found again when a checkpoint is loaded.
    pub(crate) fullness: Fullness,
    /// Inodes whose death is deferred.
    pub(crate) deferred: u64,
    /// Number of the last deferred death.
    pub(crate) death_last: u64,
    /// Locks of all inodes, and by session; found again when a checkpoint is loaded.
    pub(crate) locks: u64,
    pub(crate) session_locks: BTreeMap<u64, u64>,
    /// Directories with quotas, removed ones among them; directories to be counted over; the volume's limits on bytes
    /// and inodes. Found again when a checkpoint is loaded.
    pub(crate) quotas: u64,
    pub(crate) recounts: u64,
    pub(crate) volume_quota: Option<(u64, u64)>,
    /// What partitions may use of those limits.
    pub(crate) lending: Lending,
    /// Inodes on which a lock was given back since somebody asked. No state.
    pub(crate) released_locks: Vec<u64>,
    /// Session and inode of overwrite leases that were in somebody's way since somebody asked. No state.
    pub(crate) wanted_leases: Vec<(u64, u64)>,
    /// Files that got extents since somebody asked. No state.
    pub(crate) grown: Vec<(u64, u64)>,
    /// Operations across partitions; found again when a checkpoint is loaded.
    pub(crate) txs: TxTable,
    /// Entries that wait for `ReclaimEntry`, and directories; counted when a checkpoint is loaded.
    pub(crate) waiting: Waiting,
    /// What sessions lead; found again when a checkpoint is loaded.
    pub(crate) delegations: Delegations,
    /// Directories that may have to be sharded. No state.
    pub(crate) huge: Huge,
    pub(crate) tree: Layers,
    pub(crate) snapshots: Snapshots,
    /// It is read as of a snapshot, by numbers with these upper bits: see `view`.
    pub(crate) is_view: bool,
    pub(crate) outward: u64,
    pub(crate) sessions: SessionTable,
    pub(crate) scratch: Scratch,
}

/// Buffers that are reused from one operation to the next. No state.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    pub value: Vec<u8>,
    pub incoming: Vec<Extent>,
    pub touched: Vec<Extent>,
    pub sets: Vec<crate::stripe_set::Columns>,
}

/// Circumstances of one mutation.
#[derive(Clone, Copy)]
pub(crate) struct Context<'a> {
    /// Logged time in nanoseconds since 1970.
    pub now: u64,
    pub who: Who<'a>,
    pub session: u64,
}

impl Namespace {
    /// Without anything in it.
    pub(crate) fn empty(volume: u32, partition: u32, inode_first: u64, inode_last: u64) -> Namespace {
        Namespace {
            volume,
            partition,
            inode_first,
            inode_last,
            inode_next: inode_first,
            free_next: 1,
            applied: 0,
            time: 0,
            level: 0,
            counters: Counters::default(),
            cuts: 0,
            volatiles: 0,
            appending: 0,
            staged: 0,
            shares: 0,
            deferring: false,
            fullness: Fullness::default(),
            deferred: 0,
            death_last: 0,
            locks: 0,
            quotas: 0,
            recounts: 0,
            volume_quota: None,
            lending: Lending::default(),
            session_locks: BTreeMap::new(),
            released_locks: Vec::new(),
            wanted_leases: Vec::new(),
            grown: Vec::new(),
            txs: TxTable::default(),
            waiting: Waiting::default(),
            delegations: Delegations::default(),
            huge: Huge::default(),
            tree: Layers::default(),
            snapshots: Snapshots::default(),
            is_view: false,
            outward: 0,
            sessions: SessionTable::default(),
            scratch: Scratch::default(),
        }
    }

    /// An empty partition; with a root directory if its range has inode 1.
    pub fn new(config: &NamespaceConfig) -> Namespace {
        let (first, last) = (*config.inodes.start(), *config.inodes.end());
        let has_root = config.inodes.contains(&InodeId::ROOT.0);
        let (volume, partition) = (config.volume.0, config.partition.0);
        let mut namespace = Namespace::empty(volume, partition, first.max(InodeId::ROOT.0), last);
        namespace.inode_next = if has_root { InodeId::ROOT.0 + 1 } else { first.max(InodeId::ROOT.0) };
        namespace.time = config.created.0;
        if has_root {
            let root = Inode {
                mode: NodeType::Directory as u16 | config.root_mode & 0o7777,
                nlink: 2,
                uid: config.root_uid,
                gid: config.root_gid,
                layout: config.layout.to_bits(),
                parent: InodeId::ROOT.0,
                ..Inode::at(config.created.0)
            };
            namespace.put_inode(InodeId::ROOT.0, &root);
            namespace.counters.inodes = 1;
            namespace.counters.directories = 1;
        }
        namespace
    }

    /// Executes a logged operation: `request` are the bytes of its message, the answer's bytes are appended to `out`.
    ///
    /// An error means that nothing was changed. It is kept like any answer, with these exceptions, which leave the
    /// sequence number unused: `BadRequest`, `UnknownOperation`, `UnknownPartition`, `BadSequence`, `SessionEnded`,
    /// `Overloaded`, `LeaseHeld`, `CrossVolume`.
    pub fn apply(
        &mut self,
        at: AppliedAt,
        opcode: Opcode,
        request: &[u8],
        out: &mut Vec<u8>,
    ) -> std::result::Result<(), WireError> {
        self.applied = at.index;
        // The leader's clock may have stepped back between two entries; times in the namespace never do.
        self.time = self.time.max(at.time.0);
        self.apply_at(at, opcode, request, out).map_err(|error| self.tell_full(error))
    }

    fn apply_at(
        &mut self,
        at: AppliedAt,
        opcode: Opcode,
        request: &[u8],
        out: &mut Vec<u8>,
    ) -> std::result::Result<(), WireError> {
        match opcode {
            Opcode::TxPrepare => return self.tx_prepare(request, out).map_err(OpError::to_wire),
            Opcode::TxDecide => return self.tx_decide(at.term, request, out),
            Opcode::SkipInodes => {
                self.pass_over(at.term);
                return Ok(());
            }
            Opcode::AtLimit => return self.apply_at_limit(request, out),
            Opcode::QuietSnapshots => return self.quiet_snapshots(out).map_err(OpError::to_wire),
            Opcode::CutSnapshot => return self.cut_snapshot(at, request, out).map_err(OpError::to_wire),
            Opcode::EndCut => return self.end_cut(request, out),
            _ if opcode.is_internal() => return self.apply_internal(opcode, request).map_err(OpError::to_wire),
            _ => {}
        }
        self.apply_once(opcode, request, out, |_| ())
    }

    /// Executes a client's request if it was not before; `done` follows if it was done now.
    pub(crate) fn apply_once(
        &mut self,
        opcode: Opcode,
        request: &[u8],
        out: &mut Vec<u8>,
        done: impl FnOnce(&mut Self),
    ) -> std::result::Result<(), WireError> {
        let header = self.header(request).map_err(OpError::to_wire)?;
        match opcode {
            Opcode::EndSession => {
                self.end_session(header.session);
                return Ok(());
            }
            Opcode::KeepAlive => return self.sessions.check_not_ended(header.session).map_err(OpError::to_wire),
            _ => {}
        }
        match self.sessions.gate(header.session, header.slot, header.sequence).map_err(OpError::to_wire)? {
            Gate::Kept(answer) => return SessionTable::repeat(answer, out),
            Gate::Execute => {}
        }
        let context = Context { now: self.time, who: header.who, session: header.session };
        let start = out.len();
        let result = self.mutate(opcode, &context, request, out).map_err(|error| match error {
            OpError::STALE | OpError::NOT_FOUND | OpError::REMOVED => {
                self.refuse_apart(opcode, request).unwrap_or(error)
            }
            error => error,
        });
        match result {
            Ok(()) => {
                self.sessions.keep_answer(header.session, header.slot, header.sequence, &out[start..]);
                done(self);
            }
            Err(error) => {
                out.truncate(start);
                if !leaves_number_unused(error.code) {
                    self.sessions.keep_error(header.session, header.slot, header.sequence, error);
                }
            }
        }
        result.map_err(OpError::to_wire)
    }

    /// Answers a read; the answer's bytes are appended to `out`.
    pub fn read(&self, opcode: Opcode, request: &[u8], out: &mut Vec<u8>) -> std::result::Result<(), WireError> {
        let start = out.len();
        let result = self.header(request).and_then(|header| match self.answer(opcode, &header, request, out) {
            Err(OpError::STALE) if self.has_views() => {
                out.truncate(start);
                self.answer_apart(opcode, &header, request, out)
            }
            result => result,
        });
        result.map_err(|error| {
            out.truncate(start);
            error.to_wire()
        })
    }

    pub(crate) fn mutate(
        &mut self,
        opcode: Opcode,
        context: &Context<'_>,
        request: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<()> {
        match opcode {
            Opcode::Create => self.create(context, request, out),
            Opcode::Mkdir => self.mkdir(context, request, out),
            Opcode::Symlink => self.symlink(context, request, out),
            Opcode::CreateUnnamed => self.create_unnamed(context, request, out),
            Opcode::Link => self.link(context, request, out),
            Opcode::Unlink => self.unlink(context, request),
            Opcode::Rmdir => self.rmdir(context, request),
            Opcode::RemoveTree => self.remove_tree(context, request),
            Opcode::Rename => self.rename(context, request),
            Opcode::Setattr => self.setattr(context, request, out),
            Opcode::SetXattr => self.set_xattr(context, request),
            Opcode::RemoveXattr => self.remove_xattr(context, request),
            Opcode::Publish => self.publish(context, request, out, false),
            Opcode::PublishVolatile => self.publish(context, request, out, true),
            Opcode::PublishAttributes => self.publish_attributes(context, request, out),
            Opcode::Hold => self.hold(context, request, out),
            Opcode::Release => self.release(context, request),
            Opcode::Discard => self.discard(context, request),
            Opcode::SetLock => self.set_lock(context, request),
            Opcode::SetQuota => self.set_quota(context, request),
            Opcode::Punch => self.punch(context, request, out),
            Opcode::OverwriteLease => self.overwrite_lease(context, request, out),
            Opcode::CloneRange => self.clone_range(context, request, out),
            Opcode::NoteDurable => self.note_durable(context, request),
            Opcode::OpenAppend => self.open_append(context, request, out),
            Opcode::PublishAppend => self.publish_append(context, request, out, false),
            Opcode::CloseAppend => self.publish_append(context, request, out, true),
            Opcode::Batch => self.batch(context, request, out),
            Opcode::EndDelegations => self.end_delegations(context, request),
            Opcode::CreateSnapshot => self.create_snapshot(context, request, out),
            Opcode::DeleteSnapshot => self.delete_snapshot(context, request),
            Opcode::RenameSnapshot => self.rename_snapshot(context, request),
            Opcode::SetSnapshotSchedule => self.set_schedule(context, request),
            _ => Err(OpError::new(ErrorCode::UnknownOperation, "not a mutation of the namespace")),
        }
    }

    pub(crate) fn answer(&self, opcode: Opcode, header: &Header<'_>, request: &[u8], out: &mut Vec<u8>) -> Result<()> {
        let who = &header.who;
        match opcode {
            Opcode::Lookup => self.lookup(who, request, out),
            Opcode::Resolve => self.resolve(who, request, out),
            Opcode::Getattr => self.getattr(request, out),
            Opcode::Readlink => self.readlink(request, out),
            Opcode::Readdir => self.readdir(who, request, out),
            Opcode::GetExtents => self.get_extents(header, request, out),
            Opcode::GetXattr => self.get_xattr(who, request, out),
            Opcode::ListXattr => self.list_xattr(who, request, out),
            Opcode::Statfs => self.statfs(out),
            Opcode::Access => self.access(who, request),
            Opcode::Open => self.open(header, request, out),
            Opcode::GetQuota => self.get_quota(request, out),
            Opcode::ListQuotas => self.list_quotas(request, out),
            Opcode::GetLock => self.get_lock(header, request, out),
            Opcode::WaitLock => self.wait_lock(header, request, out),
            Opcode::GetattrMany => self.getattr_many(request, out),
            Opcode::GetAppend => self.get_append(request, out),
            Opcode::ListChanged => self.list_changed(who, request, out),
            Opcode::ListSnapshots => {
                self.list_snapshots(out);
                Ok(())
            }
            _ => Err(OpError::new(ErrorCode::UnknownOperation, "not a read of the namespace")),
        }
    }

    /// Nobody has used the partition yet, and it has no feature level.
    pub fn is_unused(&self) -> bool {
        self.level == 0 && self.sessions.is_new()
    }

    fn apply_internal(&mut self, opcode: Opcode, request: &[u8]) -> Result<()> {
        match opcode {
            Opcode::ExpireSessions => self.expire_sessions(request),
            Opcode::ReclaimBatch => self.reclaim_batch(request),
            Opcode::ReclaimEntry => self.reclaim_entry(request),
            Opcode::AddShard => self.add_shard(request),
            Opcode::FreeDone => self.free_done(request),
            Opcode::FreeGarbage => self.free_garbage(request),
            Opcode::MendNamespace => self.mend(request),
            Opcode::ExpireTrash => self.expire_trash(request),
            Opcode::RunSchedule => self.run_schedule(request),
            Opcode::FollowSnapshots => self.follow_snapshots(request),
            Opcode::SetFeatureLevel => {
                let level = u16::try_from(SetFeatureLevel::decode(request)?.level);
                let level = level.map_err(|_| OpError::new(ErrorCode::BadRequest, "a feature level above 65535"))?;
                let before = self.level;
                if level > before {
                    self.wait_for_delegations()?;
                }
                self.level = level.max(before);
                if before < SNAPSHOT_LEVEL && !self.sessions.is_new() {
                    // Of leases that lapsed before nothing was noted.
                    self.note_lapsed();
                }
                Ok(())
            }
            Opcode::EndVolatile => self.end_volatile(request),
            Opcode::TxFinish => self.tx_finish(request),
            Opcode::TxDone => self.tx_done(request),
            Opcode::EndRange => self.end_range(),
            Opcode::TakeSessions => self.take_sessions(request),
            Opcode::Lend | Opcode::NoteLent | Opcode::NoteLimit | Opcode::SetBound => {
                self.apply_lending(opcode, request)
            }
            Opcode::SetDeferral => {
                self.set_deferring(SetDeferral::decode(request)?.on);
                Ok(())
            }
            Opcode::SetFullness => self.set_fullness(request),
            _ => Err(OpError::new(ErrorCode::UnknownOperation, "not an operation of a partition's leader")),
        }
    }

    /// What it may have given and forgotten is not given again.
    fn pass_over(&mut self, term: u64) {
        self.skip_inodes(era_of(term));
        self.forget_lent();
        if self.is_home() && self.is_one_of_several() && self.has_snapshots() {
            // What it forgot of snapshots others are told as news.
            self.note_changed_snapshots(self.time);
        }
    }

    fn header<'a>(&self, request: &'a [u8]) -> Result<Header<'a>> {
        let header = Header::find(request)?;
        if header.volume != self.volume || header.partition != self.partition {
            return Err(OpError::new(
                ErrorCode::UnknownPartition,
                "the request is for another partition; refresh the cluster map",
            ));
        }
        Ok(header)
    }
}

/// Errors of requests that may be sent again under the same number and are looked at anew then.
const fn leaves_number_unused(code: ErrorCode) -> bool {
    use ErrorCode::{BadRequest, CrossVolume, LeaseHeld, Overloaded, UnknownOperation, UnknownPartition};
    matches!(code, BadRequest | CrossVolume | UnknownOperation | UnknownPartition | Overloaded | LeaseHeld)
}

/// Facts for the server around it.
impl Namespace {
    pub fn volume(&self) -> VolumeId {
        VolumeId(self.volume)
    }
    /// The activated feature level.
    pub fn feature_level(&self) -> u32 {
        u32::from(self.level)
    }
    pub fn partition(&self) -> PartitionId {
        PartitionId(self.partition)
    }
    /// Raft index of the last operation.
    pub fn applied_index(&self) -> u64 {
        self.applied
    }
    /// Newest logged time.
    pub fn time(&self) -> WallTime {
        WallTime(self.time)
    }
    pub fn counters(&self) -> Counters {
        self.counters
    }
    /// Bytes of memory that the state takes.
    pub fn memory_bytes(&self) -> u64 {
        self.tree.memory_bytes() as u64 + self.sessions.memory_bytes()
    }
    /// Inode ids that are left to give.
    pub fn inodes_left(&self) -> u64 {
        match self.next_inode() {
            Ok(next) => (self.inode_last - next).saturating_add(1),
            Err(_) => 0,
        }
    }
    /// What is known of a session here. One that has made no mutation yet is `Unknown`, which is no fault.
    pub fn session_state(&self, session: u64) -> SessionState {
        self.sessions.state(session)
    }
    /// Memory of sessions, their slots and kept answers.
    pub fn session_bytes(&self) -> u64 {
        self.sessions.memory_bytes()
    }
    /// Whether a slot of a session was used, so that a request in it needs no further memory.
    pub fn has_slot(&self, session: u64, slot: u32) -> bool {
        self.sessions.has_slot(session, slot)
    }
    /// Live sessions, ascending: what a new leader has to grant a full lease.
    pub fn live_sessions(&self) -> impl Iterator<Item = u64> + '_ {
        self.sessions.live()
    }
}
