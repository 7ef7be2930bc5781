//! A volume gets partitions after it was made.

use cairn_types::ErrorCode;
use cairn_wire::Opcode;
use cairn_wire::common::Empty;
use cairn_wire::manager::Partition;
use cairn_wire::meta::EndSessionRequest;

use super::across::User;
use super::fixture::{Cluster, PARTITION, eventually};

const RANGE: u64 = 1 << 40;

/// What the log of the first partition says of its range, at its leader.
fn inode_last(cluster: &Cluster) -> u64 {
    let reports = cluster.meta(cluster.leader()).partition_reports();
    reports.iter().find(|report| report.partition == PARTITION).expect("it is open").inode_last
}

/// Ends the range of the first partition as a manager has it done, and makes a second one.
fn split(cluster: &mut Cluster) {
    assert_eq!(inode_last(cluster), u64::MAX);
    cluster.map.partitions[0].add = 1;
    cluster.share_map();
    eventually("the end of the range", || inode_last(cluster) != u64::MAX);
    assert_eq!(inode_last(cluster), RANGE - 1);
    let first = cluster.map.partitions[0].clone();
    let second =
        Partition { id: PARTITION + 1, inode_first: RANGE, inode_last: 2 * RANGE - 1, level: 6, add: 0, ..first };
    cluster.map.partitions[0] = Partition { inode_last: RANGE - 1, add: 0, ..cluster.map.partitions[0].clone() };
    cluster.map.partitions.push(second);
    cluster.share_map();
}

/// Late requests of ended sessions would name blocks that are given back; and what is there be lost, or ids given
/// twice.
#[test]
fn an_ended_session_does_nothing_in_a_partition_that_is_made_later() {
    let mut cluster = Cluster::start(3);
    let mut ended = User::new(&cluster, 7);
    let file = ended.create(1, "f").expect("created");
    let mut user = User::new(&cluster, 9);
    let request = EndSessionRequest { header: ended.header(PARTITION, 0) };
    let _: Empty = ended.call(PARTITION, Opcode::EndSession, &request).expect("ended");
    // A partition that can end its range understands what that is.
    eventually("the feature level", || {
        let reports = cluster.meta(cluster.leader()).partition_reports();
        reports.iter().all(|report| report.feature_level >= 6)
    });
    split(&mut cluster);

    let inside = user.mkdir(1, "d", PARTITION + 1).expect("made in the second");
    // An attempt that was given up has used an id.
    assert!((RANGE..RANGE + 10).contains(&inside), "{inside}");
    assert_eq!(ended.create(inside, "late"), Err(ErrorCode::SessionEnded));
    let other = user.create(inside, "g").expect("created");
    assert!(other > inside && user.getattr(file).is_ok());

    // After a restart, and at another leader, as before.
    (0..3).for_each(|number| cluster.kill(number));
    (0..3).for_each(|number| cluster.run(number));
    cluster.share_map();
    let user = User::new(&cluster, 11);
    eventually("both", || user.getattr(file).is_ok() && user.getattr(other).is_ok());
    assert_eq!(inode_last(&cluster), RANGE - 1);
    assert_eq!(User::new(&cluster, 7).create(inside, "late"), Err(ErrorCode::SessionEnded));
}

/// A partition that was put back from a backup of before would take what others have for its own, and call it lost.
#[test]
fn a_state_of_before_the_split_ends_its_range_again() {
    let mut cluster = Cluster::start(1);
    let user = User::new(&cluster, 9);
    eventually("a leader", || user.getattr(1).is_ok());
    assert_eq!(inode_last(&cluster), u64::MAX);
    cluster.map.partitions[0].inode_last = RANGE - 1;
    cluster.share_map();
    eventually("the end of the range", || inode_last(&cluster) == RANGE - 1);
}
