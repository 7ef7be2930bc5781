//! Computing what goes to each shard: the data as it is, the parity, and the checksums of both.
//!
//! Pure computation for a thread that may be busy for a millisecond. Each block is summed once: the checksums of data
//! blocks go with the data and, row by row, with every parity shard. A row is encoded and summed while it is in cache.
use crate::append::part::Cut;
use cairn_env::buf::{AlignedBuf, BufPool, SharedBuf};
use cairn_erasure::{Codec, ErasureError};
use cairn_types::{BLOCK_SIZE, Stripe, crc32c_blocks};

/// A codec, the geometry, and where parity buffers come from.
#[derive(Clone)]
pub(crate) struct Encoder {
    pub codec: Codec,
    pub stripe: Stripe,
    pub pool: BufPool,
}

impl Encoder {
    /// What each shard gets of whole rows: their units in the order of the file.
    pub fn encode(&self, units: &[SharedBuf]) -> std::result::Result<Vec<Cut>, ErasureError> {
        let (k, unit) = (usize::from(self.stripe.columns()), self.stripe.unit() as usize);
        let rows = units.len() / k;
        let mut parity: Vec<AlignedBuf> = (0..self.codec.m()).map(|_| self.buffer(rows * unit)).collect();
        let mut crcs: Vec<Vec<u32>> = vec![Vec::with_capacity(rows * unit / BLOCK_SIZE); self.codec.shards()];
        for (row, data) in units.chunks_exact(k).enumerate() {
            let at = row * unit;
            let mut outputs: Vec<&mut [u8]> = parity.iter_mut().map(|p| &mut p[at..at + unit]).collect();
            self.codec.encode(data, &mut outputs)?;
            for (crcs, data) in crcs.iter_mut().zip(data.iter().map(|d| &d[..]).chain(outputs.iter().map(|p| &p[..]))) {
                crc32c_blocks(data, crcs);
            }
        }
        let row_crcs = interleave(&crcs[..k]);
        let mut parity = parity.into_iter();
        let cut = |(shard, crcs): (usize, &Vec<u32>)| {
            let (parts, row_crcs): (Vec<SharedBuf>, _) = match shard < k {
                true => (units.iter().skip(shard).step_by(k).cloned().collect(), Vec::new()),
                false => (parity.next().map(AlignedBuf::freeze).into_iter().collect(), row_crcs.clone()),
            };
            Cut { parts, crcs: on_the_wire(crcs), row_crcs }
        };
        Ok(crcs.iter().enumerate().map(cut).collect())
    }

    /// A buffer whose bytes are all written by the encoding.
    fn buffer(&self, length: usize) -> AlignedBuf {
        // The window bounds how many there are; the pool only keeps their pages.
        let mut buffer = self.pool.try_take(length).unwrap_or_else(|_| AlignedBuf::unpooled(length));
        buffer.advance(length);
        buffer
    }
}

fn on_the_wire(crcs: &[u32]) -> Vec<u8> {
    crcs.iter().flat_map(|crc| crc.to_le_bytes()).collect()
}

/// Checksums by column become checksums by block: those of the k columns' block 0, of their block 1, …
fn interleave(columns: &[Vec<u32>]) -> Vec<u8> {
    let blocks = columns.first().map_or(0, Vec::len);
    let mut out = Vec::with_capacity(blocks * 4 * columns.len());
    for block in 0..blocks {
        for column in columns {
            out.extend_from_slice(&column[block].to_le_bytes());
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::append::segment::block_crcs;
    use cairn_erasure::ShardSet;
    use cairn_types::crc32c;

    /// Parity or checksums that do not belong to the data would make a degraded read fail or, worse, lie.
    #[test]
    fn shards_hold_the_file_and_any_k_of_them_give_it_back() {
        let stripe = Stripe::new(3, 8192).expect("valid");
        let codec = Codec::new(3, 2).expect("codec");
        let encoder = Encoder { codec: codec.clone(), stripe, pool: BufPool::new(1 << 20) };
        let file: Vec<u8> = (0..stripe.row() as u32 * 4).map(|i| (i.wrapping_mul(i) >> 7) as u8).collect();
        let units: Vec<SharedBuf> = file.chunks(8192).map(|u| SharedBuf::from_owner(u.to_vec())).collect();
        let encoded = encoder.encode(&units).expect("encoded");
        let shards: Vec<Vec<u8>> = encoded.iter().map(|s| s.parts.iter().flat_map(|p| p.to_vec()).collect()).collect();
        for (shard, data) in encoded.iter().zip(&shards) {
            assert_eq!(shard.crcs, block_crcs(data));
        }
        let at = |logical: u64| {
            let (column, offset) = stripe.locate(logical);
            shards[usize::from(column)][offset as usize]
        };
        assert!((0..file.len()).step_by(97).all(|i| at(i as u64) == file[i]));
        let plan = codec.decode_plan([1, 3, 4].into_iter().collect::<ShardSet>(), &[0, 2]).expect("plan");
        let sources: Vec<&[u8]> = plan.sources().iter().map(|s| &shards[*s][..]).collect();
        let mut outputs = vec![vec![0u8; shards[0].len()]; 2];
        plan.run(&sources, &mut outputs).expect("decoded");
        assert!(outputs[0] == shards[0] && outputs[1] == shards[2]);
        let row_crcs = &encoded[4].row_crcs;
        assert_eq!(row_crcs.len(), encoded[4].crcs.len() * 3);
        let (block, column) = (5, 2);
        let crc = crc32c(&shards[column][block * BLOCK_SIZE..][..BLOCK_SIZE]).to_le_bytes();
        assert_eq!(row_crcs[(block * 3 + column) * 4..][..4], crc);
        assert!(encoded[0].row_crcs.is_empty());
    }
}
