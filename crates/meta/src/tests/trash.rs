//! Trash is removed by the clocks of a majority; a volume in the trash serves nobody.

use std::sync::atomic::Ordering;
use std::time::Duration;

use cairn_env::{Clock, RealClock};
use cairn_types::{ErrorCode, PartitionId};
use cairn_wire::Opcode;
use cairn_wire::meta::{AttributesResponse, LookupRequest, MkdirRequest};

use super::fixture::{Caller, Cluster, PARTITION, eventually, node_id, quick};

const FIVE_DAYS: Duration = Duration::from_secs(5 * 86_400);

fn mkdir(caller: &mut Caller, parent: u64, name: &str) -> u64 {
    let header = Some(caller.header());
    let request =
        MkdirRequest { header, parent, name: name.as_bytes().to_vec(), mode: 0o755, ..MkdirRequest::default() };
    let made: AttributesResponse = caller.call(Opcode::Mkdir, &request).expect("made");
    made.attributes.expect("some").inode
}

fn is_there(caller: &Caller, parent: u64, name: &str) -> bool {
    let request = LookupRequest { header: Some(caller.read_header()), parent, name: name.as_bytes().to_vec() };
    caller.call::<AttributesResponse>(Opcode::Lookup, &request).is_ok()
}

/// Hands leadership over until this node has it.
fn lead(cluster: &Cluster, number: usize) {
    eventually("the leader that is wanted", || {
        let leader = cluster.leader();
        if leader != number
            && let Some(open) = cluster.meta(leader).partitions().read().get(&PartitionId(PARTITION))
        {
            // Refused while another hand-over is under way.
            let _ = open.handle.transfer_leader(node_id(number));
        }
        leader == number
    });
}

/// A node whose clock is five days ahead leads for a minute, and the trash of three days is gone for good.
#[test]
fn a_clock_that_is_ahead_removes_no_trash() {
    let timings = crate::MetaTimings { trash_tick: Duration::from_millis(20), ..quick() };
    let cluster = Cluster::with(3, timings, |config| config);
    let mut caller = cluster.caller(9);
    let trash = mkdir(&mut caller, 1, ".trash");
    let own = mkdir(&mut caller, trash, "0");
    let in_days = |days: u64| format!("{:012}", RealClock.wall().0 / 1_000_000_000 + days * 86_400);
    let later = in_days(3);
    mkdir(&mut caller, own, &later);
    let wrong = (cluster.leader() + 1) % 3;
    cluster.skews[wrong].store(FIVE_DAYS.as_nanos() as i64, Ordering::SeqCst);
    let mut minutes = 0;
    eventually("a look by the one whose clock is wrong", || {
        lead(&cluster, wrong);
        // Its time is over by all clocks: when it is gone, this leader has looked.
        minutes += 1;
        let over = format!("{:012}", RealClock.wall().0 / 1_000_000_000 - minutes * 60);
        mkdir(&mut caller, own, &over);
        eventually("a look at the trash", || !is_there(&caller, own, &over));
        // On a busy machine somebody else may have taken over and looked.
        cluster.leader() == wrong
    });
    assert!(is_there(&caller, own, &later), "three days are not over by the clocks of two");
}

/// A mount that has a volume open would go on writing into what its owner deleted, and lose it with it.
#[test]
fn a_volume_in_the_trash_serves_nobody_until_it_is_restored() {
    let mut cluster = Cluster::start(1);
    let mut caller = cluster.caller(9);
    mkdir(&mut caller, 1, "a");
    cluster.map.volumes[0].trashed_ns = 5;
    cluster.share_map();
    eventually("the trash to be known", || !is_there(&caller, 1, "a"));
    let header = Some(caller.header());
    let request = MkdirRequest { header, parent: 1, name: b"b".to_vec(), mode: 0o755, ..MkdirRequest::default() };
    let error = caller.call::<AttributesResponse>(Opcode::Mkdir, &request).expect_err("refused");
    assert_eq!(error, ErrorCode::UnknownVolume);
    cluster.map.volumes[0].trashed_ns = 0;
    cluster.share_map();
    eventually("the volume to be served", || is_there(&caller, 1, "a"));
    assert!(!is_there(&caller, 1, "b"), "what was refused was not done");
}
