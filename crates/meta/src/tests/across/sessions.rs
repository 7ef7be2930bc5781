//! Sessions that live for long beside many that end.
use std::time::Instant;

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

fn renew_beside(user: &User, at: u32, also: &[u32]) -> Result<Vec<u32>, ErrorCode> {
    let also = also.iter().map(|partition| AlsoRenew { partition: *partition, ..Default::default() }).collect();
    let request = KeepAliveRequest { header: user.header(at, 0), also, wait_ms: 4000, ..Default::default() };
    let answer: KeepAliveResponse = user.call(at, Opcode::KeepAlive, &request)?;
    assert!(answer.also.iter().all(|one| one.answer.as_ref().is_some_and(|told| told.lease_ms == answer.lease_ms)));
    Ok(answer.also.iter().map(|one| one.partition).collect())
}

/// A client that asks each node once would lose its session at the partitions that are named beside; or believe a node
/// that does not lead them, or does not know that the session has ended there.
#[test]
fn partitions_are_renewed_beside_the_one_that_is_asked() {
    // A lease that no pause of a busy machine outlasts.
    let lease = Duration::from_secs(8);
    let nodes = [0, 1].map(super::super::fixture::node_id);
    let places = |number| nodes[..if number == 2 { 2 } else { 1 }].iter().map(|node| node.get()).collect();
    let cluster = start_with_places(2, MetaTimings { lease, ..quick() }, places);
    eventually("the other node leads the third one", || {
        let third = cluster.meta(0).partitions().read().get(&PartitionId(7)).cloned();
        let _ = third.map(|third| third.handle.transfer_leader(nodes[1]));
        cluster.meta(1).leads().contains_key(&PartitionId(7))
    });
    let (mut live, mut silent) = (User::new(&cluster, 1), User::new(&cluster, 2));
    for user in [&mut live, &mut silent] {
        let name = format!("of {}", user.session);
        let two = user.mkdir(1, &name, 6).expect("made");
        user.create(two, "f").expect("created");
        let three = user.mkdir(1, &format!("{name}, elsewhere"), 7).expect("made");
        user.create(three, "f").expect("created");
    }
    let begun = Instant::now();
    assert_eq!(renew_beside(&live, PARTITION, &[6, 7, 99, PARTITION]), Ok(vec![6]), "7 is led elsewhere");
    assert!(begun.elapsed() < Duration::from_secs(3), "such an answer waits for nothing that is wanted");
    let known = |session| state_of(&cluster, 6).state.namespace.read().session_state(session);
    eventually("the end of the silent one", || {
        assert_eq!(renew_beside(&live, PARTITION, &[6]), Ok(vec![6]));
        known(2) == SessionState::Ended
    });
    assert_eq!(known(1), SessionState::Live);
    assert_eq!(renew_beside(&live, 6, &[PARTITION]), Ok(vec![PARTITION]));
    assert_eq!(renew_beside(&live, 7, &[]), Err(ErrorCode::SessionEnded), "nobody renewed it there");
    assert_eq!(renew_beside(&silent, 6, &[]), Err(ErrorCode::SessionEnded));
}
