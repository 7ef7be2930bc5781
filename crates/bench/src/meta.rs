//! `cairn bench meta`: namespace operations over bare connections, each with a session of its own.
//!
//! Every client makes files with 16-byte names in a directory of its own, looks each up, lists the directory, renames
//! and unlinks them. The directories are in all partitions of the volume in turn. Mutations are durable before they are
//! answered. Not here: retries; a leader that changes during the run shows up as errors; the directories themselves
//! ([`targets`]).
mod driver;
mod ops;
mod targets;

use crate::BenchContext;
use crate::cpu::CpuReading;
use crate::report::{Row, latencies};
use anyhow::bail;
use cairn_client::{Client, Volume};
use cairn_env::{Clock, RealClock};
use clap::Args;
use driver::{Job, Limit, Worker};
use ops::Operation;
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
    /// Seconds of creating and of making directories; the other operations then go over what was created
    #[arg(long, default_value_t = 3.0)]
    pub seconds: f64,
    /// Create so many files, and make so many directories, however long it takes
    #[arg(long)]
    pub files: Option<u64>,
    /// Threads that drive the clients
    #[arg(long, default_value_t = 2)]
    pub threads: usize,
    /// In this order; move takes each file to a second directory and mkdir makes directories
    #[arg(long, value_delimiter = ',', default_value = "create,stat,readdir,rename,unlink")]
    pub operations: Vec<Operation>,
    /// Create each file with one extent of 4 KiB, as a file with contents has it (it names no stored bytes)
    #[arg(long)]
    pub extents: bool,
    /// Stat files at random for --seconds, instead of each once in the order of their creation
    #[arg(long)]
    pub random: bool,
    /// Move files to a directory of another partition, and have directories made in another one
    #[arg(long)]
    pub across: bool,
    /// All clients work in this directory, and in each of its shards if it has some; what is in it then stays, but for
    /// what unlink removes
    #[arg(long, value_name = "PATH", conflicts_with = "across")]
    pub directory: Option<String>,
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
    if !matches!(args.operations.first(), Some(Operation::Create | Operation::Mkdir)) {
        bail!("--operations has to begin with create or mkdir: the others work on what was created");
    }
    if args.directory.is_some() && args.operations.contains(&Operation::Move) {
        bail!("--operations has move, which needs a second directory: it does not go with --directory");
    }
    if args.operations.iter().rev().skip(1).any(|operation| *operation == Operation::Move) {
        bail!("--operations has something behind move: files are not where the others look for them then");
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let client = context.connect().await?;
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
    crate::interrupt::writes_to(&root);
    let targets = match &args.directory {
        Some(path) => targets::in_one_directory(args, client, volume, path, clients).await?,
        None => targets::in_own_directories(args, client, volume, &root, clients).await?,
    };
    let mut workers = targets.into_iter().map(|target| Worker::new(target, args.in_flight)).collect();
    for &operation in &args.operations {
        let limit = limit_of(args, operation, clients);
        let random = args.random && operation == Operation::Stat;
        let before = CpuReading::take(client).await;
        let started = RealClock.now();
        let job = Job { operation, limit, random, identity: context.identity()? };
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
    if !args.keep && args.directory.is_none() {
        targets::remove(args, volume, &root, clients).await?;
    }
    Ok(())
}

/// When an operation ends.
fn limit_of(args: &MetaArgs, operation: Operation, clients: usize) -> Limit {
    let slots = (clients * args.in_flight) as u64;
    let seconds = Limit::Time(Duration::from_secs_f64(args.seconds));
    match (operation, args.files) {
        (Operation::Create | Operation::Mkdir, Some(files)) => Limit::Calls(files.div_ceil(slots)),
        (Operation::Create | Operation::Mkdir, None) => seconds,
        (Operation::Stat, _) if args.random => seconds,
        _ => Limit::Created,
    }
}
