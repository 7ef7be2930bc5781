//! Directories that a session leads: it executes operations in them by itself, and stores them here later.
//!
//! A Mkdir may ask for a *delegation*. Its entry gives the new directory the first of a range of numbers, and the
//! session the others, for what it makes below. An inode is *covered* if its number is in a range of a delegation: so
//! exactly what the session makes below that directory, the *top*, and the top itself. The number of a delegation is
//! that of its top.
//!
//! | who | sees of a covered inode |
//! |---|---|
//! | an item of its delegation ([`crate::run_item`]) | all, and nothing that is not covered by it |
//! | everybody else, its holder included | the name of the top, with number and type; all else is refused with `LeaseHeld`, and the delegation is *wanted* |
//! | what is no operation (`stored_inode`): checks, copies, reclaiming | what is stored: the items up to some one, in order |
//!
//! It ends by its holder (`Batch`, `EndDelegations`, Rmdir of the top), or in the entry that ends its session. From
//! then on its inodes are like any others. The rest of its numbers stays unused.
//!
//! Invariants ([`Namespace::check_invariants`]): a number is given once: ranges are taken from `inode_next` in the
//! entry that gives them. Of covered inodes only the top has a name in a directory that its delegation does not cover,
//! and directories that it covers name nothing else. The session of a delegation is live. No covered inode is locked
//! by an operation across partitions, or shown by a snapshot: none is cut while there is a delegation. What is in
//! memory here is what is in the tree.
//!
//! Limits do not refuse items: their holder has answered them. A delegation over which a limit comes is wanted at its
//! next batch. Not here: executing items (`run_item`), the holder's namespace (`mount_part`), telling holders what is
//! wanted (the `meta` crate).
use crate::encoding::{DelegationRecord, Inode};
use crate::error::{OpError, Result};
use crate::key::{self, Kind};
use crate::limits::DELEGATIONS_MAX;
use crate::namespace::Namespace;
use cairn_types::InodeId;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Feature level from which on there are delegations. Leaders of the level before, which has their formats, tell nobody
/// that one is wanted.
pub const DELEGATION_LEVEL: u16 = 29;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Delegations {
    /// First number of each range, to the last one and the delegation.
    ranges: BTreeMap<u64, (u64, u64)>,
    records: BTreeMap<u64, DelegationRecord>,
    by_session: BTreeSet<(u64, u64)>,
    /// The delegation of which an item is executed; 0: none. At a holder always its own.
    acting: u64,
    /// Those that were in somebody's way since somebody asked. No state.
    wanted: Mutex<BTreeSet<u64>>,
    /// There are some.
    is_wanted: AtomicBool,
}

impl Delegations {
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// How many a session has.
    pub fn of_session(&self, session: u64) -> usize {
        self.by_session.range((session, 0)..=(session, u64::MAX)).count()
    }

    /// The delegation that covers an inode; 0: none does.
    pub fn of(&self, inode: u64) -> u64 {
        let below = self.ranges.range(..=inode).next_back();
        below.filter(|(_, (last, _))| inode <= *last).map_or(0, |(_, (_, number))| *number)
    }

    /// Whether an inode is out of the reach of what is executed at this moment.
    #[inline]
    pub fn hides(&self, inode: u64) -> bool {
        !self.is_empty() && self.of(inode) != self.acting
    }

    /// Whether a delegation covers an inode, whoever asks.
    #[inline]
    pub fn covers(&self, inode: u64) -> bool {
        !self.is_empty() && self.of(inode) != 0
    }

    /// The delegation of which an item is executed.
    #[inline]
    pub const fn acting(&self) -> Option<u64> {
        if self.acting == 0 { None } else { Some(self.acting) }
    }

    /// From now on items of this one are executed; 0: none. Answers what was before.
    pub const fn act(&mut self, number: u64) -> u64 {
        std::mem::replace(&mut self.acting, number)
    }

    pub fn get(&self, number: u64) -> Option<&DelegationRecord> {
        self.records.get(&number)
    }

    pub fn get_mut(&mut self, number: u64) -> Option<&mut DelegationRecord> {
        self.records.get_mut(&number)
    }

    /// The record of the one of which an item is executed.
    pub fn acting_record(&mut self) -> Option<&mut DelegationRecord> {
        self.records.get_mut(&self.acting)
    }

    /// Notes one, new or with another range.
    pub fn put(&mut self, number: u64, record: DelegationRecord) {
        self.ranges.extend(record.ids.ranges().iter().map(|range| (*range.start(), (*range.end(), number))));
        self.by_session.insert((record.session, number));
        self.records.insert(number, record);
    }

    /// Forgets one. The tree is the caller's.
    fn remove(&mut self, number: u64) {
        let Some(record) = self.records.remove(&number) else { return };
        for range in record.ids.ranges() {
            self.ranges.remove(range.start());
        }
        self.by_session.remove(&(record.session, number));
        self.wanted().remove(&number);
    }

    /// Directories at the top of one each.
    pub fn tops(&self) -> impl Iterator<Item = u64> {
        self.records.keys().copied()
    }

    fn wanted(&self) -> MutexGuard<'_, BTreeSet<u64>> {
        // A set of numbers is sound whoever has panicked meanwhile.
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its holder is to end it.
    pub fn want(&self, number: u64) {
        if number != 0 {
            self.wanted().insert(number);
            self.is_wanted.store(true, Ordering::Release);
        }
    }

    pub fn want_all(&self) {
        if !self.is_empty() {
            self.wanted().extend(self.records.keys());
            self.is_wanted.store(true, Ordering::Release);
        }
    }

    /// Whether these are the records, with ranges apart from each other.
    pub fn holds(&self, found: &BTreeMap<u64, DelegationRecord>) -> bool {
        let mut expected = Delegations::default();
        found.iter().for_each(|(number, record)| expected.put(*number, record.clone()));
        let count: usize = found.values().map(|record| record.ids.ranges().len()).sum();
        let mut behind = 0;
        let apart = expected.ranges.iter().all(|(first, (last, _))| {
            let is_apart = behind < *first;
            behind = *last;
            is_apart
        });
        apart
            && count == self.ranges.len()
            && (&expected.ranges, &expected.records, &expected.by_session)
                == (&self.ranges, &self.records, &self.by_session)
    }
}

/// What is asked for of a new directory.
#[derive(Clone, Copy)]
pub(crate) struct Grant {
    pub ids: u64,
    pub token: u64,
}

impl Namespace {
    /// The refusal of an inode that is out of reach. Whoever leads it is told.
    #[cold]
    pub(crate) fn refuse_delegated(&self, id: u64) -> OpError {
        self.delegations.want(self.delegations.of(id));
        OpError::DELEGATED
    }

    /// Whether there is room for another one of a session.
    pub(crate) fn may_delegate(&self, session: u64) -> bool {
        let few = self.delegations.len() < DELEGATIONS_MAX
            && self.delegations.of_session(session) < crate::limits::DELEGATIONS_SESSION_MAX;
        // A count under way would come to the new directory, and a limit would have to refuse what is answered.
        let is_free = self.recounts == 0 && !self.has_quota(0) && self.degree() == 0;
        let is_plain = self.delegations.acting().is_none() && !self.txs.is_deciding() && !self.is_view;
        few && is_free && is_plain && self.time >= self.snapshots.state.no_leases_until_ns
    }

    /// Gives the directory that was just made with the number before `inode_next`, and numbers behind it, to a session.
    /// Nothing is given where the partition has not got as many.
    pub(crate) fn delegate(&mut self, top: u64, session: u64, grant: Grant) -> Option<&DelegationRecord> {
        let last = top.checked_add(grant.ids - 1).filter(|last| *last <= self.inode_last && *last < u64::MAX)?;
        self.inode_next = last + 1;
        let ids = crate::encoding::DelegatedIds::new(top..=last);
        let (level, time) = (self.level, self.time);
        let record = DelegationRecord { session, token: grant.token, level, next: 0, time, ids };
        self.delegations.put(top, record);
        self.store_delegation(top);
        self.delegations.get(top)
    }

    /// Numbers for what the holder makes next: those behind the last one that it has which it was given before, as it
    /// may not have heard of them, else new ones. `None`: there are none for it.
    pub(crate) fn more_ids(&mut self, number: u64, count: u64, known_to: u64) -> Option<(u64, u64)> {
        let first = self.inode_next;
        let last = first.checked_add(count.checked_sub(1)?).filter(|last| *last <= self.inode_last);
        let record = self.delegations.get_mut(number).filter(|_| first != 0)?;
        if let Some(given) = record.ids.ranges().iter().find(|range| *range.start() > known_to) {
            return Some((*given.start(), *given.end()));
        }
        let last = last?;
        let fits = record.ids.total() + count <= crate::limits::DELEGATION_IDS_MAX;
        if !fits || !record.ids.extend(first..=last) {
            return None;
        }
        let record = record.clone();
        self.delegations.put(number, record);
        self.inode_next = last + 1;
        Some((first, last))
    }

    /// What is in memory of one goes into the tree.
    pub(crate) fn store_delegation(&mut self, number: u64) {
        let Some(record) = self.delegations.get(number) else { return };
        let value = &mut self.scratch.value;
        value.clear();
        record.encode(value);
        self.tree.put(key::delegation(number).as_bytes(), value);
    }

    pub(crate) fn end_delegation(&mut self, number: u64) {
        self.tree.remove(key::delegation(number).as_bytes());
        self.delegations.remove(number);
    }

    /// In the entry that ends the session.
    pub(crate) fn end_delegations_of(&mut self, session: u64) {
        if self.delegations.is_empty() {
            return;
        }
        let range = self.delegations.by_session.range((session, 0)..=(session, u64::MAX));
        for number in range.map(|(_, number)| *number).collect::<Vec<_>>() {
            self.end_delegation(number);
        }
    }

    /// Makes the delegation of a top visible to its holder's Rmdir; what it answers goes to [`cover`](Self::cover) if
    /// that is refused.
    pub(crate) fn uncover(&mut self, top: u64, session: u64) -> Option<DelegationRecord> {
        let record = self.delegations.get(top).filter(|record| record.session == session).cloned()?;
        self.delegations.remove(top);
        Some(record)
    }

    pub(crate) fn cover(&mut self, top: u64, record: DelegationRecord) {
        self.delegations.put(top, record);
    }

    /// Whether a delegation is led below a directory that is to be removed with all that is in it; those are wanted.
    pub(crate) fn has_delegation_below(&self, directory: u64) -> bool {
        if self.delegations.is_empty() {
            return false;
        }
        let mut found = false;
        for top in self.delegations.tops().filter(|top| self.is_above(directory, *top)) {
            self.delegations.want(top);
            found = true;
        }
        found
    }

    fn is_above(&self, directory: u64, below: u64) -> bool {
        let mut at = below;
        while at != directory {
            match self.stored_inode(at) {
                Ok(Inode { parent, .. }) if parent != at && at != InodeId::ROOT.0 => at = parent,
                _ => return false,
            }
        }
        true
    }

    /// Refuses what holders could not know of while there are delegations: those end, and for a while none are given,
    /// so that it comes to pass when it is repeated.
    pub(crate) fn wait_for_delegations(&mut self) -> Result<()> {
        if self.delegations.is_empty() {
            return Ok(());
        }
        self.give_no_leases();
        self.delegations.want_all();
        Err(OpError::DELEGATED)
    }

    /// What is not in the checkpoint's header, found again when one is loaded.
    pub(crate) fn recount_delegations(&mut self) -> Result<()> {
        let prefix = key::prefix(0, Kind::Delegation);
        let mut delegations = Delegations::default();
        let mut range = self.tree.prefix(prefix.as_bytes());
        while let Some((found, value)) = range.next() {
            let number = key::number(&found[prefix.as_bytes().len()..]).ok_or(OpError::DAMAGED)?;
            delegations.put(number, DelegationRecord::decode(value).ok_or(OpError::DAMAGED)?);
        }
        self.delegations = delegations;
        Ok(())
    }
}

/// For the server around it.
impl Namespace {
    /// Sessions, and numbers of their delegations, that are to be ended since somebody asked last.
    pub fn take_wanted_delegations(&self) -> Vec<(u64, u64)> {
        self.delegations.is_wanted.store(false, Ordering::Release);
        if self.delegations.is_empty() {
            return Vec::new();
        }
        let wanted = std::mem::take(&mut *self.delegations.wanted());
        let of = |number: u64| Some((self.delegations.get(number)?.session, number));
        wanted.into_iter().filter_map(of).collect()
    }

    /// Whether [`take_wanted_delegations`](Self::take_wanted_delegations) has something to tell.
    pub fn wants_delegations(&self) -> bool {
        self.delegations.is_wanted.load(Ordering::Acquire)
    }

    /// Whether there are delegations that a request may meet.
    pub fn has_delegations(&self) -> bool {
        !self.delegations.is_empty()
    }

    /// Whether a session leads anything.
    pub fn leads(&self, session: u64) -> bool {
        self.delegations.of_session(session) > 0
    }

    /// Delegations of the partition.
    pub fn delegation_count(&self) -> u64 {
        self.delegations.len() as u64
    }

    /// Whether a session leads one.
    pub fn is_led_by(&self, session: u64, number: u64) -> bool {
        self.delegations.get(number).is_some_and(|record| record.session == session)
    }

    /// Something is refused because its inode is led by another client.
    pub fn is_delegated(error: &cairn_wire::error::WireError) -> bool {
        error.code == OpError::DELEGATED.code && error.message == OpError::DELEGATED.text
    }
}
