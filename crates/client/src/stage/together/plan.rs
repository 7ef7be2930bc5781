//! Which blocks of copies become one chunk of whole shards: of each column as many, of the same files side by side.
//!
//! A shard is a list of pieces of chunks of one column, whole blocks, in the order in which they lie in it. All shards
//! of a chunk have as many blocks as the longest column, the others being filled up with zeros, if these are little: a
//! thirty-second part, so that what one client wrote leaves nothing over; when chunks are compacted a quarter, so that
//! little is left in the old ones. Else as many as a shorter column; what is left of the others waits for a later one.
//! What is dead in a column is not taken along.
//!
//! Invariants: a piece is in the shard of its column; no byte of a file is in two places; pieces lie in their shard in
//! the order of files, so that what one file has of the shards goes together when the file does.
use crate::moving::Run;
use cairn_types::{BLOCK_SIZE, CHUNK_BLOCKS_MAX, ChunkId, ExtentKind, PgId, Stripe};
use cairn_wire::common::Extent;

const BLOCK: u64 = BLOCK_SIZE as u64;
/// Blocks of a shard: as many as fit.
pub(super) const SHARD_BLOCKS_MAX: u64 = CHUNK_BLOCKS_MAX as u64;
/// Less is not worth a chunk with its tables on all members: it is encoded by file.
pub(super) const SHARD_BLOCKS_MIN: u64 = 16;
/// One part of so many of a chunk may be zeros: with more of them it would take more space than what is left over.
const ZEROS_PART: u64 = 32;
/// Of one that is compacted.
const ZEROS_PART_COMPACTED: u64 = 4;

/// Part of a file in a copy, or in a whole shard.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Piece {
    /// A number of the file that ascends.
    pub file: usize,
    /// As the file names it.
    pub extent: Extent,
    /// Where it begins in the members' files of the chunk.
    pub at: u64,
}

impl Piece {
    fn first_block(&self) -> u64 {
        self.at / BLOCK
    }
    pub fn blocks(&self) -> u64 {
        (self.at + self.extent.length).div_ceil(BLOCK) - self.first_block()
    }
    /// Its first blocks, and the rest.
    fn split(self, blocks: u64) -> (Piece, Piece) {
        let end = (self.first_block() + blocks) * BLOCK;
        let length = end - self.at;
        let Extent { file_offset, chunk_offset, .. } = self.extent;
        let first = Extent { length, ..self.extent };
        let rest = Extent {
            file_offset: file_offset + length,
            chunk_offset: chunk_offset + length,
            length: self.extent.length - length,
            ..self.extent
        };
        (Piece { extent: first, ..self }, Piece { extent: rest, at: end, ..self })
    }
}

/// Blocks of a chunk on the disks of a column.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Source {
    pub chunk: ChunkId,
    pub offset: u64,
    /// Up to the end of what the file has there, which may be the end of the chunk.
    pub length: u64,
}

impl Source {
    /// In whole blocks.
    pub fn held(&self) -> u64 {
        self.length.next_multiple_of(BLOCK)
    }
}

/// What becomes one chunk.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Together {
    /// Of each shard.
    pub blocks: u64,
    /// By shard.
    shards: Vec<Vec<Piece>>,
}

impl Together {
    /// `columns`: the pieces of each. `None`: there is too little of one.
    pub fn of(columns: &[Vec<Piece>]) -> Option<Together> {
        Self::filled_to(columns, ZEROS_PART)
    }

    /// The same for what is compacted: with more zeros.
    pub fn filled(columns: &[Vec<Piece>]) -> Option<Together> {
        Self::filled_to(columns, ZEROS_PART_COMPACTED)
    }

    /// As long as the longest column, so long as at most one part of so many is zeros.
    fn filled_to(columns: &[Vec<Piece>], parts: u64) -> Option<Together> {
        let sums: Vec<u64> = columns.iter().map(|pieces| pieces.iter().map(Piece::blocks).sum()).collect();
        let data = |length: u64| sums.iter().map(|sum| (*sum).min(length)).sum::<u64>();
        // Lengths at which a column ends: in between the share of data falls.
        let good = |length: &u64| data(*length) * parts >= *length * columns.len() as u64 * (parts - 1);
        let lengths = sums.iter().map(|sum| (*sum).min(SHARD_BLOCKS_MAX));
        let blocks = lengths.filter(good).max()?;
        let shards = columns.iter().map(|pieces| first_of(pieces, blocks)).collect();
        (blocks >= SHARD_BLOCKS_MIN).then_some(Together { blocks, shards })
    }

    /// Where the blocks `from..to` of a shard come from, in order. What lacks at the end is zeros.
    pub fn sources(&self, shard: usize, from: u64, to: u64) -> Vec<Source> {
        let (mut at, mut sources) = (0, Vec::new());
        for piece in &self.shards[shard] {
            let (start, end) = (at.max(from), (at + piece.blocks()).min(to));
            if start < end {
                let chunk = ChunkId { pg: PgId(piece.extent.pg), index: piece.extent.index };
                let offset = (piece.first_block() + start - at) * BLOCK;
                let last = piece.at + piece.extent.length;
                let length = ((end - start) * BLOCK).min(last - offset);
                sources.push(Source { chunk, offset, length });
            }
            at += piece.blocks();
        }
        sources
    }

    /// What a file has in it: where it is now, in runs, and where it will be.
    pub fn of_file(&self, file: usize, chunk: ChunkId, stripe: Stripe) -> (Vec<Run>, Vec<Extent>) {
        let flags = ExtentKind::Erasure(stripe).to_flags();
        let mut moved: Vec<(Extent, Extent)> = Vec::new();
        for (shard, pieces) in (0..).zip(&self.shards) {
            let mut at = 0;
            for piece in pieces {
                if piece.file == file {
                    let offset = at * BLOCK + piece.at % BLOCK;
                    let chunk_offset = stripe.logical(shard, offset);
                    let (pg, index) = (chunk.pg.0, chunk.index);
                    moved.push((piece.extent, Extent { pg, index, chunk_offset, flags, ..piece.extent }));
                }
                at += piece.blocks();
            }
        }
        moved.sort_unstable_by_key(|(old, _)| old.file_offset);
        let mut runs: Vec<Run> = Vec::new();
        for (old, _) in &moved {
            if !runs.last_mut().is_some_and(|run| run.push(*old)) {
                let mut run = Run::default();
                run.push(*old);
                runs.push(run);
            }
        }
        (runs, moved.into_iter().map(|(_, new)| new).collect())
    }

    /// Files that have something in it, ascending.
    pub fn files(&self) -> Vec<usize> {
        let mut files: Vec<usize> = self.shards.iter().flatten().map(|piece| piece.file).collect();
        files.sort_unstable();
        files.dedup();
        files
    }

    /// Groups that it is read from.
    pub fn groups(&self) -> impl Iterator<Item = PgId> + '_ {
        self.shards.iter().flatten().map(|piece| PgId(piece.extent.pg))
    }
}

/// The first so many blocks of a list in which there are as many.
fn first_of(pieces: &[Piece], blocks: u64) -> Vec<Piece> {
    let (mut left, mut taken) = (blocks, Vec::new());
    for piece in pieces {
        if left == 0 {
            break;
        }
        let whole = piece.blocks() <= left;
        let piece = if whole { *piece } else { piece.split(left).0 };
        left -= piece.blocks();
        taken.push(piece);
    }
    taken
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_types::WHOLE_SHARD;

    fn piece(file: usize, column: u32, file_offset: u64, chunk_offset: u64, length: u64) -> Piece {
        let extent = Extent { file_offset, length, pg: column, index: 7, chunk_offset, flags: 0 };
        Piece { file, extent, at: chunk_offset }
    }

    /// Files would get bytes of others, lose some, or name blocks in which something else lies.
    #[test]
    fn every_byte_is_where_its_extent_says() {
        let columns = vec![
            vec![piece(0, 1, 100, 8192 + 100, 90_000), piece(2, 1, 0, 200_000 / 4096 * 4096, 40_000)],
            vec![piece(0, 2, 90_100 / 4096 * 4096 + 4096, 0, 70_000), piece(1, 2, 0, 81_920, 10_000)],
        ];
        let together = Together::of(&columns).expect("enough");
        assert_eq!(together.blocks, 18 + 3, "as many as the column that has fewest");
        let stripe = Stripe::new(2, WHOLE_SHARD).expect("valid");
        let chunk = ChunkId { pg: PgId(9), index: 4 };
        // What lies at each byte of each shard, by its source.
        let mut bytes = 0;
        for file in together.files() {
            let (runs, new) = together.of_file(file, chunk, stripe);
            let old: Vec<Extent> = runs.iter().flat_map(|run| run.extents.clone()).collect();
            assert_eq!(old.len(), new.len());
            for (old, new) in old.iter().zip(&new) {
                assert_eq!((old.file_offset, old.length), (new.file_offset, new.length));
                assert_eq!(new.chunk_offset % 4096, new.file_offset % 4096);
                let (shard, at) = stripe.locate(new.chunk_offset);
                let block = at / BLOCK;
                let end = (at + new.length).div_ceil(BLOCK);
                let sources = together.sources(usize::from(shard), block, end);
                assert_eq!(sources.len(), 1, "one piece");
                let source = sources[0];
                assert_eq!((source.chunk.pg.0, source.chunk.index), (old.pg, old.index));
                assert_eq!(source.offset + at % BLOCK, old.chunk_offset);
                bytes += new.length;
            }
        }
        // 21 blocks of column 0: all 23 of the first piece but those that do not fit.
        assert_eq!(bytes, 21 * BLOCK - 100 + 70_000 + 10_000);
        for shard in 0..2 {
            let all: u64 = together.sources(shard, 0, together.blocks).iter().map(Source::held).sum();
            assert_eq!(all, together.blocks * BLOCK);
        }
    }

    /// What is compacted would stay behind in part, and keep all of its old chunk.
    #[test]
    fn a_denser_chunk_takes_all_of_every_shard() {
        let from = Stripe::new(2, WHOLE_SHARD).expect("valid");
        let of_shard = |file: usize, shard: u16, at: u64, length: u64| Piece {
            at,
            ..piece(file, 9, 0, from.logical(shard, at), length)
        };
        let columns = [vec![of_shard(0, 0, 40_960, 40 * BLOCK)], vec![of_shard(1, 1, 8192, 24 * BLOCK - 7)]];
        let dense = Together::filled(&columns).expect("something");
        assert_eq!((dense.blocks, Together::of(&columns).map(|t| t.blocks)), (40, Some(24)));
        let source = |shard: usize, from: u64, to: u64| dense.sources(shard, from, to);
        let old = ChunkId { pg: PgId(9), index: 7 };
        assert_eq!(source(0, 0, 40)[0], Source { chunk: old, offset: 40_960, length: 40 * BLOCK });
        assert_eq!(source(1, 0, 40)[0].offset, 8192, "its place in the shard");
        assert_eq!(source(1, 0, 40).iter().map(Source::held).sum::<u64>(), 24 * BLOCK, "and zeros");
        assert_eq!(source(1, 24, 40), []);
        let (runs, new) = dense.of_file(1, ChunkId { pg: PgId(9), index: 8 }, from);
        assert_eq!(runs[0].extents[0].chunk_offset, from.logical(1, 8192), "as the file names it");
        assert_eq!((new[0].index, new[0].chunk_offset, new[0].length), (8, from.logical(1, 0), 24 * BLOCK - 7));
        // One that is far longer than the others: only what is as long as those.
        let long = [vec![of_shard(0, 0, 0, 400 * BLOCK)], vec![of_shard(1, 1, 0, 24 * BLOCK)]];
        assert_eq!(Together::filled(&long).map(|t| t.blocks), Some(24));
        assert_eq!(Together::filled(&[long[0].clone(), Vec::new()]), None, "nothing would be gained");
    }

    /// Chunks would be made for a few blocks, or be longer than a chunk can be.
    #[test]
    fn shards_are_neither_tiny_nor_too_long() {
        let blocks = |count: u64| vec![piece(0, 1, 0, 0, count * BLOCK)];
        assert_eq!(Together::of(&[blocks(15), blocks(100)]), None);
        assert_eq!(Together::of(&[blocks(16), blocks(100)]).map(|t| t.blocks), Some(16));
        assert_eq!(Together::of(&[vec![], blocks(100)]), None);
        // Little is filled up, so that nothing is left over.
        assert_eq!(Together::of(&[blocks(95), blocks(100), blocks(99)]).map(|t| t.blocks), Some(100));
        assert_eq!(Together::of(&[blocks(80), blocks(100), blocks(99)]).map(|t| t.blocks), Some(80));
        let two = |_| [blocks(16_384), blocks(9)].concat();
        assert_eq!(Together::of(&[two(0), two(1)]).map(|t| t.blocks), Some(SHARD_BLOCKS_MAX));
    }
}
