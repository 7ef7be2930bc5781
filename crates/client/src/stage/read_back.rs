//! Reading back what was written anew, from the disks of all members, before anything that it replaces is freed.
//!
//! Invariants: of rows every shard is read, each block matches the checksum that its member keeps, the checksums that
//! each parity shard keeps of the data are those of the data, and parity computed from the data is the parity that was
//! read. Of copies each one is read and they are equal. What a member has not got, or does not answer, fails the check:
//! nothing is replaced by what is not complete. Bounds: [`SHARD_BYTES`] of each shard at a time. Not here: what happens
//! then (`moving`).
use crate::cluster::Cluster;
use crate::error::{ClientError, Result};
use crate::read::row_read::ShardBytes;
use crate::read::shard::{ShardRange, read_shard};
use crate::view::PgView;
use cairn_env::buf::SharedBuf;
use cairn_erasure::Codec;
use cairn_types::{BLOCK_SIZE, ChunkId, ExtentKind, MemberState, PgId, Stripe, crc32c_blocks};
use cairn_wire::common::Extent;
use std::ops::Range;
use std::sync::Arc;
use tokio::task::JoinSet;

/// Bytes of each shard that are read and compared together.
const SHARD_BYTES: u64 = 512 << 10;
const BLOCK: u64 = BLOCK_SIZE as u64;

/// Fails unless all of these extents, which nobody overwrites, are on the disks of all members of their groups.
pub(crate) async fn check_at_rest(cluster: &Arc<Cluster>, extents: &[Extent]) -> Result<()> {
    for extent in extents {
        let chunk = ChunkId { pg: PgId(extent.pg), index: extent.index };
        let (from, to) = (extent.chunk_offset, extent.chunk_offset + extent.length);
        match ExtentKind::from_flags(extent.flags) {
            Some(ExtentKind::Erasure(stripe)) => {
                let rows = from / stripe.row() * stripe.unit()..to.div_ceil(stripe.row()) * stripe.unit();
                for part in parts(rows) {
                    check_rows(cluster, chunk, stripe, part).await?;
                }
            }
            Some(ExtentKind::Plain) => {
                // What follows in the last block may be somebody else's, who is writing it.
                for part in parts(from / BLOCK * BLOCK..to) {
                    check_copies(cluster, chunk, part).await?;
                }
            }
            _ => return Err(unsound(chunk, "it is of a kind that is not encoded")),
        }
    }
    Ok(())
}

fn parts(whole: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let to = whole.end;
    whole.step_by(SHARD_BYTES as usize).map(move |from| from..to.min(from + SHARD_BYTES))
}

fn unsound(chunk: ChunkId, why: impl Into<String>) -> ClientError {
    ClientError::NotAtRest { what: chunk.to_string(), detail: why.into() }
}

async fn check_rows(cluster: &Arc<Cluster>, chunk: ChunkId, stripe: Stripe, part: Range<u64>) -> Result<()> {
    let shards = read_all(cluster, chunk, Some(usize::from(stripe.columns())), &part).await?;
    let scheme = group(cluster, chunk)?.scheme;
    let codec = Codec::for_scheme(scheme).map_err(|error| unsound(chunk, error.to_string()))?;
    if codec.shards() != shards.len() || codec.k() != usize::from(stripe.columns()) {
        return Err(unsound(chunk, "its group is of another scheme"));
    }
    compare_rows(&codec, &shards).map_err(|why| unsound(chunk, why))
}

/// Whether data and parity of the same rows belong together.
fn compare_rows(codec: &Codec, shards: &[ShardBytes]) -> std::result::Result<(), String> {
    let (data, parity) = shards.split_at(codec.k());
    let sums: Vec<Vec<u32>> = data.iter().map(|shard| sums_of(&shard.data)).collect();
    let blocks = sums.first().map_or(0, Vec::len);
    let rows: Vec<u8> =
        (0..blocks).flat_map(|block| sums.iter().map(move |of| of[block])).flat_map(u32::to_le_bytes).collect();
    if let Some(number) = parity.iter().position(|shard| shard.row_crcs != rows) {
        return Err(format!("parity shard {number} has other checksums of the data"));
    }
    let data: Vec<&[u8]> = data.iter().map(|shard| &shard.data[..]).collect();
    let mut computed: Vec<Vec<u8>> = parity.iter().map(|shard| vec![0; shard.data.len()]).collect();
    let mut outputs: Vec<&mut [u8]> = computed.iter_mut().map(Vec::as_mut_slice).collect();
    codec.encode(&data, &mut outputs).map_err(|error| error.to_string())?;
    match computed.iter().zip(parity).position(|(computed, read)| computed[..] != read.data[..]) {
        Some(number) => Err(format!("parity shard {number} is not that of the data")),
        None => Ok(()),
    }
}

fn sums_of(data: &SharedBuf) -> Vec<u32> {
    let mut sums = Vec::with_capacity(data.len() / BLOCK_SIZE);
    crc32c_blocks(data, &mut sums);
    sums
}

async fn check_copies(cluster: &Arc<Cluster>, chunk: ChunkId, part: Range<u64>) -> Result<()> {
    let copies = read_all(cluster, chunk, None, &part).await?;
    let length = (part.end - part.start) as usize;
    match copies.windows(2).all(|pair| pair[0].data[..length] == pair[1].data[..length]) {
        true => Ok(()),
        false => Err(unsound(chunk, "its copies are not equal")),
    }
}

fn group(cluster: &Cluster, chunk: ChunkId) -> Result<PgView> {
    let view = cluster.view();
    view.pgs.get(&chunk.pg.0).cloned().ok_or_else(|| unsound(chunk, "the map has no such group"))
}

/// The same range of all members; `k`: they are shards, of which the first k have data.
async fn read_all(
    cluster: &Arc<Cluster>,
    chunk: ChunkId,
    k: Option<usize>,
    part: &Range<u64>,
) -> Result<Vec<ShardBytes>> {
    let group = group(cluster, chunk)?;
    let (members, complete) = (group.scheme.members(), |state: &MemberState| *state == MemberState::Serving);
    if group.members.len() < members || !group.members[..members].iter().all(|(_, state)| complete(state)) {
        return Err(unsound(chunk, format!("{} is not complete now", group.id)));
    }
    let mut tasks = JoinSet::new();
    for (number, (disk, _)) in group.members.iter().take(members).enumerate() {
        let range = ShardRange {
            chunk,
            shard: k.map(|_| number),
            disk: *disk,
            offset: part.start,
            length: part.end - part.start,
            row_crcs: k.filter(|k| number >= *k),
            made: None,
            at_rest: true,
        };
        let cluster = cluster.clone();
        tasks.spawn(async move { (number, read_shard(&cluster, range).await) });
    }
    let mut found: Vec<Option<ShardBytes>> = vec![None; members];
    while let Some(ended) = tasks.join_next().await {
        let (number, outcome) = ended.map_err(|error| unsound(chunk, error.to_string()))?;
        let bytes = outcome.map_err(|error| unsound(chunk, format!("member {number}: {}", error.text())))?;
        found[number] = Some(bytes);
    }
    found.into_iter().collect::<Option<_>>().ok_or_else(|| unsound(chunk, "not all members answered"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shards(codec: &Codec, seed: u8) -> Vec<ShardBytes> {
        let data: Vec<Vec<u8>> =
            (0..codec.k()).map(|i| vec![seed.wrapping_mul(31) ^ i as u8; 2 * BLOCK_SIZE]).collect();
        let mut parity = vec![vec![0; 2 * BLOCK_SIZE]; codec.m()];
        let mut outputs: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
        codec.encode(&data, &mut outputs).expect("encoded");
        let sums: Vec<Vec<u32>> = data.iter().map(|d| sums_of(&SharedBuf::from(d.clone()))).collect();
        let rows: Vec<u8> =
            (0..2).flat_map(|block| sums.iter().map(move |of| of[block])).flat_map(u32::to_le_bytes).collect();
        let data = data.into_iter().map(|d| ShardBytes { data: d.into(), row_crcs: Vec::new() });
        data.chain(parity.into_iter().map(|p| ShardBytes { data: p.into(), row_crcs: rows.clone() })).collect()
    }

    /// Copies would be given up for rows whose parity restores something else.
    #[test]
    fn parity_of_other_data_is_found() {
        let codec = Codec::new(3, 2).expect("a code");
        let (good, other) = (shards(&codec, 1), shards(&codec, 2));
        assert_eq!(compare_rows(&codec, &good), Ok(()));
        for number in 0..5 {
            let mut mixed = good.clone();
            mixed[number] = other[number].clone();
            assert!(compare_rows(&codec, &mixed).is_err(), "shard {number} of other rows");
            if number >= 3 {
                mixed[number].row_crcs.clone_from(&good[number].row_crcs);
                let why = compare_rows(&codec, &mixed).expect_err("other parity");
                assert!(why.contains(&format!("parity shard {}", number - 3)), "{why}");
            }
        }
    }

    /// Part of what was written would never be looked at.
    #[test]
    fn parts_cover_all() {
        let all: Vec<Range<u64>> = parts(4096..4096 + 2 * SHARD_BYTES + 8192).collect();
        assert_eq!(all.len(), 3);
        assert!(all[0].start == 4096 && all.windows(2).all(|pair| pair[0].end == pair[1].start));
        assert_eq!(all[2].end, 4096 + 2 * SHARD_BYTES + 8192);
    }
}
