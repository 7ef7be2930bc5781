//! [`Plan`]: whom to ask for a page of free records, and what their answers come to. Pure.
//!
//! A record is done when each present member of its placement group answered, or when the placement group is retired:
//! then its members drop all of it by themselves. Records of one chunk travel as one item.

use std::collections::BTreeMap;

use cairn_meta_core::FreeRecord;
use cairn_node_agent::MapView;
use cairn_types::{DiskId, ErrorCode, NodeId, PgId};
use cairn_wire::common::ChunkRange;
use cairn_wire::data::FreeItem;

/// Ranges of one item.
const RANGES_MAX: usize = 1024;

/// Items for one node.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub(crate) items: Vec<FreeItem>,
    /// For each item the records in it (positions in the page).
    records: Vec<Vec<usize>>,
}

/// Disks that have answered done for a record, under an epoch of its group. In the next one it may have come to them
/// again: from a member that has not freed it, to one that started anew and catches up.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Answered {
    pub(crate) epoch: u64,
    pub(crate) disks: Vec<u32>,
}

struct Slot {
    id: u64,
    /// Who has answered done.
    done: Answered,
    /// Disks that are members now; `None`: the group is not known, the record waits.
    members: Option<Vec<u32>>,
}

/// The work of one page.
pub(crate) struct Plan {
    slots: Vec<Slot>,
    /// Node, then (disk, placement group, index): ranges and records.
    asks: BTreeMap<NodeId, BTreeMap<(u32, u32, u32), Ask>>,
}

#[derive(Default)]
struct Ask {
    ranges: Vec<ChunkRange>,
    records: Vec<usize>,
}

/// Whether an answer means that nothing is left to free there.
pub(crate) fn is_done(code: u32) -> bool {
    let code_of = |code: u32| u16::try_from(code).ok().and_then(ErrorCode::from_code);
    code == 0 || matches!(code_of(code), Some(ErrorCode::ChunkDeleted | ErrorCode::Missing | ErrorCode::NotFound))
}

enum Members {
    Retired,
    Unknown,
    /// Under this epoch.
    Now(u64, Vec<(u32, NodeId)>),
}

fn members_of(map: &MapView, pg: u32) -> Members {
    match map.pg(PgId(pg)) {
        Some(state) if state.retired => Members::Retired,
        Some(state) => {
            // A disk that is to have a member's place keeps nothing either that is freed meanwhile.
            let joining = state.joining.map(|j| (j.disk, NodeId(j.node)));
            let members = state.members.iter().map(|m| (m.disk, NodeId(m.node)));
            Members::Now(state.epoch, members.chain(joining).collect())
        }
        // Whole maps leave retired groups out, and ids ascend: one below a known one is not just too new for this map.
        None if map.pg_newest().is_some_and(|newest| pg < newest.get()) => Members::Retired,
        None => Members::Unknown,
    }
}

fn reachable(map: &MapView, disk: u32, node: NodeId) -> bool {
    map.node(node).is_some_and(|node| node.up) && map.disk(DiskId(disk)).is_none_or(|disk| disk.state == 0)
}

impl Plan {
    /// `partial` has the answers of earlier sweeps, which count under the epoch in which they were given; who is
    /// `resting` is not asked: a node, one of its disks, a group.
    pub(crate) fn new(
        page: &[FreeRecord],
        map: &MapView,
        partial: &BTreeMap<u64, Answered>,
        resting: impl Fn(NodeId, u32, u32) -> bool,
    ) -> Self {
        let mut plan = Self { slots: Vec::with_capacity(page.len()), asks: BTreeMap::new() };
        for record in page {
            let mut done = partial.get(&record.id).cloned().unwrap_or_default();
            let members = match members_of(map, record.pg) {
                Members::Retired => Some(Vec::new()),
                Members::Unknown => None,
                Members::Now(epoch, members) => {
                    if done.epoch != epoch {
                        done = Answered { epoch, disks: Vec::new() };
                    }
                    for (disk, node) in &members {
                        if !done.disks.contains(disk)
                            && reachable(map, *disk, *node)
                            && !resting(*node, *disk, record.pg)
                        {
                            plan.ask(*node, *disk, record);
                        }
                    }
                    Some(members.into_iter().map(|(disk, _)| disk).collect())
                }
            };
            plan.slots.push(Slot { id: record.id, done, members });
        }
        plan
    }

    /// Adds the record that gets the next slot.
    fn ask(&mut self, node: NodeId, disk: u32, record: &FreeRecord) {
        let at = self.slots.len();
        let ask = self.asks.entry(node).or_default().entry((disk, record.pg, record.index)).or_default();
        ask.ranges.push(ChunkRange { offset: record.offset(), length: record.length() });
        ask.records.push(at);
    }

    /// The requests to make, each with at most `items_max` items. They are given once.
    pub(crate) fn batches(&mut self, items_max: usize) -> Vec<(NodeId, Batch)> {
        let mut batches = Vec::new();
        for (node, asks) in std::mem::take(&mut self.asks) {
            let mut batch = Batch::default();
            for ((disk, pg, index), ask) in asks {
                for (ranges, records) in ask.ranges.chunks(RANGES_MAX).zip(ask.records.chunks(RANGES_MAX)) {
                    if batch.items.len() == items_max.max(1) {
                        batches.push((node, std::mem::take(&mut batch)));
                    }
                    batch.items.push(FreeItem { disk, pg, index, ranges: ranges.to_vec() });
                    batch.records.push(records.to_vec());
                }
            }
            batches.push((node, batch));
        }
        batches
    }

    /// An item of a batch was answered done.
    pub(crate) fn answered(&mut self, batch: &Batch, item: usize) {
        let disk = batch.items[item].disk;
        for record in &batch.records[item] {
            let done = &mut self.slots[*record].done.disks;
            if !done.contains(&disk) {
                done.push(disk);
            }
        }
    }

    /// Records that are done, and those of which some members answered, with these.
    pub(crate) fn outcome(self) -> (Vec<u64>, Vec<(u64, Answered)>) {
        let (mut finished, mut partly) = (Vec::new(), Vec::new());
        for slot in self.slots {
            let Slot { id, done, members } = slot;
            if members.is_some_and(|members| members.iter().all(|disk| done.disks.contains(disk))) {
                finished.push(id);
            } else if !done.disks.is_empty() {
                partly.push((id, done));
            }
        }
        (finished, partly)
    }
}
