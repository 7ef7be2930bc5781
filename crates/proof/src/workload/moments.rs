//! Snapshots among all other steps, in some seeds: of the volume, and where it has several partitions of a directory
//! that has names in all of them. Three clients make, move and remove names while one is taken and heads fail: what it
//! has of them is a moment (`histories`). The tree is hashed when it is taken, later, and at the end, and is the same.
//! A file that is cloned out of one has its bytes, also when the snapshot is gone.
//!
//! While there is one no file is overwritten in place, so most seeds have none.

mod histories;
mod portrait;

use std::time::{Duration, Instant};

use cairn_client::changes::{CloneRange, NewFile};
use cairn_client::{ClientError, Volume};
use cairn_sim::SimRng;
use cairn_types::{ErrorCode, Layout};

use super::names::ABOVE;
use super::{ATTEMPTS, FILES, Workload, beside};
use crate::faults::Planned;
use crate::file::difference;

use histories::{History, Order, check_moment};
use portrait::{Portrait, differences, portrait};

/// Those that are there at a time.
const TAKEN_MAX: usize = 2;
/// Time in which what only deleted ones had is given up.
const DELETE_PATIENCE: Duration = Duration::from_secs(120);
const CLONE: &[u8] = b"/cloned";
/// Clients that work while one is taken.
const CLIENTS: usize = 3;

/// What files were at one moment.
struct Moment {
    name: String,
    /// Whose snapshot it is; empty: the volume's.
    directory: &'static str,
    /// Paths and bytes of what was acknowledged before and not changed meanwhile.
    files: Vec<(Vec<u8>, Vec<u8>)>,
    /// Of all that it has, when it was read first.
    portrait: Portrait,
}

impl Moment {
    /// Where it is read.
    fn root(&self) -> Vec<u8> {
        format!("{}/.snapshots/{}", self.directory, self.name).into_bytes()
    }

    /// Where a path of the volume is in it.
    fn path(&self, path: &[u8]) -> Vec<u8> {
        [self.root().as_slice(), &path[self.directory.len()..]].concat()
    }
}

/// Those that are there.
pub(super) struct Moments {
    rng: SimRng,
    on: bool,
    several: bool,
    taken: Vec<Moment>,
    next: u64,
    histories: Vec<History>,
}

impl Moments {
    pub(super) fn new(seed: u64, several: bool, layout: Layout) -> Self {
        let rng = SimRng::derived(seed, "moments");
        let on = rng.chance(if several { 0.6 } else { 0.3 });
        let histories = (0..CLIENTS).map(|client| History::new(seed, client, layout)).collect();
        Self { rng, on, several, taken: Vec::new(), next: 1, histories }
    }

    /// Whether this step is about them.
    pub(super) fn is_due(&self) -> bool {
        self.on && self.rng.chance(if self.several { 0.25 } else { 0.08 })
    }
}

/// One that is not there any more is deleted.
async fn delete(volume: &Volume, name: &str) -> Result<(), ClientError> {
    let there = volume.snapshots().await?;
    match there.iter().find(|one| one.name == name.as_bytes() && !one.deleting) {
        Some(one) => volume.delete_listed(one).await,
        None => Ok(()),
    }
}

/// Of a directory, or of the volume.
async fn create(volume: &Volume, directory: &str, name: &str) -> Result<(), ClientError> {
    let taken = match directory {
        "" => volume.create_snapshot(name.as_bytes()).await,
        directory => {
            let inode = volume.stat(directory.as_bytes(), false).await?.inode;
            volume.create_snapshot_of(inode, name.as_bytes()).await
        }
    };
    taken.map(drop)
}

impl Workload {
    /// Takes one, looks at one, or deletes one.
    pub(super) fn moment(&mut self, step: usize, planned: Option<Planned>) -> Result<(), String> {
        let there = self.moments.taken.len();
        let at = self.moments.rng.index(there.max(1));
        match self.moments.rng.index(4) {
            0 if there > 0 => self.delete_moment(at, planned),
            1 if there > 0 => self.check_moment(at),
            _ if there < TAKEN_MAX => {
                let of_head = self.moments.several && self.moments.rng.chance(0.5);
                let of_head = if of_head { self.chaos.plan_for_head(step) } else { None };
                self.take_moment(of_head.or(planned))
            }
            _ => self.check_moment(at),
        }
    }

    fn take_moment(&mut self, planned: Option<Planned>) -> Result<(), String> {
        for i in 0..FILES {
            self.sync(i, None)?;
        }
        let mut files: Vec<_> = self.files.iter().map(|file| (file.path.clone(), file.published.clone())).collect();
        files.extend(self.small.contents(&self.directories));
        let name = format!("m{}", self.moments.next);
        self.moments.next += 1;
        let directory = if self.moments.several && self.moments.rng.chance(0.5) { ABOVE } else { "" };
        let mut histories = std::mem::take(&mut self.moments.histories);
        let taken = self.take_beside(&name, directory, &mut histories, planned);
        let (called, answered) = taken?;
        let mut moment = Moment { name, directory, files, portrait: Portrait::new() };
        moment.portrait = self.read_moment(&moment)?;
        check_moment(&histories, &moment.portrait, called, answered)
            .map_err(|why| format!("snapshot {} of {directory:?} is no moment: {why}", moment.name))?;
        *self.counts.entry("operations beside snapshots").or_default() +=
            histories.iter().map(|history| history.operations() as u64).sum::<u64>();
        self.moments.histories = histories;
        self.count(match directory {
            "" if self.moments.several => "snapshots of several partitions",
            "" => "snapshots of volumes",
            _ => "snapshots of directories",
        });
        self.moments.taken.push(moment);
        self.check_moment(self.moments.taken.len() - 1)
    }

    /// Takes it while clients work; when it was asked for and when it was answered, in their order.
    fn take_beside(
        &mut self,
        name: &str,
        directory: &str,
        histories: &mut [History],
        mut planned: Option<Planned>,
    ) -> Result<(u64, u64), String> {
        let order = Order::default();
        histories.iter_mut().for_each(|history| history.begin(&order));
        // They come to something before it.
        order.end(true);
        self.go_on(histories, &order)?;
        let called = order.tick();
        let mut answered = None;
        // A session of its own, which ends with this step; who reads has written nothing that could be left at the end.
        let client = self.cluster.connect().ok();
        let other = client.as_ref().and_then(|client| self.cluster.runtime.block_on(client.volume("default")).ok());
        for attempt in 0..ATTEMPTS {
            order.end(false);
            let volume = self.volume.clone();
            let other = other.clone().unwrap_or_else(|| volume.clone());
            let [first, second, third] = &mut *histories else { unreachable!("there are {CLIENTS}") };
            let taking = async {
                let taken = create(&volume, directory, name).await;
                let at = order.tick();
                order.end(true);
                (taken, at)
            };
            let all = async {
                tokio::join!(
                    taking,
                    first.go_on(&volume, &self.directories, &order),
                    second.go_on(&other, &self.directories, &order),
                    third.go_on(&volume, &self.directories, &order)
                )
            };
            let ((taken, at), ..) = beside(&self.cluster, &mut self.chaos, planned.take(), all)?;
            match taken {
                Ok(()) => answered = Some(at),
                // A try before this one took it.
                Err(error) if attempt > 0 && error.code() == Some(ErrorCode::Exists) => answered = Some(at),
                Err(error) => self.relieve("snapshots refused", attempt, &error)?,
            }
            if answered.is_some() {
                break;
            }
        }
        self.finish_histories(histories, &order)?;
        Ok((called, answered.expect("the last refusal is an error")))
    }

    /// Some operations of each.
    fn go_on(&mut self, histories: &mut [History], order: &Order) -> Result<(), String> {
        for history in histories.iter_mut() {
            let going_on = history.go_on(&self.volume, &self.directories, order);
            // What has no outcome is repeated below.
            let _outcome = beside(&self.cluster, &mut self.chaos, None, going_on)?;
        }
        self.finish_histories(histories, order)
    }

    /// Everything has a known outcome.
    fn finish_histories(&mut self, histories: &mut [History], order: &Order) -> Result<(), String> {
        for history in histories.iter_mut() {
            for attempt in 0..ATTEMPTS {
                match beside(&self.cluster, &mut self.chaos, None, history.finish(&self.volume, order))? {
                    Ok(()) => break,
                    Err(error) => self.relieve("operations beside snapshots refused", attempt, &error)?,
                }
            }
        }
        Ok(())
    }

    fn delete_moment(&mut self, at: usize, mut planned: Option<Planned>) -> Result<(), String> {
        let moment = self.moments.taken.remove(at);
        for attempt in 0..ATTEMPTS {
            let volume = self.volume.clone();
            let deleting = async { delete(&volume, &moment.name).await };
            match beside(&self.cluster, &mut self.chaos, planned.take(), deleting)? {
                Ok(()) => break,
                Err(error) if attempt > 0 && error.is_not_found() => break,
                Err(error) => self.relieve("deletions refused", attempt, &error)?,
            }
        }
        self.count("snapshots deleted");
        Ok(())
    }

    /// It is what it was, to the byte.
    fn check_moment(&mut self, at: usize) -> Result<(), String> {
        let moment = self.moments.taken.remove(at);
        for (path, bytes) in &moment.files {
            self.check_bytes(&moment.path(path), bytes)?;
            self.count("files of snapshots compared");
        }
        let now = self.read_moment(&moment)?;
        if let Some(other) = differences(&moment.portrait, &now) {
            return Err(format!("snapshot {} of {:?} is not what it was: {other}", moment.name, moment.directory));
        }
        *self.counts.entry("names of snapshots compared").or_default() += now.len() as u64;
        self.moments.taken.insert(at, moment);
        Ok(())
    }

    /// All of it, read by another client.
    fn read_moment(&mut self, moment: &Moment) -> Result<Portrait, String> {
        let root = moment.root();
        let shown = String::from_utf8_lossy(&root).into_owned();
        for attempt in 0..ATTEMPTS {
            let exposed = self.chaos.exposed();
            let reading = self.reading.clone();
            let read = async { portrait(&reading, &root, moment.directory).await };
            match beside(&self.cluster, &mut self.chaos, None, read)? {
                Ok(portrait) => return Ok(portrait),
                Err(error) if error.is_not_found() => {
                    return Err(format!("{shown} was taken, and lacks something: {error}"));
                }
                Err(error) => {
                    self.check_refusal(&shown, &exposed, &error)?;
                    self.relieve("reads refused", attempt, &error)?;
                }
            }
        }
        Err("the last attempt is an error".into())
    }

    fn check_bytes(&mut self, path: &[u8], wanted: &[u8]) -> Result<(), String> {
        let shown = String::from_utf8_lossy(path).into_owned();
        for attempt in 0..ATTEMPTS {
            let exposed = self.chaos.exposed();
            match self.read_path(path)? {
                Ok(bytes) => {
                    return match difference(&bytes, wanted) {
                        None => Ok(()),
                        Some(other) => Err(format!("{shown} is not what it was: {other}")),
                    };
                }
                Err(error) => {
                    self.check_refusal(&shown, &exposed, &error)?;
                    self.relieve("reads refused", attempt, &error)?;
                }
            }
        }
        Ok(())
    }

    /// When everything is healed: each is what it was. A clone out of one outlives it, and then all of them go with
    /// what only they had.
    pub(super) fn end_moments(&mut self) -> Result<(), String> {
        (0..self.moments.taken.len()).try_for_each(|at| self.check_moment(at))?;
        self.remove_histories()?;
        let cloned = match self.moments.taken.first().and_then(|moment| Some((moment, moment.files.first()?))) {
            // Of another partition it is copied.
            Some((moment, (path, bytes))) if !self.moments.several => {
                let (bytes, cloning) = (bytes.clone(), self.clone_out(moment.path(path)));
                let is_cloned = self.cluster.runtime.block_on(cloning).map_err(|error| format!("a clone: {error}"))?;
                is_cloned.then_some(bytes)
            }
            _ => None,
        };
        while !self.moments.taken.is_empty() {
            self.delete_moment(0, None)?;
        }
        let begun = Instant::now();
        let left = || self.cluster.runtime.block_on(self.reading.snapshots()).map_or(1, |left| left.len());
        while left() > 0 {
            if begun.elapsed() > DELETE_PATIENCE {
                return Err(format!("deleted snapshots are still there after {DELETE_PATIENCE:?}"));
            }
            std::thread::sleep(Duration::from_millis(200));
        }
        if let Some(bytes) = cloned {
            self.check_bytes(CLONE, &bytes)?;
            self.count("clones out of snapshots compared");
        }
        match self.cluster.runtime.block_on(self.volume.unlink(CLONE)) {
            Err(error) if !error.is_not_found() => Err(format!("a clone cannot be removed: {error}")),
            _ => Ok(()),
        }
    }

    /// Snapshots had them; now nobody has.
    fn remove_histories(&mut self) -> Result<(), String> {
        let paths: Vec<Vec<u8>> = self.moments.histories.iter_mut().flat_map(History::leave_files).collect();
        for path in paths {
            for attempt in 0..ATTEMPTS {
                match beside(&self.cluster, &mut self.chaos, None, self.volume.unlink(&path))? {
                    Ok(()) => break,
                    Err(error) if attempt > 0 && error.code() == Some(ErrorCode::NotFound) => break,
                    Err(error) => self.relieve("removals refused", attempt, &error)?,
                }
            }
        }
        Ok(())
    }

    /// False: its layout does not share.
    async fn clone_out(&self, source: Vec<u8>) -> Result<bool, ClientError> {
        let then = self.reading.stat(&source, false).await?;
        let new = NewFile { mode: 0o100_644, layout: then.layout, ..NewFile::default() };
        let made = self.volume.create(CLONE, new).await?;
        let mut at = 0;
        while at < then.size {
            let range = CloneRange {
                source: then.inode,
                source_offset: at,
                inode: made.inode,
                offset: at,
                length: then.size - at,
                ..Default::default()
            };
            let Some(cloned) = self.volume.clone_range(CLONE, range).await? else { return Ok(false) };
            at += cloned.length;
        }
        Ok(true)
    }
}
