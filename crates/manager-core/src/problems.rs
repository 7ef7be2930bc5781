//! What is wrong with the cluster, in words: what it is, what it means for data, what is being done.
//!
//! Most serious first. Empty means healthy. Not here: counts and tables (the status answer has the map).
mod bounded;
mod chunks;
mod nodes;
mod older;
pub(crate) mod partitions;
mod problem;
mod refused;
mod restored;
mod revoked;

pub use problem::{Problem, Problems, Severity};

use crate::config::Key;
use crate::items::DiskState;
use crate::pg::Pg;
use crate::repair::delay_of;
use crate::soft::Soft;
use crate::state::State;
pub(crate) use crate::wording::{groups, names_up_to};
use cairn_types::{DiskId, MemberState, PgId, WallTime};

/// Things named in one line.
const NAMED_MAX: usize = 4;

/// Every problem that state and heartbeats show.
pub fn problems(state: &State, soft: &Soft, now: WallTime) -> Problems {
    let mut out = Problems::default();
    restored::waiting(state, soft, &mut out);
    if let Some(why) = crate::first_volume::waits_for(state) {
        out.warning(why);
    }
    waiting(state, &mut out);
    read_only(state, &mut out);
    older::problems(state, &mut out);
    incomplete(state, soft, &mut out);
    refused::ahead(state, soft, &mut out);
    refused::refused(state, soft, &mut out);
    chunks::lost(state, soft, &mut out);
    unhealed(state, soft, &mut out);
    chunks::missing(state, soft, &mut out);
    partitions::problems(state, soft, now, &mut out);
    partitions::unplaced(state, soft, &mut out);
    nodes::problems(state, soft, now, &mut out);
    revoked::forgotten(state, soft, &mut out);
    disks(state, soft, &mut out);
    gray(state, soft, &mut out);
    unreplaced(state, soft, &mut out);
    drains(state, soft, &mut out);
    degraded(state, &mut out);
    crate::first_volume::thin_partitions(state, soft, &mut out);
    misplaced(state, soft, &mut out);
    volumes(state, &mut out);
    bounded::used_up(state, &mut out);
    out
}

fn in_use(state: &State) -> impl Iterator<Item = &Pg> {
    state.pgs().filter(|pg| !pg.retired)
}

fn names(items: impl Iterator<Item = String>) -> String {
    names_up_to(NAMED_MAX, items)
}

/// Which members of these groups are doing so.
fn catching_up(pgs: &[&Pg]) -> String {
    names(pgs.iter().flat_map(|pg| {
        let members = pg.members.iter().filter(|member| member.state == MemberState::Syncing);
        members.map(|member| format!("{} in {}", member.disk, pg.id))
    }))
}

/// The same as the end of a sentence.
fn and_catching_up(pgs: &[&Pg]) -> String {
    let members = catching_up(pgs);
    if members.is_empty() { members } else { format!("; catching up now: {members}") }
}

fn waiting(state: &State, out: &mut Problems) {
    let pgs: Vec<&Pg> = in_use(state).filter(|pg| !pg.is_readable()).collect();
    if pgs.is_empty() {
        return;
    }
    let waited =
        |pg: &&Pg| pg.members.iter().filter(|m| m.state == MemberState::Waiting).map(|m| m.disk).collect::<Vec<_>>();
    let mut disks: Vec<_> = pgs.iter().flat_map(waited).collect();
    disks.sort_unstable();
    disks.dedup();
    let disks = disks.into_iter().filter_map(|id| state.disk(id)).map(|disk| {
        let host = state.node(disk.node).map_or("?", |n| n.host.as_str());
        format!("{} ({} on {}, host {host})", disk.id, disk.path, disk.node)
    });
    out.critical(format!(
        "{} ({}) cannot be read or written: too few complete copies or shards are in service, the others are on {}; \
         start these nodes, the data comes back with them; only if a disk is destroyed, `cairn admin pg force` gives it up{}",
        groups(pgs.len()),
        names(pgs.iter().map(|pg| pg.id.to_string())),
        names(disks),
        and_catching_up(&pgs),
    ));
}

fn read_only(state: &State, out: &mut Problems) {
    let few = |pg: &&Pg| pg.is_readable() && !pg.has_write_minimum();
    let pgs: Vec<&Pg> = in_use(state).filter(few).collect();
    if !pgs.is_empty() {
        out.critical(format!(
            "{} ({}) can be read but not written: fewer members serve than the minimum for writes; one more loss can \
             make data unreachable; new data goes to other groups, missing members catch up when they return{}",
            groups(pgs.len()),
            names(pgs.iter().map(|pg| pg.id.to_string())),
            and_catching_up(&pgs),
        ));
    }
}

/// Members that cannot catch up because nobody has all that they lack.
fn incomplete(state: &State, soft: &Soft, out: &mut Problems) {
    let syncing = |(pg, disk): &(PgId, DiskId)| {
        state.pg(*pg).is_some_and(|pg| !pg.retired && pg.state_of(*disk) == Some(MemberState::Syncing))
    };
    let waits: Vec<_> = soft.pg_waits.iter().filter(|(at, _)| syncing(at)).collect();
    let Some(((pg, disk), first)) = waits.first() else { return };
    out.critical(format!(
        "{} cannot catch up: no member in service has all that they lack ({}); {disk} in {pg}: {first}; bring missing \
         disks back, or delete the files concerned: reading them names what is lost",
        if waits.len() == 1 { "1 member".into() } else { format!("{} members", waits.len()) },
        names(waits.iter().map(|((pg, disk), _)| format!("{disk} in {pg}"))),
    ));
}

/// Blocks that are bad and of which too little is intact elsewhere, for now or for good.
fn unhealed(state: &State, soft: &Soft, out: &mut Problems) {
    let is_member = |pg: PgId, disk: DiskId| state.pg(pg).is_some_and(|pg| !pg.retired && pg.state_of(disk).is_some());
    let all: Vec<_> = soft.unhealed.iter().filter(|((pg, disk), _)| is_member(*pg, *disk)).collect();
    let blocks: u64 = all.iter().map(|(_, (blocks, _))| blocks).sum();
    if blocks == 0 {
        return;
    }
    let least = if all.iter().any(|(_, (_, more))| *more) { "at least " } else { "" };
    let place = |((pg, disk), (blocks, _)): &(&(PgId, DiskId), &(u64, bool))| {
        let at = state.disk(*disk).map_or_else(String::new, |d| format!(" ({} on {})", d.path, d.node));
        format!("{blocks} of {pg} on {disk}{at}")
    };
    out.critical(format!(
        "{least}{} bad and cannot be healed now: {}; too few other copies or shards of them are intact and in service; they \
         are tried again by themselves; bring missing members back; `cairn fs du -r` shows files that cannot be read, \
         `cairn fs stat` says what one lacks; what is lost for good leaves this list when the file is written anew, or removed and out of the trash",
        if blocks == 1 { "1 block is".into() } else { format!("{blocks} blocks are") },
        names(all.iter().map(place)),
    ));
}

/// Members that are lost for long and that no other disk can replace.
fn unreplaced(state: &State, soft: &Soft, out: &mut Problems) {
    let lost = |(pg, disk): &(PgId, DiskId)| {
        state.pg(*pg).is_some_and(|pg| !pg.retired && pg.state_of(*disk) == Some(MemberState::Offline))
    };
    let all: Vec<_> = soft.unreplaced.iter().filter(|(at, _)| lost(at)).collect();
    let Some(((pg, disk), first)) = all.first() else { return };
    out.warning(format!(
        "{} cannot be replaced ({}): {disk} in {pg}: {first}",
        if all.len() == 1 { "1 lost member".into() } else { format!("{} lost members", all.len()) },
        names(all.iter().map(|((pg, disk), _)| format!("{disk} in {pg}"))),
    ));
}

/// Drains that stand: members have nowhere to go. Groups that lack a member are told as such, and go on when they are
/// complete.
fn drains(state: &State, soft: &Soft, out: &mut Problems) {
    for (target, _) in state.drains() {
        let stays = |(pg, disk): &(PgId, DiskId)| {
            state.is_in(target, *disk)
                && state.pg(*pg).is_some_and(|pg| {
                    let stands = !pg.retired && pg.joining.is_none() && pg.is_complete();
                    stands && pg.state_of(*disk) == Some(MemberState::Serving)
                })
        };
        let all: Vec<_> = soft.unmoved.iter().filter(|(at, _)| stays(at)).collect();
        let Some(((pg, disk), first)) = all.first() else { continue };
        out.warning(format!(
            "the drain of {target} does not go on: {} cannot leave ({}): {disk} in {pg}: {first}",
            if all.len() == 1 { "1 member".into() } else { format!("{} members", all.len()) },
            names(all.iter().map(|((pg, disk), _)| format!("{disk} in {pg}"))),
        ));
    }
}

/// After which time lost members of these groups are replaced.
fn delays(state: &State, pgs: &[&Pg]) -> String {
    let text = |key: Key| format!("{} ({})", state.config().text(key), key.name());
    let urgent = pgs.iter().filter(|pg| delay_of(pg, false) == Key::RepairDelayUrgent).count();
    match urgent {
        0 => text(Key::RepairDelay),
        all if all == pgs.len() => text(Key::RepairDelayUrgent),
        some => format!("{}, in {some} of them after {}", text(Key::RepairDelay), text(Key::RepairDelayUrgent)),
    }
}

fn degraded(state: &State, out: &mut Problems) {
    let fewer = |pg: &&Pg| !pg.is_complete() && pg.has_write_minimum();
    let pgs: Vec<&Pg> = in_use(state).filter(fewer).collect();
    if pgs.is_empty() {
        return;
    }
    let syncing = pgs.iter().filter(|pg| pg.count(MemberState::Syncing) > 0).count();
    let filling = pgs.iter().filter(|pg| pg.filling().next().is_some()).count();
    let away = |pg: &&Pg| {
        pg.members
            .iter()
            .filter(|m| matches!(m.state, MemberState::Waiting | MemberState::Offline))
            .map(|m| m.disk)
            .collect::<Vec<_>>()
    };
    let sleep = pgs.iter().flat_map(away).all(|disk| state.hibernates(disk));
    let later_on = match sleep {
        true => "return: they hibernate, and nothing is repaired for them meanwhile".to_owned(),
        false => format!("return, or are replaced by other disks after {}", delays(state, &pgs)),
    };
    let catching_up = catching_up(&pgs);
    let (have, they, catch, their) = match pgs.len() {
        1 => ("has", "it", "catches", "its"),
        _ => ("have", "they", "catch", "their"),
    };
    let mut doing = match (syncing, pgs.len() - syncing) {
        (0, _) => format!("{they} {catch} up when {their} missing members {later_on}"),
        (_, 0) => format!("{their} members are catching up now: {catching_up}"),
        (now, later) => format!(
            "members of {now} are catching up now ({catching_up}), {later} wait until their missing members {later_on}"
        ),
    };
    if filling > 0 {
        doing.push_str(&format!("; in {filling} another disk is being filled in the place of a lost one"));
    }
    // As it was announced.
    let severity = if sleep && syncing == 0 { Severity::Notice } else { Severity::Warning };
    let text = format!(
        "{} ({}) {have} fewer copies or shards than {they} should, all data can be read and written; {doing}",
        groups(pgs.len()),
        names(pgs.iter().map(|pg| pg.id.to_string())),
    );
    out.push(severity, text);
}

/// Groups that a rack or host may take down although the cluster has better places.
fn misplaced(state: &State, soft: &Soft, out: &mut Problems) {
    let found = crate::moves::misplaced(state);
    if found.is_empty() {
        return;
    }
    let why = found.iter().find_map(|(pg, at)| soft.unmoved.get(&(pg.id, pg.members[*at].disk)));
    let doing = why
        .map_or_else(|| "they are moved to better places".into(), |why| format!("a better place is not free: {why}"));
    out.warning(format!(
        "{} ({}) have more members in one rack or on one host than they need to, and are less safe than their layout \
         says if it is lost; {doing}",
        groups(found.len()),
        names(found.iter().map(|(pg, _)| pg.id.to_string())),
    ));
}

fn disks(state: &State, soft: &Soft, out: &mut Problems) {
    for disk in state.disks().filter(|d| d.state != DiskState::InService) {
        let pgs = state.pgs_of(disk.id).filter(|pg| !pg.retired).count();
        let sleeps = state.hibernates(disk.id);
        if disk.state == DiskState::Removed || disk.state == DiskState::Absent && pgs == 0 && sleeps {
            continue;
        }
        let problem = if disk.problem.is_empty() { "no reason told" } else { disk.problem.as_str() };
        let means = match pgs {
            0 => format!("no placement group needs it any more; `cairn admin disk remove {}` if it is lost", disk.id),
            1 => "1 placement group lacks it and goes on without".into(),
            n => format!("{} lack it and go on without", groups(n)),
        };
        let severity = if sleeps { Severity::Notice } else { Severity::Warning };
        let text = format!(
            "{} ({} on {}) is {}: {problem}; {means}; check the device, then restart its node",
            disk.id,
            disk.path,
            disk.node,
            disk.state.name(),
        );
        out.push(severity, text);
    }
    let full: Vec<String> = state
        .disks()
        .filter(|d| state.is_able(d.id) && state.free_above_reserve(d.id, soft) == 0)
        .map(|d| d.id.to_string())
        .collect();
    if !full.is_empty() {
        let (count, all) = (full.len(), state.disks_in_service());
        let (severity, means) = match count < all {
            true => (Severity::Warning, "they take no new chunks, others are used"),
            false => (Severity::Critical, "nothing more can be stored"),
        };
        let text = format!(
            "{count} of {all} disks in service ({}) are full up to the reserve (disk_reserve): {means}; add disks or delete files",
            names(full.into_iter()),
        );
        out.push(severity, text);
    }
}

/// Disks that work, for now.
fn gray(state: &State, soft: &Soft, out: &mut Problems) {
    let leaving = state.gray_leaving();
    for (id, gray) in state.grays() {
        let Some(disk) = state.disk(id) else { continue };
        let left = state.pgs_of(id).filter(|pg| !pg.retired).count();
        let why = || soft.unmoved.iter().find(|((_, from), _)| *from == id).map(|(_, why)| why.as_str());
        let doing = match (left, leaving == Some(id), why()) {
            (0, ..) => "it is empty".into(),
            (_, true, None) => format!("{} are moved to other disks", groups(left)),
            (_, true, Some(why)) => format!("{} leave it, and one cannot: {why}", groups(left)),
            _ => format!("{} stay for now (drain_gray_disks, one disk at a time)", groups(left)),
        };
        out.warning(format!(
            "{id} ({} on {}) is gray: {}; it serves and gets nothing new; {doing}; check the device: replace it and `cairn admin \
             disk remove {id}` when it is empty, or `cairn admin disk clear {id}` if it is good",
            disk.path, disk.node, gray.why
        ));
    }
}

fn volumes(state: &State, out: &mut Problems) {
    for volume in state.volumes().filter(|v| !v.deleted) {
        // Columns that take nothing because stripe groups are off are no reason to write nothing.
        let asked = |pg: &&Pg| pg.volume == volume.id && state.may_take_chunks(pg);
        let pgs: Vec<&Pg> = in_use(state).filter(asked).collect();
        if !pgs.is_empty() && !pgs.iter().any(|pg| pg.is_writable()) {
            out.critical(format!(
                "volume {} has no placement group that can be written: writes to it wait or fail until members return, \
                 disks are added or, where they are full, files are deleted",
                volume.name
            ));
        }
    }
}

#[cfg(test)]
mod tests;
