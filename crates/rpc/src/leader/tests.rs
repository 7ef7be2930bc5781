//! A leader is found among real servers: by hints, by trying, after a change, and not forever.
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};

use cairn_env::buf::BufPool;
use cairn_types::ClusterId;
use cairn_wire::common::{Empty, ProcessStatsResponse};
use parking_lot::Mutex;

use super::*;
use crate::config::{ClientConfig, POOL_BYTES_MIN, ServerConfig};
use crate::identity::Identity;
use crate::server::{Reply, Request, Server, Service};

type Behaviour = Box<dyn Fn(usize) -> Result<ProcessStatsResponse, WireError> + Send>;

/// Answers call after call what its behaviour says.
struct Fake {
    calls: AtomicUsize,
    behaviour: Mutex<Behaviour>,
}

impl Service for Fake {
    fn call(&self, _: Request<'_>, reply: Reply) {
        let number = self.calls.fetch_add(1, Ordering::SeqCst);
        reply.result((self.behaviour.lock())(number));
    }
}

struct FakeServer {
    server: Server,
    fake: Arc<Fake>,
}

impl FakeServer {
    fn start(behaviour: impl Fn(usize) -> Result<ProcessStatsResponse, WireError> + Send + 'static) -> Self {
        let fake = Arc::new(Fake { calls: AtomicUsize::new(0), behaviour: Mutex::new(Box::new(behaviour)) });
        let config = ServerConfig { threads: 1, pool: BufPool::new(POOL_BYTES_MIN), ..ServerConfig::default() };
        let identity = Identity::new(ClusterId([7; 16]), cairn_wire::hello::PeerKind::Server, cairn_types::NodeId(1));
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        Self { server: Server::bind(any, config, identity, fake.clone()).expect("bind"), fake }
    }
    fn addr(&self) -> String {
        self.server.local_addr().to_string()
    }
    fn calls(&self) -> usize {
        self.fake.calls.load(Ordering::SeqCst)
    }
}

fn leads(pid: u32) -> Result<ProcessStatsResponse, WireError> {
    Ok(ProcessStatsResponse { pid, ..Default::default() })
}

fn client(addresses: Vec<String>) -> LeaderClient {
    let pool = BufPool::new(POOL_BYTES_MIN);
    let config = ClientConfig { pool, connect_timeout: LONG, ..ClientConfig::default() };
    let client = Client::with_threads(1, config, Identity::client()).expect("client");
    LeaderClient::new(client, "the manager", addresses)
}

fn call(client: &LeaderClient, deadline: Duration, repeat: Repeat) -> Result<ProcessStatsResponse, LeaderError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
    runtime.block_on(client.call(Opcode::ProcessStats, &Empty {}, deadline, repeat))
}

const LONG: Duration = Duration::from_secs(120);

/// Every call would go to a follower first if hints were not followed and remembered.
#[test]
fn hints_are_followed_and_kept() {
    let leader = FakeServer::start(|_| leads(2));
    let hint = leader.addr();
    let follower = FakeServer::start(move |_| Err(WireError::not_leader(Some(hint.clone()))));
    let client = client(vec![follower.addr()]);
    for _ in 0..3 {
        assert_eq!(call(&client, LONG, Repeat::Forbidden).map(|a| a.pid).expect("leader"), 2);
    }
    assert_eq!((follower.calls(), leader.calls()), (1, 3));
    assert_eq!(client.leader(), Some(leader.addr()));
}

/// A group whose members were changed would not be found again by who knew it before; or its request go round for ever
/// if nobody has it.
#[test]
fn who_has_it_no_more_is_not_the_last_that_is_asked() {
    let unknown = || Err(WireError::new(ErrorCode::UnknownPartition, "not served by this node"));
    let former = FakeServer::start(move |_| unknown());
    let leader = FakeServer::start(|_| leads(2));
    let client = client(vec![former.addr(), leader.addr()]);
    client.set_leader(former.addr());
    for _ in 0..3 {
        assert_eq!(call(&client, LONG, Repeat::Harmless).map(|a| a.pid).expect("leader"), 2);
    }
    assert!(former.calls() <= 2 && client.leader() == Some(leader.addr()));
    let nobody = self::client(vec![former.addr()]);
    let error = call(&nobody, LONG, Repeat::Harmless).expect_err("nobody has it");
    assert_eq!(error.code(), Some(ErrorCode::UnknownPartition));
}

/// An election in progress would fail every call if nobody asked again.
#[test]
fn waits_for_an_election_and_skips_the_dead() {
    let dead = FakeServer::start(|_| leads(0));
    let dead_addr = dead.addr();
    drop(dead);
    let late = FakeServer::start(|n| if n < 3 { Err(WireError::not_leader(None)) } else { leads(3) });
    let client = client(vec![dead_addr, late.addr()]);
    assert_eq!(call(&client, LONG, Repeat::Forbidden).map(|a| a.pid).expect("leader"), 3);
    assert_eq!(late.calls(), 4);
}

/// A caller would wait forever, or be told something that does not help, if nobody ever leads.
#[test]
fn nobody_leads_says_whom_to_look_at() {
    let follower = FakeServer::start(|_| Err(WireError::not_leader(None)));
    let client = client(vec![follower.addr()]);
    // A busy machine may need a longer deadline for a second round.
    for seconds in 1..20 {
        let before = follower.calls();
        let error = call(&client, Duration::from_secs(seconds), Repeat::Harmless).expect_err("nobody leads");
        assert!(matches!(error, LeaderError::NoLeader { .. }), "{error}");
        assert!(error.to_string().contains(&follower.addr()), "{error}");
        let calls = follower.calls() - before;
        assert!(calls < 200 * seconds as usize, "{calls} calls in {seconds} s");
        if calls >= 2 {
            return;
        }
    }
    panic!("nobody asked again");
}

/// Refusals by the leader are answers, not reasons to ask somebody else.
#[test]
fn refusals_are_final() {
    let refuse = || Err(WireError::new(ErrorCode::Exists, "volume a exists"));
    let (a, b) = (FakeServer::start(move |_| refuse()), FakeServer::start(move |_| refuse()));
    let client = client(vec![a.addr(), b.addr()]);
    // What may not be repeated is not asked elsewhere because an answer is late.
    assert_eq!(call(&client, LONG, Repeat::Forbidden).expect_err("refused").code(), Some(ErrorCode::Exists));
    assert_eq!(a.calls() + b.calls(), 1);
}

/// A node would send no heartbeats, and have no word of a manager, for the whole deadline of an attempt while another
/// one leads.
#[test]
fn a_leader_that_stands_still_is_not_waited_for_alone() {
    let still = std::net::TcpListener::bind("127.0.0.1:0").expect("bind");
    let still_addr = still.local_addr().expect("address").to_string();
    let follower = FakeServer::start(|_| Err(WireError::not_leader(None)));
    let leader = FakeServer::start(|_| leads(7));
    let client = client(vec![still_addr.clone(), follower.addr(), leader.addr()]);
    // All of this time would go to the first one. A busy machine may need all of it for the others as well: then once
    // more.
    let found = (0..30).find_map(|_| {
        client.set_leader(still_addr.clone());
        call(&client, ATTEMPT_MAX, Repeat::Harmless).map(|answer| answer.pid).ok()
    });
    assert_eq!(found, Some(7));
    assert_eq!(client.leader(), Some(leader.addr()), "and from then on it is asked first");
    // What may not be done twice goes to one of them only.
    client.set_leader(still_addr);
    let (before, asked) = (leader.calls(), Duration::from_millis(900));
    call(&client, asked, Repeat::Forbidden).expect_err("it does not answer");
    assert_eq!(leader.calls(), before);
}
