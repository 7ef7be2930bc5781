//! What is to be said of disks that are older copies of themselves, and of a manager that is one.
use super::{Problems, groups, in_use, names};
use crate::pg::Pg;
use crate::state::State;
use cairn_types::DiskId;
use std::collections::BTreeSet;

pub(super) fn problems(state: &State, out: &mut Problems) {
    lost(state, out);
    comparing(state, out);
    disks(state, out);
    manager(state, out);
}

/// Until somebody says that he knows.
fn lost(state: &State, out: &mut Problems) {
    let pgs: Vec<&Pg> = in_use(state).filter(|pg| pg.older.unconfirmed).collect();
    let Some(first) = pgs.first() else { return };
    out.critical(format!(
        "{} ({}) may have lost what was acknowledged: all disks that held everything of them came back as older copies of \
         themselves; what is left of each was put together; `cairn admin fsck` names files that lack bytes; when you know \
         what is lost, `cairn admin pg force {} --known-loss` ends this message",
        groups(pgs.len()),
        names(pgs.iter().map(|pg| pg.id.to_string())),
        first.id,
    ));
}

fn comparing(state: &State, out: &mut Problems) {
    let pgs: Vec<&Pg> = in_use(state).filter(|pg| pg.older.comparing).collect();
    if !pgs.is_empty() {
        out.critical(format!(
            "{} ({}) cannot be read or written yet: their members are older copies of themselves and are being compared",
            groups(pgs.len()),
            names(pgs.iter().map(|pg| pg.id.to_string())),
        ));
    }
}

fn disks(state: &State, out: &mut Problems) {
    let older = in_use(state).flat_map(|pg| pg.members.iter().filter(|m| m.older).map(|m| m.disk));
    let older: BTreeSet<DiskId> = older.collect();
    if older.is_empty() {
        return;
    }
    let place = |disk: &DiskId| {
        let disk = state.disk(*disk)?;
        Some(format!("{} ({} on {})", disk.id, disk.path, disk.node))
    };
    out.warning(format!(
        "{} came back as {} (a restored snapshot or image?): what is there was not complete when it came, serves nothing, and \
         is brought up to what the other members have; do not restore the directories of disks from copies",
        names(older.iter().filter_map(place)),
        if older.len() == 1 { "an older copy of itself" } else { "older copies of themselves" },
    ));
}

fn manager(state: &State, out: &mut Problems) {
    let ahead: Vec<_> = state.disks().filter(|disk| disk.is_ahead).collect();
    if !ahead.is_empty() {
        out.critical(format!(
            "the managers' state is older than what was once logged: {} know of later generations than it does; if the managers \
             were restored from a copy, look at what is missing since then (`cairn admin fsck`)",
            names(ahead.iter().map(|disk| format!("{} ({} on {})", disk.id, disk.path, disk.node))),
        ));
    }
}
