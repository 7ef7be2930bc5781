//! Space of removed files goes back to every member of the placement group.

use cairn_types::PartitionId;
use cairn_wire::Opcode;
use cairn_wire::common::Empty;
use cairn_wire::meta::{RemoveTreeRequest, UnlinkRequest};

use super::fixture::{Caller, Cluster, DataNode, PARTITION, PG, eventually};

fn unlink(caller: &mut Caller, name: &str) {
    let request = UnlinkRequest { header: Some(caller.header()), parent: 1, name: name.as_bytes().to_vec() };
    let _: Empty = caller.call(Opcode::Unlink, &request).expect("unlinked");
}

fn pending(cluster: &Cluster, number: usize) -> u64 {
    cluster.meta(number).partitions().read()[&PartitionId(PARTITION)].state.namespace.read().counters().free_records
}

/// Disks would fill up with what nobody can read any more.
#[test]
fn every_member_is_told_and_the_records_go() {
    let data: Vec<DataNode> = (0..3).map(|_| DataNode::start()).collect();
    let mut cluster = Cluster::start(1);
    cluster.add_pg(&data.iter().collect::<Vec<_>>());
    let mut caller = cluster.caller(9);
    caller.create_with_chunks("a", 40);
    caller.create_with_chunks("kept", 2);
    unlink(&mut caller, "a");
    eventually("all freed", || cluster.meta(0).stats().frees_done() > 0 && pending(&cluster, 0) == 0);
    for node in &data {
        assert_eq!(node.freed(), (0..40).collect::<Vec<u32>>());
    }
}

/// A member that is down or refuses would keep its blocks for ever, or hold up the others.
#[test]
fn a_member_that_fails_keeps_records_pending_until_it_is_back() {
    let data: Vec<DataNode> = (0..3).map(|_| DataNode::start()).collect();
    let mut cluster = Cluster::start(1);
    cluster.add_pg(&data.iter().collect::<Vec<_>>());
    data[2].refuse(true);
    let mut caller = cluster.caller(9);
    caller.create_with_chunks("a", 8);
    unlink(&mut caller, "a");
    eventually("two members", || data[0].freed().len() == 8 && data[1].freed().len() == 8);
    eventually("failures", || cluster.meta(0).stats().free_failures.load(std::sync::atomic::Ordering::SeqCst) >= 2);
    assert_eq!((pending(&cluster, 0), cluster.meta(0).stats().frees_done()), (8, 0));
    assert_eq!(data[0].times(3), 1, "who has answered is not asked again");
    data[2].refuse(false);
    eventually("the rest", || pending(&cluster, 0) == 0);
    assert_eq!(data[2].freed().len(), 8);
    assert_eq!(data[0].times(3), 1);
}

/// While a disk is filled its group frees some chunks later: with more of them than are looked at together, no other
/// group of that node would get anything back until then, and its disks fill up.
#[test]
fn a_group_that_frees_later_holds_up_no_other_one() {
    let data: Vec<DataNode> = (0..2).map(|_| DataNode::start()).collect();
    let mut cluster = Cluster::start(1);
    cluster.add_pg(&data.iter().collect::<Vec<_>>());
    cluster.add_pg_beside(PG + 1);
    data[1].free_later(PG);
    let mut caller = cluster.caller(9);
    caller.create_with_chunks("waits", 100);
    unlink(&mut caller, "waits");
    eventually("the other member", || data[0].freed().len() == 100 && pending(&cluster, 0) == 100);
    caller.create_in(PG + 1, "goes", 8);
    unlink(&mut caller, "goes");
    eventually("the other group", || pending(&cluster, 0) == 100 && data[1].freed().len() == 8);
    // It is counted behind the entry that takes the records away.
    eventually("the count", || cluster.meta(0).stats().frees_done() == 8);
    data[1].free_later(0);
    eventually("the rest", || pending(&cluster, 0) == 0);
    assert_eq!(data[1].freed().len(), 100);
}

/// Records would be lost with the leader that had them in hand.
#[test]
fn a_new_leader_goes_on() {
    let data: Vec<DataNode> = (0..2).map(|_| DataNode::start()).collect();
    let mut cluster = Cluster::start(3);
    cluster.add_pg(&data.iter().collect::<Vec<_>>());
    data[1].refuse(true);
    let mut caller = cluster.caller(9);
    caller.create_with_chunks("a", 8);
    unlink(&mut caller, "a");
    eventually("one member", || data[0].freed().len() == 8);
    let leader = cluster.leader();
    cluster.kill(leader);
    let leader = cluster.leader();
    data[1].refuse(false);
    eventually("the rest", || pending(&cluster, leader) == 0);
    assert_eq!(data[1].freed().len(), 8);
}

/// Large files and whole trees are taken apart in steps; their space would be lost if the leader did not ask for them.
#[test]
fn trees_and_large_files_are_reclaimed_behind() {
    let data = DataNode::start();
    let mut cluster = Cluster::start(1);
    cluster.add_pg(&[&data]);
    let mut caller = cluster.caller(9);
    caller.create_with_chunks("big", 700);
    let request = cairn_wire::meta::MkdirRequest {
        header: Some(caller.header()),
        parent: 1,
        name: b"dir".to_vec(),
        mode: 0o755,
        ..Default::default()
    };
    let made: cairn_wire::meta::AttributesResponse = caller.call(Opcode::Mkdir, &request).expect("made");
    let dir = made.attributes.expect("some").inode;
    for n in 0..300 {
        let request = caller.create_request(&format!("f{n}"));
        let request = cairn_wire::meta::CreateRequest { parent: dir, ..request };
        let _: cairn_wire::meta::AttributesResponse = caller.call(Opcode::Create, &request).expect("created");
    }
    unlink(&mut caller, "big");
    let request = RemoveTreeRequest { header: Some(caller.header()), parent: 1, name: b"dir".to_vec() };
    let _: Empty = caller.call(Opcode::RemoveTree, &request).expect("removed");
    eventually("an empty volume", || caller.statfs().inodes == 1 && pending(&cluster, 0) == 0);
    assert_eq!(data.freed().len(), 700);
}
