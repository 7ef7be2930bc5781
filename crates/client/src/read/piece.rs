//! One piece of a chunk: asked of the nearest serving member, of the next on error, slowness or a bad checksum.
//!
//! Invariant: bytes are handed on only after every block of them matched its CRC; nothing is ever made up.
use super::latency::{HEDGE_MAX, Latency};
use crate::append::open::refresh_quietly;
use crate::cluster::Cluster;
use crate::error::{ClientError, Result};
use crate::net::NetError;
use cairn_env::buf::SharedBuf;
use cairn_rpc::{CallOptions, Payload};
use cairn_types::{BLOCK_SIZE, ChunkId, ErrorCode, crc32c_blocks};
use cairn_wire::Opcode;
use cairn_wire::common::Empty;
use cairn_wire::data::{ChunkHeader, ReadRequest, ReadResponse, ReportBadBlockRequest};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::{JoinError, JoinSet};

/// Most bytes of a piece.
pub(crate) const PIECE_MAX: u64 = 1 << 20;
/// Deadline of one request to one member.
const READ_DEADLINE: Duration = Duration::from_secs(5);
const REPORT_DEADLINE: Duration = Duration::from_secs(2);
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// What is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Piece {
    pub chunk: ChunkId,
    pub offset: u64,
    pub length: u64,
}

/// Reads a piece; tries members until the cluster's patience ends or all of them say that they lack it.
pub(crate) async fn read_piece(cluster: &Arc<Cluster>, latency: &Arc<Latency>, piece: Piece) -> Result<SharedBuf> {
    let started = cluster.clock.now();
    let mut pause = PAUSE_MIN;
    loop {
        let view = cluster.view();
        let mut members: Vec<u32> =
            view.pgs.get(&piece.chunk.pg.0).map(|pg| pg.serving().collect()).unwrap_or_default();
        cluster.sort_for_reading(&view, &mut members, piece.chunk, piece.offset);
        latency.slow_last(&mut members, cluster.clock.now());
        let failures = match read_hedged(cluster, latency, piece, &members).await {
            Ok(data) => return Ok(data),
            Err(failures) => failures,
        };
        // One member alone may have lost what the others still have.
        let deleted = |(_, e): &(u32, NetError)| matches!(e, NetError::Remote(e) if e.code == ErrorCode::ChunkDeleted);
        if !failures.is_empty() && failures.iter().all(deleted) {
            return Err(ClientError::Changed { what: piece.chunk.to_string() });
        }
        if cluster.clock.now().since(started) > cluster.patience {
            return Err(unreadable(piece, &failures));
        }
        tokio::time::sleep(cluster.jitter(pause)).await;
        pause = (pause * 2).min(PAUSE_MAX);
        refresh_quietly(cluster).await;
    }
}

fn unreadable(piece: Piece, failures: &[(u32, NetError)]) -> ClientError {
    let detail = match failures {
        [] => {
            format!("{} has no serving member; cairn admin pg {} shows its members", piece.chunk.pg, piece.chunk.pg.0)
        }
        some => some.iter().map(|(disk, e)| format!("disk d{disk}: {}", e.text())).collect::<Vec<_>>().join("; "),
    };
    ClientError::Unreadable { what: piece.chunk.to_string(), offset: piece.offset, length: piece.length, detail }
}

/// Asks the first member; the next one as soon as one fails or is slow. The first good answer wins.
async fn read_hedged(
    cluster: &Arc<Cluster>,
    latency: &Arc<Latency>,
    piece: Piece,
    members: &[u32],
) -> std::result::Result<SharedBuf, Vec<(u32, NetError)>> {
    let mut failures = Vec::new();
    let mut running = JoinSet::new();
    let mut next = members.iter().copied();
    loop {
        if running.is_empty() || failures.len() + running.len() < members.len() {
            match next.next() {
                Some(disk) => {
                    let (cluster, latency) = (cluster.clone(), latency.clone());
                    running.spawn(async move { (disk, read_member(&cluster, &latency, piece, disk).await) });
                }
                None if running.is_empty() => return Err(failures),
                None => {}
            }
        }
        let others = failures.len() + running.len() < members.len();
        let Some(answer) = next_answer(&mut running, latency, others).await else { continue };
        match answer {
            Some(Ok((disk, Ok(data)))) => {
                let before = members.iter().take_while(|asked| **asked != disk);
                for slow in before.filter(|asked| failures.iter().all(|(failed, _)| failed != *asked)) {
                    latency.was_slow(*slow, cluster.clock.now());
                }
                return Ok(data);
            }
            Some(Ok((disk, Err(error)))) => failures.push((disk, error)),
            Some(Err(join)) => failures.push((0, NetError::NotSent(join.to_string()))),
            None => return Err(failures),
        }
    }
}

/// The next answer; `None` when one of the others is to be asked as well first.
async fn next_answer<T: 'static>(
    running: &mut JoinSet<T>,
    latency: &Latency,
    others: bool,
) -> Option<Option<std::result::Result<T, JoinError>>> {
    if !others {
        return Some(running.join_next().await);
    }
    let delay = latency.hedge_after();
    if let Ok(answer) = tokio::time::timeout(delay, running.join_next()).await {
        return Some(answer);
    }
    if latency.may_hedge() {
        return None;
    }
    tokio::time::timeout(HEDGE_MAX.saturating_sub(delay), running.join_next()).await.ok()
}

async fn read_member(
    cluster: &Arc<Cluster>,
    latency: &Latency,
    piece: Piece,
    disk: u32,
) -> std::result::Result<SharedBuf, NetError> {
    let address = cluster.disk_address(disk)?;
    let header = ChunkHeader { disk, pg: piece.chunk.pg.0, index: piece.chunk.index, epoch: 0, session: 0 };
    let length = u32::try_from(piece.length).map_err(|_| NetError::NotSent("the piece is too long".into()))?;
    let request = ReadRequest { chunk: Some(header), offset: piece.offset, length, creation_epoch: 0, row_crcs: false };
    let asked = cluster.clock.now();
    let options = CallOptions::new(READ_DEADLINE).bulk().stream(cluster.rng.u64() as u32);
    let (answer, payload): (ReadResponse, _) =
        cluster.net.call_with(&address, Opcode::Read, &request, Payload::None, options).await?;
    latency.record(cluster.clock.now().since(asked));
    let payload = payload.map(|p| p.freeze()).unwrap_or_default();
    match check_blocks(piece, &answer, &payload) {
        Ok(()) => {
            let skip = (piece.offset - answer.first_block_offset) as usize;
            Ok(payload.slice(skip..skip + piece.length as usize))
        }
        Err(Bad::Shape(text)) => Err(NetError::Unknown(text)),
        Err(Bad::Block(block)) => {
            tracing::warn!(chunk = %piece.chunk, disk, block, "a member served a block that does not match its checksum");
            let report = ReportBadBlockRequest { chunk: Some(header), block };
            let net = cluster.net.clone();
            tokio::spawn(async move {
                let answer = net.call::<Empty>(&address, Opcode::ReportBadBlock, &report, REPORT_DEADLINE).await;
                if let Err(error) = answer {
                    tracing::warn!(error = error.text(), "the report of a bad block was not taken");
                }
            });
            Err(NetError::Unknown(format!("block {block} of {} does not match its checksum", piece.chunk)))
        }
    }
}

enum Bad {
    Shape(String),
    /// Index of the block in the chunk.
    Block(u64),
}

/// Whole blocks that cover the piece, each matching its CRC.
fn check_blocks(piece: Piece, answer: &ReadResponse, payload: &[u8]) -> std::result::Result<(), Bad> {
    let first = piece.offset - piece.offset % BLOCK_SIZE as u64;
    let blocks = payload.len() / BLOCK_SIZE;
    let covers = answer.first_block_offset == first
        && payload.len().is_multiple_of(BLOCK_SIZE)
        && first + payload.len() as u64 >= piece.offset + piece.length
        && answer.crcs.len() == blocks * 4;
    if !covers {
        return Err(Bad::Shape(format!("the answer does not cover {} bytes at {}", piece.length, piece.offset)));
    }
    let mut found = Vec::new();
    crc32c_blocks(payload, &mut found);
    match found.iter().zip(answer.crcs.chunks_exact(4)).position(|(found, crc)| found.to_le_bytes() != crc) {
        Some(bad) => Err(Bad::Block(first / BLOCK_SIZE as u64 + bad as u64)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::append::segment::block_crcs;
    use cairn_types::PgId;

    fn answer(data: &[u8], first: u64) -> ReadResponse {
        ReadResponse { crcs: block_crcs(data), first_block_offset: first, row_crcs: Vec::new() }
    }

    #[test]
    fn only_complete_and_matching_blocks_are_taken() {
        let piece = Piece { chunk: ChunkId { pg: PgId(1), index: 1 }, offset: 5000, length: 5000 };
        let mut data = vec![3u8; 2 * BLOCK_SIZE];
        assert!(check_blocks(piece, &answer(&data, 4096), &data).is_ok());
        assert!(matches!(check_blocks(piece, &answer(&data, 0), &data), Err(Bad::Shape(_))));
        let short = &data[..BLOCK_SIZE];
        assert!(matches!(check_blocks(piece, &answer(short, 4096), short), Err(Bad::Shape(_))));
        let good = answer(&data, 4096);
        data[BLOCK_SIZE + 1] ^= 1;
        assert!(matches!(check_blocks(piece, &good, &data), Err(Bad::Block(2))));
    }
}
