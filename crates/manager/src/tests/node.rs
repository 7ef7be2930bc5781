//! A node played by a test: registers, sends heartbeats, takes pushes, answers probes as told.
use super::cluster::{Managers, any_port, eventually, new_client, server_config, wait};
use cairn_rpc::{Identity, LeaderClient, LeaderError, Repeat, Reply, Request, Server, Service};
use cairn_types::{ClusterId, Epoch, ErrorCode, MemberState, NodeId};
use cairn_wire::Opcode;
use cairn_wire::common::Empty;
use cairn_wire::data::{ApplyPgsRequest, ApplyPgsResponse, ListChunksResponse, PgState};
use cairn_wire::error::WireError;
use cairn_wire::hello::PeerKind;
use cairn_wire::manager::{
    DiskReport, HeartbeatRequest, HeartbeatResponse, PartitionReport, PgReport, RegisterRequest, RegisterResponse,
};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// How it answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Mood {
    #[default]
    Well,
    /// Keeps requests without an answer, as a stopped process does.
    Hangs,
    /// Its disk has failed.
    DiskFailed,
    /// Takes no new states of groups.
    Refuses,
}

#[derive(Default)]
pub struct Desk {
    pub mood: Mood,
    /// Newest state of each group, as pushed or told with a heartbeat.
    pub pgs: BTreeMap<u32, PgState>,
    pub pushes: usize,
    pub probes: usize,
    /// What was asked while it hung.
    pub kept: Vec<Reply>,
}

impl Desk {
    fn take(&mut self, pg: PgState) {
        let known = self.pgs.entry(pg.pg).or_insert_with(|| pg.clone());
        if pg.epoch > known.epoch {
            *known = pg;
        }
    }
}

struct Port(Arc<Mutex<Desk>>);

impl Service for Port {
    fn call(&self, request: Request<'_>, reply: Reply) {
        let mut desk = self.0.lock();
        if desk.mood == Mood::Hangs {
            desk.kept.push(reply);
            return;
        }
        match Opcode::from_code(request.opcode) {
            Some(Opcode::Ping) => {
                desk.probes += 1;
                reply.ok(&Empty {}, ());
            }
            Some(Opcode::ApplyPgs) => {
                let push: ApplyPgsRequest = request.decode().expect("a push");
                assert!(push.term > 0);
                desk.pushes += 1;
                if desk.mood == Mood::Refuses {
                    let refused = push.pgs.iter().map(|pg| pg.pg).collect();
                    return reply.ok(&ApplyPgsResponse { refused }, ());
                }
                push.pgs.into_iter().for_each(|pg| desk.take(pg));
                reply.ok(&ApplyPgsResponse::default(), ());
            }
            Some(Opcode::ListChunks) => {
                desk.probes += 1;
                match desk.mood {
                    Mood::DiskFailed => reply.err(WireError::new(ErrorCode::DiskFailed, "sync failed")),
                    _ => reply.ok(&ListChunksResponse::default(), ()),
                }
            }
            Some(Opcode::GroupMembers) => reply.err(WireError::new(ErrorCode::NotFound, "no such group")),
            other => panic!("a node was asked {other:?}"),
        }
    }
}

/// A node.
pub struct Node {
    pub number: u8,
    pub roles: Vec<String>,
    pub desk: Arc<Mutex<Desk>>,
    pub given: RegisterResponse,
    pub map_version: u64,
    pub disks: Vec<DiskReport>,
    pub inodes: u64,
    server: Option<Server>,
    client: LeaderClient,
    address: String,
}

impl Node {
    /// A node that has not registered yet. Racks are a, b, c in turn, every node has its own host.
    pub fn new(managers: &Managers, number: u8, role: &str, disks: u8) -> Self {
        let identity = Identity::new(ClusterId::NONE, PeerKind::Server, NodeId(0));
        let client = LeaderClient::new(new_client(identity), "the manager", managers.addresses.clone());
        let disk = |i: u8| DiskReport {
            uuid: vec![number, i, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
            path: format!("/data/{number}/{i}"),
            total_bytes: 1 << 40,
            free_bytes: 1 << 39,
            ..DiskReport::default()
        };
        let mut node = Self {
            number,
            roles: vec![role.to_string()],
            desk: Arc::default(),
            given: RegisterResponse::default(),
            map_version: 0,
            disks: (0..disks).map(disk).collect(),
            inodes: 1,
            server: None,
            client,
            address: String::new(),
        };
        node.listen();
        node
    }

    /// A registered one.
    pub fn start(managers: &Managers, number: u8, role: &str, disks: u8) -> Self {
        let mut node = Self::new(managers, number, role, disks);
        node.register().expect("registered");
        node
    }

    /// A node that has not registered yet, where another one was.
    pub fn at_the_place_of(managers: &Managers, number: u8, lost: &Node) -> Self {
        let mut node = Self::new(managers, number, "data", 1);
        node.address.clone_from(&lost.address);
        node
    }

    /// A new node under the address of one that is lost with all that it had.
    pub fn in_place_of(managers: &Managers, number: u8, lost: &Node) -> Self {
        let mut node = Self::at_the_place_of(managers, number, lost);
        node.register().expect("registered");
        node
    }

    pub fn listen(&mut self) {
        let identity = Identity::new(ClusterId::NONE, PeerKind::Server, NodeId(0));
        let port = Arc::new(Port(self.desk.clone()));
        let server = Server::bind(any_port(), server_config(), identity, port).expect("a port");
        self.address = server.local_addr().to_string();
        self.server = Some(server);
    }

    /// Its process dies: nobody listens any more.
    pub fn kill(&mut self) {
        let server = self.server.take().expect("it runs");
        self.desk.lock().kept.clear();
        server.shutdown(Duration::ZERO);
    }

    /// It starts again, on another port, and registers.
    pub fn restart(&mut self) {
        if self.server.is_some() {
            self.kill();
        }
        self.desk.lock().mood = Mood::Well;
        self.listen();
        self.register().expect("registered again");
    }

    pub fn id(&self) -> u32 {
        self.given.node
    }

    pub fn disk(&self) -> u32 {
        self.given.disks[0]
    }

    pub fn request(&self) -> RegisterRequest {
        RegisterRequest {
            node_uuid: vec![self.number; 16],
            node: self.given.node,
            roles: self.roles.clone(),
            address: self.address.clone(),
            http_address: String::new(),
            rack: ["a", "b", "c"][usize::from(self.number) % 3].into(),
            host: format!("host{}", self.number),
            disks: self.disks.clone(),
            version: "test".into(),
            managers: None,
            seen: None,
            things: None,
        }
    }

    pub fn register(&mut self) -> Result<(), LeaderError> {
        let request = self.request();
        let call = self.client.call(Opcode::Register, &request, super::cluster::PATIENCE, Repeat::Harmless);
        self.given = wait(call)?;
        for (disk, id) in self.disks.iter_mut().zip(&self.given.disks) {
            disk.disk = *id;
        }
        let map = self.given.map.clone().expect("a map comes along");
        assert_eq!(map.base_version, 0);
        self.map_version = map.version;
        let mut desk = self.desk.lock();
        map.pgs.into_iter().filter_map(|pg| pg.state).for_each(|pg| desk.take(pg));
        Ok(())
    }

    pub fn heartbeat_of(&self) -> HeartbeatRequest {
        let partitions = self.given.map.iter().flat_map(|map| &map.partitions);
        HeartbeatRequest {
            node: self.given.node,
            incarnation: self.given.incarnation,
            map_version: self.map_version,
            disks: self.disks.clone(),
            partitions: partitions
                .filter(|p| p.nodes.first() == Some(&self.given.node))
                .map(|p| PartitionReport {
                    partition: p.id,
                    leader: true,
                    term: 1,
                    inodes: self.inodes,
                    ..Default::default()
                })
                .collect(),
            ..HeartbeatRequest::default()
        }
    }

    pub fn send(&mut self, heartbeat: &HeartbeatRequest) -> HeartbeatResponse {
        let call = self.client.call(Opcode::Heartbeat, heartbeat, super::cluster::PATIENCE, Repeat::Harmless);
        let answer: HeartbeatResponse = wait(call).expect("an answer to a heartbeat");
        if let Some(map) = &answer.map {
            self.map_version = map.version;
            let mut desk = self.desk.lock();
            map.pgs.iter().filter_map(|pg| pg.state.clone()).for_each(|pg| desk.take(pg));
            drop(desk);
            // Partitions that are made later than the registration.
            if let Some(known) = &mut self.given.map {
                known.partitions.extend(map.partitions.iter().cloned());
            }
        }
        answer
    }

    pub fn heartbeat(&mut self) -> HeartbeatResponse {
        let heartbeat = self.heartbeat_of();
        self.send(&heartbeat)
    }

    /// Tells that its syncing members have caught up.
    pub fn catch_up(&mut self) {
        let mut heartbeat = self.heartbeat_of();
        let mine = self.given.disks.clone();
        for pg in self.desk.lock().pgs.values() {
            let syncing = u32::from(MemberState::Syncing.code());
            for member in pg.members.iter().filter(|m| mine.contains(&m.disk) && m.state == syncing) {
                heartbeat.pgs.push(PgReport {
                    disk: member.disk,
                    pg: pg.pg,
                    epoch: pg.epoch,
                    caught_up: true,
                    ..PgReport::default()
                });
            }
        }
        self.send(&heartbeat);
    }
}

/// State of the member on `disk`.
pub fn member(pg: &PgState, disk: u32) -> MemberState {
    let member = pg.members.iter().find(|m| m.disk == disk).expect("a member");
    MemberState::from_code(member.state as u8).expect("a state")
}

/// Waits until a push (or a heartbeat's answer) brought this group to at least this epoch.
pub fn told(node: &Node, pg: u32, epoch: Epoch) -> PgState {
    eventually("the new epoch to be told", || {
        node.desk.lock().pgs.get(&pg).filter(|pg| pg.epoch >= epoch.get()).cloned()
    })
}

/// Heartbeats of many nodes.
pub fn beat(nodes: &mut [Node]) {
    for node in nodes {
        assert!(!node.heartbeat().register_again, "n{} is told to register again", node.id());
    }
}
