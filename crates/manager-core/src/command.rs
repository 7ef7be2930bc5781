//! Commands: what the manager's Raft group logs. Protobuf of its own, so that log and wire change independently.
//!
//! Format: [`LogItem`] with `format` 1 and one command. Field numbers are never reused, new commands get new numbers.
//! A command that this build does not know (written by a later one) is an error, never skipped: skipping would make
//! members differ. Invariant: a command holds everything that `apply` needs; in particular what only the leader knows
//! (who was heard, which disks are least used) is in it.
mod binding;
mod jobs;
mod level;
mod revoked;
mod volumes;

pub use binding::{BINDING_LEVEL, BindNode};
pub use jobs::{AssignJob, CancelJob, ReportJob, StartJob};
pub use revoked::{REVOKED_LEVEL, RevokeKeys};
pub use volumes::{
    CreateVolume, DeleteVolume, MembersOf, PartitionAt, PartitionSettled, PartitionsBegun, RestoreVolume,
    SetPartitionMembers, SetVolume, TrashVolume,
};

use cairn_types::generation::Generation;
use prost::{Message, Oneof};

/// Format of commands that this build writes and reads.
pub const FORMAT: u32 = 1;

/// One item of the log.
#[derive(Clone, PartialEq, Message)]
pub struct LogItem {
    #[prost(uint32, tag = "1")]
    pub format: u32,
    #[prost(
        oneof = "Command",
        tags = "2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 47, 48"
    )]
    pub command: Option<Command>,
}

/// A change of the state.
#[derive(Clone, PartialEq, Oneof)]
pub enum Command {
    #[prost(message, tag = "2")]
    InitCluster(InitCluster),
    #[prost(message, tag = "3")]
    PutManager(PutManager),
    #[prost(message, tag = "4")]
    Register(Register),
    #[prost(message, tag = "5")]
    NodesDown(NodesDown),
    #[prost(message, tag = "6")]
    DiskStates(DiskStates),
    #[prost(message, tag = "7")]
    MemberFailed(MemberAt),
    #[prost(message, tag = "8")]
    Rejoin(MemberAt),
    #[prost(message, tag = "9")]
    CaughtUp(CaughtUp),
    #[prost(message, tag = "10")]
    CreatePgs(CreatePgs),
    #[prost(message, tag = "11")]
    SetPgsOpen(SetPgsOpen),
    #[prost(message, tag = "12")]
    CreateVolume(CreateVolume),
    #[prost(message, tag = "13")]
    DeleteVolume(DeleteVolume),
    #[prost(message, tag = "14")]
    SetPartitionMembers(SetPartitionMembers),
    #[prost(message, tag = "15")]
    GrantSessions(GrantSessions),
    #[prost(message, tag = "16")]
    SetConfig(SetConfig),
    #[prost(message, tag = "17")]
    PartitionsBegun(PartitionsBegun),
    #[prost(message, tag = "18")]
    PartitionSettled(PartitionSettled),
    #[prost(message, tag = "19")]
    ForcePg(ForcePg),
    #[prost(message, tag = "20")]
    ReplaceMembers(ReplaceMembers),
    #[prost(message, tag = "21")]
    TakeBack(MemberAt),
    #[prost(message, tag = "22")]
    FormersGone(FormersGone),
    #[prost(message, tag = "23")]
    BeginMoves(ReplaceMembers),
    #[prost(message, tag = "24")]
    CancelMoves(CancelMoves),
    #[prost(message, tag = "25")]
    SetDrain(SetDrain),
    #[prost(message, tag = "26")]
    Remove(Remove),
    #[prost(message, tag = "27")]
    Hibernate(Hibernate),
    #[prost(message, tag = "28")]
    Note(Note),
    #[prost(message, tag = "29")]
    SetGray(SetGray),
    #[prost(message, tag = "30")]
    StartJob(StartJob),
    #[prost(message, tag = "31")]
    AssignJob(AssignJob),
    #[prost(message, tag = "32")]
    ReportJob(ReportJob),
    #[prost(message, tag = "33")]
    CancelJob(CancelJob),
    #[prost(message, tag = "34")]
    ActivateLevel(ActivateLevel),
    #[prost(message, tag = "35")]
    SetVolume(SetVolume),
    #[prost(message, tag = "36")]
    PartitionMarks(PartitionMarks),
    #[prost(message, tag = "37")]
    DiskGenerations(DiskGenerations),
    #[prost(message, tag = "38")]
    TakeUp(crate::take_up::TakeUp),
    #[prost(message, tag = "39")]
    TrashVolume(TrashVolume),
    #[prost(message, tag = "40")]
    RestoreVolume(RestoreVolume),
    #[prost(message, tag = "41")]
    AddPartitions(crate::more_partitions::AddPartitions),
    #[prost(message, tag = "42")]
    RangeEnded(crate::more_partitions::RangeEnded),
    #[prost(message, tag = "43")]
    CreateStripeGroups(CreateStripeGroups),
    #[prost(message, tag = "47")]
    BindNode(BindNode),
    #[prost(message, tag = "48")]
    RevokeKeys(RevokeKeys),
}

/// How far members of meta partitions got, as they said.
#[derive(Clone, PartialEq, Message)]
pub struct PartitionMarks {
    #[prost(message, repeated, tag = "1")]
    pub marks: Vec<crate::marks::MarkOf>,
}

/// All members understand this feature level: commands of it may follow.
#[derive(Clone, PartialEq, Message)]
pub struct ActivateLevel {
    #[prost(uint32, tag = "1")]
    pub level: u32,
}

/// Writes the cluster id, once.
#[derive(Clone, PartialEq, Message)]
pub struct InitCluster {
    #[prost(bytes = "vec", tag = "1")]
    pub cluster: Vec<u8>,
    #[prost(string, tag = "2")]
    pub name: String,
}

/// A member of the manager's group, from its configuration.
#[derive(Clone, PartialEq, Message)]
pub struct PutManager {
    #[prost(uint32, tag = "1")]
    pub node: u32,
    #[prost(string, tag = "2")]
    pub address: String,
    #[prost(string, tag = "3")]
    pub http_address: String,
    #[prost(string, tag = "4")]
    pub rack: String,
    #[prost(string, tag = "5")]
    pub host: String,
    #[prost(string, tag = "6")]
    pub software: String,
    /// The member was removed.
    #[prost(bool, tag = "7")]
    pub removed: bool,
}

/// A node started.
#[derive(Clone, PartialEq, Message)]
pub struct Register {
    #[prost(bytes = "vec", tag = "1")]
    pub uuid: Vec<u8>,
    /// The id in its label, 0 at first.
    #[prost(uint32, tag = "2")]
    pub node: u32,
    #[prost(uint32, tag = "3")]
    pub roles: u32,
    #[prost(string, tag = "4")]
    pub address: String,
    #[prost(string, tag = "5")]
    pub http_address: String,
    #[prost(string, tag = "6")]
    pub rack: String,
    #[prost(string, tag = "7")]
    pub host: String,
    #[prost(string, tag = "8")]
    pub software: String,
    #[prost(message, repeated, tag = "9")]
    pub disks: Vec<RegisterDisk>,
    /// Nodes that count as up but that the leader has not heard of since it leads (only those that matter here).
    #[prost(uint32, repeated, tag = "10")]
    pub silent: Vec<u32>,
}

/// A disk that a node brings.
#[derive(Clone, PartialEq, Message)]
pub struct RegisterDisk {
    #[prost(bytes = "vec", tag = "1")]
    pub uuid: Vec<u8>,
    /// The id in its label, 0 at first.
    #[prost(uint32, tag = "2")]
    pub disk: u32,
    #[prost(string, tag = "3")]
    pub path: String,
    #[prost(uint64, tag = "4")]
    pub total_bytes: u64,
    #[prost(uint64, tag = "5")]
    pub free_bytes: u64,
    /// DiskState code.
    #[prost(uint32, tag = "6")]
    pub state: u32,
    #[prost(string, tag = "7")]
    pub problem: String,
    /// Of its last starts, oldest first. Of feature level 5.
    #[prost(message, repeated, tag = "8")]
    pub generations: Vec<GenerationOf>,
    /// The manager has logged that number.
    #[prost(uint64, tag = "9")]
    pub generation_confirmed: u64,
    /// It keeps generations, or would if it could: what it tells of them counts. Of feature level 5.
    #[prost(bool, tag = "10")]
    pub tells_generations: bool,
}

/// A generation of a disk.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct GenerationOf {
    #[prost(uint64, tag = "1")]
    pub number: u64,
    #[prost(fixed64, tag = "2")]
    pub nonce: u64,
}

impl From<Generation> for GenerationOf {
    fn from(generation: Generation) -> Self {
        Self { number: generation.number, nonce: generation.nonce }
    }
}

impl From<GenerationOf> for Generation {
    fn from(generation: GenerationOf) -> Self {
        Self { number: generation.number, nonce: generation.nonce }
    }
}

/// Disks whose generations rose while their nodes ran.
#[derive(Clone, PartialEq, Message)]
pub struct DiskGenerations {
    #[prost(message, repeated, tag = "1")]
    pub disks: Vec<DiskGenerationAt>,
}

/// A disk's generation, valid for one start of its node.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct DiskGenerationAt {
    #[prost(uint32, tag = "1")]
    pub disk: u32,
    #[prost(uint64, tag = "2")]
    pub incarnation: u64,
    #[prost(message, optional, tag = "3")]
    pub generation: Option<GenerationOf>,
}

/// Nodes that fell silent and failed their probe, together.
#[derive(Clone, PartialEq, Message)]
pub struct NodesDown {
    #[prost(message, repeated, tag = "1")]
    pub nodes: Vec<NodeAt>,
}

/// A node in one of its starts: a later registration makes a command about it void.
#[derive(Clone, PartialEq, Message)]
pub struct NodeAt {
    #[prost(uint32, tag = "1")]
    pub node: u32,
    #[prost(uint64, tag = "2")]
    pub incarnation: u64,
}

/// Disks whose state changed while their node runs.
#[derive(Clone, PartialEq, Message)]
pub struct DiskStates {
    #[prost(message, repeated, tag = "1")]
    pub disks: Vec<DiskAt>,
}

/// A disk's new state, valid for one start of its node.
#[derive(Clone, PartialEq, Message)]
pub struct DiskAt {
    #[prost(uint32, tag = "1")]
    pub disk: u32,
    #[prost(uint64, tag = "2")]
    pub incarnation: u64,
    #[prost(uint32, tag = "3")]
    pub state: u32,
    #[prost(string, tag = "4")]
    pub problem: String,
}

/// A member of a group under an epoch: a later epoch makes a command about it void.
#[derive(Clone, PartialEq, Message)]
pub struct MemberAt {
    #[prost(uint32, tag = "1")]
    pub pg: u32,
    #[prost(uint32, tag = "2")]
    pub disk: u32,
    #[prost(uint64, tag = "3")]
    pub epoch: u64,
}

/// Other disks in the places of lost ones.
#[derive(Clone, PartialEq, Message)]
pub struct ReplaceMembers {
    #[prost(message, repeated, tag = "1")]
    pub groups: Vec<ReplaceIn>,
}

/// Those of one group under an epoch: a later epoch makes it void.
#[derive(Clone, PartialEq, Message)]
pub struct ReplaceIn {
    #[prost(uint32, tag = "1")]
    pub pg: u32,
    #[prost(uint64, tag = "2")]
    pub epoch: u64,
    #[prost(message, repeated, tag = "3")]
    pub swaps: Vec<Swap>,
}

/// Who leaves and who comes.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Swap {
    #[prost(uint32, tag = "1")]
    pub old: u32,
    #[prost(uint32, tag = "2")]
    pub new: u32,
}

/// Disks that have deleted all that they had of groups which they were members of.
#[derive(Clone, PartialEq, Message)]
pub struct FormersGone {
    #[prost(message, repeated, tag = "1")]
    pub members: Vec<MemberAt>,
}

/// Disks that were to take places of members and give up.
#[derive(Clone, PartialEq, Message)]
pub struct CancelMoves {
    #[prost(message, repeated, tag = "1")]
    pub members: Vec<MemberAt>,
}

/// A disk, a node or a rack.
#[derive(Clone, PartialEq, Message)]
pub struct TargetOf {
    #[prost(oneof = "TargetKind", tags = "1, 2, 3")]
    pub kind: Option<TargetKind>,
}

/// Which of them.
#[derive(Clone, PartialEq, Oneof)]
pub enum TargetKind {
    #[prost(uint32, tag = "1")]
    Disk(u32),
    #[prost(uint32, tag = "2")]
    Node(u32),
    #[prost(string, tag = "3")]
    Rack(String),
}

/// Everything leaves a disk, a node or a rack; or stays after all.
#[derive(Clone, PartialEq, Message)]
pub struct SetDrain {
    #[prost(message, optional, tag = "1")]
    pub target: Option<TargetOf>,
    #[prost(bool, tag = "2")]
    pub cancel: bool,
}

/// A disk or a node is no part of the cluster any more.
#[derive(Clone, PartialEq, Message)]
pub struct Remove {
    #[prost(message, optional, tag = "1")]
    pub target: Option<TargetOf>,
}

/// A node or a rack is away for a time; or is expected no more.
#[derive(Clone, PartialEq, Message)]
pub struct Hibernate {
    #[prost(message, optional, tag = "1")]
    pub target: Option<TargetOf>,
    #[prost(uint64, tag = "2")]
    pub until_ns: u64,
    #[prost(bool, tag = "3")]
    pub end: bool,
}

/// Something that only the leader saw, for the list of events.
#[derive(Clone, PartialEq, Message)]
pub struct Note {
    /// Code of [`Kind`](crate::events::Kind); one of a later version is passed over.
    #[prost(uint32, tag = "1")]
    pub kind: u32,
    #[prost(uint32, tag = "2")]
    pub node: u32,
    #[prost(uint32, tag = "3")]
    pub disk: u32,
    #[prost(uint32, tag = "4")]
    pub pg: u32,
    #[prost(string, tag = "5")]
    pub text: String,
}

/// A disk is about to fail, or holds up others; or is good again.
#[derive(Clone, PartialEq, Message)]
pub struct SetGray {
    #[prost(uint32, tag = "1")]
    pub disk: u32,
    #[prost(bool, tag = "2")]
    pub gray: bool,
    #[prost(string, tag = "3")]
    pub why: String,
}

/// Members that verified that they hold everything.
#[derive(Clone, PartialEq, Message)]
pub struct CaughtUp {
    #[prost(message, repeated, tag = "1")]
    pub members: Vec<MemberAt>,
}

/// Groups that the leader planned.
#[derive(Clone, PartialEq, Message)]
pub struct CreatePgs {
    #[prost(uint32, tag = "1")]
    pub volume: u32,
    #[prost(uint32, tag = "2")]
    pub scheme: u32,
    #[prost(message, repeated, tag = "3")]
    pub groups: Vec<Disks>,
}

/// Members of a new group, in order.
#[derive(Clone, PartialEq, Message)]
pub struct Disks {
    #[prost(uint32, repeated, tag = "1")]
    pub disks: Vec<u32>,
    /// Of these, disks without room: offline from the beginning.
    #[prost(uint32, repeated, tag = "2")]
    pub full: Vec<u32>,
}

/// Stripe groups that the leader planned. Of feature level 19.
#[derive(Clone, PartialEq, Message)]
pub struct CreateStripeGroups {
    #[prost(uint32, tag = "1")]
    pub volume: u32,
    /// Of the columns: copies.
    #[prost(uint32, tag = "2")]
    pub scheme: u32,
    /// The scheme that they are encoded to.
    #[prost(uint32, tag = "3")]
    pub later: u32,
    #[prost(message, repeated, tag = "4")]
    pub groups: Vec<StripeGroupOf>,
}

/// A new stripe group.
#[derive(Clone, PartialEq, Message)]
pub struct StripeGroupOf {
    #[prost(string, tag = "1")]
    pub core_rack: String,
    /// Most shards in a rack.
    #[prost(uint32, tag = "2")]
    pub rack_capacity: u32,
    /// The primary of each is in the core rack.
    #[prost(message, repeated, tag = "3")]
    pub columns: Vec<Disks>,
}

/// Groups that take new chunks, or no longer.
#[derive(Clone, PartialEq, Message)]
pub struct SetPgsOpen {
    #[prost(uint32, repeated, tag = "1")]
    pub open: Vec<u32>,
    #[prost(uint32, repeated, tag = "2")]
    pub closed: Vec<u32>,
}

/// An operator gave up disks that a group waits for.
#[derive(Clone, PartialEq, Message)]
pub struct ForcePg {
    #[prost(uint32, tag = "1")]
    pub pg: u32,
    #[prost(uint64, tag = "2")]
    pub epoch: u64,
    #[prost(uint32, repeated, tag = "3")]
    pub lost: Vec<u32>,
    /// Members that serve from now on as they are.
    #[prost(uint32, repeated, tag = "4")]
    pub promoted: Vec<u32>,
    /// Indices below are given no more.
    #[prost(uint32, tag = "5")]
    pub index_floor: u32,
    /// Disks that have nothing of the group, in the places of lost ones.
    #[prost(message, repeated, tag = "46")]
    pub fresh: Vec<Swap>,
}

/// A block of session ids for the leader to hand out.
#[derive(Clone, PartialEq, Message)]
pub struct GrantSessions {
    #[prost(uint32, tag = "1")]
    pub count: u32,
}

#[derive(Clone, PartialEq, Message)]
pub struct SetConfig {
    #[prost(message, repeated, tag = "1")]
    pub items: Vec<ConfigValue>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ConfigValue {
    #[prost(string, tag = "1")]
    pub key: String,
    #[prost(string, tag = "2")]
    pub value: String,
}

/// A log item that this build cannot apply. The member must stop: going on would make it differ from the others.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CommandError {
    #[error("a command of the manager's log cannot be decoded: {0}")]
    Malformed(String),
    #[error(
        "a command of the manager's log was written by a later version (format {format}, this build reads {FORMAT}); upgrade this member"
    )]
    Later { format: u32 },
}

impl Command {
    /// The log item's bytes.
    pub fn to_bytes(self) -> Vec<u8> {
        LogItem { format: FORMAT, command: Some(self) }.encode_to_vec()
    }

    pub fn from_bytes(bytes: &[u8]) -> Result<Command, CommandError> {
        let item = LogItem::decode(bytes).map_err(|e| CommandError::Malformed(e.to_string()))?;
        match item.command {
            Some(command) if item.format == FORMAT => Ok(command),
            _ => Err(CommandError::Later { format: item.format }),
        }
    }
}

#[cfg(test)]
mod tests;
