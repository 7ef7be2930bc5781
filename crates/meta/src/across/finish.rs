//! What was decided here is carried out by its participants: each is told until it has answered, then the record goes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use cairn_meta_core::TxId;
use cairn_types::PartitionId;
use cairn_wire::Opcode;
use cairn_wire::common::Empty;
use cairn_wire::error::WireError;
use cairn_wire::meta::{FinishTxRequest, TxDecided, TxDone, TxFinish};
use tokio::task::JoinSet;

use super::serve::MANY;
use super::{CALL, Peers, drive};
use crate::partition::Partition;

/// Records that are known at a time. No more come about than operations are under way.
const RECORDS_MAX: usize = 2 * super::UNDER_WAY_MAX;
/// All records are looked at so often: a new leader finds what the one before left.
const LOOK: Duration = Duration::from_millis(500);

/// Records that all participants have finished are dropped together, when there are so many or at the next look.
const DROP: usize = MANY;

/// A participant has been told, or not.
type Told = (PartitionId, Vec<TxId>, Result<Empty, WireError>);

#[derive(Default)]
struct Finisher {
    term: u64,
    /// Who has not done his part, of records that are known.
    open: BTreeMap<TxId, BTreeSet<PartitionId>>,
    /// What each is to be told.
    to_tell: BTreeMap<PartitionId, BTreeSet<TxId>>,
    /// Records of which all have done their part.
    done: BTreeSet<TxId>,
    /// Who is being told.
    busy: BTreeSet<PartitionId>,
    calls: JoinSet<Told>,
    /// The entry that drops records, while it is under way, and which.
    dropping: JoinSet<(BTreeSet<TxId>, Result<(), WireError>)>,
}

pub(super) async fn run(partition: &Arc<Partition>, peers: &Arc<Peers>) {
    let across = &partition.state.across;
    let mut finisher = Finisher::default();
    let mut look = std::pin::pin!(partition.state.pause(Duration::ZERO));
    loop {
        let mut all = false;
        tokio::select! {
            () = across.decided.notified() => {}
            () = &mut look => {
                all = true;
                look.set(partition.state.pause(LOOK));
            }
            Some(told) = finisher.calls.join_next() => {
                if let Ok(told) = told {
                    finisher.note(told);
                }
            }
            Some(dropped) = finisher.dropping.join_next() => {
                if let Ok(dropped) = dropped {
                    finisher.note_dropped(dropped);
                }
                continue;
            }
        }
        let Some(term) = partition.state.leading_term() else { continue };
        if finisher.term != term {
            finisher = Finisher { term, ..Finisher::default() };
            all = true;
        }
        let decided = std::mem::take(&mut *across.decisions.lock());
        let found: Vec<_> = {
            let namespace = partition.state.namespace.read();
            let of = |tx: TxId| Some((tx, namespace.tx_decision(tx)?));
            if all { namespace.tx_decisions(RECORDS_MAX) } else { decided.into_iter().filter_map(of).collect() }
        };
        finisher.learn(&found);
        finisher.go_on(partition, peers, all);
    }
}

impl Finisher {
    /// Takes records over that it does not know.
    fn learn(&mut self, records: &[(TxId, TxDecided)]) {
        for (tx, record) in records {
            if self.open.contains_key(tx) || self.done.contains(tx) || self.open.len() >= RECORDS_MAX {
                continue;
            }
            let participants: BTreeSet<PartitionId> =
                record.effects.iter().map(|effects| PartitionId(effects.partition)).collect();
            for participant in &participants {
                self.to_tell.entry(*participant).or_default().insert(*tx);
            }
            if participants.is_empty() {
                self.done.insert(*tx);
            } else {
                self.open.insert(*tx, participants);
            }
        }
    }

    fn note(&mut self, (participant, txs, outcome): Told) {
        self.busy.remove(&participant);
        if let Err(error) = outcome {
            tracing::debug!(%participant, %error, "what was decided was not told; will be repeated");
            return self.to_tell.entry(participant).or_default().extend(txs);
        }
        for tx in txs {
            let Some(left) = self.open.get_mut(&tx) else { continue };
            left.remove(&participant);
            if left.is_empty() {
                self.open.remove(&tx);
                self.done.insert(tx);
            }
        }
    }

    fn note_dropped(&mut self, (txs, outcome): (BTreeSet<TxId>, Result<(), WireError>)) {
        match outcome {
            Ok(()) => self.done.retain(|tx| !txs.contains(tx)),
            Err(error) => tracing::debug!(%error, "records could not be dropped; will be repeated"),
        }
    }

    /// Tells everybody who was not told, and forgets what all have done: what is dropped a little later costs nobody
    /// anything.
    fn go_on(&mut self, partition: &Arc<Partition>, peers: &Arc<Peers>, all: bool) {
        let free = |participant: &PartitionId| !self.busy.contains(participant);
        let participants: Vec<PartitionId> = self.to_tell.keys().copied().filter(free).collect();
        for participant in participants {
            let finishes = self.next_of(participant, |tx| partition.state.namespace.read().tx_decision(tx));
            if !finishes.is_empty() {
                self.tell(partition, peers, participant, finishes);
            }
        }
        if self.dropping.is_empty() && (self.done.len() >= DROP || all && !self.done.is_empty()) {
            let (partition, txs) = (partition.clone(), self.done.clone());
            self.dropping.spawn(async move {
                let request = TxDone { txs: txs.iter().map(|tx| tx.wire()).collect() };
                let outcome = partition.propose_own(Opcode::TxDone, &request).await;
                (txs, outcome)
            });
        }
    }

    /// What a participant is told next.
    fn next_of(&mut self, participant: PartitionId, record: impl Fn(TxId) -> Option<TxDecided>) -> Vec<TxFinish> {
        let Some(waiting) = self.to_tell.get_mut(&participant) else { return Vec::new() };
        let mut finishes = Vec::new();
        while finishes.len() < MANY
            && let Some(tx) = waiting.pop_first()
        {
            let effects = record(tx)
                .and_then(|record| record.effects.into_iter().find(|effects| effects.partition == participant.get()));
            match effects {
                Some(effects) => {
                    finishes.push(TxFinish { tx: Some(tx.wire()), lock: effects.lock, effects: Some(effects) });
                }
                // The record went: somebody else has finished it.
                None => drop(self.open.remove(&tx)),
            }
        }
        if waiting.is_empty() {
            self.to_tell.remove(&participant);
        }
        finishes
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

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_wire::meta::TxEffects;

    fn tx(number: u64) -> TxId {
        TxId { partition: 1, term: 1, number }
    }

    fn record(participants: &[u32]) -> TxDecided {
        let effects = participants.iter().map(|partition| TxEffects { partition: *partition, ..TxEffects::default() });
        TxDecided { effects: effects.collect() }
    }

    /// A record would go before all have done their part, be told for ever, or each decision look at all that a
    /// participant which is away has not heard.
    #[test]
    fn each_participant_is_told_until_it_has_answered() {
        let records: BTreeMap<TxId, TxDecided> = (0..600).map(|number| (tx(number), record(&[2, 3]))).collect();
        let looked_up = std::cell::Cell::new(0);
        let look_up = |tx: TxId| {
            looked_up.set(looked_up.get() + 1);
            records.get(&tx).cloned()
        };
        let mut finisher = Finisher::default();
        finisher.learn(&records.clone().into_iter().collect::<Vec<_>>());
        let told =
            |finishes: &[TxFinish]| finishes.iter().filter_map(|f| f.tx).map(TxId::from_wire).collect::<Vec<_>>();
        let first = told(&finisher.next_of(PartitionId(2), look_up));
        assert_eq!((first.len(), looked_up.get()), (MANY, MANY), "as much as it is told");
        finisher.note((
            PartitionId(2),
            first.clone(),
            Err(WireError::new(cairn_types::ErrorCode::Unavailable, "away")),
        ));
        assert_eq!(told(&finisher.next_of(PartitionId(2), look_up)), first, "it is told again");
        finisher.note((PartitionId(2), first.clone(), Ok(Empty {})));
        assert!(finisher.done.is_empty(), "the other one has not heard of it");
        let second = told(&finisher.next_of(PartitionId(3), look_up));
        finisher.note((PartitionId(3), second.clone(), Ok(Empty {})));
        assert_eq!(finisher.done.iter().copied().collect::<Vec<_>>(), first);
        // They are known, and looked at no more.
        finisher.learn(&records.into_iter().collect::<Vec<_>>());
        assert_eq!((finisher.open.len(), finisher.to_tell[&PartitionId(3)].len()), (600 - MANY, 600 - MANY));
        assert!(finisher.next_of(PartitionId(3), |_| None).is_empty());
        assert!(finisher.open.is_empty() && !finisher.to_tell.contains_key(&PartitionId(3)), "the records went");
    }
}
