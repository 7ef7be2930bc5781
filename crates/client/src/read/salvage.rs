//! Intact blocks of a piece that no member has as a whole, put together from what the members have.
//!
//! Invariant: a block is taken only from an answer in which it matched its CRC; bytes come out only where every block of
//! them was taken.
use super::latency::Latency;
use super::piece::{Piece, read_member};
use crate::cluster::Cluster;
use cairn_env::buf::{AlignedBuf, SharedBuf};
use cairn_types::BLOCK_SIZE;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

const BLOCK: u64 = BLOCK_SIZE as u64;

/// What was found of a piece; at most its own blocks.
#[derive(Debug)]
pub(super) struct Salvage {
    piece: Piece,
    /// By index in the chunk.
    good: BTreeMap<u64, SharedBuf>,
    /// Bad blocks that were logged, by disk.
    logged: BTreeSet<(u32, u64)>,
}

impl Salvage {
    pub(super) fn new(piece: Piece) -> Salvage {
        Salvage { piece, good: BTreeMap::new(), logged: BTreeSet::new() }
    }
    pub(super) fn piece(&self) -> Piece {
        self.piece
    }
    fn blocks(&self) -> Range<u64> {
        self.piece.offset / BLOCK..(self.piece.offset + self.piece.length).div_ceil(BLOCK)
    }
    /// Takes the blocks of an answer that begins with block `first`, without the bad ones.
    pub(super) fn take(&mut self, first: u64, payload: &SharedBuf, bad: &[u64]) {
        let blocks = self.blocks();
        for (i, block) in (first..).take(payload.len() / BLOCK_SIZE).enumerate() {
            if blocks.contains(&block) && !bad.contains(&block) {
                let bytes = || payload.slice(i * BLOCK_SIZE..(i + 1) * BLOCK_SIZE);
                self.good.entry(block).or_insert_with(bytes);
            }
        }
    }
    /// Whether a bad block of a disk is heard of for the first time.
    pub(super) fn is_news(&mut self, disk: u32, block: u64) -> bool {
        self.logged.insert((disk, block))
    }
    /// All of the piece, once every block was found.
    pub(super) fn whole(&self) -> Option<SharedBuf> {
        let prefix = self.prefix();
        (prefix.len() as u64 == self.piece.length).then_some(prefix)
    }
    /// What is there before the first block that is missing.
    pub(super) fn prefix(&self) -> SharedBuf {
        let end = self.missing().first().map_or(self.piece.offset + self.piece.length, |(offset, _)| *offset);
        let mut joined = AlignedBuf::unpooled((end - self.piece.offset) as usize);
        for block in self.blocks().map_while(|block| self.good.get_key_value(&block)) {
            let at = block.0 * BLOCK;
            let from = self.piece.offset.max(at);
            if from < end {
                joined.extend_from_slice(&block.1[(from - at) as usize..(end.min(at + BLOCK) - at) as usize]);
            }
        }
        joined.freeze()
    }
    /// Ranges of the piece whose blocks are missing: offset in the chunk, and length.
    pub(super) fn missing(&self) -> Vec<(u64, u64)> {
        let mut runs: Vec<Range<u64>> = Vec::new();
        for block in self.blocks().filter(|block| !self.good.contains_key(block)) {
            match runs.last_mut() {
                Some(run) if run.end == block => run.end += 1,
                _ => runs.push(block..block + 1),
            }
        }
        let (start, end) = (self.piece.offset, self.piece.offset + self.piece.length);
        let clip = |run: Range<u64>| {
            let from = (run.start * BLOCK).max(start);
            (from, (run.end * BLOCK).min(end) - from)
        };
        runs.into_iter().map(clip).collect()
    }
}

/// Asks members with damage for what is missing in ever smaller ranges: a device that cannot read one sector refuses the
/// whole range that it is in.
pub(super) async fn salvage_by_halves(
    cluster: &Arc<Cluster>,
    latency: &Latency,
    salvage: &Mutex<Salvage>,
    damaged: &[u32],
) {
    let chunk = salvage.lock().piece().chunk;
    for disk in damaged {
        let mut ranges = salvage.lock().missing();
        while let Some((offset, length)) = ranges.pop() {
            let first = offset - offset % BLOCK;
            let blocks = (offset + length - first).div_ceil(BLOCK);
            let part = Piece { chunk, offset: first, length: offset + length - first };
            match read_member(cluster, latency, part, *disk, salvage).await {
                Ok(data) if data.len().is_multiple_of(BLOCK_SIZE) => salvage.lock().take(first / BLOCK, &data, &[]),
                Ok(data) => {
                    let mut padded = AlignedBuf::unpooled(data.len().next_multiple_of(BLOCK_SIZE));
                    padded.extend_from_slice(&data);
                    padded.resize(data.len().next_multiple_of(BLOCK_SIZE));
                    salvage.lock().take(first / BLOCK, &padded.freeze(), &[]);
                }
                Err(refusal) if refusal.damaged && refusal.is_refused() && blocks > 1 => {
                    let half = blocks / 2 * BLOCK;
                    ranges.push((first + half, part.length - half));
                    ranges.push((first, half));
                }
                // Nobody there, or exactly the blocks that are good came.
                Err(_) => {}
            }
        }
    }
}
