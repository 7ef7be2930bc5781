//! [`Replica`]: what one disk does as a member of one placement group. Inputs in, outputs out; no clock, no tasks, no
//! I/O.
//!
//! The owner carries outputs out in their order, and answers every [`Output::Ask`] and [`Output::Disk`] with an input,
//! once, with what came of it or that nobody knows. Invariants: what is decided in an epoch is forgotten with it; a
//! call that belongs to something forgotten changes nothing; a request is answered once.
//!
//! Who may be asked what: [`crate::role`]; epochs: [`crate::epoch`]; requests: `serve` and `write`; what an epoch
//! begins with: `lead` and `pass`; what is looked after: `tend`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use cairn_format::overwrite_number::OverwriteNumber;
use cairn_format::pg_state::PgStateRecord;
use cairn_types::{DiskId, Epoch, ErrorCode, Incarnation, Time};

use crate::care::{Care, Cares};
use crate::chunk_job::{ChunkJob, Outcome, Progress};
use crate::config::Config;
use crate::deleted::Deleted;
use crate::disk::{DiskDone, DiskOp};
use crate::epoch::{Epochs, Told};
use crate::heal_job::HealJob;
use crate::indices::Indices;
use crate::input::{CallId, Input, Note, Output, RequestId};
use crate::lead::Lead;
use crate::member_op::{About, Call, Came, MemberOp, from_answer, from_disk};
use crate::message::{Answer, ChunkSum, Refused, Request, Stamp};
use crate::overwrites::Overwrites;
use crate::pass::Pass;
use crate::reconcile::{Now, Purpose};
use crate::role::{Right, Role, Standing};
use crate::roster::Roster;
use crate::write::Join;

/// A list of things to do about chunks, and who waits for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Owner {
    Lead,
    Pass,
    Care(Care),
}

#[derive(Debug)]
pub(crate) enum Work<P> {
    Chunk(Box<ChunkJob<P>>),
    Heal(Box<HealJob<P>>),
}

impl<P> Work<P> {
    fn index(&self) -> u32 {
        match self {
            Self::Chunk(job) => job.index,
            Self::Heal(job) => job.index,
        }
    }
}

/// What a call is for.
#[derive(Debug)]
pub(crate) enum Use {
    Save,
    Join { join: u64, rest: Option<DiskId> },
    Serve { id: RequestId, what: crate::serve::Served },
    Job { job: u64, from: DiskId },
    Lead { round: u64, from: DiskId },
    Pass { round: u64, from: DiskId },
    Reserve { epoch: Epoch, from: DiskId },
    SealOwn { epoch: Epoch, index: Option<u32> },
    SealAll { epoch: Epoch, index: u32 },
}

/// One disk's part in one group.
#[derive(Debug)]
pub struct Replica<P> {
    pub(crate) me: DiskId,
    pub(crate) incarnation: Incarnation,
    pub(crate) config: Config,
    pub(crate) now: Time,
    pub(crate) epochs: Epochs,
    /// The epoch that began in this process, as this member sees it.
    pub(crate) roster: Option<Arc<Roster>>,
    pub(crate) joins_group: bool,
    /// It takes writes: it is durably in the epoch; as leader, every receiver is.
    pub(crate) entered: bool,
    pub(crate) caught_up: bool,
    /// It began to serve, and has not yet looked once more at what others have; when it does.
    pub(crate) look_at: Option<Time>,
    pub(crate) looked: bool,
    pub(crate) deleted: Deleted,
    /// Frees that the disk is at.
    pub(crate) freeing: BTreeMap<u32, u32>,
    pub(crate) indices: Indices,
    pub(crate) overwrites: Overwrites,
    pub(crate) joins: BTreeMap<u64, Join>,
    pub(crate) calls: BTreeMap<CallId, Use>,
    pub(crate) work: BTreeMap<u64, (Owner, Work<P>)>,
    pub(crate) lead: Option<Lead>,
    pub(crate) pass: Option<Pass>,
    pub(crate) cares: Cares,
    /// Shards of earlier epochs that are to be sealed here; when to try again.
    pub(crate) seal_own_at: Option<Time>,
    pub(crate) sealing_own: usize,
    pub(crate) seal_alls: BTreeMap<u32, crate::tend::SealAll>,
    pub(crate) applies: Vec<(RequestId, Epoch)>,
    /// A mark that is to be durable, and is not yet.
    pub(crate) mark_wanted: u32,
    word: (Option<Time>, Option<Time>),
    next_id: u64,
    pub(crate) index_end: u32,
}

impl<P: Clone> Replica<P> {
    /// As a process starts: what the disk has of the group, and above which index it has no chunk of it.
    pub fn start(
        me: DiskId,
        incarnation: Incarnation,
        config: Config,
        record: Option<Arc<PgStateRecord>>,
        index_end: u32,
    ) -> Self {
        let cares = Cares::new(config.care_pause.0, config.care_pause.1);
        Self {
            me,
            incarnation,
            config,
            now: Time(0),
            epochs: Epochs::found(record),
            roster: None,
            joins_group: false,
            entered: false,
            caught_up: false,
            look_at: None,
            looked: true,
            deleted: Deleted::default(),
            freeing: BTreeMap::new(),
            indices: Indices::default(),
            overwrites: Overwrites::default(),
            joins: BTreeMap::new(),
            calls: BTreeMap::new(),
            work: BTreeMap::new(),
            lead: None,
            pass: None,
            cares,
            seal_own_at: None,
            sealing_own: 0,
            seal_alls: BTreeMap::new(),
            applies: Vec::new(),
            mark_wanted: 0,
            word: (None, None),
            next_id: 0,
            index_end,
        }
    }

    /// The one entry.
    pub fn step(&mut self, now: Time, input: Input<P>, out: &mut Vec<Output<P>>) {
        self.now = self.now.max(now);
        match input {
            Input::Request { id, from, request, here } => self.request(id, from, request, here, out),
            Input::Answer { call, outcome } => {
                let Some(used) = self.calls.remove(&call) else { return };
                self.answered(used, outcome, out);
            }
            Input::Done { call, outcome } => {
                let Some(used) = self.calls.remove(&call) else { return };
                self.done(used, outcome, out);
            }
            Input::Word { asked } => {
                self.word.0 = self.word.0.max(Some(asked));
                self.word.1.get_or_insert(self.now);
                self.save_next(out);
            }
            Input::Found(care) => self.found(care),
            Input::Idle(index) => {
                if !self.cares.contains(Care::Restore(index)) {
                    self.cares.note(Care::Seal(index), self.now);
                }
            }
            Input::Tick => {}
        }
        self.tend(out);
    }

    /// When it has to be woken at the latest.
    pub fn due(&self) -> Option<Time> {
        let lead = self.lead.as_ref().and_then(|lead| lead.retry_at);
        let pass = self.pass.as_ref().and_then(|pass| pass.again_at);
        let look = self.look_at.filter(|_| self.pass.is_none());
        let busy = self.work.len() >= self.config.jobs_max;
        let care = self.cares.due().filter(|_| !busy && self.roster.is_some());
        [lead, pass, look, care, self.seal_own_at].into_iter().flatten().min()
    }

    /// The epoch under which it holds all that the others have, for the heartbeat.
    pub fn caught_up(&self) -> Option<Epoch> {
        self.roster.as_ref().filter(|_| self.caught_up).map(|roster| roster.epoch)
    }

    /// The state that its disk has.
    pub fn record(&self) -> Option<&Arc<PgStateRecord>> {
        self.epochs.durable()
    }

    /// Its role in the epoch that began, if one did.
    pub fn role(&self) -> Option<Role> {
        self.roster.as_ref().map(|roster| roster.role)
    }

    /// What it still looks after: nothing, when everybody is as it should be.
    pub fn cares(&self) -> impl Iterator<Item = Care> + '_ {
        self.cares.all()
    }

    /// Nothing of the epoch's beginning is left to do.
    pub fn is_settled(&self) -> bool {
        self.looked && self.work.is_empty() && self.lead.as_ref().is_none_or(Lead::is_done)
    }

    /// How it stands in its epoch.
    pub(crate) fn standing(&self) -> Standing {
        let (role, told) = self.epochs.roles(self.me, self.joins_group);
        let roster = self.roster.as_deref().filter(|roster| roster.epoch == self.epochs.epoch());
        let durable = self.epochs.durable();
        let serving = durable.map_or(0, |pg| cairn_chunk_core::fence::serving(pg).count());
        let heard = self.word.0.is_some_and(|asked| self.now.since(asked) < self.config.word_max);
        let old = self.word.1.is_some_and(|since| self.now.since(since) >= self.config.compared_within);
        Standing {
            role,
            told,
            shards: durable.is_some_and(|pg| !pg.scheme.is_replicated()),
            entered: self.entered && roster.is_some(),
            enough: durable.is_some_and(|pg| serving >= pg.scheme.write_minimum()),
            comparing: durable.is_some_and(|pg| pg.comparing),
            retired: durable.is_some_and(|pg| pg.retired),
            sure: heard && (old || serving <= usize::from(role.serves())),
        }
    }

    pub(crate) fn may(&self, right: Right) -> bool {
        self.standing().may(right)
    }

    pub(crate) fn stamp(&self) -> Stamp {
        Stamp { disk: self.me, incarnation: self.incarnation }
    }

    pub(crate) fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    pub(crate) fn ask(&mut self, to: DiskId, request: Request<P>, used: Use, out: &mut Vec<Output<P>>) {
        let call = self.id();
        self.calls.insert(call, used);
        out.push(Output::Ask { call, to, request });
    }

    pub(crate) fn disk(&mut self, op: DiskOp<P>, used: Use, out: &mut Vec<Output<P>>) {
        let call = self.id();
        self.calls.insert(call, used);
        out.push(Output::Disk { call, op });
    }

    /// A state was told.
    pub(crate) fn tell(&mut self, record: &PgStateRecord, out: &mut Vec<Output<P>>) -> Result<(), Refused> {
        if let Told::Save(record) = self.epochs.tell(record, self.index_end)? {
            self.disk(DiskOp::Save(record), Use::Save, out);
        }
        Ok(())
    }

    /// The newest state that was told, or a mark that is wanted, goes to the disk.
    pub(crate) fn save_next(&mut self, out: &mut Vec<Output<P>>) {
        if let Told::Save(record) = self.epochs.next_save(self.index_end) {
            self.disk(DiskOp::Save(record), Use::Save, out);
        } else if let Some(record) = self.epochs.raise_mark(self.mark_wanted) {
            self.disk(DiskOp::Save(record), Use::Save, out);
        }
    }

    fn answered(&mut self, used: Use, outcome: Result<Answer<P>, Refused>, out: &mut Vec<Output<P>>) {
        match used {
            Use::Join { join, rest: Some(next) } => self.join_rest(join, next, outcome, out),
            Use::Job { job, from } => self.job_came(job, from, outcome.map(from_answer), out),
            Use::Lead { round, from } => self.lead_came(round, from, outcome, out),
            Use::Pass { round, from } => self.pass_came(round, from, outcome, out),
            Use::Reserve { epoch, from } if epoch == self.epochs.epoch() => {
                self.reserve_came(from, outcome, out);
            }
            Use::SealAll { epoch, index } if epoch == self.epochs.epoch() => {
                self.seal_all_came(index, outcome.is_ok(), out)
            }
            _ => {}
        }
    }

    fn done(&mut self, used: Use, outcome: Result<DiskDone<P>, Refused>, out: &mut Vec<Output<P>>) {
        match used {
            Use::Save => self.saved(outcome.is_ok(), out),
            Use::Join { join, .. } => self.join_here(join, outcome, out),
            Use::Serve { id, what } => self.served(id, what, outcome, out),
            Use::Job { job, from } => {
                let index = self.work.get(&job).map(|(_, work)| work.index());
                if let Some(index) = index {
                    self.note_gone(index, &outcome);
                }
                self.job_came(job, from, outcome.map(from_disk), out);
            }
            Use::Lead { round, from } => {
                let outcome = outcome.map(|done| self.own_answer(done));
                self.lead_came(round, from, outcome, out);
            }
            Use::Pass { round, from } => {
                let outcome = outcome.map(|done| self.own_answer(done));
                self.pass_came(round, from, outcome, out);
            }
            Use::SealOwn { epoch, index } => {
                if let Some(index) = index {
                    self.note_gone(index, &outcome);
                }
                if epoch == self.epochs.epoch() {
                    self.seal_own_came(outcome, out);
                }
            }
            Use::SealAll { epoch, index } if epoch == self.epochs.epoch() => {
                self.note_gone(index, &outcome);
                // It may have been dead, and be gone.
                let ok = outcome.as_ref().map_or_else(Refused::is_about_bytes, |_| true);
                self.seal_all_came(index, ok, out);
            }
            _ => {}
        }
    }

    /// What the own disk lists, as another member would say it.
    fn own_answer(&self, done: DiskDone<P>) -> Answer<P> {
        match done {
            DiskDone::List(chunks) => Answer::List { epoch: self.epochs.epoch(), mark: self.mark(), chunks },
            _ => Answer::Done,
        }
    }

    pub(crate) fn mark(&self) -> u32 {
        self.epochs.durable().map_or(0, |record| record.high_water)
    }

    /// A chunk of this member that is gone must not be made again by what comes late.
    pub(crate) fn note_gone(&mut self, index: u32, outcome: &Result<DiskDone<P>, Refused>) {
        if let Ok(DiskDone::Gone(Some(length))) = outcome {
            self.deleted.note(index, *length);
            self.cares.gone(index);
        }
    }

    /// The disk has a state, or not.
    fn saved(&mut self, ok: bool, out: &mut Vec<Output<P>>) {
        let before = self.epochs.durable().cloned();
        if let Some(record) = self.epochs.saved(ok) {
            let began = self.roster.as_ref().map(|roster| roster.epoch);
            if began != Some(record.epoch) && before.as_ref().is_none_or(|before| before.epoch < record.epoch) {
                self.begin_epoch(before.as_deref(), &record, out);
            }
            let epoch = self.epochs.epoch();
            let (now, later) = std::mem::take(&mut self.applies).into_iter().partition(|(_, asked)| *asked <= epoch);
            self.applies = later;
            let now: Vec<(RequestId, Epoch)> = now;
            now.into_iter().for_each(|(id, _)| out.push(Output::Reply(id, Ok(Answer::Done))));
            self.mark_saved(out);
            self.save_next(out);
        } else {
            // It is told again with the next word of the manager; whoever waits asks again.
            let refused = Refused::because(ErrorCode::NoSpace);
            std::mem::take(&mut self.applies).into_iter().for_each(|(id, _)| out.push(Output::Reply(id, Err(refused))));
            self.mark_not_saved(out);
        }
    }

    /// Starts what a member does in its epoch.
    fn begin_epoch(&mut self, before: Option<&PgStateRecord>, record: &PgStateRecord, out: &mut Vec<Output<P>>) {
        let was = self.role();
        if Epochs::may_lack_a_member(before, was.is_some(), record) {
            self.overwrites.quiet_until = self.now + self.config.quiet;
        }
        let roster = Arc::new(Roster::of(record, self.me, self.joins_group));
        let role = roster.role;
        self.forget_epoch(record.epoch, out);
        // Also one whose process has just started, and who serves at once: its disk may have forgotten whole files.
        let begins = role.serves() && !was.is_some_and(Role::serves);
        self.looked = !(role.serves() && (begins || !self.looked || roster.put_together));
        if !role.serves() {
            self.looked = true;
        }
        let after = if was.is_none() { self.config.look_after } else { Duration::ZERO };
        self.look_at =
            role.serves().then(|| if self.looked { self.now + self.config.compare_every } else { self.now + after });
        self.entered = role != Role::Leading && role.rights().contains(&Right::Take);
        out.push(Output::Note(Note::Entered(record.epoch, role)));
        self.roster = Some(roster.clone());
        if roster.k.is_some() {
            self.seal_own_at = Some(self.now);
        }
        if role == Role::Leading {
            self.begin_to_lead(out);
        } else if role.rights().contains(&Right::CatchUp) && !roster.retired {
            self.begin_pass(false, out);
        }
    }

    /// Everything that belongs to an epoch ends with it.
    fn forget_epoch(&mut self, epoch: Epoch, out: &mut Vec<Output<P>>) {
        let stale = Refused::stale(epoch);
        for id in self.indices.next_epoch().into_iter().chain(self.overwrites.next_epoch()) {
            out.push(Output::Reply(id, Err(stale)));
        }
        self.deleted.next_epoch();
        self.work.clear();
        self.cares.next_epoch();
        (self.lead, self.pass, self.caught_up, self.sealing_own) = (None, None, false, 0);
        self.seal_own_at = None;
        self.seal_alls.clear();
    }

    /// Begins a job about a chunk.
    pub(crate) fn begin_job(
        &mut self,
        owner: Owner,
        index: u32,
        purpose: Purpose,
        known: &[(DiskId, Option<ChunkSum>)],
        out: &mut Vec<Output<P>>,
    ) {
        let Some(roster) = self.roster.clone() else { return };
        let (job, calls) = ChunkJob::begin(index, purpose, &roster, known, self.config.piece_blocks);
        let id = self.id();
        let about = job.about(roster.epoch);
        self.work.insert(id, (owner, Work::Chunk(Box::new(job))));
        self.make_calls(id, about, calls, out);
    }

    pub(crate) fn make_calls(&mut self, job: u64, about: About, calls: Vec<Call<P>>, out: &mut Vec<Output<P>>) {
        let serving = self.role().is_some_and(Role::serves);
        for (disk, op) in calls {
            let used = Use::Job { job, from: disk };
            match op {
                op if disk == self.me => {
                    self.disk(op.to_disk(about, serving), used, out);
                }
                MemberOp::Own(_) => unreachable!("only this member's own disk is asked for it"),
                op => self.ask(disk, op.to_request(about), used, out),
            }
        }
    }

    fn job_came(&mut self, id: u64, from: DiskId, came: Came<P>, out: &mut Vec<Output<P>>) {
        let Some(roster) = self.roster.clone() else { return };
        let Some((owner, mut work)) = self.work.remove(&id) else { return };
        let (progress, about) = match &mut work {
            Work::Chunk(job) => {
                let now = Now {
                    skipped: self.overwrites.skipped.get(&job.index).copied().unwrap_or(OverwriteNumber::NONE),
                    freed_up_to: self.deleted.freed_up_to(job.index),
                    freeing: self.freeing.contains_key(&job.index),
                };
                // Somebody who looked at it at the same time may have begun.
                let taken = self.is_being_brought(job.index);
                let progress = match job.came(&roster, now, from, came) {
                    Progress::Calls(_) if taken && job.brings() => Progress::Ended(Outcome::Wait),
                    progress => progress,
                };
                (progress, job.about(roster.epoch))
            }
            Work::Heal(job) => (job.came(&roster, from, came), job.about(roster.epoch)),
        };
        let outcome = match progress {
            Progress::Calls(calls) => {
                self.work.insert(id, (owner, work));
                self.make_calls(id, about, calls, out);
                return;
            }
            Progress::Pending => {
                self.work.insert(id, (owner, work));
                return;
            }
            // Who did not do it is known here.
            Progress::Ended(Outcome::Failed(refused)) if refused.disk.is_none() && !refused.is_about_bytes() => {
                Outcome::Failed(Refused { disk: Some(from).filter(|from| *from != self.me), ..refused })
            }
            Progress::Ended(outcome) => outcome,
        };
        if let Work::Chunk(job) = &work {
            let (index, role, purpose) = (job.index, roster.role, job.purpose);
            let note = |source| Output::Note(Note::Compared { index, role, purpose, source, outcome });
            if job.used().is_empty() {
                out.push(note(None));
            }
            job.used().iter().for_each(|source| out.push(note(Some(*source))));
        }
        let index = about.index;
        match owner {
            Owner::Lead => self.lead_job_ended(index, outcome, out),
            Owner::Pass => self.pass_job_ended(index, outcome, out),
            Owner::Care(care) => self.care_ended(care, outcome),
        }
    }

    /// Chunks that may be here in part, because they are brought at this moment.
    pub(crate) fn is_being_brought(&self, index: u32) -> bool {
        self.work.values().any(|(_, work)| match work {
            Work::Chunk(job) => job.index == index && job.brings(),
            Work::Heal(_) => false,
        })
    }

    /// Panics if what it owns does not hold.
    pub fn check_invariants(&self) {
        self.epochs.check_invariants();
        self.cares.check_invariants();
        self.overwrites.check_invariants();
        if let Some(roster) = &self.roster {
            assert!(roster.epoch <= self.epochs.epoch(), "nothing begins before it is durable");
            assert!(self.lead.is_none() || roster.role == Role::Leading, "only who leads leads");
            assert!(!self.caught_up || roster.role != Role::Offline, "who is offline catches nothing up");
            let mut seen = BTreeSet::new();
            for (owner, work) in self.work.values() {
                if let (Owner::Care(_) | Owner::Pass, Work::Chunk(job)) = (owner, work)
                    && job.brings()
                {
                    assert!(seen.insert(job.index), "chunk {} is brought twice at the same time", job.index);
                }
            }
        } else {
            assert!(self.work.is_empty() && !self.entered, "no epoch has begun");
        }
    }
}
