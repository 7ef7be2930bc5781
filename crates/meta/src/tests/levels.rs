//! Feature levels of a partition: raised when all members understand, and not a moment before.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use cairn_raft_host::HostConfig;
use cairn_types::PartitionId;

use super::fixture::{Cluster, PARTITION, eventually, quick};

/// What the node that is started next says that it understands.
static LEVEL: AtomicU32 = AtomicU32::new(0);

fn config(config: HostConfig) -> HostConfig {
    HostConfig { feature_level: LEVEL.load(Ordering::SeqCst), abort_on_panic: false, ..config }
}

fn level(cluster: &Cluster, number: usize) -> (u32, u32) {
    let reports = cluster.meta(number).partition_reports();
    // One that is not open yet has applied nothing.
    let report = reports.iter().find(|report| report.partition == PARTITION);
    report.map_or((0, 0), |report| (report.feature_level, report.behind))
}

/// A member that does not know an operation would leave it out, and have other names than the others from then on.
#[test]
fn a_level_is_raised_when_the_last_member_understands_it() {
    let mut cluster = Cluster::prepare(3, quick(), config);
    for (number, understands) in [1, 1, 0].into_iter().enumerate() {
        LEVEL.store(understands, Ordering::SeqCst);
        cluster.run(number);
    }
    cluster.share_map();
    let mut caller = cluster.caller(1);
    caller.create("a").expect("created");
    // Whoever leads says who keeps it from more; the old one itself sees nothing above itself.
    eventually("the one that is behind to be named", || {
        let leader = cluster.leader();
        leader == 2 || level(&cluster, leader).1 == super::fixture::node_id(2).get()
    });
    std::thread::sleep(Duration::from_millis(50));
    assert!((0..3).all(|number| level(&cluster, number).0 == 0), "nobody may log what one cannot apply");
    cluster.kill(2);
    LEVEL.store(1, Ordering::SeqCst);
    cluster.run(2);
    cluster.share_map();
    eventually("the level", || (0..3).all(|number| level(&cluster, number).0 == 1));
    eventually("nobody to be behind", || level(&cluster, cluster.leader()) == (1, 0));
    // Who goes back stops at what it does not understand any more; the others go on.
    cluster.kill(2);
    LEVEL.store(0, Ordering::SeqCst);
    cluster.run(2);
    cluster.share_map();
    caller = cluster.caller_of(2, &[0, 1]);
    let made = caller.create("b").expect("created");
    eventually("it to stop", || {
        let open = cluster.meta(2).partitions().read();
        open.get(&PartitionId(PARTITION)).is_none_or(|partition| partition.handle.status().failure.is_some())
    });
    LEVEL.store(1, Ordering::SeqCst);
    cluster.kill(2);
    cluster.run(2);
    cluster.share_map();
    eventually("it to be back with everything", || level(&cluster, 2).0 == 1);
    assert_eq!(caller.lookup("b"), Ok(made));
}
