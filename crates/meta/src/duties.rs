//! What a partition's leader does beside serving: it ends sessions that fell silent, takes dead inodes apart, gives
//! freed blocks back, looks for garbage and fragmented files, settles what was closed and not durable, and looks after
//! appends whose writers are gone; and it has files encoded. Tasks of the role's own runtime; they do nothing while
//! another member leads, and rest while the group sleeps, but for leases: sessions are not in the log.
//!
//! Invariant: a session ends only after a full lease during which this process was able to hear it: after a stall of
//! its own, the leader grants everybody a new lease first.

use std::sync::Arc;
use std::time::Duration;

use cairn_meta_core::SessionState;
use cairn_rpc::Client;
use cairn_types::Time;
use cairn_wire::Opcode;
use cairn_wire::meta::{ExpireSessions, ExpireTrash, ReclaimBatch, SetDeferral, SetFeatureLevel};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::across::Peers;
use crate::appending::AppendTender;
use crate::begin;
use crate::config::MetaTimings;
use crate::defragment::Defragmenter;
use crate::free::Freer;
use crate::fsck::Checker;
use crate::garbage::Collector;
use crate::memory;
use crate::old_sessions;
use crate::partition::Partition;
use crate::stage::Stager;
use crate::stats::{add, count};
use crate::volatile;

/// Sessions ended by one entry.
const EXPIRE_MAX: usize = 1024;
/// Ticks that may be late before the process counts as having stalled.
const STALL_TICKS: u32 = 8;
/// Deferred deaths beyond which entries are larger, and how much: they still hold readers up for a few milliseconds
/// only.
const BACKLOG_MANY: u64 = 8192;
const BACKLOG_FACTOR: u32 = 4;
/// Pause between two entries that take dead inodes apart, at least.
const RECLAIM_PAUSE_MIN: Duration = Duration::from_millis(1);
/// Between two looks whether the first feature level of a new partition can be set: its first users wait for it.
const UNBORN_PAUSE: Duration = Duration::from_millis(2);
/// Feature level from which on members look at the time that the removal of trash names.
const UP_TO_LEVEL: u32 = 5;
/// Feature level from which on leaders end delegations.
const ENDED_BY_LEADER_LEVEL: u32 = 30;
/// Part of the time that sweeps over free records may take: one in this many.
const SWEEP_SHARE: u32 = 5;

/// Runs the duties until the task is ended.
pub(crate) async fn run(partition: Arc<Partition>, client: Client, peers: Arc<Peers>, timings: MetaTimings) {
    let freer = Freer::new(partition.clone(), client.clone(), timings.clone());
    let begin_peers = peers.clone();
    let collector = Collector::new(partition.clone(), client.clone(), peers.clone(), timings.clone());
    let checker = Checker::new(partition.clone(), client.clone(), peers, timings.clone());
    let stager = Stager::new(partition.clone(), client.clone(), timings.clone());
    let defragmenter = Defragmenter::new(partition.clone(), client.clone(), timings.clone());
    let tender = AppendTender::new(partition.clone(), client.clone(), timings.clone());
    // By itself: it looks so often that the others would be polled for nothing. It ends with this.
    let mut leases = JoinSet::new();
    let (of_leases, lease_timings) = (partition.clone(), timings.clone());
    leases.spawn(async move { watch_leases(&of_leases, &lease_timings).await });
    tokio::join!(
        reclaim(&partition, &timings),
        free(freer, &partition, &timings),
        collector.run(),
        checker.run(),
        defragmenter.run(),
        tender.run(),
        stager.run(),
        expire_trash(&partition, &timings),
        crate::schedule::run(&partition, &begin_peers, &timings),
        raise_level(&partition, &timings),
        memory::run(&partition, &timings),
        begin::run(&partition, &begin_peers, &timings),
        begin::end_range(&partition, &timings),
        old_sessions::run(&partition, &begin_peers, &timings),
        volatile::run(&partition, &client, &timings)
    );
}

async fn watch_leases(partition: &Partition, timings: &MetaTimings) {
    let state = &partition.state;
    let mut last = state.common.clock.now();
    loop {
        sleep(timings.lease_tick).await;
        state.common.tick();
        let now = state.common.coarse_now();
        let stalled = now.since(last) > timings.lease_tick * STALL_TICKS;
        last = now;
        state.expire_lock_waits(now);
        state.expire_change_waits(now);
        state.expire_append_turns(now);
        state.expire_recall_waits(now);
        if state.leading_term().is_none() {
            continue;
        }
        if stalled {
            tracing::warn!(partition = %state.id, "this process stood still; all sessions get a new lease");
            state.leases.renew_all(now);
            state.openers.renew_all(now);
            state.wanted_delegations.renew_all(now);
            continue;
        }
        state.tell_wanted();
        end_overdue(partition, now, timings.delegation_wanted).await;
        let silent = state.leases.expired(now, timings.lease, EXPIRE_MAX);
        if silent.is_empty() {
            continue;
        }
        let (live, gone): (Vec<u64>, Vec<u64>) = {
            let namespace = state.namespace.read();
            silent.into_iter().partition(|session| namespace.session_state(*session) == SessionState::Live)
        };
        gone.into_iter().for_each(|session| state.leases.forget_silent(session, now, timings.lease));
        if live.is_empty() {
            continue;
        }
        let request = ExpireSessions { sessions: live, unknown_only: false, ..Default::default() };
        match partition.propose_own(Opcode::ExpireSessions, &request).await {
            Ok(()) => {
                tracing::info!(partition = %state.id, sessions = ?request.sessions, "sessions fell silent and were ended");
                add(&state.common.stats.sessions_expired, request.sessions.len() as u64);
                for session in &request.sessions {
                    state.leases.forget(*session);
                    state.openers.forget(*session);
                    state.wanted_leases.forget(*session);
                    state.wanted_delegations.forget(*session);
                }
            }
            Err(error) => {
                tracing::debug!(partition = %state.id, %error, "sessions could not be ended; will be repeated")
            }
        }
    }
}

/// Ends delegations whose holders are heard, and told, and do not end them.
async fn end_overdue(partition: &Partition, now: Time, bound: Duration) {
    let state = &partition.state;
    let overdue = {
        let namespace = state.namespace.read();
        let can_end = namespace.feature_level() >= ENDED_BY_LEADER_LEVEL;
        if can_end { state.wanted_delegations.overdue(&namespace, now, bound) } else { Vec::new() }
    };
    if overdue.is_empty() {
        return;
    }
    let delegations = overdue.iter().map(|(_, number)| *number).collect();
    let request = ExpireSessions { delegations, ..ExpireSessions::default() };
    match partition.propose_own(Opcode::ExpireSessions, &request).await {
        Ok(()) => {
            add(&state.common.stats.delegations_taken, overdue.len() as u64);
            for (session, number) in overdue {
                tracing::error!(
                    partition = %state.id, inode = number, session, seconds = bound.as_secs(),
                    "a client did not end a delegation that others want: it was taken from it, and what it has not \
                     stored in that directory is lost; see the log of that mount"
                );
            }
        }
        Err(error) => {
            tracing::debug!(partition = %state.id, %error, "delegations could not be taken; will be repeated")
        }
    }
}

async fn reclaim(partition: &Partition, timings: &MetaTimings) {
    let state = &partition.state;
    loop {
        let Some(deferred_to) = work_to_reclaim(partition, timings).await else {
            state.pause(timings.reclaim_idle).await;
            continue;
        };
        let start = state.common.clock.now();
        // Removals by a mount all wait for acknowledgements and then come at once.
        let backlog = state.namespace.read().deferred_count() > BACKLOG_MANY;
        let inodes_max = timings.reclaim_inodes * if backlog { BACKLOG_FACTOR } else { 1 };
        let request = ReclaimBatch { inodes_max, extents_max: timings.reclaim_extents, deferred_to };
        if let Err(error) = partition.propose_own(Opcode::ReclaimBatch, &request).await {
            tracing::debug!(partition = %state.id, %error, "dead inodes could not be reclaimed; will be repeated");
            sleep(timings.reclaim_idle).await;
            continue;
        }
        count(&state.common.stats.reclaim_entries);
        let took = state.common.clock.now().since(start);
        sleep((took * timings.reclaim_pause_factor).max(RECLAIM_PAUSE_MIN)).await;
    }
}

/// Up to which deferred death a batch may go, if there is anything for a batch to do.
async fn work_to_reclaim(partition: &Partition, timings: &MetaTimings) -> Option<u64> {
    let state = &partition.state;
    state.leading_term()?;
    let (is_empty, deferring, first, position) = {
        let namespace = state.namespace.read();
        let first = namespace.first_deferred();
        (namespace.reclaimable().is_empty(), namespace.is_deferring(), first, namespace.death_position())
    };
    let now = state.common.coarse_now();
    let limit = if deferring || first.is_some() { state.openers.limit(position, now, timings.lease) } else { 0 };
    if deferring && first.is_none() && state.openers.close_if_unused(now, timings.lease) {
        if let Err(error) = partition.propose_own(Opcode::SetDeferral, &SetDeferral { on: false }).await {
            tracing::debug!(partition = %state.id, %error, "deferring deaths could not be ended; will be repeated");
        }
        state.openers.reopen();
    }
    let has_work = !is_empty || first.is_some_and(|first| first <= limit);
    has_work.then_some(limit)
}

/// Activates the feature level that all members understand, as soon as all of them have announced it.
async fn raise_level(partition: &Partition, timings: &MetaTimings) {
    let state = &partition.state;
    loop {
        match state.is_unborn() {
            true => sleep(UNBORN_PAUSE).await,
            false => state.pause(timings.reclaim_idle).await,
        }
        if state.leading_term().is_none() {
            continue;
        }
        let active = state.namespace.read().feature_level();
        if active > 0 {
            state.note_born();
        }
        // Nothing more is known here than this build understands.
        if active >= state.common.feature_level {
            continue;
        }
        let Some(common) = partition.handle.status().core.understanding.common.filter(|common| *common > active) else {
            continue;
        };
        match partition.propose_own(Opcode::SetFeatureLevel, &SetFeatureLevel { level: common }).await {
            Ok(()) => {
                tracing::info!(partition = %state.id, from = active, to = common, "all members understand more: the feature level is raised");
            }
            Err(error) => {
                tracing::debug!(partition = %state.id, %error, "the feature level could not be raised; will be repeated");
            }
        }
    }
}

/// Removes buckets of the trash when their time is over, by the clocks of a majority of the members: one that is ahead
/// removes nothing for good.
async fn expire_trash(partition: &Partition, timings: &MetaTimings) {
    let state = &partition.state;
    loop {
        sleep(timings.trash_tick).await;
        if state.leading_term().is_none() {
            continue;
        }
        let (clock, voters) = (&state.common.clock, partition.handle.status().core.members.voters);
        let Some(reached) = state.common.clocks.reached(&voters, clock.now(), clock.wall()) else {
            tracing::debug!(partition = %state.id, "too few clocks are known to remove trash");
            continue;
        };
        let level = {
            let namespace = state.namespace.read();
            if !namespace.is_trash_due(reached) {
                continue;
            }
            namespace.feature_level()
        };
        let up_to_ns = if level >= UP_TO_LEVEL { reached.0 } else { 0 };
        match partition.propose_own(Opcode::ExpireTrash, &ExpireTrash { up_to_ns }).await {
            Ok(()) => tracing::debug!(partition = %state.id, "trash whose time is over was removed"),
            Err(error) => {
                tracing::debug!(partition = %state.id, %error, "trash could not be removed; will be repeated")
            }
        }
    }
}

async fn free(mut freer: Freer, partition: &Partition, timings: &MetaTimings) {
    let state = &partition.state;
    let mut pause = timings.reclaim_idle;
    loop {
        state.pause(pause).await;
        let Some(term) = state.leading_term() else {
            pause = timings.reclaim_idle;
            continue;
        };
        let start = state.common.clock.now();
        pause = match freer.sweep(term).await {
            Ok(sweep) if sweep.finished || sweep.is_new => timings.reclaim_idle,
            Ok(_) => (pause * 2).min(timings.free_retry_max),
            Err(error) => {
                tracing::debug!(partition = %state.id, %error, "freed blocks could not be given back; will be repeated");
                timings.free_retry_min
            }
        };
        let took = state.common.clock.now().since(start);
        pause = pause.max(took * (SWEEP_SHARE - 1));
    }
}
