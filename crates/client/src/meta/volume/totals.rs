//! What is known of a volume as a whole: the sum over its partitions, which are asked side by side.
use super::Volume;
use crate::error::{ClientError, Result};
use crate::meta::call::MetaCaller;
use crate::volume_counts::{Quota, VolumeCounts};
use cairn_types::InodeId;
use cairn_wire::Opcode;
use cairn_wire::meta::*;
use futures_util::stream::{self, StreamExt as _};
use std::time::Duration;

/// Partitions that are asked at once.
pub(super) const AT_ONCE: usize = 64;
/// Before it is asked again whether what no file names was counted.
const SURVEY_PAUSE: Duration = Duration::from_millis(200);

impl Volume {
    /// Counts of the volume with what no file names, counted after this was asked, if that takes no longer than
    /// `patience`; else the count before it. Servers of before do not know it.
    pub async fn statfs_unreferenced(&self, patience: Duration) -> Result<VolumeCounts> {
        let clock = &self.cluster().clock;
        let asked = clock.now();
        loop {
            let counts = self.counts(true).await?;
            let Some(found) = counts.unreferenced else { return Ok(VolumeCounts::of_wire(counts)) };
            let waited = clock.now().since(asked);
            let is_new = found.age_ms.is_some_and(|age| u128::from(age) <= waited.as_millis());
            if is_new || waited >= patience {
                return Ok(VolumeCounts::of_wire(counts));
            }
            tokio::time::sleep(SURVEY_PAUSE).await;
        }
    }
    /// Counts of the volume.
    pub async fn statfs(&self) -> Result<VolumeCounts> {
        Ok(VolumeCounts::of_wire(self.counts(false).await?))
    }
    async fn counts(&self, unreferenced: bool) -> Result<StatfsResponse> {
        self.caller.counts(self.name(), unreferenced).await
    }
    /// All quotas of the volume, that of the volume first.
    pub async fn quotas(&self) -> Result<Vec<Quota>> {
        let lists = self.caller.partitions().await?.into_iter().map(|partition| self.quotas_of(partition));
        let lists: Vec<Result<Vec<Quota>>> = stream::iter(lists).buffered(AT_ONCE).collect().await;
        let mut all = Vec::new();
        for list in lists {
            all.extend(list?);
        }
        all.sort_by_key(|quota: &Quota| quota.inode);
        if let Some(volume) = all.first_mut().filter(|quota| quota.inode == 0) {
            self.add_use(volume).await?;
        }
        Ok(all)
    }
    /// The use of the volume in all its partitions, in its quota.
    pub(super) async fn add_use(&self, quota: &mut Quota) -> Result<()> {
        let counts = self.statfs().await?;
        // The root does not count.
        (quota.bytes_used, quota.inodes_used) = (counts.stored_bytes, counts.inodes.saturating_sub(1));
        Ok(())
    }
    async fn quotas_of(&self, partition: u32) -> Result<Vec<Quota>> {
        let what = format!("quotas of partition p{partition}");
        let mut all: Vec<Quota> = Vec::new();
        loop {
            let (after, resume) = (all.last().map_or(0, |quota| quota.inode), !all.is_empty());
            let header = Some(self.caller.read_header(partition));
            let request = ListQuotasRequest { header, after, resume, count_max: 0 };
            let page: ListQuotasResponse = self.caller.read(&what, partition, Opcode::ListQuotas, request).await?;
            let end = page.end || page.quotas.is_empty();
            all.extend(page.quotas.into_iter().map(Quota::of_wire));
            if end {
                return Ok(all);
            }
        }
    }
}

impl MetaCaller {
    /// All partitions of the volume, the root's first.
    pub(crate) async fn partitions(&self) -> Result<Vec<u32>> {
        let root = self.partition_of(InodeId::ROOT.0).await?;
        let view = self.cluster.view();
        let own = view.partitions.values().filter(|partition| partition.volume == self.volume && !partition.removed);
        let others = own.map(|partition| partition.id).filter(|partition| *partition != root);
        Ok([root].into_iter().chain(others).collect())
    }

    /// Counts of the volume, with its quota. The error names the partition that did not answer.
    pub(crate) async fn counts(&self, volume: &str, unreferenced: bool) -> Result<StatfsResponse> {
        let partitions = self.partitions().await?;
        let several = partitions.len() > 1;
        let root = partitions.first().copied();
        let asked = partitions.into_iter().map(|partition| async move {
            let what = match several {
                true => format!("volume {volume:?}, partition p{partition}"),
                false => format!("volume {volume:?}"),
            };
            // The partition of the root counts what no file names for all.
            let unreferenced = unreferenced && Some(partition) == root;
            let request = StatfsRequest { header: Some(self.read_header(partition)), unreferenced };
            self.read::<StatfsResponse, _>(&what, partition, Opcode::Statfs, request).await
        });
        let answers: Vec<Result<StatfsResponse>> = stream::iter(asked).buffered(AT_ONCE).collect().await;
        let mut answers = answers.into_iter();
        let root = answers.next().ok_or_else(|| ClientError::protocol("a volume", "it has no partition"))??;
        answers.try_fold(root, |sum, one| Ok(added(sum, &one?)))
    }
}

/// Of both. The quota and what no file names are the volume's, which the first one tells.
fn added(mut sum: StatfsResponse, one: &StatfsResponse) -> StatfsResponse {
    sum.inodes += one.inodes;
    sum.directories += one.directories;
    sum.file_bytes += one.file_bytes;
    sum.stored_bytes += one.stored_bytes;
    sum.memory_bytes += one.memory_bytes;
    sum.freeing += one.freeing;
    sum
}
