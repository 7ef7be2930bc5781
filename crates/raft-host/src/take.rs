//! Asking a group on this node for a checkpoint of what it has now (operation TakeCheckpoint), for backups.
//!
//! Invariant: "led" is answered only by a member that held its lease after it was asked, so everything acknowledged
//! before is in the state. Not here: writing it, or beginning one of an exact moment ([`crate::owner`]), and giving its
//! bytes away (`FetchCheckpoint`).

use cairn_types::GroupId;
use cairn_wire::raft::TakeCheckpointRequest;

use crate::host::RaftHost;
use crate::mailbox::TakeAnswer;

impl RaftHost {
    /// Asks a group's member on this node; `then` runs on a thread that handles groups when the file is written. A
    /// group that is not open here drops it.
    pub(crate) fn take_checkpoint(&self, request: TakeCheckpointRequest, then: TakeAnswer) {
        let group = GroupId(request.group);
        match self.port(group) {
            Some(port) if port.take(request, then) => {}
            _ => tracing::debug!(%group, "somebody asked for a checkpoint of a group that is not open"),
        }
    }
}
