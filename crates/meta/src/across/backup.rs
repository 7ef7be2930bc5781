//! A backup of all partitions of a volume as of one moment, as the leader of the root's partition has it taken.
//!
//! All hold what changes them, as for a snapshot ([`super::snapshots`]). While they do, each begins a checkpoint of
//! what it has applied; that takes no time, as the file is written behind. Then each goes on, and whoever makes the
//! backup fetches the files.
//!
//! | it is in a checkpoint | because |
//! |---|---|
//! | what was acknowledged before all held | it was applied, and a checkpoint has all that is applied |
//! | nothing that depends on what is in another partition, and not in its checkpoint | that was applied after all held, so what came of it was proposed after that, and waited |
//!
//! So an operation across partitions is in all of the checkpoints or in none: where it was decided and not finished,
//! its record is in the checkpoint of its decider, and what it has locked in those of the others, as after a crash of
//! all at once.
//!
//! Invariant: the first checkpoint is begun after all have answered that they hold; a checkpoint counts if its
//! partition held until it was begun. Nothing is logged. Not here: files ([`cairn_raft_host::Frozen`]).

use std::sync::Arc;
use std::time::{Duration, Instant};

use cairn_raft_host::Frozen;
use cairn_rpc::Reply;
use cairn_types::{ErrorCode, PartitionId};
use cairn_wire::Opcode;
use cairn_wire::error::WireError;
use cairn_wire::meta::{CutCheckpoint, CutCheckpointRequest, CutCheckpointsResponse};
use tokio::time::{sleep, timeout};

use super::drive::header;
use super::snapshots::{Attempt, Cut, HOLD, HOLD_MAX, PAUSE, call_all, others};
use super::{PATIENCE, Peers};
use crate::partition::Partition;

/// Answers whoever makes a backup.
pub(super) async fn answer(partition: Arc<Partition>, peers: Arc<Peers>, reply: Reply) {
    match take(&partition, &peers).await {
        Ok(checkpoints) => reply.ok(&CutCheckpointsResponse { checkpoints }, ()),
        Err(error) => reply.err(error),
    }
}

/// Attempts until one is no failure, or the patience for one request is over.
async fn take(partition: &Arc<Partition>, peers: &Arc<Peers>) -> Result<Vec<CutCheckpoint>, WireError> {
    if !partition.state.namespace.read().is_home() {
        return Err(WireError::new(ErrorCode::BadRequest, "the partition of the root has a volume's backup taken"));
    }
    let since = Instant::now();
    let again = |why: String| {
        WireError::new(ErrorCode::Overloaded, format!("the partitions did not all hold at one moment: {why}; repeat"))
    };
    let Ok(_turn) = timeout(PATIENCE, partition.state.across.cuts.turn.lock()).await else {
        return Err(again("snapshots are being taken".to_owned()));
    };
    let mut hold = HOLD;
    loop {
        let attempt = Attempt::begin(partition, peers)?;
        match attempt.freeze(hold).await {
            Ok(checkpoints) => return Ok(checkpoints),
            Err(why) if since.elapsed() + hold < PATIENCE => {
                tracing::debug!(partition = %partition.state.id, why, "a backup's moment is tried again");
            }
            Err(why) => return Err(again(why)),
        }
        hold = (hold * 2).min(HOLD_MAX);
        sleep(PAUSE).await;
    }
}

impl Attempt<'_> {
    /// Begins a checkpoint of each partition while all hold; else says why not.
    async fn freeze(&self, hold: Duration) -> Result<Vec<CutCheckpoint>, String> {
        let held = self.hold(hold).await.map_err(|cut| match cut {
            Cut::Void(why) => why,
            _ => "somebody did not hold".to_owned(),
        })?;
        let asked = held.into_iter().map(|(to, held)| {
            let header = Some(header(self.partition, to));
            (to, CutCheckpointRequest { header, attempt: Some(self.id), term: held.term })
        });
        let (own, answers) = tokio::join!(
            self.partition.freeze(self.id, self.term),
            call_all::<CutCheckpoint>(self.peers, Opcode::CutCheckpoint, asked.collect())
        );
        let failed = |of: PartitionId, error: WireError| format!("{of} did not take its part: {}", error.message);
        let own_id = self.partition.state.id;
        let mut checkpoints = vec![of(own_id, own.map_err(|error| failed(own_id, error))?)];
        for (from, answer) in answers {
            checkpoints.push(answer.map_err(|error| failed(from, error))?);
        }
        checkpoints.sort_by_key(|checkpoint| checkpoint.partition);
        // One that nobody knew when all held was not asked.
        match others(self.partition, self.peers) == self.others {
            true => Ok(checkpoints),
            false => Err("the volume got another partition meanwhile".to_owned()),
        }
    }
}

fn of(partition: PartitionId, Frozen { node, index, term }: Frozen) -> CutCheckpoint {
    CutCheckpoint { partition: partition.get(), node: node.0, index, term }
}

/// What the leader of the root's partition asks of another one.
pub(super) async fn freeze(partition: Arc<Partition>, request: CutCheckpointRequest, reply: Reply) {
    let Some(attempt) = request.attempt else {
        return reply.err(WireError::new(ErrorCode::BadRequest, "a request of no attempt"));
    };
    match partition.freeze(attempt, request.term).await {
        Ok(frozen) => reply.ok(&of(partition.state.id, frozen), ()),
        Err(error) => reply.err(error),
    }
}
