//! What was decided here is carried out by its participants: each is told until it has answered, then the record goes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use cairn_meta_core::TxId;
use cairn_types::PartitionId;
use cairn_wire::Opcode;
use cairn_wire::common::Empty;
use cairn_wire::error::WireError;
use cairn_wire::meta::{FinishTxRequest, TxDone, TxFinish};
use tokio::task::JoinSet;

use super::serve::MANY;
use super::{CALL, Peers, drive};
use crate::partition::Partition;

/// Records that are looked at together. No more come about than operations are under way.
const RECORDS_MAX: usize = 2 * super::UNDER_WAY_MAX;
/// What was decided is looked for at least so often: a new leader finds what the one before left.
const LOOK: Duration = Duration::from_millis(500);

/// A participant has been told, or not.
type Told = (PartitionId, Vec<TxId>, Result<Empty, WireError>);

#[derive(Default)]
struct Finisher {
    term: u64,
    /// Who has done his part, of records that are still there.
    finished: BTreeMap<TxId, BTreeSet<PartitionId>>,
    /// Who is being told.
    busy: BTreeSet<PartitionId>,
    calls: JoinSet<Told>,
}

pub(super) async fn run(partition: &Arc<Partition>, peers: &Arc<Peers>) {
    let across = &partition.state.across;
    let mut finisher = Finisher::default();
    loop {
        tokio::select! {
            () = across.decided.notified() => {}
            () = tokio::time::sleep(LOOK) => {}
            Some(told) = finisher.calls.join_next() => {
                if let Ok(told) = told {
                    finisher.note(told);
                }
            }
        }
        let Some(term) = partition.state.leading_term() else { continue };
        if finisher.term != term {
            finisher = Finisher { term, ..Finisher::default() };
        }
        finisher.go_on(partition, peers).await;
    }
}

impl Finisher {
    fn note(&mut self, (participant, txs, outcome): Told) {
        self.busy.remove(&participant);
        match outcome {
            Ok(_) => txs.into_iter().for_each(|tx| {
                self.finished.entry(tx).or_default().insert(participant);
            }),
            // It is told again when the next look comes.
            Err(error) => tracing::debug!(%participant, %error, "what was decided was not told; will be repeated"),
        }
    }

    /// Tells everybody who was not told, and forgets what all have done.
    async fn go_on(&mut self, partition: &Arc<Partition>, peers: &Arc<Peers>) {
        let records = partition.state.namespace.read().tx_decisions(RECORDS_MAX);
        let mut done = Vec::new();
        let mut to_tell: BTreeMap<PartitionId, Vec<TxFinish>> = BTreeMap::new();
        for (tx, record) in &records {
            let finished = self.finished.get(tx);
            let mut all = true;
            for effects in &record.effects {
                let participant = PartitionId(effects.partition);
                if finished.is_some_and(|finished| finished.contains(&participant)) {
                    continue;
                }
                all = false;
                let finishes = to_tell.entry(participant).or_default();
                if finishes.len() < MANY && !self.busy.contains(&participant) {
                    let (lock, effects) = (effects.lock, Some(effects.clone()));
                    finishes.push(TxFinish { tx: Some(tx.wire()), effects, lock });
                }
            }
            if all {
                done.push(*tx);
            }
        }
        let kept: BTreeSet<TxId> = records.iter().map(|(tx, _)| *tx).collect();
        self.finished.retain(|tx, _| kept.contains(tx));
        for (participant, finishes) in to_tell.into_iter().filter(|(_, finishes)| !finishes.is_empty()) {
            self.tell(partition, peers, participant, finishes);
        }
        if !done.is_empty() {
            let request = TxDone { txs: done.iter().map(|tx| tx.wire()).collect() };
            if let Err(error) = partition.propose_own(Opcode::TxDone, &request).await {
                tracing::debug!(partition = %partition.state.id, %error, "records could not be dropped; will be repeated");
            }
        }
    }

    fn tell(
        &mut self,
        partition: &Arc<Partition>,
        peers: &Arc<Peers>,
        participant: PartitionId,
        finishes: Vec<TxFinish>,
    ) {
        let txs = finishes.iter().filter_map(|finish| finish.tx).map(TxId::from_wire).collect();
        let request = FinishTxRequest { header: Some(drive::header(partition, participant)), finishes };
        let peers = peers.clone();
        self.busy.insert(participant);
        self.calls.spawn(async move {
            let outcome = peers.call(participant, Opcode::FinishTx, &request, CALL).await;
            if outcome.is_err() {
                // A pause before it is told again; others are told meanwhile.
                tokio::time::sleep(LOOK).await;
            }
            (participant, txs, outcome)
        });
    }
}
