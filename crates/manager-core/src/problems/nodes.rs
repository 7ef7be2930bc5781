//! Nodes that are down, mute, copied, or say what they lack.
//!
//! Invariant: whoever is down is named until it is back, was removed, or is announced to hibernate and nothing lacks
//! it.
use super::partitions::alone_on;
use super::{Problems, Severity, groups, names};
use crate::items::{Node, Partition, Roles};
use crate::soft::Soft;
use crate::state::State;
use cairn_types::{NodeId, WallTime};

/// What partitions lack without a node.
struct Missed {
    /// Some cannot be used.
    stands: bool,
    text: String,
    /// What to do if it never comes back.
    never: String,
}

/// What its partitions lack while a node is down, and what to do if it never comes back.
fn missed(state: &State, soft: &Soft, node: &Node) -> Missed {
    let mine = state.partitions().filter(|p| !p.removed && p.members.contains(&node.id));
    // Those that were restored elsewhere need others first, and are told by themselves.
    let (mine, restored): (Vec<_>, Vec<_>) = mine.partition(|p| alone_on(soft, p).is_none_or(|alone| alone == node.id));
    let (mine, changing): (Vec<_>, Vec<_>) = mine.into_iter().partition(|p| p.target.is_empty());
    let Missed { stands, mut text, never } = missed_as_it_is(state, node, &mine);
    if !restored.is_empty() {
        if !text.is_empty() {
            text.push_str("; ");
        }
        text.push_str(&format!(
            "{} {} without it since a restore",
            names(restored.iter().map(|p| p.id.to_string())),
            if restored.len() == 1 { "runs" } else { "run" }
        ));
    }
    if !changing.is_empty() {
        if !text.is_empty() {
            text.push_str("; ");
        }
        text.push_str(&missed_in_a_change(node, &changing));
    }
    Missed { stands, text, never }
}

/// Who votes at this moment only their leaders know. That one of them has no leader is told by itself.
fn missed_in_a_change(node: &Node, changing: &[&Partition]) -> String {
    let of =
        |stays: bool| names(changing.iter().filter(|p| p.target.contains(&node.id) == stays).map(|p| p.id.to_string()));
    let (stays, leaves) = (of(true), of(false));
    let mut parts = Vec::new();
    if !stays.is_empty() {
        parts.push(format!(
            "{stays} are changing their members, and shall have it as one; if it never comes back, name others when the change \
             stands still: `cairn admin partition move all {} NODE`",
            node.id
        ));
    }
    if !leaves.is_empty() {
        parts.push(format!(
            "{leaves} are changing their members and need it until that is done: before, the others may not have everything"
        ));
    }
    parts.join("; ")
}

/// Of partitions whose members do not change now.
fn missed_as_it_is(state: &State, node: &Node, mine: &[&Partition]) -> Missed {
    let alone = mine.iter().any(|p| p.members.len() == 1);
    let runs = |id: &NodeId| state.node(*id).is_some_and(|node| node.up);
    let stands = |p: &&&Partition| p.members.iter().filter(|id| runs(id)).count() <= p.members.len() / 2;
    let standing = || mine.iter().filter(stands);
    let text = match mine.len() {
        0 => String::new(),
        _ if alone => format!(
            "{} cannot be used without it, it is the only member",
            names(mine.iter().filter(|p| p.members.len() == 1).map(|p| p.id.to_string()))
        ),
        _ if standing().next().is_some() => format!(
            "{} cannot be used: most members are down, and nobody else can take their places before a majority runs; \
             what the others have is read with --stale-ok",
            names(standing().map(|p| p.id.to_string()))
        ),
        _ => format!(
            "{} {}",
            names(mine.iter().map(|p| p.id.to_string())),
            if mine.len() == 1 { "runs on its other members" } else { "run on their other members" },
        ),
    };
    let stands = alone || standing().next().is_some();
    let never = match mine.is_empty() || stands {
        true => String::new(),
        false => format!(
            ". If it never comes back, put other meta nodes in its place: `cairn admin partition move all {}`",
            node.id
        ),
    };
    Missed { stands, text, never }
}

pub(super) fn problems(state: &State, soft: &Soft, now: WallTime, out: &mut Problems) {
    for node in state.servers() {
        let name = describe(node);
        if let Some((clone, _)) = soft.clones.get(&node.id) {
            out.warning(format!(
                "{name} runs at {}, and a process at {clone} has the same identity: it is refused; one of their directories is a \
                 copy of the other: stop the one that shall not be",
                node.address
            ));
        }
        if node.up && soft.mute.get(&node.id) == Some(&true) {
            out.warning(format!(
                "{name} answers probes but sends no heartbeats: it keeps its data in service; look at its log"
            ));
        } else if let Some(problem) = soft.node_problems.get(&node.id).filter(|_| node.up) {
            out.warning(format!("{name}: {problem}"));
        } else if !node.up {
            down(state, soft, node, now, out);
        }
    }
}

/// What a node that is down means.
fn down(state: &State, soft: &Soft, node: &Node, now: WallTime, out: &mut Problems) {
    let name = describe(node);
    let seconds = now.0.saturating_sub(node.since.0) / 1_000_000_000;
    let pgs = state.disks_of(node.id).flat_map(|d| state.pgs_of(d.id)).filter(|pg| !pg.retired).count();
    let missed = missed(state, soft, node);
    let hibernates = state.disks_of(node.id).any(|disk| state.hibernates(disk.id));
    if pgs == 0 && missed.text.is_empty() {
        // A manager that does not answer is told by those that do; who has no role any more is not missed.
        let has_role = node.roles.has(Roles::DATA) || node.roles.has(Roles::META);
        if !hibernates && has_role && !node.roles.has(Roles::MANAGER) {
            out.warning(format!(
                "{name} has been down for {seconds} s: nothing needs it any more; start `cairn server` on its machine, or, if it never \
                 comes back, `cairn admin node remove {}`",
                node.id
            ));
        }
        return;
    }
    let mut means = match (node.roles.has(Roles::DATA), pgs) {
        (true, 0) => "none of its disks holds data".to_string(),
        (true, n) => {
            let lack = if n == 1 { "lacks" } else { "lack" };
            format!("{} {lack} it; its copies catch up when it returns", groups(n))
        }
        (false, _) => String::new(),
    };
    if !missed.text.is_empty() && !means.is_empty() {
        means.push_str("; ");
    }
    means.push_str(&missed.text);
    let sleeps = if hibernates { "it hibernates, so nothing is repaired for it meanwhile; " } else { "" };
    let next = format!("{sleeps}start `cairn server` on {}'s machine{}", node.id, missed.never);
    let severity = match (missed.stands, hibernates) {
        (true, _) => Severity::Critical,
        (false, true) => Severity::Notice,
        (false, false) => Severity::Warning,
    };
    out.push(severity, format!("{name} has been down for {seconds} s: {means}; {next}"));
}

fn describe(node: &Node) -> String {
    // Who was a manager and is none any more has none.
    let roles = match node.roles.names().join("+") {
        none if none.is_empty() => none,
        roles => format!("{roles}, "),
    };
    format!("{} ({roles}{}, rack {:?}, host {:?})", node.id, node.address, node.rack, node.host)
}
