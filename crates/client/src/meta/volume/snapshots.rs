//! Snapshots of a volume: taking, listing, renaming and deleting them. They are read like any directory, as
//! `DIRECTORY/.snapshots/NAME`.
use super::totals::AT_ONCE;
use super::{Volume, shown};
use crate::attributes::Attributes;
use crate::error::{ClientError, Result};
use crate::snapshot::{DirectorySchedule, Snapshot, SnapshotList, SnapshotRule};
use cairn_types::{ErrorCode, InodeId};
use cairn_wire::Opcode;
use cairn_wire::common::Empty;
use cairn_wire::meta::{
    CreateSnapshotRequest, CreateSnapshotResponse, DeleteSnapshotRequest, ListChangedRequest, ListChangedResponse,
    ListSnapshotsRequest, ListSnapshotsResponse, RenameSnapshotRequest, SetSnapshotScheduleRequest,
};
use futures_util::stream::{self, StreamExt as _};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Those who overwrite files in place stop within 10 s; of one that fell silent nothing comes after a minute.
const PATIENCE: Duration = Duration::from_secs(120);
const PAUSE: Duration = Duration::from_millis(200);
/// Upper bits of a directory's list of snapshots, `.snapshots`.
const LISTING: u64 = 0x7fff << InodeId::SNAPSHOT_BITS;

/// Inodes that changed, by their own numbers.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ChangedBetween {
    pub directories: BTreeSet<u64>,
    pub others: BTreeSet<u64>,
}

impl Volume {
    /// Takes one of the volume and returns its number. Waits until nobody overwrites files in place: for some seconds,
    /// and up to a minute after a client that did fell silent.
    pub async fn create_snapshot(&self, name: &[u8]) -> Result<u64> {
        self.take(0, name).await
    }

    /// The same of a directory, which alone shows it.
    pub async fn create_snapshot_of(&self, directory: u64, name: &[u8]) -> Result<u64> {
        self.check_directories(name).await?;
        self.take(directory, name).await
    }

    /// Servers that do not know of them would take those of the volume.
    async fn check_directories(&self, name: &[u8]) -> Result<()> {
        if self.list_snapshots().await?.of_directories {
            return Ok(());
        }
        let text = "snapshots of directories need feature level 18 of all meta nodes (`cairn admin status` shows it)";
        Err(ClientError::remote(&shown(name), ErrorCode::NotSupported, text))
    }

    async fn take(&self, directory: u64, name: &[u8]) -> Result<u64> {
        check_name(name)?;
        let clock = &self.cluster().clock;
        let started = clock.now();
        loop {
            let make = |header| CreateSnapshotRequest { header: Some(header), name: name.to_vec(), directory };
            let answer: CreateSnapshotResponse =
                self.mutate(name, InodeId::ROOT.0, Opcode::CreateSnapshot, make).await?;
            if answer.number > 0 {
                return Ok(answer.number);
            }
            if clock.now().since(started) > PATIENCE {
                let text = match answer.leases {
                    0 => "a client that overwrote files in place fell silent, and what it sent may still arrive; repeat in a minute".to_owned(),
                    files => format!("{files} files are still being overwritten in place: their clients did not stop; repeat in a minute"),
                };
                return Err(ClientError::remote(&shown(name), ErrorCode::LeaseHeld, &text));
            }
            tokio::time::sleep(self.cluster().jitter(PAUSE)).await;
        }
    }

    /// One of the volume. What it holds is freed behind.
    pub async fn delete_snapshot(&self, name: &[u8]) -> Result<()> {
        self.delete_any(0, name).await
    }

    /// The same of one that was listed.
    pub async fn delete_listed(&self, snapshot: &Snapshot) -> Result<()> {
        self.delete_any(number(snapshot), &snapshot.name).await
    }

    async fn delete_any(&self, number: u64, name: &[u8]) -> Result<()> {
        let make = |header| DeleteSnapshotRequest { header: Some(header), name: name.to_vec(), number };
        self.mutate::<Empty, _>(name, InodeId::ROOT.0, Opcode::DeleteSnapshot, make).await.map(|_| ())
    }

    /// One that was listed.
    pub async fn rename_snapshot(&self, snapshot: &Snapshot, new_name: &[u8]) -> Result<()> {
        check_name(new_name)?;
        let (number, name) = (number(snapshot), &snapshot.name);
        let new_name = new_name.to_vec();
        let make = |header| {
            let new_name = new_name.clone();
            RenameSnapshotRequest { header: Some(header), name: name.clone(), new_name, number }
        };
        self.mutate::<Empty, _>(name, InodeId::ROOT.0, Opcode::RenameSnapshot, make).await.map(|_| ())
    }

    /// All of them, oldest first, with those that are being deleted, as the partition of the root knows: what they hold
    /// is told of that alone.
    pub async fn snapshots(&self) -> Result<Vec<Snapshot>> {
        Ok(self.list_snapshots().await?.snapshots)
    }

    async fn list_snapshots(&self) -> Result<SnapshotList> {
        let request = |header| ListSnapshotsRequest { header: Some(header) };
        let what = format!("snapshots of volume {:?}", self.name());
        let found = self.caller.read_by(&what, InodeId::ROOT.0, Opcode::ListSnapshots, request).await?;
        Ok(SnapshotList::of_wire(found))
    }

    /// The directory of a snapshot as it was; also where the directory is not there any more.
    pub async fn directory_of_snapshot(&self, snapshot: &Snapshot) -> Result<Attributes> {
        let directory = if snapshot.directory == 0 { InodeId::ROOT.0 } else { snapshot.directory };
        self.lookup(directory | LISTING, &snapshot.name, &snapshot.name).await
    }

    /// What changed between a snapshot and a later one (0: now): directories, with all above them, and whatever else
    /// was there and is. `None`: the server does not know it (so it is in volumes of several partitions), the caller
    /// may not ask, or it is more than so many.
    pub async fn changed_between(&self, older: u64, newer: u64, max: usize) -> Result<Option<ChangedBetween>> {
        let (mut changed, mut after) = (ChangedBetween::default(), Vec::new());
        let what = format!("changes of volume {:?}", self.name());
        loop {
            let request =
                |header| ListChangedRequest { header: Some(header), older, newer, after: after.clone(), count_max: 0 };
            let answer = self.caller.read_by(&what, InodeId::ROOT.0, Opcode::ListChanged, request).await;
            let page: ListChangedResponse = match answer {
                Err(error) if matches!(error.code(), Some(ErrorCode::UnknownOperation | ErrorCode::NotPermitted)) => {
                    return Ok(None);
                }
                page => page?,
            };
            changed.directories.extend(page.directories);
            changed.others.extend(page.others);
            if changed.directories.len() + changed.others.len() > max {
                return Ok(None);
            }
            if page.after.is_empty() {
                return Ok(Some(changed));
            }
            after = page.after;
        }
    }

    /// Whether times of its inodes are of several clocks.
    pub async fn has_several_partitions(&self) -> Result<bool> {
        Ok(self.caller.partitions().await?.len() > 1)
    }

    /// The snapshots with what they hold in all partitions. One of them that does not answer is named by the error.
    pub async fn snapshots_with_space(&self) -> Result<Vec<Snapshot>> {
        let partitions = self.caller.partitions().await?;
        let several = partitions.len() > 1;
        let asked = partitions.into_iter().map(|partition| async move {
            let what = match several {
                true => format!("snapshots of volume {:?}, partition p{partition}", self.name()),
                false => format!("snapshots of volume {:?}", self.name()),
            };
            let request = ListSnapshotsRequest { header: Some(self.caller.read_header(partition)) };
            self.caller.read::<ListSnapshotsResponse, _>(&what, partition, Opcode::ListSnapshots, request).await
        });
        let answers: Vec<Result<ListSnapshotsResponse>> = stream::iter(asked).buffered(AT_ONCE).collect().await;
        let lists = answers.into_iter().map(|answer| answer.map(|found| SnapshotList::of_wire(found).snapshots));
        Ok(of_all(lists.collect::<Result<_>>()?))
    }

    /// By which rules snapshots are taken by themselves: those of the volume (directory 0), and of each directory that
    /// has some.
    pub async fn snapshot_schedules(&self) -> Result<Vec<DirectorySchedule>> {
        Ok(self.list_snapshots().await?.schedules)
    }

    /// Replaces them, of the volume (0) or a directory.
    pub async fn set_snapshot_schedule(&self, directory: u64, rules: Vec<SnapshotRule>) -> Result<()> {
        if directory != 0 {
            self.check_directories(b"the schedule").await?;
        }
        let rules = rules.into_iter().map(SnapshotRule::to_wire).collect();
        let make = |header| SetSnapshotScheduleRequest { header: Some(header), rules, directory };
        self.mutate::<Empty, _>(b"the schedule", InodeId::ROOT.0, Opcode::SetSnapshotSchedule, make).await.map(|_| ())
    }
}

/// Those of the volume go by their names: all servers understand that.
const fn number(snapshot: &Snapshot) -> u64 {
    if snapshot.directory == 0 { 0 } else { snapshot.number }
}

/// The first partition's, with what all hold. What is gone there and not yet elsewhere is being deleted.
fn of_all(lists: Vec<Vec<Snapshot>>) -> Vec<Snapshot> {
    let mut all: BTreeMap<u64, Snapshot> = BTreeMap::new();
    for (at, list) in lists.into_iter().enumerate() {
        for snapshot in list {
            match all.get_mut(&snapshot.number) {
                Some(known) => {
                    known.kept_blocks += snapshot.kept_blocks;
                    known.deleting |= snapshot.deleting;
                }
                None => {
                    let deleting = snapshot.deleting || at > 0;
                    all.insert(snapshot.number, Snapshot { deleting, ..snapshot });
                }
            }
        }
    }
    all.into_values().collect()
}

/// `PATH@NAME` names a snapshot's path, and ends with the last `@`.
fn check_name(name: &[u8]) -> Result<()> {
    if !name.contains(&b'@') {
        return Ok(());
    }
    let text = "the name of a snapshot has no @, for PATH@NAME is a path in it; take another name";
    Err(ClientError::remote(&shown(name), ErrorCode::InvalidArgument, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Space would be told for less than it is, or a snapshot as there that is being deleted somewhere.
    #[test]
    fn what_all_partitions_hold_is_told() {
        let of = |number, kept_blocks, deleting| Snapshot { number, kept_blocks, deleting, ..Snapshot::default() };
        let all = of_all(vec![
            vec![of(2, 10, false), of(3, 1, false)],
            vec![of(1, 5, false), of(2, 3, false), of(3, 2, true)],
            vec![of(1, 1, true)],
        ]);
        assert_eq!(all, [of(1, 6, true), of(2, 13, false), of(3, 3, true)]);
        assert_eq!(of_all(vec![vec![of(7, 4, true)]]), [of(7, 4, true)]);
    }
}
