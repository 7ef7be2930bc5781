//! Members that may have been removed, or were and cannot note it: what they answer readers, and what primaries leave
//! alone meanwhile.

use std::sync::mpsc;
use std::time::Duration;

use cairn_node_agent::Contributor;
use cairn_rpc::{CallError, Payload};
use cairn_types::ErrorCode;
use cairn_types::MemberState::{Offline, Serving, Syncing};
use cairn_wire::Opcode;
use cairn_wire::data::{ChunkHeader, ReadRequest, ReadResponse};
use cairn_wire::manager::HeartbeatRequest;

use super::cluster::{Cluster, eventually, pattern};
use super::overwrites::{block, chunk, overwrite_soon};

const LONG: Duration = Duration::from_secs(3600);

/// Reads one block as a reader does who wants to be sure.
fn read_surely(cluster: &Cluster, i: usize, index: u32) -> Result<(), CallError> {
    let chunk = Some(ChunkHeader { epoch: 0, ..cluster.header(i, index) });
    let request = ReadRequest { chunk, length: 4096, sure: true, ..ReadRequest::default() };
    let answer: Result<(ReadResponse, _), CallError> = cluster.call(i, Opcode::Read, &request, Payload::None);
    answer.map(|_| ())
}

/// A member whose disk is full cannot store that it was removed: it would go on to answer readers with blocks that were
/// overwritten since, for as long as it has no room.
#[test]
fn a_member_that_cannot_store_its_removal_answers_nothing_more() {
    let mut cluster = Cluster::start(3);
    let index = chunk(&cluster, 4 * 4096, true);
    // Nothing reaches its disk until the sender is dropped.
    let (held, wait) = mpsc::channel::<()>();
    let store = cluster.nodes[2].store();
    let stands = move |_: &_| {
        let _dropped = wait.recv();
    };
    store.control(stands).expect("queued");
    cluster.raise(&[Serving, Serving, Offline]);
    overwrite_soon(&cluster, 0, &[1], index, 1, 5, 0);
    let stored = store.pg_files().get(cairn_types::PgId(super::cluster::PG)).expect("known").epoch;
    assert!(stored.get() < cluster.epoch, "the state is on the disk: nothing is tried");
    assert_eq!(cluster.read(2, index, 0, 4096).expect_err("old blocks").code(), Some(ErrorCode::NotServing));
    cluster.epoch -= 1;
    let (old, bytes) = cluster.overwrite_request(2, &[], index, 2, &[(0, block(6))]);
    cluster.epoch += 1;
    let refused = cluster.overwrite_all(2, vec![(old, bytes)]).remove(0).expect_err("of an epoch that is over");
    assert_eq!(refused.code(), Some(ErrorCode::StaleEpoch), "{refused}");
    drop(held);
    eventually("the state is stored", || {
        store.pg_files().get(cairn_types::PgId(super::cluster::PG)).is_some_and(|pg| pg.epoch.get() == cluster.epoch)
    });
    assert_eq!(cluster.read(2, index, 0, 4096).expect_err("offline").code(), Some(ErrorCode::NotServing));
    assert_eq!(cluster.read(1, index, 0, 4096).expect("read"), Some(block(5)));
}

/// A group of which only a full disk is left could not be read, although that one has everything.
#[test]
fn a_member_that_cannot_store_that_it_serves_on_is_read() {
    let mut cluster = Cluster::start(2);
    let index = cluster.allocate(0).expect("an index");
    cluster.append(0, &[1], index, 0, &pattern(7, 4096)).expect("appended");
    cluster.sync(0, &[1], index).expect("synced");
    let (held, wait) = mpsc::channel::<()>();
    let stands = move |_: &_| {
        let _dropped = wait.recv();
    };
    cluster.nodes[0].store().control(stands).expect("queued");
    cluster.tell(&[Serving, Offline]);
    assert_eq!(cluster.read(0, index, 0, 4096).expect("read"), Some(pattern(7, 4096)));
    drop(held);
}

/// Who just started, or has been without a word of the manager, may have been removed long ago.
#[test]
fn copies_are_read_surely_only_from_who_has_heard_of_the_manager() {
    let cluster = Cluster::start_tuned(3, |config| config.word_max = LONG);
    let index = chunk(&cluster, 4096, true);
    let data = &cluster.nodes[1].data;
    let refused = || read_surely(&cluster, 1, index).expect_err("it has no word").code();
    assert_eq!(refused(), Some(ErrorCode::Unavailable));
    data.heartbeat(&mut HeartbeatRequest::default());
    assert_eq!(refused(), Some(ErrorCode::Unavailable), "nothing came yet");
    data.up_to_date();
    read_surely(&cluster, 1, index).expect("it was told everything");
    let compared = Cluster::start_tuned(3, |config| (config.word_max, config.compared_within) = (LONG, LONG));
    let of_compared = chunk(&compared, 4096, true);
    compared.nodes[1].data.heartbeat(&mut HeartbeatRequest::default());
    compared.nodes[1].data.up_to_date();
    let refused_still = read_surely(&compared, 1, of_compared).expect_err("it has just started").to_string();
    assert!(refused_still.contains("are still being compared"), "{refused_still}");
    assert!(compared.read(1, of_compared, 0, 4096).expect("as the last resort").is_some());
    assert!(cluster.read(2, index, 0, 4096).expect("as the last resort").is_some());
    let cluster = Cluster::start_tuned(3, |config| config.word_max = Duration::ZERO);
    let index = chunk(&cluster, 4096, true);
    cluster.nodes[1].data.heartbeat(&mut HeartbeatRequest::default());
    cluster.nodes[1].data.up_to_date();
    let refused = read_surely(&cluster, 1, index).expect_err("the word is old");
    assert_eq!(refused.code(), Some(ErrorCode::Unavailable), "{refused}");
}

/// A member that left would answer readers, by a word that is still good, with blocks that were overwritten in place
/// since.
#[test]
fn nothing_is_overwritten_in_place_while_one_that_left_may_answer() {
    let mut cluster = Cluster::start_tuned(3, |config| config.quiet = LONG);
    let index = chunk(&cluster, 4 * 4096, true);
    cluster.overwrite(0, &[1, 2], index, 1, &[(0, block(1))]).expect("nobody left");
    cluster.raise(&[Serving, Serving, Syncing]);
    let refused = |cluster: &Cluster, i: usize, chain: &[usize], request| {
        cluster.overwrite(i, chain, index, request, &[(0, block(2))]).expect_err("somebody left").code()
    };
    assert_eq!(refused(&cluster, 0, &[1, 2], 2), Some(ErrorCode::NotInPlace));
    // The same under later epochs, and by another primary.
    cluster.raise(&[Serving, Serving, Serving]);
    assert_eq!(refused(&cluster, 0, &[1, 2], 3), Some(ErrorCode::NotInPlace));
    cluster.raise(&[Offline, Serving, Serving]);
    assert_eq!(refused(&cluster, 1, &[2], 4), Some(ErrorCode::NotInPlace));
}

/// A disk that was taken out of the cluster would answer for ever, by the word that its process gets for its other
/// ones.
#[test]
fn a_disk_that_the_manager_refuses_is_not_served() {
    let mut cluster = Cluster::start(3);
    let index = chunk(&cluster, 4096, true);
    assert!(cluster.read(1, index, 0, 4096).expect("read").is_some());
    let disk = std::mem::replace(&mut cluster.nodes[1].disk, 0);
    cluster.register(1);
    cluster.nodes[1].disk = disk;
    assert_eq!(cluster.read(1, index, 0, 4096).expect_err("refused").code(), Some(ErrorCode::NotServing));
}
