//! What clients are refused for, with its cause and what to do; and members that know more than the manager.
use super::{Problems, groups, names};
use crate::soft::{Refused, Soft};
use crate::state::State;
use cairn_types::{DiskId, Epoch, ErrorCode, PgId};
use std::collections::BTreeMap;

/// What a node said before it went down holds no more.
fn is_up(state: &State, disk: DiskId) -> bool {
    state.disk(disk).and_then(|disk| state.node(disk.node)).is_some_and(|node| node.up)
}

/// Members with an epoch that this manager never gave: it was restored from an older copy, or its disks are another
/// cluster's past.
pub(super) fn ahead(state: &State, soft: &Soft, out: &mut Problems) {
    let newer = |((pg, disk), epoch): (&(PgId, DiskId), &Epoch)| {
        let pg = state.pg(*pg).filter(|pg| !pg.retired && pg.epoch < *epoch && pg.state_of(*disk).is_some())?;
        Some((pg.id, (*disk, pg.epoch, *epoch)))
    };
    let ahead = soft.ahead.iter().filter(|((_, disk), _)| is_up(state, *disk));
    let all: BTreeMap<PgId, (DiskId, Epoch, Epoch)> = ahead.filter_map(newer).collect();
    let Some((pg, (disk, known, epoch))) = all.first_key_value() else { return };
    out.critical(format!(
        "{} ({}) cannot be written: members have epochs that the manager never gave ({disk} has {epoch} of {pg}, the manager knows \
         {known}): the manager's state is older than the disks, as after it was restored from a copy; stop all managers and \
         start them with their newest state, or, if that is lost, follow docs/guides/recover.md",
        groups(all.len()),
        names(all.keys().map(|pg| pg.to_string())),
    ));
}

/// What to do about a cause that lasts.
fn next_step(code: Option<ErrorCode>) -> &'static str {
    use ErrorCode as E;
    match code {
        Some(E::StaleEpoch) => {
            "the member does not have the epoch that the manager gave (`cairn admin pg`): look at the log of its node, and restart it if this lasts"
        }
        Some(E::WrongIncarnation) => {
            "clients learn from the manager who runs where: see that they reach it, and look at the log of the member's node"
        }
        Some(E::NotServing | E::NotPrimary | E::UnknownPg) => {
            "the member has not heard, or not taken, what the manager says of the group: look at the log of its node, and restart it if this lasts"
        }
        Some(E::BelowMinimum) => "bring missing members back: `cairn admin pg` names them",
        Some(E::NoSpace | E::PgFull) => "delete files or add disks",
        Some(E::DiskFailed) => "check the device, then restart its node",
        Some(E::Overloaded) => {
            "a member that does not answer holds it up, or too much is asked for: look at the log of its node"
        }
        Some(E::ChainFailed | E::Unavailable | E::DeadlineExceeded) => {
            "another member of the group does not answer it: see that the nodes of the group reach each other"
        }
        Some(E::VersionUnsupported) => "bring clients and servers to versions that work together",
        _ => "look at the log of its node",
    }
}

/// Whether somebody was refused by a member that is in the manager's epoch because he goes by another one, which is old
/// or made up: the group serves whoever asks the manager. Members of builds that do not tell their epoch say 0.
fn is_askers_fault(pg: &crate::pg::Pg, code: u32, refused: &Refused) -> bool {
    code == u32::from(ErrorCode::StaleEpoch.code()) && refused.epoch == pg.epoch
}

/// Groups that refuse what clients ask for, and are in order as far as the state tells: others are told as such.
pub(super) fn refused(state: &State, soft: &Soft, out: &mut Problems) {
    type Causes<'a> = BTreeMap<(u32, bool), Vec<(PgId, DiskId, &'a Refused)>>;
    let mut causes = Causes::new();
    for ((pg, disk, writes, code), refused) in &soft.refused {
        let explained = |pg: &&crate::pg::Pg| pg.retired || !pg.is_readable() || *writes && !pg.has_write_minimum();
        // Whoever is no member any more sends clients to the map: that refuses them nothing.
        let serves = |pg: &&crate::pg::Pg| {
            pg.state_of(*disk).is_some() && !explained(pg) && !is_askers_fault(pg, *code, refused)
        };
        if is_up(state, *disk) && state.pg(*pg).filter(serves).is_some() {
            causes.entry((*code, *writes)).or_default().push((*pg, *disk, refused));
        }
    }
    for ((number, writes), members) in causes {
        let code = u16::try_from(number).ok().and_then(ErrorCode::from_code);
        let Some((pg, disk, refused)) = members.iter().max_by_key(|(_, _, refused)| refused.count) else { continue };
        let mut pgs: Vec<PgId> = members.iter().map(|(pg, ..)| *pg).collect();
        pgs.dedup();
        let at = state.disk(*disk).map_or_else(String::new, |d| format!(" ({} on {})", d.path, d.node));
        out.critical(format!(
            "{} of clients are refused in {} ({}): {disk}{at} answered {} times in {} s of {pg}: {} ({}); {}",
            if writes { "writes" } else { "reads" },
            groups(pgs.len()),
            names(pgs.iter().map(|pg| pg.to_string())),
            refused.count,
            refused.seconds,
            refused.text,
            code.map_or("an unknown code", ErrorCode::name),
            next_step(code),
        ));
    }
}
