//! [`Server`]: listens, deals connections out to its threads, and hands requests to a [`Service`].
//!
//! Each thread runs a current-thread runtime and owns its connections. Requests are handed to the service on the
//! connection's own thread; answers may be given there and then, or later from any thread.
//! Not here: what a connection does (`conn.rs`), how answers get back to it (`reply.rs`).

mod accounts;
mod admission;
mod conn;
mod crowd;
mod greeter;
mod latency;
mod plain;
mod progress;
mod recorder;
mod reply;
mod seats;
mod shares;
mod stats;
mod thread;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::time::{Duration, Instant};

use bytes::Bytes;
use cairn_env::buf::AlignedBuf;
use cairn_types::{ErrorCode, NodeId, VolumeId};
use cairn_wire::Opcode;
use cairn_wire::audience::{Caller, Roles};
use cairn_wire::error::WireError;
use cairn_wire::frame::CallHeader;
use cairn_wire::hello::Hello;
use cairn_wire::holder::Holder;
use cairn_wire::protection::Protection;
use cairn_wire::rights::Rights;
use parking_lot::Mutex;

use accounts::Accounts;
pub use latency::{LATENCY_BOUNDS_US, Latency, LatencyOf};
use plain::Plain;
pub use plain::WithoutKey;
pub use recorder::RequestSink;
pub use reply::{Outcome, Reply, ReplyBatch};
use seats::Seats;
use shares::Shares;
pub use stats::{CloseReason, ServerStats};
use thread::ThreadHandle;

use crate::audit::{Audit, Refusal};
use crate::config::{GREETING_MAX, GREETING_MIN, GREETING_PART, POOL_BYTES_MIN, ServerConfig};
use crate::identity::Identity;
use crate::node_keys::NodeKeys;
use crate::socket;

/// Time that answers in the works get when a server is dropped without [`Server::shutdown`].
const DROP_GRACE: Duration = Duration::from_millis(100);

/// Who is at the other end of a connection.
#[derive(Debug, Clone)]
pub struct PeerInfo {
    /// Its address.
    pub addr: SocketAddr,
    /// What it said about itself.
    pub hello: Hello,
    /// The protocol version that both speak.
    pub version: u32,
    /// Whom its certificate names; `None`: it speaks without TLS.
    pub holder: Option<Holder>,
    /// How its connection keeps what goes over it, where it has a key.
    pub protection: Protection,
    /// Where it is told what this peer was refused.
    pub audit: Audit,
    /// Whose keys the nodes have.
    pub node_keys: Arc<NodeKeys>,
}

impl PeerInfo {
    /// Whose requests the service holds against the rights of their key, and these; `None`: there is nothing to look
    /// at.
    pub fn limits(&self) -> Option<(&str, &Rights)> {
        let holder = self.holder.as_ref()?;
        Some((&holder.name, holder.limits()?))
    }

    /// Whether nobody between it and this process can read or change what is said.
    pub fn is_private(&self) -> bool {
        self.holder.is_some() && self.protection == Protection::Private
    }

    /// The network that it comes from: an IPv4 address, or a /64, of which one machine has each address.
    pub fn site(&self) -> IpAddr {
        crowd::site(self.addr.ip())
    }

    /// Whether its key has one of these roles; without a key nobody knows.
    pub fn must_have(&self, roles: Roles, what: &str) -> Result<(), WireError> {
        let Some(holder) = &self.holder else { return Ok(()) };
        if matches!(holder.caller, Caller::Node(has) if has.meets(roles)) {
            return Ok(());
        }
        let text = format!("{what} is for servers with the role {roles}, and the key of {} has it not", holder.name);
        Err(WireError::new(ErrorCode::NotPermitted, text))
    }

    /// Whether it is a metadata server with a partition of the volume; without a key nobody knows. That a partition
    /// moved may not have been heard of yet, so who is refused repeats it.
    pub fn must_serve(&self, volume: VolumeId) -> Result<(), WireError> {
        let Some(holder) = &self.holder else { return Ok(()) };
        self.must_have(Roles::META, "work on a volume's data")?;
        if self.node_keys.has_partition(volume, |node| self.may_speak_for(node).is_ok()) {
            return Ok(());
        }
        let text = format!(
            "the key of {} is that of no server with a partition of {volume}, as far as was heard here",
            holder.name
        );
        Err(WireError::new(ErrorCode::Unavailable, text))
    }

    /// Has it written down that the service refused something for the rights of the key.
    pub fn note_refusal(&self, opcode: Opcode, error: &WireError) {
        let name = self.holder.as_ref().map(|holder| holder.name.as_str());
        self.audit.refused(&Refusal { from: self.addr.ip(), name, operation: opcode.name(), why: &error.message });
    }

    /// Whether it may send what is in the name of a node: its own, as far as its key and its hello tell, and what was
    /// heard of whose key each node has. Without a key nobody knows.
    pub fn may_speak_for(&self, node: NodeId) -> Result<(), WireError> {
        self.may_be(node)?;
        let other = self.holder.as_ref().and_then(|holder| self.node_keys.other_of_node(node, holder));
        other.map_or(Ok(()), |_| Err(self.speaks_not_for(node)))
    }

    /// The same without what was heard: for whoever decides whose key each node has.
    pub fn may_be(&self, node: NodeId) -> Result<(), WireError> {
        let Some(holder) = &self.holder else { return Ok(()) };
        // Who had no id yet when it connected has one by now.
        let says = self.hello.node;
        match holder.may_be(node) && (says == NodeId(0) || says == node) {
            true => Ok(()),
            false => Err(self.speaks_not_for(node)),
        }
    }

    /// Whether it may speak for one of these nodes.
    pub fn speaks_for_one_of(&self, nodes: impl IntoIterator<Item = NodeId>) -> bool {
        self.holder.is_none() || nodes.into_iter().any(|node| self.may_speak_for(node).is_ok())
    }

    fn speaks_not_for(&self, node: NodeId) -> WireError {
        let name = self.holder.as_ref().map_or("nobody", |holder| &holder.name);
        WireError::new(ErrorCode::NotPermitted, format!("the key of {name} does not speak for node {}", node.get()))
    }
}

/// A request, valid while [`Service::call`] runs: what is needed longer is decoded or copied.
pub struct Request<'a> {
    /// What is asked.
    pub opcode: u16,
    /// The protobuf message, borrowed from the connection's read buffer.
    pub message: &'a [u8],
    /// The raw bytes that came along.
    pub payload: Option<AlignedBuf>,
    /// How long the asking side waits, and the trace id.
    pub call: CallHeader,
    /// No answer is wanted; the reply goes nowhere.
    pub oneway: bool,
    /// When the bytes were read from the socket.
    pub received: Instant,
    /// Who asks.
    pub peer: &'a Arc<PeerInfo>,
}

impl Request<'_> {
    /// Decodes the message; the error is what to answer.
    pub fn decode<M: prost::Message + Default>(&self) -> Result<M, WireError> {
        M::decode(self.message).map_err(|e| self.malformed(&e))
    }

    /// Decodes after one copy of the message, so that its `Bytes` fields are slices of that copy.
    pub fn decode_sliced<M: prost::Message + Default>(&self) -> Result<M, WireError> {
        M::decode(Bytes::copy_from_slice(self.message)).map_err(|e| self.malformed(&e))
    }

    fn malformed(&self, error: &prost::DecodeError) -> WireError {
        let text = format!("the message of operation {:#06x} cannot be decoded: {error}", self.opcode);
        WireError::new(ErrorCode::BadRequest, text)
    }

    /// When the asking side stops waiting; `None` when it does not wait at all.
    pub fn deadline(&self) -> Option<Instant> {
        (self.call.deadline_ms > 0).then(|| self.received + Duration::from_millis(self.call.deadline_ms.into()))
    }
}

/// What a server does with requests.
pub trait Service: Send + Sync + 'static {
    /// Called on the connection's own thread, which serves many connections: must not block. What takes long is handed
    /// to another thread together with `reply`.
    fn call(&self, request: Request<'_>, reply: Reply);

    /// Called on the same thread after all requests of one socket read were handed in, so that a service can pass them
    /// on to another thread together.
    fn batch_end(&self) {}
}

/// Why a server could not start.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The address is taken, not local, or privileged.
    #[error("cannot listen on {addr}: {source}; choose another address or stop the process that has it")]
    Bind {
        /// What was asked for.
        addr: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// A thread or its runtime could not be made.
    #[error("cannot start a server thread: {0}")]
    Thread(#[source] io::Error),
}

/// What all threads of a server share.
pub(crate) struct ServerShared {
    pub(crate) config: ServerConfig,
    pub(crate) identity: Identity,
    pub(crate) service: Arc<dyn Service>,
    pub(crate) stats: Arc<ServerStats>,
    pub(crate) open: AtomicUsize,
    pub(crate) seats: Arc<Seats>,
    pub(crate) shares: Shares,
    pub(crate) plain: Arc<Plain>,
    pub(crate) accounts: Arc<Accounts>,
    /// Connections that were given a number.
    pub(crate) numbered: AtomicU64,
}

/// A running server; dropping it stops it.
pub struct Server {
    local_addr: SocketAddr,
    shared: Arc<ServerShared>,
    threads: Mutex<Vec<ThreadHandle>>,
}

impl Server {
    /// Listens on `addr` (port 0 picks one) and serves from own threads until [`shutdown`](Self::shutdown) or drop.
    pub fn bind(
        addr: SocketAddr,
        config: ServerConfig,
        identity: Identity,
        service: Arc<dyn Service>,
    ) -> Result<Self, ServerError> {
        assert!(config.threads > 0 && config.in_flight_max > 0, "a server needs threads and room for requests");
        assert!(config.pool.limit() >= POOL_BYTES_MIN, "the pool has to hold the largest payload: {POOL_BYTES_MIN}");
        let bind = |source| ServerError::Bind { addr, source };
        let listener = socket::listen(addr).map_err(bind)?;
        let local_addr = listener.local_addr().map_err(bind)?;
        let stats = Arc::new(ServerStats::default());
        let greeting_max = (config.connections_max / GREETING_PART).clamp(GREETING_MIN, GREETING_MAX);
        let seats = Seats::new(greeting_max, config.idle_min);
        let shares = Shares::new(config.pool.limit());
        let accounts = Accounts::new(config.messages_max);
        let shared = Arc::new(ServerShared {
            seats,
            shares,
            plain: Arc::default(),
            accounts,
            config,
            identity,
            service,
            stats,
            open: AtomicUsize::new(0),
            numbered: AtomicU64::new(0),
        });
        let threads = thread::start(&shared, listener).map_err(ServerError::Thread)?;
        Ok(Self { local_addr, shared, threads: Mutex::new(threads) })
    }

    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Counters for the metrics.
    pub fn stats(&self) -> Arc<ServerStats> {
        self.shared.stats.clone()
    }

    /// Tells who comes without a key, where this server has one.
    pub fn teller_of_plain(&self) -> impl Fn() -> WithoutKey + Send + Sync + 'static {
        let plain = self.shared.plain.clone();
        move || plain.who(Instant::now())
    }

    /// Bytes of answers that nobody has read yet and of requests that came in part, as far as they count.
    pub fn message_bytes(&self) -> usize {
        self.shared.accounts.held()
    }

    /// Stops accepting and reading, gives requests in the works up to `grace` to be answered, closes all connections
    /// and joins the threads. Blocks; not for a runtime's own threads.
    pub fn shutdown(&self, grace: Duration) {
        let threads = std::mem::take(&mut *self.threads.lock());
        threads.iter().for_each(|thread| thread.stop(grace));
        threads.into_iter().for_each(ThreadHandle::join);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shutdown(DROP_GRACE);
    }
}
