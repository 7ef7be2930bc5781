//! Partitions come and go with the map.

use std::collections::BTreeMap;

use cairn_node_agent::{Contributor, Registration};
use cairn_types::{ErrorCode, Incarnation, NodeId, PartitionId};
use cairn_wire::Opcode;
use cairn_wire::manager::{HeartbeatRequest, Partition};
use cairn_wire::meta::{LookupRequest, MetaHeader, StatfsRequest, StatfsResponse};

use super::fixture::{CLUSTER, Cluster, PARTITION, eventually, node_id};

/// A deleted volume would be served on, or come back with the next start.
#[test]
fn a_removed_partition_is_dropped_for_good() {
    let mut cluster = Cluster::start(1);
    cluster.caller(9).create("a").expect("created");
    cluster.map.partitions[0].removed = true;
    cluster.share_map();
    eventually("the end of the partition", || cluster.meta(0).partition_reports().is_empty());
    let caller = cluster.caller(9);
    let request = LookupRequest { header: Some(caller.read_header()), parent: 1, name: b"a".to_vec() };
    let error = caller.call_at::<StatfsResponse>(cluster.address(0), Opcode::Lookup.code(), &request);
    assert_eq!(error.expect_err("gone").code, ErrorCode::UnknownPartition);
    cluster.kill(0);
    cluster.run(0);
    assert!(cluster.meta(0).partition_reports().is_empty());
}

/// A map that comes while the node stops would open again what was closed a moment before, and say that it cannot.
#[test]
fn a_node_that_stops_opens_nothing() {
    let cluster = Cluster::start(1);
    cluster.caller(9).create("a").expect("created");
    cluster.meta(0).roster.close_all();
    cluster.meta(0).roster.reconcile();
    assert_eq!(cluster.meta(0).failures(), BTreeMap::new());
    assert!(cluster.meta(0).partition_reports().is_empty());
}

/// A node that ended while it dropped a partition, its log first, would miss that log, and never start again.
#[test]
fn a_node_starts_again_that_ended_while_it_dropped_a_partition() {
    let mut cluster = Cluster::start(1);
    cluster.caller(9).create("a").expect("created");
    cluster.block(0, "meta/partitions.tmp", true);
    cluster.map.partitions[0].removed = true;
    cluster.share_map();
    eventually("the end of the partition", || cluster.meta(0).partition_reports().is_empty());
    cluster.kill(0);
    cluster.block(0, "meta/partitions.tmp", false);
    cluster.run(0);
    cluster.share_map();
    eventually("the end of what was left", || cluster.meta(0).partition_reports().is_empty());
    cluster.kill(0);
    cluster.run(0);
    assert!(cluster.meta(0).partition_reports().is_empty(), "nothing of it is kept");
}

/// A map that lacks a partition (a manager restored from old state) would destroy the only copy.
#[test]
fn a_partition_that_the_map_lacks_is_kept() {
    let mut cluster = Cluster::start(1);
    let inode = cluster.caller(9).create("a").expect("created");
    let partitions = std::mem::take(&mut cluster.map.partitions);
    cluster.share_map();
    cluster.kill(0);
    cluster.run(0);
    cluster.map.partitions = partitions;
    cluster.share_map();
    assert_eq!(cluster.caller(9).lookup("a"), Ok(inode));
}

/// Several volumes on one node would mix.
#[test]
fn a_second_partition_opens_while_the_first_serves() {
    let mut cluster = Cluster::start(1);
    let mut caller = cluster.caller(9);
    caller.create("a").expect("created");
    let volume = cairn_wire::manager::Volume { id: 2, ..cluster.map.volumes[0].clone() };
    cluster.map.volumes.push(volume);
    let second = Partition { id: PARTITION + 1, volume: 2, ..cluster.map.partitions[0].clone() };
    cluster.map.partitions.push(second);
    cluster.share_map();
    let id = PartitionId(PARTITION + 1);
    eventually("the second partition", || cluster.meta(0).leads().contains_key(&id));
    let header = MetaHeader { volume: 2, partition: id.get(), ..caller.read_header() };
    let answer: StatfsResponse = caller
        .call(Opcode::Statfs, &StatfsRequest { header: Some(header), ..Default::default() })
        .expect("an empty volume");
    assert_eq!((answer.inodes, caller.statfs().inodes), (1, 2));
    cluster.kill(0);
    cluster.run(0);
    eventually("both again", || cluster.meta(0).leads().len() == 2);
}

/// A node whose log was lost would begin its partition anew, empty.
#[test]
fn a_lost_log_is_named_and_nothing_begins_anew() {
    let cluster = Cluster::start(1);
    cluster.caller(9).create("a").expect("created");
    let lost = cluster.lose_log(0);
    assert!(lost.contains(&PARTITION.to_string()) && lost.contains("log"), "{lost}");
}

/// A node whose log and list were lost would begin its partition anew: all names gone, or votes forgotten.
#[test]
fn a_lost_log_and_list_are_named_by_what_the_manager_remembers() {
    for count in [1, 3] {
        let mut cluster = Cluster::start(count);
        cluster.caller(9).create("a").expect("created");
        cluster.map.partitions[0].begun = (0..count).map(|number| node_id(number).get()).collect();
        cluster.kill(0);
        cluster.lose(0, &["log", "meta", "checkpoints"]);
        cluster.run(0);
        cluster.share_map();
        eventually("the failure", || (cluster.meta(0).health())().1.is_err());
        let error = (cluster.meta(0).health())().1.expect_err("a failure");
        assert!(error.contains("the log of partition p5 is missing in"), "{error}");
        assert!(error.contains("restore the directory") && error.contains("partition renew 5 n"), "{error}");
        assert!(cluster.meta(0).partition_reports().is_empty(), "it takes no part");
        // Nothing of the refusal lasts: the directory can be restored, or the role started again.
        cluster.kill(0);
        cluster.run(0);
    }
}

/// The role would serve under another node's identity; its partitions would miss in the heartbeat.
#[test]
fn takes_part_in_registration_and_heartbeat() {
    let cluster = Cluster::start(1);
    cluster.leader();
    let registration = |node| Registration {
        node,
        cluster: CLUSTER,
        incarnation: Incarnation(1),
        term: 1,
        disks: Vec::new(),
        problems: Vec::new(),
    };
    assert_eq!(cluster.meta(0).registered(&registration(node_id(0))), Ok(()));
    assert!(cluster.meta(0).registered(&registration(NodeId(99))).is_err());
    let mut heartbeat = HeartbeatRequest::default();
    cluster.meta(0).heartbeat(&mut heartbeat);
    assert_eq!(heartbeat.partitions.len(), 1);
    assert!(heartbeat.partitions[0].leader);
    assert_eq!((cluster.meta(0).health())(), ("meta".to_owned(), Ok(())));
    let registry = cairn_telemetry::Registry::new();
    registry.register(&[], cluster.meta(0).metrics());
    let text = registry.render().expect("text");
    assert!(text.contains("cairn_meta_leads{partition=\"p5\"} 1"), "{text}");
}
