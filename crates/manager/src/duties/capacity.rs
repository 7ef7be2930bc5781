//! Keeping placement groups open where there is room, closed where there is none, and enough of them.
//!
//! A group is closed when a serving member's disk has nothing left above the reserve, and opened again when all of
//! them have [`REOPEN_FACTOR`] times the reserve (at least [`REOPEN_MIN`]) free. Only disks whose load is known from a
//! heartbeat count.
use crate::manager::Manager;
use cairn_manager_core::command::{Command, SetPgsOpen};
use cairn_manager_core::{Key, Pg, Soft, State};
use cairn_types::{MemberState, PgClass, VolumeId};
use std::collections::BTreeSet;

const REOPEN_FACTOR: u64 = 2;
const REOPEN_MIN: u64 = 256 << 20;

impl Manager {
    pub(super) async fn open_and_close(&self) {
        let change = self.look(|state, leading| {
            let mut change = SetPgsOpen::default();
            for pg in state.pgs().filter(|pg| !pg.retired) {
                match wanted(state, &leading.soft, pg) {
                    Some(true) if !pg.open => change.open.push(pg.id.get()),
                    Some(false) if pg.open => change.closed.push(pg.id.get()),
                    _ => {}
                }
            }
            change
        });
        let Ok(change) = change else { return };
        if !change.open.is_empty() || !change.closed.is_empty() {
            let (opened, closed) = (change.open.len(), change.closed.len());
            tracing::info!(opened, closed, "placement groups were opened or closed by the space of their disks");
            self.duty("open placement groups", Command::SetPgsOpen(change)).await;
        }
    }

    /// Volumes that have groups of a class keep as many open ones as they should have: after growth, and for full
    /// ones.
    pub(super) async fn top_up(&self) {
        let kinds = self.look(|state, _| {
            let kinds = state.pgs().filter(|pg| !pg.retired).map(|pg| (pg.volume, pg.class()));
            kinds.collect::<BTreeSet<(VolumeId, PgClass)>>()
        });
        for (volume, class) in kinds.unwrap_or_default() {
            if let Err(error) = self.ensure(volume, class).await {
                tracing::debug!(%volume, %class, %error, "no more placement groups can be made at the moment");
            }
        }
    }
}

/// Whether a group should be open; `None`: as it is.
fn wanted(state: &State, soft: &Soft, pg: &Pg) -> Option<bool> {
    let reserve = state.config().number(Key::DiskReserve);
    let reopen = reserve.saturating_mul(REOPEN_FACTOR).max(REOPEN_MIN);
    let serving = || pg.members.iter().filter(|m| m.state == MemberState::Serving).map(|m| m.disk);
    if serving().any(|disk| soft.disks.contains_key(&disk) && state.free_above_reserve(disk, soft) == 0) {
        return Some(false);
    }
    let free: Vec<Option<u64>> = serving().map(|disk| soft.disks.get(&disk).map(|load| load.free_bytes)).collect();
    let room = |free: &Option<u64>| free.is_some_and(|free| free >= reopen);
    (!free.is_empty() && free.iter().all(room)).then_some(true)
}
