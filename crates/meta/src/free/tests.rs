//! Whom the plan asks and when it calls a record done.

use std::collections::BTreeMap;

use cairn_meta_core::FreeRecord;
use cairn_node_agent::MapView;
use cairn_types::NodeId;
use cairn_wire::data::{PgMember, PgState};
use cairn_wire::manager::{ClusterMap, Disk, Node, Pg};

use super::plan::{Answered, Plan, is_done};

fn record(id: u64, pg: u32, index: u32) -> FreeRecord {
    FreeRecord { id, pg, index, first_block: id, blocks: 2 }
}

/// Disks d1, d2, d3 on nodes n21, n22, n23; placement group 5 on all of them, 7 on the first.
fn map() -> ClusterMap {
    let node = |id| Node { id, address: format!("h{id}:1"), up: true, ..Node::default() };
    let disk = |id| Disk { id, node: 20 + id, ..Disk::default() };
    let pg = |pg, disks: &[u32]| {
        let members = disks.iter().map(|disk| PgMember { disk: *disk, state: 0, node: 20 + disk }).collect();
        Pg { state: Some(PgState { pg, epoch: 1, members, ..PgState::default() }), ..Pg::default() }
    };
    ClusterMap {
        version: 1,
        nodes: (21..=23).map(node).collect(),
        disks: (1..=3).map(disk).collect(),
        pgs: vec![pg(5, &[1, 2, 3]), pg(7, &[1])],
        ..ClusterMap::default()
    }
}

fn view(map: &ClusterMap) -> MapView {
    let mut view = MapView::default();
    assert!(view.apply(map));
    view
}

/// Disks that answered under the map's epoch.
fn answered(disks: &[u32]) -> Answered {
    Answered { epoch: 1, disks: disks.to_vec() }
}

fn plan(records: &[FreeRecord], map: &ClusterMap, partial: &BTreeMap<u64, Answered>) -> Plan {
    Plan::new(records, &view(map), partial, |_, _, _| false)
}

/// Space would be lost for ever on a member that was never told.
#[test]
fn a_record_is_done_when_every_member_answered() {
    let mut plan = plan(&[record(1, 5, 0), record(2, 5, 0), record(3, 7, 0)], &map(), &BTreeMap::new());
    let batches = plan.batches(512);
    let nodes: Vec<u32> = batches.iter().map(|(node, _)| node.get()).collect();
    assert_eq!(nodes, [21, 22, 23]);
    assert_eq!(batches[0].1.items.len(), 2, "two records of one chunk are one item");
    assert_eq!(batches[0].1.items[0].ranges.len(), 2);
    for (node, batch) in &batches {
        for item in 0..batch.items.len() {
            if node.get() != 23 {
                plan.answered(batch, item);
            }
        }
    }
    assert_eq!(plan.outcome(), (vec![3], vec![(1, answered(&[1, 2])), (2, answered(&[1, 2]))]));
}

/// Members that answered would be asked again at every sweep while another one is down.
#[test]
fn earlier_answers_count() {
    let partial = BTreeMap::from([(1, answered(&[1, 2]))]);
    let mut plan = plan(&[record(1, 5, 0)], &map(), &partial);
    let batches = plan.batches(512);
    assert_eq!(batches.len(), 1);
    assert_eq!(batches[0].0, NodeId(23));
    plan.answered(&batches[0].1, 0);
    assert_eq!(plan.outcome(), (vec![1], vec![]));
}

/// What a member freed comes to it again, when it starts anew and catches up with one that was away and has not freed
/// it yet: it would stay there for as long as the session that wrote it lives.
#[test]
fn who_answered_is_asked_again_under_another_epoch() {
    let mut later = map();
    later.pgs[0].state.as_mut().expect("a state").epoch = 2;
    let partial = BTreeMap::from([(1, answered(&[1, 2]))]);
    let mut plan = plan(&[record(1, 5, 0)], &later, &partial);
    let batches = plan.batches(512);
    assert_eq!(batches.iter().map(|(node, _)| node.get()).collect::<Vec<_>>(), [21, 22, 23]);
    plan.answered(&batches[2].1, 0);
    assert_eq!(plan.outcome(), (vec![], vec![(1, Answered { epoch: 2, disks: vec![3] })]));
}

/// A record would be called done although a member that is down still has the blocks.
#[test]
fn members_that_cannot_be_reached_keep_it_pending() {
    let mut down = map();
    down.nodes[1].up = false;
    down.disks[2].state = 1;
    let mut plan = plan(&[record(1, 5, 0)], &down, &BTreeMap::new());
    let batches = plan.batches(512);
    assert_eq!(batches.len(), 1);
    plan.answered(&batches[0].1, 0);
    assert_eq!(plan.outcome(), (vec![], vec![(1, answered(&[1]))]));
    let mut resting = Plan::new(&[record(1, 5, 0)], &view(&map()), &BTreeMap::new(), |node, _, _| node == NodeId(22));
    assert_eq!(resting.batches(512).len(), 2);
}

/// A replaced member that is gone for good would keep records for ever, and the new one would not be asked.
#[test]
fn only_present_members_count() {
    let mut moved = map();
    moved.pgs[0].state.as_mut().expect("a state").members.remove(2);
    let partial = BTreeMap::from([(1, answered(&[1, 2]))]);
    let mut plan = plan(&[record(1, 5, 0)], &moved, &partial);
    assert!(plan.batches(512).is_empty());
    assert_eq!(plan.outcome(), (vec![1], vec![]));
}

/// A disk that is to take a shard's place would keep what is freed while it is filled.
#[test]
fn a_disk_that_joins_is_asked_as_well() {
    let mut joined = map();
    joined.nodes.push(Node { id: 24, address: "h24:1".into(), up: true, ..Node::default() });
    joined.disks.push(Disk { id: 4, node: 24, ..Disk::default() });
    let joining = cairn_wire::data::PgJoining { disk: 4, node: 24, state: 1, position: 2 };
    joined.pgs[0].state.as_mut().expect("a state").joining = Some(joining);
    let partial = BTreeMap::from([(1, answered(&[1, 2, 3]))]);
    let mut plan = plan(&[record(1, 5, 0)], &joined, &partial);
    let batches = plan.batches(512);
    assert_eq!(batches.iter().map(|(node, _)| *node).collect::<Vec<_>>(), [NodeId(24)]);
    assert_eq!(plan.outcome(), (vec![], vec![(1, answered(&[1, 2, 3]))]));
}

/// Records of a deleted placement group would stay for ever; those of one that is too new for the map would be lost.
#[test]
fn retired_groups_are_done_and_unknown_ones_wait() {
    let mut retired = map();
    retired.pgs[1].state.as_mut().expect("a state").retired = true;
    let plan = plan(&[record(1, 7, 0), record(2, 6, 0), record(3, 8, 0)], &retired, &BTreeMap::new());
    assert_eq!(plan.outcome(), (vec![1, 2], vec![]));
}

/// Large deletes would make requests that no frame carries.
#[test]
fn requests_are_bounded() {
    let records: Vec<FreeRecord> = (1..=1000).map(|id| record(id, 7, id as u32)).collect();
    let mut plan = plan(&records, &map(), &BTreeMap::new());
    let batches = plan.batches(300);
    let sizes: Vec<usize> = batches.iter().map(|(_, batch)| batch.items.len()).collect();
    assert_eq!(sizes, [300, 300, 300, 100]);
    for (_, batch) in &batches {
        (0..batch.items.len()).for_each(|item| plan.answered(batch, item));
    }
    assert_eq!(plan.outcome().0.len(), 1000);
}

/// A member that lost the chunk already would keep the record for ever; one that failed would count as done.
#[test]
fn which_answers_mean_done() {
    use cairn_types::ErrorCode;
    assert!(is_done(0) && is_done(ErrorCode::ChunkDeleted.code().into()) && is_done(ErrorCode::NotFound.code().into()));
    for code in [ErrorCode::DiskFailed, ErrorCode::StaleEpoch, ErrorCode::Overloaded, ErrorCode::Internal] {
        assert!(!is_done(code.code().into()), "{code}");
    }
    assert!(!is_done(u32::MAX));
}
