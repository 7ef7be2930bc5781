//! Workers of a replay, and the files that they work on.
use super::Queue;
use super::plan::{Kind, Step};
use crate::report::latencies;
use cairn_client::changes::SetAttributes;
use cairn_client::{FileHandle, FileWriter, RenameMode, Volume, WriteOptions};
use cairn_env::{Clock, RealClock};
use cairn_types::{Layout, Time};
use hdrhistogram::Histogram;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Files that are read: as many as there are parts of the set.
const READ_FILES: u64 = 8;
/// Names in the directory that is listed and asked for.
const NAMES: u64 = 256;
/// A file that is written is followed by another one from this size on.
const WRITTEN_MAX: u64 = 256 << 20;
/// One read or write of a log, at most.
const BYTES_MAX: u32 = 4 << 20;

/// What is there before the replay.
pub struct Stage {
    volume: Volume,
    root: String,
    layout: Layout,
    /// Of each file that is read.
    file_bytes: u64,
    /// Inode of each name.
    names: Vec<u64>,
    listed: u64,
    made: AtomicU64,
    removed: AtomicU64,
}

/// An operation and when it is to begin.
pub struct Due {
    pub step: Step,
    pub due: Time,
    pub number: u64,
}

/// What was done of a kind.
pub struct Done {
    pub operations: u64,
    pub bytes: u64,
    pub errors: u64,
    pub first_error: Option<String>,
    pub latency: Histogram<u64>,
}

impl Default for Done {
    fn default() -> Self {
        Self { operations: 0, bytes: 0, errors: 0, first_error: None, latency: latencies() }
    }
}

impl Done {
    pub fn add(&mut self, more: &Done) -> anyhow::Result<()> {
        self.operations += more.operations;
        self.bytes += more.bytes;
        self.errors += more.errors;
        self.first_error = self.first_error.take().or_else(|| more.first_error.clone());
        Ok(self.latency.add(&more.latency)?)
    }
}

impl Stage {
    pub async fn prepare(volume: &Volume, root: &str, layout: Layout, set: u64) -> anyhow::Result<Stage> {
        for directory in ["", "/names", "/made", "/written", "/read"] {
            volume.mkdir(format!("{root}{directory}").as_bytes(), 0o755, 0).await?;
        }
        let file_bytes = (set / READ_FILES).max(u64::from(BYTES_MAX));
        let mut buffer = FileWriter::buffer();
        buffer.resize(1 << 20);
        buffer.fill(0xa5);
        let data = buffer.freeze();
        for file in 0..READ_FILES {
            let mut writer = volume.write(format!("{root}/read/{file}").as_bytes(), options(layout)).await?;
            let mut left = file_bytes;
            while left > 0 {
                let length = left.min(data.len() as u64);
                writer.push(data.slice(..length as usize)).await?;
                left -= length;
            }
            writer.finish().await?;
        }
        let mut names = Vec::new();
        for name in 0..NAMES {
            let path = format!("{root}/names/{name:06}");
            volume.write(path.as_bytes(), options(layout)).await?.finish().await?;
            names.push(volume.stat(path.as_bytes(), false).await?.inode);
        }
        let listed = volume.stat(format!("{root}/names").as_bytes(), false).await?.inode;
        let (made, removed) = (AtomicU64::new(0), AtomicU64::new(0));
        Ok(Stage { volume: volume.clone(), root: root.into(), layout, file_bytes, names, listed, made, removed })
    }

    async fn create(&self) -> anyhow::Result<()> {
        let path = format!("{}/made/{:08}", self.root, self.made.fetch_add(1, Relaxed));
        self.volume.write(path.as_bytes(), options(self.layout)).await?.finish().await?;
        Ok(())
    }

    async fn remove(&self) -> anyhow::Result<()> {
        let number = self.removed.fetch_add(1, Relaxed);
        let path = format!("{}/made/{number:08}", self.root);
        match self.volume.unlink(path.as_bytes()).await {
            Ok(()) => Ok(()),
            // The log removes more than it makes, or this one is still being made: a name that is not there is asked
            // for.
            Err(error) if error.code() == Some(cairn_types::ErrorCode::NotFound) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    async fn rename(&self, number: u64) -> anyhow::Result<()> {
        let path = |to: &str| format!("{}/written/moved-{number}{to}", self.root);
        self.volume.mkdir(path("").as_bytes(), 0o755, 0).await?;
        Ok(self.volume.rename(path("").as_bytes(), path("-to").as_bytes(), RenameMode::Replace).await?)
    }
}

fn options(layout: Layout) -> WriteOptions {
    WriteOptions { mode: 0o644, mtime_ns: 0, layout, exclusive: false, owner: None }
}

/// Numbers that look random, the same in every run.
fn scattered(number: u64) -> u64 {
    let mut x = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The file that a worker writes.
struct Written {
    handle: FileHandle,
    length: u64,
}

/// Takes what is due until there is no more.
pub async fn work(worker: usize, stage: std::sync::Arc<Stage>, queue: Queue) -> anyhow::Result<BTreeMap<Kind, Done>> {
    let mut done: BTreeMap<Kind, Done> = BTreeMap::new();
    let (mut written, mut files) = (None, 0);
    loop {
        let next = queue.lock().await.recv().await;
        let Some(Due { step, due, number }) = next else { break };
        let outcome = one(worker, &stage, step, number, &mut written, &mut files).await;
        let took = RealClock.now().since(due).as_micros() as u64;
        let done = done.entry(step.kind).or_default();
        done.operations += 1;
        done.latency.saturating_record(took);
        match outcome {
            Ok(bytes) => done.bytes += bytes,
            Err(error) => {
                done.errors += 1;
                done.first_error.get_or_insert_with(|| format!("{error:#}"));
                written = None;
            }
        }
    }
    if let Some(Written { handle, .. }) = written {
        handle.close().await?;
    }
    Ok(done)
}

async fn one(
    worker: usize,
    stage: &Stage,
    Step { kind, bytes, .. }: Step,
    number: u64,
    written: &mut Option<Written>,
    files: &mut u64,
) -> anyhow::Result<u64> {
    let bytes = u64::from(bytes.min(BYTES_MAX));
    let random = scattered(number);
    let name = stage.names[(random % NAMES) as usize];
    match kind {
        Kind::Read => {
            let path = format!("{}/read/{}", stage.root, random % READ_FILES);
            let offset = scattered(random) % (stage.file_bytes - bytes + 1) / 4096 * 4096;
            let mut reader = stage.volume.read(path.as_bytes(), offset, bytes).await?;
            let mut read = 0;
            while let Some(piece) = reader.next().await? {
                read += piece.data.len() as u64;
            }
            anyhow::ensure!(read == bytes, "{path}: {read} bytes at {offset}, {bytes} are there");
            return Ok(bytes);
        }
        Kind::Append | Kind::Overwrite => {
            if written.as_ref().is_none_or(|written| written.length >= WRITTEN_MAX) {
                if let Some(Written { handle, .. }) = written.take() {
                    handle.close().await?;
                }
                let path = format!("{}/written/{worker}-{files}", stage.root);
                *files += 1;
                stage.volume.write(path.as_bytes(), options(stage.layout)).await?.finish().await?;
                *written = Some(Written { handle: stage.volume.open(path.as_bytes()).await?, length: 0 });
            }
            let Some(Written { handle, length }) = written else { anyhow::bail!("there is no file to be written") };
            let data = vec![number as u8; bytes as usize];
            let at = match kind {
                Kind::Overwrite if *length > bytes => random % (*length - bytes) / 4096 * 4096,
                _ => *length,
            };
            handle.write_at(at, &data).await?;
            *length = (*length).max(at + bytes);
            return Ok(bytes);
        }
        Kind::Sync => {
            if let Some(Written { handle, .. }) = written {
                handle.sync().await?;
            }
        }
        Kind::Stat => drop(stage.volume.getattr(name).await?),
        Kind::List => drop(stage.volume.readdir(stage.listed, b"", true).await?),
        Kind::Create => stage.create().await?,
        Kind::Mkdir => {
            let path = format!("{}/written/dir-{number}", stage.root);
            stage.volume.mkdir(path.as_bytes(), 0o755, 0).await?;
        }
        Kind::Rename => stage.rename(number).await?,
        Kind::Remove => stage.remove().await?,
        Kind::Change => {
            let set = SetAttributes { mode: Some(0o600 + (number % 8) as u32), ..SetAttributes::default() };
            stage.volume.setattr(name, b"a name", set).await?;
        }
    }
    Ok(0)
}
