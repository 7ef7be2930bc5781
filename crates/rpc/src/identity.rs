//! [`Identity`]: who this process is when it says hello, shared by all of its connections.
//!
//! Invariant: a cluster id, once known, never changes for the life of the process. Not here: where it is stored.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use cairn_types::{ClusterId, NodeId};
use cairn_wire::hello::{Hello, PeerKind};

/// Who this process is. Clones share the same state: what one learns, all know.
#[derive(Clone, Debug)]
pub struct Identity {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    cluster: OnceLock<ClusterId>,
    node: AtomicU32,
    kind: PeerKind,
}

impl Identity {
    /// `cluster` may be [`ClusterId::NONE`]: a client then takes over the cluster of the first server that it reaches,
    /// a server accepts everybody until [`set_cluster`](Self::set_cluster).
    pub fn new(cluster: ClusterId, kind: PeerKind, node: NodeId) -> Self {
        let identity =
            Self { inner: Arc::new(Inner { cluster: OnceLock::new(), node: AtomicU32::new(node.get()), kind }) };
        identity.set_cluster(cluster);
        identity
    }

    /// A client that takes over the cluster of the first server that it reaches.
    pub fn client() -> Self {
        Self::new(ClusterId::NONE, PeerKind::Client, NodeId(0))
    }

    /// The cluster, [`ClusterId::NONE`] as long as it is not known.
    pub fn cluster(&self) -> ClusterId {
        self.inner.cluster.get().copied().unwrap_or(ClusterId::NONE)
    }

    /// Sets the cluster when it is not known yet. Returns whether it is `cluster` now.
    pub fn set_cluster(&self, cluster: ClusterId) -> bool {
        if cluster.is_none() {
            return self.cluster().is_none();
        }
        *self.inner.cluster.get_or_init(|| cluster) == cluster
    }

    /// Sets the node id after registration.
    pub fn set_node(&self, node: NodeId) {
        self.inner.node.store(node.get(), Ordering::Relaxed);
    }

    /// The hello to send now.
    pub fn hello(&self) -> Hello {
        Hello::new(self.cluster(), self.inner.kind, NodeId(self.inner.node.load(Ordering::Relaxed)))
    }
}
