//! Computing lost columns from other shards. Invariant: a decoded block is handed on only after it matched the checksum
//! that a parity shard keeps for it; nothing is made up.
use super::row_read::ShardBytes;
use cairn_env::buf::{AlignedBuf, BufPool, SharedBuf};
use cairn_erasure::{Codec, ShardSet};
use cairn_types::{BLOCK_SIZE, crc32c};

/// What is computed from what.
pub(crate) struct Decoding {
    pub codec: Codec,
    pub pool: BufPool,
    /// Shards that are there, with their numbers.
    pub present: Vec<(usize, ShardBytes)>,
    pub missing: Vec<usize>,
    pub length: usize,
}

/// The missing columns in their order, or what is wrong and the parity shard that it was noticed with.
pub(crate) type Decoded = std::result::Result<Vec<SharedBuf>, (String, Option<usize>)>;

impl Decoding {
    /// For a thread that may be busy for a millisecond.
    pub(crate) fn run(&self) -> Decoded {
        let present: ShardSet = self.present.iter().map(|(shard, _)| *shard).collect();
        let plan = self.codec.decode_plan(present, &self.missing).map_err(|e| (e.to_string(), None))?;
        let bytes_of = |shard: &usize| self.present.iter().find(|(s, _)| s == shard).map(|(_, bytes)| bytes);
        let used: Vec<(usize, &ShardBytes)> =
            plan.sources().iter().filter_map(|shard| Some((*shard, bytes_of(shard)?))).collect();
        let sources: Vec<&[u8]> =
            used.iter().map(|(_, bytes)| &bytes.data[..self.length.min(bytes.data.len())]).collect();
        let mut outputs: Vec<AlignedBuf> = self.missing.iter().map(|_| self.buffer()).collect();
        plan.run(&sources, &mut outputs).map_err(|e| (e.to_string(), None))?;
        let Some((parity, keeper)) = used.iter().find(|(shard, _)| *shard >= self.codec.k()) else {
            return Err(("no parity shard is there to check what was decoded".to_owned(), None));
        };
        for (column, output) in self.missing.iter().zip(&outputs) {
            if let Some(block) = self.bad_block(*column, output, &keeper.row_crcs) {
                let text = format!("block {block} of shard {column} does not match its checksum after decoding");
                return Err((text, Some(*parity)));
            }
        }
        Ok(outputs.into_iter().map(AlignedBuf::freeze).collect())
    }
    fn buffer(&self) -> AlignedBuf {
        let mut buffer = self.pool.try_take(self.length).unwrap_or_else(|_| AlignedBuf::unpooled(self.length));
        buffer.advance(self.length);
        buffer
    }
    /// First block that does not match, counted from the start of the range.
    fn bad_block(&self, column: usize, data: &[u8], row_crcs: &[u8]) -> Option<usize> {
        let k = self.codec.k();
        data.chunks_exact(BLOCK_SIZE).enumerate().position(|(block, bytes)| {
            let at = (block * k + column) * 4;
            row_crcs.get(at..at + 4) != Some(&crc32c(bytes).to_le_bytes()[..])
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Wrong bytes would be handed on as if they were the file's.
    #[test]
    fn only_what_matches_its_checksum_comes_out() {
        let codec = Codec::new(3, 2).expect("codec");
        let length = 2 * BLOCK_SIZE;
        let data: Vec<Vec<u8>> =
            (0..3u8).map(|c| (0..length).map(|i| (i as u8).wrapping_mul(c + 3)).collect()).collect();
        let mut parity = vec![vec![0u8; length]; 2];
        codec.encode(&data, &mut parity).expect("encoded");
        let mut row_crcs = Vec::new();
        for block in 0..2 {
            for column in &data {
                let crc = crc32c(&column[block * BLOCK_SIZE..][..BLOCK_SIZE]);
                row_crcs.extend_from_slice(&crc.to_le_bytes());
            }
        }
        let shard = |bytes: &[u8], row_crcs: &[u8]| ShardBytes {
            data: SharedBuf::from_owner(bytes.to_vec()),
            row_crcs: row_crcs.to_vec(),
        };
        let mut decoding = Decoding {
            codec,
            pool: BufPool::new(1 << 20),
            present: vec![
                (1, shard(&data[1], &[])),
                (3, shard(&parity[0], &row_crcs)),
                (4, shard(&parity[1], &row_crcs)),
            ],
            missing: vec![0, 2],
            length,
        };
        let decoded = decoding.run().expect("decoded");
        assert!(decoded[0][..] == data[0][..] && decoded[1][..] == data[2][..]);
        let mut wrong = row_crcs.clone();
        wrong[(3 + 2) * 4] ^= 1;
        decoding.present[1].1.row_crcs = wrong;
        assert!(decoding.run().is_err_and(|(text, parity)| text.contains("block 1 of shard 2") && parity == Some(3)));
        decoding.present[1].1.row_crcs = Vec::new();
        assert!(decoding.run().is_err(), "without checksums nothing is handed on");
        decoding.present.pop();
        assert!(decoding.run().is_err());
    }
}
