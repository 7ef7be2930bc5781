//! GetMap: the cluster map for clients, with present loads of disks. A manager that does not lead gives the one that it
//! has, without loads, to who says that it may be old.
use crate::manager::Manager;
use cairn_manager_core::{Scope, Soft};
use cairn_types::{ErrorCode, VolumeId};
use cairn_wire::error::WireError;
use cairn_wire::manager::{ClusterMap, GetMapRequest};

impl Manager {
    pub(crate) fn get_map(&self, request: GetMapRequest) -> Result<ClusterMap, WireError> {
        if request.managers_only && self.look(|state, _| state.waits())? {
            return self.look(|state, leading| ClusterMap {
                volumes: Vec::new(),
                partitions: Vec::new(),
                pgs: Vec::new(),
                ..state.map(0, Scope::All, &leading.soft)
            });
        }
        match self.client_map(request.since_version, VolumeId(request.volume)) {
            Err(error) if request.stale_ok && error.code == ErrorCode::NotLeader => self.stale_map(&request),
            answer => answer,
        }
    }

    /// The map as this member has it, with its age.
    fn stale_map(&self, request: &GetMapRequest) -> Result<ClusterMap, WireError> {
        let unavailable = |text: &str| WireError::new(ErrorCode::Unavailable, text);
        let age = self.log()?.age().ok_or_else(|| unavailable("this manager waits to be filled and has no map yet"))?;
        let age_ms = u64::try_from(age.as_micros().div_ceil(1000)).unwrap_or(u64::MAX);
        if request.age_ms_max != 0 && age_ms > request.age_ms_max {
            return Err(unavailable(&format!("this manager does not lead, and its map is {age_ms} ms old")));
        }
        let state = self.replica.read();
        if state.cluster().is_none() {
            return Err(unavailable("this manager knows of no cluster yet"));
        }
        let map = state.map(request.since_version, Scope::Volume(VolumeId(request.volume)), &Soft::default());
        Ok(ClusterMap { stale: true, age_ms, ..map })
    }

    /// The map as a client of this volume needs it (0: of all).
    pub(super) fn client_map(&self, since: u64, volume: VolumeId) -> Result<ClusterMap, WireError> {
        self.look_in_cluster(|state, leading| {
            let mut map = state.map(since, Scope::Volume(volume), &leading.soft);
            map.loads = state.loads(&leading.soft);
            Ok(map)
        })
    }
}
