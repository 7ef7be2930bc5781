//! Two nodes over real connections.

use std::sync::Arc;

use cairn_env::{Clock, FastRng, RealClock, RealDisk};
use cairn_rpc::{CallError, CallOptions, Client, ClientConfig, Identity, Server, ServerConfig};
use cairn_types::{ClusterId, ErrorCode, NodeId};
use cairn_wire::Opcode;
use cairn_wire::hello::PeerKind;
use cairn_wire::raft::{GroupMembersRequest, GroupMembersResponse};

use super::fixture::{Adder, Fate, GROUP, PATIENCE, Sum, config, wait_for};
use crate::{HostConfig, MemberChange, RaftHost, RaftService, RpcTransport};

struct Member {
    host: Arc<RaftHost>,
    transport: Arc<RpcTransport>,
    server: Server,
}

fn member(dir: &std::path::Path, settings: HostConfig) -> Member {
    let identity = Identity::new(ClusterId([1; 16]), PeerKind::Server, settings.node);
    let client = Client::with_threads(1, ClientConfig::default(), identity.clone()).unwrap();
    let transport = Arc::new(RpcTransport::new(client));
    let clock: Arc<dyn Clock> = Arc::new(RealClock);
    let disk = Arc::new(RealDisk::open(dir).unwrap());
    let host =
        Arc::new(RaftHost::start(settings, clock, Arc::new(FastRng::from_os()), disk, transport.clone()).unwrap());
    let service = Arc::new(RaftService::start(host.clone()).unwrap());
    let server = ServerConfig { threads: 1, ..ServerConfig::default() };
    let server = Server::bind("127.0.0.1:0".parse().unwrap(), server, identity, service).unwrap();
    Member { host, transport, server }
}

/// Of two members the first one leads on, however long it does not get the processor.
fn calm(node: u32) -> HostConfig {
    HostConfig { tick: std::time::Duration::from_millis(300), ..config(node) }
}

/// Messages, entries up to the largest and checkpoints must get through the product's own network.
#[test]
fn a_member_joins_over_the_network() {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let members: Vec<Member> = dirs.iter().zip(1..).map(|(dir, id)| member(dir.path(), calm(id))).collect();
    for (at, other) in [(0, 1), (1, 0)] {
        let address = members[other].server.local_addr().to_string();
        members[at].transport.set_address(NodeId(other as u32 + 1), address);
    }
    let states: [Arc<parking_lot::Mutex<Sum>>; 2] = Default::default();
    let first = members[0]
        .host
        .open_group(GROUP, &[NodeId(1)], Adder { padding: 3_000_000, ..Adder::new(&states[0]) })
        .unwrap();
    let second = members[1].host.open_group(GROUP, &[], Adder::new(&states[1])).unwrap();
    wait_for("leadership", || first.leads());
    let add = |bytes: usize| {
        let (sender, receiver) = std::sync::mpsc::channel();
        let mut item = vec![0; bytes];
        item[0] = 1;
        first.propose(item, sender).unwrap();
        receiver.recv().unwrap()
    };
    assert_eq!(add(8), Fate::Done(1));
    first.change_members(vec![MemberChange::Learner(NodeId(2))]).unwrap();
    wait_for("the checkpoint over the network", || states[1].lock().sum == 1);
    wait_for("the promotion", || {
        let _ = first.change_members(vec![MemberChange::Voter(NodeId(2))]);
        first.status().core.members.voters.len() == 2
    });
    let largest = config(1).item_bytes_max;
    for sum in 2..=6 {
        assert_eq!(add(if sum % 2 == 0 { largest } else { 8 }), Fate::Done(sum));
    }
    wait_for("the entries over the network", || states[1].lock().sum == 6);
    wait_for("the hint", || second.leader() == Some(NodeId(1)));
    assert!(second.read_permit().is_err());
}

/// A change that was decided on older members, and came late, would undo what was decided since.
#[test]
fn a_change_decided_on_other_members_has_no_effect() {
    let dir = tempfile::tempdir().unwrap();
    let one = member(dir.path(), config(1));
    let identity = Identity::new(ClusterId([1; 16]), PeerKind::Server, NodeId(9));
    let client = Client::with_threads(1, ClientConfig::default(), identity).unwrap();
    let address = one.server.local_addr().to_string();
    let ask = |request: &GroupMembersRequest| -> Result<GroupMembersResponse, ErrorCode> {
        let options = CallOptions::new(PATIENCE);
        let (sender, receiver) = std::sync::mpsc::channel();
        let then = move |result| sender.send(result).unwrap();
        client.peer(&address).call_then(Opcode::GroupMembers.code(), request, (), options, then);
        match receiver.recv().unwrap() {
            Ok(answer) => Ok(answer.decode().unwrap()),
            Err(CallError::Remote(error)) => Err(error.code),
            Err(other) => panic!("{other}"),
        }
    };
    let question = GroupMembersRequest { group: GROUP.0, ..GroupMembersRequest::default() };
    assert_eq!(ask(&question), Err(ErrorCode::NotFound), "the group is not open");
    let handle = one.host.open_group(GROUP, &[NodeId(1)], Adder::new(&Arc::default())).unwrap();
    wait_for("leadership", || handle.read_permit().is_ok());
    let seen = ask(&question).unwrap();
    assert!(seen.leads && !seen.changing && seen.leader == 1 && seen.members.len() == 1 && seen.members[0].votes);
    let change = |kind: u32, node: u32, seen: &GroupMembersResponse| GroupMembersRequest {
        term: seen.term,
        index: seen.index,
        changes: vec![cairn_wire::raft::MemberChange { node, kind }],
        ..question.clone()
    };
    assert_eq!(ask(&change(9, 2, &seen)), Err(ErrorCode::BadRequest));
    ask(&change(2, 2, &seen)).unwrap();
    wait_for("the learner", || handle.status().core.members.learners == [NodeId(2)]);
    // The same once more, late; and one decided on the new members.
    assert_eq!(ask(&change(2, 3, &seen)), Err(ErrorCode::Conflict));
    let newer = ask(&question).unwrap();
    assert!((newer.term, newer.index) > (seen.term, seen.index) && newer.members.len() == 2);
    assert_eq!(ask(&change(1, 2, &newer)), Err(ErrorCode::Conflict), "a vote for a member that knows nothing");
    ask(&change(3, 2, &newer)).unwrap();
    wait_for("the removal", || handle.status().core.members.learners.is_empty());
    assert_eq!(ask(&change(3, 2, &newer)), Err(ErrorCode::Conflict));
}
