//! Drain: everything leaves a disk, a node or a rack, or stays after all; what follows is a duty (`duties/moves.rs`).
//! Remove: what is empty is no part of the cluster any more. Hibernate: nothing is repaired for a node or rack for a
//! time.
use crate::manager::Manager;
use cairn_manager_core::command::{Command, Hibernate, Remove, SetDrain};
use cairn_manager_core::{Disk, DiskState, Hibernation, State, Target};
use cairn_types::{DiskId, ErrorCode, NodeId};
use cairn_wire::common::Empty;
use cairn_wire::error::WireError;
use cairn_wire::manager::{DrainRequest, HibernateRequest, HibernationStatus, RemoveRequest, Target as TargetMessage};

impl Manager {
    pub(crate) async fn drain(&self, request: DrainRequest) -> Result<Empty, WireError> {
        let target = target_of(request.target.as_ref())?;
        self.permit()?;
        if !request.cancel {
            self.look(|state, _| drainable(state, &target))??;
        }
        let command = SetDrain { target: Some((&target).into()), cancel: request.cancel };
        self.execute(Command::SetDrain(command)).await?;
        tracing::warn!(%target, cancel = request.cancel, "an operator drains, or cancels a drain");
        self.wake.notify_one();
        Ok(Empty {})
    }
}

/// What was taken out of the cluster is not there, for whoever drains: it would be shown as empty, and as to be taken
/// away, for ever.
fn drainable(state: &State, target: &Target) -> Result<(), WireError> {
    let there = |disk: &Disk| disk.state != DiskState::Removed && !state.is_removed(disk.node);
    if state.disks().any(|disk| state.is_in(target, disk.id) && there(disk)) {
        return Ok(());
    }
    let text = match target {
        Target::Disk(_) => format!("there is no {target}; `cairn admin disk ls` shows what there is"),
        Target::Node(id) if state.partitions().any(|p| !p.removed && p.members.contains(id)) => format!(
            "{id} has no disk to drain, but partitions: `cairn admin partition move all {id}` puts other meta nodes in its place"
        ),
        _ => format!("there is no disk in {target}; `cairn admin disk ls` and `node ls` show what there is"),
    };
    Err(WireError::new(ErrorCode::NotFound, text))
}

/// Shortest and longest time for which something hibernates.
const WINDOW_MS: std::ops::RangeInclusive<u64> = 1_000..=7 * 24 * 3_600_000;

impl Manager {
    pub(crate) async fn remove(&self, request: RemoveRequest) -> Result<Empty, WireError> {
        let target = target_of(request.target.as_ref())?;
        self.permit()?;
        self.execute(Command::Remove(Remove { target: Some((&target).into()) })).await?;
        tracing::warn!(%target, "an operator removed it from the cluster for good");
        Ok(Empty {})
    }

    pub(crate) async fn hibernate(&self, request: HibernateRequest) -> Result<Empty, WireError> {
        let target = target_of(request.target.as_ref())?;
        if !request.end && !WINDOW_MS.contains(&request.window_ms) {
            return Err(WireError::new(ErrorCode::InvalidArgument, "a window is between 1 s and 7 days long"));
        }
        self.permit()?;
        let until_ns = self.clock.wall().0.saturating_add(request.window_ms.saturating_mul(1_000_000));
        let command = Hibernate { target: Some((&target).into()), until_ns, end: request.end };
        self.execute(Command::Hibernate(command)).await?;
        tracing::warn!(%target, window_ms = request.window_ms, end = request.end, "an operator lets it hibernate, or ends that");
        Ok(Empty {})
    }

    /// What hibernates now.
    pub(crate) fn hibernations(&self, state: &State) -> Vec<HibernationStatus> {
        let now = self.clock.wall().0;
        let status = |(target, hibernation): (&Target, &Hibernation)| HibernationStatus {
            target: Some(target_message(target)),
            since_ns: hibernation.since.0,
            until_ns: hibernation.until.0,
            left_ms: hibernation.until.0.saturating_sub(now) / 1_000_000,
        };
        state.hibernations().map(status).collect()
    }
}

/// What a request means.
pub(crate) fn target_of(message: Option<&TargetMessage>) -> Result<Target, WireError> {
    match message {
        Some(TargetMessage { kind: 1, id, .. }) => Ok(Target::Disk(DiskId(*id))),
        Some(TargetMessage { kind: 2, id, .. }) => Ok(Target::Node(NodeId(*id))),
        Some(TargetMessage { kind: 3, rack, .. }) => Ok(Target::Rack(rack.clone())),
        _ => Err(WireError::new(ErrorCode::BadRequest, "it has to name a disk, a node or a rack")),
    }
}

/// As it is told.
pub(crate) fn target_message(target: &Target) -> TargetMessage {
    let (kind, id, rack) = match target {
        Target::Disk(disk) => (1, disk.get(), String::new()),
        Target::Node(node) => (2, node.get(), String::new()),
        Target::Rack(rack) => (3, 0, rack.clone()),
    };
    TargetMessage { kind, id, rack }
}
