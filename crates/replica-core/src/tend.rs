//! What is due: beginnings that are repeated, passes, seals, and the queue of what is looked after.

use crate::care::Care;
use crate::disk::{DiskDone, DiskOp};
use crate::heal_job::HealJob;
use crate::input::Output;
use crate::message::{Along, Refused, Request, Which};
use crate::reconcile::Purpose;
use crate::replica::{Owner, Replica, Use, Work};
use crate::role::{Right, Role};

/// A chunk that is sealed everywhere.
#[derive(Debug)]
pub(crate) struct SealAll {
    /// It takes nothing more here.
    here: bool,
    left: usize,
    ok: bool,
}

impl<P: Clone> Replica<P> {
    /// Begins what is due.
    pub(crate) fn tend(&mut self, out: &mut Vec<Output<P>>) {
        let now = self.now;
        let due = |at: Option<cairn_types::Time>| at.is_some_and(|at| at <= now);
        if due(self.lead.as_ref().and_then(|lead| lead.retry_at)) {
            self.lead_again(out);
        }
        if due(self.pass.as_ref().and_then(|pass| pass.again_at)) {
            self.pass_again(out);
        }
        if self.pass.is_none() && due(self.look_at) {
            self.look_at = None;
            if self.may(Right::Restore) {
                self.begin_pass(true, out);
            }
        }
        if due(self.seal_own_at) {
            self.seal_own(out);
        }
        self.tend_cares(out);
    }

    fn tend_cares(&mut self, out: &mut Vec<Output<P>>) {
        while self.roster.is_some() && self.work.len() < self.config.jobs_max {
            let restoring = self.work.values().any(|(owner, _)| matches!(owner, Owner::Care(Care::Restore(_))));
            let may = |care: Care| match care {
                // As soon as nothing is under way for it.
                Care::Equalise(index) => self.overwrites.open && !self.overwrites.is_running(index),
                Care::Restore(index) => !restoring && !self.is_being_brought(index),
                Care::Seal(_) | Care::Heal(..) => true,
            };
            let ready: std::collections::BTreeSet<Care> = self.cares.all().filter(|care| may(*care)).collect();
            let Some(care) = self.cares.take(self.now, |care| ready.contains(&care)) else { return };
            self.begin_care(care, out);
        }
    }

    fn begin_care(&mut self, care: Care, out: &mut Vec<Output<P>>) {
        let Some(roster) = self.roster.clone() else { return };
        match care {
            Care::Equalise(index) => self.begin_job(Owner::Care(care), index, Purpose::Equalise, &[], out),
            Care::Seal(index) => self.seal_all(index, out),
            Care::Restore(_) if roster.retired => {
                self.cares.done(care);
            }
            // One that catches up is brought everything, and looks for what is left when it serves.
            Care::Restore(index) if !self.lacks(index) => {
                if roster.role.serves() {
                    self.cares.done(care);
                } else {
                    self.cares.again(Care::Restore(index), self.now)
                }
            }
            Care::Restore(index) => {
                let purpose = if roster.k.is_some() { Purpose::Shard } else { Purpose::Restore };
                self.begin_job(Owner::Care(care), index, purpose, &[], out);
            }
            Care::Heal(index, block) => {
                let (job, call) = HealJob::begin(index, block, self.me);
                let id = self.id();
                let about = job.about(roster.epoch);
                self.work.insert(id, (Owner::Care(care), Work::Heal(Box::new(job))));
                self.make_calls(id, about, vec![call], out);
            }
        }
    }

    /// In a group of shards: ends the member's own of earlier epochs, without a word to the others.
    fn seal_own(&mut self, out: &mut Vec<Output<P>>) {
        self.seal_own_at = None;
        let used = Use::SealOwn { epoch: self.epochs.epoch(), index: None };
        self.sealing_own = 1;
        self.disk(DiskOp::List(Which::Open), used, out);
    }

    pub(crate) fn seal_own_came(&mut self, outcome: Result<DiskDone<P>, Refused>, out: &mut Vec<Output<P>>) {
        self.sealing_own = self.sealing_own.saturating_sub(1);
        let epoch = self.epochs.epoch();
        match outcome {
            Ok(DiskDone::List(chunks)) => {
                for sum in chunks.into_iter().filter(|sum| !sum.sealed && sum.made < epoch) {
                    self.sealing_own += 1;
                    self.disk(DiskOp::Seal { index: sum.index }, Use::SealOwn { epoch, index: Some(sum.index) }, out);
                }
            }
            Ok(_) => {}
            Err(_) => self.seal_own_at = Some(self.now + self.config.retry_pause),
        }
    }

    /// As leader, seals a chunk on all receivers; of shards each member its own.
    fn seal_all(&mut self, index: u32, out: &mut Vec<Output<P>>) {
        let Some(roster) = self.roster.clone() else { return };
        let leads = roster.role == Role::Leading && self.entered;
        if !leads && roster.k.is_none() {
            self.cares.done(Care::Seal(index));
            return;
        }
        // Here first: nothing is appended any more, so the others get no more either.
        self.seal_alls.insert(index, SealAll { here: false, left: 1, ok: true });
        self.disk(DiskOp::Seal { index }, Use::SealAll { epoch: roster.epoch, index }, out);
    }

    pub(crate) fn seal_all_came(&mut self, index: u32, ok: bool, out: &mut Vec<Output<P>>) {
        let Some(roster) = self.roster.clone() else { return };
        let Some(seal) = self.seal_alls.get_mut(&index) else { return };
        seal.ok &= ok;
        seal.left -= 1;
        if !seal.here && seal.ok && roster.k.is_none() {
            (seal.here, seal.left) = (true, roster.receivers.len());
            for disk in roster.receivers.iter().copied() {
                let along = Along { index, epoch: roster.epoch, session: cairn_types::SessionId(0), chain: Vec::new() };
                self.ask(disk, Request::Seal(along), Use::SealAll { epoch: roster.epoch, index }, out);
            }
        }
        if self.seal_alls.get(&index).is_some_and(|seal| seal.left == 0)
            && let Some(seal) = self.seal_alls.remove(&index)
        {
            if seal.ok {
                self.cares.done(Care::Seal(index));
            } else {
                self.cares.again(Care::Seal(index), self.now);
            }
        }
    }
}

impl<P: Clone + std::fmt::Debug> Replica<P> {
    /// What it is at, for whoever looks why it does not end.
    pub fn what_it_does(&self) -> String {
        let work: Vec<String> = self.work.values().map(|(owner, _)| format!("{owner:?}")).collect();
        format!(
            "entered {}, looked {}, leads {:?}, passes {:?}, works {work:?}, differing {:?}",
            self.entered,
            self.looked,
            self.lead,
            self.pass,
            self.overwrites.unequal()
        )
    }
}
