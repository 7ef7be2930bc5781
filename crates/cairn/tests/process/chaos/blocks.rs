//! Files whose blocks are overwritten where they are, by all clients at the same time, each its own blocks.
//!
//! A block is whole: one version of it, none older than the last one that was acknowledged when the read began (a sync
//! acknowledges what failed before it, too), none that was not begun when the read ended.
use super::versions::{check_not_lost, read_all};
use super::work::Work;
use crate::mount::seeds::Rng;
use crate::support::text;
use crate::trees::noise;
use cairn_client::{ClientError, FileHandle, Volume};
use parking_lot::{Mutex, MutexGuard};
use std::fs;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// The files.
pub const FILES: [&str; 2] = ["/copies/blocks-0", "/copies/blocks-1"];
const BLOCK: usize = 4096;
/// Blocks of a client in each file.
const OWN: usize = 16;
/// Blocks that are written at once, at most.
const RUN: usize = 4;
/// Syncs of one open file.
const SYNCS: u64 = 20;

#[derive(Clone, Copy, Default)]
struct Block {
    acknowledged: u64,
    tried: u64,
}

pub struct Blocks {
    files: Vec<Mutex<Vec<Block>>>,
}

/// All bytes of a version of a block.
fn bytes_of(file: usize, block: usize, version: u64) -> Vec<u8> {
    let mut bytes = format!("{file} {block} {version}\n").into_bytes();
    let seed = version.wrapping_mul(1000).wrapping_add((file * OWN * 64 + block) as u64);
    bytes.extend(noise(BLOCK - bytes.len(), seed));
    bytes
}

impl Blocks {
    pub fn new(clients: usize) -> Blocks {
        let file = || Mutex::new(vec![Block::default(); clients * OWN]);
        Blocks { files: FILES.iter().map(|_| file()).collect() }
    }
    fn state(&self, file: usize) -> MutexGuard<'_, Vec<Block>> {
        self.files[file].lock()
    }
    /// What the files are made with.
    pub fn first(&self, file: usize) -> Vec<u8> {
        (0..self.state(file).len()).flat_map(|block| bytes_of(file, block, 0)).collect()
    }
    /// The next versions of some blocks: their bytes, and the versions.
    fn begin(&self, file: usize, blocks: Range<usize>) -> (Vec<u8>, Vec<(usize, u64)>) {
        let mut state = self.state(file);
        let mut bytes = Vec::new();
        let versions = blocks.map(|block| {
            state[block].tried += 1;
            let version = state[block].tried;
            bytes.extend(bytes_of(file, block, version));
            (block, version)
        });
        let versions = versions.collect();
        (bytes, versions)
    }
    fn acknowledge(&self, file: usize, versions: &[(usize, u64)]) {
        let mut state = self.state(file);
        for (block, version) in versions {
            state[*block].acknowledged = state[*block].acknowledged.max(*version);
        }
    }
    /// What was acknowledged when a read begins.
    fn oldest(&self, file: usize, blocks: Range<usize>) -> Vec<u64> {
        self.state(file)[blocks].iter().map(|block| block.acknowledged).collect()
    }
    /// Why these bytes cannot be blocks from `first` on, if they cannot.
    fn check(&self, file: usize, first: usize, bytes: &[u8], oldest: &[u64]) -> Result<(), String> {
        let name = FILES[file];
        if bytes.len() != oldest.len() * BLOCK {
            return Err(format!("{name} from block {first} on has {} bytes", bytes.len()));
        }
        let state = self.state(file);
        for ((at, bytes), oldest) in bytes.chunks(BLOCK).enumerate().zip(oldest) {
            let block = first + at;
            let line = text(bytes.split(|byte| *byte == b'\n').next().unwrap_or_default());
            let version =
                line.strip_prefix(&format!("{file} {block} ")).and_then(|version| version.parse::<u64>().ok());
            let Some(version) = version else {
                return Err(format!("{name}: block {block} begins with {:?}", &line[..line.len().min(60)]));
            };
            if bytes != bytes_of(file, block, version) {
                return Err(format!("{name}: block {block} of version {version} is torn"));
            }
            let newest = state[block].tried;
            if !(*oldest..=newest).contains(&version) {
                return Err(format!("{name}: block {block} is version {version}, not {oldest} to {newest}"));
            }
        }
        Ok(())
    }
    /// Reads all of a file, when nobody writes any more.
    pub async fn check_all(&self, volume: &Volume, file: usize) -> Result<(), ClientError> {
        let bytes = read_all(volume, FILES[file], 0, u64::MAX).await?;
        let all = 0..self.state(file).len();
        self.check(file, 0, &bytes, &self.oldest(file, all)).unwrap_or_else(|wrong| panic!("in the end {wrong}"));
        Ok(())
    }
    /// What was acknowledged of all files when a snapshot is asked for.
    pub fn oldest_of_all(&self) -> Vec<Vec<u64>> {
        let of_file = |file| {
            let all = 0..self.state(file).len();
            self.oldest(file, all)
        };
        (0..FILES.len()).map(of_file).collect()
    }
    /// Panics if a snapshot has blocks that are torn, or older than what was acknowledged before it; how many were
    /// looked at.
    pub async fn check_snapshot(&self, volume: &Volume, below: &str, oldest: &[Vec<u64>]) -> u64 {
        let mut seen = 0;
        for (file, oldest) in oldest.iter().enumerate() {
            // Who is cut off reads it no more.
            let Ok(bytes) = read_all(volume, &format!("{below}{}", FILES[file]), 0, u64::MAX).await else { continue };
            self.check(file, 0, &bytes, oldest).unwrap_or_else(|wrong| panic!("in {below}: {wrong}"));
            seen += oldest.len() as u64;
        }
        seen
    }
    fn some(&self, rng: &mut Rng, within: Range<usize>) -> Range<usize> {
        let first = within.start + rng.index(within.len());
        first..(first + 1 + rng.index(RUN)).min(within.end)
    }
}

/// What overwrites blocks of one client.
pub struct Overwriter {
    pub client: usize,
    pub rng: Rng,
}

impl Overwriter {
    fn choose(&mut self, work: &Work) -> (usize, Range<usize>) {
        let own = self.client * OWN..(self.client + 1) * OWN;
        (self.rng.index(FILES.len()), work.blocks.some(&mut self.rng, own))
    }
    async fn until_next(&mut self) {
        tokio::time::sleep(Duration::from_millis(self.rng.below(300))).await;
    }

    /// Works through the library until the end of the run.
    pub async fn run(mut self, volume: Volume, work: &Work) {
        while !work.is_over() {
            if self.rng.one_in(2) {
                self.read(&volume, work).await;
            } else if self.write(&volume, work).await.is_err() {
                work.counts.not_overwritten.add(1);
            }
            self.until_next().await;
        }
    }
    async fn write(&mut self, volume: &Volume, work: &Work) -> Result<(), ClientError> {
        let (file, _) = self.choose(work);
        let mut open = work.counts.timed(volume.open(FILES[file].as_bytes())).await?;
        let mut pending = Vec::new();
        for _ in 0..1 + self.rng.below(SYNCS) {
            let (_, blocks) = self.choose(work);
            let (bytes, versions) = work.blocks.begin(file, blocks.clone());
            let done = work.counts.timed(overwrite(&mut open, blocks.start, &bytes, &versions, &mut pending)).await;
            self.synced(work, file, &mut pending, done.is_ok());
            if work.is_over() || (done.is_err() && self.rng.one_in(2)) {
                break;
            }
            self.until_next().await;
        }
        let closed = work.counts.timed(open.close()).await;
        self.synced(work, file, &mut pending, closed.is_ok());
        Ok(())
    }
    fn synced(&self, work: &Work, file: usize, pending: &mut Vec<(usize, u64)>, done: bool) {
        if done {
            work.blocks.acknowledge(file, pending);
            work.counts.overwritten.add(pending.len() as u64);
            pending.clear();
        } else {
            work.counts.not_overwritten.add(1);
        }
    }
    async fn read(&mut self, volume: &Volume, work: &Work) {
        let file = self.rng.index(FILES.len());
        let all = 0..work.blocks.state(file).len();
        let blocks = work.blocks.some(&mut self.rng, all);
        let (oldest, began) = (work.blocks.oldest(file, blocks.clone()), Instant::now());
        let (offset, length) = (blocks.start * BLOCK, blocks.len() * BLOCK);
        match work.counts.timed(read_all(volume, FILES[file], offset as u64, length as u64)).await {
            Ok(bytes) => {
                work.blocks.check(file, blocks.start, &bytes, &oldest).unwrap_or_else(|wrong| panic!("{wrong}"));
                work.counts.blocks_read.add(blocks.len() as u64);
            }
            Err(error) => {
                assert!(!error.is_not_found(), "{} is gone: {error}", FILES[file]);
                check_not_lost(FILES[file], &error, began.elapsed());
                work.counts.not_read.add(1);
            }
        }
    }

    /// Opens a file of a mount, overwrites and syncs some times.
    pub fn through_mount(&mut self, work: &Work, dir: &Path) {
        let (file, _) = self.choose(work);
        let at = dir.join(FILES[file].trim_start_matches('/'));
        let open = work.counts.timed_blocking(|| fs::OpenOptions::new().write(true).open(&at));
        let Ok(open) = open else { return };
        let mut pending = Vec::new();
        for _ in 0..1 + self.rng.below(SYNCS) {
            let (_, blocks) = self.choose(work);
            let (bytes, versions) = work.blocks.begin(file, blocks.clone());
            let done = work.counts.timed_blocking(|| {
                open.write_all_at(&bytes, (blocks.start * BLOCK) as u64)?;
                pending.extend_from_slice(&versions);
                open.sync_data()
            });
            self.synced(work, file, &mut pending, done.is_ok());
            if work.is_over() || (done.is_err() && self.rng.one_in(2)) {
                break;
            }
        }
    }
    /// Opens a file of a mount and reads some blocks.
    pub fn read_through_mount(&mut self, work: &Work, dir: &Path) {
        let file = self.rng.index(FILES.len());
        let at = dir.join(FILES[file].trim_start_matches('/'));
        let all = 0..work.blocks.state(file).len();
        let blocks = work.blocks.some(&mut self.rng, all);
        let oldest = work.blocks.oldest(file, blocks.clone());
        let mut bytes = vec![0; blocks.len() * BLOCK];
        let read = work.counts.timed_blocking(|| {
            let open = fs::File::open(&at)?;
            open.read_exact_at(&mut bytes, (blocks.start * BLOCK) as u64)
        });
        match read {
            Ok(()) => {
                work.blocks.check(file, blocks.start, &bytes, &oldest).unwrap_or_else(|wrong| panic!("{wrong}"));
                work.counts.blocks_read.add(blocks.len() as u64);
            }
            Err(error) => {
                assert!(error.kind() != std::io::ErrorKind::NotFound, "{} is gone: {error}", FILES[file]);
                work.counts.not_read.add(1);
            }
        }
    }
}

/// Overwrites and syncs; `taken` gets what was taken to be stored.
async fn overwrite(
    open: &mut FileHandle,
    first: usize,
    bytes: &[u8],
    versions: &[(usize, u64)],
    taken: &mut Vec<(usize, u64)>,
) -> Result<(), ClientError> {
    open.write_at((first * BLOCK) as u64, bytes).await?;
    taken.extend_from_slice(versions);
    open.sync().await
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Old, torn and foreign blocks would pass.
    #[test]
    fn what_a_block_may_not_be_is_found() {
        let blocks = Blocks::new(1);
        let (_, versions) = blocks.begin(0, 2..3);
        let (newer, _) = blocks.begin(0, 2..3);
        blocks.acknowledge(0, &versions);
        let check = |bytes: &[u8]| {
            let oldest = blocks.oldest(0, 2..3);
            blocks.check(0, 2, bytes, &oldest).is_ok()
        };
        let mut torn = newer.clone();
        torn[2048..].copy_from_slice(&bytes_of(0, 2, 1)[2048..]);
        assert!(check(&bytes_of(0, 2, 1)) && check(&newer));
        for wrong in [bytes_of(0, 2, 0), bytes_of(0, 2, 3), bytes_of(0, 3, 1), bytes_of(1, 2, 1), vec![0; BLOCK], torn]
        {
            assert!(!check(&wrong), "{:?}", text(&wrong[..10]));
        }
    }
}
