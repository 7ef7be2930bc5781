//! Tenants of one cluster: what each kind of key may ask, see and do, held against the table of operations over every
//! port.
use crate::secure::{file, give_keys, key};
use crate::support::{Cluster, Shape, text};
use crate::wait::until_told;
use cairn_client::ConnectOptions;
use cairn_rpc::{CallError, CallOptions, Client, Identity, NotSent};
use cairn_security::{Authority, KeyFile, Tls, Wanted, write_secret};
use cairn_types::{ErrorCode, NodeId};
use cairn_wire::Opcode;
use cairn_wire::audience::{Caller, Reach, Roles};
use cairn_wire::common::{Credentials, Extent};
use cairn_wire::data::{AllocateRequest, ChunkHeader, SyncRequest};
use cairn_wire::error::WireError;
use cairn_wire::manager::{
    CancelJobRequest, ClusterMap, EnsurePgsRequest, GetMapRequest, HeartbeatRequest, ListJobsRequest, ListJobsResponse,
    OpenSessionRequest, OpenSessionResponse, ReportMemberRequest, StartJobRequest, StatusRequest, StatusResponse,
};
use cairn_wire::meta::{
    CreateRequest, DiscardRequest, GetattrRequest, MetaHeader, OpenAppendRequest, ReadStaleRequest,
};
use cairn_wire::raft::{RaftBatch, RaftMessage};
use cairn_wire::rights::Rights;
use prost::Message;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const SHAPE: Shape = Shape { managers: 1, metas: 1, datas: 3, racks: 3 };
const DEADLINE: Duration = Duration::from_secs(20);
/// An id that nothing has.
const NONE: u32 = 999_999;

/// Who asks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Who {
    /// Of the volume docs.
    Owner,
    /// The same, who may only read.
    Reader,
    /// Of the volume media.
    Other,
    Admin,
    /// A server with the role data.
    Node,
    /// One with the role meta.
    Meta,
    /// Without a key.
    Nobody,
    /// Of the volume docs, until a moment ago.
    Revoked,
}

/// What the table says: the code of the refusal, or none.
fn wanted(opcode: Opcode, who: Who) -> Option<ErrorCode> {
    let audience = opcode.audience();
    let caller = match who {
        Who::Owner | Who::Reader | Who::Other => Caller::Client,
        Who::Admin => Caller::Admin,
        Who::Node => Caller::Node(Roles::DATA),
        Who::Meta => Caller::Node(Roles::META),
        Who::Revoked | Who::Nobody => return Some(ErrorCode::NotPermitted),
    };
    match audience {
        audience if !audience.has(caller) => Some(ErrorCode::NotPermitted),
        // Of these a server gives a layout or places, and these requests give none.
        _ if matches!(who, Who::Node | Who::Meta) && matches!(opcode, Opcode::Setattr | Opcode::Publish) => {
            Some(ErrorCode::NotPermitted)
        }
        audience if audience.reach() == Some(Reach::Write) && who == Who::Reader => Some(ErrorCode::KeyForbids),
        audience if matches!(audience.reach(), Some(Reach::Read | Reach::Write)) && who == Who::Other => {
            Some(match opcode {
                Opcode::EnsurePgs | Opcode::StartJob => ErrorCode::UnknownVolume,
                Opcode::CancelJob => ErrorCode::NotFound,
                Opcode::ReportMember => ErrorCode::UnknownPg,
                _ if opcode.served_by() == Roles::DATA => ErrorCode::UnknownPg,
                _ => ErrorCode::UnknownPartition,
            })
        }
        _ => None,
    }
}

/// What there is of one volume.
#[derive(Clone)]
struct Place {
    volume: u32,
    partition: u32,
    disk: u32,
    pg: u32,
    job: u64,
}

impl Place {
    fn nowhere(of: &Self) -> Self {
        Self { volume: NONE, partition: NONE, disk: of.disk, pg: NONE, job: u64::from(NONE) }
    }

    fn header(&self) -> MetaHeader {
        let who = Some(Credentials::default());
        MetaHeader { volume: self.volume, partition: self.partition, session: 77, slot: 0, sequence: 1, who }
    }
}

/// The servers by what they serve.
struct Servers {
    manager: String,
    meta: String,
    data: String,
}

impl Servers {
    fn of(&self, opcode: Opcode) -> &str {
        match opcode.served_by() {
            Roles::DATA => &self.data,
            Roles::META => &self.meta,
            _ => &self.manager,
        }
    }
}

/// One who asks, with connections of his own.
struct Asker {
    client: Client,
    runtime: tokio::runtime::Runtime,
}

impl Asker {
    fn new(key: Option<&Path>) -> Self {
        let tls = key.map(|path| Arc::new(Tls::of_client(&KeyFile::read_any(path).expect("a key")).expect("usable")));
        let client = Client::with_threads(1, Default::default(), Identity::client_with_key(tls)).expect("threads");
        Self { client, runtime: tokio::runtime::Runtime::new().expect("a runtime") }
    }

    fn call(&self, address: &str, opcode: Opcode, message: &impl Message) -> Result<(), WireError> {
        let options = CallOptions::new(DEADLINE);
        match self.runtime.block_on(self.client.call(address, opcode.code(), message, (), options)) {
            Ok(_) => Ok(()),
            Err(CallError::Remote(error) | CallError::NotSent { cause: NotSent::Refused(error), .. }) => Err(error),
            Err(other) => panic!("{} was not answered: {other}", opcode.name()),
        }
    }

    /// Asks about a place, with no more in the request than names it.
    fn ask(&self, servers: &Servers, opcode: Opcode, place: &Place) -> Result<(), WireError> {
        let address = servers.of(opcode);
        let (disk, pg, volume) = (place.disk, place.pg, place.volume);
        let header = Some(place.header());
        match opcode {
            Opcode::EnsurePgs => {
                self.call(address, opcode, &EnsurePgsRequest { volume, scheme: 3, ..EnsurePgsRequest::default() })
            }
            Opcode::StartJob => self.call(address, opcode, &StartJobRequest { volume, ..Default::default() }),
            Opcode::CancelJob => self.call(address, opcode, &CancelJobRequest { job: place.job, who: None }),
            Opcode::ReportMember => self.call(address, opcode, &ReportMemberRequest { pg, ..Default::default() }),
            Opcode::Allocate | Opcode::ListChunks => {
                self.call(address, opcode, &AllocateRequest { disk, pg, ..Default::default() })
            }
            Opcode::ReadStale => {
                let request = GetattrRequest { header: header.clone(), inode: 0 };
                let request = message_bytes(&request);
                let opcode_within = u32::from(Opcode::Getattr.code());
                self.call(address, opcode, &ReadStaleRequest { header, opcode: opcode_within, request, age_ms_max: 0 })
            }
            _ if opcode.served_by() == Roles::DATA => {
                let chunk = Some(ChunkHeader { disk, pg, index: 0, epoch: 0, session: 77 });
                self.call(address, opcode, &SyncRequest { chunk, chain: Vec::new() })
            }
            _ if opcode.served_by() == Roles::META => self.call(address, opcode, &GetattrRequest { header, inode: 0 }),
            _ => self.call(address, opcode, &StatusRequest {}),
        }
    }
}

fn message_bytes(message: &impl Message) -> Vec<u8> {
    message.encode_to_vec()
}

/// Without the numbers in it.
fn shape(text: &str) -> String {
    text.chars().filter(|c| !c.is_ascii_digit()).collect()
}

/// A cluster with two tenants that have a file each.
fn two_tenants() -> Cluster {
    let mut cluster = Cluster::prepare(SHAPE);
    give_keys(&mut cluster);
    for (name, rights) in [
        ("owner", &["--volume", "docs"][..]),
        ("reader", &["--volume", "docs:ro"]),
        ("other", &["--volume", "media:rw"]),
        ("all", &["--volume", "docs", "--squash", "all"]),
        ("eve", &["--volume", "docs"]),
        ("root", &["--volume", "docs", "--squash", "none"]),
    ] {
        key(&cluster, &[&["client", name, "--ca", "authority"], rights].concat());
    }
    cluster.key = Some(file(&cluster, "ops"));
    cluster.start_all();
    cluster.wait_volume();
    let local = cluster.path("local");
    fs::write(&local, vec![7; 100_000]).expect("a file");
    for volume in ["docs", "media"] {
        cluster.ok(&["admin", "volume", "create", volume]);
        cluster.ok(&["fs", "put", local.to_str().expect("UTF-8"), &format!("{volume}:/{volume}-file")]);
    }
    cluster
}

fn sees(cluster: &Cluster, name: &str) -> (ClusterMap, ClusterMap, StatusResponse, ListJobsResponse) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let tls = Tls::of_client(&KeyFile::read(&file(cluster, name)).expect("a key")).expect("usable");
        let mut options = ConnectOptions::new(cluster.address.split(',').map(str::to_owned).collect());
        options.key = cairn_client::key::Key::Given(Arc::new(tls));
        let client = cairn_client::Client::connect(options).await.expect("connected");
        let map = client.manager("map", Opcode::GetMap, &GetMapRequest::default()).await.expect("a map");
        let session: OpenSessionResponse =
            client.manager("session", Opcode::OpenSession, &OpenSessionRequest::default()).await.expect("a session");
        let status = client.manager("status", Opcode::Status, &StatusRequest {}).await.expect("a status");
        let jobs = client.manager("jobs", Opcode::ListJobs, &ListJobsRequest::default()).await.expect("jobs");
        (map, session.map.expect("a map"), status, jobs)
    })
}

fn names(map: &ClusterMap) -> BTreeSet<&str> {
    map.volumes.iter().map(|volume| volume.name.as_str()).collect()
}

/// Another tenant would see which volumes there are, where their bytes lie, or what is done with them.
#[test]
fn answers_show_each_key_its_own_volumes() {
    let cluster = two_tenants();
    for volume in ["docs", "media"] {
        cluster.ok(&["fs", "layout", "convert", "r2", &format!("{volume}:/")]);
    }
    let (all, _, _, jobs) = sees(&cluster, "ops");
    assert_eq!(names(&all), BTreeSet::from(["default", "docs", "media"]));
    assert_eq!(jobs.jobs.len(), 2);
    for (name, own) in [("owner", "docs"), ("reader", "docs"), ("other", "media")] {
        let id = all.volumes.iter().find(|volume| volume.name == own).expect("it is there").id;
        let (map, session, status, jobs) = sees(&cluster, name);
        assert!(!map.pgs.is_empty() && !map.nodes.is_empty() && !map.disks.is_empty(), "{name} can work");
        let of_status = status.map.expect("a map");
        for map in [&map, &session, &of_status] {
            assert_eq!(names(map), BTreeSet::from([own]), "{name}");
            assert!(map.partitions.iter().all(|partition| partition.volume == id), "{name}");
            let volume = |pg: &cairn_wire::manager::Pg| pg.state.as_ref().map(|state| state.volume);
            assert!(map.pgs.iter().all(|pg| volume(pg) == Some(id)), "{name}");
            assert!(map.disks.iter().all(|disk| disk.path.is_empty() && disk.problem.is_empty()), "{name}");
        }
        let partitions: BTreeSet<u32> = map.partitions.iter().map(|partition| partition.id).collect();
        assert!(status.partitions.iter().all(|report| partitions.contains(&report.partition)), "{name}");
        assert_eq!(jobs.jobs.iter().map(|job| job.volume).collect::<Vec<_>>(), [id], "{name}");
    }
    cluster.check_logs();
}

fn place_of(map: &ClusterMap, jobs: &ListJobsResponse, name: &str) -> Place {
    let volume = map.volumes.iter().find(|volume| volume.name == name).expect("it is there").id;
    let partition = map.partitions.iter().find(|partition| partition.volume == volume).expect("it has one").id;
    let state = map.pgs.iter().filter_map(|pg| pg.state.as_ref()).find(|state| state.volume == volume);
    let state = state.expect("it has a group");
    let job = jobs.jobs.iter().find(|job| job.volume == volume).map_or(0, |job| job.id);
    Place { volume, partition, disk: state.members[0].disk, pg: state.pg, job }
}

fn servers_of(map: &ClusterMap, cluster: &Cluster, place: &Place) -> Servers {
    let address = |id: u32| map.nodes.iter().find(|node| node.id == id).expect("a node").address.clone();
    let disk = map.disks.iter().find(|disk| disk.id == place.disk).expect("a disk");
    let partition = map.partitions.iter().find(|partition| partition.id == place.partition).expect("a partition");
    Servers { manager: cluster.address.clone(), meta: address(partition.nodes[0]), data: address(disk.node) }
}

/// Somebody could do over one port what the table says that he may not; or could not work with what is his.
#[test]
fn every_operation_is_answered_to_each_key_as_the_table_says() {
    let cluster = two_tenants();
    cluster.ok(&["fs", "layout", "convert", "r2", "docs:/"]);
    let (map, _, _, jobs) = sees(&cluster, "ops");
    let docs = place_of(&map, &jobs, "docs");
    let servers = servers_of(&map, &cluster, &docs);
    let asker = |name: &str| Asker::new(Some(&file(&cluster, name)));
    let revoked = asker("eve");
    let all = [&servers.manager, &servers.meta, &servers.data];
    for address in all {
        revoked.call(address, Opcode::Ping, &StatusRequest {}).expect("not yet");
    }
    fs::write(cluster.path("revoked"), "eve\n").expect("a list");
    for address in all {
        let out = || revoked.call(address, Opcode::Ping, &StatusRequest {}).is_err();
        until_told("eve to be out", out, || address.clone());
    }
    let askers = [
        (Who::Revoked, revoked),
        (Who::Other, asker("other")),
        (Who::Reader, asker("reader")),
        (Who::Node, asker("data1")),
        (Who::Meta, asker("meta1")),
        (Who::Nobody, Asker::new(None)),
        (Who::Admin, asker("ops")),
        (Who::Owner, asker("owner")),
    ];
    let (mut refused, mut through) = (0, 0);
    for (who, asker) in &askers {
        for opcode in Opcode::ALL {
            // A key that names users leads no directories, wherever it asks: `rights` has a test of that.
            if *opcode == Opcode::Batch {
                continue;
            }
            let (wanted, name) = (wanted(*opcode, *who), opcode.name());
            // What is allowed is done: changes of the cluster are not for this test to make.
            if wanted.is_none() && opcode.audience().reach().is_none() {
                continue;
            }
            let answer = asker.ask(&servers, *opcode, &docs).err();
            match wanted {
                Some(code) => {
                    let error = answer.unwrap_or_else(|| panic!("{name} was done for {who:?}"));
                    assert_eq!(error.code, code, "{name} for {who:?}: {error}");
                    refused += 1;
                }
                None => {
                    use ErrorCode::{KeyForbids, UnknownPartition, UnknownPg, UnknownVolume};
                    let kept_out = |error: &WireError| {
                        error.message.contains("the key of")
                            || matches!(error.code, KeyForbids | UnknownPartition | UnknownPg | UnknownVolume)
                    };
                    assert!(!answer.as_ref().is_some_and(kept_out), "{name} for {who:?}: {answer:?}");
                    through += 1;
                }
            }
            if let (Who::Other, Some(_), Some(_)) = (who, wanted, opcode.audience().reach()) {
                let theirs = asker.ask(&servers, *opcode, &docs).expect_err("refused");
                let nothing = asker.ask(&servers, *opcode, &Place::nowhere(&docs)).expect_err("there is none");
                assert_eq!(
                    (theirs.code, shape(&theirs.message)),
                    (nothing.code, shape(&nothing.message)),
                    "{name}: what is another's is told apart from what is not there"
                );
            }
        }
    }
    assert!(refused > 550 && through > 250, "{refused} refused, {through} let through");
    who_is_not_let_in(&cluster, all);
    places_of_others(&cluster, &servers, &map, &docs);
    servers_among_themselves(&cluster, &servers);
    cluster.ok(&["fs", "rm", "--skip-trash", "docs:/docs-file"]);
    audit_of(&cluster);
    cluster.check_logs();
}

/// Those without a key, and those whose key ended.
fn who_is_not_let_in(cluster: &Cluster, all: [&String; 3]) {
    let authority = Authority::open(&cluster.path("authority")).expect("the authority");
    let ended = cluster.path("ended.key");
    let (name, caller) = ("ended".to_owned(), Caller::Client);
    let wanted = Wanted { name, caller, node: NodeId(0), life: 0, rights: Rights::everything(), again: false };
    write_secret(&ended, &authority.issue(&wanted).expect("a key"), false).expect("written");
    // Its last second counts.
    let until = KeyFile::read_any(&ended).expect("a key").holder().until;
    let over = || cairn_security::now() > until;
    until_told("the key's end", over, String::new);
    for (key, why) in [(None, "--key"), (Some(ended.as_path()), "it is over")] {
        let asker = Asker::new(key);
        for address in all {
            let error = asker.call(address, Opcode::Ping, &StatusRequest {}).expect_err("nobody is let in");
            assert_eq!(error.code, ErrorCode::NotPermitted);
            assert!(error.message.contains(why), "{error}");
        }
    }
    let said = text(&cluster.command(&["fs", "ls", "/"]).env("CAIRN_KEY", &ended).output().expect("it runs").stderr);
    assert!(said.contains("ended on"), "{said}");
}

/// A partition takes no places of another volume, from whomever.
fn places_of_others(cluster: &Cluster, servers: &Servers, map: &ClusterMap, docs: &Place) {
    let media = place_of(map, &ListJobsResponse::default(), "media");
    let header = Some(docs.header());
    let extents = vec![Extent { length: 4096, pg: media.pg, index: 0, ..Extent::default() }];
    let create = CreateRequest {
        header: header.clone(),
        parent: 1,
        name: b"stolen".to_vec(),
        mode: 0o100_644,
        size: 4096,
        extents: extents.clone(),
        written_by: 77,
        ..Default::default()
    };
    let discard = DiscardRequest { header: header.clone(), extents, written_by: 77, ..Default::default() };
    let append = OpenAppendRequest { header, inode: 2, pg: media.pg, ..Default::default() };
    for (name, code) in [("root", ErrorCode::Overloaded), ("ops", ErrorCode::BadRequest)] {
        let asker = Asker::new(Some(&file(cluster, name)));
        for error in [
            asker.call(&servers.meta, Opcode::Create, &create),
            asker.call(&servers.meta, Opcode::Discard, &discard),
            asker.call(&servers.meta, Opcode::OpenAppend, &append),
        ] {
            let error = error.expect_err("it is another volume's");
            assert_eq!(error.code, code, "{name}: {error}");
            assert!(error.message.contains("placement group"), "{error}");
        }
    }
}

/// A stolen key of one server would speak for another one.
fn servers_among_themselves(cluster: &Cluster, servers: &Servers) {
    let meta = Asker::new(Some(&file(cluster, "meta1")));
    let from = crate::secure::node_id(cluster, "meta1").into();
    let batch = |group| RaftBatch {
        messages: vec![RaftMessage { group, from, to: 1, ..Default::default() }],
        ..Default::default()
    };
    let error = meta.call(&servers.manager, Opcode::RaftMessages, &batch(0)).expect_err("it is no manager");
    assert!(error.code == ErrorCode::NotPermitted && error.message.contains("role manager"), "{error}");
    let data = Asker::new(Some(&file(cluster, "data1")));
    let beat = HeartbeatRequest { node: 1, ..Default::default() };
    let error = data.call(&servers.manager, Opcode::Heartbeat, &beat).expect_err("it is no manager");
    assert!(error.code == ErrorCode::NotPermitted && error.message.contains("does not speak for"), "{error}");
    // Of its own kind, too, once nodes are bound to the keys that they showed.
    let bound = || cluster.read_log("manager1").matches("bound to its key").count();
    until_told("all nodes to be bound", || bound() >= 4, || bound().to_string());
    let data2 = crate::secure::node_id(cluster, "data2");
    let beat = HeartbeatRequest { node: data2, ..Default::default() };
    let error = data.call(&servers.manager, Opcode::Heartbeat, &beat).expect_err("it is another node");
    assert!(error.code == ErrorCode::NotPermitted, "{error}");
    assert!(error.message.contains("data1") || error.message.contains("the key of data2"), "{error}");
    let other = Asker::new(Some(&file(cluster, "data2")));
    if let Err(error) = other.call(&servers.manager, Opcode::Heartbeat, &beat) {
        assert!(error.code != ErrorCode::NotPermitted, "{error}");
    }
}

/// The log of the servers tells of all this.
fn audit_of(cluster: &Cluster) {
    let told = |name: &str| fs::read_to_string(cluster.path(&format!("{name}.audit"))).expect("an audit log");
    for server in ["manager1", "meta1"] {
        let said = || told(server);
        for what in ["\"event\":\"login\"", "\"event\":\"refused\"", "\"name\":\"other\"", "\"name\":\"eve\""] {
            until_told(what, || said().lines().any(|line| line.contains(what)), said);
        }
    }
    let is_removal = |line: &str| line.contains("\"removal\"") && line.contains("Unlink") && line.contains("\"ops\"");
    assert!(told("meta1").lines().any(is_removal), "{}", told("meta1"));
    assert!(
        told("manager1")
            .lines()
            .any(|line| line.contains("\"admin\"") && line.contains("CreateVolume") && line.contains("volume docs"))
    );
}

/// With most keys root is nobody: the commands would look for root's trash, which nobody may not enter.
fn keeps_what_it_removes(cluster: &Cluster, name: &str, local: &str) {
    let [of, other] = ["", "-2"].map(|end| format!("docs:/open/{name}{end}"));
    let file = format!("{of}/file");
    cluster.ok(&["fs", "mkdir", &of]);
    cluster.ok(&["fs", "put", local, &file]);
    cluster.ok(&["fs", "put", local, &file]);
    cluster.ok(&["fs", "cp", "docs:/docs-file", &file]);
    cluster.ok(&["fs", "clone", &of, &other]);
    cluster.ok(&["fs", "mv", &format!("{other}/file"), &file]);
    cluster.ok(&["fs", "rm", "-r", &of]);
    assert!(cluster.ok(&["fs", "trash", "ls", "docs:/"]).contains(&format!("/open/{name}")), "{name}");
    cluster.ok(&["fs", "trash", "restore", &of]);
    cluster.ok(&["fs", "stat", &file]);
}

/// Root on a tenant's machine would be root in his volume unless somebody said so; or a reader could write.
#[test]
fn commands_do_with_a_key_what_it_says() {
    let mut cluster = two_tenants();
    let local = cluster.path("local");
    let local = local.to_str().expect("UTF-8").to_owned();
    let with = |cluster: &mut Cluster, name: &str| cluster.key = Some(file(cluster, name));
    with(&mut cluster, "root");
    cluster.ok(&["fs", "mkdir", "-m", "777", "docs:/open"]);
    cluster.ok(&["fs", "mkdir", "docs:/closed"]);
    with(&mut cluster, "owner");
    cluster.ok(&["fs", "put", &local, "docs:/open/mine"]);
    assert!(cluster.ok(&["--json", "fs", "stat", "docs:/open/mine"]).contains("65534"), "root is made nobody");
    cluster.fails(&["fs", "put", &local, "docs:/closed/mine"], 5);
    with(&mut cluster, "reader");
    assert_eq!(cluster.cairn(&["fs", "cat", "docs:/docs-file"]).stdout, vec![7; 100_000]);
    for args in [
        &["fs", "put", &local, "docs:/open/no"][..],
        &["fs", "rm", "docs:/open/mine"],
        &["fs", "mkdir", "docs:/open/d"],
    ] {
        let said = cluster.fails(args, 5);
        assert!(said.contains("may only read") || said.contains("may read this volume"), "{said}");
    }
    for (name, theirs) in [("owner", "media"), ("reader", "media"), ("other", "docs"), ("other", "default")] {
        with(&mut cluster, name);
        let said = cluster.fails(&["fs", "ls", &format!("{theirs}:/")], 3);
        assert!(said.contains("cairn key client"), "{said}");
        assert!(!cluster.ok(&["admin", "status"]).contains(theirs), "{name}");
    }
    for name in ["owner", "all", "root"] {
        with(&mut cluster, name);
        keeps_what_it_removes(&cluster, name, &local);
    }
    assert!(cluster.ok(&["fs", "ls", "-R", "docs:/"]).contains("mine"));
    cluster.check_logs();
}
