//! Drain: everything leaves a disk, a node or a rack, or stays after all. What follows is a duty (`duties/moves.rs`).
use crate::manager::Manager;
use cairn_manager_core::Target;
use cairn_manager_core::command::{Command, SetDrain};
use cairn_types::{DiskId, ErrorCode, NodeId};
use cairn_wire::common::Empty;
use cairn_wire::error::WireError;
use cairn_wire::manager::{DrainRequest, Target as TargetMessage};

impl Manager {
    pub(crate) async fn drain(&self, request: DrainRequest) -> Result<Empty, WireError> {
        let target = target_of(request.target.as_ref())?;
        self.permit()?;
        let command = SetDrain { target: Some((&target).into()), cancel: request.cancel };
        self.execute(Command::SetDrain(command)).await?;
        tracing::warn!(%target, cancel = request.cancel, "an operator drains, or cancels a drain");
        self.wake.notify_one();
        Ok(Empty {})
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
