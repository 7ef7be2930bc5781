//! The meta partitions that a volume is made of: how many, which inodes each has, who replicates it.
//!
//! | made with | inode ids of partition `i` |
//! |---|---|
//! | one partition | 1 to `u64::MAX` |
//! | several | `i << 40` to `((i + 1) << 40) - 1`; the first one begins at 1, which is the root |
//!
//! Invariants: ranges of a volume do not meet, and the top byte of an id of a volume with several partitions is 0.
//! Members are those that the leader chose by use ([`crate::partition_members`]). An entry without them is of before:
//! they are in distinct failure domains; within that, partitions and first members (who lead at first) are spread as
//! evenly as nodes allow. Not here: when a volume may be made (`volumes.rs`), other members later (`partitions.rs`),
//! more partitions later (`more_partitions.rs`).
use crate::change::ItemKey;
use crate::command::MembersOf;
use crate::config::Key;
use crate::items::{Partition, Roles};
use crate::state::State;
use cairn_placement::{Chooser, DiskCandidate, Domains};
use cairn_types::{DiskId, ErrorCode, InodeId, NodeId, PartitionId, VolumeId};
use cairn_wire::error::WireError;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Most partitions that one volume is made with.
pub const VOLUME_PARTITIONS_MAX: u32 = 4096;
/// Most partitions of all volumes together after a volume of several is made: the map and what is reported of each go
/// into one message.
pub const PARTITIONS_MAX: usize = 5120;

/// The top byte of an inode id is not given.
const _: () = assert!((VOLUME_PARTITIONS_MAX as u64) << InodeId::RANGE_BITS <= 1 << 56);

/// Why a volume cannot be made with so many partitions, if so.
pub fn partitions_flaw(count: u32) -> Option<String> {
    match count {
        0 => Some("a volume has at least one partition: leave --partitions out, or name more".into()),
        1..=VOLUME_PARTITIONS_MAX => None,
        _ => Some(format!(
            "a volume is made with at most {VOLUME_PARTITIONS_MAX} partitions, not with {count}: name fewer"
        )),
    }
}

/// Nobody can have a partition.
pub fn no_meta_node() -> WireError {
    let text = "a volume needs a meta node and none is up; start one (role meta) and repeat";
    WireError::new(ErrorCode::NotEnoughDisks, text)
}

/// First and last inode id of a partition.
fn inodes_of(at: u32, count: u32) -> (u64, u64) {
    if count == 1 {
        return (InodeId::ROOT.0, u64::MAX);
    }
    let first = |at: u32| u64::from(at) << InodeId::RANGE_BITS;
    (first(at).max(InodeId::ROOT.0), first(at + 1) - 1)
}

impl State {
    /// Who shall have each partition of a new volume.
    pub(super) fn members_of_partitions(
        &self,
        count: u32,
        planned: &[MembersOf],
    ) -> Result<Vec<Vec<NodeId>>, WireError> {
        if let Some(flaw) = partitions_flaw(count) {
            return Err(WireError::new(ErrorCode::InvalidArgument, flaw));
        }
        if count > 1 {
            self.check_room_for(count)?;
        }
        if !planned.is_empty() {
            return self.planned_members(count, planned);
        }
        self.choose_members(count, self.meta_nodes(count > 1))
    }

    /// What the leader chose, if it still can be: the plan is void if the cluster changed under it.
    pub(super) fn planned_members(&self, count: u32, planned: &[MembersOf]) -> Result<Vec<Vec<NodeId>>, WireError> {
        let is_able = |id: &NodeId| self.node(*id).is_some_and(|node| node.up && node.roles.has(Roles::META));
        let members = planned.iter().map(|members| members.nodes.iter().copied().map(NodeId).collect::<Vec<_>>());
        let members: Vec<Vec<NodeId>> = members.collect();
        let fits = |nodes: &Vec<NodeId>| {
            let distinct = (1..nodes.len()).all(|i| !nodes[..i].contains(&nodes[i]));
            matches!(nodes.len(), 1 | 3 | 5) && distinct && nodes.iter().all(is_able)
        };
        if members.len() == count as usize && members.iter().all(fits) {
            return Ok(members);
        }
        Err(WireError::new(ErrorCode::Conflict, "a meta node went out of service meanwhile; repeat"))
    }

    /// A cluster does not have more partitions than a map and a report have.
    pub(super) fn check_room_for(&self, count: u32) -> Result<(), WireError> {
        let there = self.partitions().filter(|partition| !partition.removed).count();
        if there + count as usize <= PARTITIONS_MAX {
            return Ok(());
        }
        let text = format!(
            "the cluster has {there} meta partitions, and with {count} more it would have more than {PARTITIONS_MAX}: name fewer, or \
             delete volumes"
        );
        Err(WireError::new(ErrorCode::Conflict, text))
    }

    /// Members of so many partitions among these nodes, by the number of partitions that they have: of entries of
    /// before leaders chose.
    pub(super) fn choose_members(&self, count: u32, nodes: Vec<DiskCandidate>) -> Result<Vec<Vec<NodeId>>, WireError> {
        let wanted = self.config.number(Key::MetaMembers) as usize;
        let members = if nodes.len() >= wanted { wanted } else { 1 };
        let mut chooser = Chooser::new(nodes, u64::from(self.next.partition));
        let mut choose = || {
            let chosen = chooser.choose(members).map_err(|_| no_meta_node())?;
            Ok(chosen.into_iter().map(|disk| NodeId(disk.get())).collect())
        };
        (0..count).map(|_| choose()).collect()
    }

    /// The meta nodes that are up, with what they carry. A node stands for a disk of its own here: equal sizes, so the
    /// number of partitions decides. Builds of before did not count first members, so volumes of one partition go
    /// without: all members decide alike.
    pub(super) fn meta_nodes(&self, with_first: bool) -> Vec<DiskCandidate> {
        let (mut load, mut first): (BTreeMap<NodeId, u32>, BTreeMap<NodeId, u32>) = Default::default();
        for partition in self.partitions().filter(|partition| !partition.removed) {
            partition.members.iter().for_each(|node| *load.entry(*node).or_default() += 1);
            partition
                .members
                .first()
                .filter(|_| with_first)
                .into_iter()
                .for_each(|node| *first.entry(*node).or_default() += 1);
        }
        let mut domains = Domains::new();
        let metas = self.nodes().filter(|n| n.up && n.roles.has(Roles::META));
        metas
            .map(|n| {
                let (rack, host) = domains.host(&n.rack, &n.host);
                DiskCandidate {
                    disk: DiskId(n.id.get()),
                    node: n.id,
                    rack,
                    host,
                    free_bytes: 1,
                    open_pgs: load.get(&n.id).copied().unwrap_or(0),
                    primaries: first.get(&n.id).copied().unwrap_or(0),
                    parities: 0,
                    room: VOLUME_PARTITIONS_MAX,
                }
            })
            .collect()
    }

    /// Enters the partitions of a new volume, one for each list of members.
    pub(super) fn make_partitions(&mut self, volume: VolumeId, members: Vec<Vec<NodeId>>) {
        let count = members.len() as u32;
        for (at, members) in (0..count).zip(members) {
            self.make_partition(volume, inodes_of(at, count), members, 0);
        }
    }

    pub(super) fn make_partition(
        &mut self,
        volume: VolumeId,
        (inode_first, inode_last): (u64, u64),
        members: Vec<NodeId>,
        level: u32,
    ) -> PartitionId {
        let id = PartitionId(self.next.partition);
        self.next.partition += 1;
        let item = Partition {
            id,
            volume,
            inode_first,
            inode_last,
            members,
            target: Vec::new(),
            wish: 0,
            left: Vec::new(),
            changed: false,
            begun: Vec::new(),
            add: 0,
            level,
            removed: false,
            version: 0,
        };
        self.partitions.insert(id, Arc::new(item));
        self.touch(ItemKey::Partition(id));
        id
    }
}
