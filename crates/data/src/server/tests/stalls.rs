//! Disks that hang under a process that lives: it says so at once, and nobody waits behind them.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use cairn_rpc::Payload;
use cairn_sim::SimDisk;
use cairn_types::ErrorCode;
use cairn_wire::Opcode;
use cairn_wire::common::{PingRequest, PingResponse};
use cairn_wire::data::{ListChunksRequest, ListChunksResponse};

use super::cluster::{Cluster, PG, eventually, pattern};
use crate::DataConfig;

const BYTES: usize = 200_000;

thread_local! {
    /// Those of the nodes that this test started, in their order.
    static DISKS: RefCell<Vec<SimDisk>> = const { RefCell::new(Vec::new()) };
}

fn on_simulated_disks(config: &mut DataConfig) {
    let disk = SimDisk::new(1);
    DISKS.with_borrow_mut(|disks| disks.push(disk.clone()));
    config.disks = vec![Arc::new(disk)];
    config.disk.stall_after = Duration::from_secs(2);
    config.hop_deadline = Duration::from_secs(5);
}

fn ping(cluster: &Cluster, i: usize, disk: u32) -> PingResponse {
    cluster.call(i, Opcode::Ping, &PingRequest { disk }, Payload::None).expect("the process lives").0
}

fn lists(cluster: &Cluster, i: usize) -> Option<ErrorCode> {
    let disk = cluster.nodes[i].disk;
    let request = ListChunksRequest { disk, pg: PG, from_start: true, count_max: 1, ..ListChunksRequest::default() };
    let answer = cluster.call::<ListChunksResponse>(i, Opcode::ListChunks, &request, Payload::None);
    answer.err().and_then(|error| error.code())
}

/// A member whose disk hangs would be found only when deadlines of seconds are over, and each read of it wait as long.
#[test]
fn a_disk_that_hangs_says_so() {
    let cluster = Cluster::start_tuned(3, on_simulated_disks);
    let disks = DISKS.take();
    let index = cluster.allocate(0).expect("an index");
    let bytes = pattern(1, BYTES);
    cluster.append(0, &[1, 2], index, 0, &bytes).expect("appended");
    cluster.sync(0, &[1, 2], index).expect("synced");
    let hung = cluster.nodes[2].disk;
    assert_eq!(ping(&cluster, 2, hung), PingResponse::default(), "it has nothing to do");
    disks[2].hang();
    let at = BYTES.next_multiple_of(4096) as u64;
    cluster.append(0, &[1, 2], index, at, &bytes).expect_err("the last member hangs");
    eventually("it to be said", || ping(&cluster, 2, hung).stalled);
    assert!(disks[2].held() > 0, "no fault fired");
    // Nobody waits behind it, and the manager's probe finds it.
    let read = cluster.read(2, index, 0, BYTES).expect_err("it hangs");
    assert_eq!((read.code(), lists(&cluster, 2)), (Some(ErrorCode::DiskFailed), Some(ErrorCode::DiskFailed)), "{read}");
    let more = cluster.append(0, &[1, 2], index, at, &bytes).expect_err("it hangs");
    assert_eq!(more.code(), Some(ErrorCode::ChainFailed), "{more}");
    for i in 0..2 {
        // One that does not get the processor looks the same for a moment.
        eventually("the others are well", || {
            !ping(&cluster, i, cluster.nodes[i].disk).stalled && cluster.read(i, index, 0, BYTES).is_ok()
        });
        assert!(cluster.read(i, index, 0, BYTES).expect("read").expect("intact") == bytes);
    }
    disks[2].go_on();
    eventually("it goes on", || cluster.read(2, index, 0, BYTES).is_ok());
    eventually("nothing hangs", || (ping(&cluster, 2, hung).stalled, lists(&cluster, 2)) == (false, None));
    assert!(cluster.read(2, index, 0, BYTES).expect("read").expect("intact") == bytes);
}
