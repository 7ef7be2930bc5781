//! What data nodes are asked themselves: scrubs of their disks, bad blocks, and the chunks that members have.
use crate::connect::Client;
use crate::error::Result;
use cairn_wire::Opcode;
use cairn_wire::data::{
    self, BadBlocksRequest, BadBlocksResponse, ListChunksRequest, ListChunksResponse, ListDigestsRequest,
    ListDigestsResponse, ScrubRequest, ScrubResponse,
};
use std::ops::RangeInclusive;
use std::time::Duration;

/// A node answers at once or not at all.
const SCRUB_DEADLINE: Duration = Duration::from_secs(5);
/// A node that lives answers at once; one that stands still is as good as away.
const LIST_DEADLINE: Duration = Duration::from_secs(2);
/// Chunks in one page of a list.
const PAGE: u32 = 1000;

/// How the reading of a disk at rest goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ScrubReport {
    pub disk: u32,
    /// 0: none was begun.
    pub pass: u64,
    pub running: bool,
    /// By an operator.
    pub asked: bool,
    pub began_ns: u64,
    /// 0: it goes on.
    pub ended_ns: u64,
    pub bytes: u64,
    /// Of all chunks, measured now and then.
    pub total_bytes: u64,
    pub bad_blocks: u64,
    /// At once; others are tried again.
    pub healed_blocks: u64,
    /// Of the pass before.
    pub last_ended_ns: u64,
    pub last_bad_blocks: u64,
    /// Bytes a second at present.
    pub rate: u64,
}

impl ScrubReport {
    fn of_wire(found: &data::ScrubReport) -> Self {
        Self {
            disk: found.disk,
            pass: found.pass,
            running: found.running,
            asked: found.asked,
            began_ns: found.began_ns,
            ended_ns: found.ended_ns,
            bytes: found.bytes,
            total_bytes: found.total_bytes,
            bad_blocks: found.bad_blocks,
            healed_blocks: found.healed_blocks,
            last_ended_ns: found.last_ended_ns,
            last_bad_blocks: found.last_bad_blocks,
            rate: found.rate,
        }
    }
}

/// Blocks of one chunk on a disk that are known to be bad and wait until they can be healed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BadBlocks {
    pub disk: u32,
    /// Group and index.
    pub chunk: (u32, u32),
    pub blocks: Vec<u32>,
}

/// Those of a node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BadBlockList {
    pub chunks: Vec<BadBlocks>,
    /// Not all are remembered.
    pub more: bool,
}

/// Chunks of a member.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChunkLengths {
    /// Index and length, ascending.
    pub chunks: Vec<(u32, u64)>,
    /// Up to this index it has no others.
    pub told_to: u32,
}

impl Client {
    /// How the scrubs of a node's disks, or of one of them, go on; with `start` passes over them begin at once.
    pub async fn scrubs(&self, what: &str, address: &str, disk: Option<u32>, start: bool) -> Result<Vec<ScrubReport>> {
        let request = ScrubRequest { disk: disk.unwrap_or(0), start };
        let found: ScrubResponse = self.call(what, address, Opcode::Scrub, &request, SCRUB_DEADLINE).await?;
        Ok(found.disks.iter().map(ScrubReport::of_wire).collect())
    }
    /// Bad blocks of a node's disks.
    pub async fn bad_blocks(&self, what: &str, address: &str) -> Result<BadBlockList> {
        let request = BadBlocksRequest {};
        let found: BadBlocksResponse = self.call(what, address, Opcode::BadBlocks, &request, LIST_DEADLINE).await?;
        let bad = |one: data::BadBlocks| BadBlocks { disk: one.disk, chunk: (one.pg, one.index), blocks: one.blocks };
        Ok(BadBlockList { chunks: found.chunks.into_iter().map(bad).collect(), more: found.more })
    }
    /// A page of the chunks that a member of a group has among these indices.
    pub async fn chunk_lengths(
        &self,
        what: &str,
        address: &str,
        (pg, disk): (u32, u32),
        indices: RangeInclusive<u32>,
    ) -> Result<ChunkLengths> {
        let (first, last) = indices.into_inner();
        let count_max = last.saturating_sub(first).saturating_add(1).min(PAGE);
        let (after_index, from_start) = (first.saturating_sub(1), first == 0);
        let request =
            ListChunksRequest { disk, pg, after_index, from_start, count_max, ..ListChunksRequest::default() };
        let found: ListChunksResponse = self.call(what, address, Opcode::ListChunks, &request, LIST_DEADLINE).await?;
        let told_to = found.chunks.last().filter(|_| !found.end).map_or(u32::MAX, |last| last.index);
        Ok(ChunkLengths { chunks: found.chunks.iter().map(|one| (one.index, one.length)).collect(), told_to })
    }
    /// Number of sealed chunks that a member of a group lists.
    pub async fn sealed_chunks(&self, what: &str, address: &str, (pg, disk): (u32, u32)) -> Result<u64> {
        let (mut from_index, mut chunks) = (0, 0);
        loop {
            let request = ListDigestsRequest { disk, pg, from_index };
            let page: ListDigestsResponse =
                self.call(what, address, Opcode::ListDigests, &request, LIST_DEADLINE).await?;
            chunks += page.ranges.iter().map(|range| u64::from(range.chunks)).sum::<u64>();
            if page.next_index <= from_index {
                return Ok(chunks);
            }
            from_index = page.next_index;
        }
    }
}
