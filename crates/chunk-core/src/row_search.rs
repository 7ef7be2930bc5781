//! [`RowSearch`]: blocks of one shard made of whichever k sources can be proven to belong together.
//!
//! Invariant: as long as k sources of a row are what was written, and their checksums of rows too, it finds such k: it
//! tries every choice of k. Not here: what a proof is ([`crate::row_decode`]), and who is asked.

use cairn_erasure::{Codec, ShardSet};

use crate::row_decode::{Remade, RowTrouble, ShardBlocks, remake};

/// Makes a shard's blocks row by row, and begins with the choice of sources that was right before.
#[derive(Debug)]
pub struct RowSearch<'a> {
    codec: &'a Codec,
    wanted: usize,
    right: ShardSet,
}

impl<'a> RowSearch<'a> {
    /// For blocks of shard `wanted`.
    pub fn new(codec: &'a Codec, wanted: usize) -> Self {
        Self { codec, wanted, right: ShardSet::EMPTY }
    }

    /// Makes one block, or a few of the same fate, of any k of the sources. If no choice of k can be proven, the error
    /// is that of the first one.
    pub fn remake(&mut self, sources: &[ShardBlocks<'_>], out: &mut [u8]) -> Result<Remade, RowTrouble> {
        let k = self.codec.k();
        let right: Vec<_> = sources.iter().filter(|source| self.right.contains(source.shard)).copied().collect();
        if right.len() == k
            && let Ok(remade) = remake(self.codec, self.wanted, &right, out)
        {
            return Ok(remade);
        }
        let mut first = None;
        let mut choice: Vec<usize> = (0..k.min(sources.len())).collect();
        loop {
            let chosen: Vec<_> = choice.iter().map(|i| sources[*i]).collect();
            match remake(self.codec, self.wanted, &chosen, out) {
                Ok(remade) => {
                    self.right = chosen.iter().map(|source| source.shard).collect();
                    return Ok(remade);
                }
                Err(trouble) => first = first.or(Some(trouble)),
            }
            if !advance(&mut choice, sources.len()) {
                return Err(first.unwrap_or(RowTrouble::Malformed { shard: self.wanted }));
            }
        }
    }
}

/// The next choice of as many numbers below `of`, in order; `false` after the last.
fn advance(choice: &mut [usize], of: usize) -> bool {
    let count = choice.len();
    let Some(at) = (0..count).rev().find(|at| choice[*at] + (count - at) < of) else { return false };
    let from = choice[at] + 1;
    choice[at..].iter_mut().zip(from..).for_each(|(number, next)| *number = next);
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_types::{BLOCK_SIZE, crc32c};

    /// Some choice would never be tried, or one twice.
    #[test]
    fn every_choice_comes_once() {
        for (count, of, wanted) in [(3, 5, 10), (6, 8, 28), (1, 4, 4), (4, 4, 1), (12, 15, 455)] {
            let mut choice: Vec<usize> = (0..count).collect();
            let mut seen = std::collections::BTreeSet::from([choice.clone()]);
            while advance(&mut choice, of) {
                assert!(choice.is_sorted() && choice.last().is_some_and(|last| *last < of));
                assert!(seen.insert(choice.clone()), "{choice:?} twice");
            }
            assert_eq!(seen.len(), wanted, "{count} of {of}");
        }
    }

    /// Shards of a row, some of which are bad under a checksum of their own.
    struct Row {
        shards: Vec<Vec<u8>>,
        crcs: Vec<Vec<u32>>,
        rows: Vec<Vec<u32>>,
    }

    fn row(codec: &Codec) -> Row {
        let (k, m) = (codec.k(), codec.m());
        let byte = |shard: usize, i: usize| (shard * 41 + i * 7 + i / 97) as u8;
        let mut shards: Vec<Vec<u8>> = (0..k).map(|s| (0..BLOCK_SIZE).map(|i| byte(s, i)).collect()).collect();
        let mut parity = vec![vec![0; BLOCK_SIZE]; m];
        codec.encode(&shards, &mut parity).expect("encoded");
        shards.extend(parity);
        let crcs: Vec<Vec<u32>> = shards.iter().map(|shard| vec![crc32c(shard)]).collect();
        let of_row: Vec<u32> = crcs[..k].iter().map(|crc| crc[0]).collect();
        let rows = (0..k + m).map(|shard| if shard < k { Vec::new() } else { of_row.clone() }).collect();
        Row { shards, crcs, rows }
    }

    impl Row {
        fn sources(&self, wanted: usize) -> Vec<ShardBlocks<'_>> {
            let of = |shard: usize| ShardBlocks {
                shard,
                data: &self.shards[shard],
                crcs: &self.crcs[shard],
                row_crcs: &self.rows[shard],
            };
            (0..self.shards.len()).filter(|shard| *shard != wanted).map(of).collect()
        }

        /// Other bytes, under the checksum of those bytes.
        fn spoil(&mut self, shard: usize) {
            self.shards[shard][99] ^= 0x20;
            self.crcs[shard] = vec![crc32c(&self.shards[shard])];
        }
    }

    /// A row would count as lost although k shards of it are as they were written.
    #[test]
    fn any_k_good_sources_are_found() {
        let mut searches = 0;
        for (k, m) in [(3, 2), (6, 3)] {
            let codec = Codec::new(k, m).expect("a code");
            let good = row(&codec);
            for wanted in 0..k {
                for bits in 0u32..1 << (k + m) {
                    let bad = ShardSet::from_bits(bits);
                    if bad.len() > m - 1 || bad.contains(wanted) {
                        continue;
                    }
                    let mut row = row(&codec);
                    for shard in bad.iter() {
                        // A parity shard is wrong about the row, a data shard about itself.
                        if shard < k { row.spoil(shard) } else { row.rows[shard][wanted] ^= 1 }
                    }
                    let mut search = RowSearch::new(&codec, wanted);
                    let mut out = vec![0; BLOCK_SIZE];
                    for _ in 0..2 {
                        let remade = search.remake(&row.sources(wanted), &mut out).expect("enough are good");
                        assert!(out == good.shards[wanted], "{wanted} without {bad}");
                        assert_eq!(remade.crcs, good.crcs[wanted]);
                    }
                    searches += 1;
                }
            }
        }
        assert!(searches > 200, "{searches}");
    }

    /// What nobody can prove would be answered, or too few sources be a panic.
    #[test]
    fn without_k_good_sources_nothing_is_made() {
        let codec = Codec::new(3, 2).expect("a code");
        let mut row = row(&codec);
        row.spoil(0);
        row.spoil(1);
        let mut out = vec![0; BLOCK_SIZE];
        let error = RowSearch::new(&codec, 2).remake(&row.sources(2), &mut out).expect_err("two of four are wrong");
        assert!(matches!(error, RowTrouble::Disagree { .. } | RowTrouble::Mismatch { .. }), "{error}");
        let two = &row.sources(2)[..2];
        assert!(matches!(RowSearch::new(&codec, 2).remake(two, &mut out), Err(RowTrouble::Code(_))));
    }
}
