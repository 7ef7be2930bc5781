//! Volumes of several partitions: what is brought of them is as of one moment, for which the partition of the root has
//! them all hold. Each writes its checkpoint behind, and they are brought one after the other.
//!
//! Invariant: entries that say that they are of one moment are all of one answer of the partition of the root.
use super::{BackupArgs, PART_TRIES, PAUSE, Source, bring, failed, told};
use crate::error::{CliError, Result};
use crate::exit::Exit;
use cairn_client::Client;
use cairn_client::admin::backup::BegunCheckpoint;
use cairn_client::admin::status::ClusterMap;
use cairn_client::map::Partition;
use cairn_format::backup_manifest::BackupEntry;
use cairn_rescue::BackupSet;
use cairn_types::ErrorCode;
use std::collections::BTreeMap;

/// Each round has the volume hold its changes again and again, for some seconds.
const CUT_ROUNDS: u32 = 3;

/// A volume of several partitions.
pub(super) struct Together {
    pub(super) number: u32,
    /// The partition of the root.
    root: Source,
}

/// All volumes with several partitions.
pub(super) fn volumes(map: &ClusterMap) -> Vec<Together> {
    let mut of: BTreeMap<u32, Vec<&Partition>> = BTreeMap::new();
    for partition in map.partitions.iter().filter(|partition| !partition.removed) {
        of.entry(partition.volume).or_default().push(partition);
    }
    let several = of.into_iter().filter(|(_, partitions)| partitions.len() > 1);
    let with_root = several.filter_map(|(number, partitions)| {
        let root = partitions.iter().find(|partition| partition.inode_first <= 1)?;
        Some(Together { number, root: Source::of_partition(map, root) })
    });
    with_root.collect()
}

impl BackupArgs {
    /// Brings all partitions of a volume as of one moment; of each, whether it was new.
    pub(super) async fn together(
        &self,
        client: &Client,
        map: &ClusterMap,
        set: &BackupSet,
        volume: &Together,
    ) -> Result<Vec<(BackupEntry, bool)>> {
        let mut last = String::new();
        for _ in 0..PART_TRIES {
            let cut = cut(client, volume).await?;
            match bring_all(client, map, set, &cut).await {
                Ok(entries) => return Ok(entries),
                // Gone with a process, or newer ones took its place: then all are of another moment.
                Err(error) => last = error.to_string(),
            }
        }
        let number = volume.number;
        Err(CliError::refused(
            Exit::Other,
            format!("volume {number} could not be brought as of one moment: {last}; repeat"),
        ))
    }
}

/// Has all partitions begin their checkpoints.
async fn cut(client: &Client, volume: &Together) -> Result<Vec<BegunCheckpoint>> {
    let what = format!("volume {}: one moment of all its partitions", volume.number);
    let root = (volume.number, volume.root.group);
    let mut last = "the partition of its root has no members".to_owned();
    for _ in 0..CUT_ROUNDS {
        for (_, address) in &volume.root.members {
            match client.cut_checkpoints(&what, root, address).await {
                Ok(begun) => return Ok(begun),
                Err(error) if error.code() == Some(ErrorCode::NotLeader) => {}
                Err(error) => last = error.to_string(),
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
    Err(CliError::refused(
        Exit::Unreachable,
        format!(
            "{what} cannot be had ({last}); there is no new backup. All partitions need leaders, and meta nodes of this build; \
             --any-member takes one partition after the other"
        ),
    ))
}

async fn bring_all(
    client: &Client,
    map: &ClusterMap,
    set: &BackupSet,
    cut: &[BegunCheckpoint],
) -> Result<Vec<(BackupEntry, bool)>> {
    let mut entries = Vec::new();
    for BegunCheckpoint { group, node, index, term } in cut.iter().copied() {
        let lost = |why: String| CliError::refused(Exit::Other, format!("{}: {why}", told(group)));
        let known = set.kept(group, index, term).map_err(failed)?;
        let new = known.is_none();
        let kept = match known {
            Some(kept) => kept,
            None => {
                let address = map.nodes.iter().find(|known| known.id == node.0).map(|node| node.address.clone());
                let address = address.ok_or_else(|| lost(format!("{node} is not in the map")))?;
                let taken = client.begun_checkpoint(&told(group), (group, index), &address).await?;
                if taken.is_none_or(|taken| (taken.index, taken.term) != (index, term)) {
                    return Err(lost(format!("{node} has lost the checkpoint of entry {index}")));
                }
                bring(client, set, group, &address, index, term).await?
            }
        };
        let (time, bytes, crc) = (kept.time, kept.bytes, kept.crc);
        entries.push((BackupEntry { group, node, index, term, time, bytes, crc, led: true, cut: true }, new));
    }
    Ok(entries)
}
