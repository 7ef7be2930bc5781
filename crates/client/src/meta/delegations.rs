//! Directories that this client leads: [`Delegations`], the table of one volume.
//!
//! A directory that was made with [`Volume::leading`](crate::Volume::leading) may be led: what is done below it is
//! answered here, by the machine of `cairn-delegate-core`, and stored behind. One idea a file: which numbers are led
//! ([`ranges`]), a delegation with its machine ([`held`]), who sends its batches ([`send`]), which requests are for it
//! ([`way`]), how it begins and is given back ([`grant`]), memory that outlives this process ([`memory`]), what a dead
//! one led ([`dead`]).
//!
//! Invariants: a number is entered at most once, and never after the partition wanted it back while nobody here knew
//! of it. What was lost stays in the table, so that whoever comes to it gets an error instead of half of the truth.
pub(crate) mod dead;
mod grant;
mod held;
pub(crate) mod memory;
mod ranges;
mod send;
#[cfg(test)]
mod tests;
pub(super) mod way;

use super::session::Session;
use crate::error::{ClientError, Result};
use crate::refusal::Refusal;
use cairn_delegate_core::way::Way;
use cairn_types::Time;
use cairn_wire::Opcode;
use cairn_wire::error::WireError;
use held::Held;
use memory::QueueMemory;
use parking_lot::Mutex;
use ranges::Ranges;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Directories that are led at a time; each has a slot of the session for itself.
const HELD_MAX: usize = 64;
/// Where they are all taken, one that nobody used for so long makes room for what is made next.
const UNUSED: Duration = Duration::from_secs(10);
/// Delegations that were wanted before their grant was known here.
const DISOWNED_MAX: usize = 1024;

/// See the module.
#[derive(Default)]
pub(crate) struct Delegations {
    ranges: Arc<Ranges>,
    table: Mutex<Table>,
    /// What the partition is told of at this moment, by session and number.
    giving: Mutex<BTreeSet<(u64, u64)>>,
    memory: OnceLock<Arc<dyn QueueMemory>>,
}

#[derive(Default)]
struct Table {
    held: BTreeMap<u64, Arc<Held>>,
    /// Partition and number.
    disowned: BTreeSet<(u32, u64)>,
    /// Nothing more is asked for or entered.
    closed: bool,
    /// The same, by the mount's wish.
    rests: bool,
}

impl Delegations {
    /// What is acknowledged from now on is kept there. It is said once.
    pub(super) fn keep_in(&self, memory: Arc<dyn QueueMemory>) {
        if self.memory.set(memory).is_err() {
            tracing::warn!("a volume has one memory of queues; another one is not used");
        }
    }

    /// Whether any request may meet one.
    pub(super) fn is_any(&self) -> bool {
        self.ranges.is_any()
    }

    /// The delegation that covers an inode.
    pub(super) fn of(&self, inode: u64) -> Option<u64> {
        self.ranges.of(inode)
    }

    fn way(&self, opcode: Opcode, request: &[u8]) -> Way {
        self.ranges.way(opcode, request)
    }

    fn get(&self, number: u64) -> Option<Arc<Held>> {
        self.table.lock().held.get(&number).cloned()
    }

    fn all(&self) -> Vec<Arc<Held>> {
        self.table.lock().held.values().cloned().collect()
    }

    fn of_session(&self, session: u64) -> impl Iterator<Item = Arc<Held>> {
        self.all().into_iter().filter(move |held| held.session.id.0 == session)
    }

    /// Whether another one is asked for. Where there is no room the one that was not used for longest may end.
    fn has_room(&self, now: Time) -> bool {
        let held: Vec<_> = {
            let table = self.table.lock();
            if table.closed || table.rests {
                return false;
            }
            let held = table.held.values().filter(|held| !held.is_lost());
            if held.clone().count() < HELD_MAX {
                return true;
            }
            held.cloned().collect()
        };
        let oldest = held.iter().map(|held| (held.used(), held)).min_by_key(|(used, _)| *used);
        if let Some((_, held)) = oldest.filter(|(used, _)| now.since(*used) >= UNUSED) {
            held.want();
        }
        false
    }

    /// It is led from now on. False: it was wanted before that was known here, or nothing is to be led any more, and it
    /// is given back.
    fn enter(&self, held: &Arc<Held>, covered: RangeInclusive<u64>) -> bool {
        let mut table = self.table.lock();
        if table.disowned.remove(&(held.partition, held.number)) || table.closed || table.rests {
            return false;
        }
        table.held.insert(held.number, held.clone());
        self.ranges.add(held.number, covered);
        self.ranges.look(true);
        true
    }

    /// What a dead process led, until it is stored; if it is lost, as long as this one lives.
    fn inherit(&self, held: &Arc<Held>, covered: Vec<RangeInclusive<u64>>) {
        let mut table = self.table.lock();
        table.held.insert(held.number, held.clone());
        covered.into_iter().for_each(|covered| self.ranges.add(held.number, covered));
        self.ranges.look(true);
    }

    /// It has ended with everything stored, and covers nothing any more.
    fn remove(&self, number: u64) {
        let mut table = self.table.lock();
        table.held.remove(&number);
        if table.held.is_empty() {
            self.ranges.look(false);
        }
    }

    /// The partition wants one back. False: nobody here knows of it, and nobody will.
    pub(super) fn wanted(&self, partition: u32, number: u64) -> bool {
        let held = {
            let mut table = self.table.lock();
            let held = table.held.get(&number).cloned();
            if held.is_none() {
                table.disowned.insert((partition, number));
                if table.disowned.len() > DISOWNED_MAX {
                    table.disowned.pop_first();
                }
            }
            held
        };
        held.is_some_and(|held| held.want())
    }

    /// A renewal of a session that was sent then was answered.
    pub(super) fn renewed(&self, session: &Session, partition: u32, sent: Time) {
        if self.is_any() {
            self.of_session(session.id.0)
                .filter(|held| held.partition == partition)
                .for_each(|held| held.renewed(sent));
        }
    }

    /// The servers said that a session has ended.
    pub(super) fn session_ended(&self, session: u64) {
        if self.is_any() {
            self.of_session(session).for_each(|held| held.session_ended());
        }
    }

    /// How many there are, and changes in them that are not stored yet.
    pub(super) fn counts(&self) -> (u64, u64) {
        let unstored: Vec<u64> = self.all().iter().filter_map(|held| held.unstored()).collect();
        (unstored.len() as u64, unstored.iter().sum())
    }

    /// How many were lost, and changes in them.
    pub(super) fn lost_counts(&self) -> (u64, u64) {
        let lost: Vec<u64> = self.all().iter().filter_map(|held| held.lost_changes()).collect();
        (lost.len() as u64, lost.iter().sum())
    }

    /// Waits until everything is stored that was answered before, of the delegation that covers an inode.
    pub(super) async fn commit(&self, inode: u64) -> Result<()> {
        match self.of(inode).and_then(|number| self.get(number)) {
            Some(held) => held.commit().await.map_err(|error| refused(&format!("inode {inode}"), error)),
            None => Ok(()),
        }
    }

    /// The same of all of them.
    pub(super) async fn commit_all(&self) -> Result<()> {
        let all = if self.is_any() { self.all() } else { Vec::new() };
        let commits = all.iter().map(|held| held.commit_once());
        let outcomes = futures_util::future::join_all(commits).await;
        let failed = outcomes.into_iter().find_map(std::result::Result::err);
        failed.map_or(Ok(()), |error| Err(refused("changes in delegated directories", error)))
    }

    /// Ends all with everything stored, but for what was lost, which the log tells; none begins before
    /// [`lead_again`](Self::lead_again). False: that took longer than `patience`.
    pub(super) async fn end_all(&self, patience: Duration) -> bool {
        let all: Vec<_> = {
            let mut table = self.table.lock();
            table.closed = true;
            table.held.values().cloned().collect()
        };
        let ends = futures_util::future::join_all(all.iter().map(|held| held.end_quietly()));
        tokio::time::timeout(patience, ends).await.is_ok()
    }

    /// Whether none begins, and those that are there end; they are not waited for.
    pub(super) fn rest(&self, rests: bool) {
        self.table.lock().rests = rests;
        let ends = if rests { self.all() } else { Vec::new() };
        for held in ends {
            held.want();
        }
    }

    /// Behind [`end_all`](Self::end_all).
    pub(super) fn lead_again(&self) {
        self.table.lock().closed = false;
    }
}

/// A refusal of a holder, as one of a server.
fn refused(what: &str, error: WireError) -> ClientError {
    ClientError::Remote { what: what.to_owned(), error: Refusal::of_wire(error) }
}
