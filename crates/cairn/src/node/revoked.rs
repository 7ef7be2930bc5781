//! [`RevokedKeeper`]: takes the names of revoked keys that the managers tell with their answers to heartbeats.
//!
//! Not here: where they count (`rpc`), the list of whoever runs this server (`security.rs`).
use cairn_node_agent::Contributor;
use cairn_security::Revoked;
use cairn_wire::manager::{HeartbeatRequest, HeartbeatResponse};
use std::sync::Arc;

pub(super) struct RevokedKeeper(pub(super) Arc<Revoked>);

impl Contributor for RevokedKeeper {
    fn heartbeat(&self, heartbeat: &mut HeartbeatRequest) {
        let (sum, kept) = self.0.told();
        heartbeat.revoked_sum = Some(sum);
        heartbeat.revoked_kept = u32::try_from(kept).unwrap_or(u32::MAX);
    }

    fn heartbeat_answered(&self, answer: &HeartbeatResponse) {
        let Some(told) = &answer.revoked else { return };
        match self.0.take(&told.names, told.sum) {
            Ok(came) if came.is_empty() => {}
            Ok(came) => tracing::warn!(revoked = came.join(", "), "keys were taken away"),
            Err(error) => tracing::error!(
                %error,
                "keys that were taken away cannot be written down: they are refused, but not after a restart without managers; it is \
                 tried again each second"
            ),
        }
    }
}
