//! Epochs of a member: a state is told, from then on it fences; it becomes durable, from then on it counts.
//!
//! Invariants: nothing is answered under an epoch that is not durable here, nor under one that is known to be over;
//! epoch and mark never fall; a later epoch never comes of an earlier term. Not here: what a role may do
//! ([`crate::role`]).

use std::sync::Arc;

use cairn_chunk_core::fence;
use cairn_format::pg_state::PgStateRecord;
use cairn_types::{DiskId, Epoch, ErrorCode};

use crate::message::Refused;
use crate::role::Role;

/// Under which epoch something is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fencing {
    /// Under this one and no other.
    At(Epoch),
    /// Under whichever: the checksums decide. Nothing that is asked so changes anything.
    Any,
}

/// Indices that are skipped where nobody knows which were given out.
pub const LOST_MARK_SKIP: u32 = 1 << 20;

/// What is to become of a state that was told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Told {
    /// It is to be made durable.
    Save(Arc<PgStateRecord>),
    /// The disk has it, or a newer one.
    Known,
    /// It is the answer to what is being made durable now.
    Waits,
}

/// The states of a group that a disk has, or was told.
#[derive(Debug, Default)]
pub struct Epochs {
    durable: Option<Arc<PgStateRecord>>,
    /// Newer than the durable one.
    told: Option<Arc<PgStateRecord>>,
    /// It is being made durable.
    saving: Option<Arc<PgStateRecord>>,
}

impl Epochs {
    /// As a start finds them.
    pub fn found(durable: Option<Arc<PgStateRecord>>) -> Self {
        Self { durable, told: None, saving: None }
    }

    /// The state that counts.
    pub fn durable(&self) -> Option<&Arc<PgStateRecord>> {
        self.durable.as_ref()
    }

    /// The epoch that counts; 0: none.
    pub fn epoch(&self) -> Epoch {
        self.durable.as_ref().map_or(Epoch(0), |record| record.epoch)
    }

    /// A newer state that was told and is not on the disk.
    pub fn told(&self) -> Option<&Arc<PgStateRecord>> {
        self.told.as_ref().filter(|told| told.epoch > self.epoch())
    }

    /// A state was told. `index_end`: no chunk of the group lies at or above it on this disk.
    pub fn tell(&mut self, new: &PgStateRecord, index_end: u32) -> Result<Told, Refused> {
        if let Some(present) = &self.durable
            && present.epoch < new.epoch
            && new.term < present.term
        {
            // The manager's history was exchanged for another one: nothing of it is believed.
            return Err(Refused::because(ErrorCode::Conflict));
        }
        if self.epoch() >= new.epoch {
            return Ok(Told::Known);
        }
        // From now on it fences, whether the disk can take it or not.
        if self.told().is_none_or(|told| told.epoch < new.epoch) {
            self.told = Some(Arc::new(new.clone()));
        }
        Ok(self.next_save(index_end))
    }

    /// The newest state that was told, if nothing else is being made durable.
    pub fn next_save(&mut self, index_end: u32) -> Told {
        if self.saving.is_some() {
            return Told::Waits;
        }
        let Some(told) = self.told().cloned() else { return Told::Known };
        let mark = match &self.durable {
            // What its mark was before it became older than itself, nobody knows.
            Some(present) if told.older_epoch > present.epoch => {
                present.high_water.max(index_end).saturating_add(LOST_MARK_SKIP)
            }
            Some(present) => present.high_water.max(index_end),
            None if told.older_epoch == told.epoch => index_end.saturating_add(LOST_MARK_SKIP),
            None => index_end,
        };
        let record = Arc::new(PgStateRecord { high_water: mark.max(told.high_water), ..(*told).clone() });
        self.saving = Some(record.clone());
        Told::Save(record)
    }

    /// The disk took what was being made durable, or did not. Returns it if it counts from now on.
    pub fn saved(&mut self, ok: bool) -> Option<Arc<PgStateRecord>> {
        let record = self.saving.take()?;
        if !ok {
            return None;
        }
        if let Some(present) = &self.durable {
            assert!(present.epoch <= record.epoch, "an epoch never falls");
            assert!(present.high_water <= record.high_water, "a mark never falls");
        }
        self.durable = Some(record.clone());
        if self.told.as_ref().is_some_and(|told| told.epoch <= record.epoch) {
            self.told = None;
        }
        Some(record)
    }

    /// The present state with a higher mark, to be made durable; `None` while another state is, or if it is high
    /// enough.
    pub fn raise_mark(&mut self, mark: u32) -> Option<Arc<PgStateRecord>> {
        let present = self.durable.as_ref().filter(|present| present.high_water < mark && self.saving.is_none())?;
        let record = Arc::new(PgStateRecord { high_water: mark, ..(**present).clone() });
        self.saving = Some(record.clone());
        Some(record)
    }

    /// Whether a state is being made durable.
    pub fn is_saving(&self) -> bool {
        self.saving.is_some()
    }

    /// Holds the epoch of a request against what is known.
    pub fn check(&self, asked: Fencing) -> Result<&Arc<PgStateRecord>, Refused> {
        let Some(durable) = &self.durable else { return Err(Refused::because(ErrorCode::NotServing)) };
        let Fencing::At(asked) = asked else { return Ok(durable) };
        let newest = self.told().map_or(durable.epoch, |told| told.epoch);
        if asked < newest {
            return Err(Refused::stale(newest));
        }
        // Newer than what is durable: this member asks the manager, or its disk is about to have it.
        if asked > durable.epoch { Err(Refused::because(ErrorCode::NotServing)) } else { Ok(durable) }
    }

    /// What a disk is by the state that counts, and by a newer one that was told.
    pub fn roles(&self, disk: DiskId, joins: bool) -> (Role, Option<Role>) {
        let role = self.durable.as_ref().map_or(Role::Former, |record| Role::of(record, disk, joins));
        (role, self.told().map(|told| Role::of(told, disk, joins)))
    }

    /// Whether somebody may have served before `now` and not know that he does not any more. `known`: the disk followed
    /// the states since its process began.
    pub fn may_lack_a_member(before: Option<&PgStateRecord>, known: bool, now: &PgStateRecord) -> bool {
        fence::may_lack_a_member(before.filter(|_| known), now)
    }

    /// Panics if what it owns does not hold.
    pub fn check_invariants(&self) {
        if let (Some(durable), Some(saving)) = (&self.durable, &self.saving) {
            assert!(saving.epoch >= durable.epoch && saving.high_water >= durable.high_water, "states never fall");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_format::pg_state::PgStateMember;
    use cairn_types::{ClusterId, MemberState, NodeId, PgId, Scheme, VolumeId};

    fn state(epoch: u64, term: u64) -> PgStateRecord {
        let member = |disk| PgStateMember { disk: DiskId(disk), node: NodeId(disk), state: MemberState::Serving };
        PgStateRecord {
            cluster: ClusterId([1; 16]),
            pg: PgId(1),
            volume: VolumeId(1),
            disk: DiskId(1),
            high_water: 0,
            epoch: Epoch(epoch),
            creation_epoch: Epoch(1),
            term,
            scheme: Scheme::Replicated(2),
            retired: false,
            comparing: false,
            older_epoch: Epoch(0),
            members: vec![member(1), member(2)],
        }
    }

    /// Something would be answered under an epoch that the manager ended, or that a loss of power takes back.
    #[test]
    fn what_is_told_fences_and_what_is_durable_counts() {
        let mut epochs = Epochs::default();
        assert!(epochs.check(Fencing::Any).is_err(), "nothing is known yet");
        assert!(matches!(epochs.tell(&state(3, 1), 7), Ok(Told::Save(record)) if record.high_water == 7));
        assert!(epochs.check(Fencing::At(Epoch(3))).is_err(), "not durable");
        assert!(epochs.saved(true).is_some());
        assert!(epochs.check(Fencing::At(Epoch(3))).is_ok());
        assert!(matches!(epochs.tell(&state(5, 1), 0), Ok(Told::Save(_))));
        assert_eq!(epochs.tell(&state(6, 1), 0), Ok(Told::Waits));
        assert_eq!(epochs.check(Fencing::At(Epoch(3))), Err(Refused::stale(Epoch(6))));
        assert!(epochs.saved(false).is_none(), "the disk is full");
        assert_eq!(epochs.check(Fencing::At(Epoch(3))), Err(Refused::stale(Epoch(6))), "it fences all the same");
        assert!(epochs.check(Fencing::Any).is_ok());
        assert!(
            matches!(epochs.next_save(0), Told::Save(record) if record.epoch == Epoch(6) && record.high_water == 7)
        );
        assert!(epochs.saved(true).is_some() && epochs.told().is_none());
        assert_eq!(epochs.tell(&state(5, 1), 0), Ok(Told::Known), "an older one comes late");
        assert_eq!(epochs.tell(&state(9, 0), 0), Err(Refused::because(ErrorCode::Conflict)), "another history");
    }

    /// An index would be given twice.
    #[test]
    fn who_may_have_forgotten_its_mark_goes_on_far_above_it() {
        let mut epochs = Epochs::found(Some(Arc::new(PgStateRecord { high_water: 40, ..state(3, 1) })));
        let older = PgStateRecord { older_epoch: Epoch(4), ..state(4, 1) };
        assert!(matches!(epochs.tell(&older, 50), Ok(Told::Save(r)) if r.high_water == 50 + LOST_MARK_SKIP));
        epochs.saved(true);
        assert!(epochs.raise_mark(10).is_none());
        assert!(epochs.raise_mark(LOST_MARK_SKIP + 100).is_some());
        assert!(epochs.raise_mark(LOST_MARK_SKIP + 200).is_none(), "one at a time");
        epochs.check_invariants();
    }
}
