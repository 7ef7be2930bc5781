//! What was acknowledged: the bytes that every reader has to find, and what must not come back.

use std::collections::BTreeMap;

use cairn_types::{BLOCK_SIZE, Epoch};

use crate::words::{Block, WORDS, cut};

/// A block that a file names.
#[derive(Debug, Clone)]
pub struct Named {
    /// What was acknowledged last.
    pub committed: Block,
    /// What was sent and is not acknowledged: it may be there.
    pub maybe: Vec<Block>,
    /// What it was before, and until when.
    old: Vec<(Block, u64)>,
    /// No file names it any more.
    pub freed: bool,
    /// Its client went to new space: nobody reads it.
    pub left: bool,
    /// Its client ended with an overwrite under way: one or the other is there, and nobody overwrites it again.
    pub orphan: bool,
}

/// A chunk of which something was acknowledged, or freed.
#[derive(Debug, Clone, Default)]
pub struct Chunk {
    /// Its epoch.
    pub made: Epoch,
    /// Who may overwrite it.
    pub owner: usize,
    /// Its writer is at it.
    pub open: bool,
    /// Bytes that were acknowledged.
    pub length: u64,
    /// Blocks of copies, or the rows of shards.
    pub blocks: Vec<Named>,
    /// All of it was freed.
    pub gone: bool,
    /// An overwrite is under way.
    pub busy: bool,
}

/// As named above.
#[derive(Debug, Default)]
pub struct Model {
    /// By index.
    pub chunks: BTreeMap<u32, Chunk>,
    /// The group holds shards: of each row the model knows the first one.
    pub shards: bool,
}

impl Model {
    /// Bytes of a chunk were acknowledged as durable.
    pub fn published(&mut self, index: u32, (made, owner): (Epoch, usize), length: u64, blocks: &[Block], now: u64) {
        let chunk = self.chunks.entry(index).or_default();
        (chunk.made, chunk.owner, chunk.open) = (made, owner, true);
        chunk.length = chunk.length.max(length);
        for (at, block) in blocks.iter().enumerate() {
            match chunk.blocks.get_mut(at) {
                Some(named) if named.committed != *block => {
                    named.old.push((named.committed, now));
                    named.committed = *block;
                }
                Some(_) => {}
                None => chunk.blocks.push(Named {
                    committed: *block,
                    maybe: Vec::new(),
                    old: Vec::new(),
                    freed: false,
                    left: false,
                    orphan: false,
                }),
            }
        }
    }

    /// An overwrite is sent.
    pub fn overwrites(&mut self, index: u32, runs: &[(u32, Vec<Block>)]) {
        let Some(chunk) = self.chunks.get_mut(&index) else { return };
        chunk.busy = true;
        for (first, blocks) in runs {
            for (at, block) in blocks.iter().enumerate() {
                if let Some(named) = chunk.blocks.get_mut(*first as usize + at) {
                    named.maybe.push(*block);
                }
            }
        }
    }

    /// It is acknowledged.
    pub fn overwritten(&mut self, index: u32, runs: &[(u32, Vec<Block>)], now: u64) {
        let Some(chunk) = self.chunks.get_mut(&index) else { return };
        chunk.busy = false;
        for (first, blocks) in runs {
            for (at, block) in blocks.iter().enumerate() {
                if let Some(named) = chunk.blocks.get_mut(*first as usize + at) {
                    named.old.push((named.committed, now));
                    let before = std::mem::take(&mut named.maybe);
                    named.old.extend(before.into_iter().map(|block| (block, now)));
                    named.committed = *block;
                    named.old.retain(|(_, until)| until + 60_000_000 > now);
                }
            }
        }
    }

    /// Its client gave it up and wrote to new space.
    pub fn left(&mut self, index: u32, runs: &[(u32, Vec<Block>)]) {
        let Some(chunk) = self.chunks.get_mut(&index) else { return };
        chunk.busy = false;
        for (first, blocks) in runs {
            for at in 0..blocks.len() {
                if let Some(named) = chunk.blocks.get_mut(*first as usize + at) {
                    named.left = true;
                }
            }
        }
    }

    /// Its client ended: whether it is there nobody knows, but members agree about it.
    pub fn orphaned(&mut self, index: u32, runs: &[(u32, Vec<Block>)]) {
        let Some(chunk) = self.chunks.get_mut(&index) else { return };
        chunk.busy = false;
        for (first, blocks) in runs {
            for at in 0..blocks.len() {
                if let Some(named) = chunk.blocks.get_mut(*first as usize + at) {
                    named.orphan = true;
                }
            }
        }
    }

    /// Whether a reader that began at `since` may find this in a block, of which it read so many bytes.
    pub fn allows(&self, index: u32, block: u32, found: &Block, bytes: u64, since: u64) -> bool {
        let Some(named) = self.chunks.get(&index).and_then(|chunk| chunk.blocks.get(block as usize)) else {
            return true;
        };
        if named.freed || named.left {
            return true;
        }
        let found = cut(found, bytes);
        let as_found = |block: &Block| cut(block, bytes) == found;
        let old = named.old.iter().filter(|(_, until)| *until >= since).any(|(block, _)| as_found(block));
        as_found(&named.committed) || named.maybe.iter().any(as_found) || old
    }

    /// Whether a block may be as on a disk at the end.
    pub fn settled(&self, index: u32, block: u32, found: &Block) -> bool {
        let bytes = self.bytes_of(index, block);
        let Some(named) = self.chunks.get(&index).and_then(|chunk| chunk.blocks.get(block as usize)) else {
            return true;
        };
        let found = cut(found, bytes);
        let as_found = |block: &Block| cut(block, bytes) == found;
        as_found(&named.committed) || named.maybe.iter().any(as_found)
    }

    /// Bytes of a block that were acknowledged.
    pub fn bytes_of(&self, index: u32, block: u32) -> u64 {
        let from = u64::from(block) * BLOCK_SIZE as u64;
        let length = self.chunks.get(&index).map_or(0, |chunk| chunk.length);
        length.saturating_sub(from).min((WORDS as u64) * crate::words::WORD)
    }
}
