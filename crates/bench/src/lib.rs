//! `cairn bench`: load generators that print operations or bytes a second, latency percentiles and CPU seconds of
//! client and servers, as text or JSON.
//!
//! They go through `client` and `rpc` as every front does, but for `erasure`, which needs no cluster. Not here:
//! comparisons with other systems (`scripts/bench.sh` and docs/performance.md).
pub mod append;
pub mod cpu;
pub mod erasure;
pub mod files;
mod interrupt;
pub mod io;
pub mod meta;
mod overwrite;
pub mod raw;
pub mod replay;
pub mod report;
pub mod snapshot;

use clap::Subcommand;

/// `cairn bench …`
#[derive(Subcommand, Debug)]
pub enum BenchCommand {
    /// Namespace operations: create, lookup, stat, readdir, rename, unlink
    Meta(meta::MetaArgs),
    /// Sequential writes (synced) and reads (warm and cold)
    Io(io::IoArgs),
    /// Records that many writers append to one file
    Append(append::AppendArgs),
    /// Many files of one size, written and read as a tree is
    Files(files::FilesArgs),
    /// The load that request logs of servers tell of, made again
    Replay(replay::ReplayArgs),
    /// What snapshots cost: pauses of writers, changes after them, lookups, deleting them
    Snapshot(snapshot::SnapshotArgs),
    /// The kernels of the erasure codes on one core; needs no cluster
    Erasure(erasure::ErasureArgs),
}

/// What all benchmarks share.
#[derive(Clone, Debug)]
pub struct BenchContext {
    /// Managers, `host:port` each.
    pub cluster: Vec<String>,
    pub json: bool,
    /// The key that is shown.
    pub key: cairn_client::key::Key,
}

impl BenchContext {
    async fn connect(&self) -> cairn_client::Result<cairn_client::Client> {
        let options = cairn_client::ConnectOptions::new(self.cluster.clone());
        cairn_client::Client::connect(cairn_client::ConnectOptions { key: self.key.clone(), ..options }).await
    }
    /// Of connections of a benchmark's own.
    fn identity(&self) -> anyhow::Result<cairn_rpc::Identity> {
        Ok(cairn_rpc::Identity::client_with_key(self.key.read(&self.cluster)?))
    }
}

/// Runs a benchmark to its end; it stops by itself.
pub fn run(command: BenchCommand, context: &BenchContext) -> anyhow::Result<()> {
    interrupt::listen()?;
    match command {
        BenchCommand::Meta(args) => meta::run(&args, context),
        BenchCommand::Io(args) => io::run(&args, context),
        BenchCommand::Append(args) => append::run(&args, context),
        BenchCommand::Files(args) => files::run(&args, context),
        BenchCommand::Replay(args) => replay::run(&args, context),
        BenchCommand::Snapshot(args) => snapshot::run(&args, context),
        BenchCommand::Erasure(args) => erasure::run(&args, context),
    }
}
