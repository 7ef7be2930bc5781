//! [`Ahead`]: inodes that other partitions have given out before a new directory needs them.
//!
//! A directory that is made elsewhere needs an id from there first: an entry of the other one's log. While directories
//! go to a partition one after the other, operations are begun before their requests come, each with an id prepared. A
//! request takes one of them and is decided at once. What nobody takes is given back after a moment.
//!
//! Invariant: what is kept here belongs to operations that are open; who takes one ends it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cairn_meta_core::TxId;
use cairn_types::PartitionId;
use cairn_wire::Opcode;
use cairn_wire::meta::{PrepareTxRequest, PrepareTxResponse, TxParticipant, TxPrepare};
use parking_lot::Mutex;

use super::{CALL, Peers, drive};
use crate::partition::Partition;

/// What nobody takes for so long is given back. Less than what makes the other partition ask for it.
const KEEP: Duration = Duration::from_millis(800);
/// Most that are kept for a partition.
const MANY: usize = 16;
/// From so many directories in a row on, more are expected.
const SEVERAL: u32 = 2;

/// An operation that is open and has an id of a partition.
pub(super) type Begun = (TxId, TxParticipant);

#[derive(Default)]
pub(super) struct Ahead {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    /// In which all of it was begun.
    term: u64,
    stocks: BTreeMap<PartitionId, Stock>,
}

struct Stock {
    begun: VecDeque<(Instant, Begun)>,
    /// Being prepared.
    asked: usize,
    /// As many as there are to be.
    wanted: usize,
    /// Directories that were made there since there is this stock.
    made: u32,
    /// When that was last.
    used: Instant,
}

impl Inner {
    /// Takes one.
    fn take(&mut self, term: u64, of: PartitionId) -> Option<Begun> {
        let stock = self.stocks.get_mut(&of).filter(|_| self.term == term)?;
        let taken = stock.begun.pop_front().map(|(_, begun)| begun);
        if taken.is_none() && stock.made >= SEVERAL {
            stock.wanted = (stock.wanted * 2).clamp(1, MANY);
        }
        taken
    }

    /// A directory was made there; says how many are to be prepared now.
    fn made(&mut self, term: u64, of: PartitionId, now: Instant) -> usize {
        if self.term != term {
            *self = Inner { term, ..Inner::default() };
        }
        let empty = || Stock { begun: VecDeque::new(), asked: 0, wanted: 0, made: 0, used: now };
        let stock = self.stocks.entry(of).or_insert_with(empty);
        (stock.made, stock.used) = (stock.made.saturating_add(1), now);
        if stock.made == SEVERAL {
            stock.wanted = stock.wanted.max(1);
        }
        // They come together, which is one write to the other one's log.
        let there = stock.begun.len() + stock.asked;
        let lacking = if there * 2 <= stock.wanted { stock.wanted - there } else { 0 };
        stock.asked += lacking;
        lacking
    }

    /// Keeps one that is prepared, or gives it back.
    fn put(&mut self, of: PartitionId, begun: Option<Begun>, now: Instant) -> Option<Begun> {
        let term = self.term;
        let Some(stock) = self.stocks.get_mut(&of) else { return begun };
        stock.asked = stock.asked.saturating_sub(1);
        match begun {
            Some(begun) if begun.0.term == term => stock.begun.push_back((now, begun)),
            other => return other,
        }
        None
    }

    /// What has not been taken for long, and the partitions that have nothing any more.
    fn expire(&mut self, now: Instant, keep: Duration) -> Vec<Begun> {
        let mut old = Vec::new();
        for stock in self.stocks.values_mut() {
            while let Some((_, begun)) = stock.begun.pop_front_if(|(since, _)| now.duration_since(*since) >= keep) {
                stock.wanted /= 2;
                old.push(begun);
            }
        }
        self.stocks
            .retain(|_, stock| stock.asked > 0 || !stock.begun.is_empty() || now.duration_since(stock.used) < KEEP);
        old
    }
}

impl Ahead {
    /// An operation with an id of a partition, if one is there.
    pub(super) fn take(&self, term: u64, of: PartitionId) -> Option<Begun> {
        self.inner.lock().take(term, of)
    }

    /// A directory was made elsewhere: has others prepared where more are likely to come. Attempts say nothing about
    /// that: one directory may take many.
    pub(super) fn note_made(&self, partition: &Arc<Partition>, peers: &Arc<Peers>, term: u64, of: PartitionId) {
        // What waits here takes room from the limit of a volume.
        if partition.state.namespace.read().has_volume_limit() {
            return;
        }
        for _ in 0..self.inner.lock().made(term, of, Instant::now()) {
            tokio::spawn(prepare(partition.clone(), peers.clone(), term, of));
        }
    }
}

async fn prepare(partition: Arc<Partition>, peers: Arc<Peers>, term: u64, of: PartitionId) {
    let across = &partition.state.across;
    let tx = across.begin(term);
    let prepare = TxPrepare { tx: Some(tx.wire()), new_inode: true, ..TxPrepare::default() };
    let request = PrepareTxRequest { header: Some(drive::header(&partition, of)), prepare: Some(prepare) };
    let answer = peers.call::<PrepareTxResponse>(of, Opcode::PrepareTx, &request, CALL).await;
    let prepared = answer.ok().and_then(|answer| answer.prepared);
    let participant = TxParticipant { partition: of.get(), prepared, ..TxParticipant::default() };
    let begun = participant.prepared.is_some().then_some((tx, participant));
    let is_begun = begun.is_some();
    let back = across.ahead.inner.lock().put(of, begun, Instant::now());
    match back {
        Some(begun) => give_back(&partition, &peers, begun),
        // What it may have left there is asked for, and ended.
        None if !is_begun => across.end(tx),
        None => {}
    }
}

fn give_back(partition: &Arc<Partition>, peers: &Arc<Peers>, (tx, participant): Begun) {
    partition.state.across.end(tx);
    drive::release(partition, peers, tx, vec![participant]);
}

/// Gives back what nobody takes.
pub(super) async fn run(partition: &Arc<Partition>, peers: &Arc<Peers>) {
    loop {
        partition.state.pause(KEEP / 4).await;
        let keep = if partition.state.namespace.read().has_volume_limit() { Duration::ZERO } else { KEEP };
        let old = partition.state.across.ahead.inner.lock().expire(Instant::now(), keep);
        old.into_iter().for_each(|begun| give_back(partition, peers, begun));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const P: PartitionId = PartitionId(2);

    fn begun(term: u64, number: u64) -> Begun {
        (TxId { partition: 1, term, number }, TxParticipant { partition: 2, ..TxParticipant::default() })
    }

    /// One directory elsewhere would reserve ids for nothing, or a stream of them wait for each.
    #[test]
    fn what_is_wanted_again_is_there() {
        let (mut inner, start) = (Inner::default(), Instant::now());
        assert_eq!((inner.take(7, P), inner.made(7, P, start)), (None, 0), "it may be the only one");
        assert_eq!((inner.take(7, P), inner.made(7, P, start)), (None, 1));
        assert_eq!(inner.put(P, Some(begun(7, 1)), start), None);
        let (mut number, mut taken) = (1, 0);
        for _ in 0..100 {
            taken += u64::from(inner.take(7, P).is_some());
            for _ in 0..inner.made(7, P, start) {
                number += 1;
                assert_eq!(inner.put(P, Some(begun(7, number)), start), None);
            }
        }
        assert_eq!(taken, 100);
        assert!((100..=100 + MANY as u64).contains(&number), "{number}");
        // Several at a time.
        (0..40).for_each(|_| drop(inner.take(7, P)));
        assert_eq!(inner.made(7, P, start), MANY);
    }

    /// Ids would stay reserved for ever; or one of an earlier term be decided, of which others have heard that it was
    /// not done.
    #[test]
    fn what_nobody_takes_is_given_back() {
        let (mut inner, start) = (Inner::default(), Instant::now());
        assert_eq!((0..SEVERAL).map(|_| inner.made(7, P, start)).sum::<usize>(), 1);
        assert_eq!(inner.put(P, Some(begun(7, 1)), start), None);
        assert_eq!(inner.expire(start + KEEP / 2, KEEP), []);
        assert_eq!(inner.expire(start + KEEP, KEEP), [begun(7, 1)]);
        assert!(inner.stocks.is_empty());
        assert_eq!((0..SEVERAL).map(|_| inner.made(7, P, start)).sum::<usize>(), 1);
        assert_eq!(inner.put(P, Some(begun(7, 2)), start), None);
        assert_eq!(inner.take(8, P), None, "another term");
        inner.made(8, P, start);
        assert_eq!(inner.put(P, Some(begun(7, 3)), start), Some(begun(7, 3)));
        assert_eq!(inner.take(8, P), None);
    }
}
