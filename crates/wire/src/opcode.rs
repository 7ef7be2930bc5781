//! The closed table of operations on the wire. Codes are never reused; ranges name the service. 0x00xx all, 0x01xx
//! raft, 0x02xx manager, 0x03xx data, 0x04xx meta reads, 0x05xx meta mutations, 0x06xx work with files that data nodes
//! do for others, 0x07xx administration.

macro_rules! opcodes {
    ($($name:ident = $code:literal, $request:path => $response:path;)*) => {
        /// An operation. The comment in the table names request and answer messages.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[repr(u16)]
        pub enum Opcode { $($name = $code,)* }

        impl Opcode {
            /// Every operation of the table.
            pub const ALL: &'static [Opcode] = &[$(Opcode::$name,)*];

            pub fn from_code(code: u16) -> Option<Self> {
                match code { $($code => Some(Self::$name),)* _ => None }
            }
            pub const fn code(self) -> u16 { self as u16 }
            pub const fn name(self) -> &'static str { match self { $(Self::$name => stringify!($name),)* } }
            /// Names of the request and of the answer message, for documentation and inspection.
            pub const fn messages(self) -> (&'static str, &'static str) {
                match self { $(Self::$name => (stringify!($request), stringify!($response)),)* }
            }
        }

        /// Both messages of every row exist.
        mod calls {
            use crate::{common, data, manager, meta, raft};
            $(const _: fn() = || { fn message<M: prost::Message>() {} message::<$request>(); message::<$response>(); };)*
        }
    };
}

opcodes! {
    Ping = 0x0001, common::PingRequest => common::PingResponse;
    ProcessStats = 0x0002, common::Empty => common::ProcessStatsResponse;

    RaftMessages = 0x0101, raft::RaftBatch => common::Empty;
    FetchCheckpoint = 0x0102, raft::FetchCheckpointRequest => raft::FetchCheckpointResponse;
    GroupMembers = 0x0103, raft::GroupMembersRequest => raft::GroupMembersResponse;
    TakeCheckpoint = 0x0104, raft::TakeCheckpointRequest => raft::TakeCheckpointResponse;
    AcceptLoss = 0x0105, raft::AcceptLossRequest => common::Empty;

    Register = 0x0201, manager::RegisterRequest => manager::RegisterResponse;
    Heartbeat = 0x0202, manager::HeartbeatRequest => manager::HeartbeatResponse;
    GetMap = 0x0203, manager::GetMapRequest => manager::ClusterMap;
    OpenSession = 0x0204, manager::OpenSessionRequest => manager::OpenSessionResponse;
    ReportMember = 0x0205, manager::ReportMemberRequest => manager::ReportMemberResponse;
    EnsurePgs = 0x0206, manager::EnsurePgsRequest => manager::EnsurePgsResponse;
    CreateVolume = 0x0207, manager::CreateVolumeRequest => manager::CreateVolumeResponse;
    DeleteVolume = 0x0208, manager::DeleteVolumeRequest => common::Empty;
    GetConfig = 0x0209, manager::GetConfigRequest => manager::GetConfigResponse;
    SetConfig = 0x020a, manager::SetConfigRequest => manager::SetConfigResponse;
    Status = 0x020b, manager::StatusRequest => manager::StatusResponse;
    ChangeMembers = 0x020c, manager::ChangeMembersRequest => common::Empty;
    ForcePg = 0x020d, manager::ForcePgRequest => manager::ForcePgResponse;
    Drain = 0x020e, manager::DrainRequest => common::Empty;
    Remove = 0x020f, manager::RemoveRequest => common::Empty;
    Hibernate = 0x0210, manager::HibernateRequest => common::Empty;
    ListEvents = 0x0211, manager::ListEventsRequest => manager::ListEventsResponse;
    ClearGray = 0x0212, manager::ClearGrayRequest => common::Empty;
    SetVolume = 0x0213, manager::SetVolumeRequest => manager::SetConfigResponse;
    GoOn = 0x0214, manager::GoOnRequest => common::Empty;
    SplitPartition = 0x0215, manager::SplitPartitionRequest => manager::SplitPartitionResponse;

    StartJob = 0x0220, manager::StartJobRequest => manager::JobResponse;
    ListJobs = 0x0221, manager::ListJobsRequest => manager::ListJobsResponse;
    CancelJob = 0x0222, manager::CancelJobRequest => manager::JobResponse;
    TakeJob = 0x0223, manager::TakeJobRequest => manager::JobResponse;
    ReportJob = 0x0224, manager::ReportJobRequest => manager::ReportJobResponse;

    Allocate = 0x0301, data::AllocateRequest => data::AllocateResponse;
    ReserveIndices = 0x0302, data::ReserveIndicesRequest => data::ReserveIndicesResponse;
    Append = 0x0303, data::AppendRequest => data::AppendResponse;
    Sync = 0x0304, data::SyncRequest => data::SyncResponse;
    Seal = 0x0305, data::SealRequest => data::SealResponse;
    Read = 0x0306, data::ReadRequest => data::ReadResponse;
    ReportBadBlock = 0x0307, data::ReportBadBlockRequest => common::Empty;
    Free = 0x0308, data::FreeRequest => data::FreeResponse;
    ListChunks = 0x0309, data::ListChunksRequest => data::ListChunksResponse;
    ChunkTable = 0x030a, data::ChunkTableRequest => data::ChunkTableResponse;
    ApplyPgs = 0x030b, data::ApplyPgsRequest => data::ApplyPgsResponse;
    Overwrite = 0x030c, data::OverwriteRequest => data::OverwriteResponse;
    Scrub = 0x030d, data::ScrubRequest => data::ScrubResponse;
    BadBlocks = 0x030e, data::BadBlocksRequest => data::BadBlocksResponse;
    ListDigests = 0x030f, data::ListDigestsRequest => data::ListDigestsResponse;
    RecordAppend = 0x0310, data::RecordAppendRequest => data::RecordAppendResponse;

    Lookup = 0x0401, meta::LookupRequest => meta::AttributesResponse;
    Resolve = 0x0402, meta::ResolveRequest => meta::ResolveResponse;
    Getattr = 0x0403, meta::GetattrRequest => meta::AttributesResponse;
    Readlink = 0x0404, meta::ReadlinkRequest => meta::ReadlinkResponse;
    Readdir = 0x0405, meta::ReaddirRequest => meta::ReaddirResponse;
    GetExtents = 0x0406, meta::GetExtentsRequest => meta::GetExtentsResponse;
    GetXattr = 0x0407, meta::GetXattrRequest => meta::GetXattrResponse;
    ListXattr = 0x0408, meta::ListXattrRequest => meta::ListXattrResponse;
    Statfs = 0x0409, meta::StatfsRequest => meta::StatfsResponse;
    Access = 0x040a, meta::AccessRequest => common::Empty;
    Open = 0x040b, meta::OpenRequest => meta::OpenResponse;
    GetattrMany = 0x040c, meta::GetattrManyRequest => meta::GetattrManyResponse;
    GetLock = 0x040d, meta::GetLockRequest => meta::GetLockResponse;
    WaitLock = 0x040e, meta::WaitLockRequest => meta::WaitLockResponse;
    GetQuota = 0x040f, meta::GetQuotaRequest => meta::QuotaResponse;
    ListQuotas = 0x0410, meta::ListQuotasRequest => meta::ListQuotasResponse;
    Fsck = 0x0411, meta::FsckRequest => meta::FsckResponse;
    ReadStale = 0x0412, meta::ReadStaleRequest => meta::ReadStaleResponse;
    ShardDirectory = 0x0413, meta::ShardDirectoryRequest => meta::ShardDirectoryResponse;
    GetAppend = 0x0414, meta::GetAppendRequest => meta::OpenAppendResponse;
    WaitChange = 0x0418, meta::WaitChangeRequest => meta::AttributesResponse;
    AppendTurn = 0x0419, meta::AppendTurnRequest => meta::AppendTurnResponse;
    ListSnapshots = 0x0420, meta::ListSnapshotsRequest => meta::ListSnapshotsResponse;
    HoldCut = 0x0440, meta::HoldCutRequest => meta::HoldCutResponse;
    MakeCut = 0x0441, meta::MakeCutRequest => meta::CutResponse;
    TellSnapshots = 0x0442, meta::TellSnapshotsRequest => meta::TellSnapshotsResponse;
    CutCheckpoint = 0x0443, meta::CutCheckpointRequest => meta::CutCheckpoint;
    CutCheckpoints = 0x0444, meta::CutCheckpointsRequest => meta::CutCheckpointsResponse;
    StageStatus = 0x0450, meta::StageStatusRequest => meta::StageStatusResponse;
    ListChanged = 0x0451, meta::ListChangedRequest => meta::ListChangedResponse;
    EncodeSoon = 0x0452, meta::EncodeSoonRequest => meta::EncodeSoonResponse;
    PrepareTx = 0x0480, meta::PrepareTxRequest => meta::PrepareTxResponse;
    FinishTx = 0x0481, meta::FinishTxRequest => common::Empty;
    AskTx = 0x0482, meta::AskTxRequest => meta::AskTxResponse;
    AboveTx = 0x0483, meta::AboveTxRequest => meta::AboveTxResponse;
    StrikeNamed = 0x0484, meta::StrikeNamedRequest => meta::StrikeNamedResponse;
    EndedSessions = 0x0485, meta::EndedSessionsRequest => meta::EndedSessionsResponse;
    ListNamed = 0x0486, meta::ListNamedRequest => meta::ListNamedResponse;
    CheckPart = 0x0487, meta::CheckPartRequest => meta::CheckPartResponse;
    AskBound = 0x0490, meta::AskBoundRequest => meta::AskBoundResponse;
    TellBound = 0x0491, meta::TellBoundRequest => meta::TellBoundResponse;

    Mkdir = 0x0501, meta::MkdirRequest => meta::AttributesResponse;
    Create = 0x0502, meta::CreateRequest => meta::AttributesResponse;
    Symlink = 0x0503, meta::SymlinkRequest => meta::AttributesResponse;
    CreateUnnamed = 0x0504, meta::CreateUnnamedRequest => meta::AttributesResponse;
    Link = 0x0505, meta::LinkRequest => meta::AttributesResponse;
    Unlink = 0x0506, meta::UnlinkRequest => meta::RemovedResponse;
    Rmdir = 0x0507, meta::RmdirRequest => meta::RemovedResponse;
    RemoveTree = 0x0508, meta::RemoveTreeRequest => common::Empty;
    Rename = 0x0509, meta::RenameRequest => common::Empty;
    Setattr = 0x050a, meta::SetattrRequest => meta::AttributesResponse;
    SetXattr = 0x050b, meta::SetXattrRequest => common::Empty;
    RemoveXattr = 0x050c, meta::RemoveXattrRequest => common::Empty;
    Publish = 0x050d, meta::PublishRequest => meta::AttributesResponse;
    Hold = 0x050e, meta::HoldRequest => meta::AttributesResponse;
    Release = 0x050f, meta::ReleaseRequest => common::Empty;
    KeepAlive = 0x0510, meta::KeepAliveRequest => meta::KeepAliveResponse;
    EndSession = 0x0511, meta::EndSessionRequest => common::Empty;
    Discard = 0x0512, meta::DiscardRequest => common::Empty;
    Punch = 0x0513, meta::PunchRequest => meta::AttributesResponse;
    SetLock = 0x0514, meta::SetLockRequest => common::Empty;
    SetQuota = 0x0515, meta::SetQuotaRequest => common::Empty;
    OverwriteLease = 0x0516, meta::OverwriteLeaseRequest => meta::OverwriteLeaseResponse;
    CloneRange = 0x0517, meta::CloneRangeRequest => meta::CloneRangeResponse;
    NoteDurable = 0x0518, meta::NoteDurableRequest => common::Empty;
    PublishVolatile = 0x0519, meta::PublishRequest => meta::AttributesResponse;
    PublishAttributes = 0x051a, meta::PublishAttributesRequest => meta::AttributesResponse;
    OpenAppend = 0x051b, meta::OpenAppendRequest => meta::OpenAppendResponse;
    PublishAppend = 0x051c, meta::PublishAppendRequest => meta::OpenAppendResponse;
    CloseAppend = 0x051d, meta::PublishAppendRequest => meta::OpenAppendResponse;
    Batch = 0x051e, meta::BatchRequest => meta::BatchResponse;
    EndDelegations = 0x051f, meta::EndDelegationsRequest => common::Empty;
    CreateSnapshot = 0x0530, meta::CreateSnapshotRequest => meta::CreateSnapshotResponse;
    DeleteSnapshot = 0x0531, meta::DeleteSnapshotRequest => common::Empty;
    RenameSnapshot = 0x0532, meta::RenameSnapshotRequest => common::Empty;
    SetSnapshotSchedule = 0x0533, meta::SetSnapshotScheduleRequest => common::Empty;
    ExpireSessions = 0x0580, meta::ExpireSessions => common::Empty;
    ReclaimBatch = 0x0581, meta::ReclaimBatch => common::Empty;
    FreeDone = 0x0582, meta::FreeDone => common::Empty;
    SetDeferral = 0x0583, meta::SetDeferral => common::Empty;
    FreeGarbage = 0x0584, meta::FreeGarbage => common::Empty;
    MendNamespace = 0x0585, meta::MendNamespace => common::Empty;
    ExpireTrash = 0x0586, meta::ExpireTrash => common::Empty;
    SetFeatureLevel = 0x0587, meta::SetFeatureLevel => common::Empty;
    EndVolatile = 0x0588, meta::EndVolatile => common::Empty;
    SkipInodes = 0x0589, meta::SkipInodes => common::Empty;
    TxPrepare = 0x058a, meta::TxPrepare => meta::TxPrepared;
    TxDecide = 0x058b, meta::TxDecide => common::Empty;
    TxFinish = 0x058c, meta::TxFinish => common::Empty;
    TxDone = 0x058d, meta::TxDone => common::Empty;
    ReclaimEntry = 0x058e, meta::ReclaimEntry => common::Empty;
    EndRange = 0x058f, meta::EndRange => common::Empty;
    TakeSessions = 0x0590, meta::TakeSessions => common::Empty;
    AddShard = 0x0591, meta::AddShard => common::Empty;
    SetFullness = 0x0592, meta::SetFullness => common::Empty;
    Lend = 0x05a0, meta::Lend => common::Empty;
    NoteLent = 0x05a1, meta::NoteLent => common::Empty;
    NoteLimit = 0x05a2, meta::NoteLimit => common::Empty;
    SetBound = 0x05a3, meta::SetBound => common::Empty;
    AtLimit = 0x05a4, meta::AtLimit => common::Empty;
    RunSchedule = 0x05b0, meta::RunSchedule => common::Empty;
    QuietSnapshots = 0x05ba, meta::QuietSnapshots => meta::CutResponse;
    CutSnapshot = 0x05bb, meta::CutSnapshot => meta::CutResponse;
    EndCut = 0x05bc, meta::EndCut => meta::CreateSnapshotResponse;
    FollowSnapshots = 0x05bd, meta::FollowSnapshots => common::Empty;

    Compact = 0x0601, data::CompactRequest => data::CompactResponse;
    Defragment = 0x0602, data::DefragmentRequest => data::DefragmentResponse;
    TendAppend = 0x0614, data::TendAppendRequest => data::TendAppendResponse;

    Encode = 0x0610, data::EncodeRequest => data::EncodeResponse;

    Relay = 0x0701, common::RelayRequest => common::RelayResponse;
    RestoreVolume = 0x0702, manager::RestoreVolumeRequest => common::Empty;
    PurgeVolume = 0x0703, manager::PurgeVolumeRequest => common::Empty;
    RevokeKeys = 0x0704, manager::RevokeKeysRequest => manager::RevokeKeysResponse;
}

impl Opcode {
    /// A read of names that a member which does not lead may answer from what it has ([`Opcode::ReadStale`]).
    pub const fn may_be_stale(self) -> bool {
        matches!(
            self,
            Self::Lookup
                | Self::Resolve
                | Self::Getattr
                | Self::GetattrMany
                | Self::Readlink
                | Self::Readdir
                | Self::GetExtents
                | Self::GetXattr
                | Self::ListXattr
                | Self::Statfs
                | Self::Access
                | Self::GetQuota
                | Self::ListQuotas
        )
    }
    /// A change of the cluster that is for its administrator: servers take it from root and from their own user, on the
    /// admin socket, and from each other; over TCP from others only where their configuration says so. What is not here
    /// is asked by servers or by anybody's files and programs.
    pub const fn is_admin_change(self) -> bool {
        matches!(
            self,
            Self::AcceptLoss
                | Self::CreateVolume
                | Self::DeleteVolume
                | Self::RestoreVolume
                | Self::PurgeVolume
                | Self::SetVolume
                | Self::SetConfig
                | Self::ChangeMembers
                | Self::ForcePg
                | Self::Drain
                | Self::Remove
                | Self::Hibernate
                | Self::ClearGray
                | Self::GoOn
                | Self::SplitPartition
                | Self::RevokeKeys
        )
    }
    /// A namespace mutation: logged, exactly once.
    pub const fn is_meta_mutation(self) -> bool {
        self.code() >> 8 == 0x05
    }
    /// The feature level from which on all members of a partition understand it in their log
    /// (`cairn_types::feature`): a new mutation gets the newest level.
    pub const fn feature_level(self) -> u32 {
        match self {
            Self::SetFeatureLevel => 1,
            Self::PublishVolatile | Self::NoteDurable | Self::EndVolatile => 2,
            Self::PublishAttributes => 4,
            Self::SkipInodes
            | Self::TxPrepare
            | Self::TxDecide
            | Self::TxFinish
            | Self::TxDone
            | Self::ReclaimEntry => 5,
            Self::EndRange | Self::TakeSessions => 6,
            Self::AddShard => 7,
            Self::OpenAppend | Self::PublishAppend | Self::CloseAppend => 9,
            Self::Lend | Self::NoteLent | Self::NoteLimit | Self::SetBound | Self::AtLimit => 7,
            Self::CreateSnapshot | Self::DeleteSnapshot | Self::RenameSnapshot => 10,
            Self::SetSnapshotSchedule | Self::RunSchedule => 13,
            Self::QuietSnapshots | Self::CutSnapshot | Self::EndCut | Self::FollowSnapshots => 16,
            Self::SetFullness => 26,
            Self::Batch | Self::EndDelegations => 28,
            _ => 0,
        }
    }
    /// What leaders of partitions ask each other, and nobody else asks.
    pub const fn is_between_servers(self) -> bool {
        matches!(self.code(), 0x0440..=0x0443 | 0x0480..=0x04ff)
    }
    /// A mutation that only a partition's leader itself may propose.
    pub const fn is_internal(self) -> bool {
        self.code() >= 0x0580 && self.code() <= 0x05ff
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_unique_and_decode() {
        for (i, opcode) in Opcode::ALL.iter().enumerate() {
            assert_eq!(Opcode::from_code(opcode.code()), Some(*opcode));
            assert!(Opcode::ALL[i + 1..].iter().all(|o| o.code() != opcode.code()));
        }
        assert_eq!(Opcode::from_code(0), None);
    }

    /// What a new operation is has to be decided: one that changes the cluster and is not in the table would be
    /// anybody's.
    #[test]
    fn every_operation_is_a_change_for_administrators_or_known_not_to_be() {
        use Opcode::*;
        // Of all servers, of Raft between nodes, reads, what servers report, what clients need for files, and jobs on
        // trees, which work as the user who asked.
        let others = [
            Ping,
            ProcessStats,
            RaftMessages,
            FetchCheckpoint,
            GroupMembers,
            TakeCheckpoint,
            Register,
            Heartbeat,
            GetMap,
            OpenSession,
            ReportMember,
            EnsurePgs,
            GetConfig,
            Status,
            ListEvents,
            StartJob,
            ListJobs,
            CancelJob,
            TakeJob,
            ReportJob,
            Relay,
        ];
        for opcode in Opcode::ALL {
            let of_files = matches!(opcode.code() >> 8, 3..=6);
            let known = others.contains(opcode) || of_files;
            assert!(known != opcode.is_admin_change(), "{} belongs into exactly one of the two lists", opcode.name());
        }
    }
}
