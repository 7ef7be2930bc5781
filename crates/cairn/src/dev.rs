//! `cairn dev`: a whole cluster in one process without root, kept in one directory: real TCP, real files.
//!
//! Node 1 is manager and meta; every other node is a data node with its own directory, port and rack. A new cluster has
//! keys without anybody asking: only whoever started it is served, and his commands find the key.
mod keys;
mod user_key;

use crate::config::CHECKPOINT_GENERATIONS;
use crate::descriptors;
use crate::memory;
use crate::node::http_door::HttpSpec;
use crate::node::http_port::HttpPort;
use crate::node::{NodeProcess, NodeSpec};
use crate::private;
use crate::server::{ServeError, Signals, announce, http_runtime};
use anyhow::Context;
use cairn_client::key::{KEY_VARIABLE, Key};
use cairn_client::{Client, ConnectOptions};
use cairn_manager::Bootstrap;
use cairn_telemetry::{LogConfig, init_logging};
use clap::Args;
use keys::{DevKeys, HEAD, data_name};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use user_key::UserKey;

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
    /// Serve everybody who reaches the ports, also if the cluster has keys
    #[arg(long, conflicts_with = "secure")]
    insecure: bool,
    /// Give a cluster keys that was begun without; a new one has them anyway
    #[arg(long)]
    secure: bool,
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
    refuse_of_others(&args.data_dir)?;
    refuse_foreign(&args.data_dir)?;
    let keys = keys_of(&args)?;
    descriptors::raise_limit();
    let runtime = http_runtime()?;
    let signals = Signals::new(&runtime)?;
    let nodes = start_nodes(&args, keys.as_ref(), &runtime).map_err(name_the_risk)?;
    let (address, http) = (nodes[0].address(), nodes[0].http_address());
    // Before it serves: a command that waits for it finds the key.
    let _placed = let_commands_in(&args, keys.as_ref(), &address)?;
    runtime.block_on(wait_usable(&address, keys.as_ref()))?;
    announce(&address, &http)?;
    signals.wait(&runtime);
    std::thread::scope(|scope| {
        for node in nodes {
            scope.spawn(move || node.stop());
        }
    });
    Ok(())
}

/// Keys that the cluster has, or gets now; `None`: it goes on without.
fn keys_of(args: &DevArgs) -> anyhow::Result<Option<DevKeys>> {
    let is_begun = args.data_dir.join(HEAD).is_dir();
    if args.insecure {
        return Ok(None);
    }
    match DevKeys::find(&args.data_dir)? {
        Some(keys) => {
            keys.complete(args.nodes)?;
            Ok(Some(keys))
        }
        None if args.secure || !is_begun => DevKeys::make(&args.data_dir, args.nodes).map(Some),
        None => {
            DevKeys::refuse_lost(&args.data_dir)?;
            Ok(None)
        }
    }
}

/// Puts the key where commands of this user find it, or says what to do instead.
fn let_commands_in(args: &DevArgs, keys: Option<&DevKeys>, address: &str) -> anyhow::Result<Option<UserKey>> {
    let Some(keys) = keys else {
        for path in user_key::clear(address) {
            let path = path.display();
            eprintln!("cairn: warning: commands show the key {path} to this cluster, which takes none: move it away");
        }
        if !args.insecure {
            eprintln!(
                "cairn: note: this cluster was begun without keys and goes on so: everybody who reaches {address} is served; \
                 start it once with --secure to change that"
            );
        }
        return Ok(None);
    };
    let dir = std::path::absolute(&args.data_dir)?;
    let (placed, wrong) = UserKey::place(address, &keys.client_text()?, &dir, !args.listen.ends_with(":0"));
    let own = std::path::absolute(keys.client())?;
    let key = own.display();
    for why in wrong {
        eprintln!(
            "cairn: warning: commands do not find the key of this cluster by themselves: {why}. Name it: cairn --key {key} …, \
             or export CAIRN_KEY={key}"
        );
    }
    if std::env::var_os(KEY_VARIABLE).is_some_and(|file| !file.is_empty() && Path::new(&file) != own) {
        eprintln!("cairn: note: $CAIRN_KEY is set, so commands show that key; for this cluster it is {key}");
    }
    Ok(placed)
}

/// Another program has the port: commands without a key would speak to that one.
fn name_the_risk(error: anyhow::Error) -> anyhow::Error {
    let in_use = |cause: &(dyn std::error::Error + 'static)| {
        cause.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == std::io::ErrorKind::AddrInUse)
    };
    match error.chain().any(in_use) {
        true => error.context(
            "another program has an address of this cluster, and commands that name no other one would speak to it: stop it, \
             or give another --listen here and --cluster to commands",
        ),
        false => error,
    }
}

/// Whoever can replace the directory decides whether the cluster has keys, and which.
fn refuse_of_others(dir: &Path) -> anyhow::Result<()> {
    let user = rustix::process::geteuid().as_raw();
    for path in [dir.to_path_buf(), dir.join(HEAD)] {
        // What is there, and where it leads if it is a link.
        for found in [std::fs::symlink_metadata(&path), std::fs::metadata(&path)] {
            let found = match found {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                found => found.with_context(|| format!("{} cannot be looked at", path.display()))?,
            };
            let (shown, mode) = (path.display(), found.mode() & 0o7777);
            anyhow::ensure!(
                found.uid() == user,
                "{shown} belongs to uid {}, who could open or replace the cluster, and this is uid {user}: give a new name as --data-dir",
                found.uid()
            );
            anyhow::ensure!(
                found.is_symlink() || mode & 0o002 == 0,
                "everybody on this machine can write in {shown} (mode {mode:04o}): chmod 700 it, or give a new name as --data-dir"
            );
        }
    }
    Ok(())
}

/// A directory with somebody's files and no cluster is not ours.
fn refuse_foreign(dir: &Path) -> anyhow::Result<()> {
    let read = || std::fs::read_dir(dir).with_context(|| format!("{} cannot be read", dir.display()));
    if dir.join(HEAD).is_dir() {
        return Ok(());
    }
    for entry in read()? {
        let name = entry?.file_name();
        anyhow::ensure!(
            name == "lost+found" || keys::is_of_keys(dir, &name),
            "{} holds {name:?} and no cluster; give an empty directory, or a new name, as --data-dir",
            dir.display()
        );
    }
    Ok(())
}

fn start_nodes(
    args: &DevArgs,
    keys: Option<&DevKeys>,
    runtime: &tokio::runtime::Runtime,
) -> anyhow::Result<Vec<NodeProcess>> {
    let of_node = |name: &str| keys.map(|keys| keys.of_node(name));
    let head = NodeProcess::start(NodeSpec { security: of_node(HEAD), ..head_spec(args) }, runtime.handle())?;
    let managers = vec![(1, head.address())];
    let spec = |i| NodeSpec { security: of_node(&data_name(i)), ..data_spec(args, i, &managers) };
    let specs: Vec<NodeSpec> = (1..=args.nodes).map(spec).collect();
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
        dir: args.data_dir.join(HEAD),
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
        meta_memory_max: memory::for_metadata(),
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
        dir: dir.join(data_name(number)).join("node"),
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
        meta_memory_max: u64::MAX,
        disks: vec![dir.join(data_name(number)).join("disk")],
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
async fn wait_usable(address: &str, keys: Option<&DevKeys>) -> anyhow::Result<()> {
    let patience = Duration::from_secs(60);
    let key = keys.map_or(Key::None, |keys| Key::File(keys.client()));
    let options = ConnectOptions { patience, key, ..ConnectOptions::new(vec![address.to_owned()]) };
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
