//! Two nodes over real connections.

use std::sync::Arc;

use cairn_env::{Clock, FastRng, RealClock, RealDisk};
use cairn_rpc::{Client, ClientConfig, Identity, Server, ServerConfig};
use cairn_types::{ClusterId, NodeId};
use cairn_wire::hello::PeerKind;

use super::fixture::{Adder, Fate, GROUP, Sum, config, wait_for};
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

/// Messages, entries up to the largest and checkpoints must get through the product's own network.
#[test]
fn a_member_joins_over_the_network() {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let members: Vec<Member> = dirs.iter().zip(1..).map(|(dir, id)| member(dir.path(), config(id))).collect();
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
