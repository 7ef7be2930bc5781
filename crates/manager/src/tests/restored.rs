//! A manager that was put back from a copy, and the nodes that went on with what it has forgotten.
use super::cluster::{Managers, eventually, wait};
use super::node::Node;
use cairn_rpc::{LeaderError, Repeat};
use cairn_types::ErrorCode;
use cairn_wire::Opcode;
use cairn_wire::common::Empty;
use cairn_wire::manager::*;
use prost::Message;
use std::time::Duration;

/// For what is refused as long as the manager waits.
fn soon<A: Message + Default>(managers: &Managers, opcode: Opcode, request: &impl Message) -> Result<A, LeaderError> {
    wait(managers.client.call(opcode, request, Duration::from_millis(300), Repeat::Harmless))
}

fn volume(managers: &Managers, name: &str) -> u32 {
    let request = CreateVolumeRequest { name: name.into(), layout: 1, ..CreateVolumeRequest::default() };
    let answer: CreateVolumeResponse = managers.call(Opcode::CreateVolume, &request);
    answer.volume.expect("made").id
}

fn open_session(managers: &Managers) -> u64 {
    managers.call::<OpenSessionResponse>(Opcode::OpenSession, &OpenSessionRequest::default()).session
}

/// What nodes say that know more than a manager that was put back.
struct Known {
    seen: SeenNumbers,
    /// The data node's.
    things: SeenThings,
}

impl Known {
    fn data(&self, node: &Node) -> RegisterRequest {
        RegisterRequest { seen: Some(self.seen), things: Some(self.things.clone()), ..node.request() }
    }

    fn meta(&self, node: &Node) -> RegisterRequest {
        RegisterRequest { seen: Some(self.seen), things: Some(SeenThings::default()), ..node.request() }
    }
}

/// A manager with a data and a meta node, put back to where it was before a volume was made.
fn put_back() -> (Managers, Node, Node, Known) {
    put_back_with(|_, _| {})
}

/// The same, where each node shows its key before it asks.
fn put_back_with(show: fn(&Managers, &str)) -> (Managers, Node, Node, Known) {
    let mut managers = Managers::start(1, 1, 1);
    let cluster = managers.cluster();
    show(&managers, "d1");
    let data = Node::start(&managers, 1, "data", 1);
    show(&managers, "m1");
    let meta = Node::start(&managers, 2, "meta", 0);
    eventually("a group", || (!managers.map().pgs.is_empty()).then_some(()));
    eventually("the feature level", || (managers.status().feature_level >= 5).then_some(()));
    managers.kill(0);
    let copy = managers.copy_of(0);
    managers.restart(0, cluster);
    managers.leader();
    let made = volume(&managers, "made");
    let status = managers.status();
    let map = managers.map();
    let seen = SeenNumbers {
        term: status.term + 7,
        map_version: map.version,
        volume: made,
        partition: map.partitions.iter().map(|p| p.id).max().expect("some"),
        session: open_session(&managers),
        ..SeenNumbers::default()
    };
    let disk = data.disk();
    let groups = map.pgs.iter().map(|pg| SeenGroup { disk, state: pg.state.clone() }).collect();
    let things = SeenThings { pages: 1, disks: vec![disk], groups, ..SeenThings::default() };
    managers.kill(0);
    managers.put_back(0, copy);
    managers.restart(0, cluster);
    managers.leader();
    (managers, data, meta, Known { seen, things })
}

/// Ids would be given a second time, and what nodes were told in later terms count for more than what they are told
/// now.
#[test]
fn numbers_that_nodes_know_are_not_given_again() {
    numbers_are_not_given_again(|_, _| {});
}

/// With keys nobody would be heard as long as the managers wait, and that would never end.
#[test]
fn numbers_are_not_given_again_with_keys_as_well() {
    numbers_are_not_given_again(Managers::show);
}

fn numbers_are_not_given_again(show: fn(&Managers, &str)) {
    let (managers, data, meta, known) = put_back_with(show);
    let seen = known.seen;
    show(&managers, "d1");
    let request = CreateVolumeRequest { name: "early".into(), layout: 1, ..CreateVolumeRequest::default() };
    let again = eventually("it to lead in a later term", || {
        let heartbeat = HeartbeatRequest { seen: Some(seen), ..data.heartbeat_of() };
        soon::<HeartbeatResponse>(&managers, Opcode::Heartbeat, &heartbeat).ok().filter(|answer| answer.register_again)
    });
    assert!(again.term > seen.term, "{} after {}", again.term, seen.term);
    // On a busy machine some of these get no answer in time.
    eventually("its reason", || {
        let refused = soon::<CreateVolumeResponse>(&managers, Opcode::CreateVolume, &request).expect_err("it waits");
        refused.to_string().contains("older than what they once gave").then_some(())
    });
    let away = format!("n{}", meta.id());
    eventually("whom it waits for", || {
        let refused = soon::<RegisterResponse>(&managers, Opcode::Register, &known.data(&data));
        refused.expect_err("the other one was not heard");
        let problems = managers.status().problems.join("\n");
        (problems.contains("waits for") && problems.contains(&away)).then_some(())
    });
    show(&managers, "m1");
    let given: RegisterResponse = managers.call(Opcode::Register, &known.meta(&meta));
    assert_eq!(given.node, meta.id());
    show(&managers, "d1");
    managers.call::<RegisterResponse>(Opcode::Register, &known.data(&data));
    assert!(volume(&managers, "next") > seen.volume);
    assert!(open_session(&managers) > seen.session);
    assert!(managers.map().version > seen.map_version);
    // A node of an earlier build says nothing; nothing is behind anything.
    managers.call::<RegisterResponse>(Opcode::Register, &data.request());
    let absurd = SeenNumbers { volume: u32::MAX, ..SeenNumbers::default() };
    let request = RegisterRequest { seen: Some(absurd), ..data.request() };
    let error = managers.try_call::<RegisterResponse>(Opcode::Register, &request).expect_err("nonsense");
    assert_eq!(error.code(), Some(ErrorCode::BadRequest), "{error}");
}

/// One stolen key would stop the whole cluster.
#[test]
fn one_key_alone_is_not_believed() {
    let managers = Managers::start(1, 1, 1);
    managers.cluster();
    managers.show("d1");
    let mut data = Node::start(&managers, 1, "data", 1);
    data.heartbeat();
    managers.show("m1");
    let mut meta = Node::start(&managers, 2, "meta", 0);
    meta.heartbeat();
    eventually("the feature level", || (managers.status().feature_level >= 5).then_some(()));
    let lies = |data: &Node, term: u64| {
        managers.show("d1");
        let seen = Some(SeenNumbers { pg: 5000, term, ..SeenNumbers::default() });
        let heartbeat = HeartbeatRequest { seen, ..data.heartbeat_of() };
        soon::<HeartbeatResponse>(&managers, Opcode::Heartbeat, &heartbeat).expect_err("it is not believed").to_string()
    };
    let term = managers.status().term;
    for later in [0, 1] {
        eventually("it to be refused", || {
            managers.show("m1");
            assert!(!meta.heartbeat().register_again);
            lies(&data, term + later).contains("with other keys than d1 know of nothing").then_some(())
        });
    }
    assert!(volume(&managers, "made") > 0, "everything goes on");
    assert_eq!(managers.status().term, term);
    assert_eq!(managers.status().awaited, None);
}

/// A node that never comes back would keep the cluster from going on for ever.
#[test]
fn a_person_gives_up_nodes_that_are_lost() {
    let (managers, data, meta, known) = put_back();
    let go_on = |given_up: Awaited| GoOnRequest { given_up: Some(given_up) };
    let early = managers.try_call::<Empty>(Opcode::GoOn, &go_on(Awaited::default())).expect_err("nobody is waited for");
    assert!(early.to_string().contains("wait for no node"), "{early}");
    let tell = known.data(&data);
    eventually("it to wait", || {
        let refused = soon::<RegisterResponse>(&managers, Opcode::Register, &tell).expect_err("the other one is away");
        managers.status().problems.iter().any(|p| p.contains("waits for")).then_some(refused)
    });
    let awaited = managers.status().awaited.expect("it waits");
    assert_eq!((&awaited.nodes[..], &awaited.disks[..]), (&[meta.id()][..], &[][..]));
    let nobody = managers.try_call::<Empty>(Opcode::GoOn, &go_on(Awaited::default())).expect_err("not that one");
    assert!(nobody.to_string().contains("more than was given up"), "{nobody}");
    managers.try_call::<Empty>(Opcode::GoOn, &GoOnRequest::default()).expect_err("of an earlier build");
    managers.call::<Empty>(Opcode::GoOn, &go_on(awaited));
    managers.call::<RegisterResponse>(Opcode::Register, &tell);
    assert_eq!(managers.status().awaited, None);
    assert!(volume(&managers, "next") > known.seen.volume);
}
