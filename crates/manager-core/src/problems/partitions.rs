//! Partitions without a leader, and those whose members change. Volumes may have thousands: what is the same of many is
//! one line.
use super::{Problems, names, names_up_to};
use crate::items::Partition;
use crate::soft::Soft;
use crate::state::State;
use cairn_types::{NodeId, WallTime};

/// Partitions named in one line, and lines about one partition each.
pub(crate) const PARTITIONS_NAMED: usize = 10;

/// So long after its volume was made a partition may be without a leader and nothing is wrong: its members begin it.
const BEGINS_WITHIN_NS: u64 = 30_000_000_000;

/// Volumes whose partitions are full or busy, or were told to get more, and that get none.
pub(super) fn unplaced(state: &State, soft: &Soft, out: &mut Problems) {
    for (volume, why) in soft.unplaced.iter().take(PARTITIONS_NAMED) {
        let name = state.volume(*volume).map_or_else(|| volume.to_string(), |volume| volume.name.clone());
        out.warning(format!("volume {name} needs more partitions and gets none: {why}"));
    }
}

/// The only member that votes in a partition that has others by the map: it was restored there, and they are of before.
pub(super) fn alone_on(soft: &Soft, partition: &Partition) -> Option<NodeId> {
    let load = soft.partitions.get(&partition.id).filter(|load| load.report.voters == 1);
    let settled = partition.target.is_empty() && partition.members.len() > 1;
    load.filter(|load| settled && partition.members.contains(&load.leader)).map(|load| load.leader)
}

/// Made together with its volume a moment ago.
fn is_new(state: &State, partition: &Partition, now: WallTime) -> bool {
    let made = state.volume(partition.volume).map_or(0, |volume| volume.created.0);
    partition.level == 0 && !partition.changed && made.abs_diff(now.0) < BEGINS_WITHIN_NS
}

fn restored(state: &State, soft: &Soft, out: &mut Problems) {
    let alone = state.partitions().filter(|p| !p.removed).filter_map(|p| Some((p, alone_on(soft, p)?)));
    let alone: Vec<(&Partition, NodeId)> = alone.collect();
    for (partition, node) in alone.iter().take(PARTITIONS_NAMED) {
        let others = partition.members.iter().filter(|id| *id != node).map(|id| id.to_string());
        let (id, others) = (partition.id.get(), others.collect::<Vec<_>>().join(" "));
        out.warning(format!(
            "{} was restored on {node} and runs there alone: `cairn admin partition remove {id} {others}` takes out its members of \
             before, then `cairn admin partition add {id} {others}` makes members of them again; they have to run for that",
            named(state, partition)
        ));
    }
    let more = alone.len().saturating_sub(PARTITIONS_NAMED);
    if more > 0 {
        out.warning(format!(
            "{more} more partitions were restored and have one member; `cairn admin partition ls` shows them"
        ));
    }
}

pub(super) fn problems(state: &State, soft: &Soft, now: WallTime, out: &mut Problems) {
    let used = || state.partitions().filter(|p| !p.removed);
    let leaderless = used().filter(|p| !soft.partitions.contains_key(&p.id));
    let (new, leaderless): (Vec<&Partition>, Vec<&Partition>) = leaderless.partition(|p| is_new(state, p, now));
    if !new.is_empty() {
        out.notice(format!(
            "{} made a moment ago and reports no leader yet: its members begin it",
            match new[..] {
                [one] => format!("{} was", named(state, one)),
                _ => format!("each of {} partitions was", new.len()),
            }
        ));
    }
    restored(state, soft, out);
    match leaderless[..] {
        [] => {}
        [one] => out.critical(format!(
            "{} reports no leader: its names cannot be read or changed; a majority of its members {} has to run",
            named(state, one),
            names(one.members.iter().map(|n| n.to_string()))
        )),
        _ => out.critical(format!(
            "{} partitions report no leader, {}: their names cannot be read or changed; a majority of the members of each has to run \
             (`cairn admin partition ls` shows them)",
            leaderless.len(),
            names_up_to(PARTITIONS_NAMED, leaderless.iter().map(|p| named(state, p)))
        )),
    }
    let changing: Vec<&Partition> = used().filter(|p| !p.target.is_empty()).collect();
    changing.iter().take(PARTITIONS_NAMED).for_each(|p| out.notice(change(state, soft, p)));
    let more = changing.len().saturating_sub(PARTITIONS_NAMED);
    if more > 0 {
        out.notice(format!("{more} more partitions are getting other members; `cairn admin partition ls` shows them"));
    }
}

/// `p1 (volume home)`.
pub(crate) fn named(state: &State, partition: &Partition) -> String {
    let volume = state.volume(partition.volume).map_or("?", |v| v.name.as_str());
    format!("{} (volume {volume})", partition.id)
}

fn change(state: &State, soft: &Soft, partition: &Partition) -> String {
    let goes = partition.members.iter().filter(|node| !partition.target.contains(node));
    let goes = match names(goes.map(|n| n.to_string())) {
        none if none.is_empty() => none,
        nodes => format!("; {nodes} leave when that is done"),
    };
    let how = soft.changes.get(&partition.id).map_or("it begins", String::as_str);
    format!(
        "{} is getting the members {}{goes}: {how}; `cairn admin partition` takes another wish at any time",
        named(state, partition),
        names(partition.target.iter().map(|n| n.to_string())),
    )
}
