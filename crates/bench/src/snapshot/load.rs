//! [`Load`]: creates, and appends to a file that are synced, until it is stopped; when each began and ended.
//!
//! Bound: [`LOGGED_MAX`] operations of a task; a run that is longer is refused.
use anyhow::ensure;
use cairn_client::Volume;
use cairn_client::changes::NewFile;
use cairn_env::{Clock, RealClock};
use cairn_types::Time;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::task::JoinHandle;

const LOGGED_MAX: usize = 1 << 22;
const APPENDED: usize = 4096;

/// An operation.
#[derive(Clone, Copy, Debug)]
pub struct Logged {
    pub start: Time,
    pub end: Time,
}

impl Logged {
    pub fn took(&self) -> Duration {
        self.end.since(self.start)
    }
    pub fn overlaps(&self, (from, to): (Time, Time)) -> bool {
        self.start <= to && self.end >= from
    }
}

/// See the module.
pub struct Load {
    stop: Arc<AtomicBool>,
    creates: Vec<JoinHandle<anyhow::Result<Vec<Logged>>>>,
    appends: JoinHandle<anyhow::Result<Vec<Logged>>>,
}

impl Load {
    pub async fn start(volume: &Volume, root: &str, writers: usize) -> anyhow::Result<Load> {
        volume.mkdir(root.as_bytes(), 0o755, 0).await?;
        let stop = Arc::new(AtomicBool::new(false));
        let mut creates = Vec::new();
        for writer in 0..writers {
            let path = format!("{root}/{writer}");
            let directory = volume.mkdir(path.as_bytes(), 0o755, 0).await?.inode;
            creates.push(tokio::spawn(create(volume.clone(), directory, path, stop.clone())));
        }
        let appends = tokio::spawn(append(volume.clone(), format!("{root}/appended"), stop.clone()));
        Ok(Load { stop, creates, appends })
    }

    /// All creates, and all appends.
    pub async fn stop(self) -> anyhow::Result<(Vec<Logged>, Vec<Logged>)> {
        self.stop.store(true, Ordering::Relaxed);
        let mut creates = Vec::new();
        for task in self.creates {
            creates.extend(task.await??);
        }
        Ok((creates, self.appends.await??))
    }
}

async fn create(volume: Volume, directory: u64, path: String, stop: Arc<AtomicBool>) -> anyhow::Result<Vec<Logged>> {
    let mut log = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        ensure!(log.len() < LOGGED_MAX, "too many creates to keep apart; lower --seconds");
        let name = format!("file-{:08}", log.len());
        let new = NewFile { mode: 0o100_644, exclusive: true, ..NewFile::default() };
        let start = RealClock.now();
        volume.create_at(directory, name.as_bytes(), path.as_bytes(), new).await?;
        log.push(Logged { start, end: RealClock.now() });
    }
    Ok(log)
}

async fn append(volume: Volume, path: String, stop: Arc<AtomicBool>) -> anyhow::Result<Vec<Logged>> {
    let new = NewFile { mode: 0o100_644, exclusive: true, ..NewFile::default() };
    volume.create(path.as_bytes(), new).await?;
    let mut file = volume.open(path.as_bytes()).await?;
    let (mut log, bytes) = (Vec::new(), vec![7; APPENDED]);
    while !stop.load(Ordering::Relaxed) {
        ensure!(log.len() < LOGGED_MAX, "too many appends to keep apart; lower --seconds");
        let start = RealClock.now();
        file.write_at((log.len() * APPENDED) as u64, &bytes).await?;
        file.sync().await?;
        log.push(Logged { start, end: RealClock.now() });
    }
    file.close().await?;
    Ok(log)
}
