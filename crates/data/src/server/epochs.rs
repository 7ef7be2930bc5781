//! Epochs: states of groups are taken in durably, then the member does what its new part asks for: the primary brings
//! all receivers into the epoch and ends what was open, a syncing member catches up. In an erasure group each member
//! ends what was open on its own disk, and nobody waits for that.
//!
//! Invariants: nothing is answered under an epoch that is not durable on the disk; a primary takes writes only when
//! every receiver is durably in the epoch; where there are keys, only managers tell what is new, and a primary asks the
//! members whether they know it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use cairn_chunk_core::fence;
use cairn_format::pg_state::{PG_MEMBERS_MAX, PgStateMember, PgStateRecord};
use cairn_rpc::{Reply, Request};
use cairn_types::{DiskId, Epoch, ErrorCode, MemberState, NodeId, PgId, Scheme, VolumeId};
use cairn_wire::Opcode;
use cairn_wire::audience::Roles;
use cairn_wire::data::{ApplyPgsRequest, ApplyPgsResponse, PgState};
use cairn_wire::error::WireError;
use parking_lot::Mutex;

use super::allocate::others;
use super::catch_up::Waits;
use super::leaver::leaver_of;
use super::member::{Member, PgRuntime, bad_request};
use super::peer::state_message;
use super::{Inner, Refused};
use crate::disk::DiskStore;
use crate::disk::LOST_MARK_SKIP;

/// Groups of one request.
const PGS_MAX: usize = 65_536;
/// How long an epoch may fail to begin before the primary reports the member that is in the way.
const START_PATIENCE: Duration = Duration::from_secs(1);
/// Longest pause before it is looked again for what others have.
const LOOK_PAUSE_MAX: Duration = Duration::from_secs(10);

/// Who told a state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Teller {
    /// The manager, with the map.
    Manager,
    /// Perhaps the primary, which does not know of former members.
    Any,
}

impl Inner {
    pub(super) fn apply_pgs(self: &Arc<Self>, request: &Request<'_>, reply: Reply) -> Result<(), Refused> {
        let asked: ApplyPgsRequest = match request.decode() {
            Ok(asked) => asked,
            Err(error) => return Err((reply, error)),
        };
        if asked.pgs.len() > PGS_MAX {
            return Err((reply, bad_request("too many placement groups in one request")));
        }
        let is_managers = request.peer.must_have(Roles::MANAGER, "a new epoch").is_ok();
        if is_managers {
            let mut addresses = self.addresses.write();
            for node in asked.nodes.iter().filter(|node| !node.address.is_empty()) {
                addresses.insert(NodeId(node.node), node.address.clone());
            }
        }
        // One more than the groups, so that nothing is answered before all are begun.
        let left = Arc::new((AtomicUsize::new(1), Mutex::new(Vec::new()), Mutex::new(Some(reply))));
        let finish = |left: &(AtomicUsize, Mutex<Vec<u32>>, Mutex<Option<Reply>>)| {
            if left.0.fetch_sub(1, Ordering::AcqRel) == 1
                && let Some(reply) = left.2.lock().take()
            {
                let mut refused = std::mem::take(&mut *left.1.lock());
                refused.sort_unstable();
                refused.dedup();
                reply.ok(&ApplyPgsResponse { refused }, ());
            }
        };
        for told in &asked.pgs {
            let believed = if is_managers { Some((told.clone(), asked.term)) } else { self.known_already(told) };
            let members = believed.as_ref().map_or(0, |(state, _)| self.members_here(state));
            let Some((state, term)) = believed.filter(|_| members > 0) else {
                // Asked at the address of another node, or before the managers' word was heard: silence would mean that
                // the member knows the epoch.
                left.1.lock().push(told.pg);
                continue;
            };
            left.0.fetch_add(members, Ordering::AcqRel);
            let shared = left.clone();
            let begun = self.take_state(&state, term, Teller::Any, move |pg, ok| {
                if !ok {
                    shared.1.lock().push(pg.get());
                }
                finish(&shared);
            });
            // What could not be begun is not answered by anybody else.
            for _ in begun..members {
                left.1.lock().push(state.pg);
                finish(&left);
            }
        }
        finish(&left);
        Ok(())
    }

    /// What the managers told a disk here, whether it is stored yet or not, if that is at least as new as what somebody
    /// told who is no manager; with its term. The key of a data server would else fence off the groups of all.
    pub(super) fn known_already(&self, told: &PgState) -> Option<(PgState, u64)> {
        let pg = PgId(told.pg);
        let disks = || told.members.iter().map(|member| DiskId(member.disk));
        let stored = disks().filter_map(|disk| self.slot(disk)?.store()?.pg_files().get(pg));
        let waiting = disks().filter_map(|disk| self.runtimes.lock().get(&(disk, pg))?.told.record());
        let newest = stored.chain(waiting).max_by_key(|record| record.epoch)?;
        (newest.epoch.get() >= told.epoch).then(|| (state_message(&newest), newest.term))
    }

    fn members_here(&self, state: &PgState) -> usize {
        let disks = self.by_id.read();
        let members = state.members.iter().map(|member| member.disk);
        members.chain(state.joining.map(|j| j.disk)).filter(|disk| disks.contains_key(&DiskId(*disk))).count()
    }

    /// Takes a state in on every disk of this node that is a member or joins, or was one and may still have something;
    /// `then` is called once for each member, with whether it is durable there. Returns for how many it will be.
    pub(super) fn take_state(
        self: &Arc<Self>,
        state: &PgState,
        term: u64,
        teller: Teller,
        then: impl Fn(PgId, bool) + Clone + Send + 'static,
    ) -> usize {
        for former in &state.formers {
            // Nobody waits for it; what it missed it learns when it registers.
            self.take_state_on(DiskId(former.disk), state, term, teller, |_, _| {});
        }
        let begun = |disk: &u32| self.take_state_on(DiskId(*disk), state, term, teller, then.clone());
        let members = state.members.iter().map(|member| member.disk);
        members.chain(state.joining.map(|j| j.disk)).filter(begun).count()
    }

    /// Takes a state in on one disk; false: it is not here, or it cannot be begun.
    pub(super) fn take_state_on(
        self: &Arc<Self>,
        disk: DiskId,
        state: &PgState,
        term: u64,
        teller: Teller,
        then: impl Fn(PgId, bool) + Send + 'static,
    ) -> bool {
        let store = self.slot(disk).and_then(|slot| slot.store()).filter(|store| store.failure().is_none());
        let Some(store) = store else { return false };
        let (pg, inner, state) = (PgId(state.pg), self.clone(), state.clone());
        // Whoever told it hears of a refusal, warns, and tells it again.
        let refused = move |error: &WireError| {
            tracing::info!(%disk, %pg, %error, "a placement group was not taken in");
        };
        let judged = decode_state(store.context.cluster, disk, &state, term)
            .and_then(|new| check_history(store.pg_files().get(pg).as_deref(), &new).map(|()| new));
        let new = match judged {
            Ok(new) => new,
            Err(error) => {
                refused(&error);
                return false;
            }
        };
        // From now on, whether the disk can take it or not.
        if store.pg_files().get(pg).is_none_or(|present| present.epoch < new.epoch) {
            self.runtime(disk, pg).told.note(&new, &state, teller);
        }
        let job = move |store: &DiskStore| {
            let outcome = inner.apply_state(store, new, &state, teller);
            if let Err(error) = &outcome {
                refused(error);
            }
            then(pg, outcome.is_ok());
        };
        store.control(job).inspect_err(|error| refused(&error.to_wire())).is_ok()
    }

    /// On the disk's control thread: makes the state durable if it is newer, then starts what the epoch asks for.
    fn apply_state(
        self: &Arc<Self>,
        store: &DiskStore,
        new: PgStateRecord,
        state: &PgState,
        teller: Teller,
    ) -> Result<(), WireError> {
        let files = store.pg_files();
        let troubled = files.is_troubled(new.pg);
        let last = store.index_end(new.pg);
        let (pg, disk, before) = (new.pg, new.disk, files.get(new.pg));
        check_history(before.as_deref(), &new)?;
        self.check_dropped(store, before.as_deref(), &new)?;
        let applied = files.update(pg, |present| match present {
            Some(present) if present.epoch >= new.epoch => None,
            Some(present) => {
                // What its mark was before it became older than itself, nobody knows.
                let skip = if new.older_epoch > present.epoch { LOST_MARK_SKIP } else { 0 };
                let known = present.high_water.max(last).saturating_add(skip);
                Some(PgStateRecord { high_water: known.max(new.high_water), ..new })
            }
            None => {
                let skip = if troubled || new.older_epoch == new.epoch { LOST_MARK_SKIP } else { 0 };
                Some(PgStateRecord { high_water: last.saturating_add(skip).max(new.high_water), ..new })
            }
        });
        let applied = applied.map_err(|error| store.state_not_saved(&error))?;
        let runtime = self.runtime(disk, pg);
        if let Some(record) = applied {
            runtime.told.stored(record.epoch);
            if record.epoch.get() != state.epoch {
                return Ok(());
            }
            self.keep_quiet(&runtime, before.as_deref(), &record);
            self.begin_epoch(disk, record);
            // Who hears of the epoch from the primary first, hears of this later.
            let mut memory = runtime.state.lock();
            if memory.epoch.get() == state.epoch {
                memory.filling |= state.filling.contains(&disk.get());
                // To a disk that joins, the member whose place it is to have may have what others lack: it has to be
                // there to be asked.
                let joins = state.joining.is_some_and(|j| j.disk == disk.get());
                memory.leaver = leaver_of(state, disk);
                let asked = !joins || memory.leaver.is_some();
                let none = state.formers.iter().all(|former| former.drop) && asked;
                memory.no_formers |= teller == Teller::Manager && none;
            }
        }
        Ok(())
    }

    /// A member that left may not know it, and answers readers until the manager's word is old: for so long this one,
    /// should it lead, overwrites nothing in place.
    fn keep_quiet(&self, runtime: &PgRuntime, before: Option<&PgStateRecord>, now: &PgStateRecord) {
        let known = runtime.state.lock().epoch;
        if known != now.epoch && fence::may_lack_a_member(before.filter(|_| known != Epoch(0)), now) {
            runtime.overwrites.lock().quiet_until = self.clock.now() + self.config.quiet;
        }
    }

    /// A disk that was told to delete what it has of a group is a member again only when that is done, or it would
    /// delete what is copied to it.
    fn check_dropped(
        &self,
        store: &DiskStore,
        present: Option<&PgStateRecord>,
        new: &PgStateRecord,
    ) -> Result<(), WireError> {
        let again = present.is_some_and(|present| present.retired) && !new.retired;
        if again && !store.list(new.pg, 0, 1).is_empty() {
            let text = format!("{} still deletes what it had of {}; repeat", new.disk, new.pg);
            return Err(WireError::new(ErrorCode::Unavailable, text));
        }
        Ok(())
    }

    /// Starts what a member does in its epoch; once an epoch.
    fn begin_epoch(self: &Arc<Self>, disk: DiskId, pg: Arc<PgStateRecord>) {
        let runtime = self.runtime(disk, pg.pg);
        let primary = fence::primary(&pg) == Some(disk);
        let state = fence::state_of(&pg, disk);
        let (first, has_to_look, started) = {
            let mut memory = runtime.state.lock();
            let was = memory.role;
            memory.move_to(pg.epoch);
            memory.role = state.as_ref().ok().copied();
            // Also one whose process has just started, and who serves at once: its disk may have forgotten whole files.
            let begins = was != Some(MemberState::Serving) && memory.role == Some(MemberState::Serving);
            if begins {
                memory.started_anew = was.is_none();
            }
            // Epochs may follow each other before it has looked.
            // And where older copies were put together, for what one has that began to serve only now.
            let put_together = pg.older_epoch != Epoch(0);
            memory.to_look = (memory.to_look || begins || put_together) && memory.role == Some(MemberState::Serving);
            let first = !std::mem::replace(&mut memory.started, true);
            // The primary waits for the others.
            memory.entered |= first && !primary && state.as_ref().is_ok_and(|state| state.receives_writes());
            (first, memory.to_look, memory.started_anew)
        };
        let Ok(store) = self.disk_store(disk) else { return };
        if !first {
            return;
        }
        tracing::debug!(%disk, pg = %pg.pg, epoch = %pg.epoch, primary, ?state, "entered an epoch");
        let member = Member { disk, store: store.clone(), pg, told: None, runtime };
        let inner = self.clone();
        // While everything starts there is more to do.
        let look_after = if started { self.config.look_after } else { Duration::ZERO };
        if member.is_striped() {
            let (inner, member) = (self.clone(), member.clone());
            self.tasks.spawn(async move {
                inner.clone().seal_own(member.clone()).await;
                if has_to_look {
                    inner.look_again(member, look_after).await;
                }
            });
        } else if has_to_look && member.pg.members.len() > 1 {
            let (inner, member) = (self.clone(), member.clone());
            self.tasks.spawn(async move { inner.look_again(member, look_after).await });
        }
        if state == Ok(MemberState::Serving) {
            self.restore_lost(&member);
        }
        match state {
            Ok(MemberState::Serving) if primary => {
                self.tasks.spawn(async move { inner.lead_epoch(member).await });
            }
            Ok(MemberState::Syncing) => {
                self.tasks.spawn(async move { inner.catch_up(member).await });
            }
            _ => {}
        }
        self.heal_found(disk, store);
    }

    /// A member that begins to serve looks once more at what was written while it caught up: nobody waited for it then.
    /// One that has started looks for what vanished.
    async fn look_again(self: Arc<Self>, member: Member, after: Duration) {
        tokio::time::sleep(after).await;
        let mut pause = self.config.retry_pause;
        while self.is_current(&member) {
            let looked = match member.is_striped() {
                true => self.pass_shards(&member, &mut Waits::default()).await,
                false => self.note_vanished(&member, 0..=u32::MAX).await.map(|_| true),
            };
            match looked {
                Ok(true) => {
                    let mut memory = member.runtime.state.lock();
                    if memory.epoch == member.pg.epoch {
                        (memory.to_look, memory.started_anew) = (false, false);
                    }
                    return;
                }
                Ok(false) => {}
                Err(error) => {
                    tracing::debug!(disk = %member.disk, pg = %member.pg.pg, %error, "looking for missing shards is repeated");
                    pause = (pause * 2).min(LOOK_PAUSE_MAX);
                }
            }
            tokio::time::sleep(pause).await;
        }
    }

    /// Blocks that the re-read after a failed sync found bad are healed once there is somebody to ask.
    fn heal_found(self: &Arc<Self>, disk: DiskId, store: Arc<DiskStore>) {
        let bad = store.take_bad_blocks();
        if bad.is_empty() {
            return;
        }
        let inner = self.clone();
        self.tasks.spawn(async move {
            for (id, block) in bad {
                let Some(pg) = store.pg_files().get(id.pg) else { continue };
                if let Err(error) = inner.check_and_heal(disk, pg, store.clone(), id, block).await {
                    tracing::error!(%disk, chunk = %id, block, %error, "a bad block was not healed");
                }
            }
        });
    }

    /// As primary: brings everybody into the epoch, takes writes from then on, and ends what was open before.
    async fn lead_epoch(self: Arc<Self>, member: Member) {
        let mut entered = false;
        let begun = self.clock.now();
        // The managers tell all members at once: others know it a moment later.
        let mut pause = self.config.retry_pause / 16;
        loop {
            if !self.is_current(&member) {
                return;
            }
            let outcome = if entered { Ok(()) } else { self.bring_all_in(&member).await };
            let outcome = match outcome {
                Ok(()) => {
                    if !entered {
                        entered = true;
                        let mut state = member.runtime.state.lock();
                        state.entered |= state.epoch == member.pg.epoch;
                    }
                    // Of shards each member seals its own, and they are not overwritten.
                    if member.is_striped() { Ok(()) } else { self.end_earlier(&member).await }
                }
                Err(error) => Err(error),
            };
            match outcome {
                Ok(()) => {
                    self.note_compared(&member);
                    return;
                }
                Err(error) => {
                    tracing::debug!(pg = %member.pg.pg, epoch = %member.pg.epoch, entered, %error, "an epoch's start is repeated");
                    // A member that starts at the same time gets a moment to open its disks.
                    if self.clock.now().since(begun) >= START_PATIENCE {
                        self.note_hop(&member.pg, &error);
                    }
                }
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(self.config.retry_pause);
        }
    }

    /// As primary of members that all are older copies of themselves: what is open is as long as on any of them, and
    /// what was overwritten is as the latest has it. The manager lets them serve; what one lacks altogether it gets
    /// then.
    fn note_compared(&self, member: &Member) {
        if !member.pg.comparing || !self.is_current(member) {
            return;
        }
        {
            let mut state = member.runtime.state.lock();
            if state.epoch == member.pg.epoch {
                (state.caught_up, state.changed) = (true, true);
            }
        }
        tracing::warn!(pg = %member.pg.pg, epoch = %member.pg.epoch, "all members are older copies of themselves: what each has was compared");
        self.poke();
    }

    /// What earlier epochs left: overwrites that not all have, open chunks.
    async fn end_earlier(self: &Arc<Self>, member: &Member) -> Result<(), WireError> {
        self.settle_epoch(member).await?;
        self.seal_old(member).await?;
        if member.pg.comparing { self.raise_to_highest(member).await } else { Ok(()) }
    }

    /// Whether the disk is still in the member's epoch.
    pub(super) fn is_current(&self, member: &Member) -> bool {
        let now = member.store.pg_files().get(member.pg.pg);
        !self.is_stopping() && member.store.failure().is_none() && now.is_some_and(|now| now.epoch == member.pg.epoch)
    }

    async fn bring_all_in(self: &Arc<Self>, member: &Member) -> Result<(), WireError> {
        let request = ApplyPgsRequest {
            term: member.pg.term,
            pgs: vec![state_message(&member.pg)],
            nodes: self.member_addresses(&member.pg),
        };
        let questions = others(&member.pg, member.disk).into_iter().map(|other| (other, request.clone())).collect();
        for (other, answer) in self.ask_each(&member.pg, Opcode::ApplyPgs, questions).await {
            let answer: ApplyPgsResponse = answer?;
            if !answer.refused.is_empty() {
                // It answers. That it has not heard the managers yet is no failure of it, and its disk tells its own.
                let text = format!("{other} did not take {} in; it is asked again", member.pg.epoch);
                return Err(WireError::new(ErrorCode::Unavailable, text));
            }
        }
        Ok(())
    }
}

/// Epochs rise in the manager's log, so a newer epoch never comes from an older leader than the one that told the epoch
/// here. If it does, the manager's history was exchanged for another one, and nothing of it is believed.
fn check_history(present: Option<&PgStateRecord>, new: &PgStateRecord) -> Result<(), WireError> {
    match present {
        Some(present) if present.epoch < new.epoch && new.term < present.term => {
            let text = format!(
                "{} is told {} by a manager of term {}, but {} came from term {}: the manager's state is not the one of \
                 before; look at its directories",
                new.pg, new.epoch, new.term, present.epoch, present.term
            );
            Err(WireError::new(ErrorCode::Conflict, text))
        }
        _ => Ok(()),
    }
}

/// Checks a state from the wire.
pub(super) fn decode_state(
    cluster: cairn_types::ClusterId,
    disk: DiskId,
    state: &PgState,
    term: u64,
) -> Result<PgStateRecord, WireError> {
    let scheme = u8::try_from(state.scheme).ok().and_then(Scheme::from_code);
    let scheme = scheme.ok_or_else(|| bad_request(format!("scheme {} is not known", state.scheme)))?;
    if state.members.is_empty() || state.members.len() > PG_MEMBERS_MAX || state.epoch == 0 {
        return Err(bad_request(format!("pg{} has {} members, epoch {}", state.pg, state.members.len(), state.epoch)));
    }
    if !scheme.is_replicated() && state.members.len() != scheme.members() {
        // The position is the shard.
        return Err(bad_request(format!("pg{} is {scheme} and has {} members", state.pg, state.members.len())));
    }
    let mut members = Vec::with_capacity(state.members.len());
    for member in &state.members {
        let code = u8::try_from(member.state).ok().and_then(MemberState::from_code);
        let state = code.ok_or_else(|| bad_request(format!("member state {} is not known", member.state)))?;
        members.push(PgStateMember { disk: DiskId(member.disk), node: NodeId(member.node), state });
    }
    if let Some(joining) = state.joining.filter(|joining| joining.disk == disk.get()) {
        // It sees itself in the place that it is to have: the position is the shard.
        let code = u8::try_from(joining.state).ok().and_then(MemberState::from_code);
        let place = usize::try_from(joining.position).ok().and_then(|place| members.get_mut(place));
        let (Some(state), Some(place)) = (code, place) else {
            return Err(bad_request(format!("pg{}: {disk} joins in place {}", state.pg, joining.position)));
        };
        *place = PgStateMember { disk, node: NodeId(joining.node), state };
    }
    // A disk whose place another one has, and without which the group is complete: to it the group is retired.
    let drops = !members.iter().any(|member| member.disk == disk)
        && state.formers.iter().any(|former| former.disk == disk.get() && former.drop);
    Ok(PgStateRecord {
        cluster,
        pg: PgId(state.pg),
        volume: VolumeId(state.volume),
        disk,
        high_water: state.index_floor,
        epoch: Epoch(state.epoch),
        creation_epoch: Epoch(state.creation_epoch),
        term,
        scheme,
        retired: state.retired || drops,
        comparing: state.comparing,
        older_epoch: Epoch(state.older_epoch),
        members,
    })
}
