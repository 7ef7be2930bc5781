//! Records of the checkpoint: one protobuf message an item. Field numbers are never reused.
//!
//! Reading checks every value: a record that no build of this format can have written is an error.
mod pg;
mod volume;

pub(crate) use pg::PgRecord;
pub(crate) use volume::VolumeRecord;

use crate::command::GenerationOf;
use crate::items::{Cluster, Disk, DiskState, Node, Partition, Roles};
use crate::job::Job;
use crate::maintenance::{Drain, Hibernation, Target};
use crate::state::Counters;
use cairn_types::generation::Generation;
use cairn_types::{ClusterId, DiskId, DiskUuid, Incarnation, NodeId, PartitionId, VolumeId, WallTime};
use prost::{Message, Oneof};

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Record {
    #[prost(oneof = "Body", tags = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17")]
    pub body: Option<Body>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum Body {
    #[prost(message, tag = "1")]
    Head(HeadRecord),
    #[prost(message, tag = "2")]
    Setting(SettingRecord),
    #[prost(message, tag = "3")]
    Node(NodeRecord),
    #[prost(message, tag = "4")]
    Disk(DiskRecord),
    #[prost(message, tag = "5")]
    Volume(VolumeRecord),
    #[prost(message, tag = "6")]
    Partition(PartitionRecord),
    #[prost(message, tag = "7")]
    Pg(PgRecord),
    /// The number of records before it.
    #[prost(uint64, tag = "8")]
    End(u64),
    #[prost(message, tag = "9")]
    Job(JobRecord),
    #[prost(message, tag = "10")]
    Drain(DrainRecord),
    #[prost(message, tag = "11")]
    Hibernation(HibernationRecord),
    /// The number of a node that was removed.
    #[prost(uint32, tag = "12")]
    Gone(u32),
    #[prost(message, tag = "13")]
    Event(cairn_wire::manager::Event),
    #[prost(message, tag = "14")]
    Gray(crate::gray::GrayRecord),
    #[prost(message, tag = "15")]
    Mark(crate::marks::MarkOf),
    #[prost(message, tag = "16")]
    StripeGroup(crate::stripe::StripeGroupRecord),
    #[prost(message, tag = "17")]
    Revoked(RevokedRecord),
}

/// A name whose keys count no more.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct RevokedRecord {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(uint64, tag = "2")]
    pub since_ns: u64,
}

/// What is away for a time.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct HibernationRecord {
    #[prost(message, optional, tag = "1")]
    pub target: Option<crate::command::TargetOf>,
    #[prost(uint64, tag = "2")]
    pub since_ns: u64,
    #[prost(uint64, tag = "3")]
    pub until_ns: u64,
}

impl From<(&Target, &Hibernation)> for HibernationRecord {
    fn from((target, hibernation): (&Target, &Hibernation)) -> Self {
        let Hibernation { since, until } = hibernation;
        Self { target: Some(target.into()), since_ns: since.0, until_ns: until.0 }
    }
}

impl TryFrom<HibernationRecord> for (Target, Hibernation) {
    type Error = &'static str;
    fn try_from(record: HibernationRecord) -> Result<Self, Self::Error> {
        let target = record.target.as_ref().and_then(Target::from_command).ok_or("what hibernates")?;
        Ok((target, Hibernation { since: WallTime(record.since_ns), until: WallTime(record.until_ns) }))
    }
}

/// What is being emptied.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct DrainRecord {
    #[prost(message, optional, tag = "1")]
    pub target: Option<crate::command::TargetOf>,
    #[prost(uint64, tag = "2")]
    pub since_ns: u64,
}

impl From<(&Target, &Drain)> for DrainRecord {
    fn from((target, drain): (&Target, &Drain)) -> Self {
        Self { target: Some(target.into()), since_ns: drain.since.0 }
    }
}

impl TryFrom<DrainRecord> for (Target, Drain) {
    type Error = &'static str;
    fn try_from(record: DrainRecord) -> Result<Self, Self::Error> {
        let target = record.target.as_ref().and_then(Target::from_command).ok_or("what is drained")?;
        Ok((target, Drain { since: WallTime(record.since_ns) }))
    }
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct HeadRecord {
    #[prost(bytes = "vec", tag = "1")]
    pub cluster: Vec<u8>,
    #[prost(string, tag = "2")]
    pub name: String,
    #[prost(uint64, tag = "3")]
    pub created_ns: u64,
    #[prost(uint64, tag = "4")]
    pub version: u64,
    #[prost(uint64, tag = "5")]
    pub delta_floor: u64,
    #[prost(uint32, tag = "6")]
    pub next_node: u32,
    #[prost(uint32, tag = "7")]
    pub next_disk: u32,
    #[prost(uint32, tag = "8")]
    pub next_volume: u32,
    #[prost(uint32, tag = "9")]
    pub next_partition: u32,
    #[prost(uint32, tag = "10")]
    pub next_pg: u32,
    #[prost(uint64, tag = "11")]
    pub next_incarnation: u64,
    #[prost(uint64, tag = "12")]
    pub next_session: u64,
    /// Jobs begun so far: none in states that were written before there were jobs.
    #[prost(uint64, tag = "13")]
    pub jobs_begun: u64,
    #[prost(uint64, tag = "14")]
    pub events: u64,
    /// The activated feature level.
    #[prost(uint32, tag = "15")]
    pub level: u32,
    #[prost(message, optional, tag = "16")]
    pub restored: Option<crate::restored::Restored>,
    /// Stripe groups made so far.
    #[prost(uint32, tag = "17")]
    pub stripe_groups_begun: u32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct JobRecord {
    #[prost(message, optional, tag = "1")]
    pub job: Option<cairn_wire::manager::Job>,
    #[prost(uint64, tag = "2")]
    pub incarnation: u64,
}

impl From<&Job> for JobRecord {
    fn from(job: &Job) -> Self {
        Self { job: Some(job.to_message()), incarnation: job.incarnation.0 }
    }
}

impl TryFrom<JobRecord> for Job {
    type Error = &'static str;
    fn try_from(record: JobRecord) -> Result<Self, Self::Error> {
        let job = record.job.ok_or("a job")?;
        Job::from_message(job, Incarnation(record.incarnation)).ok_or("a job")
    }
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct SettingRecord {
    #[prost(string, tag = "1")]
    pub key: String,
    #[prost(string, tag = "2")]
    pub value: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct NodeRecord {
    #[prost(uint32, tag = "1")]
    pub id: u32,
    #[prost(bytes = "vec", tag = "2")]
    pub uuid: Vec<u8>,
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
    #[prost(uint64, tag = "9")]
    pub incarnation: u64,
    #[prost(bool, tag = "10")]
    pub up: bool,
    #[prost(uint64, tag = "11")]
    pub since_ns: u64,
    #[prost(uint64, tag = "12")]
    pub version: u64,
    #[prost(string, tag = "13")]
    pub holder: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct DiskRecord {
    #[prost(uint32, tag = "1")]
    pub id: u32,
    #[prost(bytes = "vec", tag = "2")]
    pub uuid: Vec<u8>,
    #[prost(uint32, tag = "3")]
    pub node: u32,
    #[prost(string, tag = "4")]
    pub path: String,
    #[prost(uint64, tag = "5")]
    pub total_bytes: u64,
    #[prost(uint64, tag = "6")]
    pub free_bytes: u64,
    #[prost(uint32, tag = "7")]
    pub state: u32,
    #[prost(string, tag = "8")]
    pub problem: String,
    #[prost(uint64, tag = "9")]
    pub version: u64,
    #[prost(uint64, tag = "10")]
    pub since_ns: u64,
    #[prost(message, optional, tag = "11")]
    pub generation: Option<GenerationOf>,
    #[prost(bool, tag = "12")]
    pub is_ahead: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct PartitionRecord {
    #[prost(uint32, tag = "1")]
    pub id: u32,
    #[prost(uint32, tag = "2")]
    pub volume: u32,
    #[prost(uint64, tag = "3")]
    pub inode_first: u64,
    #[prost(uint64, tag = "4")]
    pub inode_last: u64,
    #[prost(uint32, repeated, tag = "5")]
    pub members: Vec<u32>,
    #[prost(bool, tag = "6")]
    pub removed: bool,
    #[prost(uint64, tag = "7")]
    pub version: u64,
    #[prost(uint32, repeated, tag = "8")]
    pub begun: Vec<u32>,
    #[prost(uint32, repeated, tag = "9")]
    pub target: Vec<u32>,
    #[prost(uint64, tag = "10")]
    pub wish: u64,
    #[prost(uint32, repeated, tag = "11")]
    pub left: Vec<u32>,
    #[prost(bool, tag = "12")]
    pub changed: bool,
    #[prost(uint32, tag = "13")]
    pub add: u32,
    #[prost(uint32, tag = "14")]
    pub level: u32,
}

impl HeadRecord {
    pub(crate) fn new(cluster: Option<&Cluster>, version: u64, delta_floor: u64, next: &Counters) -> Self {
        Self {
            cluster: cluster.map(|c| c.id.0.to_vec()).unwrap_or_default(),
            name: cluster.map(|c| c.name.clone()).unwrap_or_default(),
            created_ns: cluster.map_or(0, |c| c.created.0),
            version,
            delta_floor,
            next_node: next.node,
            next_disk: next.disk,
            next_volume: next.volume,
            next_partition: next.partition,
            next_pg: next.pg,
            next_incarnation: next.incarnation,
            next_session: next.session,
            jobs_begun: next.job - 1,
            events: next.event,
            level: 0,
            restored: None,
            stripe_groups_begun: next.stripe_group - 1,
        }
    }

    pub(crate) fn cluster(&self) -> Result<Option<Cluster>, &'static str> {
        if self.cluster.is_empty() {
            return Ok(None);
        }
        let id = ClusterId::from_slice(&self.cluster).filter(|id| !id.is_none()).ok_or("a cluster id")?;
        Ok(Some(Cluster { id, name: self.name.clone(), created: WallTime(self.created_ns) }))
    }

    pub(crate) fn counters(&self) -> Counters {
        Counters {
            node: self.next_node,
            disk: self.next_disk,
            volume: self.next_volume,
            partition: self.next_partition,
            pg: self.next_pg,
            incarnation: self.next_incarnation,
            session: self.next_session,
            job: self.jobs_begun.saturating_add(1),
            event: self.events,
            stripe_group: self.stripe_groups_begun.saturating_add(1),
        }
    }
}

fn uuid(bytes: &[u8]) -> Result<DiskUuid, &'static str> {
    DiskUuid::from_slice(bytes).ok_or("a uuid")
}

impl From<&Node> for NodeRecord {
    fn from(node: &Node) -> Self {
        Self {
            id: node.id.get(),
            uuid: node.uuid.0.to_vec(),
            roles: node.roles.0,
            address: node.address.clone(),
            http_address: node.http_address.clone(),
            rack: node.rack.clone(),
            host: node.host.clone(),
            software: node.software.clone(),
            incarnation: node.incarnation.get(),
            up: node.up,
            since_ns: node.since.0,
            version: node.version,
            holder: node.holder.clone(),
        }
    }
}

impl TryFrom<NodeRecord> for Node {
    type Error = &'static str;
    fn try_from(record: NodeRecord) -> Result<Self, Self::Error> {
        Ok(Self {
            id: NodeId(record.id),
            uuid: uuid(&record.uuid)?,
            roles: Roles(record.roles),
            address: record.address,
            http_address: record.http_address,
            rack: record.rack,
            host: record.host,
            software: record.software,
            incarnation: Incarnation(record.incarnation),
            up: record.up,
            since: WallTime(record.since_ns),
            version: record.version,
            holder: record.holder,
        })
    }
}

impl From<&Disk> for DiskRecord {
    fn from(disk: &Disk) -> Self {
        Self {
            id: disk.id.get(),
            uuid: disk.uuid.0.to_vec(),
            node: disk.node.get(),
            path: disk.path.clone(),
            total_bytes: disk.total_bytes,
            free_bytes: disk.free_bytes,
            state: disk.state.code(),
            problem: disk.problem.clone(),
            version: disk.version,
            since_ns: disk.since.0,
            generation: disk.generation.map(GenerationOf::from),
            is_ahead: disk.is_ahead,
        }
    }
}

impl TryFrom<DiskRecord> for Disk {
    type Error = &'static str;
    fn try_from(record: DiskRecord) -> Result<Self, Self::Error> {
        Ok(Self {
            id: DiskId(record.id),
            uuid: uuid(&record.uuid)?,
            node: NodeId(record.node),
            path: record.path,
            total_bytes: record.total_bytes,
            free_bytes: record.free_bytes,
            state: DiskState::from_code(record.state).ok_or("a disk's state")?,
            since: WallTime(record.since_ns),
            problem: record.problem,
            generation: record.generation.map(Generation::from),
            is_ahead: record.is_ahead,
            version: record.version,
        })
    }
}

impl From<&Partition> for PartitionRecord {
    fn from(partition: &Partition) -> Self {
        Self {
            id: partition.id.get(),
            volume: partition.volume.get(),
            inode_first: partition.inode_first,
            inode_last: partition.inode_last,
            members: partition.members.iter().map(|n| n.get()).collect(),
            begun: partition.begun.iter().map(|n| n.get()).collect(),
            target: partition.target.iter().map(|n| n.get()).collect(),
            wish: partition.wish,
            left: partition.left.iter().map(|n| n.get()).collect(),
            changed: partition.changed,
            add: partition.add,
            level: partition.level,
            removed: partition.removed,
            version: partition.version,
        }
    }
}

impl From<PartitionRecord> for Partition {
    fn from(record: PartitionRecord) -> Self {
        Self {
            id: PartitionId(record.id),
            volume: VolumeId(record.volume),
            inode_first: record.inode_first,
            inode_last: record.inode_last,
            members: record.members.into_iter().map(NodeId).collect(),
            begun: record.begun.into_iter().map(NodeId).collect(),
            target: record.target.into_iter().map(NodeId).collect(),
            wish: record.wish,
            left: record.left.into_iter().map(NodeId).collect(),
            changed: record.changed,
            add: record.add,
            level: record.level,
            removed: record.removed,
            version: record.version,
        }
    }
}
