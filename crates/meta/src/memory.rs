//! The node's memory for metadata: how much of it is used up, and what partitions take no more for that.
//!
//! A node counts what the namespaces and sessions of all its members take, a few times a second, and tells its degree
//! of fullness to the nodes that it shares groups with (`cairn_raft_host::FullNodes`). The leader of a partition logs
//! the highest degree of all members: all have the same state, so the one with the least memory counts. Degrees rise at
//! the bound and an eighth above it, and fall a sixteenth below that.
//!
//! Invariant: a degree falls only when all members are known. Not here: what is refused with which degree
//! (`cairn_meta_core::Fullness`); memory of Raft's logs (raft-host).

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use cairn_meta_core::{FULLNESS_LEVEL, Fullness};
use cairn_raft_host::FullNodes;
use cairn_types::{NodeId, Time};
use cairn_wire::Opcode;
use cairn_wire::meta::SetFullness;
use tokio::time::sleep;

use crate::config::MetaTimings;
use crate::partition::Partition;
use crate::roster::Roster;

/// Sessions of all partitions of a node get this part of its memory for metadata.
const SESSION_SHARE: u64 = 8;

/// Memory of all partitions of a node.
pub(crate) struct Memory {
    pub(crate) max: u64,
    used: AtomicU64,
    sessions: AtomicU64,
    degree: AtomicU32,
    nodes: Arc<FullNodes>,
}

impl Memory {
    pub(crate) fn new(max: u64, nodes: Arc<FullNodes>) -> Self {
        let (used, sessions, degree) = Default::default();
        Self { max: max.max(1), used, sessions, degree, nodes }
    }

    pub(crate) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Whether sessions of the node's partitions have all that they get.
    pub(crate) fn sessions_are_full(&self) -> bool {
        self.sessions.load(Ordering::Relaxed) >= self.max / SESSION_SHARE
    }

    /// What people are to know.
    pub(crate) fn problem(&self) -> Option<String> {
        let degree = self.degree.load(Ordering::Relaxed);
        let also = if degree > 1 { ", nor more data of files that are there" } else { "" };
        (degree > 0).then(|| {
            format!(
                "the memory for metadata is used up, {} of {} MiB: partitions with a member here take no new files{also}; \
                 remove files, move partitions to other nodes (cairn admin partition move), or give it more (memory_max_mib in \
                 [meta], see operate.md)",
                self.used() >> 20,
                self.max >> 20
            )
        })
    }

    fn note(&self, used: u64, sessions: u64) {
        self.used.store(used, Ordering::Relaxed);
        self.sessions.store(sessions, Ordering::Relaxed);
        let before = self.degree.load(Ordering::Relaxed);
        let degree = degree(used, self.max, before);
        if degree != before {
            let (used_mib, max_mib) = (used >> 20, self.max >> 20);
            match degree > before {
                true => tracing::warn!(used_mib, max_mib, degree, "the memory for metadata is used up"),
                false => tracing::info!(used_mib, max_mib, degree, "there is memory for metadata again"),
            }
        }
        self.degree.store(degree, Ordering::Relaxed);
        self.nodes.set_own(degree);
    }
}

/// How full a node is that was so full before.
fn degree(used: u64, max: u64, before: u32) -> u32 {
    let is_over = |bound: u64, degree: u32| used >= if before >= degree { bound - max / 16 } else { bound };
    u32::from(is_over(max, 1)) + u32::from(is_over(max.saturating_add(max / 8), 2))
}

/// What is to be logged, after what members' nodes say.
fn wanted(before: Fullness, members: impl Iterator<Item = (NodeId, Option<u32>)>) -> Fullness {
    let mut most = Fullness::default();
    let mut all_known = true;
    for (node, degree) in members {
        all_known &= degree.is_some();
        let degree = degree.unwrap_or(0).min(Fullness::DEGREE_MAX.into()) as u8;
        if degree > most.degree || (degree > 0 && degree == most.degree && node == before.node) {
            most = Fullness { degree, node };
        }
    }
    if all_known || most.degree > before.degree { most } else { before }
}

/// Looks at the node until the task is ended.
pub(crate) async fn watch(roster: Arc<Roster>, timings: MetaTimings) {
    loop {
        let (mut used, mut sessions) = (0, 0);
        for partition in roster.open.read().values() {
            let namespace = partition.state.namespace.read();
            used += namespace.memory_bytes();
            sessions += namespace.session_bytes();
        }
        roster.common.memory.note(used, sessions);
        sleep(timings.memory_tick).await;
    }
}

/// Logs what the partition takes no more, until the task is ended.
pub(crate) async fn run(partition: &Partition, timings: &MetaTimings) {
    let state = &partition.state;
    let nodes = &state.common.memory.nodes;
    loop {
        state.pause(timings.memory_tick).await;
        if state.leading_term().is_none() {
            continue;
        }
        let (before, level) = {
            let namespace = state.namespace.read();
            (namespace.fullness(), namespace.feature_level())
        };
        if level < FULLNESS_LEVEL {
            continue;
        }
        let now: Time = state.common.coarse_now();
        let members = partition.handle.status().core.members;
        let members = members.voters.iter().chain(&members.learners);
        let wanted = wanted(before, members.map(|node| (*node, nodes.degree(*node, now))));
        // Nothing is refused while nobody asks: a group that sleeps is not woken for it.
        if wanted == before || (wanted.degree > before.degree && *state.rests.borrow()) {
            continue;
        }
        let request = SetFullness { degree: wanted.degree.into(), node: wanted.node.get() };
        match partition.propose_own(Opcode::SetFullness, &request).await {
            Ok(()) => {
                tracing::info!(partition = %state.id, degree = wanted.degree, node = %wanted.node, "how full its members' nodes are is logged");
            }
            Err(error) => {
                tracing::debug!(partition = %state.id, %error, "how full it is could not be logged; will be repeated");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A node at its bound would go to and fro with each file; or take what it has no memory for.
    #[test]
    fn degrees_rise_at_the_bound_and_fall_below_it() {
        let max = 1600;
        for (used, before, now) in [
            (1599, 0, 0),
            (1600, 0, 1),
            (1500, 1, 1),
            (1499, 1, 0),
            (1799, 1, 1),
            (1800, 1, 2),
            (1700, 2, 2),
            (1699, 2, 1),
            (9999, 0, 2),
            (0, 2, 0),
        ] {
            assert_eq!(degree(used, max, before), now, "{used} after {before}");
        }
    }

    /// A partition would take names although a member has no room for them; or change its mind with each look.
    #[test]
    fn the_fullest_member_counts_and_what_is_not_known_changes_nothing() {
        let full = |degree, node| Fullness { degree, node: NodeId(node) };
        let of = |before, members: &[(u32, Option<u32>)]| {
            wanted(before, members.iter().map(|(node, degree)| (NodeId(*node), *degree)))
        };
        let none = Fullness::default();
        assert_eq!(of(none, &[(16, Some(0)), (17, Some(0))]), none);
        assert_eq!(of(none, &[(16, Some(0)), (17, Some(1)), (18, Some(2))]), full(2, 18));
        assert_eq!(of(none, &[(16, Some(1)), (17, Some(1))]), full(1, 16));
        assert_eq!(of(full(1, 17), &[(16, Some(1)), (17, Some(1))]), full(1, 17), "no entry to and fro");
        assert_eq!(of(full(1, 17), &[(16, Some(0)), (17, None)]), full(1, 17), "it may be full still");
        assert_eq!(of(full(1, 17), &[(16, Some(2)), (17, None)]), full(2, 16));
        assert_eq!(of(full(2, 17), &[(16, Some(0)), (17, Some(1))]), full(1, 17));
        assert_eq!(of(full(1, 17), &[(16, Some(0)), (18, Some(0))]), none, "it is no member any more");
    }
}
