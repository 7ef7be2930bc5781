//! Snapshots of the volume among all other steps, in some seeds: what each shows is what the files were when it was taken, at once, later, and
//! at the end; a file that is cloned out of one has its bytes, also when the snapshot is gone.
//!
//! While there is one no file is overwritten in place, so most seeds have none.

use std::time::{Duration, Instant};

use cairn_client::ClientError;
use cairn_sim::SimRng;
use cairn_types::ErrorCode;
use cairn_wire::meta::{CloneRangeRequest, CreateRequest};

use super::{ATTEMPTS, FILES, Workload, beside};
use crate::faults::Planned;
use crate::file::difference;

/// Those that are there at a time.
const TAKEN_MAX: usize = 2;
/// Time in which what only deleted ones had is given up.
const DELETE_PATIENCE: Duration = Duration::from_secs(120);
const CLONE: &[u8] = b"/cloned";

/// What files were at one moment.
struct Moment {
    name: String,
    /// Paths and bytes.
    files: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Those that are there.
pub(super) struct Moments {
    rng: SimRng,
    on: bool,
    taken: Vec<Moment>,
    next: u64,
}

impl Moments {
    pub(super) fn new(seed: u64, several: bool) -> Self {
        let rng = SimRng::derived(seed, "moments");
        let on = !several && rng.chance(0.3);
        Self { rng, on, taken: Vec::new(), next: 1 }
    }

    /// Whether this step is about them.
    pub(super) fn is_due(&self) -> bool {
        self.on && self.rng.chance(0.08)
    }
}

impl Workload {
    /// Takes one, looks at one, or deletes one.
    pub(super) fn moment(&mut self, planned: Option<Planned>) -> Result<(), String> {
        let there = self.moments.taken.len();
        let at = self.moments.rng.index(there.max(1));
        match self.moments.rng.index(4) {
            0 if there > 0 => self.delete_moment(at, planned),
            1 if there > 0 => self.check_moment(at),
            _ if there < TAKEN_MAX => self.take_moment(planned),
            _ => self.check_moment(at),
        }
    }

    fn take_moment(&mut self, mut planned: Option<Planned>) -> Result<(), String> {
        for i in 0..FILES {
            self.sync(i, None)?;
        }
        let mut files: Vec<_> = self.files.iter().map(|file| (file.path.clone(), file.published.clone())).collect();
        files.extend(self.small.contents(&self.directories));
        let name = format!("m{}", self.moments.next);
        self.moments.next += 1;
        for attempt in 0..ATTEMPTS {
            let volume = self.volume.clone();
            let taking = async { volume.create_snapshot(name.as_bytes()).await };
            match beside(&self.cluster, &mut self.chaos, planned.take(), taking)? {
                Ok(_) => break,
                // A try before this one took it; nothing was changed since.
                Err(error) if attempt > 0 && error.code() == Some(ErrorCode::Exists) => break,
                Err(error) => self.relieve("snapshots refused", attempt, &error)?,
            }
        }
        self.count("snapshots taken");
        self.moments.taken.push(Moment { name, files });
        self.check_moment(self.moments.taken.len() - 1)
    }

    fn delete_moment(&mut self, at: usize, mut planned: Option<Planned>) -> Result<(), String> {
        let moment = self.moments.taken.remove(at);
        for attempt in 0..ATTEMPTS {
            let volume = self.volume.clone();
            let deleting = async { volume.delete_snapshot(moment.name.as_bytes()).await };
            match beside(&self.cluster, &mut self.chaos, planned.take(), deleting)? {
                Ok(()) => break,
                Err(error) if attempt > 0 && error.is_not_found() => break,
                Err(error) => self.relieve("deletions refused", attempt, &error)?,
            }
        }
        self.count("snapshots deleted");
        Ok(())
    }

    fn check_moment(&mut self, at: usize) -> Result<(), String> {
        let moment = &self.moments.taken[at];
        let root = format!("/.snapshots/{}", moment.name).into_bytes();
        let files = moment.files.clone();
        for (path, bytes) in files {
            self.check_bytes(&[root.as_slice(), path.as_slice()].concat(), &bytes)?;
            self.count("files of snapshots compared");
        }
        Ok(())
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

    /// When everything is healed: each is what it was. A clone out of one outlives it, and then all of them go with what only they had.
    pub(super) fn end_moments(&mut self) -> Result<(), String> {
        (0..self.moments.taken.len()).try_for_each(|at| self.check_moment(at))?;
        let cloned = match self.moments.taken.first().and_then(|moment| moment.files.first()) {
            Some((path, bytes)) => {
                let source =
                    [format!("/.snapshots/{}", self.moments.taken[0].name).as_bytes(), path.as_slice()].concat();
                let (bytes, cloning) = (bytes.clone(), self.clone_out(source));
                let is_cloned = self.cluster.runtime.block_on(cloning).map_err(|error| format!("a clone: {error}"))?;
                is_cloned.then_some(bytes)
            }
            None => None,
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

    /// False: its layout does not share.
    async fn clone_out(&self, source: Vec<u8>) -> Result<bool, ClientError> {
        let then = self.reading.stat(&source, false).await?;
        let request = CreateRequest { mode: 0o100_644, layout: then.layout, ..Default::default() };
        let made = self.volume.create(CLONE, request).await?;
        let mut at = 0;
        while at < then.size {
            let request = CloneRangeRequest {
                source: then.inode,
                source_offset: at,
                inode: made.inode,
                offset: at,
                length: then.size - at,
                ..Default::default()
            };
            let Some(cloned) = self.volume.clone_range(CLONE, request).await? else { return Ok(false) };
            at += cloned.length;
        }
        Ok(true)
    }
}
