//! Which meta nodes get new partitions, and the places of members that leave: chosen by the leader, by use.
//!
//! | of a node | is |
//! |---|---|
//! | use | what it says that its partitions take, or would take if none had less than the average; the larger |
//! | bound | what it says (`memory_max_mib`); the smallest of the others' where it says none |
//! | closed | it has seven eighths of its bound in use |
//!
//! So a node that is new gets partitions first, a batch of empty ones spreads, and what is near its bound gets none.
//! Within that, [`MemberChooser`] keeps domains distinct and peers few. What was chosen goes into the command
//! ([`MembersOf`], from feature level [`PLACED_LEVEL`] on): only the leader knows of use.
//!
//! Not here: whether the choice still fits the state when it is applied (`apply/volume_partitions.rs`).
use crate::apply::no_meta_node;
use crate::command::MembersOf;
use crate::config::Key;
use crate::first_volume::too_few_metas;
use crate::items::{Partition, Roles};
use crate::soft::{MetaMemory, Soft};
use crate::state::State;
use crate::wording::names_up_to;
use cairn_placement::{Domains, MemberChooser, MetaCandidate};
use cairn_types::{ErrorCode, NodeId};
use cairn_wire::error::WireError;
use std::collections::BTreeMap;

/// Feature level from which on commands say who gets new partitions.
pub const PLACED_LEVEL: u32 = 32;

/// No partition is expected to stay smaller.
const BYTES_MIN: u64 = 16 << 20;
/// The part of a node's bound that is kept for what it has.
const RESERVE: u64 = 8;
/// Where no node says a bound.
const UNBOUNDED: u64 = 1 << 40;
/// Nodes named in a refusal.
const NAMED_MAX: usize = 4;

/// Members of so many new partitions, chosen of `among`, for a command. Empty as long as commands do not say them.
/// Where there are nodes for all members of a partition and some of them do not run, none is made with fewer.
pub fn plan(state: &State, soft: &Soft, among: &[NodeId], count: u32) -> Result<Vec<MembersOf>, WireError> {
    if state.level() < PLACED_LEVEL {
        return Ok(Vec::new());
    }
    let up = metas(state, among);
    let wanted = state.config().number(Key::MetaMembers) as usize;
    let members = match up.len() {
        0 => return Err(no_meta_node()),
        able if able >= wanted => wanted,
        able => match few_for_now(state, wanted, able) {
            Some(text) => return Err(WireError::new(ErrorCode::Unavailable, text)),
            None => 1,
        },
    };
    let mut chooser = chooser(state, soft, among);
    let full: Vec<NodeId> = up.into_iter().filter(|node| is_full(soft, *node)).collect();
    let choose = |_| {
        let nodes = chooser.choose(members).map_err(|few| too_few(soft, few.wanted, few.have, &full))?;
        Ok(MembersOf { nodes: nodes.into_iter().map(NodeId::get).collect() })
    };
    (0..count).map(choose).collect()
}

/// Nodes that become members of a partition beside those that stay. Nobody of `not` is taken.
pub fn successors(
    state: &State,
    soft: &Soft,
    partition: &Partition,
    stay: &[NodeId],
    not: &[NodeId],
    count: usize,
) -> Result<Vec<NodeId>, WireError> {
    let among: Vec<NodeId> = metas(state, &state.nodes().map(|node| node.id).collect::<Vec<_>>());
    let bytes = soft.partitions.get(&partition.id).map_or(0, |load| load.report.memory_bytes);
    let mut chooser = chooser(state, soft, &among);
    let mut members = stay.to_vec();
    let mut new = Vec::new();
    for _ in 0..count {
        let Some(node) = chooser.beside(&members, not, bytes) else {
            let fits = |node: &&NodeId| !members.contains(node) && !not.contains(node);
            let full: Vec<NodeId> = among.iter().filter(fits).copied().filter(|node| is_full(soft, *node)).collect();
            return Err(too_few(soft, count, new.len(), &full));
        };
        members.push(node);
        new.push(node);
    }
    Ok(new)
}

/// Why a partition is not made with fewer members than the settings want: there are more nodes than can have it now.
fn few_for_now(state: &State, wanted: usize, able: usize) -> Option<String> {
    let known = state.servers().filter(|node| node.roles.has(Roles::META)).count();
    let text = || {
        format!(
            "{able} of {known} meta nodes can have new partitions now, and each partition has {wanted} members (meta_members): when the \
             others run and have said so, repeat"
        )
    };
    (known >= wanted).then(|| too_few_metas(state).unwrap_or_else(text))
}

/// Those of these nodes that can have partitions now.
fn metas(state: &State, among: &[NodeId]) -> Vec<NodeId> {
    let is_able = |id: &NodeId| state.node(*id).is_some_and(|node| node.up && node.roles.has(Roles::META));
    among.iter().copied().filter(is_able).collect()
}

fn memory(soft: &Soft, node: NodeId) -> Option<MetaMemory> {
    soft.meta_memory.get(&node).copied().filter(|memory| memory.max > 0 && memory.max < UNBOUNDED)
}

/// Whether it has so little left that it gets nothing more.
fn is_full(soft: &Soft, node: NodeId) -> bool {
    memory(soft, node).is_some_and(|memory| memory.used >= memory.max - memory.max / RESERVE)
}

fn chooser(state: &State, soft: &Soft, among: &[NodeId]) -> MemberChooser {
    let partitions = || state.partitions().filter(|partition| !partition.removed);
    let reported = |partition: &Partition| soft.partitions.get(&partition.id).map(|load| load.report.memory_bytes);
    let known: Vec<u64> = partitions().filter_map(reported).collect();
    let bytes = (known.iter().sum::<u64>() / known.len().max(1) as u64).max(BYTES_MIN);
    let (mut expected, mut firsts): (BTreeMap<NodeId, u64>, BTreeMap<NodeId, u32>) = Default::default();
    for partition in partitions() {
        let takes = reported(partition).unwrap_or(0).max(bytes);
        partition.members.iter().for_each(|node| *expected.entry(*node).or_default() += takes);
        partition.members.first().into_iter().for_each(|node| *firsts.entry(*node).or_default() += 1);
    }
    let able = metas(state, among);
    let least = able.iter().filter_map(|node| memory(soft, *node)).map(|memory| memory.max).min();
    let mut domains = Domains::new();
    // Those that get nothing are members of what there is: their domains and peers count.
    let candidates = state.nodes().filter(|node| node.roles.has(Roles::META)).map(|node| {
        let (rack, host) = domains.host(&node.rack, &node.host);
        let memory = memory(soft, node.id);
        let expected = expected.get(&node.id).copied().unwrap_or(0);
        MetaCandidate {
            node: node.id,
            rack,
            host,
            used: expected.max(memory.map_or(0, |memory| memory.used)),
            max: memory.map_or(least.unwrap_or(UNBOUNDED), |memory| memory.max),
            firsts: firsts.get(&node.id).copied().unwrap_or(0),
            closed: is_full(soft, node.id) || !able.contains(&node.id),
        }
    });
    let candidates: Vec<MetaCandidate> = candidates.collect();
    MemberChooser::new(candidates, partitions().map(|partition| &partition.members[..]), bytes, state.version())
}

fn too_few(soft: &Soft, wanted: usize, have: usize, full: &[NodeId]) -> WireError {
    let there = match have {
        0 => "there is none".to_owned(),
        1 => "there is 1".to_owned(),
        _ => format!("there are {have}"),
    };
    if full.is_empty() {
        let text = format!(
            "meta nodes are needed that run and are no members yet: {wanted}, and {there}. Start another one (role meta), then repeat"
        );
        return WireError::new(ErrorCode::NotEnoughDisks, text);
    }
    let said = full.iter().filter_map(|node| Some((node, memory(soft, *node)?)));
    let said = said.map(|(node, memory)| format!("{node} uses {} of {} MiB", memory.used >> 20, memory.max >> 20));
    let text = format!(
        "{} with memory for another partition, and {there}: {}, and an eighth is kept for what a node has. Start another meta node, move \
         partitions to others (`cairn admin partition move`), or give these more (memory_max_mib in [meta])",
        if wanted == 1 { "1 meta node is needed".to_owned() } else { format!("{wanted} meta nodes are needed") },
        names_up_to(NAMED_MAX, said)
    );
    WireError::new(ErrorCode::NoSpace, text)
}

#[cfg(test)]
mod tests;
