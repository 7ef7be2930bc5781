//! Rebuilding row by row, when the quick way of [`super::rebuild`] failed: every other member that serves or catches up
//! is asked for all that it has good of the range, and each row is made of whichever k of its blocks can be proven to
//! belong together.
//!
//! Invariant: a block that cannot be made so has fewer than k good blocks left in its row. Memory is bounded by the
//! range of every other shard.

use std::ops::Range;
use std::sync::Arc;

use cairn_chunk_core::row_decode::{Remade, ShardBlocks};
use cairn_chunk_core::row_search::RowSearch;
use cairn_env::AlignedBuf;
use cairn_types::{BLOCK_SIZE, DiskId, crc32c};
use tokio::task::JoinSet;

use super::Inner;
use super::fetch::Held;
use super::rebuild::{Failures, Rebuild, RebuildError, Rebuilt};

/// What one source has.
struct Holder {
    shard: usize,
    disk: DiskId,
    held: Held,
}

impl Inner {
    /// `may_lose`: a block of which there is too little for good is stored as a lost one.
    pub(super) async fn rebuild_rows(
        self: &Arc<Self>,
        job: &Arc<Rebuild>,
        blocks: &Range<u32>,
        may_lose: bool,
    ) -> Result<Rebuilt, RebuildError> {
        let holders = self.hold_all(job, blocks).await;
        let mut data = AlignedBuf::unpooled(blocks.len() * BLOCK_SIZE);
        let mut sums = Remade { crcs: Vec::new(), row_crcs: Vec::new() };
        let mut search = RowSearch::new(&job.codec, job.shard);
        let mut lost = Vec::new();
        for block in blocks.clone() {
            let at = data.len();
            data.resize(at + BLOCK_SIZE);
            match remake_row(job, &mut search, &holders, block, &mut data[at..]) {
                Ok(made) => {
                    sums.crcs.extend(made.crcs);
                    sums.row_crcs.extend(made.row_crcs);
                }
                Err(error) if may_lose && error.is_for_good() => {
                    tracing::error!(%error, "a block of a shard is lost: no member of its group has enough of its row, and none is away");
                    data[at..].fill(0);
                    sums.crcs.push(!crc32c(&data[at..]));
                    let rows = if job.shard < job.codec.k() { 0 } else { job.codec.k() };
                    sums.row_crcs.extend(std::iter::repeat_n(0, rows));
                    lost.push(block);
                }
                Err(error) => return Err(error),
            }
            // The proof of a row takes a while when sources disagree.
            tokio::task::yield_now().await;
        }
        Ok(Rebuilt { data, sums, lost })
    }

    async fn hold_all(self: &Arc<Self>, job: &Arc<Rebuild>, blocks: &Range<u32>) -> Vec<Holder> {
        let block = BLOCK_SIZE as u64;
        let range = u64::from(blocks.start) * block..u64::from(blocks.end) * block;
        let mut questions = JoinSet::new();
        for &(shard, disk) in job.others.iter().chain(&job.syncing) {
            let (inner, job, range) = (self.clone(), job.clone(), range.clone());
            questions.spawn(async move {
                let held = inner.fetch_good(&job.at(disk), range).await;
                Holder { shard, disk, held }
            });
        }
        let mut holders = Vec::new();
        while let Some(answer) = questions.join_next().await {
            // A question that was given up is one source less.
            holders.extend(answer);
        }
        holders.sort_by_key(|holder| holder.shard);
        holders
    }
}

/// One block of the shard, from whatever is good of its row.
fn remake_row(
    job: &Rebuild,
    search: &mut RowSearch<'_>,
    holders: &[Holder],
    block: u32,
    into: &mut [u8],
) -> Result<Remade, RebuildError> {
    let have = holders.iter().filter(|holder| holder.held.good.contains_key(&block)).count();
    if have < job.codec.k() {
        return Err(few(job, block, holders));
    }
    search.remake(&sources(holders, block), into).map_err(|trouble| {
        let error = RebuildError::Unproven { chunk: job.id, shard: job.shard, blocks: block..block + 1, trouble };
        tracing::error!(%error, "a block of a shard cannot be rebuilt");
        error
    })
}

fn sources(holders: &[Holder], block: u32) -> Vec<ShardBlocks<'_>> {
    holders
        .iter()
        .filter_map(|holder| {
            let held = holder.held.good.get(&block)?;
            let (data, crcs) = (&held.data[..], std::slice::from_ref(&held.crc));
            Some(ShardBlocks { shard: holder.shard, data, crcs, row_crcs: &held.row_crcs })
        })
        .collect()
}

/// Why a block of a row with too few good ones is not made.
fn few(job: &Rebuild, block: u32, holders: &[Holder]) -> RebuildError {
    let blocks = block..block + 1;
    if let Some(freer) = holders.iter().find(|holder| holder.held.freed.contains(&block)) {
        return RebuildError::Freed { chunk: job.id, disk: freer.disk, blocks };
    }
    let lack = || holders.iter().filter(|holder| !holder.held.good.contains_key(&block));
    let problem =
        |holder: &Holder| format!("shard {} on {}: {}", holder.shard, holder.disk, holder.held.problems.join(", "));
    let failures = Failures {
        problems: lack().map(problem).collect(),
        unanswered: lack().any(|holder| holder.held.unanswered),
        damaged: true,
    };
    job.too_few(&blocks, holders.len() - lack().count(), &failures)
}
