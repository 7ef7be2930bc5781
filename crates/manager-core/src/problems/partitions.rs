//! Partitions without a leader, and those whose members change. Volumes may have thousands: what is the same of many is one line.
use super::{Problems, names, names_up_to};
use crate::items::Partition;
use crate::soft::Soft;
use crate::state::State;

/// Partitions named in one line, and lines about one partition each.
pub(crate) const PARTITIONS_NAMED: usize = 10;

pub(super) fn problems(state: &State, soft: &Soft, out: &mut Problems) {
    let used = || state.partitions().filter(|p| !p.removed);
    let leaderless: Vec<&Partition> = used().filter(|p| !soft.partitions.contains_key(&p.id)).collect();
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
