//! Who may, what is passed on, and what becomes of it.
use super::*;
use crate::{ClientConfig, Identity, Reply, Request, Server, ServerConfig, Service};
use cairn_types::{ClusterId, NodeId};
use cairn_wire::common::Empty;
use cairn_wire::hello::PeerKind;
use cairn_wire::manager::{DeleteVolumeRequest, SetConfigResponse};
use parking_lot::Mutex;

/// A manager that notes who asked for what.
#[derive(Default)]
struct Manager {
    asked: Mutex<Vec<(u16, String, PeerKind)>>,
}

impl Service for Manager {
    fn call(&self, request: Request<'_>, reply: Reply) {
        let name = request.decode::<DeleteVolumeRequest>().map(|q| q.name).unwrap_or_default();
        self.asked.lock().push((request.opcode, name.clone(), request.peer.hello.kind));
        match name.as_str() {
            "mistaken" => reply.ok(&SetConfigResponse { mistakes: vec!["x".into()] }, ()),
            _ => reply.err(WireError::not_leader(Some("elsewhere:1".to_owned()))),
        }
    }
}

const DEADLINE: Duration = Duration::from_secs(120);

struct Setup {
    dir: tempfile::TempDir,
    manager: Arc<Manager>,
    server: Server,
    runtime: tokio::runtime::Runtime,
}

fn setup() -> Setup {
    let manager = Arc::new(Manager::default());
    let identity = Identity::new(ClusterId([3; 16]), PeerKind::Server, NodeId(1));
    let at = "127.0.0.1:0".parse().expect("an address");
    let server = Server::bind(at, ServerConfig::default(), identity, manager.clone()).expect("a free port");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    Setup { dir: tempfile::tempdir().expect("a directory"), manager, server, runtime }
}

fn client(cluster: ClusterId) -> Client {
    let identity = Identity::new(cluster, PeerKind::Server, NodeId(2));
    let config = ClientConfig { connect_timeout: DEADLINE, ..ClientConfig::default() };
    Client::with_threads(1, config, identity).expect("a client")
}

fn own_uid() -> u32 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").expect("this process").uid()
}

impl Setup {
    fn ask(&self, socket: &Path, opcode: Opcode, name: &str) -> io::Result<Result<Bytes, CallError>> {
        let request = DeleteVolumeRequest { name: name.into(), force: true };
        let to = self.server.local_addr().to_string();
        self.runtime.block_on(relay(socket, &to, opcode, request.encode_to_vec(), DEADLINE))
    }
}

/// A change would be lost, come twice, or come as from a stranger; and its refusal lose the hint where the leader is.
#[test]
fn changes_are_passed_on_as_a_servers_and_answers_come_back() {
    let setup = setup();
    let socket = AdminSocket::start(setup.dir.path(), own_uid(), client(ClusterId([3; 16]))).expect("a socket");
    let answer = setup.ask(socket.path(), Opcode::SetConfig, "mistaken").expect("a socket").expect("an answer");
    assert_eq!(SetConfigResponse::decode(answer).expect("a message").mistakes, ["x"]);
    match setup.ask(socket.path(), Opcode::DeleteVolume, "v").expect("a socket") {
        Err(CallError::Remote(error)) => {
            assert_eq!((error.code, error.leader_hint.as_deref()), (ErrorCode::NotLeader, Some("elsewhere:1")));
        }
        other => panic!("{other:?}"),
    }
    let asked = std::mem::take(&mut *setup.manager.asked.lock());
    let of_server = |opcode: Opcode, name: &str| (opcode.code(), name.to_owned(), PeerKind::Server);
    assert_eq!(asked, [of_server(Opcode::SetConfig, "mistaken"), of_server(Opcode::DeleteVolume, "v")]);
    // What is no change of the cluster would otherwise come as a server's: reports, Raft messages.
    for opcode in Opcode::ALL.iter().filter(|opcode| !opcode.is_admin_change()) {
        match setup.ask(socket.path(), *opcode, "v").expect("a socket") {
            Err(CallError::Remote(error)) => assert_eq!(error.code, ErrorCode::BadRequest, "{}", opcode.name()),
            other => panic!("{}: {other:?}", opcode.name()),
        }
    }
    assert!(setup.manager.asked.lock().is_empty(), "nothing else is passed on");
    let path = socket.path().to_path_buf();
    drop(socket);
    assert!(!path.exists() && setup.ask(&path, Opcode::DeleteVolume, "v").is_err(), "it ends with its server");
}

/// Whoever is asked about nobody would be told "done".
#[test]
fn what_was_not_done_is_told_as_such() {
    let setup = setup();
    // Longer than an address of a socket may be.
    let deep = setup.dir.path().join("d".repeat(120));
    std::fs::create_dir(&deep).expect("a directory");
    let socket = AdminSocket::start(&deep, own_uid(), client(ClusterId([4; 16]))).expect("a socket");
    match setup.ask(socket.path(), Opcode::DeleteVolume, "v").expect("a socket") {
        Err(CallError::Remote(error)) => assert_eq!(error.code, ErrorCode::WrongCluster, "{error}"),
        other => panic!("{other:?}"),
    }
    let gone = std::net::TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a port").to_string();
    let to_nobody = relay(socket.path(), &gone, Opcode::SetConfig, Empty {}.encode_to_vec(), DEADLINE);
    match setup.runtime.block_on(to_nobody).expect("a socket") {
        Err(error @ CallError::NotSent { .. }) => assert!(error.to_string().contains(&gone), "{error}"),
        other => panic!("{other:?}"),
    }
    // One that a killed server left.
    drop(socket);
    let left = std::os::unix::net::UnixListener::bind(setup.dir.path().join(SOCKET_FILE)).expect("a socket");
    drop(left);
    let socket = AdminSocket::start(setup.dir.path(), own_uid(), client(ClusterId([3; 16]))).expect("it is replaced");
    assert!(setup.ask(socket.path(), Opcode::SetConfig, "mistaken").expect("a socket").is_ok());
}

/// Anybody with an account could delete volumes.
#[test]
fn others_than_root_and_the_servers_user_are_refused() {
    assert!(may(0, 990) && may(990, 990) && may(0, 0));
    assert!(!may(1000, 990) && !may(65534, 0) && !may(1000, 0));
    if own_uid() == 0 {
        eprintln!("root may everything: the socket is tried with another user by the tests of whole processes");
        return;
    }
    let setup = setup();
    let socket = AdminSocket::start(setup.dir.path(), own_uid() + 1, client(ClusterId([3; 16]))).expect("a socket");
    match setup.ask(socket.path(), Opcode::DeleteVolume, "v").expect("a socket") {
        Err(CallError::Remote(error)) => assert_eq!(error.code, ErrorCode::NotPermitted, "{error}"),
        other => panic!("{other:?}"),
    }
    assert!(setup.manager.asked.lock().is_empty());
}
