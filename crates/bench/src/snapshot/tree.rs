//! [`Tree`]: directories of a thousand empty files, and one of files with contents; and what is measured in them, as
//! they are or were.
use super::random;
use crate::report::latencies;
use anyhow::{Context, ensure};
use cairn_client::changes::{NewFile, SetAttributes};
use cairn_client::{FileWriter, Volume, WriteOptions};
use cairn_env::{Clock, RealClock, Rng};
use cairn_types::Layout;
use hdrhistogram::Histogram;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Files of a directory.
const OF_A_DIRECTORY: u64 = 1000;
/// Bytes of a file with contents.
pub const DATA_BYTES: usize = 64 << 10;
/// Files that are made or changed at a time.
const AT_ONCE: usize = 32;

/// The directories, as they are at some time.
#[derive(Clone)]
pub struct Place {
    directories: Arc<Vec<u64>>,
    /// Of the files with contents.
    data: String,
}

/// See the module.
pub struct Tree {
    root: String,
    files: u64,
    data_files: u64,
    now: Place,
}

fn name(file: u64) -> String {
    format!("file-{:06}", file % OF_A_DIRECTORY)
}

/// Runs something for each number below `count`, some at a time.
async fn for_all<F>(count: u64, work: impl Fn(u64) -> F + Clone + Send + 'static) -> anyhow::Result<()>
where
    F: Future<Output = anyhow::Result<()>> + Send + 'static,
{
    let next = Arc::new(AtomicU64::new(0));
    let task = |_| {
        let (next, work) = (next.clone(), work.clone());
        tokio::spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= count {
                    return anyhow::Ok(());
                }
                work(number).await?;
            }
        })
    };
    for task in (0..AT_ONCE).map(task).collect::<Vec<_>>() {
        task.await??;
    }
    Ok(())
}

impl Tree {
    pub async fn make(volume: &Volume, root: &str, files: u64, data_files: u64) -> anyhow::Result<Tree> {
        let data = format!("{root}/data");
        volume.mkdir_all(data.as_bytes(), 0o755).await?;
        let mut directories = Vec::new();
        for directory in 0..files.div_ceil(OF_A_DIRECTORY) {
            directories.push(volume.mkdir(format!("{root}/d{directory}").as_bytes(), 0o755, 0).await?.inode);
        }
        let directories = Arc::new(directories);
        let (own, at, shown) = (volume.clone(), directories.clone(), root.to_owned());
        for_all(files, move |file| {
            let (volume, directory, shown) = (own.clone(), at[(file / OF_A_DIRECTORY) as usize], shown.clone());
            async move {
                let new = NewFile { mode: 0o100_644, exclusive: true, ..NewFile::default() };
                volume.create_at(directory, name(file).as_bytes(), shown.as_bytes(), new).await?;
                Ok(())
            }
        })
        .await?;
        let (own, below) = (volume.clone(), data.clone());
        for_all(data_files, move |file| {
            let (volume, path) = (own.clone(), format!("{below}/{file}"));
            async move { store(&volume, &path).await }
        })
        .await?;
        Ok(Tree { root: root.to_owned(), files, data_files, now: Place { directories, data } })
    }

    pub fn now(&self) -> Place {
        self.now.clone()
    }

    /// As it was at a snapshot.
    pub async fn at(&self, volume: &Volume, snapshot: &str) -> anyhow::Result<Place> {
        let then = format!("{}/.snapshots/{snapshot}", self.root);
        let mut directories = Vec::new();
        for directory in 0..self.now.directories.len() {
            directories.push(volume.stat(format!("{then}/d{directory}").as_bytes(), true).await?.inode);
        }
        Ok(Place { directories: Arc::new(directories), data: format!("{then}/data") })
    }

    /// Changes the mode of so many different random files; how many it were.
    pub async fn touch(&self, volume: &Volume, count: u64, seed: u64) -> anyhow::Result<u64> {
        let count = count.min(self.files);
        if count == 0 {
            return Ok(0);
        }
        // Spread over all files, each once, from a random one on.
        let (step, first) = (self.files / count, random(seed + 1000).below(self.files));
        let (files, own, at, root) = (self.files, volume.clone(), self.now.directories.clone(), self.root.clone());
        for_all(count, move |number| {
            let file = (first + number * step) % files;
            let (volume, directory, shown) = (own.clone(), at[(file / OF_A_DIRECTORY) as usize], root.clone());
            async move {
                let found = volume.lookup(directory, name(file).as_bytes(), shown.as_bytes()).await?;
                let mode = Some(found.mode & 0o7777 ^ 0o022);
                let set = SetAttributes { mode, ..SetAttributes::default() };
                volume.setattr(found.inode, shown.as_bytes(), set).await?;
                Ok(())
            }
        })
        .await?;
        Ok(count)
    }

    /// Removes the second half of the files with contents.
    pub async fn remove_half(&self, volume: &Volume) -> anyhow::Result<()> {
        for file in self.data_files / 2..self.data_files {
            volume.unlink(format!("{}/{file}", self.now.data).as_bytes()).await?;
        }
        Ok(())
    }
}

async fn store(volume: &Volume, path: &str) -> anyhow::Result<()> {
    let layout = Layout::replicated(3);
    let options = WriteOptions { mode: 0o644, mtime_ns: 0, layout, exclusive: true, owner: None };
    let mut buffer = FileWriter::buffer();
    buffer.resize(DATA_BYTES);
    buffer.fill(0x5a);
    let mut writer = volume.write(path.as_bytes(), options).await?;
    writer.push(buffer.freeze()).await?;
    writer.finish().await?;
    Ok(())
}

type Measured = (u64, Duration, Histogram<u64>);

/// Repeats something by several tasks, for so many seconds.
async fn repeat<F>(
    seconds: f64,
    tasks: usize,
    work: impl Fn(u64) -> F + Clone + Send + Sync + 'static,
) -> anyhow::Result<Measured>
where
    F: Future<Output = anyhow::Result<()>> + Send + 'static,
{
    let started = RealClock.now();
    let task = |number: usize| {
        let work = work.clone();
        tokio::spawn(async move {
            let (rng, mut latency) = (random(number as u64), latencies());
            while RealClock.now().since(started).as_secs_f64() < seconds {
                let begun = RealClock.now();
                work(rng.u64()).await?;
                latency.saturating_record(RealClock.now().since(begun).as_micros() as u64);
            }
            anyhow::Ok(latency)
        })
    };
    let mut latency = latencies();
    for task in (0..tasks).map(task).collect::<Vec<_>>() {
        latency.add(&task.await??)?;
    }
    Ok((latency.len(), RealClock.now().since(started), latency))
}

/// Random files are looked up, by directory and name.
pub async fn lookups(volume: &Volume, at: &Place, files: u64, seconds: f64, tasks: usize) -> anyhow::Result<Measured> {
    let (own, at) = (volume.clone(), at.clone());
    repeat(seconds, tasks, move |random| {
        let file = random % files;
        let (volume, directory) = (own.clone(), at.directories[(file / OF_A_DIRECTORY) as usize]);
        async move {
            let found = volume.lookup(directory, name(file).as_bytes(), b"a file of the benchmark").await;
            found.map(drop).context("a file is not where it was made")
        }
    })
    .await
}

/// Random files with contents are read whole.
pub async fn reads(volume: &Volume, at: &Place, files: u64, seconds: f64, tasks: usize) -> anyhow::Result<Measured> {
    let (own, data) = (volume.clone(), at.data.clone());
    repeat(seconds, tasks, move |random| {
        let (volume, path) = (own.clone(), format!("{data}/{}", random % files));
        async move {
            let mut reader = volume.read(path.as_bytes(), 0, u64::MAX).await?;
            let mut bytes = 0;
            while let Some(piece) = reader.next().await? {
                bytes += piece.data.len();
            }
            ensure!(bytes == DATA_BYTES, "{path} has {bytes} bytes, {DATA_BYTES} were written");
            Ok(())
        }
    })
    .await
}
