//! Calls to other members: addresses of disks, deadlines of hops, and what a failed call means to whoever asked us.

use std::sync::Arc;
use std::time::Duration;

use cairn_format::pg_state::PgStateRecord;
use cairn_rpc::{CallError, CallOptions, Payload, Response};
use cairn_types::{ChunkId, DiskId, ErrorCode};
use cairn_wire::Opcode;
use cairn_wire::data::{NodeAddress, PgMember, PgState};
use cairn_wire::error::WireError;
use cairn_wire::manager::SuspectReport;
use prost::Message;
use tokio::task::JoinSet;

use super::Inner;

impl Inner {
    /// Where a member's node is.
    pub(crate) fn address(&self, pg: &PgStateRecord, disk: DiskId) -> Result<String, WireError> {
        let node = pg.members.iter().find(|member| member.disk == disk).map(|member| member.node);
        let address = node.and_then(|node| self.addresses.read().get(&node).cloned());
        address.ok_or_else(|| {
            self.poke();
            WireError::chain_failed(disk.get(), format!("the address of {disk} is not known here yet"))
        })
    }

    /// A call that is not on the path of an append.
    pub(crate) async fn ask<M: Message + Default>(
        &self,
        pg: &PgStateRecord,
        disk: DiskId,
        opcode: Opcode,
        request: &impl Message,
        payload: Payload,
    ) -> Result<(M, Response), WireError> {
        let address = self.address(pg, disk)?;
        let bulk = matches!(opcode, Opcode::Read | Opcode::ChunkTable | Opcode::Append | Opcode::Overwrite);
        let deadline = match opcode {
            Opcode::ReserveIndices => self.config.reserve_deadline,
            _ => self.config.peer_deadline,
        };
        let options = CallOptions::new(deadline).protected(self.privacy.protection(pg.volume));
        let options = if bulk { options.bulk() } else { options };
        let answer = self.client.call(&address, opcode.code(), request, payload, options).await;
        let answer = answer.map_err(|error| hop_error(disk, error))?;
        let message = answer.decode().map_err(|error| hop_error(disk, error))?;
        Ok((message, answer))
    }

    /// The same question to several members at once; the answers in the order of the questions.
    pub(crate) async fn ask_each<M, R>(
        self: &Arc<Self>,
        pg: &Arc<PgStateRecord>,
        opcode: Opcode,
        questions: Vec<(DiskId, R)>,
    ) -> Vec<(DiskId, Result<M, WireError>)>
    where
        M: Message + Default + 'static,
        R: Message + 'static,
    {
        let mut calls = JoinSet::new();
        let mut answers: Vec<_> = Vec::with_capacity(questions.len());
        for (i, (disk, request)) in questions.into_iter().enumerate() {
            let lost = WireError::chain_failed(disk.get(), format!("the question to {disk} was given up"));
            answers.push((disk, Err(lost)));
            let (inner, pg) = (self.clone(), pg.clone());
            calls.spawn(async move { (i, inner.ask(&pg, disk, opcode, &request, Payload::None).await) });
        }
        while let Some(call) = calls.join_next().await {
            // A task that was given up leaves its entry as it is.
            if let Ok((i, answer)) = call {
                answers[i].1 = answer.map(|(message, _)| message);
            }
        }
        answers
    }

    /// What the next of `left` members (itself included) may take.
    pub(crate) fn hop_deadline(&self, left: usize, base: Duration) -> Duration {
        base + self.config.hop_margin * u32::try_from(left.saturating_sub(1)).unwrap_or(0)
    }

    /// A member that did not do its part is reported; refusals that say something about the asker are not its fault.
    pub(crate) fn note_hop(&self, pg: &PgStateRecord, error: &WireError) {
        let Some(disk) = error.failed_disk.filter(|_| error.code == ErrorCode::ChainFailed) else { return };
        let why = error.message.clone();
        self.suspect(SuspectReport { disk, pg: pg.pg.get(), epoch: pg.epoch.get(), why });
    }

    /// All known addresses of the members, for those that do not know them.
    pub(crate) fn member_addresses(&self, pg: &PgStateRecord) -> Vec<NodeAddress> {
        let known = self.addresses.read();
        let address = |member: &cairn_format::pg_state::PgStateMember| {
            let address = known.get(&member.node)?.clone();
            Some(NodeAddress { node: member.node.get(), address })
        };
        pg.members.iter().filter_map(address).collect()
    }
}

/// What a failed call to the next member means for the one before it. What says that the view of the asker is old, or
/// that there is no room, is passed on; everything else names the member as failed.
pub(crate) fn hop_error(disk: DiskId, error: CallError) -> WireError {
    match error {
        CallError::Remote(error) => match error.code {
            ErrorCode::StaleEpoch
            | ErrorCode::ChainFailed
            | ErrorCode::ChunkSealed
            | ErrorCode::ChunkDeleted
            | ErrorCode::NoSpace
            | ErrorCode::PgFull
            | ErrorCode::Overloaded
            | ErrorCode::NotServing
            | ErrorCode::NotPrimary
            | ErrorCode::UnknownPg
            | ErrorCode::Missing
            | ErrorCode::NotInPlace
            | ErrorCode::UnknownOperation
            | ErrorCode::BadRequest => error,
            _ => WireError::chain_failed(disk.get(), format!("{disk} failed: {error}")),
        },
        other => WireError::chain_failed(disk.get(), format!("{disk} does not answer: {other}")),
    }
}

/// The connection that all appends of a chunk take, so that they arrive in their order.
pub(crate) fn stream_of(chunk: ChunkId) -> u32 {
    chunk.pg.get().wrapping_mul(0x9e37_79b1).wrapping_add(chunk.index)
}

/// A record as it goes to other members.
pub(crate) fn state_message(pg: &PgStateRecord) -> PgState {
    let member = |member: &cairn_format::pg_state::PgStateMember| PgMember {
        disk: member.disk.get(),
        state: u32::from(member.state.code()),
        node: member.node.get(),
    };
    PgState {
        pg: pg.pg.get(),
        volume: pg.volume.get(),
        scheme: u32::from(pg.scheme.code()),
        epoch: pg.epoch.get(),
        creation_epoch: pg.creation_epoch.get(),
        members: pg.members.iter().map(member).collect(),
        retired: pg.retired,
        // What the primary may have given, nobody gives again.
        index_floor: pg.high_water,
        comparing: pg.comparing,
        older_epoch: pg.older_epoch.get(),
        ..PgState::default()
    }
}
