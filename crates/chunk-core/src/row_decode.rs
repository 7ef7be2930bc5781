//! Blocks of one shard made from the same blocks of k others, and the proof that they are right.
//!
//! Invariants: nothing leaves here that does not match a checksum that was computed when the row was written. A data
//! block is held against the row CRCs of a parity shard among the sources. For a parity block the data blocks that are
//! not among the sources are decoded as well and held against them, so that every data block of the row is proven.
//! Sources that disagree about a checksum are an error. Not here: who is asked, and what to do when the proof fails.

use cairn_erasure::{Codec, ErasureError, ShardSet};
use cairn_types::{BLOCK_SIZE, crc32c};

/// Blocks of one shard, which match `crcs`.
#[derive(Debug, Clone, Copy)]
pub struct ShardBlocks<'a> {
    /// Which shard.
    pub shard: usize,
    /// Whole blocks.
    pub data: &'a [u8],
    /// A checksum of each.
    pub crcs: &'a [u32],
    /// Of parity shards: the checksums of the k data blocks of each block's row, block by block.
    pub row_crcs: &'a [u32],
}

/// Checksums of the blocks that were made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remade {
    /// One a block.
    pub crcs: Vec<u32>,
    /// Of a parity shard: k a block.
    pub row_crcs: Vec<u32>,
}

/// Why nothing was made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RowTrouble {
    /// Sources of other lengths, without the checksums of rows, or not k of them.
    #[error("what shard {shard} sent is not what was asked for")]
    Malformed {
        /// Whose.
        shard: usize,
    },
    /// Two sources hold different checksums of one data block.
    #[error("block {block}: the checksum of data shard {data} is not the one that parity shard {parity} has of it")]
    Disagree {
        /// Counted from the first that was asked for.
        block: usize,
        /// The data shard.
        data: usize,
        /// Who says something else.
        parity: usize,
    },
    /// What was decoded is not what was written.
    #[error("block {block} of shard {shard} as decoded does not match its checksum")]
    Mismatch {
        /// Counted from the first that was asked for.
        block: usize,
        /// The shard that was decoded.
        shard: usize,
    },
    /// No code for that.
    #[error(transparent)]
    Code(#[from] ErasureError),
}

/// Makes the blocks of shard `wanted` into `out` from the same blocks of k others.
pub fn remake(codec: &Codec, wanted: usize, sources: &[ShardBlocks<'_>], out: &mut [u8]) -> Result<Remade, RowTrouble> {
    let k = codec.k();
    let blocks = out.len() / BLOCK_SIZE;
    let present: ShardSet = sources.iter().map(|source| source.shard).collect();
    let rows = row_crcs(k, blocks, sources)?;
    let mut all = vec![wanted];
    all.extend((0..k).filter(|shard| wanted >= k && !present.contains(*shard)));
    let plan = codec.decode_plan(present, &all)?;
    let data: Vec<&[u8]> = plan.sources().iter().filter_map(|shard| find(sources, *shard)).collect();
    let mut beside = vec![vec![0; out.len()]; all.len() - 1];
    let mut outputs: Vec<&mut [u8]> = std::iter::once(&mut *out).chain(beside.iter_mut().map(|b| &mut b[..])).collect();
    plan.run(&data, &mut outputs)?;
    for (shard, bytes) in all.iter().zip(&outputs).filter(|(shard, _)| **shard < k) {
        let wrong = |(block, bytes): (usize, &[u8])| rows[block * k + shard] != Some(crc32c(bytes));
        if let Some(block) = bytes.chunks(BLOCK_SIZE).enumerate().position(wrong) {
            return Err(RowTrouble::Mismatch { block, shard: *shard });
        }
    }
    let crcs = out.chunks(BLOCK_SIZE).map(crc32c).collect();
    if wanted < k {
        return Ok(Remade { crcs, row_crcs: Vec::new() });
    }
    let row_crcs: Option<Vec<u32>> = rows.into_iter().collect();
    Ok(Remade { crcs, row_crcs: row_crcs.ok_or(RowTrouble::Malformed { shard: wanted })? })
}

fn find<'a>(sources: &[ShardBlocks<'a>], shard: usize) -> Option<&'a [u8]> {
    sources.iter().find(|source| source.shard == shard).map(|source| source.data)
}

/// The checksum of each data block of each row as far as the sources know it, k a block; they have to agree.
fn row_crcs(k: usize, blocks: usize, sources: &[ShardBlocks<'_>]) -> Result<Vec<Option<u32>>, RowTrouble> {
    let mut rows = vec![None; blocks * k];
    for source in sources {
        let wanted = if source.shard < k { 0 } else { blocks * k };
        let whole = source.data.len() == blocks * BLOCK_SIZE && source.crcs.len() == blocks;
        if !whole || source.row_crcs.len() != wanted {
            return Err(RowTrouble::Malformed { shard: source.shard });
        }
        if source.shard < k {
            for (block, crc) in source.crcs.iter().enumerate() {
                rows[block * k + source.shard] = Some(*crc);
            }
        }
    }
    for source in sources.iter().filter(|source| source.shard >= k) {
        for (at, crc) in source.row_crcs.iter().enumerate() {
            if *rows[at].get_or_insert(*crc) != *crc {
                return Err(RowTrouble::Disagree { block: at / k, data: at % k, parity: source.shard });
            }
        }
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCKS: usize = 2;

    struct Row {
        codec: Codec,
        shards: Vec<Vec<u8>>,
        crcs: Vec<Vec<u32>>,
        rows: Vec<u32>,
    }

    fn row(k: usize, m: usize) -> Row {
        let codec = Codec::new(k, m).expect("a code");
        let byte = |shard: usize, i: usize| (shard * 37 + i * 11 + i / 4096 * 5) as u8;
        let length = BLOCKS * BLOCK_SIZE;
        let mut shards: Vec<Vec<u8>> = (0..k).map(|shard| (0..length).map(|i| byte(shard, i)).collect()).collect();
        let mut parity = vec![vec![0; length]; m];
        codec.encode(&shards, &mut parity).expect("encoded");
        shards.extend(parity);
        let crcs: Vec<Vec<u32>> = shards.iter().map(|shard| shard.chunks(BLOCK_SIZE).map(crc32c).collect()).collect();
        let rows = (0..BLOCKS).flat_map(|block| (0..k).map(|j| crcs[j][block]).collect::<Vec<_>>()).collect();
        Row { codec, shards, crcs, rows }
    }

    impl Row {
        fn sources(&self, present: ShardSet) -> Vec<ShardBlocks<'_>> {
            let k = self.codec.k();
            let source = |shard: usize| ShardBlocks {
                shard,
                data: &self.shards[shard],
                crcs: &self.crcs[shard],
                row_crcs: if shard < k { &[] } else { &self.rows },
            };
            present.iter().map(source).collect()
        }
    }

    /// A member would be given something else than its shard: every shard from every set of k others.
    #[test]
    fn every_shard_from_every_k_others() {
        let mut made = 0;
        for (k, m) in [(3, 2), (4, 2), (6, 3)] {
            let row = row(k, m);
            for bits in 0u32..1 << (k + m) {
                let present = ShardSet::from_bits(bits);
                for wanted in (0..k + m).filter(|wanted| present.len() == k && !present.contains(*wanted)) {
                    let mut out = vec![0xee; BLOCKS * BLOCK_SIZE];
                    let remade = remake(&row.codec, wanted, &row.sources(present), &mut out).expect("k sources");
                    assert!(out == row.shards[wanted], "{wanted} from {present}");
                    assert_eq!(remade.crcs, row.crcs[wanted]);
                    assert_eq!(remade.row_crcs, if wanted < k { vec![] } else { row.rows.clone() });
                    made += 1;
                }
            }
        }
        assert!(made > 300, "{made}");
    }

    /// Bytes that nobody wrote would be taken for good ones: any source that holds other bytes under their own
    /// checksums, or other checksums of rows, is noticed.
    #[test]
    fn whatever_is_not_the_row_is_noticed() {
        let (k, good) = (3, row(3, 2));
        let mut noticed = 0;
        for bits in 0u32..32 {
            let present = ShardSet::from_bits(bits);
            for wanted in (0..5).filter(|wanted| present.len() == k && !present.contains(*wanted)) {
                for bad in present.iter() {
                    let mut row = row(3, 2);
                    row.shards[bad][4096 + 9] ^= 4;
                    row.crcs[bad][1] = crc32c(&row.shards[bad][4096..]);
                    let mut out = vec![0; BLOCKS * BLOCK_SIZE];
                    let outcome = remake(&row.codec, wanted, &row.sources(present), &mut out);
                    // With all data shards as sources there is nothing to hold them against but their own checksums.
                    if present.iter().all(|shard| shard < k) {
                        continue;
                    }
                    assert!(outcome.is_err(), "{wanted} from {present}, {bad} is bad");
                    noticed += 1;
                }
                if present.iter().any(|shard| shard >= k) {
                    let mut row = row_with(&good, |rows| rows[wanted.min(2)] ^= 1);
                    row.codec = good.codec.clone();
                    let mut out = vec![0; BLOCKS * BLOCK_SIZE];
                    assert!(remake(&row.codec, wanted, &row.sources(present), &mut out).is_err());
                    noticed += 1;
                }
            }
        }
        assert!(noticed > 50, "{noticed}");
    }

    fn row_with(good: &Row, change: impl Fn(&mut Vec<u32>)) -> Row {
        let mut rows = good.rows.clone();
        change(&mut rows);
        Row { codec: good.codec.clone(), shards: good.shards.clone(), crcs: good.crcs.clone(), rows }
    }

    /// Too few or odd sources must be an answer, not a panic.
    #[test]
    fn too_few_or_odd_sources() {
        let row = row(3, 2);
        let mut out = vec![0; BLOCKS * BLOCK_SIZE];
        let two: ShardSet = [1, 4].into_iter().collect();
        let error = remake(&row.codec, 0, &row.sources(two), &mut out).expect_err("two of three");
        assert!(matches!(error, RowTrouble::Code(ErasureError::NotEnoughShards { .. })), "{error}");
        let three: ShardSet = [1, 2, 4].into_iter().collect();
        let mut sources = row.sources(three);
        sources[2].row_crcs = &[];
        assert_eq!(remake(&row.codec, 0, &sources, &mut out), Err(RowTrouble::Malformed { shard: 4 }));
        let mut sources = row.sources(three);
        sources[0].data = &sources[0].data[..4096];
        assert_eq!(remake(&row.codec, 0, &sources, &mut out), Err(RowTrouble::Malformed { shard: 1 }));
    }
}
