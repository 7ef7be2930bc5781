//! `cairn bench meta`: namespace operations over bare connections, each with a session of its own.
//!
//! Every client makes files with 16-byte names in a directory of its own, looks each up, lists the directory, renames
//! and unlinks them. The directories are in all partitions of the volume in turn. Mutations are durable before they are answered. Not here: retries; a leader that changes during the
//! run shows up as errors.
mod driver;
mod ops;

use crate::BenchContext;
use crate::cpu::CpuReading;
use crate::report::{Row, latencies};
use anyhow::{Context, bail};
use cairn_client::{Client, ConnectOptions, Volume};
use cairn_env::{Clock, RealClock};
use cairn_wire::Opcode;
use cairn_wire::manager::{OpenSessionRequest, OpenSessionResponse};
use clap::Args;
use driver::{Job, Limit, Worker};
use ops::{Operation, Target};
use std::time::Duration;

/// Arguments of `cairn bench meta`.
#[derive(Args, Debug, Clone)]
pub struct MetaArgs {
    /// Numbers of concurrent clients, a connection each
    #[arg(long, value_delimiter = ',', default_value = "1,16,64,256")]
    pub clients: Vec<usize>,
    /// Calls that each client keeps outstanding (at most 64)
    #[arg(long, default_value_t = 1)]
    pub in_flight: usize,
    /// Seconds of creating; the other operations then go over what was created
    #[arg(long, default_value_t = 3.0)]
    pub seconds: f64,
    /// Threads that drive the clients
    #[arg(long, default_value_t = 2)]
    pub threads: usize,
    #[arg(long, value_delimiter = ',', default_value = "create,stat,readdir,rename,unlink")]
    pub operations: Vec<Operation>,
    /// Create each file with one extent of 4 KiB, as a file with contents has it (it names no stored bytes)
    #[arg(long)]
    pub extents: bool,
    /// Leave the files there at the end
    #[arg(long)]
    pub keep: bool,
    #[arg(long, default_value = "default")]
    pub volume: String,
}

/// Runs it.
pub fn run(args: &MetaArgs, context: &BenchContext) -> anyhow::Result<()> {
    if !(1..=64).contains(&args.in_flight) {
        bail!("--in-flight is {}, it has to be 1 to 64", args.in_flight);
    }
    if args.operations.first() != Some(&Operation::Create) {
        bail!("--operations has to begin with create: the others work on what it made");
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let client = Client::connect(ConnectOptions::new(context.cluster.clone())).await?;
        let volume = client.volume(&args.volume).await?;
        for &clients in &args.clients {
            round(args, context, &client, &volume, clients.max(1)).await?;
        }
        volume.close().await;
        Ok(())
    })
}

/// All operations with one number of clients.
async fn round(
    args: &MetaArgs,
    context: &BenchContext,
    client: &Client,
    volume: &Volume,
    clients: usize,
) -> anyhow::Result<()> {
    let root = format!("/.bench-meta-{}-{clients}", std::process::id());
    volume.mkdir(root.as_bytes(), 0o755, 0).await?;
    let partitions = volume.partitions().await?;
    let mut workers = Vec::new();
    for i in 0..clients {
        let request = OpenSessionRequest { client: "cairn-bench".into(), volume: volume.id() };
        let session: OpenSessionResponse = client.manager("opening a session", Opcode::OpenSession, &request).await?;
        // The same number in each partition.
        let elsewhere = partitions[i % partitions.len()];
        let directory = volume.mkdir_in(format!("{root}/{i}").as_bytes(), 0o755, 0, elsewhere).await?.inode;
        let (partition, leader) = leader_of(client, volume, directory).await?;
        let (session, extent) = (session.session, args.extents);
        let target = Target { volume: volume.id(), partition, leader, session, directory, extent };
        workers.push(Worker::new(target, args.in_flight));
    }
    for &operation in &args.operations {
        let limit = match operation {
            Operation::Create => Limit::Time(Duration::from_secs_f64(args.seconds)),
            _ => Limit::Created,
        };
        let before = CpuReading::take(client).await;
        let started = RealClock.now();
        let job = Job { operation, limit };
        let (back, outcome) = driver::drive(workers, job, args.threads.max(1)).await?;
        workers = back;
        let took = RealClock.now().since(started);
        let cpu = CpuReading::take(client).await.since(&before);
        let mut latency = latencies();
        latency.add(&outcome.latency)?;
        let totals = (outcome.operations, 0, outcome.errors);
        Row::new(operation.name(), (clients, args.in_flight), totals, took, &latency, cpu).print(context.json);
        if let Some(error) = outcome.first_error {
            eprintln!("first error of {}: {error}", operation.name());
        }
    }
    if args.keep {
        return Ok(());
    }
    // Each by itself: a directory of another partition is none that goes with the one above it at once.
    for i in 0..clients {
        volume.remove_tree(format!("{root}/{i}").as_bytes()).await.context("removing the benchmark's files")?;
    }
    volume.remove_tree(root.as_bytes()).await.context("removing the benchmark's files")?;
    Ok(())
}

/// The partition that owns the inode and the address of its leader.
async fn leader_of(client: &Client, volume: &Volume, inode: u64) -> anyhow::Result<(u32, String)> {
    // A call through the client made sure that there is a leader; the map may still name the one before.
    for _ in 0..50 {
        let view = client.refresh().await?;
        let partition = view.partition_of(volume.id(), inode).context("the volume has no partition for its inode")?;
        let leader = view.nodes.get(&partition.leader).or_else(|| match partition.nodes.as_slice() {
            [only] => view.nodes.get(only),
            _ => None,
        });
        if let Some(node) = leader {
            return Ok((partition.id, node.address.clone()));
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    bail!("the cluster map names no leader for the volume's partition; see cairn admin status")
}
