//! [`FullNodes`]: how much of its memory each node has used up, as the nodes themselves say.
//!
//! Every batch that a node sends to another one has its own degree of fullness in it ([`Telling`] puts it there), so
//! whoever leads a group knows of all members. Invariant: a node that has just been met is not taken for one that has
//! room. Not here: what fills a node and what follows (the meta role).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use cairn_types::{GroupId, NodeId, Time};
use cairn_wire::raft::{FetchCheckpointRequest, FetchCheckpointResponse, RaftBatch};
use parking_lot::Mutex;

use crate::transport::{FetchError, RaftTransport};

/// How long what a node said counts. One that is silent for longer is not there, and its memory takes nothing.
const FRESH: Duration = Duration::from_secs(60);
/// Nodes that are remembered: more than any node has peers.
const HEARD_MAX: usize = 4096;

/// What nodes say of their memory.
#[derive(Debug)]
pub struct FullNodes {
    node: NodeId,
    own: AtomicU32,
    since: Time,
    heard: Mutex<BTreeMap<NodeId, (u32, Time)>>,
}

impl FullNodes {
    /// Of a node that has room, and has heard nobody.
    pub fn new(node: NodeId, now: Time) -> Self {
        Self { node, own: AtomicU32::new(0), since: now, heard: Mutex::default() }
    }

    /// What this node tells the others from now on.
    pub fn set_own(&self, degree: u32) {
        self.own.store(degree, Ordering::Relaxed);
    }

    pub(crate) fn heard(&self, from: NodeId, degree: u32, now: Time) {
        if from == self.node {
            return;
        }
        let mut heard = self.heard.lock();
        if heard.len() < HEARD_MAX || heard.contains_key(&from) {
            heard.insert(from, (degree, now));
        }
    }

    /// The degree of a node; `None`: it is not known yet.
    pub fn degree(&self, node: NodeId, now: Time) -> Option<u32> {
        if node == self.node {
            return Some(self.own.load(Ordering::Relaxed));
        }
        match self.heard.lock().get(&node) {
            Some((degree, at)) if now.since(*at) < FRESH => Some(*degree),
            Some(_) => Some(0),
            None => (now.since(self.since) >= FRESH).then_some(0),
        }
    }
}

/// A transport whose batches say how full this node is.
pub(crate) struct Telling {
    pub inner: Arc<dyn RaftTransport>,
    pub full: Arc<FullNodes>,
}

impl RaftTransport for Telling {
    fn send(&self, to: NodeId, batch: RaftBatch) {
        self.inner.send(to, RaftBatch { fullness: self.full.own.load(Ordering::Relaxed), ..batch });
    }

    fn learn_address(&self, node: NodeId, address: &str) {
        self.inner.learn_address(node, address);
    }

    fn may_be_member(&self, group: GroupId, node: NodeId) -> bool {
        self.inner.may_be_member(group, node)
    }

    fn named_members(&self, group: GroupId) -> Vec<NodeId> {
        self.inner.named_members(group)
    }

    fn fetch(
        &self,
        from: NodeId,
        request: FetchCheckpointRequest,
    ) -> Result<(FetchCheckpointResponse, Bytes), FetchError> {
        self.inner.fetch(from, request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A partition would take names again because its leader started a moment ago; or none ever again because a full
    /// node died.
    #[test]
    fn what_is_not_known_is_no_room_and_what_is_gone_fills_nothing() {
        let at = |seconds| Time(1) + Duration::from_secs(seconds);
        let full = FullNodes::new(NodeId(1), at(0));
        assert_eq!((full.degree(NodeId(1), at(0)), full.degree(NodeId(2), at(1))), (Some(0), None));
        full.set_own(2);
        full.heard(NodeId(1), 0, at(1));
        assert_eq!(full.degree(NodeId(1), at(1)), Some(2), "nobody else knows it better");
        full.heard(NodeId(2), 1, at(10));
        assert_eq!(full.degree(NodeId(2), at(69)), Some(1));
        assert_eq!(full.degree(NodeId(2), at(70)), Some(0), "it is silent");
        assert_eq!((full.degree(NodeId(3), at(59)), full.degree(NodeId(3), at(60))), (None, Some(0)));
    }
}
