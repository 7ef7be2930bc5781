//! [`Identity`]: who this process is when it says hello, shared by all of its connections.
//!
//! Invariant: a cluster id, once known, never changes for the life of the process. Not here: where it is stored.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use cairn_security::Tls;
use cairn_types::{ClusterId, NodeId};
use cairn_wire::hello::{Hello, PeerKind};

use crate::node_keys::NodeKeys;

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
    tls: Option<Arc<Tls>>,
    node_keys: Arc<NodeKeys>,
}

impl Identity {
    /// `cluster` may be [`ClusterId::NONE`]: a client then takes over the cluster of the first server that it reaches,
    /// a server accepts everybody until [`set_cluster`](Self::set_cluster).
    pub fn new(cluster: ClusterId, kind: PeerKind, node: NodeId) -> Self {
        Self::with_key(cluster, kind, node, None)
    }

    /// The same, of a process that has a key if there is one.
    pub fn with_key(cluster: ClusterId, kind: PeerKind, node: NodeId, tls: Option<Arc<Tls>>) -> Self {
        let (cluster_id, node) = (OnceLock::new(), AtomicU32::new(node.get()));
        let node_keys = Arc::new(NodeKeys::new(tls.clone()));
        let inner = Inner { cluster: cluster_id, node, kind, tls, node_keys };
        let identity = Self { inner: Arc::new(inner) };
        identity.set_cluster(cluster);
        identity
    }

    /// A client that takes over the cluster of the first server that it reaches.
    pub fn client() -> Self {
        Self::new(ClusterId::NONE, PeerKind::Client, NodeId(0))
    }

    /// Such a client with a key, if there is one.
    pub fn client_with_key(tls: Option<Arc<Tls>>) -> Self {
        Self::with_key(ClusterId::NONE, PeerKind::Client, NodeId(0), tls)
    }

    /// The key of the process.
    pub fn tls(&self) -> Option<&Arc<Tls>> {
        self.inner.tls.as_ref()
    }

    /// Whose keys the nodes of the cluster have, as far as this process was told.
    pub fn node_keys(&self) -> &Arc<NodeKeys> {
        &self.inner.node_keys
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
