//! One column of an open stripe set: a replicated chunk that takes this session's appends.
use super::Event;
use crate::append::lane::Lane;
use crate::append::segment::block_crcs;
use crate::append::target::Target;
use crate::cluster::Cluster;
use crate::net::{NetError, stream_of};
use crate::stripe::suspects::Seen;
use cairn_env::buf::SharedBuf;
use cairn_rpc::{CallOptions, Payload};
use cairn_types::{ChunkId, Time};
use cairn_wire::Opcode;
use cairn_wire::data::{
    AppendRequest, AppendResponse, ChunkHeader, MemberStamp, SealRequest, SealResponse, SyncRequest, SyncResponse,
};
use std::time::Duration;
use tokio::sync::mpsc::UnboundedSender;

/// Deadline of an append, longer than what members give the disks further down the chain.
const APPEND_DEADLINE: Duration = Duration::from_secs(6);
const SYNC_DEADLINE: Duration = Duration::from_secs(10);
/// The primary seals idle chunks anyway.
const SEAL_DEADLINE: Duration = Duration::from_secs(2);

/// How far a column is durable, and who said so. An append without a sync says nothing about that.
pub(crate) struct Answer {
    durable: u64,
    members: Vec<MemberStamp>,
}

/// Where the answers of a set's columns go.
#[derive(Clone)]
pub(crate) struct Answers {
    pub set: u64,
    pub to: UnboundedSender<Event>,
}

pub(crate) struct Column {
    pub(crate) chunk: Lane,
    /// Bytes that were sent, that a sync was asked for, that all members have durably, and that the set keeps.
    pub(crate) end: u64,
    sync_asked: u64,
    pub(crate) durable: u64,
    pub(crate) kept: u64,
}

impl Column {
    pub(crate) fn new(chunk: Lane) -> Self {
        Self { chunk, end: 0, sync_asked: 0, durable: 0, kept: 0 }
    }
    pub(crate) fn id(&self) -> ChunkId {
        self.chunk.made.chunk
    }
    pub(crate) fn seen(&self, target: Target) -> Seen {
        Seen { session: target.session, pg: self.chunk.made.chunk.pg.0, epoch: self.chunk.made.epoch.0 }
    }
    fn header(&self, target: Target) -> ChunkHeader {
        let ChunkId { pg, index } = self.chunk.made.chunk;
        ChunkHeader {
            disk: self.chunk.head,
            pg: pg.0,
            index,
            epoch: self.chunk.made.epoch.0,
            session: target.session.0,
        }
    }
    /// Appends units, only the last of which may be short. It is queued when this returns: appends arrive in order.
    pub(crate) fn send(
        &mut self,
        cluster: &Cluster,
        target: Target,
        (number, sync): (usize, bool),
        parts: Vec<SharedBuf>,
        answers: Answers,
    ) {
        let request = AppendRequest {
            chunk: Some(self.header(target)),
            creation_epoch: self.chunk.made.creation_epoch,
            offset: self.end,
            crcs: parts.iter().flat_map(|part| block_crcs(part)).collect(),
            chain: self.chunk.chain.clone(),
            sync,
            scheme: u32::from(self.chunk.made.scheme),
            repair: false,
            row_crcs: Vec::new(),
            follows: None,
            local: None,
        };
        self.end += parts.iter().map(|part| part.len() as u64).sum::<u64>();
        if sync {
            self.sync_asked = self.end;
        }
        self.chunk.silence.asked(cluster.clock.now());
        let deadline = if sync { SYNC_DEADLINE } else { APPEND_DEADLINE };
        let options = CallOptions::new(deadline).bulk().stream(stream_of(self.chunk.made.chunk));
        let call = cluster.disk_address(self.chunk.head).map(|address| {
            let payload = Payload::Many(parts);
            cluster.net.call_with::<AppendResponse, _>(&address, Opcode::Append, &request, payload, options)
        });
        tokio::spawn(async move {
            let result = match call {
                Ok(call) => call.await,
                Err(error) => Err(error),
            };
            let durable = |a: &AppendResponse| if sync { a.durable_length } else { 0 };
            let result = result.map(|(a, _)| Answer { durable: durable(&a), members: a.members });
            let _ended = answers.to.send(Event::Answered { set: answers.set, number, result });
        });
    }
    /// Asks for a sync of what none was asked for.
    pub(crate) fn sync(&mut self, cluster: &Cluster, target: Target, number: usize, answers: Answers) {
        if self.sync_asked == self.end {
            return;
        }
        self.sync_asked = self.end;
        self.chunk.silence.asked(cluster.clock.now());
        let request = SyncRequest { chunk: Some(self.header(target)), chain: self.chunk.chain.clone() };
        let (address, net) = (cluster.disk_address(self.chunk.head), cluster.net.clone());
        // On the connection of the appends, and so behind them.
        let options = CallOptions::new(SYNC_DEADLINE).bulk().stream(stream_of(self.chunk.made.chunk));
        let call = address
            .map(|address| net.call_with::<SyncResponse, _>(&address, Opcode::Sync, &request, Payload::None, options));
        tokio::spawn(async move {
            let result = match call {
                Ok(call) => call.await,
                Err(error) => Err(error),
            };
            let result = result.map(|(a, _)| Answer { durable: a.durable_length, members: a.members });
            let _ended = answers.to.send(Event::Answered { set: answers.set, number, result });
        });
    }
    /// Holds an answer against what was promised: every serving member, in its first incarnation.
    pub(crate) fn take(&mut self, answer: Answer, now: Time) -> std::result::Result<(), NetError> {
        self.chunk.check(&answer.members).map_err(NetError::Unknown)?;
        self.chunk.silence.answered(now);
        self.durable = self.durable.max(answer.durable);
        Ok(())
    }
    /// Best effort.
    pub(crate) fn seal(&self, cluster: &Cluster, target: Target) {
        let request = SealRequest { chunk: Some(self.header(target)), chain: self.chunk.chain.clone() };
        let Ok(address) = cluster.disk_address(self.chunk.head) else { return };
        let net = cluster.net.clone();
        tokio::spawn(async move {
            if let Err(error) = net.call::<SealResponse>(&address, Opcode::Seal, &request, SEAL_DEADLINE).await {
                tracing::debug!(error = error.text(), "a column was left to be sealed by its primary");
            }
        });
    }
}
