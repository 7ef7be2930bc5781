//! What the session of a dead process leads ends when somebody wants it, instead of with the session's lease.
//!
//! Nothing more comes of that process, so what it has stored is all that there is; what it holds open it goes on to
//! hold. Invariant: only slots are used that the process did not get to.
use super::grant::give_back;
use crate::meta::call::MetaCaller;
use crate::meta::keep_alive;
use crate::meta::session::Session;
use cairn_types::SessionId;
use cairn_wire::meta::KeepAliveRequest;
use futures_util::StreamExt as _;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

/// Partitions are asked so often what is wanted.
const EVERY: Duration = Duration::from_millis(100);
/// One that does not answer within this is asked the next time.
const PATIENCE: Duration = Duration::from_secs(1);
/// Partitions that are asked at once.
const AT_ONCE: usize = 64;

impl MetaCaller {
    /// Goes on until it is dropped.
    pub(in crate::meta) async fn end_wanted_of(self: &Arc<Self>, dead: SessionId) -> Infallible {
        let session = Arc::new(Session::of_the_dead(dead));
        loop {
            tokio::time::sleep(EVERY).await;
            let partitions = self.partitions().await.unwrap_or_default();
            let asked = futures_util::stream::iter(partitions);
            asked.for_each_concurrent(AT_ONCE, |partition| self.end_wanted_at(&session, partition)).await;
        }
    }

    async fn end_wanted_at(self: &Arc<Self>, session: &Arc<Session>, partition: u32) {
        let header = Some(self.header(partition, session.id, 0, 0));
        let request = KeepAliveRequest { header, soft_holds: false, acknowledged: 0 };
        // What is not heard now is heard the next time.
        let Ok(answer) = keep_alive::ask(self, partition, &request, PATIENCE).await else { return };
        for number in answer.delegations {
            tracing::info!(inode = number, session = %session.id, "a directory that a dead process led is led no longer");
            give_back(self, session, partition, number).await;
        }
    }
}
