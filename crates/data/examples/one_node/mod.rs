//! A data server with one disk behind a port of loopback, for the benches of the data path: disk 101 + n is on node 16
//! + n.
use std::path::Path;
use std::sync::Arc;

use cairn_data::{DataConfig, DataEnv, DataServer};
use cairn_env::{BufPool, Disk, OsRng, RealClock, RealDisk};
use cairn_node_agent::{Contributor, Registration};
use cairn_rpc::{Client, ClientConfig, Identity, Server, ServerConfig};
use cairn_types::{ClusterId, DiskId, DiskUuid, Incarnation, NodeId};
use cairn_wire::hello::PeerKind;

pub type Failure = Box<dyn std::error::Error + Send + Sync>;

pub struct BenchNode {
    pub data: DataServer,
    pub server: Server,
    pub address: String,
}

/// Starts the n-th one on a directory and registers it.
pub fn start_node(dir: &Path, number: u32, cluster: ClusterId) -> Result<BenchNode, Failure> {
    let identity = Identity::new(cluster, PeerKind::Server, NodeId(0));
    let client = Client::with_threads(1, ClientConfig::default(), identity.clone())?;
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::create(dir)?);
    let env =
        DataEnv { clock: Arc::new(RealClock), rng: Arc::new(OsRng), pool: BufPool::new(128 << 20), client, cluster };
    let data = DataServer::start(DataConfig::new(vec![disk]), env)?;
    let config = ServerConfig { threads: 1, pool: BufPool::new(64 << 20), ..ServerConfig::default() };
    let server = Server::bind("127.0.0.1:0".parse()?, config, identity, Arc::new(data.clone()))?;
    let uuid = data.disks().first().and_then(|disk| DiskUuid::from_slice(&disk.uuid)).ok_or("no disk")?;
    data.registered(&Registration {
        node: NodeId(16 + number),
        cluster,
        incarnation: Incarnation(1 + u64::from(number)),
        term: 1,
        disks: vec![(uuid, DiskId(101 + number))],
        problems: Vec::new(),
    })?;
    let address = server.local_addr().to_string();
    Ok(BenchNode { data, server, address })
}
