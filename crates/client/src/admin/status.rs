//! [`ClusterStatus`]: all that the managers tell of the cluster, with its map.
use crate::admin::target::Target;
use crate::connect::Client;
use crate::error::Result;
use crate::malformed::Malformed;
use crate::map::{Disk, Node, Partition, VolumeEntry};
use crate::view::{ClusterView, PgView};
use cairn_types::{ClusterId, MemberState};
use cairn_wire::Opcode;
use cairn_wire::manager::{self, StatusRequest, StatusResponse};

/// The whole map, in the order in which the managers tell it.
#[derive(Clone, Debug, Default)]
pub struct ClusterMap {
    pub cluster: ClusterId,
    pub name: String,
    pub version: u64,
    pub nodes: Vec<Node>,
    pub disks: Vec<Disk>,
    pub volumes: Vec<VolumeEntry>,
    pub partitions: Vec<Partition>,
    /// Those that this version can read.
    pub pgs: Vec<PlacementGroup>,
}

/// A placement group with what only operators look at.
#[derive(Clone, Debug)]
pub struct PlacementGroup {
    pub view: PgView,
    pub creation_epoch: u64,
    /// It is no part of the cluster any more.
    pub retired: bool,
    pub used_bytes: u64,
}

impl PlacementGroup {
    fn of_wire(found: &manager::Pg) -> Option<Self> {
        let view = PgView::decode(found)?;
        let (creation_epoch, retired) = found.state.as_ref().map(|state| (state.creation_epoch, state.retired))?;
        Some(Self { view, creation_epoch, retired, used_bytes: found.used_bytes })
    }
}

impl ClusterMap {
    /// The same by numbers.
    pub fn view(&self) -> ClusterView {
        let mut view = ClusterView::default();
        (view.cluster, view.version) = (self.cluster, self.version);
        view.nodes.extend(self.nodes.iter().map(|node| (node.id, node.clone())));
        view.disks.extend(self.disks.iter().map(|disk| (disk.id, disk.clone())));
        let volumes = self.volumes.iter().filter(|volume| !volume.deleted);
        view.volumes.extend(volumes.map(|volume| (volume.id, volume.clone())));
        view.apply_partitions(self.partitions.clone());
        view.pgs.extend(self.pgs.iter().map(|pg| (pg.view.id.0, pg.view.clone())));
        view
    }
    fn of_wire(found: manager::ClusterMap) -> Self {
        Self {
            cluster: ClusterId::from_slice(&found.cluster).unwrap_or_default(),
            name: found.name,
            version: found.version,
            nodes: found.nodes.into_iter().map(Node::of_wire).collect(),
            disks: found.disks.into_iter().map(Disk::of_wire).collect(),
            volumes: found.volumes.into_iter().map(VolumeEntry::of_wire).collect(),
            partitions: found.partitions.into_iter().map(Partition::of_wire).collect(),
            pgs: found.pgs.iter().filter_map(PlacementGroup::of_wire).collect(),
        }
    }
}

/// How bad a problem is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProblemSeverity {
    Notice,
    /// Also what managers of before tell, who do not say.
    Warning,
    Critical,
}

impl ProblemSeverity {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Notice => "notice",
            Self::Warning => "warning",
            Self::Critical => "critical",
        }
    }
    const fn of_wire(code: Option<u32>) -> Self {
        match code {
            Some(3) => Self::Critical,
            Some(1) => Self::Notice,
            _ => Self::Warning,
        }
    }
}

/// What is wrong, what it means, what is being done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    pub text: String,
    pub severity: ProblemSeverity,
}

/// Placement groups in use, each in exactly one of the first four.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PgCounts {
    /// All members serve.
    pub complete: u32,
    /// Some do not, enough for writes do.
    pub degraded: u32,
    /// Fewer serve than the minimum for writes.
    pub read_only: u32,
    /// Nobody serves.
    pub waiting: u32,
    /// Of all of them: take no new chunks.
    pub closed: u32,
}

/// What a partition's leader said last.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PartitionReport {
    pub partition: u32,
    pub term: u64,
    pub applied: u64,
    pub inodes: u64,
    pub file_bytes: u64,
    pub memory_bytes: u64,
    /// Activated.
    pub feature_level: u32,
    /// A member that keeps it from being raised; 0: none.
    pub behind: u32,
    /// Of the thread that applies its log, in the last seconds.
    pub busy_permille: u32,
    pub changes_per_second: u64,
    /// A member's node of which the memory is used up, so that the partition takes no new files; 0: none.
    pub full_node: u32,
}

impl PartitionReport {
    fn of_wire(found: &manager::PartitionReport) -> Self {
        Self {
            partition: found.partition,
            term: found.term,
            applied: found.applied,
            inodes: found.inodes,
            file_bytes: found.file_bytes,
            memory_bytes: found.memory_bytes,
            feature_level: found.feature_level,
            behind: found.behind,
            busy_permille: found.busy_permille,
            changes_per_second: found.changes_per_second,
            full_node: found.full_node,
        }
    }
}

/// A member of the managers' group.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ManagerMember {
    pub node: u32,
    /// Else it gets its vote when it has caught up.
    pub votes: bool,
    /// The leader's last ping, or it leads itself.
    pub answers: bool,
    /// Entries of the log that it is not known to have.
    pub lacks: u64,
}

/// A member of a placement group that does not serve.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RepairStatus {
    pub pg: u32,
    pub disk: u32,
    /// `None`: of a later version.
    pub state: Option<MemberState>,
    /// Put in the place of another one, never complete since.
    pub filling: bool,
    /// Whose place it has; 0: nobody's.
    pub replaces: u32,
    pub done_bytes: u64,
    pub total_bytes: u64,
    pub bytes_per_second: u64,
    /// Why it does not go on, and what would help.
    pub waits_for: String,
    /// Members that may be lost before the group cannot be read.
    pub spare: u32,
}

impl RepairStatus {
    fn of_wire(found: manager::RepairStatus) -> Self {
        Self {
            pg: found.pg,
            disk: found.disk,
            state: u8::try_from(found.state).ok().and_then(MemberState::from_code),
            filling: found.filling,
            replaces: found.replaces,
            done_bytes: found.done_bytes,
            total_bytes: found.total_bytes,
            bytes_per_second: found.bytes_per_second,
            waits_for: found.waits_for,
            spare: found.spare,
        }
    }
}

/// Why members of what is drained cannot leave, and what would help.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DrainReason {
    pub why: String,
    pub members: u32,
    /// One of them: disk and placement group.
    pub first: String,
}

/// What is being emptied.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DrainStatus {
    pub target: Target,
    pub since_ns: u64,
    pub disks: u32,
    /// In which a disk of it still is a member.
    pub groups: u32,
    /// Of these, groups that another disk joins.
    pub moving: u32,
    pub bytes_left: u64,
    pub bytes_per_second: u64,
    /// Members that cannot leave.
    pub blocked: u32,
    /// Why the first of them cannot.
    pub waits_for: String,
    /// Of all of them, what keeps most members first; none of a manager of before.
    pub reasons: Vec<DrainReason>,
}

impl DrainStatus {
    fn of_wire(found: manager::DrainStatus) -> std::result::Result<Self, Malformed> {
        let reason = |reason: manager::DrainReason| {
            let manager::DrainReason { why, members, first } = reason;
            DrainReason { why, members, first }
        };
        Ok(Self {
            target: Target::of_wire(found.target)?,
            since_ns: found.since_ns,
            disks: found.disks,
            groups: found.groups,
            moving: found.moving,
            bytes_left: found.bytes_left,
            bytes_per_second: found.bytes_per_second,
            blocked: found.blocked,
            waits_for: found.waits_for,
            reasons: found.reasons.into_iter().map(reason).collect(),
        })
    }
}

/// What is taken down for a time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HibernationStatus {
    pub target: Target,
    pub since_ns: u64,
    pub until_ns: u64,
    pub left_ms: u64,
}

/// What managers whose state was restored wait for.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Awaited {
    /// That have not said what they know.
    pub nodes: Vec<u32>,
    /// Whose nodes have, but not of them.
    pub disks: Vec<u32>,
    /// Of which no disk that serves has told, the first of them.
    pub pgs: Vec<u32>,
    pub pgs_in_all: u32,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct ClusterStatus {
    pub map: ClusterMap,
    pub leader_node: u32,
    pub term: u64,
    pub partitions: Vec<PartitionReport>,
    pub problems: Vec<Problem>,
    pub pgs: PgCounts,
    /// Voters of the managers' group.
    pub managers: Vec<u32>,
    pub manager_members: Vec<ManagerMember>,
    /// The most endangered groups first.
    pub repairs: Vec<RepairStatus>,
    /// Lost members that are due and wait until fewer are being filled.
    pub repairs_queued: u32,
    pub drains: Vec<DrainStatus>,
    pub hibernations: Vec<HibernationStatus>,
    /// Of the managers' group, activated.
    pub feature_level: u32,
    /// Managers that keep it from being raised.
    pub feature_behind: Vec<u32>,
    pub awaited: Option<Awaited>,
    /// Who is served without a key at servers that have one, and who came without one lately and was refused.
    pub plain: Vec<WithoutKey>,
    pub plain_refused: Vec<WithoutKey>,
}

/// Somebody without a key, as he says himself, and the nodes that he comes to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WithoutKey {
    pub who: String,
    pub nodes: Vec<u32>,
}

impl WithoutKey {
    fn of_wire(found: manager::WithoutKey) -> Self {
        let manager::WithoutKey { who, nodes } = found;
        // It is a stranger's word, and printed for people.
        Self { who: who.chars().filter(|c| !c.is_control()).collect(), nodes }
    }
}

impl ClusterStatus {
    fn of_wire(found: StatusResponse) -> std::result::Result<Self, Malformed> {
        let hibernation = |one: manager::HibernationStatus| {
            let manager::HibernationStatus { target, since_ns, until_ns, left_ms } = one;
            Ok(HibernationStatus { target: Target::of_wire(target)?, since_ns, until_ns, left_ms })
        };
        let severities = found.problem_severities;
        let problem = |(at, text): (usize, String)| Problem {
            text,
            severity: ProblemSeverity::of_wire(severities.get(at).copied()),
        };
        let counts = found.pgs.unwrap_or_default();
        let manager::PgCounts { complete, degraded, read_only, waiting, closed } = counts;
        let member = |member: manager::ManagerMember| {
            let manager::ManagerMember { node, votes, answers, lacks } = member;
            ManagerMember { node, votes, answers, lacks }
        };
        Ok(Self {
            map: found.map.map(ClusterMap::of_wire).unwrap_or_default(),
            leader_node: found.leader_node,
            term: found.term,
            partitions: found.partitions.iter().map(PartitionReport::of_wire).collect(),
            problems: found.problems.into_iter().enumerate().map(problem).collect(),
            pgs: PgCounts { complete, degraded, read_only, waiting, closed },
            managers: found.managers,
            manager_members: found.manager_members.into_iter().map(member).collect(),
            repairs: found.repairs.into_iter().map(RepairStatus::of_wire).collect(),
            repairs_queued: found.repairs_queued,
            drains: found.drains.into_iter().map(DrainStatus::of_wire).collect::<std::result::Result<_, _>>()?,
            hibernations: found.hibernations.into_iter().map(hibernation).collect::<std::result::Result<_, _>>()?,
            feature_level: found.feature_level,
            feature_behind: found.feature_behind,
            plain: found.plain.into_iter().map(WithoutKey::of_wire).collect(),
            plain_refused: found.plain_refused.into_iter().map(WithoutKey::of_wire).collect(),
            awaited: found.awaited.map(|one| Awaited {
                nodes: one.nodes,
                disks: one.disks,
                pgs: one.pgs,
                pgs_in_all: one.pgs_in_all,
            }),
        })
    }
}

impl Client {
    /// What the leading manager tells; `what` names the question in errors.
    pub async fn status(&self, what: &str) -> Result<ClusterStatus> {
        let found = self.manager(what, Opcode::Status, &StatusRequest {}).await?;
        ClusterStatus::of_wire(found).map_err(|odd| odd.of(what))
    }
    /// The map with all placement groups, as the leading manager has it now.
    pub async fn whole_view(&self, what: &str) -> Result<ClusterView> {
        Ok(self.status(what).await?.map.view())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What cannot wait would look as if it could; or a status be shown of which a part is missing.
    #[test]
    fn problems_have_their_severities_and_drains_their_targets() {
        let found = StatusResponse {
            problems: vec!["a".into(), "b".into(), "c".into()],
            problem_severities: vec![3, 1],
            ..StatusResponse::default()
        };
        let told = ClusterStatus::of_wire(found).expect("a status");
        let severities: Vec<&str> = told.problems.iter().map(|problem| problem.severity.name()).collect();
        assert_eq!(severities, ["critical", "notice", "warning"]);
        let odd = StatusResponse { drains: vec![manager::DrainStatus::default()], ..StatusResponse::default() };
        assert_eq!(ClusterStatus::of_wire(odd).err(), Some(Malformed::Missing("target")));
    }
}
