//! What the disk below can do in the same run: direct writes of 1 MiB with one fdatasync at the end.
use anyhow::Context;
use cairn_env::buf::AlignedBuf;
use cairn_env::{Clock, Disk, OpenOptions, RealClock, RealDisk};
use std::path::Path;

const BLOCK: usize = 1 << 20;
const NAME: &str = "raw-bandwidth.tmp";

/// Writes `bytes` into a file in `directory` and removes it; MB/s.
pub fn write_bandwidth(directory: &Path, bytes: u64) -> anyhow::Result<f64> {
    let disk = RealDisk::open(directory)
        .with_context(|| format!("{} cannot be used for the raw test", directory.display()))?;
    let file = disk.open(NAME, OpenOptions::CREATE.direct())?;
    let mut block = AlignedBuf::unpooled(BLOCK);
    block.resize(BLOCK);
    block.fill(0xa5);
    let clock = RealClock;
    let started = clock.now();
    let blocks = (bytes / BLOCK as u64).max(1);
    for i in 0..blocks {
        file.write_at(&block, i * BLOCK as u64)?;
    }
    file.sync_data()?;
    let seconds = clock.now().since(started).as_secs_f64();
    drop(file);
    disk.remove(NAME)?;
    Ok((blocks * BLOCK as u64) as f64 / seconds / 1e6)
}
