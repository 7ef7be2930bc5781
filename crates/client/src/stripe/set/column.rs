//! One column of an open stripe set: a replicated chunk that takes this session's appends, each synced.
use crate::append::chunk::OpenChunk;
use crate::append::open::Target;
use crate::append::segment::block_crcs;
use crate::cluster::Cluster;
use crate::net::{NetError, stream_of};
use cairn_env::buf::SharedBuf;
use cairn_rpc::{CallOptions, Payload};
use cairn_types::ChunkId;
use cairn_wire::Opcode;
use cairn_wire::data::{AppendRequest, AppendResponse, ChunkHeader, SealRequest, SealResponse};
use std::time::Duration;

/// Deadline of a synced append through the chain.
const DEADLINE: Duration = Duration::from_secs(10);
/// The primary seals idle chunks anyway.
const SEAL_DEADLINE: Duration = Duration::from_secs(2);

/// What a column answered, and up to where it has to be durable.
pub(crate) struct ColumnRound {
    end: u64,
    answer: std::result::Result<AppendResponse, NetError>,
}

pub(crate) struct Column {
    chunk: OpenChunk,
    end: u64,
}

impl Column {
    pub(crate) fn new(chunk: OpenChunk) -> Self {
        Self { chunk, end: 0 }
    }
    pub(crate) fn id(&self) -> ChunkId {
        self.chunk.id
    }
    pub(crate) fn primary(&self) -> u32 {
        self.chunk.primary
    }
    pub(crate) fn epoch(&self) -> u64 {
        self.chunk.epoch.0
    }
    fn header(&self, target: Target) -> ChunkHeader {
        let ChunkId { pg, index } = self.chunk.id;
        ChunkHeader { disk: self.chunk.primary, pg: pg.0, index, epoch: self.chunk.epoch.0, session: target.session.0 }
    }
    /// Appends units, only the last of which may be short. It is queued when this returns: appends arrive in order.
    pub(crate) fn send(
        &mut self,
        cluster: &Cluster,
        target: Target,
        parts: Vec<SharedBuf>,
    ) -> impl Future<Output = ColumnRound> + Send + use<> {
        let request = AppendRequest {
            chunk: Some(self.header(target)),
            creation_epoch: self.chunk.creation_epoch,
            offset: self.end,
            crcs: parts.iter().flat_map(|part| block_crcs(part)).collect(),
            chain: self.chunk.chain.clone(),
            sync: true,
            scheme: u32::from(self.chunk.scheme),
            repair: false,
            row_crcs: Vec::new(),
        };
        self.end += parts.iter().map(|part| part.len() as u64).sum::<u64>();
        let end = self.end;
        let options = CallOptions::new(DEADLINE).bulk().stream(stream_of(self.chunk.id));
        let call = cluster.disk_address(self.chunk.primary).map(|address| {
            let payload = Payload::Many(parts);
            cluster.net.call_with::<AppendResponse, _>(&address, Opcode::Append, &request, payload, options)
        });
        async move {
            let answer = match call {
                Ok(call) => call.await.map(|(answer, _)| answer),
                Err(error) => Err(error),
            };
            ColumnRound { end, answer }
        }
    }
    /// Holds the answer against what was promised: every serving member, durable, in its first incarnation.
    pub(crate) fn check(&mut self, round: ColumnRound) -> std::result::Result<(), NetError> {
        let answer = round.answer?;
        self.chunk.check_stamps(&answer.members).map_err(NetError::Unknown)?;
        match answer.durable_length >= round.end {
            true => Ok(()),
            false => Err(NetError::Unknown(format!("{} is durable only to {}", self.chunk.id, answer.durable_length))),
        }
    }
    /// Best effort.
    pub(crate) fn seal(&self, cluster: &Cluster, target: Target) {
        let request = SealRequest { chunk: Some(self.header(target)), chain: self.chunk.chain.clone() };
        let Ok(address) = cluster.disk_address(self.chunk.primary) else { return };
        let net = cluster.net.clone();
        tokio::spawn(async move {
            if let Err(error) = net.call::<SealResponse>(&address, Opcode::Seal, &request, SEAL_DEADLINE).await {
                tracing::debug!(error = error.text(), "a column was left to be sealed by its primary");
            }
        });
    }
}
