//! `apply`: the only way in which the state changes. Deterministic: a function of state, logged time and command.
//!
//! A refused command changes nothing. Not here: one file per kind of command below `apply/`.
mod force;
mod hibernate;
mod maintain;
mod more_partitions;
mod nodes;
mod partitions;
mod pgs;
mod register;
mod remove;
mod replace;
mod revoked;
mod stripe_groups;
mod take_up;
mod volume_partitions;
mod volumes;

use crate::command::Command;
use crate::config::{Key, layout_flaw};
use crate::items::{Cluster, clip};
use crate::state::State;
use cairn_types::{
    ClusterId, DiskId, ErrorCode, Incarnation, Layout, NodeId, PartitionId, PgId, SessionId, VolumeId, WallTime,
};
use cairn_wire::error::WireError;

pub use partitions::unknown_partition;
pub use pgs::GROUPS_MAX;
pub use volume_partitions::{PARTITIONS_MAX, VOLUME_PARTITIONS_MAX, no_meta_node, partitions_flaw};
pub use volumes::{in_trash, not_in_trash, unknown_volume};

/// Most session ids of one block.
pub const SESSION_BLOCK_MAX: u32 = 1 << 20;

/// Feature level from which on sessions and incarnations begin with the time at which they are given.
const NUMBERS_LEVEL: u32 = 5;
/// Bits of counting within a second.
const NUMBERS_SHIFT: u32 = 20;

/// What a node gets at registration.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Registered {
    pub node: NodeId,
    /// In the order of the request; 0: refused.
    pub disks: Vec<DiskId>,
    pub incarnation: Incarnation,
    /// Why disks were refused.
    pub problems: Vec<String>,
    /// Disks that came back as older copies of themselves.
    pub older: Vec<DiskId>,
}

/// What a command came to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    Done,
    Cluster(ClusterId),
    Registered(Registered),
    /// Groups made.
    Pgs(Vec<PgId>),
    Volume(VolumeId),
    /// First of so many.
    Sessions(SessionId, u32),
    Job(u64),
    /// Partitions made; none if one has to end its range first.
    Partitions(Vec<PartitionId>),
    /// Nothing was set.
    Mistakes(Vec<String>),
}

/// The result of one command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Applied {
    pub outcome: Result<Outcome, WireError>,
    /// Groups that are new or whose epoch rose: their members have to be told.
    pub raised: Vec<PgId>,
}

impl State {
    /// Applies one command. `time` is the logged time of the entry.
    pub fn apply(&mut self, time: WallTime, command: &Command) -> Applied {
        let mut raised = Vec::new();
        let before = crate::events::Before::of(self, command);
        let outcome = self.carry_out(time, command, &mut raised);
        raised.sort_unstable();
        raised.dedup();
        if let Ok(outcome) = &outcome {
            self.enter_events(time, command, &before, outcome, &raised);
        }
        self.seal_version();
        Applied { outcome, raised }
    }

    fn carry_out(&mut self, time: WallTime, command: &Command, raised: &mut Vec<PgId>) -> Result<Outcome, WireError> {
        match command {
            Command::InitCluster(c) => self.init_cluster(time, &c.cluster, &c.name),
            _ if self.cluster.is_none() => {
                Err(WireError::new(ErrorCode::Unavailable, "the cluster is not initialized yet; repeat"))
            }
            Command::TakeUp(c) => self.take_up(time, c, raised),
            Command::ActivateLevel(c) => {
                self.level = self.level.max(c.level);
                Ok(Outcome::Done)
            }
            Command::PutManager(c) => self.put_manager(time, c),
            // What was forgotten must not be decided again, and no number be given twice.
            _ if self.waits() => Err(crate::restored::waiting()),
            Command::Register(c) => self.register(time, c, raised),
            Command::NodesDown(c) => self.nodes_down(time, c, raised),
            Command::DiskStates(c) => self.disk_states(time, c, raised),
            Command::MemberFailed(c) => self.member_failed(c, raised),
            Command::Rejoin(c) => self.rejoin(c, raised),
            Command::CaughtUp(c) => self.caught_up(c, raised),
            Command::CreatePgs(c) => self.create_pgs(time, c, raised),
            Command::CreateStripeGroups(c) => self.create_stripe_groups(time, c, raised),
            Command::SetPgsOpen(c) => self.set_pgs_open(c),
            Command::CreateVolume(c) => self.create_volume(time, c),
            Command::DeleteVolume(c) => self.delete_volume(c, raised),
            Command::TrashVolume(c) => self.trash_volume(time, c),
            Command::RestoreVolume(c) => self.restore_volume(c),
            Command::SetPartitionMembers(c) => self.set_partition_members(c),
            Command::PartitionsBegun(c) => self.partitions_begun(c),
            Command::ForcePg(c) => self.force_pg(c, raised),
            Command::PartitionSettled(c) => self.partition_settled(c),
            Command::ReplaceMembers(c) => self.replace_members(c, raised),
            Command::TakeBack(c) => self.take_member_back(c, raised),
            Command::FormersGone(c) => self.formers_gone(c),
            Command::BeginMoves(c) => self.begin_moves(c, raised),
            Command::CancelMoves(c) => self.cancel_moves(c, raised),
            Command::SetDrain(c) => self.set_drain(time, c, raised),
            Command::Remove(c) => self.remove(time, c),
            Command::Hibernate(c) => self.hibernate(time, c),
            Command::GrantSessions(c) => self.grant_sessions(time, c.count),
            Command::SetConfig(c) => self.set_config(c),
            Command::SetVolume(c) => self.set_volume(c),
            Command::StartJob(c) => self.start_job(time, c),
            Command::AssignJob(c) => self.assign_job(c),
            Command::ReportJob(c) => self.report_job(time, c),
            Command::CancelJob(c) => self.cancel_job(time, c),
            Command::Note(c) => Ok(self.note(time, c)),
            Command::SetGray(c) => self.set_gray(time, c),
            Command::PartitionMarks(c) => self.partition_marks(c),
            Command::DiskGenerations(c) => self.disk_generations(c),
            Command::AddPartitions(c) => self.add_partitions(c),
            Command::RangeEnded(c) => self.range_ended(c),
            Command::BindNode(c) => self.bind_node(c),
            Command::RevokeKeys(c) => self.revoke_keys(time, c),
        }
    }

    /// The first one wins: two leaders may both have proposed one.
    fn init_cluster(&mut self, time: WallTime, cluster: &[u8], name: &str) -> Result<Outcome, WireError> {
        if let Some(cluster) = &self.cluster {
            return Ok(Outcome::Cluster(cluster.id));
        }
        let id = ClusterId::from_slice(cluster).filter(|id| !id.is_none());
        let id = id.ok_or_else(|| WireError::new(ErrorCode::BadRequest, "a cluster id has 16 bytes, not all zero"))?;
        self.cluster = Some(Cluster { id, name: clip(name), created: time });
        Ok(Outcome::Cluster(id))
    }

    fn grant_sessions(&mut self, time: WallTime, count: u32) -> Result<Outcome, WireError> {
        let count = count.clamp(1, SESSION_BLOCK_MAX);
        self.next.session = self.next.session.max(self.floor_at(time));
        let first = self.next.session;
        self.next.session += u64::from(count);
        Ok(Outcome::Sessions(SessionId(first), count))
    }

    /// Sessions and incarnations that are given now are higher than any that were given before, also by a state that
    /// was lost when a copy of the manager's directory was put back: they begin with the second in which they are
    /// logged.
    fn floor_at(&self, time: WallTime) -> u64 {
        if self.level >= NUMBERS_LEVEL { (time.0 / 1_000_000_000) << NUMBERS_SHIFT } else { 0 }
    }

    fn set_config(&mut self, command: &crate::command::SetConfig) -> Result<Outcome, WireError> {
        let layouts = command.items.iter().filter_map(|item| item.value.trim().parse::<Layout>().ok());
        let flaws: Vec<String> = layouts.filter_map(|layout| layout_flaw(layout, self.level)).collect();
        if !flaws.is_empty() {
            return Ok(Outcome::Mistakes(flaws));
        }
        let before = [Key::StripeGroups, Key::PrivateData].map(|key| self.config.number(key));
        match self.config.set(command.items.iter().map(|item| (item.key.as_str(), item.value.as_str()))) {
            Ok(()) => {
                self.touch_columns_if(before[0]);
                self.touch_volumes_if(before[1]);
                Ok(Outcome::Done)
            }
            Err(mistakes) => Ok(Outcome::Mistakes(mistakes)),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
