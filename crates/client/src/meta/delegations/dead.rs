//! What a process led that is dead: what it had queued is stored under its session, and what it led ends when somebody
//! wants it, instead of with the session's lease.
//!
//! Nothing more comes of that process, so what it has stored and queued is all that there is; what it holds open it
//! goes on to hold. The partition counts items, so a batch that the dead one sent, or another successor, and which
//! comes late, does nothing twice. Invariants: only slots are used that neither the process nor another successor got
//! to; what is queued is stored before its delegation is given back; a place in memory is free only behind that.
use super::grant::give_back;
use super::memory::LeftQueue;
use super::send::{Sending, once};
use crate::meta::call::MetaCaller;
use crate::meta::keep_alive;
use crate::meta::session::{KeptSlot, SUCCESSORS_MAX, Session};
use cairn_delegate_core::config::Config;
use cairn_delegate_core::succession::Succession;
use cairn_types::{ErrorCode, SessionId};
use cairn_wire::error::WireError;
use cairn_wire::meta::{BatchItem, BatchResponse, KeepAliveRequest};
use futures_util::StreamExt as _;
use parking_lot::Mutex;
use prost::Message as _;
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

/// Processes that may store a queue one after the other; each has slots of its own.
pub const QUEUE_SUCCESSORS_MAX: u64 = SUCCESSORS_MAX - 1;
/// Partitions are asked so often what is wanted.
const EVERY: Duration = Duration::from_millis(100);
/// One that does not answer within this is asked the next time.
const PATIENCE: Duration = Duration::from_secs(1);
/// Partitions that are asked at once.
const AT_ONCE: usize = 64;

/// The session of a dead process, until it is ended.
pub struct DeadSession {
    caller: Arc<MetaCaller>,
    session: Arc<Session>,
    /// Delegations with something that is not stored yet.
    left: Mutex<BTreeSet<u64>>,
}

impl DeadSession {
    pub(in crate::meta) fn new(caller: &Arc<MetaCaller>, dead: SessionId, successor: u64) -> Self {
        let session = Arc::new(Session::of_the_dead(dead, successor));
        Self { caller: caller.clone(), session, left: Mutex::default() }
    }

    /// Keeps it alive until this is dropped; what it leads, and has nothing left to store, ends when it is wanted.
    pub async fn renew(&self) -> Infallible {
        loop {
            let partitions = self.caller.partitions().await.unwrap_or_default();
            let asked = futures_util::stream::iter(partitions);
            asked.for_each_concurrent(AT_ONCE, |partition| self.end_wanted_at(partition)).await;
            tokio::time::sleep(EVERY).await;
        }
    }

    async fn end_wanted_at(&self, partition: u32) {
        let (caller, session) = (&self.caller, &self.session);
        let header = Some(caller.header(partition, session.id, 0, 0));
        let request = KeepAliveRequest { header, ..KeepAliveRequest::default() };
        // What is not heard now is heard the next time.
        let Ok(answer) = keep_alive::ask(caller, partition, &request, PATIENCE).await else { return };
        for number in answer.delegations {
            if self.left.lock().contains(&number) {
                continue;
            }
            tracing::info!(inode = number, session = %session.id, "a directory that a dead process led is led no longer");
            give_back(caller, session, partition, number).await;
        }
    }

    /// Stores what it had queued, and ends those delegations. What cannot be stored any more is told by the log. It is
    /// tried for as long as nobody says that: until then nobody else gets what it covers. Begun once, before
    /// [`renew`](Self::renew).
    pub async fn store(&self, left: Vec<LeftQueue>) {
        self.left.lock().extend(left.iter().map(|queue| queue.of.number));
        let mut partitions: BTreeMap<u32, Vec<LeftQueue>> = BTreeMap::new();
        left.into_iter().for_each(|queue| partitions.entry(queue.of.partition).or_default().push(queue));
        let all = partitions.into_iter().map(|(partition, queues)| self.store_at(partition, queues));
        futures_util::future::join_all(all).await;
    }

    async fn store_at(&self, partition: u32, queues: Vec<LeftQueue>) {
        let mut slot = self.session.kept_slot(partition).expect("the first one of a session");
        for mut queue in queues {
            let (number, count, session) = (queue.of.number, queue.items.len(), self.session.id);
            match self.store_queue(&mut slot, partition, &queue).await {
                Ok(()) => tracing::info!(inode = number, %session, count, "what a dead process had queued is stored"),
                Err((left, error)) => tracing::error!(
                    inode = number, partition, %session, count = left, %error,
                    "changes in a delegated directory are lost: a process answered them, died, and they could not be stored"
                ),
            }
            queue.log.end();
            self.left.lock().remove(&number);
        }
    }

    /// An error: how many were lost, and why.
    async fn store_queue(
        &self,
        slot: &mut KeptSlot,
        partition: u32,
        queue: &LeftQueue,
    ) -> Result<(), (u64, WireError)> {
        let items: Result<Vec<BatchItem>, _> = queue.items.iter().map(|item| BatchItem::decode(&item[..])).collect();
        let count = queue.items.len() as u64;
        let items = items.map_err(|why| (count, WireError::new(ErrorCode::Internal, why.to_string())))?;
        let mut succession = Succession::new(queue.of.number, queue.first, items);
        loop {
            let request = succession.batch(&Config::default());
            let sending = Sending::new(&self.caller, &self.session, partition, slot, request);
            let answer: Result<BatchResponse, WireError> = loop {
                if let Some(answer) = once(&self.caller, partition, queue.of.number, slot, &sending).await {
                    break answer;
                }
            };
            match answer.and_then(|answer| succession.answered(&answer)) {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(error) => return Err((succession.left(), error)),
            }
        }
    }
}
