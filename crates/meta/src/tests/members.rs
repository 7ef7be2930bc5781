//! Three members: hints, changes of leaders, exactly once across them.

use cairn_raft_host::MemberChange;
use cairn_types::{ErrorCode, PartitionId};
use cairn_wire::Opcode;
use cairn_wire::error::WireError;
use cairn_wire::meta::{AttributesResponse, LookupRequest};

use super::fixture::{Cluster, PARTITION, eventually, node_id, quick};

/// A client would search for the leader blindly, or a follower would answer from old state.
#[test]
fn followers_name_the_leader() {
    let cluster = Cluster::start(3);
    let mut caller = cluster.caller(9);
    caller.create("a").expect("created");
    let request = LookupRequest { header: Some(caller.read_header()), parent: 1, name: b"a".to_vec() };
    let mutation = caller.create_request("b");
    let id = PartitionId(PARTITION);
    let term_at = |number: usize| cluster.meta(number).partitions().read()[&id].handle.status().core.term;
    let hint = |follower: usize, term: u64, answer: Result<AttributesResponse, WireError>| match answer {
        Ok(_) => {
            // Another one may begin to lead at any time.
            eventually("the term of who answers", || term_at(follower) > term);
            None
        }
        Err(error) => {
            // A member that has not opened the partition yet is not available.
            assert!(matches!(error.code, ErrorCode::NotLeader | ErrorCode::Unavailable), "{error}");
            error.leader_hint
        }
    };
    eventually("hints of those who follow", || {
        let leader = cluster.leader();
        let Some(term) = cluster.meta(leader).leads().get(&id).copied() else { return false };
        (0..3).filter(|number| *number != leader).all(|follower| {
            let at = cluster.address(follower);
            let read = hint(follower, term, caller.call_at(at, Opcode::Lookup.code(), &request));
            let write = hint(follower, term, caller.call_at(at, Opcode::Create.code(), &mutation));
            [read, write].iter().all(|hint| hint.as_deref() == Some(cluster.address(leader)))
        })
    });
}

/// A request repeated at the new leader would be executed twice, or what was acknowledged would be lost.
#[test]
fn exactly_once_across_a_change_of_leaders() {
    let mut cluster = Cluster::start(3);
    let mut kills = 0;
    for round in 0..3 {
        let leader = cluster.leader();
        let mut caller = cluster.caller(10 + round);
        let names: Vec<String> = (0..20).map(|n| format!("r{round}-{n}")).collect();
        let inodes: Vec<u64> = names.iter().map(|name| caller.create(name).expect("created")).collect();
        let last = caller.create_request(&format!("r{round}-last"));
        let answer: AttributesResponse = caller.call(Opcode::Create, &last).expect("created");
        cluster.kill(leader);
        kills += 1;
        let again: AttributesResponse = caller.call(Opcode::Create, &last).expect("the kept answer");
        assert_eq!(again, answer, "the same request at the new leader");
        let found: Vec<u64> = names.iter().map(|name| caller.lookup(name).expect("kept")).collect();
        assert_eq!(found, inodes);
        let all = caller.statfs().inodes;
        assert_eq!(all, 1 + 21 * (round + 1), "nothing twice");
        cluster.run(leader);
        cluster.share_map();
    }
    assert_eq!(kills, 3);
}

/// All members down at once, as after a power cut: what was acknowledged would be lost.
#[test]
fn a_restart_of_all_members_keeps_everything() {
    let mut cluster = Cluster::start(3);
    let mut caller = cluster.caller(9);
    let inode = caller.create("a").expect("created");
    (0..3).for_each(|number| cluster.kill(number));
    (0..3).for_each(|number| cluster.run(number));
    cluster.share_map();
    assert_eq!(cluster.caller(10).lookup("a"), Ok(inode));
}

/// A member that was down when its partition began, or that replaces one, would begin a second partition of its own or
/// never get the state.
#[test]
fn a_member_that_comes_late_gets_the_state() {
    let mut cluster = Cluster::prepare(3, quick(), |config| config);
    cluster.run(0);
    cluster.run(1);
    cluster.share_map();
    let mut caller = cluster.caller(9);
    let inode = caller.create("a").expect("two of three suffice");
    let leader = cluster.leader();
    cluster.map.partitions[0].leader = node_id(leader).get();
    cluster.run(2);
    cluster.share_map();
    let inodes = |number: usize| cluster.meta(number).partition_reports().first().map_or(0, |report| report.inodes);
    eventually("the state at the third member", || inodes(2) == 2);
    cluster.kill(leader);
    assert_eq!(cluster.caller(10).lookup("a"), Ok(inode));
}

/// The members' change as the manager steers it: a new member is filled, another leaves and drops its state, and comes
/// back with nothing. A member that began anew instead of joining would be a second partition; one that kept its old
/// state would vote where it has no vote.
#[test]
fn a_member_is_replaced_and_may_come_back() {
    let mut cluster = Cluster::prepare(4, quick(), |config| config);
    cluster.map.partitions[0].nodes.pop();
    (0..4).for_each(|number| cluster.run(number));
    cluster.share_map();
    let inode = cluster.caller_of(9, &[0, 1, 2]).create("a").expect("created");
    assert!(cluster.meta(3).partition_reports().is_empty(), "it is no member yet");
    let leader = cluster.leader();
    let gone = (leader + 1) % 3;
    let (old, new) = (node_id(gone), node_id(3));
    let id = PartitionId(cluster.map.partitions[0].id);
    let change = |cluster: &Cluster, what: &str, changes: Vec<MemberChange>| {
        // Refused until the one before is finished and the new member has caught up.
        eventually(what, || {
            let leader = cluster.leader();
            let handle = cluster.meta(leader).partitions().read().get(&id).expect("open").handle.clone();
            handle.change_members(changes.clone()).is_ok()
        });
    };
    let open = |cluster: &Cluster, number: usize| !cluster.meta(number).partition_reports().is_empty();
    let inodes = |cluster: &Cluster, number: usize| {
        cluster.meta(number).partition_reports().first().map_or(0, |report| report.inodes)
    };
    let wish = |cluster: &mut Cluster, nodes: [usize; 4]| {
        cluster.map.partitions[0].nodes = nodes.map(|number| node_id(number).get()).to_vec();
        cluster.map.partitions[0].changed = true;
        cluster.map.partitions[0].left.clear();
        cluster.share_map();
    };
    wish(&mut cluster, [0, 1, 2, 3]);
    eventually("the new member to open it", || open(&cluster, 3));
    change(&cluster, "the learner", vec![MemberChange::Learner(new)]);
    eventually("the state at the new member", || inodes(&cluster, 3) == 2);
    change(&cluster, "the change of votes", vec![MemberChange::Voter(new), MemberChange::Remove(old)]);
    // A map without it alone destroys nothing.
    cluster.map.partitions[0].nodes.retain(|node| *node != old.get());
    cluster.share_map();
    assert!(open(&cluster, gone), "only an explicit removal destroys");
    cluster.map.partitions[0].left = vec![old.get()];
    cluster.share_map();
    eventually("its state to be dropped", || !open(&cluster, gone));
    cluster.kill(gone);
    cluster.run(gone);
    cluster.share_map();
    let stay: Vec<usize> = (0..4).filter(|number| *number != gone).collect();
    cluster.caller_of(10, &stay).create("b").expect("created by those that stay");
    assert!(!open(&cluster, gone));
    // It comes back, and starts again in the middle.
    wish(&mut cluster, [0, 1, 2, 3]);
    eventually("it to be open again", || open(&cluster, gone));
    cluster.kill(gone);
    cluster.run(gone);
    cluster.share_map();
    change(&cluster, "the learner again", vec![MemberChange::Learner(old)]);
    eventually("the state at the member that came back", || inodes(&cluster, gone) == 3);
    change(&cluster, "the vote again", vec![MemberChange::Voter(old), MemberChange::Remove(new)]);
    cluster.kill(gone);
    cluster.run(gone);
    cluster.share_map();
    eventually("the state after a restart", || inodes(&cluster, gone) == 3);
    assert_eq!(cluster.caller_of(11, &[0, 1, 2]).lookup("a"), Ok(inode));
}
