//! Asking one member for a range of its shard. Invariant: bytes are handed on only after every block of them matched
//! its CRC; a bad block is reported to the member that served it.
use super::row_read::ShardBytes;
use crate::cluster::Cluster;
use crate::net::NetError;
use cairn_env::buf::SharedBuf;
use cairn_rpc::{CallOptions, Payload};
use cairn_types::{BLOCK_SIZE, ChunkId, ErrorCode, crc32c_blocks};
use cairn_wire::Opcode;
use cairn_wire::common::Empty;
use cairn_wire::data::{ChunkHeader, ReadRequest, ReadResponse, ReportBadBlockRequest};
use std::sync::Arc;
use std::time::Duration;

/// Deadline of one request to one member.
const READ_DEADLINE: Duration = Duration::from_secs(5);
const REPORT_DEADLINE: Duration = Duration::from_secs(2);
/// Bad blocks of one answer that are reported.
const REPORTS_MAX: usize = 16;

/// A range of a shard, in whole blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ShardRange {
    pub chunk: ChunkId,
    /// Which one (`None`: it is a copy), and the disk that has it, as far as known here.
    pub shard: Option<usize>,
    pub disk: u32,
    pub offset: u64,
    pub length: u64,
    /// Of a parity shard: its k, to ask for the checksums of its rows.
    pub row_crcs: Option<usize>,
    /// To a member that catches up: the epoch in which the chunk was made, as serving members say.
    pub made: Option<u64>,
    /// What the disk has, past what is in memory.
    pub at_rest: bool,
}

/// Why a member gave no bytes of its shard.
#[derive(Debug)]
pub(crate) enum ShardError {
    Net(NetError),
    /// It answered with other bytes than the shard's, or not with all of them.
    Damaged(String),
}

impl ShardError {
    /// Of the bytes, not of the member: it may have others.
    pub(crate) fn is_damage(&self) -> bool {
        let of_bytes = |code| matches!(code, ErrorCode::ChecksumMismatch | ErrorCode::Missing);
        matches!(self, ShardError::Damaged(_))
            || matches!(self, ShardError::Net(NetError::Remote(error)) if of_bytes(error.code))
    }
    /// Its bytes at rest do not match their checksums, says the member.
    pub(crate) fn is_rotten(&self) -> bool {
        matches!(self, ShardError::Net(NetError::Remote(error)) if error.code == ErrorCode::ChecksumMismatch)
    }
    pub(crate) fn text(&self) -> String {
        match self {
            ShardError::Net(error) => error.text(),
            ShardError::Damaged(text) => text.clone(),
        }
    }
}

/// An answer of the right shape; its blocks are yet to be looked at.
struct Fetched {
    answer: ReadResponse,
    payload: SharedBuf,
    address: String,
    header: ChunkHeader,
}

/// Blocks of a range with their checksums, and which of them do not match theirs, by position.
pub(crate) struct GoodBlocks {
    pub data: SharedBuf,
    pub crcs: Vec<u32>,
    pub row_crcs: Vec<u8>,
    pub bad: Vec<usize>,
    /// The epoch in which the chunk was made; 0: not said.
    pub made: u64,
}

/// Reads it from its member; all of it is good, or it is an error.
pub(crate) async fn read_shard(
    cluster: &Arc<Cluster>,
    range: ShardRange,
) -> std::result::Result<ShardBytes, ShardError> {
    let fetched = fetch(cluster, range).await?;
    let (_, bad) = bad_blocks(&fetched.answer, &fetched.payload);
    match bad.first() {
        None => Ok(ShardBytes { data: fetched.payload, row_crcs: fetched.answer.row_crcs }),
        Some(first) => {
            let block = report(cluster, range, &fetched, *first);
            Err(ShardError::Damaged(format!("block {block} of {} does not match its checksum", range.chunk)))
        }
    }
}

/// Reads it from its member and takes what is good of it.
pub(crate) async fn read_good_blocks(
    cluster: &Arc<Cluster>,
    range: ShardRange,
) -> std::result::Result<GoodBlocks, ShardError> {
    let fetched = fetch(cluster, range).await?;
    let (crcs, bad) = bad_blocks(&fetched.answer, &fetched.payload);
    for position in bad.iter().take(REPORTS_MAX) {
        report(cluster, range, &fetched, *position);
    }
    let made = fetched.answer.creation_epoch;
    Ok(GoodBlocks { data: fetched.payload, crcs, row_crcs: fetched.answer.row_crcs, bad, made })
}

async fn fetch(cluster: &Arc<Cluster>, range: ShardRange) -> std::result::Result<Fetched, ShardError> {
    let address = cluster.disk_address(range.disk).map_err(ShardError::Net)?;
    let ShardRange { chunk, shard, disk, offset, length, row_crcs, made, at_rest } = range;
    let header = ChunkHeader { disk, pg: chunk.pg.0, index: chunk.index, epoch: 0, session: 0 };
    let too_long = |_| ShardError::Net(NetError::NotSent("the range is too long".into()));
    let short = u32::try_from(length).map_err(too_long)?;
    let request = ReadRequest {
        chunk: Some(header),
        offset,
        length: short,
        creation_epoch: made.unwrap_or(0),
        row_crcs: row_crcs.is_some(),
        catching_up: made.is_some(),
        // Members change without this client: the disk may have another shard by now, with checksums that match.
        shard: shard.map_or(0, |shard| shard as u32 + 1),
        // What lies at a place of a shard is never replaced.
        sure: false,
        at_rest,
        of_check: false,
        sums: false,
    };
    let asked = cluster.clock.now();
    let kept = cluster.protection(chunk);
    let options = CallOptions::new(READ_DEADLINE).bulk().spread(cluster.rng.u64() as u32).protected(kept);
    let call = cluster.net.call_with(&address, Opcode::Read, &request, Payload::None, options);
    let (answer, payload): (ReadResponse, _) = call.await.map_err(ShardError::Net)?;
    cluster.shards.health.answered(disk, length, cluster.clock.now().since(asked));
    let payload = payload.map(|p| p.freeze()).unwrap_or_default();
    if !covers(range, &answer, &payload) {
        return Err(ShardError::Damaged(format!("the answer does not cover {length} bytes at {offset}")));
    }
    Ok(Fetched { answer, payload, address, header })
}

/// Reports a block by its position in the range; gives its index in the shard.
fn report(cluster: &Cluster, range: ShardRange, fetched: &Fetched, position: usize) -> u64 {
    let (chunk, disk, block) = (range.chunk, range.disk, range.offset / BLOCK_SIZE as u64 + position as u64);
    tracing::warn!(%chunk, disk, block, "a member served a block that does not match its checksum");
    report_bad_block(cluster, fetched.address.clone(), fetched.header, block);
    block
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

/// Exactly the blocks asked for, with the checksums of their rows if they were asked for.
fn covers(range: ShardRange, answer: &ReadResponse, payload: &[u8]) -> bool {
    let blocks = payload.len() / BLOCK_SIZE;
    answer.first_block_offset == range.offset
        && payload.len() as u64 == range.length.next_multiple_of(BLOCK_SIZE as u64)
        && payload.len().is_multiple_of(BLOCK_SIZE)
        && answer.crcs.len() == blocks * 4
        && range.row_crcs.is_none_or(|k| answer.row_crcs.len() == blocks * k * 4)
}

/// The checksums of the blocks as they came, and the positions of those that are not what the answer says.
fn bad_blocks(answer: &ReadResponse, payload: &[u8]) -> (Vec<u32>, Vec<usize>) {
    let mut found = Vec::with_capacity(payload.len() / BLOCK_SIZE);
    crc32c_blocks(payload, &mut found);
    let pairs = found.iter().zip(answer.crcs.chunks_exact(4)).enumerate();
    let bad = pairs.filter(|(_, (found, crc))| found.to_le_bytes() != **crc).map(|(position, _)| position).collect();
    (found, bad)
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
        let range = ShardRange {
            chunk,
            shard: Some(3),
            disk: 3,
            offset: 4096,
            length: 8192,
            row_crcs: Some(3),
            made: None,
            at_rest: false,
        };
        let mut data = vec![3u8; 8192];
        let row_crcs = vec![0; 2 * 3 * 4];
        let good = ReadResponse { crcs: block_crcs(&data), first_block_offset: 4096, row_crcs, creation_epoch: 1 };
        assert!(covers(range, &good, &data) && bad_blocks(&good, &data).1.is_empty());
        let moved = ReadResponse { first_block_offset: 0, ..good.clone() };
        let bare = ReadResponse { row_crcs: Vec::new(), ..good.clone() };
        assert!(!covers(range, &moved, &data));
        assert!(!covers(range, &bare, &data));
        assert!(!covers(range, &good, &data[..4096]));
        data[5000] ^= 1;
        assert_eq!(bad_blocks(&good, &data).1, [1]);
    }
}
