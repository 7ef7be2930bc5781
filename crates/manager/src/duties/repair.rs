//! Members that are lost for long are replaced, and disks that come back before that is done get their places again.
//!
//! The rules are in [`cairn_manager_core::repair`]. Every round decides anew on what the state is then, so nothing is
//! remembered and a new leader goes on where the old one was. It waits first until it has heard of the nodes.
use crate::leading::Leading;
use crate::manager::Manager;
use cairn_env::Rng;
use cairn_manager_core::command::{Command, MemberAt, ReplaceMembers};
use cairn_manager_core::liveness::ProbeOutcome;
use cairn_manager_core::{Key, repair};
use cairn_manager_core::{Pg, Soft, State};
use cairn_types::{DiskId, MemberState, NodeId, PgId, Time};
use std::collections::BTreeSet;
use std::time::Duration;

/// A node heard within this time is fit to be copied to.
const HEARD_WITHIN: Duration = Duration::from_secs(3);
/// A new leader hears of everybody first.
pub(super) const LEADER_PATIENCE: Duration = Duration::from_secs(4);
/// Most members that get their places again in one round.
const ROUND_MAX: usize = 64;

pub(super) fn is_heard(leading: &Leading, node: NodeId, now: Time) -> bool {
    leading.liveness.was_heard(node) && leading.liveness.silence(node, now) <= HEARD_WITHIN
}

/// What the leader knows, for plans.
pub(super) struct Picture {
    pub soft: Soft,
    /// Nodes that are fit to be copied to.
    pub heard: BTreeSet<NodeId>,
}

impl Picture {
    pub(super) fn new(state: &State, leading: &Leading, now: Time) -> Self {
        let heard = state.nodes().map(|node| node.id).filter(|node| is_heard(leading, *node, now));
        Self { soft: leading.soft.clone(), heard: heard.collect() }
    }
}

impl Manager {
    /// Plans on a copy of the state, on another thread: in a large cluster it takes long. With a random number.
    pub(super) async fn planned<P: Send + 'static>(
        &self,
        plan: impl FnOnce(&State, u64) -> P + Send + 'static,
    ) -> Option<P> {
        let (state, seed) = (self.replica.read().clone(), Rng::u64(self.rng.as_ref()));
        tokio::task::spawn_blocking(move || plan(&state, seed)).await.ok()
    }

    pub(super) async fn repair(&self) {
        self.take_back();
        self.give_up_full().await;
        let now = self.now();
        let picture = self.look(|state, leading| {
            repair::note_lost(state, &mut leading.soft, now);
            let damaged = state.pgs().any(|pg| !pg.retired && !pg.is_complete());
            if !damaged || now.since(leading.since) < LEADER_PATIENCE {
                leading.soft.unreplaced.clear();
                leading.soft.repairs_queued = 0;
                return None;
            }
            Some(Picture::new(state, leading, now))
        });
        let Ok(Some(picture)) = picture else { return };
        let plan = self.planned(move |state, seed| {
            repair::plan(state, &picture.soft, now, |node| picture.heard.contains(&node), seed)
        });
        let Some(plan) = plan.await else { return };
        // No leader any more: the next one finds out for itself.
        let _ = self.look(|_, leading| {
            leading.soft.unreplaced = plan.blocked;
            leading.soft.repairs_queued = plan.queued;
        });
        if plan.groups.is_empty() {
            return;
        }
        let members: usize = plan.groups.iter().map(|group| group.swaps.len()).sum();
        for group in &plan.groups {
            let swaps: Vec<(u32, u32)> = group.swaps.iter().map(|swap| (swap.old, swap.new)).collect();
            tracing::warn!(
                pg = group.pg,
                epoch = group.epoch,
                ?swaps,
                "disks that are lost for long are replaced: each lost one by another that copies or rebuilds its part"
            );
        }
        self.metrics.members_replaced.add(members as u64);
        self.duty("replacement of members", Command::ReplaceMembers(ReplaceMembers { groups: plan.groups })).await;
    }

    /// Members that are being filled on disks that got full leave their groups: others are filled, or they come back
    /// when there is room.
    async fn give_up_full(&self) {
        let stuck = self.look(|state, leading| {
            let at = |(pg, disk): (&Pg, DiskId)| MemberAt { pg: pg.id.get(), disk: disk.get(), epoch: pg.epoch.get() };
            repair::stuck(state, &leading.soft).take(ROUND_MAX).map(at).collect::<Vec<_>>()
        });
        for at in stuck.unwrap_or_default() {
            tracing::warn!(
                pg = at.pg,
                disk = at.disk,
                "the disk that is being filled in the place of another one is full"
            );
            self.duty("a full member leaves", Command::MemberFailed(at)).await;
        }
    }

    /// Disks that were replaced and are in service again, before those in their places are complete.
    fn take_back(&self) {
        let now = self.now();
        let found = self.look(|state, leading| {
            let mut found = Vec::new();
            for pg in state.pgs().filter(|pg| !pg.retired && !pg.formers.is_empty() && !pg.is_complete()) {
                for disk in repair::returns(state, pg) {
                    let Some((node, address)) = place(state, disk) else { continue };
                    if successor_lacks_less(leading, pg, disk) {
                        continue;
                    }
                    if is_heard(leading, node, now) && found.len() < ROUND_MAX {
                        found.push((MemberAt { pg: pg.id.get(), disk: disk.get(), epoch: pg.epoch.get() }, address));
                    }
                }
            }
            (found, state.config().duration(Key::ReportProbeDeadline))
        });
        let Ok((found, deadline)) = found else { return };
        for (at, address) in found {
            let Some(me) = self.arc() else { return };
            self.spawn(async move {
                let outcome = me.probe_member(&address, PgId(at.pg), DiskId(at.disk), deadline).await;
                if outcome == ProbeOutcome::Alive {
                    tracing::info!(
                        pg = at.pg,
                        disk = at.disk,
                        "a disk that was replaced is back before its successor was complete: it gets its place again"
                    );
                    me.duty("the way back of a member", Command::TakeBack(at)).await;
                }
            });
        }
    }
}

/// Whether the disk in the place of a former one has nearly everything, and nothing keeps it from getting the rest.
fn successor_lacks_less(leading: &Leading, pg: &Pg, former: DiskId) -> bool {
    let member = pg.position_of(former).map(|position| pg.members[position]);
    let total = leading.soft.pg_used.get(&pg.id).copied().unwrap_or(0);
    let misses_nothing = pg.formers.iter().any(|f| f.disk == former && f.complete);
    member.is_some_and(|member| {
        let goes_on =
            member.state == MemberState::Syncing && !leading.soft.pg_waits.contains_key(&(pg.id, member.disk));
        goes_on && !misses_nothing && leading.progress.is_nearly_done(pg.id, member.disk, total)
    })
}

fn place(state: &State, disk: DiskId) -> Option<(NodeId, String)> {
    let node = state.disk(disk).and_then(|disk| state.node(disk.node))?;
    Some((node.id, node.address.clone()))
}
