//! What keys of clients see and may do here: their volumes, and nothing of others.
//!
//! Invariant: whoever has a key with limits is answered of other volumes as of such that there are not; nothing that is
//! about the whole cluster is told but what a client needs to work: nodes, disks, and who leads. Not here: who may ask
//! for which operation at all (`wire::audience`).

use std::collections::BTreeMap;
use std::sync::Arc;

use cairn_manager_core::State;
use cairn_manager_core::job::unknown_job;
use cairn_rpc::PeerInfo;
use cairn_types::{ErrorCode, PgId, VolumeId};
use cairn_wire::common::Credentials;
use cairn_wire::error::WireError;
use cairn_wire::manager::{ClusterMap, ListJobsRequest, ListJobsResponse, ReportMemberRequest, StatusResponse};
use cairn_wire::rights::{Access, Rights};

use crate::manager::Manager;

/// The rights of one who asks, and the volumes that they name by now; none: there is nothing to look at.
pub(crate) struct Limits {
    peer: Arc<PeerInfo>,
    own: Option<BTreeMap<u32, Access>>,
}

impl Limits {
    pub(crate) fn of(peer: &Arc<PeerInfo>, manager: &Manager) -> Self {
        let own = peer.limits().map(|(_, rights)| own_volumes(&manager.replica.read(), rights));
        Self { peer: peer.clone(), own }
    }

    /// The same of a manager that leads: another one may not have heard of a volume yet, and is not asked at all.
    pub(crate) fn of_leader(peer: &Arc<PeerInfo>, manager: &Manager) -> Result<Self, WireError> {
        if peer.limits().is_some() {
            manager.permit()?;
        }
        Ok(Self::of(peer, manager))
    }

    /// Whether an error may be for the rights of a key.
    pub(crate) fn is_refusal(error: &WireError) -> bool {
        use ErrorCode::{KeyForbids, NotFound, UnknownPg, UnknownVolume};
        matches!(error.code, KeyForbids | UnknownVolume | UnknownPg | NotFound)
    }

    /// Whether a volume may be seen.
    fn sees(&self, volume: u32) -> bool {
        self.own.as_ref().is_none_or(|own| own.contains_key(&volume))
    }

    /// A volume is to be changed. Forbidden and unknown are answered alike.
    pub(crate) fn changes(&self, volume: u32) -> Result<(), WireError> {
        let Some(own) = &self.own else { return Ok(()) };
        match own.get(&volume) {
            Some(Access::Write) => Ok(()),
            Some(Access::Read) => {
                let holder = self.peer.limits().map_or("", |(holder, _)| holder);
                let text = format!(
                    "the key of {holder} may read this volume and not change it; who runs the cluster makes another one with cairn key client \
                     --volume VOLUME:rw"
                );
                Err(WireError::new(ErrorCode::KeyForbids, text))
            }
            None => {
                let volume = VolumeId(volume);
                let text = format!("there is no volume {volume}; `cairn admin volume ls` shows those that exist");
                Err(WireError::new(ErrorCode::UnknownVolume, text))
            }
        }
    }

    /// As whom a request is done.
    pub(crate) fn who(&self, who: Option<Credentials>) -> Result<Option<Credentials>, WireError> {
        let Some((holder, rights)) = self.peer.limits() else { return Ok(who) };
        let refused = |why| WireError::new(ErrorCode::KeyForbids, format!("the key of {holder} {why}"));
        rights.users().judge(who).map_err(refused)
    }

    /// The map without what is not this key's.
    pub(crate) fn map(&self, mut map: ClusterMap) -> ClusterMap {
        if self.own.is_none() {
            return map;
        }
        map.volumes.retain(|volume| self.sees(volume.id));
        map.partitions.retain(|partition| self.sees(partition.volume));
        map.pgs.retain(|pg| pg.state.as_ref().is_some_and(|state| self.sees(state.volume)));
        for disk in &mut map.disks {
            // Of use to who looks after the machines.
            (disk.path, disk.problem, disk.gray, disk.uuid) = Default::default();
            (disk.pgs, disk.chunks) = (0, 0);
        }
        map
    }

    /// The same of an answer that has one.
    pub(crate) fn within(&self, map: Option<ClusterMap>) -> Option<ClusterMap> {
        map.map(|map| self.map(map))
    }

    /// The state of the cluster, as far as it is of this key's volumes.
    pub(crate) fn status(&self, status: StatusResponse) -> Result<StatusResponse, WireError> {
        let Some((holder, rights)) = self.peer.limits() else { return Ok(status) };
        let map = self.within(status.map);
        let own = |id: u32| map.as_ref().is_some_and(|map| map.partitions.iter().any(|partition| partition.id == id));
        let partitions = status.partitions.into_iter().filter(|report| own(report.partition)).collect();
        Ok(StatusResponse {
            partitions,
            problems: vec![format!("only what is of these volumes is shown to the key of {holder}: {rights}")],
            problem_severities: vec![1],
            leader_node: status.leader_node,
            term: status.term,
            managers: status.managers,
            manager_members: status.manager_members,
            feature_level: status.feature_level,
            map,
            ..StatusResponse::default()
        })
    }

    pub(crate) fn jobs(
        &self,
        asked: &ListJobsRequest,
        mut answer: ListJobsResponse,
    ) -> Result<ListJobsResponse, WireError> {
        answer.jobs.retain(|job| self.sees(job.volume));
        match asked.job != 0 && answer.jobs.is_empty() {
            true => Err(unknown_job(asked.job)),
            false => Ok(answer),
        }
    }

    pub(crate) fn cancels(&self, manager: &Manager, job: u64) -> Result<(), WireError> {
        if self.own.is_none() {
            return Ok(());
        }
        let volume = manager.replica.read().job(job).map(|job| job.volume.get());
        let volume = volume.filter(|volume| self.sees(*volume)).ok_or_else(|| unknown_job(job))?;
        self.changes(volume)
    }

    /// A member is to be looked at: of a group that is this key's. Whether it counts if it answers and is only called
    /// slow: somebody who may only read would take it out of the group without having written anything.
    pub(crate) fn reports(&self, manager: &Manager, asked: &ReportMemberRequest) -> Result<bool, WireError> {
        let volume = manager.replica.read().pg(PgId(asked.pg)).map(|pg| pg.volume.get());
        counts(self.own.as_ref(), volume).ok_or_else(|| {
            WireError::new(ErrorCode::UnknownPg, format!("there is no {}; refresh the cluster map", PgId(asked.pg)))
        })
    }
}

/// Whether what is reported of a group of this volume counts by itself; `None`: the volume is not to be seen.
fn counts(own: Option<&BTreeMap<u32, Access>>, volume: Option<u32>) -> Option<bool> {
    let Some(own) = own else { return Some(true) };
    own.get(&volume?).map(|access| *access == Access::Write)
}

fn own_volumes(state: &State, rights: &Rights) -> BTreeMap<u32, Access> {
    // Those that were deleted too: whoever knew them has to hear of it.
    state.volumes().filter_map(|volume| Some((volume.id.get(), rights.of(&volume.name)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A key that may only read would take members that answer out of groups; or a writer's word count for nothing.
    #[test]
    fn whose_reports_count() {
        let own = BTreeMap::from([(1, Access::Read), (2, Access::Write)]);
        let of = |volume| counts(Some(&own), volume);
        assert_eq!([Some(1), Some(2), Some(3), None].map(of), [Some(false), Some(true), None, None]);
        assert_eq!(counts(None, None), Some(true), "of a key without limits");
    }
}
