//! [`Workload`]: the steps of a seed: what the client does, and how an operation that was refused is
//! repeated until it is known to be done. What is checked is in [`checks`].

mod checks;
mod end;
mod histories;
mod moments;
mod names;
mod records;
mod small;
mod staged;

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use cairn_client::{Client, FileWriter, Volume, WriteOptions};
use cairn_sim::SimRng;
use cairn_types::Layout;

use crate::cluster::Cluster;
use crate::faults::{Chaos, Planned};
use crate::file::{TestFile, fresh_bytes};
use crate::members::{Part, Snapshot, groups};
use crate::seed::{CALL_MAX, Shape};
use crate::upkeep::Upkeep;

use histories::Histories;
use moments::Moments;
use records::Records;
use small::SmallFiles;
use staged::Staged;

/// Files of a seed.
const FILES: usize = 3;
/// Times that an operation is repeated; all faults end on the way.
const ATTEMPTS: usize = 12;
/// Extent maps and readers of before that are kept of a file.
const OLD_MAX: usize = 3;
/// A seed's files and clients.
pub struct Workload {
    cluster: Arc<Cluster>,
    chaos: Chaos,
    rng: SimRng,
    shape: Shape,
    /// That of new files, and what they are converted to.
    layouts: [Layout; 2],
    /// Who writes, and who reads what was written.
    writer: Client,
    volume: Volume,
    _reader: Client,
    reading: Volume,
    files: Vec<TestFile>,
    small: SmallFiles,
    records: Records,
    moments: Moments,
    histories: Histories,
    staged: Option<Staged>,
    /// Where files are: one for each partition of the volume.
    directories: Vec<String>,
    /// Decides about moves between them.
    moves: SimRng,
    /// That many were begun.
    moved: u64,
    upkeep: Upkeep,
    counts: BTreeMap<&'static str, u64>,
    /// Blocks that earlier clients overwrote in place.
    in_place: u64,
}

/// Runs a call with a fault beginning beside it.
fn beside<T>(
    cluster: &Cluster,
    chaos: &mut Chaos,
    planned: Option<Planned>,
    call: impl Future<Output = T>,
) -> Result<T, String> {
    std::thread::scope(|scope| {
        if let Some(planned) = planned {
            scope.spawn(move || chaos.begin(planned));
        }
        let limited = async { tokio::time::timeout(CALL_MAX, call).await };
        cluster.runtime.block_on(limited).map_err(|_| format!("a call did not end within {CALL_MAX:?}"))
    })
}

impl Workload {
    /// A cluster with a few files.
    pub(crate) fn start(seed: u64, shape: Shape) -> Result<Self, String> {
        let cluster = Cluster::start(seed, &shape)?;
        let cluster = Arc::new(cluster);
        let (writer, reader) = (cluster.connect()?, cluster.connect()?);
        let volume = |client: &Client| {
            let opened = cluster.runtime.block_on(client.volume("default"));
            opened.map_err(|error| error.to_string())
        };
        let (volume, reading) = (volume(&writer)?, volume(&reader)?);
        let chaos = Chaos::new(seed, cluster.clone(), shape.budget);
        let upkeep = Upkeep::new(seed, cluster.clone())?;
        let layout = |text: &str| text.parse::<Layout>().map_err(|error| format!("{error}"));
        let layouts = [layout(shape.layout)?, layout(shape.other)?];
        let directories = if shape.several { names::spread(&cluster, &volume)? } else { vec![String::new()] };
        let path = |i: usize| format!("{}/file{i}", directories[i % directories.len()]);
        let files = (0..FILES).map(|i| TestFile::new(path(i), layouts[0])).collect();
        let rng = SimRng::derived(seed, "workload");
        let records = Records::new(seed, &directories[0]);
        let moments = Moments::new(seed, shape.several, layouts[0]);
        let counts = BTreeMap::new();
        let mut workload = Self {
            cluster,
            chaos,
            rng,
            shape,
            layouts,
            writer,
            volume,
            _reader: reader,
            reading,
            files,
            small: SmallFiles::default(),
            records,
            moments,
            histories: Histories::new(seed, shape.several),
            staged: shape.staging.map(|_| Staged::new(seed, layouts[0])),
            directories,
            moves: SimRng::derived(seed, "moves"),
            moved: 0,
            upkeep,
            counts,
            in_place: 0,
        };
        workload.until_stages_are_noted()?;
        for i in 0..FILES {
            workload.replace(i, None)?;
            workload.reopen(i)?;
        }
        Ok(workload)
    }

    fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    /// Blocks that clients overwrote in place.
    pub fn blocks_in_place(&self) -> u64 {
        self.in_place + self.volume.blocks_in_place()
    }

    /// What happened, for people.
    pub fn summary(&self) -> (u64, String) {
        let (faults, text) = self.chaos.summary();
        let text = format!("{text}; blocks overwritten in place {}", self.blocks_in_place());
        let counts = self.upkeep.counts.iter().chain(&self.upkeep.managers.counts).chain(&self.counts);
        let counts: Vec<String> = counts.map(|(what, count)| format!("{what} {count}")).collect();
        let encoded = self.staged.as_ref().map(|staged| staged.summary(&self.cluster)).unwrap_or_default();
        (faults, format!("{text}; {}{encoded}", counts.join(", ")))
    }

    /// One operation, with what is due and what begins beside it.
    pub fn step(&mut self, step: usize) -> Result<(), String> {
        self.chaos.end_due(step)?;
        self.mend_rotten()?;
        self.mend_heads();
        self.chaos.keep_copies();
        let calm = !self.chaos.head_is_faulty();
        self.upkeep.step(step, calm)?;
        if self.staged.as_ref().is_some_and(Staged::is_due) {
            tracing::info!(step, "a step of encoding");
            let planned = self.chaos.plan(step, &self.live_parts());
            return self.encode_beside(step, planned);
        }
        if self.histories.is_due() {
            tracing::info!(step, "a step of names");
            let planned = self.chaos.plan_for_names(step);
            return self.work_in_round(planned);
        }
        let live = self.live_parts();
        let planned = self.chaos.plan(step, &live);
        if self.records.is_due() {
            tracing::info!(step, "a step of records");
            return self.append_records(planned);
        }
        if self.moments.is_due() {
            tracing::info!(step, "a step of snapshots");
            return self.moment(step, planned);
        }
        let i = self.rng.index(self.files.len());
        let kind = self.rng.index(100);
        tracing::info!(step, file = i, kind, "a step");
        match kind {
            0..=17 => self.write(i, planned),
            18..=31 => self.storm(planned),
            32..=49 => self.append(i, planned),
            50..=59 => self.truncate(i, planned),
            60..=68 => {
                self.sync(i, planned)?;
                self.files[i].handle = None;
                self.replace(i, None)?;
                self.reopen(i)
            }
            69..=74 => self.take_snapshot(i, planned),
            75..=80 => self.check_old(i, planned),
            81..=83 => {
                self.close(i, planned)?;
                self.reopen(i)
            }
            84..=88 => self.convert(i, planned),
            89..=94 => self.write_small(planned),
            95..=97 => self.restart_client(),
            _ => self.chaos.blackout(),
        }?;
        if self.rng.chance(0.3) {
            self.check_handle(i)?;
        }
        if self.shape.several && self.moves.chance(0.5) {
            self.move_file(i)?;
        }
        Ok(())
    }

    /// What is published, where it lies.
    fn live(&self) -> Vec<Snapshot> {
        let mut live = Vec::new();
        let files = self.files.iter().map(|file| (file.inode, &file.published));
        for (inode, bytes) in files.chain(self.small.all()).chain(self.records.last()) {
            let taken = self.cluster.runtime.block_on(Snapshot::take(&self.reading, inode, bytes.clone()));
            // What was refused may have been published all the same: then it is not known what the extents name.
            live.extend(taken.ok().filter(Snapshot::is_within));
        }
        if let Some(staged) = &self.staged {
            live.iter().for_each(|snapshot| staged.note(snapshot));
        }
        live
    }

    /// How many files there are.
    fn live_count(&self) -> usize {
        self.files.len() + self.small.all().count() + self.records.last().iter().count()
    }

    fn live_parts(&self) -> Vec<Part> {
        let Some(map) = self.cluster.map() else { return Vec::new() };
        let groups = groups(&map);
        self.live().iter().flat_map(|snapshot| snapshot.parts(&groups)).collect()
    }

    /// Places whose damage is gone count no more.
    fn mend_rotten(&mut self) -> Result<(), String> {
        let Some(map) = self.cluster.map() else { return Ok(()) };
        let here = |place: &usize| self.cluster.node(*place).lock().is_registered();
        let behind = self.chaos.behind.iter().copied().filter(here);
        let doubted: Vec<usize> = self.chaos.rotten.iter().copied().chain(behind).collect();
        for place in doubted {
            let live = self.live();
            let whole = live.len() == self.live_count();
            let lacking = self.cluster.runtime.block_on(self.cluster.lacking(&map, &live, place));
            // What no file names any more is copied to others all the same, until it is freed.
            let healed = || self.cluster.runtime.block_on(self.cluster.is_intact(&map, place));
            if whole && lacking.is_empty() && healed() {
                self.chaos.rotten.remove(&place);
                self.chaos.behind.remove(&place);
            }
        }
        Ok(())
    }

    /// Heads that are older copies of themselves are added anew, by somebody who reads the status; those that are whole
    /// count no more.
    fn mend_heads(&mut self) {
        if self.chaos.old_heads.is_empty() {
            return;
        }
        *self.counts.entry("members added anew").or_default() += self.cluster.renew_older();
        let cluster = self.cluster.clone();
        self.chaos
            .old_heads
            .retain(|place| !cluster.heads[*place].lock().is_up() || cluster.lacks_something(*place).is_some());
    }

    /// After a refusal: one fault less, a moment to recover.
    fn relieve(&mut self, what: &'static str, attempt: usize, error: &impl Display) -> Result<(), String> {
        self.count(what);
        tracing::warn!(what, attempt, %error, "refused");
        if attempt + 1 == ATTEMPTS {
            return Err(format!("{what} although nothing is wrong any more: {error}"));
        }
        self.chaos.relieve()?;
        if attempt > 3 {
            self.chaos.end_all()?;
            // What is drained gets nothing new: there may be too few others.
            self.upkeep.cancel_drains();
        }
        self.mend_rotten()?;
        std::thread::sleep(Duration::from_millis(200 * attempt as u64));
        Ok(())
    }

    fn sync(&mut self, i: usize, mut planned: Option<Planned>) -> Result<(), String> {
        for attempt in 0..ATTEMPTS {
            let file = &mut self.files[i];
            let Some(handle) = file.handle.as_mut() else { return Ok(()) };
            match beside(&self.cluster, &mut self.chaos, planned.take(), handle.sync())? {
                Ok(()) => {
                    file.publish();
                    return self.check_file(i);
                }
                Err(error) => {
                    self.check_uncertain(i)?;
                    self.relieve("syncs refused", attempt, &error)?;
                }
            }
        }
        Ok(())
    }

    fn write(&mut self, i: usize, mut planned: Option<Planned>) -> Result<(), String> {
        for _ in 0..1 + self.rng.index(4) {
            let length = self.length();
            let mut offset = self.rng.index(self.shape.file_max - length + 1);
            if self.rng.chance(0.5) {
                offset -= offset % 4096;
            }
            let data = fresh_bytes(&self.rng, length);
            self.put(i, offset, &data, planned.take())?;
            if self.rng.chance(0.6) {
                self.sync(i, None)?;
            }
        }
        Ok(())
    }

    fn append(&mut self, i: usize, mut planned: Option<Planned>) -> Result<(), String> {
        for _ in 0..1 + self.rng.index(4) {
            let length = self.length();
            let offset = self.files[i].current.len();
            if offset + length > self.shape.file_max * 2 {
                return self.sync(i, planned);
            }
            let data = fresh_bytes(&self.rng, length);
            self.put(i, offset, &data, planned.take())?;
            if self.rng.chance(0.8) {
                self.sync(i, None)?;
            }
        }
        Ok(())
    }

    /// Up to half of a file; short ones are as likely as long ones.
    fn length(&self) -> usize {
        let most = (self.shape.file_max / 2).ilog2();
        1 + self.rng.index(1 << (6 + self.rng.index(most as usize - 5)))
    }

    /// Writes at a place; as this may sync, it is repeated like one.
    fn put(&mut self, i: usize, offset: usize, data: &[u8], mut planned: Option<Planned>) -> Result<(), String> {
        self.files[i].write(offset, data);
        for attempt in 0..ATTEMPTS {
            let Some(handle) = self.files[i].handle.as_mut() else { return Ok(()) };
            let written = async {
                handle.write_at(offset as u64, data).await?;
                // The fault that begins meets the sync.
                if planned.is_some() { handle.sync().await } else { Ok(()) }
            };
            let synced = planned.is_some();
            match beside(&self.cluster, &mut self.chaos, planned.clone().filter(|_| attempt == 0), written)? {
                Ok(()) if synced => {
                    self.files[i].publish();
                    return self.check_file(i);
                }
                Ok(()) => return Ok(()),
                Err(error) => {
                    self.check_uncertain(i)?;
                    self.relieve("writes refused", attempt, &error)?;
                }
            }
        }
        planned = None;
        self.sync(i, planned)
    }

    /// All files are written and synced at the same time, again and again, while the fault begins: they share streams
    /// and chunks.
    fn storm(&mut self, planned: Option<Planned>) -> Result<(), String> {
        for i in 0..FILES {
            self.sync(i, None)?;
        }
        // Half of them of blocks of a data base, that are written in place, some of them again and again.
        let small = self.rng.chance(0.5);
        let rounds = if small { 8 + self.rng.index(12) } else { 3 + self.rng.index(6) };
        let mut jobs = Vec::new();
        for i in 0..FILES {
            let mut writes = Vec::new();
            let size = self.files[i].current.len();
            for _ in 0..rounds {
                let length = if small { 1 + self.rng.index(3 * 4096) } else { self.length().min(96 << 10) };
                let most = if small && size > length { size.min(64 << 10).max(length) } else { self.shape.file_max };
                let mut offset = self.rng.index(most - length + 1);
                if small && self.rng.chance(0.7) {
                    offset -= offset % 4096;
                }
                writes.push((offset, fresh_bytes(&self.rng, length)));
            }
            jobs.push(writes);
        }
        let one = async |file: &mut TestFile, writes: Vec<(usize, Vec<u8>)>| {
            for (offset, data) in writes {
                file.write(offset, &data);
                let handle = file.handle.as_mut()?;
                let synced = match handle.write_at(offset as u64, &data).await {
                    Ok(()) => handle.sync().await,
                    Err(error) => Err(error),
                };
                match synced {
                    Ok(()) => file.publish(),
                    Err(error) => return Some(error),
                }
            }
            None
        };
        let [first, second, third] = &mut self.files[..] else { unreachable!("there are {FILES} files") };
        let mut jobs = jobs.into_iter();
        let mut next = || jobs.next().expect("one for each file");
        let all = async { tokio::join!(one(first, next()), one(second, next()), one(third, next())) };
        let refused = beside(&self.cluster, &mut self.chaos, planned, all)?;
        self.count(if small { "storms of blocks" } else { "storms" });
        for (i, error) in [refused.0, refused.1, refused.2].into_iter().enumerate() {
            if let Some(error) = error {
                self.check_uncertain(i)?;
                self.relieve("storms refused", 0, &error)?;
                self.sync(i, None)?;
            } else {
                self.check_file(i)?;
            }
        }
        Ok(())
    }

    fn truncate(&mut self, i: usize, mut planned: Option<Planned>) -> Result<(), String> {
        let old = self.files[i].current.len();
        let size = match self.rng.index(4) {
            0 => self.rng.index(self.shape.file_max),
            1 => self.rng.index(old + 1) / 4096 * 4096,
            _ => self.rng.index(old + 1),
        };
        // First what is written is published, then the size changes: two steps, each of which may be refused.
        self.sync(i, None)?;
        self.files[i].resize(size);
        for attempt in 0..ATTEMPTS {
            let Some(handle) = self.files[i].handle.as_mut() else { return Ok(()) };
            match beside(&self.cluster, &mut self.chaos, planned.take(), handle.truncate(size as u64))? {
                Ok(_) => {
                    self.files[i].publish();
                    return self.check_file(i);
                }
                Err(error) => {
                    self.check_uncertain(i)?;
                    self.relieve("truncates refused", attempt, &error)?;
                }
            }
        }
        Ok(())
    }

    /// Writes the file anew, under its name, all or nothing.
    fn replace(&mut self, i: usize, mut planned: Option<Planned>) -> Result<(), String> {
        let length = self.rng.index(self.shape.file_max);
        let data = fresh_bytes(&self.rng, length);
        self.files[i].current.clone_from(&data);
        let layout = self.layouts[0];
        let options = WriteOptions { mode: 0o644, mtime_ns: 1, layout, exclusive: false, owner: None };
        for attempt in 0..ATTEMPTS {
            let file = &mut self.files[i];
            let replaced = async {
                let mut writer = self.volume.write(&file.path, options).await?;
                for part in data.chunks(cairn_client::SEGMENT_MAX) {
                    let mut buffer = FileWriter::buffer();
                    buffer.extend_from_slice(part);
                    writer.push(buffer.into()).await?;
                }
                writer.finish().await
            };
            match beside(&self.cluster, &mut self.chaos, planned.take(), replaced)? {
                Ok(made) => {
                    file.inode = made.inode;
                    file.set_layout(layout);
                    file.publish();
                    file.readers.iter_mut().for_each(|old| old.changed = true);
                    return self.check_file(i);
                }
                Err(error) => self.relieve("files refused", attempt, &error)?,
            }
        }
        Ok(())
    }

    /// What the handle has is published, and it is closed.
    fn close(&mut self, i: usize, planned: Option<Planned>) -> Result<(), String> {
        self.sync(i, planned)?;
        if let Some(handle) = self.files[i].handle.take() {
            // Nothing is left to be published; the session lets go of it some time.
            let _closed = beside(&self.cluster, &mut self.chaos, None, handle.close())?;
        }
        Ok(())
    }

    fn reopen(&mut self, i: usize) -> Result<(), String> {
        for attempt in 0..ATTEMPTS {
            match beside(&self.cluster, &mut self.chaos, None, self.volume.open(&self.files[i].path))? {
                Ok(handle) => {
                    self.files[i].inode = handle.inode();
                    self.files[i].handle = Some(handle);
                    return Ok(());
                }
                Err(error) => self.relieve("opens refused", attempt, &error)?,
            }
        }
        Ok(())
    }

    /// The writing process dies with what it has not synced.
    fn end_client(&mut self) -> Result<(), String> {
        for file in &mut self.files {
            file.handle = None;
            file.current.clone_from(&file.published);
        }
        self.chaos.end_all()?;
        self.writer = self.cluster.connect()?;
        for attempt in 0..ATTEMPTS {
            match beside(&self.cluster, &mut self.chaos, None, self.writer.volume("default"))? {
                Ok(volume) => {
                    self.in_place += self.volume.blocks_in_place();
                    self.volume = volume;
                    break;
                }
                Err(error) => self.relieve("volumes refused", attempt, &error)?,
            }
        }
        Ok(())
    }

    /// It dies, and another one goes on.
    fn restart_client(&mut self) -> Result<(), String> {
        self.end_client()?;
        self.count("clients restarted");
        (0..FILES).try_for_each(|i| self.reopen(i))
    }
}
