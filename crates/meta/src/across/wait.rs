//! Requests that meet an inode which an operation across partitions has locked: they wait for its end, a client would
//! ask again and again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use cairn_meta_core::Namespace;
use cairn_rpc::Reply;
use cairn_wire::Opcode;
use cairn_wire::error::WireError;
use cairn_wire::meta::{PrepareTxResponse, TxPrepare};
use prost::Message;
use tokio::sync::watch;

use super::PATIENCE;
use super::serve::prepared;
use crate::partition::Partition;
use crate::stats::count;

/// An end that is not noticed is looked for so often.
const LOOK: Duration = Duration::from_millis(250);

/// How long what is locked is waited for on behalf of another partition, which may have locks itself for which somebody
/// waits here: a little longer than what was decided takes to be finished.
const PREPARE: Duration = Duration::from_millis(20);

/// Waits until a lock ended here since `ends` was looked at, a moment at most.
pub(super) async fn for_end(ends: &mut watch::Receiver<u64>, left: Duration) {
    // Nothing to be waited for is left when the partition closes.
    let _ = tokio::time::timeout(left.min(LOOK), ends.changed()).await;
}

/// Answers a read when what it asks for is not locked any more.
pub(super) async fn read(partition: Arc<Partition>, opcode: Opcode, message: Bytes, reply: Reply) {
    let state = &partition.state;
    let began = Instant::now();
    let mut ends = state.across.unlocked.subscribe();
    loop {
        ends.mark_unchanged();
        if let Err(not_leader) = partition.handle.read_permit() {
            return reply.err(state.common.not_leader(not_leader.hint));
        }
        let mut answer = Vec::new();
        let outcome = state.namespace.read().read(opcode, &message, &mut answer);
        let left = PATIENCE.saturating_sub(began.elapsed());
        match outcome {
            Ok(()) => return reply.ok_with(|out| out.extend_from_slice(&answer), ()),
            Err(error) if Namespace::is_locked_across(&error) && !left.is_zero() => for_end(&mut ends, left).await,
            Err(error) => {
                count(&state.common.stats.errors);
                return reply.err(error);
            }
        }
    }
}

/// Prepares for another partition what another operation has locked, if that ends soon.
pub(super) async fn prepare(partition: Arc<Partition>, data: Bytes, reply: Reply) {
    let began = Instant::now();
    match prepare_when_free(&partition, data, began).await {
        Ok(answer) => reply.ok(&answer, ()),
        Err(error) => reply.err(error),
    }
}

async fn prepare_when_free(partition: &Partition, data: Bytes, began: Instant) -> Result<PrepareTxResponse, WireError> {
    let state = &partition.state;
    let request = TxPrepare::decode(&data[2..]).expect("it was looked at before it came here");
    let mut ends = state.across.unlocked.subscribe();
    loop {
        ends.mark_unchanged();
        let left = PREPARE.saturating_sub(began.elapsed());
        if state.namespace.read().tx_is_free(&request) {
            let answer = prepared(partition.propose_answered(data.clone()).await.as_deref().map_err(WireError::clone))?;
            if !answer.locked {
                return Ok(answer);
            }
        }
        if left.is_zero() {
            return Ok(PrepareTxResponse { locked: true, ..PrepareTxResponse::default() });
        }
        for_end(&mut ends, left).await;
    }
}
