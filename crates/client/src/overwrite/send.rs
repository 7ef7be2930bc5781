//! Overwrites in place: whole blocks of replicated chunks go in vectors to the primaries of their groups, which answer
//! when every member has them durably.
//!
//! Three outcomes: overwritten, to be written to new space, not known. A request keeps its number however often and in
//! which epoch it is sent; a block that was sent twice has the same bytes both times. Invariant: one was overwritten
//! only if every serving member of one epoch answered; nothing is sent under a lease that may be over; blocks that were
//! filled up with what was read under an epoch go out under that one only. Not here: merging of partial blocks, and
//! taking the lease under which nobody else writes them; calls whose blocks overlap must follow each other.
use super::{BlockWrite, Epochs, Number, Overwrites, Overwritten};
use crate::append::segment::block_crcs;
use crate::cluster::Cluster;
use crate::encoded_message::Coming;
use crate::error::{ClientError, Result};
use crate::meta::lease::Lease;
use crate::meta::volume::Volume;
use crate::net::{NetError, stream_of};
use crate::stripe::suspects::Seen;
use crate::view::PgView;
use cairn_env::buf::SharedBuf;
use cairn_rpc::{CallOptions, Payload};
use cairn_types::{BLOCK_SIZE, CHUNK_SIZE_MAX, ChunkId, ErrorCode, SessionId};
use cairn_wire::Opcode;
use cairn_wire::data::{ChunkHeader, OverwriteRequest, OverwriteResponse, OverwriteVector};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::task::JoinSet;

/// Most blocks and runs of one request.
const BLOCKS_MAX: usize = 256;
/// Deadline of one attempt: the members give each other about 1 s.
const ATTEMPT: Duration = Duration::from_secs(4);
/// A request that is not answered for so long has its members looked at, and again after twice the time.
const LOOK_AFTER: Duration = Duration::from_millis(400);
/// A request is tried so long; then new space is the better place, whatever became of it.
const PATIENCE_MAX: Duration = Duration::from_secs(10);
const PAUSE_MIN: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_millis(200);

/// Who overwrites, and by which lease.
#[derive(Clone)]
struct Right {
    session: SessionId,
    lease: Option<Arc<Lease>>,
    /// Epochs of groups under which bytes of the blocks were read back: another one may have newer bytes.
    under: Arc<Epochs>,
}

/// One request: blocks of one chunk, ascending.
struct Batch {
    chunk: ChunkId,
    vectors: Vec<OverwriteVector>,
    crcs: Vec<u8>,
    pieces: Vec<SharedBuf>,
    /// Which of the caller's they are.
    of: Vec<usize>,
}

/// What one attempt came to.
enum Attempt {
    Done(Overwritten),
    /// Again after a pause, if there is patience left.
    Again(NetError),
    /// Again at once, in the new epoch.
    Moved(NetError),
    Failed(NetError),
}

impl Volume {
    /// Overwrites whole blocks where they are; what became of each, in the order of `writes`. They are sent together,
    /// up to 1 MiB a request, to all groups at the same time. An error means that it is not known which of them were
    /// done; then they can be overwritten again or written to new space.
    pub async fn overwrite(&self, writes: &[BlockWrite]) -> Result<Vec<Overwritten>> {
        let session = self.caller.session().await?.id;
        self.overwrite_as(Right { session, lease: None, under: Arc::default() }, writes).await
    }
    /// Blocks of this volume that this client has overwritten in place.
    pub fn blocks_in_place(&self) -> u64 {
        self.overwrites.blocks.load(Ordering::Relaxed)
    }
    /// The same of a file of which this client has the lease, in the groups that are named under these epochs only.
    pub(crate) async fn overwrite_under(
        &self,
        lease: &Arc<Lease>,
        under: &Arc<Epochs>,
        writes: &[BlockWrite],
    ) -> Result<Vec<Overwritten>> {
        let right = Right { session: lease.session.id, lease: Some(lease.clone()), under: under.clone() };
        self.overwrite_as(right, writes).await
    }
    fn overwrite_as<'a>(&'a self, right: Right, writes: &'a [BlockWrite]) -> Coming<'a, Result<Vec<Overwritten>>> {
        Box::pin(self.overwrite_batches(right, writes))
    }
    async fn overwrite_batches(&self, right: Right, writes: &[BlockWrite]) -> Result<Vec<Overwritten>> {
        let batches = batches(writes)?;
        let mut running = JoinSet::new();
        for batch in batches {
            let (cluster, overwrites) = (self.cluster().clone(), self.overwrites.clone());
            let right = right.clone();
            running.spawn(async move {
                let outcome = send(&cluster, &overwrites, &right, &batch).await;
                (batch.of, outcome)
            });
        }
        let mut outcomes = vec![Overwritten::InPlace; writes.len()];
        let mut failure = None;
        while let Some(ended) = running.join_next().await {
            let stopped = |error: tokio::task::JoinError| ClientError::OutcomeUnknown {
                what: "overwriting".into(),
                seconds: 0,
                last: error.to_string(),
                again: None,
            };
            match ended {
                Ok((_, Ok(Overwritten::InPlace))) => {}
                Ok((of, Ok(new_space))) => of.into_iter().for_each(|i| outcomes[i] = new_space.clone()),
                Ok((_, Err(error))) => failure = failure.or(Some(error)),
                Err(error) => failure = failure.or(Some(stopped(error))),
            }
        }
        failure.map_or(Ok(outcomes), Err)
    }
}

/// Cuts the writes into requests: one chunk each, ascending, not too large.
fn batches(writes: &[BlockWrite]) -> Result<Vec<Batch>> {
    let invalid = |text: String| ClientError::remote("overwriting", ErrorCode::InvalidArgument, &text);
    let block = BLOCK_SIZE as u64;
    let mut sorted: Vec<(ChunkId, u64, usize)> = Vec::with_capacity(writes.len());
    for (i, write) in writes.iter().enumerate() {
        let length = write.data.len() as u64;
        let end = write.offset.checked_add(length).filter(|end| *end <= CHUNK_SIZE_MAX);
        if length == 0 || end.is_none() || !(write.offset | length).is_multiple_of(block) {
            let text = format!("{length} bytes at {} of {} are not whole blocks of it", write.offset, write.chunk);
            return Err(invalid(text));
        }
        sorted.push((write.chunk, write.offset, i));
    }
    sorted.sort_unstable();
    let mut batches: Vec<Batch> = Vec::new();
    let mut last: Option<(ChunkId, u64)> = None;
    let mut left = 0;
    for (chunk, offset, i) in sorted {
        if last.is_some_and(|(known, end)| known == chunk && offset < end) {
            return Err(invalid(format!("two of the writes overlap at {offset} of {chunk}")));
        }
        let data = &writes[i].data;
        let mut at = 0;
        while at < data.len() {
            if left == 0 || last.is_none_or(|(known, _)| known != chunk) {
                let (vectors, crcs, pieces, of) = Default::default();
                batches.push(Batch { chunk, vectors, crcs, pieces, of });
                left = BLOCKS_MAX;
            }
            let count = left.min((data.len() - at) / BLOCK_SIZE);
            let batch = batches.last_mut().expect("pushed above");
            let first = ((offset + at as u64) / block) as u32;
            match batch.vectors.last_mut() {
                Some(vector) if vector.block + vector.blocks == first => vector.blocks += count as u32,
                _ => batch.vectors.push(OverwriteVector { block: first, blocks: count as u32 }),
            }
            let piece = data.slice(at..at + count * BLOCK_SIZE);
            batch.crcs.extend(block_crcs(&piece));
            batch.pieces.push(piece);
            batch.of.push(i);
            (at, left) = (at + count * BLOCK_SIZE, left - count);
            last = Some((chunk, offset + at as u64));
        }
    }
    Ok(batches)
}

/// Sends a request until it is done, refused, or the patience ends.
async fn send(
    cluster: &Arc<Cluster>,
    overwrites: &Arc<Overwrites>,
    right: &Right,
    batch: &Batch,
) -> Result<Overwritten> {
    let closed = |_| ClientError::protocol("overwriting", "the volume was closed");
    let _permit = overwrites.window.acquire().await.map_err(closed)?;
    let number = Number::new(overwrites);
    let (started, patience) = (cluster.clock.now(), cluster.patience.min(PATIENCE_MAX));
    let what = format!("overwriting blocks of {}", batch.chunk);
    let (mut pause, mut unknown) = (PAUSE_MIN, false);
    loop {
        if right.lease.as_ref().is_some_and(|lease| !lease.is_good(cluster.clock.now())) {
            let last = "the lease for overwriting may be over".to_owned();
            return Err(ClientError::OutcomeUnknown {
                what,
                seconds: cluster.clock.now().since(started).as_secs(),
                last,
                again: None,
            });
        }
        let last = match attempt(cluster, right, &number, batch).await {
            // What was sent before may still arrive: whoever gives the lease back has to know.
            Attempt::Done(Overwritten::NewSpace { why }) if unknown => {
                let seconds = cluster.clock.now().since(started).as_secs();
                return Err(ClientError::OutcomeUnknown { what, seconds, last: why, again: None });
            }
            Attempt::Done(outcome) => {
                if outcome == Overwritten::InPlace {
                    overwrites.blocks.fetch_add(batch.crcs.len() as u64 / 4, Ordering::Relaxed);
                }
                return Ok(outcome);
            }
            Attempt::Failed(error) => return Err(error.into_client(&what, &batch.chunk.pg.to_string(), patience)),
            Attempt::Moved(error) => {
                pause = Duration::ZERO;
                error
            }
            Attempt::Again(error) => error,
        };
        // What was not taken by all may have been by some.
        unknown |= !matches!(last, NetError::NotSent(_));
        if cluster.clock.now().since(started) > patience {
            let (seconds, last) = (patience.as_secs(), last.text());
            return Err(match unknown {
                true => ClientError::OutcomeUnknown { what, seconds, last, again: None },
                false => ClientError::Unreachable { what, tried: batch.chunk.pg.to_string(), seconds, last },
            });
        }
        tokio::time::sleep(cluster.jitter(pause)).await;
        pause = (pause * 2).clamp(PAUSE_MIN, PAUSE_MAX);
    }
}

async fn attempt(cluster: &Arc<Cluster>, right: &Right, number: &Number, batch: &Batch) -> Attempt {
    let known = || cluster.view().pgs.get(&batch.chunk.pg.0).cloned();
    if known().is_none() {
        cluster.refresh_quietly().await;
    }
    let Some(pg) = known() else {
        return Attempt::Again(NetError::NotSent(format!("{} is not in the map", batch.chunk.pg)));
    };
    if let Some(epoch) = right.under.get(&pg.id).filter(|epoch| **epoch != pg.epoch) {
        let text = format!("{} is at {} now, and bytes of the blocks were read back under {epoch}", pg.id, pg.epoch);
        return Attempt::Failed(NetError::Unknown(text));
    }
    let new_space = |why: String| Attempt::Done(Overwritten::NewSpace { why });
    if !pg.scheme.is_replicated() {
        return new_space(format!("{} holds shards, which are not overwritten in place", pg.id));
    }
    let Some(primary) = pg.primary().filter(|_| pg.can_write()) else {
        cluster.refresh_quietly().await;
        return match known().is_some_and(|now| now.can_write()) {
            true => Attempt::Moved(NetError::NotSent(format!("{} has a new epoch", pg.id))),
            false => new_space(format!("{} has too few serving members for writes", pg.id)),
        };
    };
    match ask(cluster, right, number, batch, &pg, primary).await {
        Ok(answer) => {
            let silent = pg.serving().find(|disk| !answer.members.iter().any(|stamp| stamp.disk == *disk));
            match silent {
                None => Attempt::Done(Overwritten::InPlace),
                Some(disk) => Attempt::Again(NetError::Unknown(format!("disk d{disk} serves but did not answer"))),
            }
        }
        Err(error) => judge(cluster, right.session, &pg, primary, error).await,
    }
}

/// One request to the primary. While nothing is answered, the members are looked at; when the group goes on without one
/// of them, the answer is not waited for any more.
async fn ask(
    cluster: &Arc<Cluster>,
    right: &Right,
    number: &Number,
    batch: &Batch,
    pg: &PgView,
    primary: u32,
) -> std::result::Result<OverwriteResponse, NetError> {
    let address = cluster.disk_address(primary)?;
    let view = cluster.view();
    let mut chain = pg.followers();
    cluster.sort_by_nearness(&view, &mut chain);
    let (chunk, session) = (batch.chunk, right.session);
    let header =
        ChunkHeader { disk: primary, pg: chunk.pg.0, index: chunk.index, epoch: pg.epoch.0, session: session.0 };
    let request = OverwriteRequest {
        chunk: Some(header),
        vectors: batch.vectors.clone(),
        crcs: batch.crcs.clone(),
        chain,
        request: number.number,
        floor: number.floor(),
        inode: right.lease.as_ref().map_or(0, |lease| lease.inode),
        lease: right.lease.as_ref().map_or(0, |lease| lease.number),
        ..OverwriteRequest::default()
    };
    let payload = match &batch.pieces[..] {
        [piece] => Payload::One(piece.clone()),
        pieces => Payload::Many(pieces.to_vec()),
    };
    let options = CallOptions::new(ATTEMPT).bulk().stream(stream_of(chunk)).protected(view.protection(chunk.pg.0));
    let call = cluster.net.call_with::<OverwriteResponse, _>(&address, Opcode::Overwrite, &request, payload, options);
    let mut call = std::pin::pin!(call);
    let mut silence = LOOK_AFTER;
    loop {
        if let Ok(answer) = tokio::time::timeout(silence, &mut call).await {
            return answer.map(|(answer, _)| answer);
        }
        let seen = Seen { session, pg: pg.id.0, epoch: pg.epoch.0 };
        let look =
            cluster.look_at(seen, pg.members.iter().filter(|(_, s)| s.receives_writes()).map(|(d, _)| *d).collect());
        tokio::select! {
            answer = &mut call => return answer.map(|(answer, _)| answer),
            look = look => {
                if look.moved {
                    return Err(NetError::Unknown(format!("{} went on without a member that did not answer", pg.id)));
                }
                silence = look.again.unwrap_or(silence * 2).min(silence * 2);
            },
        }
    }
}

/// What a failed request means.
async fn judge(cluster: &Arc<Cluster>, session: SessionId, pg: &PgView, primary: u32, error: NetError) -> Attempt {
    let moved = || cluster.view().pgs.get(&pg.id.0).is_some_and(|known| known.epoch > pg.epoch);
    let culprit = match &error {
        NetError::Remote(remote) => match remote.code {
            ErrorCode::NotInPlace | ErrorCode::Missing | ErrorCode::ChunkDeleted | ErrorCode::BelowMinimum => {
                return Attempt::Done(Overwritten::NewSpace { why: error.text() });
            }
            ErrorCode::StaleEpoch | ErrorCode::NotPrimary | ErrorCode::NotServing | ErrorCode::UnknownPg => {
                cluster.refresh_quietly().await;
                None
            }
            ErrorCode::ChainFailed => remote.failed_disk,
            ErrorCode::DiskFailed => Some(primary),
            ErrorCode::Overloaded | ErrorCode::Unavailable | ErrorCode::ChecksumMismatch => None,
            _ => return Attempt::Failed(error),
        },
        NetError::Refused(_) => return Attempt::Failed(error),
        NetError::NotSent(_) => Some(primary),
        // Looked at already.
        NetError::Unknown(_) if moved() => None,
        NetError::Unknown(_) => Some(primary),
    };
    if let Some(disk) = culprit {
        let seen = Seen { session, pg: pg.id.0, epoch: pg.epoch.0 };
        cluster.report_suspect(seen, disk, error.text()).await;
    }
    if moved() { Attempt::Moved(error) } else { Attempt::Again(error) }
}

#[cfg(test)]
mod tests;
