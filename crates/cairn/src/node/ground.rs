//! What all roles of a node stand on: its directory and who it is, clock, connections to others, descriptors, security.
use super::NodeSpec;
use super::contributors::AddressBook;
use crate::descriptors::Descriptors;
use crate::private;
use crate::security::Security;
use anyhow::Context;
use cairn_env::{Clock, FastRng, OsRng, PatientDisk, RealClock, RealDisk, Rng};
use cairn_raft_host::{HostConfig, MarkBook, RaftHost, RpcTransport};
use cairn_rpc::leader::LeaderClient;
use cairn_rpc::{Client, ClientConfig, Identity};
use cairn_store::LabelledDir;
use cairn_types::{ClusterId, NodeId};
use cairn_wire::hello::PeerKind;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Logs in memory may take this part of what metadata may, on top of it, before checkpoints come sooner.
const LOG_PART: u64 = 4;

/// A member of a Raft group that starts waits so long for what the manager, or other nodes, know of it.
const WITNESS_WAIT: Duration = Duration::from_secs(5);
/// Threads that carry the connections to other nodes.
const CLIENT_THREADS: usize = 1;

/// The configuration and the node's directory are of two members of the managers.
#[derive(Debug, thiserror::Error)]
#[error(
    "{dir} belongs to node {known}, manager.member of the configuration says {member}: this is the configuration of another \
     machine, or the one that a package brings; put that of {known} back, or name the directory of member {member}"
)]
pub struct OtherMember {
    dir: String,
    known: NodeId,
    member: u32,
}

/// What all roles of the node stand on.
pub(super) struct Ground {
    pub(super) clock: Arc<dyn Clock>,
    pub(super) rng: Arc<dyn Rng>,
    pub(super) identity: Identity,
    pub(super) client: Client,
    pub(super) dir: Arc<Mutex<LabelledDir>>,
    pub(super) addresses: Arc<AddressBook>,
    pub(super) marks: Arc<MarkBook>,
    pub(super) descriptors: Descriptors,
    pub(super) ending: Arc<AtomicBool>,
    pub(super) security: Option<Security>,
}

impl Ground {
    pub(super) fn lay(spec: &NodeSpec) -> anyhow::Result<Ground> {
        let clock: Arc<dyn Clock> = Arc::new(RealClock);
        let descriptors = Descriptors::deal(spec.open_files, spec.disks.len())?;
        let ending: Arc<AtomicBool> = Arc::default();
        let disk = RealDisk::create(&spec.dir)
            .with_context(|| format!("the node directory {} cannot be used", spec.dir.display()))?;
        let kind = cairn_format::label::LabelKind::Node;
        let disk = PatientDisk::new(Arc::new(disk), ending.clone());
        let mut dir = LabelledDir::open(Arc::new(disk), kind, ClusterId::NONE, &OsRng, clock.wall())?;
        if let Some(member) = spec.manager {
            let known = dir.label().node;
            if known != NodeId(0) && known != NodeId(member) {
                return Err(OtherMember { dir: spec.dir.display().to_string(), known, member }.into());
            }
            dir.set_node(NodeId(member))?;
        }
        private::mend([spec.dir.as_path()]);
        let security = Security::load(spec)?;
        let tls = security.as_ref().map(|security| security.tls.clone());
        let identity = Identity::with_key(dir.label().cluster, PeerKind::Server, dir.label().node, tls);
        let client = Client::with_threads(CLIENT_THREADS, ClientConfig::default(), identity.clone())?;
        let rng: Arc<dyn Rng> = Arc::new(FastRng::from_os());
        let transport = Arc::new(RpcTransport::new(client.clone()));
        for (number, address) in &spec.managers {
            transport.set_address(NodeId(*number), address.clone());
        }
        let addresses = Arc::new(AddressBook { transport, node_keys: identity.node_keys().clone() });
        let marks = MarkBook::open(dir.disk().clone(), clock.clone(), dir.label().uuid)
            .with_context(|| format!("{}: check whose its files are, and its device", spec.dir.display()))?;
        let marks = Arc::new(marks);
        let dir = Arc::new(Mutex::new(dir));
        Ok(Ground { marks, clock, rng, identity, client, dir, addresses, descriptors, ending, security })
    }
    pub(super) fn managers(&self, spec: &NodeSpec) -> LeaderClient {
        let addresses = spec.managers.iter().map(|(_, address)| address.clone());
        LeaderClient::new(self.client.clone(), "the manager", addresses)
    }
    pub(super) fn raft_host(&self, node: NodeId, spec: &NodeSpec) -> anyhow::Result<Arc<RaftHost>> {
        let dir = self.dir.lock();
        let cluster = dir.label().cluster;
        let config = HostConfig {
            cluster,
            checkpoint_generations: spec.checkpoint_generations,
            feature_level: spec.feature_level,
            node_log_memory_max: spec.meta_memory_max / LOG_PART,
            // The nodes of one process are put back together, and the first one is started alone.
            witness_wait: if spec.compact { Duration::ZERO } else { WITNESS_WAIT },
            marks: Some(self.marks.clone()),
            ..HostConfig::new(node, dir.label().uuid)
        };
        let transport = self.addresses.transport.clone();
        let host = RaftHost::start(config, self.clock.clone(), self.rng.clone(), dir.disk().clone(), transport)?;
        Ok(Arc::new(host))
    }
}
