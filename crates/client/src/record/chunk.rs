//! The chunk of an open append, as a writer knows it; one request to its primary.
use super::looks::{What, look_once};
use crate::append::open::look_twice;
use crate::cluster::Cluster;
use crate::error::ClientError;
use crate::net::{NetError, stream_of};
use crate::stripe::suspects::Seen;
use cairn_env::buf::SharedBuf;
use cairn_rpc::{CallOptions, Payload};
use cairn_types::{ChunkId, Epoch, ErrorCode, InodeId, PgId, SessionId};
use cairn_wire::Opcode;
use cairn_wire::data::{ChunkHeader, RecordAppendRequest, RecordAppendResponse, RecordPart, RecordsNext, RecordsTold};
use cairn_wire::meta::OpenAppend;
use std::sync::Arc;
use std::time::Duration;

/// Deadline of one request: more than members give each other for a sync.
const DEADLINE: Duration = Duration::from_secs(10);
/// After this without an answer the members are looked at, and it is looked whether the group has gone on without the
/// primary.
const SILENCE: Duration = Duration::from_millis(400);
/// It does without, too.
const TELL_DEADLINE: Duration = Duration::from_secs(3);
/// Payload of a part of a long frame.
const PART: usize = 4 << 20;

/// Durable when it is answered.
pub(super) const DURABLE: u32 = 1;
/// Durable, and up to the end of a block.
pub(super) const PUBLISHABLE: u32 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AppendChunk {
    pub number: u64,
    pub id: ChunkId,
    pub creation_epoch: u64,
    /// Whose chunk it is: all that append to the file.
    pub session: SessionId,
    /// The file had so much of it when it was found. What is sent from then on lies behind that, which may be freed.
    pub published: u64,
}

/// Who asks, and for what.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Asks {
    pub level: u32,
    /// Over how many lanes the writer takes all to be spread; 0: it says nothing.
    pub lanes: u32,
    pub writer: u64,
}

/// Why records were not taken.
#[derive(Debug)]
pub(super) enum NotTaken {
    /// Certainly none of them is in the chunk, and it goes on.
    Later(String),
    /// It is not known, or the chunk takes no more.
    Over(String),
}

impl AppendChunk {
    pub fn of(inode: u64, append: &OpenAppend) -> Self {
        let id = ChunkId { pg: PgId(append.pg), index: append.index };
        let session = SessionId::of_append(InodeId(inode));
        let (number, creation_epoch, published) = (append.number, append.creation_epoch, append.published);
        Self { number, id, creation_epoch, session, published }
    }

    /// As its writers are told of it.
    pub fn next(&self) -> RecordsNext {
        let (number, creation_epoch) = (self.number, self.creation_epoch);
        RecordsNext { number, pg: self.id.pg.0, index: self.id.index, creation_epoch }
    }

    /// The chunk in which the file goes on behind this one.
    pub fn going_on(&self, next: &RecordsNext) -> Self {
        let id = ChunkId { pg: PgId(next.pg), index: next.index };
        let (number, creation_epoch, session) = (next.number, next.creation_epoch, self.session);
        Self { number, id, creation_epoch, session, published: 0 }
    }

    pub fn header(&self, disk: u32, epoch: Epoch) -> ChunkHeader {
        let (pg, index) = (self.id.pg.0, self.id.index);
        ChunkHeader { disk, pg, index, epoch: epoch.0, session: self.session.0 }
    }

    /// Sends frames to the primary, or a part of one. Calls arrive in the order in which their futures are made.
    pub fn send(
        self,
        cluster: &Arc<Cluster>,
        frames: Payload,
        asks: Asks,
        part: Option<RecordPart>,
    ) -> impl Future<Output = std::result::Result<RecordAppendResponse, NotTaken>> + Send + use<> {
        let cluster = cluster.clone();
        let view = cluster.view();
        let pg = view.pgs.get(&self.id.pg.0).cloned();
        let primary = pg.as_ref().and_then(|pg| pg.primary());
        let sent = primary.map(|primary| {
            let address = cluster.disk_address(primary)?;
            let request = RecordAppendRequest {
                chunk: Some(self.header(primary, Epoch(self.creation_epoch))),
                creation_epoch: self.creation_epoch,
                level: asks.level,
                part,
                knows_next: true,
                told: None,
                lanes: asks.lanes,
                writer: asks.writer,
            };
            let kept = view.protection(self.id.pg.0);
            let options = CallOptions::new(DEADLINE).bulk().stream(stream_of(self.id)).protected(kept);
            Ok::<_, NetError>(cluster.net.call_with(&address, Opcode::RecordAppend, &request, frames, options))
        });
        async move {
            let (Some(pg), Some(primary)) = (pg, primary) else {
                return Err(NotTaken::Over(format!("the map knows no primary of {}", self.id.pg)));
            };
            let seen = Seen { session: self.session, pg: pg.id.0, epoch: pg.epoch.0 };
            let call = match sent {
                Some(Ok(call)) => call,
                Some(Err(error)) => return Err(NotTaken::Over(error.text())),
                None => return Err(NotTaken::Over(format!("{} has no primary", self.id.pg))),
            };
            let mut call = std::pin::pin!(call);
            let mut looked = false;
            let outcome: std::result::Result<RecordAppendResponse, NetError> = loop {
                match tokio::time::timeout(SILENCE, &mut call).await {
                    Ok(outcome) => break outcome.map(|(answer, _)| answer),
                    Err(_) => {
                        if !std::mem::replace(&mut looked, true) {
                            let members = pg.serving().collect();
                            look_once(&cluster, (seen.pg, seen.epoch, What::Members), |cluster| {
                                look_twice(cluster, seen, members)
                            });
                        }
                        let now = cluster.view().pgs.get(&pg.id.0).map(|pg| pg.epoch.0);
                        if now.is_some_and(|now| now > self.creation_epoch) {
                            return Err(NotTaken::Over(format!("{} went on without its primary", pg.id)));
                        }
                    }
                }
            };
            outcome.map_err(|error| judge(&cluster, seen, primary, error))
        }
    }
}

/// Sends a frame that is longer than a payload.
pub(super) async fn send_long(
    chunk: AppendChunk,
    cluster: Arc<Cluster>,
    frame: SharedBuf,
    asks: Asks,
    (writer, sequence): (u64, u64),
) -> std::result::Result<RecordAppendResponse, NotTaken> {
    let mut at = 0;
    loop {
        let to = (at + PART).min(frame.len());
        let part = RecordPart { writer, sequence, total: frame.len() as u32, at: at as u32 };
        let answer = chunk.send(&cluster, Payload::One(frame.slice(at..to)), asks, Some(part)).await?;
        if to == frame.len() {
            return Ok(answer);
        }
        at = to;
    }
}

/// Tells the primary what its writers should know. It finds out otherwise if it does not hear of it.
pub(super) fn tell(chunk: AppendChunk, cluster: &Arc<Cluster>, told: RecordsTold) {
    let view = cluster.view();
    let Some(primary) = view.pgs.get(&chunk.id.pg.0).and_then(|pg| pg.primary()) else { return };
    let Ok(address) = cluster.disk_address(primary) else { return };
    let request = RecordAppendRequest {
        chunk: Some(chunk.header(primary, Epoch(chunk.creation_epoch))),
        creation_epoch: chunk.creation_epoch,
        told: Some(told),
        ..RecordAppendRequest::default()
    };
    let cluster = cluster.clone();
    tokio::spawn(async move {
        let heard =
            cluster.net.call::<RecordAppendResponse>(&address, Opcode::RecordAppend, &request, TELL_DEADLINE).await;
        if let Err(error) = heard {
            tracing::debug!(chunk = %chunk.id, error = error.text(), "the primary of records was not told");
        }
    });
}

/// What an error means for the records that were sent; whoever failed is reported.
fn judge(cluster: &Arc<Cluster>, seen: Seen, primary: u32, error: NetError) -> NotTaken {
    let text = error.text();
    let culprit = match &error {
        NetError::Remote(error) => match error.code {
            // Refused before anything was done with them.
            ErrorCode::Overloaded | ErrorCode::BelowMinimum => return NotTaken::Later(text),
            ErrorCode::ChainFailed => error.failed_disk,
            _ => None,
        },
        NetError::Refused(_) => None,
        _ => Some(primary),
    };
    // Others may have found out the same, and the group gone on.
    let is_known = cluster.view().pgs.get(&seen.pg).is_some_and(|pg| pg.epoch.0 > seen.epoch);
    match culprit {
        _ if is_known => {}
        Some(disk) => look_once(cluster, (seen.pg, seen.epoch, What::Report(disk)), |cluster| {
            let report = cluster.report_suspect(seen, disk, text.clone());
            async move {
                let _moved = report.await;
            }
        }),
        None => look_once(cluster, (seen.pg, seen.epoch, What::Map), |cluster| async move {
            cluster.refresh_quietly().await;
        }),
    }
    NotTaken::Over(text)
}

/// For errors that only a newer server avoids.
pub(super) fn explain(error: ClientError, what: &str) -> ClientError {
    match error.code() {
        Some(ErrorCode::UnknownOperation) => {
            let text = "its servers are of a version without open appends; upgrade them, then repeat";
            ClientError::remote(what, ErrorCode::NotSupported, text)
        }
        _ => error,
    }
}
