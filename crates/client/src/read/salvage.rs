//! Intact blocks of a piece that no member has as a whole, put together from what the members have.
//!
//! Invariant: a block is taken only from an answer in which it matched its CRC; bytes come out only where every block
//! of them was taken.
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
/// Refused ranges of one member that are asked for in smaller parts.
const REFUSALS_MAX: usize = 128;

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
    /// Only members in this epoch are asked from now on; 0: whoever is sure that it serves.
    pub(super) fn ask_under(&mut self, epoch: u64) {
        self.piece.epoch = epoch;
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
        self.blocks().all(|block| self.good.contains_key(&block)).then(|| self.prefix())
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

/// Asks members with damage for what is missing in ever smaller ranges: a device that cannot read one sector refuses
/// the whole range that it is in.
pub(super) async fn salvage_by_halves(
    cluster: &Arc<Cluster>,
    latency: &Latency,
    salvage: &Mutex<Salvage>,
    damaged: &[u32],
) {
    for disk in damaged {
        let Piece { chunk, epoch, .. } = salvage.lock().piece();
        let mut ranges = salvage.lock().missing();
        let mut refusals = 0;
        while let Some((offset, length)) = ranges.pop() {
            let first = offset - offset % BLOCK;
            let part = Piece { chunk, offset: first, length: offset + length - first, epoch };
            match read_member(cluster, latency, part, *disk, salvage).await {
                Ok(data) => {
                    let mut blocks = AlignedBuf::unpooled(data.len().next_multiple_of(BLOCK_SIZE));
                    blocks.extend_from_slice(&data);
                    blocks.resize(data.len().next_multiple_of(BLOCK_SIZE));
                    salvage.lock().take(first / BLOCK, &blocks.freeze(), &[]);
                }
                Err(refusal) if refusal.is_of_the_whole() && refusals < REFUSALS_MAX => {
                    refusals += 1;
                    let half = part.length.div_ceil(BLOCK) / 2 * BLOCK;
                    if half > 0 {
                        ranges.extend([(first + half, part.length - half), (first, half)]);
                    }
                }
                // Nobody there, or what is good of it came.
                Err(_) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_types::{ChunkId, PgId};

    /// A block that is bad on one member only would be refused, or its neighbours named as lost.
    #[test]
    fn blocks_of_several_members_make_a_piece() {
        let piece = Piece { chunk: ChunkId { pg: PgId(1), index: 1 }, offset: 5000, length: 20_000, epoch: 0 };
        let data: Vec<u8> = (0..7 * BLOCK_SIZE).map(|i| (i / 7) as u8).collect();
        let blocks = SharedBuf::from_owner(data[BLOCK_SIZE..].to_vec());
        let mut salvage = Salvage::new(piece);
        assert_eq!((salvage.missing(), salvage.prefix().len()), (vec![(5000, 20_000)], 0));
        salvage.take(1, &blocks, &[3, 4, 6]);
        assert_eq!(salvage.missing(), [(12_288, 8192), (24_576, 424)]);
        assert!(salvage.prefix()[..] == data[5000..12_288] && salvage.whole().is_none());
        salvage.take(1, &blocks, &[1, 2, 4, 5]);
        assert_eq!(salvage.missing(), [(16_384, 4096)]);
        assert!(salvage.prefix()[..] == data[5000..16_384]);
        salvage.take(4, &blocks.slice(3 * BLOCK_SIZE..4 * BLOCK_SIZE), &[]);
        assert!(salvage.whole().is_some_and(|whole| whole[..] == data[5000..25_000]));
    }
}
