//! Snapshots of a volume: taking, listing, renaming and deleting them. They are read like any directory, as `DIRECTORY/.snapshots/NAME`.
use super::{Volume, shown};
use crate::error::{ClientError, Result};
use cairn_types::{ErrorCode, InodeId};
use cairn_wire::Opcode;
use cairn_wire::common::Empty;
use cairn_wire::meta::{
    CreateSnapshotRequest, CreateSnapshotResponse, DeleteSnapshotRequest, ListChangedRequest, ListChangedResponse,
    ListSnapshotsRequest, ListSnapshotsResponse, RenameSnapshotRequest, SetSnapshotScheduleRequest, Snapshot,
    SnapshotRule,
};
use std::collections::BTreeSet;
use std::time::Duration;

/// Those who overwrite files in place stop within 10 s; of one that fell silent nothing comes after a minute.
const PATIENCE: Duration = Duration::from_secs(120);
const PAUSE: Duration = Duration::from_millis(200);

/// Inodes that changed, by their own numbers.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ChangedBetween {
    pub directories: BTreeSet<u64>,
    pub others: BTreeSet<u64>,
}

impl Volume {
    /// Takes one and returns its number. Waits until nobody overwrites files in place: for some seconds, and up to a minute after a client
    /// that did fell silent.
    pub async fn create_snapshot(&self, name: &[u8]) -> Result<u64> {
        let clock = &self.cluster().clock;
        let started = clock.now();
        loop {
            let make = |header| CreateSnapshotRequest { header: Some(header), name: name.to_vec() };
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

    /// What it holds is freed behind.
    pub async fn delete_snapshot(&self, name: &[u8]) -> Result<()> {
        let make = |header| DeleteSnapshotRequest { header: Some(header), name: name.to_vec() };
        self.mutate::<Empty, _>(name, InodeId::ROOT.0, Opcode::DeleteSnapshot, make).await.map(|_| ())
    }

    pub async fn rename_snapshot(&self, name: &[u8], new_name: &[u8]) -> Result<()> {
        let make =
            |header| RenameSnapshotRequest { header: Some(header), name: name.to_vec(), new_name: new_name.to_vec() };
        self.mutate::<Empty, _>(name, InodeId::ROOT.0, Opcode::RenameSnapshot, make).await.map(|_| ())
    }

    /// All of them, oldest first, with those that are being deleted.
    pub async fn snapshots(&self) -> Result<Vec<Snapshot>> {
        let request = |header| ListSnapshotsRequest { header: Some(header) };
        let what = format!("snapshots of volume {:?}", self.name());
        let answer: ListSnapshotsResponse =
            self.caller.read_by(&what, InodeId::ROOT.0, Opcode::ListSnapshots, request).await?;
        Ok(answer.snapshots)
    }

    /// What changed between a snapshot and a later one (0: now): directories, with all above them, and whatever else was there and is. `None`: the
    /// server does not know it, the caller may not ask, or it is more than so many.
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

    /// The rules by which snapshots are taken by themselves, by period; none without a schedule.
    pub async fn snapshot_schedule(&self) -> Result<Vec<SnapshotRule>> {
        let request = |header| ListSnapshotsRequest { header: Some(header) };
        let what = format!("schedule of volume {:?}", self.name());
        let answer: ListSnapshotsResponse =
            self.caller.read_by(&what, InodeId::ROOT.0, Opcode::ListSnapshots, request).await?;
        Ok(answer.schedule)
    }

    /// Replaces them.
    pub async fn set_snapshot_schedule(&self, rules: Vec<SnapshotRule>) -> Result<()> {
        let make = |header| SetSnapshotScheduleRequest { header: Some(header), rules };
        self.mutate::<Empty, _>(b"the schedule", InodeId::ROOT.0, Opcode::SetSnapshotSchedule, make).await.map(|_| ())
    }
}
