//! Hibernations end. Members leave what is drained: other disks join their groups, get everything, and take their
//! places.
//!
//! The rules are in [`cairn_manager_core::moves`]. As with repair every round decides anew on what the state is then. A
//! disk that joined and was reported as failed joins again as other members rejoin ([`super::rejoin`]).
use super::repair::{LEADER_PATIENCE, Picture};
use crate::manager::Manager;
use cairn_manager_core::command::{CancelMoves, Command, Hibernate, ReplaceMembers};
use cairn_manager_core::moves;

impl Manager {
    /// Ends hibernations whose time is over.
    pub(super) async fn wake_up(&self) {
        let wall = self.clock.wall();
        let over = self.look(|state, _| {
            let over = state.hibernations().filter(|(_, hibernation)| hibernation.until <= wall);
            over.map(|(target, _)| target.clone()).collect::<Vec<_>>()
        });
        for target in over.unwrap_or_default() {
            tracing::warn!(%target, "the time for which it hibernates is over: what it keeps is repaired as usual");
            let command = Hibernate { target: Some((&target).into()), until_ns: 0, end: true };
            self.duty("end of a hibernation", Command::Hibernate(command)).await;
        }
    }

    /// After repair, which has noted what is lost and has the first word on what may be in flight. `further`: also for
    /// groups and disks that nobody asked to be moved.
    pub(super) async fn moves(&self, further: bool) {
        let now = self.now();
        let picture = self.look(|state, leading| {
            let needed = further || moves::is_needed(state);
            if !needed || now.since(leading.since) < LEADER_PATIENCE {
                return None;
            }
            Some(Picture::new(state, leading, now))
        });
        let Ok(Some(picture)) = picture else { return };
        let plan = self.planned(move |state, seed| {
            moves::plan(state, &picture.soft, now, |node| picture.heard.contains(&node), seed)
        });
        let Some(plan) = plan.await else { return };
        // No leader any more: the next one finds out for itself.
        let _ = self.look(|_, leading| {
            leading.soft.unmoved = plan.blocked;
            leading.soft.moves_queued = plan.queued;
        });
        if !plan.cancels.is_empty() {
            for at in &plan.cancels {
                tracing::warn!(pg = at.pg, disk = at.disk, "a disk that was to take a member's place gives up");
            }
            self.duty("disks that give up joining", Command::CancelMoves(CancelMoves { members: plan.cancels })).await;
        }
        if plan.groups.is_empty() {
            return;
        }
        for group in &plan.groups {
            let swaps: Vec<(u32, u32)> = group.swaps.iter().map(|swap| (swap.old, swap.new)).collect();
            tracing::info!(
                pg = group.pg,
                epoch = group.epoch,
                ?swaps,
                "a member leaves its disk: another one copies or rebuilds its part, and takes its place then"
            );
        }
        self.metrics.moves_begun.add(plan.groups.len() as u64);
        self.duty("moves of members", Command::BeginMoves(ReplaceMembers { groups: plan.groups })).await;
    }
}
