//! What a process led that is dead: what it had queued is stored under its session, and what it led ends when somebody
//! wants it, instead of with the session's lease.
//!
//! Nothing more comes of that process, so what it has stored and queued is all that there is; what it holds open it
//! goes on to hold. The partition counts items, so a batch that the dead one sent, or another successor, and which
//! comes late, does nothing twice. Invariants: only slots are used that neither the process nor another successor got
//! to; what is queued is in the table of this client until it is stored, and stays there if it is lost; it is stored
//! before its delegation is given back; a place in memory is free only behind that, and never where it was lost.
use super::grant::give_back;
use super::held::{Held, Made};
use super::memory::LeftQueue;
use super::send::{Sending, once};
use crate::meta::call::MetaCaller;
use crate::meta::keep_alive;
use crate::meta::session::{KeptSlot, SUCCESSORS_MAX, Session};
use cairn_delegate_core::config::Config;
use cairn_delegate_core::succession::Succession;
use cairn_types::{ErrorCode, SessionId, Time};
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

    /// Stores what it had queued, and ends those delegations. What cannot be stored any more is lost: whoever comes to
    /// what it covered gets an error, from this process and from its successors. It is tried for as long as nobody says
    /// that: until then nobody else gets what it covers, and here everybody waits. Begun once, before
    /// [`renew`](Self::renew).
    pub async fn store(&self, left: Vec<LeftQueue>) {
        self.left.lock().extend(left.iter().map(|queue| queue.of.number));
        let mut partitions: BTreeMap<u32, Vec<Inherited>> = BTreeMap::new();
        // All before any is sent: what is lost is not to be seen as the servers have it.
        left.into_iter().for_each(|queue| {
            partitions.entry(queue.of.partition).or_default().push(self.inherit(queue));
        });
        let all = partitions.into_iter().map(|(partition, queues)| self.store_at(partition, queues));
        futures_util::future::join_all(all).await;
    }

    /// Enters what is left of a delegation in the table.
    fn inherit(&self, queue: LeftQueue) -> Inherited {
        let LeftQueue { of, mut covered, first, items, is_given_up, log } = queue;
        let items: Result<Vec<BatchItem>, _> = items.iter().map(|item| BatchItem::decode(&item[..])).collect();
        let given_up =
            is_given_up.then_some("too many processes died before changes were stored that one had answered");
        let (items, why) = match items {
            Ok(items) => (items, given_up.map(str::to_owned)),
            Err(error) => (Vec::new(), Some(error.to_string())),
        };
        let succession = match why {
            None => Ok(Succession::new(of.number, first, items.iter().cloned())),
            Some(why) => Err(WireError::new(ErrorCode::Internal, why)),
        };
        let (volume, partition, session) = (self.caller.volume, of.partition, self.session.clone());
        let made = Made { volume, partition, session, parent: 0, name: b"", sent: Time(0) };
        let (table, clock) = (self.caller.delegations(), self.caller.cluster.clock.clone());
        let held = Held::of_the_dead(&table.ranges, clock, made, (of.number, first), (items, log));
        if covered.is_empty() {
            covered.push(of.number..=of.number);
        }
        table.inherit(&held, covered);
        Inherited { held, succession }
    }

    async fn store_at(&self, partition: u32, queues: Vec<Inherited>) {
        let mut slot = self.session.kept_slot(partition).expect("the first one of a session");
        for Inherited { held, succession } in queues {
            let (number, session) = (held.number, self.session.id);
            let outcome = match succession {
                Ok(mut succession) => self.store_queue(&mut slot, &held, &mut succession).await,
                Err(error) => Err(error),
            };
            match outcome {
                Ok(next) => {
                    held.stored(next);
                    self.caller.delegations().remove(number);
                    tracing::info!(inode = number, %session, items = next, "what a dead process had queued is stored");
                }
                Err(error) => {
                    held.not_stored(&error);
                    tracing::error!(
                        inode = number, partition, %session, count = held.lost_changes(), %error,
                        "changes in a delegated directory are lost: a process answered them, died, and they could not be stored; what is \
                         in it is answered EIO until it is mounted anew"
                    );
                }
            }
            self.left.lock().remove(&number);
        }
    }

    /// How many items there have been, all of which are stored.
    async fn store_queue(
        &self,
        slot: &mut KeptSlot,
        held: &Held,
        succession: &mut Succession,
    ) -> Result<u64, WireError> {
        let (partition, number) = (held.partition, held.number);
        loop {
            let request = succession.batch(&Config::default());
            let sending = Sending::new(&self.caller, &self.session, partition, slot, request);
            let answer: Result<BatchResponse, WireError> = loop {
                if let Some(answer) = once(&self.caller, partition, number, slot, &sending).await {
                    break answer;
                }
            };
            if succession.answered(answer)? {
                return Ok(succession.stored());
            }
            held.stored_below(succession.stored());
        }
    }
}

/// What is left of a delegation, and on its way to the partition. An error: it cannot be stored.
struct Inherited {
    held: Arc<Held>,
    succession: Result<Succession, WireError>,
}
