//! The agent against a small manager over loopback.

use std::sync::Arc;
use std::time::Duration;

use cairn_rpc::{Client, ClientConfig, Identity, LeaderClient, Reply, Request, Server, ServerConfig, Service};
use cairn_types::{ClusterId, DiskUuid, NodeId};
use cairn_wire::Opcode;
use cairn_wire::hello::PeerKind;
use cairn_wire::manager::{
    ClusterMap, DiskReport, HeartbeatRequest, HeartbeatResponse, Node, RegisterRequest, RegisterResponse, Volume,
};
use parking_lot::Mutex;

use crate::{AgentConfig, Contributor, NodeAgent, Registration};

const CLUSTER: ClusterId = ClusterId([7; 16]);
const PATIENCE: Duration = Duration::from_secs(120);

#[derive(Default)]
struct Desk {
    registrations: Vec<RegisterRequest>,
    /// Of the last one: how many heartbeats came before it.
    registered_at: usize,
    heartbeats: Vec<HeartbeatRequest>,
    forget: bool,
    /// The version after which it tells changes, whatever a node knows.
    base_version: Option<u64>,
    map: ClusterMap,
    settings: Vec<cairn_wire::manager::ConfigItem>,
}

#[derive(Clone, Default)]
struct FakeManager(Arc<Mutex<Desk>>);

impl Service for FakeManager {
    fn call(&self, request: Request<'_>, reply: Reply) {
        let mut desk = self.0.lock();
        match Opcode::from_code(request.opcode) {
            Some(Opcode::Register) => {
                let asked: RegisterRequest = request.decode().expect("a registration");
                let disks = (0..asked.disks.len()).map(|number| 100 + number as u32).collect();
                // The same once more, with nothing in between, comes from one who waited too long for the answer.
                if desk.registrations.last() != Some(&asked) || desk.registered_at != desk.heartbeats.len() {
                    desk.registrations.push(asked);
                    desk.registered_at = desk.heartbeats.len();
                }
                let incarnation = desk.registrations.len() as u64;
                let map = ClusterMap { base_version: 0, ..desk.map.clone() };
                reply.ok(
                    &RegisterResponse {
                        node: 16,
                        disks,
                        incarnation,
                        term: 1,
                        map: Some(map),
                        problems: Vec::new(),
                        marks: Vec::new(),
                    },
                    (),
                );
            }
            Some(Opcode::Heartbeat) => {
                let asked: HeartbeatRequest = request.decode().expect("a heartbeat");
                let asked_version = asked.map_version;
                let base_version = desk.base_version.unwrap_or(asked_version);
                desk.heartbeats.push(asked);
                let register_again = std::mem::take(&mut desk.forget);
                let map = (asked_version != desk.map.version).then(|| ClusterMap { base_version, ..desk.map.clone() });
                reply.ok(
                    &HeartbeatResponse {
                        map,
                        term: 1,
                        register_again,
                        settings: desk.settings.clone(),
                        ..HeartbeatResponse::default()
                    },
                    (),
                );
            }
            other => panic!("unexpected {other:?}"),
        }
    }
}

#[derive(Default)]
struct Role {
    disk: Option<DiskUuid>,
    log: Mutex<Vec<String>>,
    /// The last thing that it was told before it was said to know everything since the last heartbeat.
    up_to_date_at: Mutex<Option<String>>,
}

impl Contributor for Role {
    fn disks(&self) -> Vec<DiskReport> {
        self.disk.iter().map(|uuid| DiskReport { uuid: uuid.0.to_vec(), ..DiskReport::default() }).collect()
    }
    fn registered(&self, registration: &Registration) -> Result<(), String> {
        let disks: Vec<String> = registration.disks.iter().map(|(_, disk)| disk.to_string()).collect();
        self.log.lock().push(format!("{} {} {}", registration.node, registration.incarnation, disks.join(",")));
        Ok(())
    }
    fn map_changed(&self, change: &ClusterMap, _term: u64) {
        self.log.lock().push(format!("map {}-{}", change.base_version, change.version));
    }
    fn settings(&self, settings: &crate::Settings) {
        self.log.lock().push(format!("settings {:?}", settings.duration("garbage_period")));
    }
    fn up_to_date(&self) {
        *self.up_to_date_at.lock() = self.log.lock().last().cloned();
    }
    fn heartbeat(&self, heartbeat: &mut HeartbeatRequest) {
        *self.up_to_date_at.lock() = None;
        heartbeat.partitions.push(cairn_wire::manager::PartitionReport { partition: 9, ..Default::default() });
    }
}

struct Setup {
    manager: FakeManager,
    _server: Server,
    agent: NodeAgent,
    identity: Identity,
}

fn start(contributors: Vec<Arc<dyn Contributor>>) -> Setup {
    let manager = FakeManager::default();
    let node = Node { id: 16, roles: vec!["meta".into()], address: "x:1".into(), ..Node::default() };
    manager.0.lock().map =
        ClusterMap { cluster: CLUSTER.0.to_vec(), version: 5, nodes: vec![node], ..ClusterMap::default() };
    let identity = Identity::new(CLUSTER, PeerKind::Server, NodeId(1));
    let config = ServerConfig { threads: 1, hello_timeout: PATIENCE, ..ServerConfig::default() };
    let listen = "127.0.0.1:0".parse().expect("an address");
    let server = Server::bind(listen, config, identity, Arc::new(manager.clone())).expect("a free port");
    let identity = Identity::new(ClusterId::NONE, PeerKind::Server, NodeId(0));
    let config_of_client = ClientConfig { connect_timeout: PATIENCE, ..ClientConfig::default() };
    let client = Client::with_threads(1, config_of_client, identity.clone()).expect("threads");
    let leader = LeaderClient::new(client, "the manager", [server.local_addr().to_string()]);
    let config = AgentConfig {
        heartbeat_interval: Duration::from_millis(10),
        roles: vec!["meta".into()],
        ..AgentConfig::new(DiskUuid([3; 16]), "127.0.0.1:1")
    };
    let agent = NodeAgent::start(config, leader, identity.clone(), contributors).expect("a thread");
    Setup { manager, _server: server, agent, identity }
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let mut left = PATIENCE;
    while !holds() {
        assert!(!left.is_zero(), "{what} did not come about");
        std::thread::sleep(Duration::from_millis(2));
        left = left.saturating_sub(Duration::from_millis(2));
    }
}

/// A node would be without identity, or its roles without ids, map or voice in heartbeats.
#[test]
fn registers_once_and_sends_what_roles_contribute() {
    let role = Arc::new(Role { disk: Some(DiskUuid([9; 16])), ..Role::default() });
    let setup = start(vec![role.clone()]);
    let registration = setup.agent.wait_registered(PATIENCE).expect("registered");
    assert_eq!((registration.node, registration.cluster), (NodeId(16), CLUSTER));
    assert_eq!(setup.identity.cluster(), CLUSTER);
    eventually("a heartbeat", || setup.manager.0.lock().heartbeats.len() >= 2);
    let desk = setup.manager.0.lock();
    assert_eq!(desk.registrations.len(), 1);
    let last = desk.heartbeats.last().expect("some");
    assert_eq!((last.node, last.incarnation, last.map_version), (16, 1, 5));
    assert_eq!((last.partitions.len(), last.disks.len()), (1, 1));
    assert_eq!(*role.log.lock(), ["n16 i1 d100", "map 0-5"]);
    assert_eq!(setup.agent.with_map(|map| map.address(NodeId(16)).map(str::to_owned)).as_deref(), Some("x:1"));
    assert_eq!(setup.agent.health(), Ok(()));
}

/// Roles would miss changes of the map, or hear of one that is none.
#[test]
fn deltas_reach_the_roles_once() {
    let role = Arc::new(Role::default());
    let setup = start(vec![role.clone()]);
    setup.agent.wait_registered(PATIENCE).expect("registered");
    {
        let mut desk = setup.manager.0.lock();
        desk.map =
            ClusterMap { version: 6, volumes: vec![Volume { id: 1, ..Volume::default() }], ..Default::default() };
    }
    eventually("the delta", || role.log.lock().len() >= 3);
    let before = setup.manager.0.lock().heartbeats.len();
    eventually("more heartbeats", || setup.manager.0.lock().heartbeats.len() >= before + 3);
    assert_eq!(*role.log.lock(), ["n16 i1 ", "map 0-5", "map 5-6"]);
    assert!(setup.agent.with_map(|map| map.volume(cairn_types::VolumeId(1)).is_some()));
}

/// A restarted manager, or one that took the node for dead, would never get it back under a new incarnation.
#[test]
fn registers_again_when_told() {
    let role = Arc::new(Role::default());
    let setup = start(vec![role.clone()]);
    setup.agent.wait_registered(PATIENCE).expect("registered");
    setup.manager.0.lock().forget = true;
    eventually("a second registration", || {
        setup.agent.registration().is_some_and(|registration| registration.incarnation.get() == 2)
    });
    assert_eq!(setup.manager.0.lock().registrations[1].node, 16, "it keeps its id");
    assert_eq!(role.log.lock()[..4], ["n16 i1 ", "map 0-5", "n16 i2 ", "map 0-5"]);
}

/// A role would count as up to date that was not told yet what the manager knew, or never.
#[test]
fn who_was_told_everything_is_up_to_date() {
    let role = Arc::new(Role::default());
    let setup = start(vec![role.clone()]);
    let known = |version: &str| role.up_to_date_at.lock().as_deref() == Some(version);
    eventually("the first map", || known("map 0-5"));
    {
        // Only a change, of a version that the node has not got: it asks for everything.
        let mut desk = setup.manager.0.lock();
        desk.base_version = Some(7);
        desk.map.version = 8;
    }
    let heard = setup.manager.0.lock().heartbeats.len();
    eventually("more heartbeats", || setup.manager.0.lock().heartbeats.len() > heard + 3);
    assert!(setup.manager.0.lock().heartbeats[heard + 2].map_version == 0, "it has not asked for everything");
    assert!(!known("map 0-5"), "it does not know what is in version 8");
    setup.manager.0.lock().base_version = None;
    eventually("the whole map", || known("map 0-8"));
}

/// A role that can only be built once the node's id is known would never learn of it; its disks would stay unknown.
#[test]
fn roles_join_late() {
    let setup = start(Vec::new());
    setup.agent.wait_registered(PATIENCE).expect("registered");
    let meta = Arc::new(Role::default());
    setup.agent.join(meta.clone());
    eventually("the map", || meta.log.lock().len() == 2);
    assert_eq!(*meta.log.lock(), ["n16 i1 ", "map 0-5"]);
    let data = Arc::new(Role { disk: Some(DiskUuid([9; 16])), ..Role::default() });
    setup.agent.join(data.clone());
    eventually("its disk's id", || data.log.lock().len() == 2);
    assert_eq!(*data.log.lock(), ["n16 i2 d100", "map 0-5"]);
}

/// A process that stops would hang on a manager that does not answer.
#[test]
fn stops_while_nobody_answers() {
    let client = Client::with_threads(1, ClientConfig::default(), Identity::client()).expect("threads");
    let leader = LeaderClient::new(client, "the manager", ["127.0.0.1:1".to_owned()]);
    let config =
        AgentConfig { call_deadline: Duration::from_secs(3600), ..AgentConfig::new(DiskUuid([3; 16]), "127.0.0.1:1") };
    let agent = NodeAgent::start(config, leader, Identity::client(), Vec::new()).expect("a thread");
    let error = agent.wait_registered(Duration::from_millis(50)).expect_err("nobody is there").to_string();
    assert!(error.contains("127.0.0.1:1"), "{error}");
    agent.stop();
}

/// A setting would count only after a restart, or roles would be bothered with each heartbeat.
#[test]
fn settings_are_told_when_they_change() {
    let role = Arc::new(Role::default());
    let setup = start(vec![role.clone()]);
    let told = || role.log.lock().iter().filter(|line| line.starts_with("settings")).cloned().collect::<Vec<_>>();
    let item = |value: &str| {
        vec![cairn_wire::manager::ConfigItem {
            key: "garbage_period".into(),
            value: value.into(),
            ..Default::default()
        }]
    };
    setup.manager.0.lock().settings = item("5s");
    eventually("the setting", || told() == ["settings Some(5s)"]);
    let heard = setup.manager.0.lock().heartbeats.len();
    eventually("more heartbeats", || setup.manager.0.lock().heartbeats.len() > heard + 3);
    setup.manager.0.lock().settings = item("7s");
    eventually("the change", || told() == ["settings Some(5s)", "settings Some(7s)"]);
    let late = Arc::new(Role::default());
    setup.agent.join(late.clone());
    eventually("who joins later", || late.log.lock().contains(&"settings Some(7s)".to_owned()));
}
