//! Blocks of a few rows of a striped chunk as far as members have them good, and what can be made of them. Pure.
//!
//! Invariants: a block counts only if it matched its CRC; a block that nobody has is made of any k good ones of its row
//! and comes out only when it is proven by the row's checksums ([`RowSearch`]). Rows do not depend on each other: what
//! is bad in one takes nothing from the others.
use cairn_chunk_core::row_decode::ShardBlocks;
use cairn_chunk_core::row_search::RowSearch;
use cairn_env::buf::SharedBuf;
use cairn_erasure::Codec;
use cairn_types::BLOCK_SIZE;
use std::collections::BTreeMap;

/// A block that matched its CRC.
#[derive(Clone, Debug)]
pub(super) struct GoodBlock {
    pub data: SharedBuf,
    pub crc: u32,
    /// Of a parity shard: the checksums of the k data blocks of its row.
    pub row_crcs: Vec<u32>,
}

/// A shard, and a block in it.
pub(super) type At = (usize, u64);

/// Some rows of blocks.
#[derive(Debug, Default)]
pub(super) struct BlockRows {
    good: BTreeMap<At, GoodBlock>,
    made: BTreeMap<At, SharedBuf>,
    /// Why a block was not made although enough others are good.
    troubles: BTreeMap<At, String>,
}

impl BlockRows {
    pub(super) fn put(&mut self, at: At, block: GoodBlock) {
        self.good.insert(at, block);
    }
    /// The bytes of a block that is good, or was made.
    pub(super) fn bytes(&self, at: At) -> Option<&SharedBuf> {
        self.good.get(&at).map(|block| &block.data).or_else(|| self.made.get(&at))
    }
    pub(super) fn is_good(&self, at: At) -> bool {
        self.good.contains_key(&at)
    }
    pub(super) fn trouble(&self, at: At) -> Option<&str> {
        self.troubles.get(&at).map(String::as_str)
    }
    /// Whether the block is there, or k others of its row are.
    pub(super) fn is_enough(&self, codec: &Codec, at: At) -> bool {
        self.bytes(at).is_some() || self.sources(codec, at).len() >= codec.k()
    }
    /// The good blocks of its row, without the block itself.
    fn sources(&self, codec: &Codec, (wanted, block): At) -> Vec<ShardBlocks<'_>> {
        let source = |shard: usize| {
            let good = self.good.get(&(shard, block))?;
            let crcs = std::slice::from_ref(&good.crc);
            Some(ShardBlocks { shard, data: &good.data, crcs, row_crcs: &good.row_crcs })
        };
        (0..codec.shards()).filter(|shard| *shard != wanted).filter_map(source).collect()
    }
    /// Makes what is wanted and not there, as far as it can be proven. For a thread that may be busy.
    pub(super) fn make(&mut self, codec: &Codec, wanted: &[At]) {
        for column in 0..codec.k() {
            let mut search = RowSearch::new(codec, column);
            for at in wanted.iter().filter(|(shard, _)| *shard == column) {
                if self.bytes(*at).is_some() {
                    continue;
                }
                let sources = self.sources(codec, *at);
                if sources.len() < codec.k() {
                    continue;
                }
                let mut out = vec![0; BLOCK_SIZE];
                match search.remake(&sources, &mut out) {
                    Ok(_) => drop(self.made.insert(*at, SharedBuf::from_owner(out))),
                    Err(trouble) => drop(self.troubles.insert(*at, trouble.to_string())),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_types::crc32c;

    /// Blocks bad in one row would take other rows along, or bytes that nobody can prove would come out.
    #[test]
    fn every_row_is_made_of_its_own_good_blocks() {
        let codec = Codec::new(3, 2).expect("codec");
        let (mut rows, mut columns) = (BlockRows::default(), Vec::new());
        // In row 0 shards 0 and 1 are bad, in row 1 shards 2 and 3; in row 2 three are; in row 3 no parity agrees.
        let bad: [&[usize]; 4] = [&[0, 1], &[2, 3], &[0, 1, 4], &[1]];
        for (block, bad) in (0..).zip(bad) {
            let byte = |shard: usize, i: usize| (shard * 41 + i * 7 + i / 97 + block as usize) as u8;
            let data: Vec<Vec<u8>> = (0..3).map(|s| (0..BLOCK_SIZE).map(|i| byte(s, i)).collect()).collect();
            let mut parity = vec![vec![0; BLOCK_SIZE]; 2];
            codec.encode(&data, &mut parity).expect("encoded");
            let mut of_row: Vec<u32> = data.iter().map(|bytes| crc32c(bytes)).collect();
            of_row[1] ^= u32::from(block == 3);
            for (shard, bytes) in data.iter().chain(&parity).enumerate().filter(|(shard, _)| !bad.contains(shard)) {
                let row_crcs = if shard < 3 { Vec::new() } else { of_row.clone() };
                let data = SharedBuf::from_owner(bytes.clone());
                rows.put((shard, block), GoodBlock { data, crc: crc32c(bytes), row_crcs });
            }
            columns.push(data);
        }
        let wanted: Vec<At> = (0..4).flat_map(|block| (0..3).map(move |shard| (shard, block))).collect();
        let enough: Vec<At> = wanted.iter().filter(|at| !rows.is_enough(&codec, **at)).copied().collect();
        assert_eq!(enough, [(0, 2), (1, 2)]);
        rows.make(&codec, &wanted);
        let lost = |at: &At| rows.bytes(*at).is_none();
        assert_eq!(wanted.iter().filter(|at| lost(at)).collect::<Vec<_>>(), [&(0, 2), &(1, 2), &(1, 3)]);
        assert!(rows.trouble((1, 3)).is_some() && rows.trouble((0, 2)).is_none());
        for (shard, block) in wanted.iter().filter(|at| !lost(at)) {
            assert!(
                rows.bytes((*shard, *block)).expect("there")[..] == columns[*block as usize][*shard],
                "{shard} {block}"
            );
        }
    }
}
