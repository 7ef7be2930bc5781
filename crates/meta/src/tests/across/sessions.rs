//! Sessions that live for long beside many that end.
use cairn_meta_core::SessionState;
use cairn_meta_core::limits::{ENDED_SESSIONS_MAX, SPARE_LEVEL};
use cairn_types::PartitionId;
use cairn_wire::meta::ExpireSessions;

use super::*;

const OLD: u64 = 9;
/// Knows no partition but that of the root.
const OF_ROOT: u64 = 8;
const ENDED: std::ops::Range<u64> = 10..12 + ENDED_SESSIONS_MAX as u64;

fn state_of(cluster: &Cluster, partition: u32) -> std::sync::Arc<crate::partition::Partition> {
    let running = cluster.nodes.iter().flatten().next().expect("a node");
    let partitions = running.meta.partitions();
    let found = partitions.read().get(&PartitionId(partition)).cloned();
    found.expect("open")
}

/// A mount that lives for weeks would lose its session, and with it its locks, at its first change in a partition in
/// which more than 16,384 younger sessions have ended.
#[test]
fn who_lives_elsewhere_is_not_ended_by_a_floor() {
    let cluster = start(1);
    let mut old = User::new(&cluster, OLD);
    let mut of_root = User::new(&cluster, OF_ROOT);
    eventually("the feature level", || {
        let reports = cluster.nodes[0].as_ref().expect("runs").meta.partition_reports();
        reports.len() == COUNT as usize && reports.iter().all(|report| report.feature_level >= u32::from(SPARE_LEVEL))
    });
    let two = of_root.mkdir(1, "two", 6).expect("made");
    old.create(two, "f").expect("created");
    let root = state_of(&cluster, PARTITION);
    let known = |at: u32, session| state_of(&cluster, at).state.namespace.read().session_state(session);
    assert_eq!((known(PARTITION, OLD), known(6, OLD)), (SessionState::Unknown, SessionState::Live));
    for part in ENDED.collect::<Vec<_>>().chunks(1024) {
        let end = ExpireSessions { sessions: part.to_vec(), unknown_only: false, ..Default::default() };
        block_on(root.propose_own(Opcode::ExpireSessions, &end)).expect("ended");
    }
    eventually("the floor", || known(PARTITION, 5) == SessionState::Ended);
    assert_eq!(known(PARTITION, OLD), SessionState::Unknown, "it lives in another one");
    assert_eq!(known(PARTITION, OF_ROOT), SessionState::Live, "it lives here");
    assert_eq!(known(PARTITION, ENDED.start), SessionState::Ended, "what has ended stays so");
}
