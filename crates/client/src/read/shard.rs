//! Asking one member for a range of its shard. Invariant: bytes are handed on only after every block of them matched its
//! CRC; a bad block is reported to the member that served it.
use super::row_read::ShardBytes;
use crate::cluster::Cluster;
use crate::net::NetError;
use cairn_rpc::{CallOptions, Payload};
use cairn_types::{BLOCK_SIZE, ChunkId, crc32c_blocks};
use cairn_wire::Opcode;
use cairn_wire::common::Empty;
use cairn_wire::data::{ChunkHeader, ReadRequest, ReadResponse, ReportBadBlockRequest};
use std::sync::Arc;
use std::time::Duration;

/// Deadline of one request to one member.
const READ_DEADLINE: Duration = Duration::from_secs(5);
const REPORT_DEADLINE: Duration = Duration::from_secs(2);

/// A range of a shard, in whole blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ShardRange {
    pub chunk: ChunkId,
    pub disk: u32,
    pub offset: u64,
    pub length: u64,
    /// Of a parity shard: its k, to ask for the checksums of its rows.
    pub row_crcs: Option<usize>,
}

/// Reads it from its member.
pub(crate) async fn read_shard(cluster: &Arc<Cluster>, range: ShardRange) -> std::result::Result<ShardBytes, NetError> {
    let address = cluster.disk_address(range.disk)?;
    let ShardRange { chunk, disk, offset, length, row_crcs } = range;
    let header = ChunkHeader { disk, pg: chunk.pg.0, index: chunk.index, epoch: 0, session: 0 };
    let short = u32::try_from(length).map_err(|_| NetError::NotSent("the range is too long".into()))?;
    let chunk_header = Some(header);
    let request =
        ReadRequest { chunk: chunk_header, offset, length: short, creation_epoch: 0, row_crcs: row_crcs.is_some() };
    let asked = cluster.clock.now();
    let options = CallOptions::new(READ_DEADLINE).bulk().stream(cluster.rng.u64() as u32);
    let call = cluster.net.call_with(&address, Opcode::Read, &request, Payload::None, options);
    let (answer, payload): (ReadResponse, _) = call.await?;
    cluster.shards.health.answered(disk, length, cluster.clock.now().since(asked));
    let payload = payload.map(|p| p.freeze()).unwrap_or_default();
    match check(range, &answer, &payload) {
        Ok(()) => Ok(ShardBytes { data: payload, row_crcs: answer.row_crcs }),
        Err(Bad::Shape(text)) => Err(NetError::Unknown(text)),
        Err(Bad::Block(block)) => {
            tracing::warn!(%chunk, disk, block, "a member served a block that does not match its checksum");
            report_bad_block(cluster, address, header, block);
            Err(NetError::Unknown(format!("block {block} of {chunk} does not match its checksum")))
        }
    }
}

/// Tells the member that served it; it heals the block.
fn report_bad_block(cluster: &Cluster, address: String, header: ChunkHeader, block: u64) {
    let report = ReportBadBlockRequest { chunk: Some(header), block };
    let net = cluster.net.clone();
    tokio::spawn(async move {
        let answer = net.call::<Empty>(&address, Opcode::ReportBadBlock, &report, REPORT_DEADLINE).await;
        if let Err(error) = answer {
            tracing::warn!(error = error.text(), "the report of a bad block was not taken");
        }
    });
}

#[derive(PartialEq, Eq, Debug)]
enum Bad {
    Shape(String),
    /// Index of the block in the shard.
    Block(u64),
}

/// Exactly the blocks asked for, each matching its CRC, with the checksums of their rows if they were asked for.
fn check(range: ShardRange, answer: &ReadResponse, payload: &[u8]) -> std::result::Result<(), Bad> {
    let blocks = payload.len() / BLOCK_SIZE;
    let covers = answer.first_block_offset == range.offset
        && payload.len() as u64 == range.length
        && payload.len().is_multiple_of(BLOCK_SIZE)
        && answer.crcs.len() == blocks * 4
        && range.row_crcs.is_none_or(|k| answer.row_crcs.len() == blocks * k * 4);
    if !covers {
        return Err(Bad::Shape(format!("the answer does not cover {} bytes at {}", range.length, range.offset)));
    }
    let mut found = Vec::with_capacity(blocks);
    crc32c_blocks(payload, &mut found);
    let bad = found.iter().zip(answer.crcs.chunks_exact(4)).position(|(found, crc)| found.to_le_bytes() != crc);
    bad.map_or(Ok(()), |block| Err(Bad::Block(range.offset / BLOCK_SIZE as u64 + block as u64)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::append::segment::block_crcs;
    use cairn_types::PgId;

    /// Other bytes than the shard's would go into the file, or into what is decoded from them.
    #[test]
    fn only_complete_and_matching_blocks_are_taken() {
        let chunk = ChunkId { pg: PgId(1), index: 1 };
        let range = ShardRange { chunk, disk: 3, offset: 4096, length: 8192, row_crcs: Some(3) };
        let mut data = vec![3u8; 8192];
        let good = ReadResponse { crcs: block_crcs(&data), first_block_offset: 4096, row_crcs: vec![0; 2 * 3 * 4] };
        assert_eq!(check(range, &good, &data), Ok(()));
        let moved = ReadResponse { first_block_offset: 0, ..good.clone() };
        let bare = ReadResponse { row_crcs: Vec::new(), ..good.clone() };
        assert!(matches!(check(range, &moved, &data), Err(Bad::Shape(_))));
        assert!(matches!(check(range, &bare, &data), Err(Bad::Shape(_))));
        assert!(matches!(check(range, &good, &data[..4096]), Err(Bad::Shape(_))));
        data[5000] ^= 1;
        assert_eq!(check(range, &good, &data), Err(Bad::Block(2)));
    }
}
