//! One piece of a chunk: asked of the nearest serving member, of the next on error, slowness or a bad checksum.
//!
//! When no member has all of it intact, what single members have is put together, block by block (`salvage`), so that
//! only blocks that are bad on all of them are unreadable.
//!
//! Invariant: bytes are handed on only after every block of them matched its CRC; nothing is ever made up.
use super::health::HedgeBounds;
use super::latency::{HEDGE_MAX, Latency};
use super::news::or_news;
use super::salvage::{Salvage, salvage_by_halves};
use super::verdict::Verdict;
use crate::cluster::Cluster;
use crate::error::ClientError;
use crate::net::NetError;
use cairn_env::buf::SharedBuf;
use cairn_rpc::{CallOptions, Payload};
use cairn_types::{BLOCK_SIZE, ChunkId, ErrorCode, crc32c_blocks};
use cairn_wire::Opcode;
use cairn_wire::common::Empty;
use cairn_wire::data::{ChunkHeader, ReadRequest, ReadResponse, ReportBadBlockRequest};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;

/// Most bytes of a piece.
pub(crate) const PIECE_MAX: u64 = 1 << 20;
/// Deadline of one request to one member.
const READ_DEADLINE: Duration = Duration::from_secs(5);
const REPORT_DEADLINE: Duration = Duration::from_secs(2);
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// Bad blocks of one answer that its member is told of; it finds the others when it is asked again.
const REPORTS_MAX: usize = 16;

/// What could be read of a range: all of it, or what comes before the first byte that could not, and why not.
pub(crate) struct Got<T> {
    pub data: T,
    pub failed: Option<ClientError>,
}

/// What is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Piece {
    pub chunk: ChunkId,
    pub offset: u64,
    pub length: u64,
    /// Only members in this epoch of the group answer; 0: any that serves, and is sure of it.
    pub epoch: u64,
}

/// Why a member did not give a piece.
#[derive(Debug)]
pub(super) struct Refusal {
    pub error: NetError,
    /// Damage of its copy, so that other blocks of it may be good.
    pub damaged: bool,
    /// Its copy does not match its checksums at rest.
    rotten: bool,
    /// It serves, as far as it knows, and does not know how things stand now.
    unsure: bool,
}

impl Refusal {
    fn new(error: NetError) -> Refusal {
        // What its device cannot read is missing there, too.
        let of_copy = |code| matches!(code, ErrorCode::ChecksumMismatch | ErrorCode::Missing);
        let damaged = matches!(&error, NetError::Remote(e) if of_copy(e.code));
        let rotten = matches!(&error, NetError::Remote(e) if e.code == ErrorCode::ChecksumMismatch);
        let unsure = matches!(&error, NetError::Remote(e) if e.code == ErrorCode::Unavailable);
        Refusal { error, damaged, rotten, unsure }
    }
    /// Damage for which the member gave nothing at all.
    pub(super) fn is_of_the_whole(&self) -> bool {
        self.damaged && matches!(self.error, NetError::Remote(_))
    }
}

/// Reads a piece; tries members until the cluster's patience ends, all of them say that they lack it, or it is certain
/// that it is lost. One of a certain epoch fails as [`ClientError::Changed`] as soon as the group is known to have
/// another.
///
/// A member that has not heard of the manager for long may have been removed, and have blocks that others overwrote
/// since: it is asked only after all others have failed, and under the epoch of the newest map that can be had. So with
/// no manager at all everything can be read.
pub(crate) async fn read_piece(cluster: &Arc<Cluster>, latency: &Arc<Latency>, piece: Piece) -> Got<SharedBuf> {
    let started = cluster.clock.now();
    let mut pause = PAUSE_MIN;
    let salvage = Arc::new(Mutex::new(Salvage::new(piece)));
    let (mut by_halves, mut verdict) = (true, Verdict::default());
    let failed = |failed: ClientError| Got { data: SharedBuf::default(), failed: Some(failed) };
    loop {
        let view = cluster.view();
        if piece.epoch != 0 && epoch_of(cluster, piece.chunk) != piece.epoch {
            return failed(ClientError::Changed { what: piece.chunk.pg.to_string() });
        }
        let mut members: Vec<u32> =
            view.pgs.get(&piece.chunk.pg.0).map(|pg| pg.serving().collect()).unwrap_or_default();
        cluster.sort_for_reading(&view, &mut members, piece.chunk, piece.offset);
        latency.slow_last(&mut members, cluster.clock.now());
        let read = read_hedged(cluster, latency, &salvage, &members);
        let failures = match or_news(cluster, piece.chunk.pg, read).await {
            Some(Ok(data)) => return Got { data, failed: None },
            Some(Err(failures)) => failures,
            None => continue,
        };
        // One member alone may have lost what the others still have.
        let deleted =
            |(_, e): &(u32, Refusal)| matches!(&e.error, NetError::Remote(e) if e.code == ErrorCode::ChunkDeleted);
        if !failures.is_empty() && failures.iter().all(deleted) {
            return failed(ClientError::Changed { what: piece.chunk.to_string() });
        }
        let damaged: Vec<u32> = failures.iter().filter(|(_, e)| e.damaged).map(|(disk, _)| *disk).collect();
        // All members of the group serve, and have nothing but damage where something is missing.
        let all = view.pgs.get(&piece.chunk.pg.0).is_some_and(|pg| pg.is_complete());
        let hopeless = all && failures.len() == members.len() && failures.iter().all(|(_, e)| e.rotten);
        let certain = verdict.is_final(hopeless, cluster.clock.now());
        if (by_halves || certain) && !damaged.is_empty() {
            by_halves = false;
            salvage_by_halves(cluster, latency, &salvage, &damaged).await;
            if let Some(data) = salvage.lock().whole() {
                return Got { data, failed: None };
            }
        }
        if certain || cluster.clock.now().since(started) > cluster.patience {
            let salvage = salvage.lock();
            return Got { data: salvage.prefix(), failed: Some(unreadable(cluster, &salvage, &failures)) };
        }
        if failures.iter().any(|(_, refusal)| refusal.unsure) && piece.epoch == 0 && salvage.lock().piece().epoch == 0 {
            cluster.refresh_for_a_moment().await;
            salvage.lock().ask_under(epoch_of(cluster, piece.chunk));
            continue;
        }
        salvage.lock().ask_under(piece.epoch);
        tokio::time::sleep(cluster.jitter(pause)).await;
        pause = (pause * 2).min(PAUSE_MAX);
        cluster.refresh_quietly().await;
    }
}

/// Of the chunk's group, as it is known; 0: it is not.
fn epoch_of(cluster: &Cluster, chunk: ChunkId) -> u64 {
    cluster.view().pgs.get(&chunk.pg.0).map_or(0, |pg| pg.epoch.0)
}

/// Members that may have it intact, and do not serve or gave no answer about their copy.
fn away(cluster: &Cluster, chunk: ChunkId, failures: &[(u32, Refusal)]) -> Vec<String> {
    let answered = |refusal: &Refusal| {
        refusal.damaged || matches!(&refusal.error, NetError::Remote(error) if error.code == ErrorCode::ChunkDeleted)
    };
    let view = cluster.view();
    let members = view.pgs.get(&chunk.pg.0).map(|pg| pg.members.clone()).unwrap_or_default();
    let is_away = |disk: &u32| !failures.iter().any(|(of, refusal)| of == disk && answered(refusal));
    members.iter().map(|(disk, _)| *disk).filter(is_away).map(|disk| cluster.disk_name(disk)).collect()
}

fn unreadable(cluster: &Cluster, salvage: &Salvage, failures: &[(u32, Refusal)]) -> ClientError {
    let chunk = salvage.piece().chunk;
    let mut detail = match failures {
        [] => {
            format!("{} has no serving member; cairn admin pg {} shows its members", chunk.pg, chunk.pg.0)
        }
        some => {
            let why = |(disk, e): &(u32, Refusal)| format!("{}: {}", cluster.disk_name(*disk), e.error.text());
            some.iter().map(why).collect::<Vec<_>>().join("; ")
        }
    };
    let missing = salvage.missing();
    if missing.len() > 1 {
        detail.push_str(&format!(
            "; so are {} more ranges of the {} bytes that were asked for",
            missing.len() - 1,
            salvage.piece().length
        ));
    }
    let (offset, length) = missing.first().copied().unwrap_or((salvage.piece().offset, salvage.piece().length));
    ClientError::unread(chunk.to_string(), (offset, length), away(cluster, chunk, failures), detail)
}

/// Asks the first member; the next one as soon as one fails or is slow. The first good answer wins.
async fn read_hedged(
    cluster: &Arc<Cluster>,
    latency: &Arc<Latency>,
    salvage: &Arc<Mutex<Salvage>>,
    members: &[u32],
) -> std::result::Result<SharedBuf, Vec<(u32, Refusal)>> {
    let piece = salvage.lock().piece();
    let mut failures = Vec::new();
    // Polled by this task: the usual read, of one member, needs no other.
    let mut running = FuturesUnordered::new();
    let mut next = members.iter().copied();
    loop {
        if running.is_empty() || failures.len() + running.len() < members.len() {
            match next.next() {
                Some(disk) => {
                    running.push(async move { (disk, read_member(cluster, latency, piece, disk, salvage).await) });
                }
                None if running.is_empty() => return Err(failures),
                None => {}
            }
        }
        let others = failures.len() + running.len() < members.len();
        let Some(answer) = next_answer(&mut running, (latency, cluster.shards.health.bounds()), others).await else {
            continue;
        };
        match answer {
            Some((disk, Ok(data))) => {
                let before = members.iter().take_while(|asked| **asked != disk);
                for slow in before.filter(|asked| failures.iter().all(|(failed, _)| failed != *asked)) {
                    latency.was_slow(*slow, cluster.clock.now());
                }
                return Ok(data);
            }
            Some((disk, Err(refusal))) => {
                if matches!(&refusal.error, NetError::Remote(e) if e.code == ErrorCode::DiskFailed) {
                    latency.was_slow(disk, cluster.clock.now());
                }
                failures.push((disk, refusal));
                if let Some(data) = salvage.lock().whole() {
                    return Ok(data);
                }
            }
            None => return Err(failures),
        }
    }
}

/// The next answer; `None` when one of the others is to be asked as well first.
async fn next_answer<T>(
    running: &mut FuturesUnordered<impl Future<Output = T>>,
    (latency, bounds): (&Latency, HedgeBounds),
    others: bool,
) -> Option<Option<T>> {
    if !others {
        return Some(running.next().await);
    }
    let delay = latency.hedge_after(bounds);
    if let Ok(answer) = tokio::time::timeout(delay, running.next()).await {
        return Some(answer);
    }
    if latency.may_hedge() {
        return None;
    }
    tokio::time::timeout(HEDGE_MAX.saturating_sub(delay), running.next()).await.ok()
}

/// Asks one member for the piece, or a part of it; what it has intact goes to the salvage if other blocks are bad.
pub(super) async fn read_member(
    cluster: &Arc<Cluster>,
    latency: &Latency,
    piece: Piece,
    disk: u32,
    salvage: &Mutex<Salvage>,
) -> std::result::Result<SharedBuf, Refusal> {
    let address = cluster.disk_address(disk).map_err(Refusal::new)?;
    let header = ChunkHeader { disk, pg: piece.chunk.pg.0, index: piece.chunk.index, epoch: piece.epoch, session: 0 };
    let length =
        u32::try_from(piece.length).map_err(|_| Refusal::new(NetError::NotSent("the piece is too long".into())))?;
    let (chunk, sure) = (Some(header), piece.epoch == 0);
    let request = ReadRequest { chunk, offset: piece.offset, length, sure, ..ReadRequest::default() };
    let asked = cluster.clock.now();
    let kept = cluster.protection(piece.chunk);
    let options = CallOptions::new(READ_DEADLINE).bulk().spread(cluster.rng.u64() as u32).protected(kept);
    let (answer, payload): (ReadResponse, _) =
        cluster.net.call_with(&address, Opcode::Read, &request, Payload::None, options).await.map_err(Refusal::new)?;
    latency.record(cluster.clock.now().since(asked));
    let payload = payload.map(|p| p.freeze()).unwrap_or_default();
    let bad = match check_blocks(piece, &answer, &payload) {
        Ok(bad) => bad,
        Err(text) => return Err(Refusal::new(NetError::Unknown(text))),
    };
    let Some(first) = bad.first() else {
        let skip = (piece.offset - answer.first_block_offset) as usize;
        return Ok(payload.slice(skip..skip + piece.length as usize));
    };
    salvage.lock().take(answer.first_block_offset / BLOCK_SIZE as u64, &payload, &bad);
    for block in bad.iter().take(REPORTS_MAX) {
        if salvage.lock().is_news(disk, *block) {
            tracing::warn!(chunk = %piece.chunk, disk, block, "a member served a block that does not match its checksum");
        }
        report_bad_block(cluster, &address, header, *block);
    }
    let blocks = match bad.len() {
        1 => format!("block {first} of {} does not match its checksum", piece.chunk),
        many => format!("{many} blocks of {}, the first {first}, do not match their checksums", piece.chunk),
    };
    Err(Refusal { error: NetError::Unknown(blocks), damaged: true, rotten: true, unsure: false })
}

/// Tells the member that served it; it heals the block.
pub(crate) fn report_bad_block(cluster: &Cluster, address: &str, header: ChunkHeader, block: u64) {
    let report = ReportBadBlockRequest { chunk: Some(header), block };
    let (net, address) = (cluster.net.clone(), address.to_owned());
    tokio::spawn(async move {
        let answer = net.call::<Empty>(&address, Opcode::ReportBadBlock, &report, REPORT_DEADLINE).await;
        if let Err(error) = answer {
            // The member itself logs what it cannot heal.
            tracing::debug!(error = error.text(), "the report of a bad block was not taken");
        }
    });
}

/// Whole blocks that cover the piece: those of them that do not match their CRC, by index in the chunk; what is wrong
/// with the shape of the answer.
fn check_blocks(piece: Piece, answer: &ReadResponse, payload: &[u8]) -> std::result::Result<Vec<u64>, String> {
    let first = piece.offset - piece.offset % BLOCK_SIZE as u64;
    let blocks = payload.len() / BLOCK_SIZE;
    let covers = answer.first_block_offset == first
        && payload.len().is_multiple_of(BLOCK_SIZE)
        && first + payload.len() as u64 >= piece.offset + piece.length
        && answer.crcs.len() == blocks * 4;
    if !covers {
        return Err(format!("the answer does not cover {} bytes at {}", piece.length, piece.offset));
    }
    let mut found = Vec::with_capacity(blocks);
    crc32c_blocks(payload, &mut found);
    let matches = found.iter().zip(answer.crcs.chunks_exact(4)).map(|(found, crc)| found.to_le_bytes() == crc);
    Ok((first / BLOCK_SIZE as u64..).zip(matches).filter(|(_, matches)| !matches).map(|(block, _)| block).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::append::segment::block_crcs;
    use cairn_types::PgId;

    fn answer(data: &[u8], first: u64) -> ReadResponse {
        ReadResponse { crcs: block_crcs(data), first_block_offset: first, ..ReadResponse::default() }
    }

    #[test]
    fn only_complete_and_matching_blocks_are_taken() {
        let piece = Piece { chunk: ChunkId { pg: PgId(1), index: 1 }, offset: 5000, length: 5000, epoch: 0 };
        let mut data = vec![3u8; 2 * BLOCK_SIZE];
        assert!(check_blocks(piece, &answer(&data, 4096), &data).is_ok_and(|bad| bad.is_empty()));
        assert!(check_blocks(piece, &answer(&data, 0), &data).is_err());
        let short = &data[..BLOCK_SIZE];
        assert!(check_blocks(piece, &answer(short, 4096), short).is_err());
        let good = answer(&data, 4096);
        data[BLOCK_SIZE + 1] ^= 1;
        assert!(check_blocks(piece, &good, &data).is_ok_and(|bad| bad == [2]));
    }
}
