//! `cairn bench io --overwrite`: random 4 KiB blocks of a file, each durable on all members when it is answered: in
//! place, and to new space with a publish each, which is what an fsync after each write costs without it.
use crate::cpu::CpuReading;
use crate::report::{Row, latencies};
use anyhow::{Context, ensure};
use cairn_client::{BlockWrite, Client, Overwritten, Volume};
use cairn_env::buf::SharedBuf;
use cairn_env::rng::FastRng;
use cairn_env::{Clock, RealClock, Rng};
use cairn_types::{BLOCK_SIZE, ChunkId, ExtentKind};
use hdrhistogram::Histogram;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// How long and how many at once.
#[derive(Clone, Copy)]
pub struct Load {
    pub seconds: f64,
    pub depth: usize,
}

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Way {
    InPlace,
    NewSpace,
}

/// Blocks of a file, by their number in it.
type Blocks = Arc<Vec<(ChunkId, u64)>>;

/// Where the blocks of a file are.
pub async fn blocks_of(volume: &Volume, path: &str) -> anyhow::Result<Blocks> {
    let found = volume.stat(path.as_bytes(), true).await?;
    let mut blocks = Vec::new();
    for extent in volume.all_extents(found.inode).await? {
        ensure!(
            extent.kind == Some(ExtentKind::Plain) && !extent.shared,
            "{path} is not in replicated chunks: only those are overwritten in place"
        );
        let whole = extent.length / BLOCK_SIZE as u64;
        blocks.extend((0..whole).map(|i| (extent.chunk, extent.chunk_offset + i * BLOCK_SIZE as u64)));
    }
    Ok(Arc::new(blocks))
}

/// Overwrites random blocks; a row of what came of it.
pub async fn measure(
    client: &Client,
    volume: &Volume,
    path: &str,
    blocks: &Blocks,
    (way, load): (Way, Load),
    what: &str,
) -> anyhow::Result<Row> {
    ensure!(blocks.len() > load.depth, "the file is too small for {} writes at once", load.depth);
    let before = CpuReading::take(client).await;
    let started = RealClock.now();
    let refused = Arc::new(AtomicU64::new(0));
    let tasks: Vec<_> = (0..load.depth)
        .map(|turn| {
            let (volume, path, blocks, refused) = (volume.clone(), path.to_owned(), blocks.clone(), refused.clone());
            tokio::spawn(async move {
                match way {
                    Way::InPlace => in_place(&volume, &blocks, load, turn, &refused).await,
                    Way::NewSpace => new_space(&volume, &path, &blocks, load, turn).await,
                }
            })
        })
        .collect();
    let mut latency = latencies();
    for task in tasks {
        latency.add(&task.await??)?;
    }
    let took = RealClock.now().since(started);
    let cpu = CpuReading::take(client).await.since(&before);
    Ok(Row::new(what, (1, load.depth), (latency.len(), 0, refused.load(Relaxed)), took, &latency, cpu))
}

/// One block after the other; tasks have different blocks.
async fn in_place(
    volume: &Volume,
    blocks: &Blocks,
    load: Load,
    turn: usize,
    refused: &AtomicU64,
) -> anyhow::Result<Histogram<u64>> {
    let (mut latency, rng) = (latencies(), FastRng::seeded(turn as u64 + 1));
    let (began, limit) = (RealClock.now(), Duration::from_secs_f64(load.seconds));
    let data = SharedBuf::from_owner(vec![turn as u8 | 1; BLOCK_SIZE]);
    while RealClock.now().since(began) < limit {
        let (chunk, offset) = blocks[pick(&rng, blocks.len(), load.depth, turn)];
        let started = RealClock.now();
        let outcome = volume.overwrite(&[BlockWrite { chunk, offset, data: data.clone() }]).await?;
        match &outcome[0] {
            Overwritten::InPlace => {
                latency.saturating_record(RealClock.now().since(started).as_micros() as u64);
            }
            // A writer would write it to new space; here it is only counted.
            Overwritten::NewSpace { .. } => {
                refused.fetch_add(1, Relaxed);
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    }
    Ok(latency)
}

async fn new_space(
    volume: &Volume,
    path: &str,
    blocks: &Blocks,
    load: Load,
    turn: usize,
) -> anyhow::Result<Histogram<u64>> {
    let (mut latency, rng) = (latencies(), FastRng::seeded(turn as u64 + 1));
    let (began, limit) = (RealClock.now(), Duration::from_secs_f64(load.seconds));
    let data = vec![turn as u8 | 1; BLOCK_SIZE];
    let mut file = volume.open(path.as_bytes()).await?;
    while RealClock.now().since(began) < limit {
        let block = pick(&rng, blocks.len(), load.depth, turn);
        let started = RealClock.now();
        file.write_at((block * BLOCK_SIZE) as u64, &data).await?;
        file.sync().await.context("making a block durable in new space")?;
        latency.saturating_record(RealClock.now().since(started).as_micros() as u64);
    }
    file.close().await?;
    Ok(latency)
}

fn pick(rng: &FastRng, blocks: usize, depth: usize, turn: usize) -> usize {
    let of_turn = (blocks - turn).div_ceil(depth);
    (rng.u64() % of_turn as u64) as usize * depth + turn
}
