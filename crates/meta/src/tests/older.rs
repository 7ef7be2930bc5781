//! A member of which the manager knows more than it has.

use cairn_node_agent::Contributor;
use cairn_raft_host::Mark;
use cairn_types::GroupId;
use cairn_wire::manager::HeartbeatRequest;

use super::fixture::{Cluster, PARTITION, eventually};

/// The manager would not hear how far a member is, or nobody that it is an older copy of itself.
#[test]
fn a_member_tells_how_far_it_is_and_that_it_is_older() {
    let cluster = Cluster::start(3);
    cluster.caller(1).create("a").expect("created");
    let follower = (cluster.leader() + 1) % 3;
    let heartbeat = |number: usize| {
        let mut heartbeat = HeartbeatRequest::default();
        cluster.meta(number).heartbeat(&mut heartbeat);
        heartbeat
    };
    let mark = |number: usize| {
        let report = heartbeat(number).partitions.into_iter().find(|report| report.partition == PARTITION);
        report.map_or((0, 0), |report| (report.mark_term, report.mark_index))
    };
    eventually("marks of all members", || (0..3).all(|number| mark(number) >= (2, 2)));
    assert_eq!(heartbeat(follower).problem, "");
    let ahead = Mark { term: mark(follower).0 + 1000, index: 1 };
    let book = cluster.nodes[follower].as_ref().expect("it runs").host.marks().clone();
    book.manager_said([(GroupId(PARTITION), ahead)].into());
    eventually("it to be named", || {
        let problem = heartbeat(follower).problem;
        problem.contains("older copy of itself: the manager knows") && problem.contains("cairn admin partition renew")
    });
}
