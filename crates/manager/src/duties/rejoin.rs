//! Taking members back that were removed from a group although their node lives.
//!
//! Rule: the node is up and heard, the disk in service, the removal is `rejoin_delay` ago, doubled with each removal of
//! this member, and it answers a probe. A waiting member serves again at once: it missed nothing. An offline one comes
//! back only while the group can be read, as syncing, and serves after a verified catch-up; one that never was complete
//! only when its disk has room.
use crate::manager::Manager;
use cairn_manager_core::command::{Command, MemberAt};
use cairn_manager_core::liveness::ProbeOutcome;
use cairn_manager_core::pg::Member;
use cairn_manager_core::{Key, repair};
use cairn_types::{DiskId, MemberState, PgId};
use std::time::Duration;

/// Most members taken back in one round: each begins a catch-up.
const ROUND_MAX: usize = 64;
/// A node heard within this time is fit to catch up.
const HEARD_WITHIN: Duration = Duration::from_secs(3);

impl Manager {
    pub(super) async fn rejoin(&self) {
        let now = self.now();
        let fit = self.look(|state, leading| {
            let delay = state.config().duration(Key::RejoinDelay);
            let mut fit = Vec::new();
            for pg in state.pgs().filter(|pg| !pg.retired && (!pg.is_complete() || pg.joining.is_some())) {
                let gone = |member: &&Member| match member.state {
                    MemberState::Waiting => true,
                    MemberState::Offline => pg.is_readable(),
                    MemberState::Serving | MemberState::Syncing => false,
                };
                let joining = pg.joining.map(|j| Member { disk: j.disk, state: j.state, filling: true, older: false });
                for member in pg.members.iter().chain(&joining).filter(gone) {
                    let Some(node) = state.disk(member.disk).map(|d| d.node) else { continue };
                    let heard = leading.liveness.was_heard(node) && leading.liveness.silence(node, now) <= HEARD_WITHIN;
                    // One that has nothing yet needs room for all of it.
                    let room = !member.filling || repair::has_room(state, &leading.soft, pg, member.disk);
                    let able = state.is_able(member.disk) && room;
                    if heard && able && leading.may_rejoin(pg.id, member.disk, now, delay) {
                        let address = state.node(node).map(|n| n.address.clone()).unwrap_or_default();
                        let at = MemberAt { pg: pg.id.get(), disk: member.disk.get(), epoch: pg.epoch.get() };
                        fit.push((at, address));
                    }
                }
                if fit.len() >= ROUND_MAX {
                    break;
                }
            }
            (fit, state.config().duration(Key::ReportProbeDeadline))
        });
        let Ok((fit, deadline)) = fit else { return };
        for (at, address) in fit {
            let Some(me) = self.arc() else { return };
            self.spawn(async move {
                let outcome = me.probe_member(&address, PgId(at.pg), DiskId(at.disk), deadline).await;
                if outcome == ProbeOutcome::Alive {
                    tracing::info!(pg = at.pg, disk = at.disk, "a removed member answers again: it is taken back");
                    me.duty("rejoin", Command::Rejoin(at)).await;
                }
            });
        }
    }
}
