//! What is checked while a seed runs and at its end.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cairn_client::{ClientError, Volume};
use cairn_wire::Opcode;
use cairn_wire::manager::{ListEventsRequest, ListEventsResponse};

use super::{ATTEMPTS, OLD_MAX, Workload, beside};
use crate::faults::Planned;
use crate::file::{OldReader, difference};
use crate::members::{Snapshot, is_changed, wrong_byte};

/// Time in which everything is whole again after the last fault.
const HEAL_PATIENCE: Duration = Duration::from_secs(300);

impl Workload {
    /// Reads the whole file as another client does.
    fn read(&mut self, i: usize) -> Result<Result<Vec<u8>, ClientError>, String> {
        let path = self.files[i].path.clone();
        self.read_path(&path)
    }

    pub(super) fn read_path(&mut self, path: &[u8]) -> Result<Result<Vec<u8>, ClientError>, String> {
        beside(&self.cluster, &mut self.chaos, None, read_all(&self.reading, path))
    }

    /// Every byte that was published reads back as it was written.
    pub(super) fn check_file(&mut self, i: usize) -> Result<(), String> {
        for attempt in 0..ATTEMPTS {
            let exposed = self.chaos.exposed();
            match self.read(i)? {
                Ok(bytes) => {
                    self.count("files compared");
                    let other = difference(&bytes, &self.files[i].published);
                    if let Some(other) = other {
                        return Err(format!("file {i} reads back wrong: {other}"));
                    }
                    return self.check_serving(i);
                }
                Err(error) => {
                    self.check_refusal(&format!("file {i}"), &exposed, &error)?;
                    self.relieve("reads refused", attempt, &error)?;
                }
            }
        }
        Ok(())
    }

    /// A read may be refused only if more is faulty than the layout allows. `exposed`: what was faulty before it.
    pub(super) fn check_refusal(
        &self,
        what: &str,
        exposed: &Option<BTreeSet<usize>>,
        error: &ClientError,
    ) -> Result<(), String> {
        let within = |exposed: &Option<BTreeSet<usize>>| {
            exposed.as_ref().is_some_and(|exposed| exposed.len() <= self.shape.budget)
        };
        if within(exposed) && within(&self.chaos.exposed()) && !self.chaos.namespace_may_stop() {
            return Err(format!("a read of {what} is refused although only {exposed:?} are faulty: {error}"));
        }
        tracing::warn!(what, ?exposed, "a read was refused");
        Ok(())
    }

    /// Every member that serves has what was published. One that is about to notice that it does not serve any more, or
    /// that a chunk of it is gone, gets a moment.
    fn check_serving(&mut self, i: usize) -> Result<(), String> {
        let file = &self.files[i];
        let mut lacking = Vec::new();
        for _ in 0..20 {
            let excused = self.chaos.excused();
            let (inode, bytes) = (file.inode, file.published.clone());
            let Ok(snapshot) = self.cluster.runtime.block_on(Snapshot::take(&self.reading, inode, bytes)) else {
                return Ok(());
            };
            lacking = self.cluster.runtime.block_on(self.cluster.serving_lack(&snapshot, &excused));
            if lacking.is_empty() {
                self.count("files with every serving member");
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(250));
        }
        Err(format!("file {i}: members that serve lack what was published: {lacking:?}"))
    }

    /// While it is not known what was published, every byte is still an old or a new one.
    pub(super) fn check_uncertain(&mut self, i: usize) -> Result<(), String> {
        if let Ok(bytes) = self.read(i)? {
            self.count("files compared in doubt");
            self.files[i].allows(&bytes).map_err(|why| format!("file {i} after a refusal: {why}"))?;
        }
        Ok(())
    }

    /// The handle sees what was written through it, synced or not.
    pub(super) fn check_handle(&mut self, i: usize) -> Result<(), String> {
        for attempt in 0..ATTEMPTS {
            let Some(handle) = self.files[i].handle.as_ref() else { return Ok(()) };
            match beside(&self.cluster, &mut self.chaos, None, handle.read_at(0, usize::MAX / 2))? {
                Ok(bytes) => {
                    self.count("handles compared");
                    let other = difference(&bytes, &self.files[i].current);
                    return other.map_or(Ok(()), |other| Err(format!("the handle of file {i} reads wrong: {other}")));
                }
                Err(error) => self.relieve("handles refused", attempt, &error)?,
            }
        }
        Ok(())
    }

    /// Keeps the extent map and a reader of the file as it is.
    pub(super) fn take_snapshot(&mut self, i: usize, planned: Option<Planned>) -> Result<(), String> {
        let (volume, file) = (&self.reading, &mut self.files[i]);
        let taken = async {
            let snapshot = Snapshot::take(volume, file.inode, file.published.clone()).await?;
            let reader = volume.read(&file.path, 0, u64::MAX).await?;
            Ok::<_, ClientError>((snapshot, reader))
        };
        // Refused while something is wrong: then there is nothing to keep.
        if let Ok((snapshot, reader)) = beside(&self.cluster, &mut self.chaos, planned, taken)? {
            // What is written and not synced yet comes to the same blocks.
            let later = if file.in_place { vec![Arc::new(file.current.clone())] } else { Vec::new() };
            file.snapshots.push(Snapshot { later: later.clone(), ..snapshot });
            let want = file.published.clone();
            // What is moved out of packs is another version.
            let changed = file.in_place || self.shape.jobs;
            file.readers.push(OldReader { reader, want, got: 0, changed, later });
            if file.snapshots.len() > OLD_MAX {
                file.snapshots.remove(0);
                file.readers.remove(0);
            }
            self.count("snapshots taken");
        }
        Ok(())
    }

    /// What was read before an overwrite is old bytes, bytes of a later write in place, or an error.
    pub(super) fn check_old(&mut self, i: usize, mut planned: Option<Planned>) -> Result<(), String> {
        if let Some(map) = self.cluster.map() {
            let snapshots = std::mem::take(&mut self.files[i].snapshots);
            for snapshot in &snapshots {
                let (good, refused) = beside(
                    &self.cluster,
                    &mut self.chaos,
                    planned.take(),
                    self.cluster.check_snapshot(&map, snapshot),
                )??;
                *self.counts.entry("old parts compared").or_default() += good as u64;
                *self.counts.entry("old parts refused").or_default() += refused as u64;
            }
            self.files[i].snapshots = snapshots;
        }
        let mut readers = std::mem::take(&mut self.files[i].readers);
        for old in &mut readers {
            beside(&self.cluster, &mut self.chaos, planned.take(), read_old(old))??;
        }
        self.count("old readers read");
        Ok(())
    }

    /// Everything heals; then all bytes, all copies and all parity are compared.
    pub fn finish(&mut self) -> Result<(), String> {
        for i in 0..self.files.len() {
            self.sync(i, None)?;
        }
        // What is lacking here would be mended by a restart.
        self.chaos.end_all()?;
        // One that goes as a manager is none any more, before it is asked whether it has everything.
        self.upkeep.managers.end()?;
        let old_heads = std::mem::take(&mut self.chaos.old_heads);
        *self.counts.entry("members added anew").or_default() += self.cluster.renew_heads(old_heads.into_iter())?;
        self.upkeep.end()?;
        self.converge()?;
        self.check_older_were_noticed()?;
        self.chaos.blackout()?;
        self.converge()?;
        self.upkeep.settled()?;
        self.check_records()?;
        self.end_histories()?;
        for i in 0..self.files.len() {
            self.check_file(i)?;
            self.check_handle(i)?;
            self.check_old(i, None)?;
        }
        let map = self.cluster.map().ok_or("the manager does not answer")?;
        for snapshot in self.live() {
            let rows = self.cluster.runtime.block_on(self.cluster.check_parity(&map, &snapshot))?;
            *self.counts.entry("rows verified").or_default() += rows as u64;
        }
        self.check_small()?;
        self.end_moments()?;
        self.check_encoded()?;
        self.check_volume()?;
        self.upkeep.remove_lost()?;
        self.end_client()?;
        self.check_garbage()?;
        self.check_replicas()?;
        self.check_small()?;
        (0..self.files.len()).try_for_each(|i| self.check_file(i))
    }

    /// Each disk that came back as an older copy of itself was noticed.
    fn check_older_were_noticed(&mut self) -> Result<(), String> {
        if self.chaos.went_back == 0 {
            return Ok(());
        }
        let request = ListEventsRequest { kinds: vec!["disk-older".into()], ..ListEventsRequest::default() };
        let answer = self.cluster.runtime.block_on(self.cluster.ask_manager(Opcode::ListEvents, &request))?;
        let noticed = answer.decode::<ListEventsResponse>().map_err(|error| error.to_string())?.events.len() as u64;
        *self.counts.entry("older copies noticed").or_default() += noticed;
        match noticed >= self.chaos.went_back {
            true => Ok(()),
            false => Err(format!("{} disks went back, and {noticed} were noticed", self.chaos.went_back)),
        }
    }

    /// What should be the same in several places is.
    fn check_replicas(&mut self) -> Result<(), String> {
        *self.counts.entry("states compared").or_default() += self.cluster.compare_heads()?;
        *self.counts.entry("chunks compared").or_default() += self.cluster.compare_chunks()?;
        Ok(())
    }

    /// Waits until every member serves and gives every published byte.
    pub(super) fn converge(&mut self) -> Result<(), String> {
        let begun = Instant::now();
        let mut last = String::new();
        while begun.elapsed() < HEAL_PATIENCE {
            std::thread::sleep(Duration::from_millis(100));
            self.cluster.learn_numbers();
            let Some(map) = self.cluster.map() else {
                last = "no manager gives the map".into();
                continue;
            };
            let missing = self.cluster.not_serving(&map);
            if !missing.is_empty() {
                last = format!("in groups, places that do not serve: {missing:?}");
                continue;
            }
            let live = self.live();
            if live.len() < self.live_count() {
                last = "extents of a file cannot be had".into();
                continue;
            }
            let mut lacking = self.cluster.data_places().map(|place| {
                let lacking = self.cluster.runtime.block_on(self.cluster.lacking(&map, &live, place));
                (place, lacking)
            });
            match lacking.find(|(_, lacking)| !lacking.is_empty()) {
                None => {
                    let parity = live.iter().try_for_each(|snapshot| {
                        self.cluster.runtime.block_on(self.cluster.check_parity(&map, snapshot)).map(|_| ())
                    });
                    match parity {
                        Ok(()) => return Ok(()),
                        Err(why) => last = why,
                    }
                }
                Some((place, lacking)) => last = format!("place {place} lacks {lacking:?}"),
            }
        }
        Err(format!("after the last fault it is not whole again within {HEAL_PATIENCE:?}: {last}"))
    }
}

pub(super) async fn read_all(volume: &Volume, path: &[u8]) -> Result<Vec<u8>, ClientError> {
    let mut reader = volume.read(path, 0, u64::MAX).await?;
    let mut bytes = Vec::new();
    while let Some(piece) = reader.next().await? {
        bytes.extend_from_slice(&piece.data);
    }
    Ok(bytes)
}

/// Reads a version of a file to its end: the bytes of that version, or an error.
async fn read_old(old: &mut OldReader) -> Result<(), String> {
    loop {
        match old.reader.next().await {
            Ok(Some(piece)) => {
                let end = old.got + piece.data.len();
                let want = old.want.get(old.got..end).ok_or("an old reader reads beyond the end of its version")?;
                let later = |bytes: &Arc<Vec<u8>>| bytes.get(old.got..).unwrap_or_default().to_vec();
                let later: Vec<Vec<u8>> = old.later.iter().map(later).collect();
                if let Some(at) = wrong_byte(&piece.data, want, &later) {
                    return Err(format!("an old reader reads a wrong byte at {}", old.got + at));
                }
                old.got = end;
            }
            Ok(None) if old.got == old.want.len() => return Ok(()),
            Ok(None) => return Err(format!("an old reader ends at {} of {}", old.got, old.want.len())),
            Err(error) if old.changed || !is_changed(&error) => return Ok(()),
            Err(error) => return Err(format!("an old reader of a file that nobody changed: {error}")),
        }
    }
}
