//! Heartbeat: a node is alive, tells its loads and what changed, and learns what changed in the map.
//!
//! Loads stay in the leader's memory. Disks that failed and members that caught up go through the log, begun here and
//! not waited for. A node that is not known under its incarnation, or was marked down, is told to register again.
use super::register::load;
use super::restored::Seen;
use crate::leading::Leading;
use crate::manager::Manager;
use cairn_manager_core::command::{
    CaughtUp, Command, DiskAt, DiskStates, FormersGone, MemberAt, PartitionAt, PartitionsBegun,
};
use cairn_manager_core::items::{PROBLEM_MAX, TEXT_MAX, shorten};
use cairn_manager_core::soft::{MetaMemory, PartitionLoad, Refused};
use cairn_manager_core::{Disk, DiskState, Key, Scope, State, plan, repair};
use cairn_types::generation::Generation;
use cairn_types::{DiskId, DiskUuid, Epoch, Incarnation, MemberState, NodeId, PartitionId, PgId, Time, WallTime};
use cairn_wire::error::WireError;
use cairn_wire::holder::Holder;
use cairn_wire::manager::{
    ConfigItem, DiskReport, HeartbeatRequest, HeartbeatResponse, PgReport, RefusedRequests, ReportMemberRequest,
    RevokedNames, SuspectReport,
};
use std::sync::Arc;

/// Of one node, who come without a key; and how long their names are.
const PLAIN_MAX: usize = 64;
const PLAIN_NAME_MAX: usize = 64;

/// What a heartbeat makes the leader do beside answering.
#[derive(Default)]
struct Work {
    disks: Vec<DiskAt>,
    caught_up: Vec<MemberAt>,
    gone: Vec<MemberAt>,
    begun: Vec<PartitionAt>,
    suspects: Vec<ReportMemberRequest>,
}

impl Manager {
    pub(crate) async fn heartbeat(
        self: Arc<Self>,
        holder: Option<&Holder>,
        request: HeartbeatRequest,
    ) -> Result<HeartbeatResponse, WireError> {
        let node = NodeId(request.node);
        // A made-up node would have the clocks of all called wrong.
        if self.replica.read().node(node).is_some() {
            self.raft.clocks().heard(node, WallTime(request.wall_ns), self.now());
        }
        let clock = HeartbeatResponse {
            wall_ns: self.clock.wall().0,
            manager: self.config.member.get(),
            ..HeartbeatResponse::default()
        };
        let behind = |state: &State| knows_later_epochs(state, &request);
        if self.hold_against(node, holder, request.seen.as_ref(), behind).await? == Seen::Awaited {
            // It tells what it knows with a registration.
            let term = self.look(|_, leading| {
                leading.liveness.heard(node, self.now());
                leading.term
            })?;
            return Ok(HeartbeatResponse { term, register_again: true, ..clock });
        }
        let (response, work) = self.look_in_cluster(|state, leading| {
            let known = state.node(node).filter(|n| n.up && n.incarnation == Incarnation(request.incarnation));
            if known.is_none() {
                return Ok((HeartbeatResponse { term: leading.term, register_again: true, ..clock }, Work::default()));
            }
            let now = self.now();
            leading.liveness.heard(node, now);
            if let Some(disk) = went_back(state, &request) {
                tracing::error!(%disk, %node, "a disk went back to an older generation while its node runs: it registers anew");
                let again = HeartbeatResponse { term: leading.term, register_again: true, ..Default::default() };
                return Ok((again, Work::default()));
            }
            let work = take(state, leading, &request, now);
            take_marks(state, leading, node, &request);
            let news = request.map_version != state.version();
            let map = news.then(|| state.map(request.map_version, Scope::Node(node), &leading.soft));
            let settings = node_settings(state, node);
            let managers = Some(self.marks_of_managers());
            let revoked = news_of_revoked(state, &request);
            let told = HeartbeatResponse { map, term: leading.term, settings, managers, revoked, ..clock };
            Ok((told, work))
        })?;
        self.metrics.heartbeats.add(1);
        self.follow_up(node, work);
        Ok(response)
    }

    fn follow_up(self: Arc<Self>, node: NodeId, work: Work) {
        if !work.disks.is_empty() {
            for disk in &work.disks {
                tracing::warn!(disk = disk.disk, %node, problem = %disk.problem, "a disk left service");
            }
            let me = self.clone();
            let command = Command::DiskStates(DiskStates { disks: work.disks });
            self.spawn(async move {
                me.duty("disk states", command).await;
            });
        }
        if !work.caught_up.is_empty() {
            let me = self.clone();
            let command = Command::CaughtUp(CaughtUp { members: work.caught_up });
            self.spawn(async move {
                me.duty("members caught up", command).await;
            });
        }
        if !work.gone.is_empty() {
            let me = self.clone();
            let command = Command::FormersGone(FormersGone { members: work.gone });
            self.spawn(async move {
                me.duty("former members that have nothing left", command).await;
            });
        }
        if !work.begun.is_empty() {
            let me = self.clone();
            let command = Command::PartitionsBegun(PartitionsBegun { members: work.begun });
            self.spawn(async move {
                me.duty("partitions that have begun", command).await;
            });
        }
        for suspect in work.suspects {
            let me = self.clone();
            self.spawn(async move {
                if let Err(error) = me.report_member(suspect, Some(u64::from(node.get()))).await {
                    tracing::debug!(%node, %error, "a node's report about a member came to nothing");
                }
            });
        }
    }
}

fn take(state: &State, leading: &mut Leading, request: &HeartbeatRequest, now: Time) -> Work {
    let mut work = Work::default();
    let node = NodeId(request.node);
    leading.soft.note_problem(node, shorten(&request.problem, PROBLEM_MAX));
    leading.soft.levels.insert(node, request.feature_level);
    let memory = MetaMemory { used: request.metadata_bytes, max: request.metadata_bytes_max };
    match memory.max {
        0 => leading.soft.meta_memory.remove(&node),
        _ => leading.soft.meta_memory.insert(node, memory),
    };
    let named = |names: &[String]| names.iter().take(PLAIN_MAX).map(|name| shorten(name, PLAIN_NAME_MAX)).collect();
    leading.soft.plain.insert(node, (named(&request.plain), named(&request.plain_refused)));
    match request.revoked_sum {
        Some(sum) => drop(leading.soft.revoked.insert(node, (sum, request.revoked_kept))),
        None => drop(leading.soft.revoked.remove(&node)),
    }
    work.disks = take_disks(state, leading, node, request);
    for report in &request.pgs {
        let (Some(pg), disk) = (state.pg(PgId(report.pg)), DiskId(report.disk)) else { continue };
        if state.disk(disk).is_none_or(|d| d.node != node) {
            continue;
        }
        note_epoch(leading, (pg.id, disk), pg.epoch, Epoch(report.epoch));
        if pg.primary() == Some(disk) {
            leading.soft.pg_used.insert(pg.id, report.used_bytes);
        }
        match report.high_water >= plan::INDICES_END && pg.state_of(disk) == Some(MemberState::Serving) {
            true => leading.soft.used_up.insert((pg.id, disk)),
            false => leading.soft.used_up.remove(&(pg.id, disk)),
        };
        let current = pg.epoch.get() == report.epoch && pg.state_of(disk) == Some(MemberState::Syncing);
        if current {
            leading.progress.report(pg.id, disk, report.used_bytes, now);
        }
        if report.waits_for.is_empty() || !current {
            leading.soft.pg_waits.remove(&(pg.id, disk));
        } else {
            leading.soft.pg_waits.insert((pg.id, disk), shorten(&report.waits_for, PROBLEM_MAX));
        }
        let gone = |f: &cairn_manager_core::pg::Former| f.disk == disk && f.drop;
        if report.dropped && pg.epoch.get() >= report.epoch && pg.formers.iter().any(gone) {
            work.gone.push(MemberAt { pg: report.pg, disk: report.disk, epoch: report.epoch });
        }
        // Who leads a group whose members are all older copies of themselves says so when it has compared them.
        let compared = pg.older.comparing && pg.primary() == Some(disk) && pg.epoch.get() == report.epoch;
        if report.caught_up && (current || compared) {
            work.caught_up.push(MemberAt { pg: report.pg, disk: report.disk, epoch: report.epoch });
        }
    }
    take_lists(state, leading, node, request);
    let has: Vec<PartitionId> = request.partitions.iter().map(|report| PartitionId(report.partition)).collect();
    leading.note_left(state, node, request.map_version, &has, now);
    for report in &request.partitions {
        let id = PartitionId(report.partition);
        let found = state.partition(id).filter(|p| p.members.contains(&node));
        if found.is_some_and(|p| !p.removed && !p.begun.contains(&node)) {
            work.begun.push(PartitionAt { partition: report.partition, node: request.node });
        }
        if !report.leader {
            continue;
        }
        let member = found.is_some();
        let newer = leading.soft.partitions.get(&id).is_none_or(|known| known.report.term <= report.term);
        if member && newer {
            leading.soft.partitions.insert(id, PartitionLoad { leader: node, report: *report });
            leading.partition_heard.insert(id, now);
        }
    }
    work.suspects = suspects(request);
    work
}

/// How far the node's members of partitions got.
fn take_marks(state: &State, leading: &mut Leading, node: NodeId, request: &HeartbeatRequest) {
    for report in &request.partitions {
        let id = PartitionId(report.partition);
        if state.partition(id).is_some_and(|p| !p.removed && p.members.contains(&node)) {
            let known = leading.marks.entry((id, node)).or_default();
            *known = (*known).max((report.mark_term, report.mark_index));
        }
    }
}

fn suspects(request: &HeartbeatRequest) -> Vec<ReportMemberRequest> {
    let report = |suspect: &SuspectReport| ReportMemberRequest {
        pg: suspect.pg,
        epoch: suspect.epoch,
        disk: suspect.disk,
        why: suspect.why.clone(),
        session: 0,
    };
    request.suspects.iter().map(report).collect()
}

/// A member of this node has an epoch that was never given, as far as the state tells.
fn knows_later_epochs(state: &State, request: &HeartbeatRequest) -> bool {
    let is_here = |disk: DiskId| state.disk(disk).is_some_and(|disk| disk.node == NodeId(request.node));
    let later = |report: &PgReport| state.pg(PgId(report.pg)).is_some_and(|pg| report.epoch > pg.epoch.get());
    request.pgs.iter().any(|report| is_here(DiskId(report.disk)) && later(report))
}

/// A member may have an epoch that this leader never gave.
fn note_epoch(leading: &mut Leading, at: (PgId, DiskId), known: Epoch, theirs: Epoch) {
    if theirs > known {
        leading.soft.ahead.insert(at, theirs);
    } else {
        leading.soft.ahead.remove(&at);
    }
}

/// The whole-node lists of a heartbeat: each replaces what the node told before.
fn take_lists(state: &State, leading: &mut Leading, node: NodeId, request: &HeartbeatRequest) {
    take_unhealed(state, leading, node, request);
    take_missing(state, leading, node, request);
    take_refused(state, leading, node, request);
}

/// Loads and generations of disks; those that left service.
fn take_disks(state: &State, leading: &mut Leading, node: NodeId, request: &HeartbeatRequest) -> Vec<DiskAt> {
    let mut left = Vec::new();
    for report in &request.disks {
        let Some(disk) = disk_of(state, report).and_then(|id| state.disk(id)).filter(|d| d.node == node) else {
            continue;
        };
        leading.soft.disks.insert(disk.id, load(report));
        if let Some(generation) = risen(disk, report).filter(|_| state.level() >= 5) {
            leading.generations.insert(disk.id, (Incarnation(request.incarnation), generation));
        }
        let health = DiskState::from_health(report.health);
        if health != DiskState::InService && disk.state == DiskState::InService {
            let (state, problem) = (health.code(), shorten(&report.problem, TEXT_MAX));
            left.push(DiskAt { disk: disk.id.get(), incarnation: request.incarnation, state, problem });
        }
    }
    left
}

/// The generation that a disk has and the log does not.
fn risen(disk: &Disk, report: &DiskReport) -> Option<Generation> {
    let told = report.generations.last()?;
    let told = Generation { number: told.number, nonce: told.nonce };
    let newer = |known: Generation| known.nonce == told.nonce && known.number < told.number;
    disk.generation.is_none_or(newer).then_some(told)
}

/// A disk that has fewer generations than it told before, under the same start: its machine was set back with all that
/// ran on it.
fn went_back(state: &State, request: &HeartbeatRequest) -> Option<DiskId> {
    let back = |report: &&DiskReport| {
        let known = disk_of(state, report).and_then(|id| state.disk(id)).and_then(|disk| disk.generation);
        let told = report.generations.last();
        known.zip(told).is_some_and(|(known, told)| known.nonce == told.nonce && known.number > told.number)
    };
    request.disks.iter().find(back).and_then(|report| disk_of(state, report))
}

/// A node tells all its bad blocks each time.
fn take_unhealed(state: &State, leading: &mut Leading, node: NodeId, request: &HeartbeatRequest) {
    let is_here = |disk: DiskId| state.disk(disk).is_some_and(|d| d.node == node);
    leading.soft.unhealed.retain(|(_, disk), _| !is_here(*disk));
    for report in &request.unhealed {
        let (pg, disk) = (PgId(report.pg), DiskId(report.disk));
        if is_here(disk) && state.pg(pg).is_some() {
            leading.soft.unhealed.insert((pg, disk), (report.blocks, report.more));
        }
    }
}

/// It tells all the chunks that it looks for each time, too.
fn take_missing(state: &State, leading: &mut Leading, node: NodeId, request: &HeartbeatRequest) {
    let is_here = |disk: DiskId| state.disk(disk).is_some_and(|d| d.node == node);
    leading.soft.missing.retain(|(_, disk), _| !is_here(*disk));
    for report in &request.missing {
        let (pg, disk) = (PgId(report.pg), DiskId(report.disk));
        if is_here(disk) && state.pg(pg).is_some() {
            leading.soft.missing.insert((pg, disk), (report.chunks, report.lost));
        }
    }
}

/// And what clients were refused for.
fn take_refused(state: &State, leading: &mut Leading, node: NodeId, request: &HeartbeatRequest) {
    let is_here = |disk: DiskId| state.disk(disk).is_some_and(|d| d.node == node);
    leading.soft.refused.retain(|(_, disk, ..), _| !is_here(*disk));
    for report in &request.refused {
        let (pg, disk) = (PgId(report.pg), DiskId(report.disk));
        if is_here(disk) && state.pg(pg).is_some() {
            let RefusedRequests { count, seconds, .. } = *report;
            let refused =
                Refused { count, seconds, text: shorten(&report.text, PROBLEM_MAX), epoch: Epoch(report.epoch) };
            leading.soft.refused.insert((pg, disk, report.writes, report.code), refused);
        }
    }
}

/// Settings that nodes go by, as they are in force.
fn node_settings(state: &State, node: NodeId) -> Vec<ConfigItem> {
    let value = |key: Key| match key {
        Key::RepairRate => repair::share_of_rate(state, node).to_string(),
        key => state.config().text(key).into(),
    };
    let item = |key: &Key| ConfigItem { key: key.name().into(), value: value(*key), ..ConfigItem::default() };
    // No setting, but told in the same way: nobody has a session from this one on.
    let sessions_below =
        ConfigItem { key: "sessions_below".into(), value: state.next_session().to_string(), ..ConfigItem::default() };
    Key::OF_NODES.iter().map(item).chain([sessions_below]).collect()
}

/// The names of revoked keys, where the node was told others, or none, last.
fn news_of_revoked(state: &State, request: &HeartbeatRequest) -> Option<RevokedNames> {
    let sum = state.revoked_sum();
    let names = || state.revoked().map(|(name, _)| name.to_owned()).collect();
    request.revoked_sum.filter(|told| *told != sum).map(|_| RevokedNames { names: names(), sum })
}

fn disk_of(state: &State, report: &DiskReport) -> Option<DiskId> {
    match report.disk {
        0 => state.disk_by_uuid(DiskUuid::from_slice(&report.uuid)?).map(|disk| disk.id),
        id => Some(DiskId(id)),
    }
}
