//! `cairn dev`: a whole cluster in one process without root, kept in one directory: real TCP, real files.
//!
//! Node 1 is manager and meta; every other node is a data node with its own directory, port and rack.
use crate::config::CHECKPOINT_GENERATIONS;
use crate::descriptors;
use crate::node::http_door::HttpSpec;
use crate::node::http_port::HttpPort;
use crate::node::{NodeProcess, NodeSpec};
use crate::private;
use crate::server::{ServeError, Signals, announce, http_runtime};
use anyhow::Context;
use cairn_client::key::Key;
use cairn_client::{Client, ConnectOptions};
use cairn_manager::Bootstrap;
use cairn_telemetry::{LogConfig, init_logging};
use clap::Args;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Of the request log of each node.
const REQUEST_LOG_BYTES: u64 = 16 << 20;
/// Most data nodes of one process.
const NODES_MAX: usize = 64;

/// Arguments of `cairn dev`.
#[derive(Args, Debug)]
pub struct DevArgs {
    /// Directory of the cluster; made if it is not there, kept afterwards
    #[arg(long, default_value = "cairn-dev")]
    data_dir: PathBuf,
    /// Data nodes
    #[arg(long, default_value_t = 9)]
    nodes: usize,
    /// Racks that they are spread over
    #[arg(long, default_value_t = 3)]
    racks: usize,
    /// Address of the manager; port 0 picks one
    #[arg(long, default_value = "127.0.0.1:7400")]
    listen: String,
    /// Address of metrics and health; port 0 picks one. Without it 127.0.0.1, on a port 80 above that of --listen
    #[arg(long)]
    http: Option<String>,
    /// Log filter, as in RUST_LOG
    #[arg(long, default_value = "warn")]
    log: String,
}

/// Runs until a signal ends it.
pub fn run(args: DevArgs) -> Result<(), ServeError> {
    init_logging(&LogConfig { filter: args.log.clone(), ..LogConfig::default() }).map_err(anyhow::Error::msg)?;
    if !(1..=NODES_MAX).contains(&args.nodes) || !(1..=args.nodes).contains(&args.racks) {
        let why = format!("--nodes is 1 to {NODES_MAX} and --racks 1 to the number of nodes");
        return Err(ServeError::Usage(why));
    }
    private::for_owner_alone();
    std::fs::create_dir_all(&args.data_dir)
        .with_context(|| format!("{} cannot be made; choose another --data-dir", args.data_dir.display()))?;
    refuse_foreign(&args.data_dir)?;
    descriptors::raise_limit();
    let runtime = http_runtime()?;
    let signals = Signals::new(&runtime)?;
    let nodes = start_nodes(&args, &runtime)?;
    let (address, http) = (nodes[0].address(), nodes[0].http_address());
    runtime.block_on(wait_usable(&address))?;
    announce(&address, &http)?;
    signals.wait(&runtime);
    std::thread::scope(|scope| {
        for node in nodes {
            scope.spawn(move || node.stop());
        }
    });
    Ok(())
}

/// A directory with somebody's files and no cluster is not ours.
fn refuse_foreign(dir: &Path) -> anyhow::Result<()> {
    let read = || std::fs::read_dir(dir).with_context(|| format!("{} cannot be read", dir.display()));
    if dir.join("node1").is_dir() {
        return Ok(());
    }
    for entry in read()? {
        let name = entry?.file_name();
        anyhow::ensure!(
            name == "lost+found",
            "{} holds {name:?} and no cluster; give an empty directory, or a new name, as --data-dir",
            dir.display()
        );
    }
    Ok(())
}

fn start_nodes(args: &DevArgs, runtime: &tokio::runtime::Runtime) -> anyhow::Result<Vec<NodeProcess>> {
    let head = NodeProcess::start(head_spec(args), runtime.handle())?;
    let managers = vec![(1, head.address())];
    let specs: Vec<NodeSpec> = (1..=args.nodes).map(|i| data_spec(args, i, &managers)).collect();
    // Nodes make no directory above that of a disk.
    for above in specs.iter().flat_map(|spec| &spec.disks).filter_map(|disk| disk.parent()) {
        std::fs::create_dir_all(above).with_context(|| format!("{} cannot be made", above.display()))?;
    }
    let started: Vec<anyhow::Result<NodeProcess>> = std::thread::scope(|scope| {
        let handles: Vec<_> =
            specs.into_iter().map(|spec| scope.spawn(|| NodeProcess::start(spec, runtime.handle()))).collect();
        let joined = handles
            .into_iter()
            .map(|h| h.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a node panicked at its start"))));
        joined.collect()
    });
    let mut nodes = vec![head];
    for node in started {
        nodes.push(node?);
    }
    Ok(nodes)
}

fn head_spec(args: &DevArgs) -> NodeSpec {
    NodeSpec {
        dir: args.data_dir.join("node1"),
        listen: args.listen.clone(),
        advertise: None,
        http: Some(HttpPort::of(args.http.as_deref())),
        http_access: HttpSpec::default(),
        rack: rack(args, 0),
        host: "host1".into(),
        checkpoint_generations: CHECKPOINT_GENERATIONS,
        feature_level: cairn_types::FEATURE_LEVEL,
        request_log_bytes: REQUEST_LOG_BYTES,
        managers: vec![(1, args.listen.clone())],
        manager: Some(1),
        manager_joins: false,
        cluster_name: "dev".into(),
        meta: true,
        disks: Vec::new(),
        replaced_disks: Vec::new(),
        direct_reads: false,
        compact: true,
        open_files: open_files(args),
        rpc_threads: None,
        bootstrap: Some(Bootstrap {
            meta_nodes: 1,
            data_nodes: args.nodes,
            quiet: Duration::from_secs(3),
            smaller: true,
        }),
        admin_over_tcp: false,
        security: None,
    }
}

fn data_spec(args: &DevArgs, number: usize, managers: &[(u32, String)]) -> NodeSpec {
    let dir: &Path = &args.data_dir;
    NodeSpec {
        dir: dir.join(format!("data{number}")).join("node"),
        listen: "127.0.0.1:0".into(),
        advertise: None,
        http: None,
        http_access: HttpSpec::default(),
        rack: rack(args, number - 1),
        host: format!("host{}", number + 1),
        checkpoint_generations: CHECKPOINT_GENERATIONS,
        feature_level: cairn_types::FEATURE_LEVEL,
        request_log_bytes: REQUEST_LOG_BYTES,
        managers: managers.to_vec(),
        manager: None,
        manager_joins: false,
        cluster_name: "dev".into(),
        meta: false,
        disks: vec![dir.join(format!("data{number}")).join("disk")],
        replaced_disks: Vec::new(),
        direct_reads: false,
        compact: true,
        open_files: open_files(args),
        rpc_threads: Some(1),
        bootstrap: None,
        admin_over_tcp: false,
        security: None,
    }
}

/// Of each of the nodes that are in this process. Where there are few, they share them as it comes.
fn open_files(args: &DevArgs) -> u64 {
    (descriptors::limit() / (args.nodes as u64 + 1)).max(1024)
}

fn rack(args: &DevArgs, index: usize) -> String {
    format!("rack{}", index % args.racks + 1)
}

/// Waits until the default volume answers.
async fn wait_usable(address: &str) -> anyhow::Result<()> {
    let patience = Duration::from_secs(60);
    let options = ConnectOptions { patience, key: Key::None, ..ConnectOptions::new(vec![address.to_owned()]) };
    let client = Client::connect(options).await?;
    for _ in 0..600 {
        if let Ok(volume) = client.volume("default").await {
            volume.stat(b"/", true).await?;
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    anyhow::bail!("the volume \"default\" was not made within 12 s; cairn admin status tells why")
}
