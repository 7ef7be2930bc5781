//! OpenSession: a session id that was never given before.
//!
//! Ids are reserved in blocks through the log and handed out from memory; what a leader has left when it loses its
//! leadership is never used. Invariant: an id is handed out only by who reserved its block, and once.
use crate::manager::Manager;
use cairn_manager_core::Outcome;
use cairn_manager_core::command::{Command, GrantSessions};
use cairn_types::{ErrorCode, VolumeId};
use cairn_wire::error::WireError;
use cairn_wire::manager::{OpenSessionRequest, OpenSessionResponse};

/// Ids reserved with one log entry.
const BLOCK: u32 = 4096;

impl Manager {
    pub(crate) async fn open_session(&self, request: OpenSessionRequest) -> Result<OpenSessionResponse, WireError> {
        let session = match self.next_session()? {
            Some(session) => session,
            None => self.reserve_sessions().await?,
        };
        self.metrics.sessions.add(1);
        tracing::debug!(session, client = %request.client.chars().take(80).collect::<String>(), "session opened");
        Ok(OpenSessionResponse { session, map: Some(self.client_map(0, VolumeId(request.volume))?) })
    }

    fn next_session(&self) -> Result<Option<u64>, WireError> {
        self.look_in_cluster(|_, leading| Ok(leading.sessions.next()))
    }

    async fn reserve_sessions(&self) -> Result<u64, WireError> {
        let _one_at_a_time = self.granting.lock().await;
        if let Some(session) = self.next_session()? {
            return Ok(session);
        }
        match self.execute(Command::GrantSessions(GrantSessions { count: BLOCK })).await? {
            Outcome::Sessions(first, count) => self.look(|_, leading| {
                // The first one is taken here: others may empty the block before this looks again.
                leading.sessions = first.get() + 1..first.get() + u64::from(count);
                first.get()
            }),
            _ => Err(WireError::new(ErrorCode::Internal, "a grant of sessions came to something else")),
        }
    }
}
