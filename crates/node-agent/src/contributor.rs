//! [`Contributor`]: a role's part in registration and heartbeats; [`Registration`]: what the manager gave the node.

use cairn_types::{ClusterId, DiskId, DiskUuid, Incarnation, NodeId, WallTime};
use cairn_wire::manager::{
    ClusterMap, DiskReport, HeartbeatRequest, HeartbeatResponse, RegisterRequest, RegisterResponse,
};

use crate::settings::Settings;

/// What the manager gave the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registration {
    /// The node's id, for ever.
    pub node: NodeId,
    /// The cluster it belongs to, for ever.
    pub cluster: ClusterId,
    /// Of this start (or of this registration, when the manager asked for another one).
    pub incarnation: Incarnation,
    /// The manager's term at that time.
    pub term: u64,
    /// The disks by their labels' uuids; a refused one has id 0.
    pub disks: Vec<(DiskUuid, DiskId)>,
    /// Why disks were refused.
    pub problems: Vec<String>,
}

/// A role's part. All calls come from the agent's own thread, one at a time; they may block for a moment (a write of a
/// label), but heartbeats wait that long.
pub trait Contributor: Send + Sync + 'static {
    /// The role's disks as they are now, for registrations and heartbeats.
    fn disks(&self) -> Vec<DiskReport> {
        Vec::new()
    }

    /// The node was registered, for the first time or anew. Comes before any map and before the heartbeat after it.
    /// An error (a label could not be written) makes the agent register again after a pause.
    fn registered(&self, registration: &Registration) -> Result<(), String> {
        let _ = registration;
        Ok(())
    }

    /// The map changed: all of it when `change.base_version` is 0, else what is new. `term` is the manager's.
    fn map_changed(&self, change: &ClusterMap, term: u64) {
        let _ = (change, term);
    }

    /// Adds to a registration that is about to be sent. `disks` was filled from [`disks`](Self::disks).
    fn register(&self, request: &mut RegisterRequest) {
        let _ = request;
    }

    /// The manager's answer to it, before [`registered`](Self::registered) and the map.
    fn register_answered(&self, answer: &RegisterResponse) {
        let _ = answer;
    }

    /// The manager's answer to a heartbeat.
    fn heartbeat_answered(&self, answer: &HeartbeatResponse) {
        let _ = answer;
    }

    /// Adds reports to a heartbeat that is about to be sent. `disks` was filled from [`disks`](Self::disks).
    fn heartbeat(&self, heartbeat: &mut HeartbeatRequest) {
        let _ = heartbeat;
    }

    /// Settings of the cluster that nodes go by, with the first answer to a heartbeat and when one changed.
    fn settings(&self, settings: &Settings) {
        let _ = settings;
    }

    /// What the clock of the manager that answered says.
    fn manager_clock(&self, manager: NodeId, wall: WallTime) {
        let _ = (manager, wall);
    }

    /// The manager has taken the heartbeat that was filled last. (When it failed, the next one is asked for instead.)
    fn heartbeat_taken(&self) {}

    /// Everything that the manager knew when it took that heartbeat has been handed out.
    fn up_to_date(&self) {}
}
