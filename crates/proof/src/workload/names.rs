//! Directories in several partitions: where the files of a seed are, and moves of files from one to another while
//! servers fail.

use std::time::{Duration, Instant};

use cairn_client::{ClientError, RenameMode, Volume};
use cairn_types::ErrorCode;
use cairn_wire::Opcode;
use cairn_wire::manager::{SplitPartitionRequest, SplitPartitionResponse};

use super::{ATTEMPTS, Workload, beside};
use crate::cluster::Cluster;

/// From the beginning to a directory in each partition.
const PATIENCE: Duration = Duration::from_secs(120);
/// Partitions of a volume that has several.
pub(super) const PARTITIONS: u32 = 3;
/// Has directories in all of them.
pub(super) const ABOVE: &str = "/all";

/// Has the volume get more partitions, and makes a directory in each; the first one has its names in shards.
pub(super) fn spread(cluster: &Cluster, volume: &Volume) -> Result<Vec<String>, String> {
    let request = SplitPartitionRequest { partition: 1, into: PARTITIONS };
    let mut made = Vec::new();
    let mut last = String::new();
    cluster
        .eventually("the volume has several partitions", PATIENCE, || {
            match cluster.runtime.block_on(cluster.ask_manager(Opcode::SplitPartition, &request)) {
                Ok(answer) => made = answer.decode::<SplitPartitionResponse>().map_or(Vec::new(), |a| a.partitions),
                Err(why) => last = why,
            }
            !made.is_empty()
        })
        .map_err(|why| format!("{why}: {last}"))?;
    until_done(cluster, ABOVE, || volume.mkdir(ABOVE.as_bytes(), 0o755, 0), ErrorCode::Exists)?;
    let mut directories = Vec::new();
    for (number, partition) in [1].into_iter().chain(made).enumerate() {
        let path = format!("{ABOVE}/in{number}");
        until_done(cluster, &path, || volume.mkdir_in(path.as_bytes(), 0o755, 0, partition), ErrorCode::Exists)?;
        directories.push(path);
    }
    let sharded = directories[0].clone();
    until_done(cluster, &sharded, || volume.shard_directory(sharded.as_bytes()), ErrorCode::Exists)?;
    Ok(directories)
}

/// Repeats what a node may not be ready for yet. `fine`: what it says when it was done before.
fn until_done<T, F: Future<Output = Result<T, ClientError>>>(
    cluster: &Cluster,
    what: &str,
    call: impl Fn() -> F,
    fine: ErrorCode,
) -> Result<(), String> {
    let begun = Instant::now();
    loop {
        match cluster.runtime.block_on(call()) {
            Ok(_) => return Ok(()),
            Err(error) if error.code() == Some(fine) => return Ok(()),
            Err(error) if begun.elapsed() > PATIENCE => return Err(format!("{what}: {error}")),
            Err(_) => std::thread::sleep(Duration::from_millis(200)),
        }
    }
}

impl Workload {
    /// A file gets a name in another directory, which may be in another partition.
    pub(super) fn move_file(&mut self, i: usize) -> Result<(), String> {
        let from = self.files[i].path.clone();
        let directory = self.moves.pick(&self.directories).clone();
        self.moved += 1;
        let to = format!("{directory}/file{i}.{}", self.moved).into_bytes();
        for attempt in 0..ATTEMPTS {
            let renamed = self.volume.rename(&from, &to, RenameMode::NoReplace);
            match beside(&self.cluster, &mut self.chaos, None, renamed)? {
                Ok(()) => break,
                // What was not answered before was done.
                Err(error) if attempt > 0 && error.code() == Some(ErrorCode::NotFound) => break,
                Err(error) => self.relieve("moves refused", attempt, &error)?,
            }
        }
        self.files[i].path = to;
        self.count("files moved");
        self.check_file(i)
    }
}
