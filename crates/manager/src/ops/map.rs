//! GetMap: the cluster map for clients, with present loads of disks.
use crate::manager::Manager;
use cairn_manager_core::Scope;
use cairn_types::VolumeId;
use cairn_wire::error::WireError;
use cairn_wire::manager::{ClusterMap, GetMapRequest};

impl Manager {
    pub(crate) fn get_map(&self, request: GetMapRequest) -> Result<ClusterMap, WireError> {
        self.client_map(request.since_version, VolumeId(request.volume))
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
