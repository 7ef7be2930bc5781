//! Locks that are left over: who has them asks what became of the operation, and ends them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use cairn_meta_core::TxId;
use cairn_types::{PartitionId, Time};
use cairn_wire::Opcode;
use cairn_wire::meta::{AskTxRequest, AskTxResponse, TxFinish, TxState};
use tokio::task::JoinSet;

use super::serve::MANY;
use super::{CALL, Peers, drive};
use crate::partition::Partition;
use crate::stats::count;

/// A lock is asked about after it was seen for so long. Most end by themselves, after some milliseconds.
const AGE: Duration = Duration::from_secs(1);

pub(super) async fn run(partition: &Arc<Partition>, peers: &Arc<Peers>, tick: Duration) {
    let state = &partition.state;
    // When each lock was seen first.
    let mut seen: BTreeMap<TxId, Time> = BTreeMap::new();
    loop {
        state.pause(tick).await;
        if state.leading_term().is_none() {
            seen.clear();
            continue;
        }
        let locks = state.namespace.read().tx_locks(super::UNDER_WAY_MAX);
        let now = state.common.clock.now();
        seen.retain(|tx, _| locks.iter().any(|(held, _)| held == tx));
        let mut old: BTreeMap<PartitionId, Vec<(TxId, u64)>> = BTreeMap::new();
        for (tx, lock) in locks {
            let since = *seen.entry(tx).or_insert(now);
            let of_decider = old.entry(PartitionId(tx.partition)).or_default();
            if now.since(since) >= AGE && of_decider.len() < MANY {
                of_decider.push((tx, lock.number));
            }
        }
        // Side by side: one that does not answer keeps no other one waiting.
        let mut asked = JoinSet::new();
        for (decider, locks) in old.into_iter().filter(|(_, locks)| !locks.is_empty()) {
            asked.spawn(resolve(partition.clone(), peers.clone(), decider, locks));
        }
        while asked.join_next().await.is_some() {}
    }
}

async fn resolve(partition: Arc<Partition>, peers: Arc<Peers>, decider: PartitionId, locks: Vec<(TxId, u64)>) {
    let state = &partition.state;
    let request = AskTxRequest {
        header: Some(drive::header(&partition, decider)),
        txs: locks.iter().map(|(tx, _)| tx.wire()).collect(),
        participant: state.id.get(),
    };
    let answer: AskTxResponse = match peers.call(decider, Opcode::AskTx, &request, CALL).await {
        Ok(answer) => answer,
        Err(error) => {
            tracing::debug!(partition = %state.id, %decider, %error, "nobody says what became of operations; will be repeated");
            return;
        }
    };
    for answer in answer.answers {
        let tx = answer.tx.map(TxId::from_wire);
        let Some((tx, lock)) = locks.iter().find(|(asked, _)| Some(*asked) == tx) else { continue };
        let effects = match answer.state() {
            TxState::TxOpen => continue,
            TxState::TxVoid => None,
            TxState::TxDone => answer.effects,
        };
        let finish = TxFinish { tx: Some(tx.wire()), effects, lock: *lock };
        match partition.propose_own(Opcode::TxFinish, &finish).await {
            Ok(()) => {
                count(&state.common.stats.across_resolved);
                tracing::debug!(partition = %state.id, ?tx, "a lock that was left over is ended");
            }
            Err(error) => {
                tracing::debug!(partition = %state.id, ?tx, %error, "a lock could not be ended; will be repeated");
            }
        }
    }
}
