//! What holds when everything is over: the volume is whole by its own check, and data nodes keep nothing that no file
//! names.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use cairn_client::ClientError;
use cairn_client::fsck::{FsckProgress, FsckState};
use cairn_types::InodeId;
use cairn_wire::Opcode;
use cairn_wire::data::{ListChunksRequest, ListChunksResponse};
use cairn_wire::manager::ClusterMap;

use super::Workload;
use crate::cluster::Cluster;
use crate::members::Snapshot;

/// Time in which the volume's check finds nothing any more.
const CHECK_PATIENCE: Duration = Duration::from_secs(120);
/// Time in which what nobody names is gone: sessions end first, and then garbage is looked for again.
const GARBAGE_PATIENCE: Duration = Duration::from_secs(600);

impl Cluster {
    /// The chunks of all disks, by group and index.
    async fn chunks(&self, map: &ClusterMap) -> Result<BTreeSet<(u32, u32)>, String> {
        let places = self.places(map);
        let mut chunks = BTreeSet::new();
        for state in map.pgs.iter().filter_map(|pg| pg.state.as_ref()) {
            for member in &state.members {
                let Some(place) = places.get(&member.disk) else { continue };
                let mut from = ListChunksRequest {
                    disk: member.disk,
                    pg: state.pg,
                    from_start: true,
                    count_max: 1000,
                    ..ListChunksRequest::default()
                };
                loop {
                    let answer = self.ask(*place, Opcode::ListChunks, &from).await?;
                    let page = answer.decode::<ListChunksResponse>().map_err(|error| error.to_string())?;
                    chunks.extend(page.chunks.iter().map(|chunk| (state.pg, chunk.index)));
                    let Some(last) = page.chunks.last().filter(|_| !page.end) else { break };
                    from = ListChunksRequest { after_index: last.index, from_start: false, ..from };
                }
            }
        }
        Ok(chunks)
    }
}

/// The chunks that extents name.
fn named(live: &[Snapshot]) -> BTreeSet<(u32, u32)> {
    let extents = live.iter().flat_map(|snapshot| &snapshot.extents).map(|extent| extent.chunk);
    let columns = live.iter().flat_map(|snapshot| &snapshot.sets).flat_map(|set| set.columns.iter().copied());
    extents.chain(columns).map(|chunk| (chunk.pg.0, chunk.index)).collect()
}

impl Workload {
    /// The volume's own check finds nothing: names, totals, and each extent with the redundancy of its layout.
    pub(super) fn check_volume(&mut self) -> Result<(), String> {
        let begun = Instant::now();
        let mut last = String::new();
        while begun.elapsed() < CHECK_PATIENCE {
            match self.cluster.runtime.block_on(self.one_check()) {
                Ok(end) if end.state == FsckState::Done && end.found == 0 && end.inodes > 0 => {
                    self.count("volumes checked");
                    return Ok(());
                }
                Ok(end) => {
                    let findings: Vec<&str> = end.findings.iter().map(|finding| finding.text.as_str()).collect();
                    last = format!("{} {findings:?} {}", end.found, end.message);
                }
                Err(why) => last = why,
            }
            std::thread::sleep(Duration::from_secs(1));
        }
        Err(format!("the check of the volume does not end without findings within {CHECK_PATIENCE:?}: {last}"))
    }

    async fn one_check(&self) -> Result<FsckProgress, String> {
        let text = |error: ClientError| error.to_string();
        let partition = self.reading.partition_of(InodeId::ROOT.0).await.map_err(text)?;
        let run = self.reading.start_fsck(partition, false).await.map_err(text)?;
        loop {
            let now = self.reading.fsck_progress(partition, run, 0).await.map_err(text)?;
            if now.state != FsckState::Running {
                return Ok(now);
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Writers are gone: what they wrote and no file names goes as well, and nothing else does.
    pub(super) fn check_garbage(&mut self) -> Result<(), String> {
        let begun = Instant::now();
        let mut last = String::new();
        while begun.elapsed() < GARBAGE_PATIENCE {
            std::thread::sleep(Duration::from_secs(2));
            let Some(map) = self.cluster.map() else { continue };
            let live = self.live();
            let kept = match self.cluster.runtime.block_on(self.cluster.chunks(&map)) {
                Ok(kept) if live.len() == self.live_count() => kept,
                Ok(_) => continue,
                Err(why) => {
                    last = why;
                    continue;
                }
            };
            let orphans: Vec<_> = kept.difference(&named(&live)).copied().collect();
            if orphans.is_empty() {
                *self.counts.entry("chunks at the end").or_default() += kept.len() as u64;
                return Ok(());
            }
            last = format!("chunks that no file names: {orphans:?}");
        }
        Err(format!("not everything that nobody needs goes within {GARBAGE_PATIENCE:?}: {last}"))
    }
}
