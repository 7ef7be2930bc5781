//! Leaders of meta partitions spread over their members: one is handed over at a time, after all was calm for long.
//!
//! Which one is decided in [`cairn_manager_core::leaders`]. The partition's leader is asked first and hands over only
//! what was decided on its present members, so a decision that is late has no effect.
use super::repair::LEADER_PATIENCE;
use crate::group::Group;
use crate::manager::Manager;
use cairn_manager_core::Key;
use cairn_manager_core::leaders::{Transfer, next_transfer};
use cairn_manager_core::member_change::Step;
use std::sync::Arc;

impl Manager {
    /// Hands one leadership over, if a node leads too many and nothing has changed for long.
    pub(super) fn spread_leaders(&self) {
        let now = self.now();
        let due = self.look(|state, leading| {
            leading.forget_silent_leaders(now);
            let after = state.config().duration(Key::SpreadLeadersAfter);
            let calm = leading.calm.lasts(state, &leading.soft, now);
            if after.is_zero() || calm < after || now.since(leading.since) < LEADER_PATIENCE {
                return None;
            }
            let transfer = next_transfer(state, &leading.soft)?;
            // Whatever becomes of it, the next one waits as long.
            leading.calm.disturb();
            Some((Group::of(state, transfer.partition, Some(transfer.from))?, transfer))
        });
        let Ok(Some((group, transfer))) = due else { return };
        let Some(me) = self.arc() else { return };
        self.spawn(me.hand_partition_over(group, transfer));
    }

    async fn hand_partition_over(self: Arc<Self>, group: Group, transfer: Transfer) {
        let Transfer { partition, from, to } = transfer;
        match self.try_hand_over(&group, transfer).await {
            Ok(()) => tracing::info!(%partition, %from, %to, "a leadership goes to a node that leads less"),
            Err(why) => tracing::info!(%partition, %from, %to, why, "a leadership stays where it is for now"),
        }
    }

    async fn try_hand_over(&self, group: &Group, transfer: Transfer) -> Result<(), String> {
        let (view, answer) = self.ask_group(group).await?;
        if view.leader != transfer.from || view.changing {
            return Err("another one leads, or its members change".into());
        }
        if !view.voters().any(|node| node == transfer.to) || !view.has_caught_up(transfer.to) {
            return Err("the other one has no vote or has not caught up".into());
        }
        self.step_group(group, &answer, &Step::Transfer(transfer.to)).await
    }
}
