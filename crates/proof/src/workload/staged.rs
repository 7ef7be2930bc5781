//! Files of a layout with a later scheme: what is written is encoded soon after, by data nodes, while servers fail in
//! the middle of that and clients write. At the end everything that waits is encoded.
//!
//! Bytes are the model's in every stage, which all other steps check. Not here: how many bytes were
//! ([`crate::encoded`]).

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use cairn_client::{ClientError, Volume};
use cairn_sim::SimRng;
use cairn_types::{ExtentKind, Layout, Stage, Stripe};

use super::small::{NAMES, write_one};
use super::{FILES, Workload, beside};
use crate::cluster::Cluster;
use crate::faults::Planned;
use crate::file::fresh_bytes;
use crate::members::Snapshot;
use crate::seed::Staging;

/// Files that are written to be encoded: as many as fill all columns of a stripe group, with more than the least that
/// is encoded together of each.
const AT_ONCE: std::ops::Range<u64> = 4..9;
const LENGTHS: std::ops::Range<u64> = 60_000..500_000;
/// How long a step waits for data nodes to write something when the time has come.
const BEGINS: Duration = Duration::from_secs(4);
/// Changes of disks between that and the fault, at most: a chunk takes some dozens.
const CHANGES_MAX: u64 = 60;
/// Time in which all that waits is encoded when nothing is wrong.
const PATIENCE: Duration = Duration::from_secs(300);
/// From the start until partitions note stages.
const START_PATIENCE: Duration = Duration::from_secs(60);

/// Decides about such steps.
pub(super) struct Staged {
    rng: SimRng,
    /// Places in whole shards that files named when they were looked at, and how long each was.
    shards: RefCell<BTreeMap<(u32, u32, u64), u64>>,
    /// Files are encoded so long after their last change.
    after: Duration,
}

impl Staged {
    pub(super) fn new(seed: u64, layout: Layout) -> Self {
        let (rng, shards) = (SimRng::derived(seed, "staged"), RefCell::default());
        Self { rng, shards, after: layout.stage_after().duration() }
    }

    /// Whether this step is about encoding.
    pub(super) fn is_due(&self) -> bool {
        self.rng.chance(0.4)
    }

    /// What was encoded together and named is counted here: whom the encoder answers may be gone by then.
    pub(super) fn note(&self, snapshot: &Snapshot) {
        let in_shard =
            |kind: Option<ExtentKind>| kind.and_then(ExtentKind::stripe).is_some_and(Stripe::is_whole_shards);
        for extent in snapshot.extents.iter().filter(|extent| in_shard(extent.kind)) {
            let place = (extent.chunk.pg.0, extent.chunk.index, extent.chunk_offset);
            self.shards.borrow_mut().insert(place, extent.length);
        }
    }

    /// For people and tests.
    pub(super) fn summary(&self, cluster: &Cluster) -> String {
        let together: u64 = self.shards.borrow().values().sum();
        let by_file = cluster.encoded_by_file();
        format!("; bytes encoded together {together}, bytes encoded by file {by_file}")
    }
}

impl Cluster {
    /// Changes of the disks of data nodes so far.
    fn disk_changes(&self) -> u64 {
        self.nodes.iter().map(|node| node.lock().disk.ops()).sum()
    }
}

/// Bytes of files that wait, in all partitions, and what is told of that. A file without a name, which somebody has
/// open, is not encoded.
async fn waiting(volume: &Volume) -> Result<(u64, String), ClientError> {
    let mut all = volume.stage_status().await?;
    all.retain(|(_, status)| status.waiting_bytes > 0);
    let waiting = all.iter().map(|(_, status)| status.waiting_bytes).sum();
    Ok((waiting, format!("{all:?}")))
}

impl Workload {
    /// What is stored before all members of a partition understand stages would wait from its next write on.
    pub(super) fn until_stages_are_noted(&mut self) -> Result<(), String> {
        if self.staged.is_none() {
            return Ok(());
        }
        let layout = self.layouts[0];
        let probes: Vec<Vec<u8>> = self.directories.iter().map(|at| format!("{at}/probe").into_bytes()).collect();
        let (cluster, volume) = (self.cluster.clone(), self.volume.clone());
        cluster.eventually("partitions note stages", START_PATIENCE, || {
            let all = async {
                for path in &probes {
                    write_one(volume.clone(), path.clone(), layout, vec![1; 5000]).await?;
                }
                volume.stage_status().await
            };
            let told = cluster.runtime.block_on(all).unwrap_or_default();
            told.iter().filter(|(_, status)| status.waiting_files > 0).count() == probes.len()
        })?;
        for path in probes {
            cluster.eventually("a file can be removed", START_PATIENCE, || {
                let removed = cluster.runtime.block_on(volume.unlink(&path));
                removed.map_or_else(|error| error.is_not_found(), |()| true)
            })?;
        }
        Ok(())
    }

    /// Some files are written, and the fault begins when data nodes are encoding; half of the times beside writes.
    pub(super) fn encode_beside(&mut self, step: usize, planned: Option<Planned>) -> Result<(), String> {
        let Some(Staged { rng, after, .. }) = &self.staged else { return Ok(()) };
        let after = *after;
        // In one directory: what is encoded together is of one partition.
        let (mut wanted, directories) = (BTreeMap::new(), self.directories.len());
        let directory = rng.index(directories);
        for _ in 0..rng.range(AT_ONCE) {
            let number = directory + directories * rng.index(NAMES / directories);
            wanted.insert(number, fresh_bytes(rng, rng.range(LENGTHS) as usize));
        }
        let changes = 1 + rng.range(0..CHANGES_MAX);
        let (writes, wait) = (rng.chance(0.5), Duration::from_millis(rng.range(0..3000)));
        let of_rack = rng.chance(0.2);
        self.write_these(wanted, self.layouts[0], None)?;
        (0..FILES).try_for_each(|i| self.sync(i, None))?;
        std::thread::sleep(after * 3 / 4);
        let (cluster, begun) = (self.cluster.clone(), Instant::now());
        let enough = cluster.disk_changes() + changes;
        while cluster.disk_changes() < enough && begun.elapsed() < BEGINS {
            std::thread::sleep(Duration::from_millis(5));
        }
        self.count("steps of encoding");
        let of_rack = match self.shape.staging.filter(|_| of_rack) {
            Some(Staging { racks, .. }) => self.chaos.plan_for_rack(step, racks),
            None => Vec::new(),
        };
        let planned = planned.filter(|_| of_rack.is_empty()).map(|one| Planned { after: Duration::ZERO, ..one });
        of_rack.into_iter().for_each(|planned| self.chaos.begin(planned));
        match writes {
            true => self.storm(planned)?,
            false => beside(&self.cluster, &mut self.chaos, planned, async { tokio::time::sleep(wait).await })?,
        }
        self.remove_small()?;
        self.check_small()?;
        (0..FILES).try_for_each(|i| self.check_file(i))
    }

    /// Nothing is wrong any more: all that waits is encoded or kept, and has the same bytes with all its redundancy.
    pub(super) fn check_encoded(&mut self) -> Result<(), String> {
        if self.staged.is_none() {
            return Ok(());
        }
        let begun = Instant::now();
        loop {
            let last = match self.cluster.runtime.block_on(waiting(&self.reading)) {
                Ok((0, _)) => break,
                Ok((_, told)) => told,
                Err(error) => error.to_string(),
            };
            if begun.elapsed() > PATIENCE {
                return Err(format!("files still wait to be encoded {PATIENCE:?} after the last fault: {last}"));
            }
            std::thread::sleep(Duration::from_millis(300));
        }
        let files = self.files.iter().map(|file| file.inode).chain(self.small.all().map(|(inode, _)| inode));
        let inodes: Vec<u64> = files.chain(self.records.last().map(|(inode, _)| inode)).collect();
        let found = self.cluster.runtime.block_on(self.reading.getattr_many(&inodes));
        for file in found.map_err(|error| format!("attributes of files: {error}"))? {
            let layout = Layout::from_bits(file.layout).ok_or("a layout of a later version")?;
            match layout.staged().map(|_| layout.stage()) {
                Some(Stage::Encoded) => self.count("files encoded"),
                Some(Stage::Kept) => self.count("files kept as copies"),
                Some(stage) if file.stored_bytes > 0 => {
                    return Err(format!("inode {} does not wait, and its stage is {}", file.inode, stage.name()));
                }
                _ => {}
            }
        }
        self.converge()
    }
}
