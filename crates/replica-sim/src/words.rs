//! Symbolic blocks: a block is four words of 1 KiB each, so that partial last blocks, prefixes and mixtures are what
//! they are on disks.

use cairn_replica_core::message::Data;
use cairn_types::BLOCK_SIZE;

/// Words of a block.
pub const WORDS: usize = 4;
/// Bytes of a word.
pub const WORD: u64 = BLOCK_SIZE as u64 / WORDS as u64;
/// A block.
pub type Block = [u32; WORDS];
/// Bytes of several.
pub type Bytes = Vec<Block>;

/// What stands for a block until it is freed.
pub const FILLER: Block = [0xdead_beef; WORDS];

/// A checksum of a block.
pub fn crc(block: &Block) -> u32 {
    let mut sum = 0x811c_9dc5u32;
    for word in block {
        sum = (sum ^ word).wrapping_mul(0x0100_0193).rotate_left(7);
    }
    // Never that of a filler.
    sum | 1
}

/// Blocks with their checksums.
pub fn data(blocks: Bytes) -> Data<Bytes> {
    Data { crcs: blocks.iter().map(crc).collect(), bytes: Some(blocks) }
}

/// A block of which only the first `bytes` exist.
pub fn cut(block: &Block, bytes: u64) -> Block {
    let mut cut = [0; WORDS];
    let words = (bytes.div_ceil(WORD) as usize).min(WORDS);
    cut[..words].copy_from_slice(&block[..words]);
    cut
}

/// Shard `shard` of a row: of any k of the same row every other one can be made.
pub fn shard_of_row(row: u32, shard: u8) -> Block {
    [row, u32::from(shard), row.rotate_left(u32::from(shard) + 3) ^ 0x5bd1_e995, 7]
}

/// Makes a shard of others, if they are of one row and k of them agree.
pub fn decode(shards: &[(u8, Block)], k: usize, wanted: u8) -> Option<Block> {
    let good = |(shard, block): &&(u8, Block)| *block == shard_of_row(block[0], *shard);
    for (_, first) in shards.iter().filter(good) {
        if shards.iter().filter(good).filter(|(_, block)| block[0] == first[0]).count() >= k {
            return Some(shard_of_row(first[0], wanted));
        }
    }
    None
}
