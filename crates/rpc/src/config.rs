//! Bounds and timeouts of both sides, each with its default. Every queue of this crate is bounded by one of these.

use std::sync::Arc;
use std::time::Duration;

use cairn_env::buf::BufPool;
use cairn_wire::frame::PAYLOAD_MAX;

use crate::audit::Audit;
use crate::server::RequestSink;

/// Requests of one connection that a server works on; beyond it stops reading from that connection.
pub const SERVER_IN_FLIGHT_MAX: usize = 1024;
/// Bytes of answers waiting for one connection's socket; beyond the server stops reading from that connection.
pub const SERVER_OUT_QUEUE_MAX: usize = 8 << 20;
/// Bytes of answers' messages (payloads are bounded by their pool) at which a connection is given up.
pub const SERVER_OUT_QUEUE_HARD: usize = 64 << 20;
/// Bytes of all connections' answers that are unread and requests that came in part: no key, or address without one,
/// holds more of them than is left for others.
pub const SERVER_MESSAGES_MAX: usize = 512 << 20;
/// Connections that a server holds; further ones are refused with an error.
pub const SERVER_CONNECTIONS_MAX: usize = 16_384;
/// Connections above the limit that are told why they are refused; further ones are closed without a word.
pub const REFUSALS_MAX: usize = 64;
/// One of so many connections is kept for the servers of the cluster: clients are refused before.
pub const SERVERS_PART: usize = 16;
/// Of so many connections, those that clients may have.
pub fn connections_for_clients(connections_max: usize) -> usize {
    connections_max - connections_max / SERVERS_PART
}

/// Of the connections at most one in so many has said no hello yet ([`GREETING_MIN`] to [`GREETING_MAX`]); with more,
/// the oldest goes.
pub const GREETING_PART: usize = 4;
/// See [`GREETING_PART`].
pub const GREETING_MAX: usize = 1024;
/// So many may be without a hello at any rate: several clients connect at the same moment.
pub const GREETING_MIN: usize = 16;
/// Connections that wait until they are looked at, where too many are; no more than one in [`GREETING_PART`] of all. Of
/// more the one that waits longest goes.
pub const LINE_MAX: usize = 4096;
/// Of a site that has most of those that are looked at, one goes for one that waits, no sooner than this after the one
/// before.
pub const LINE_PACE: Duration = Duration::from_millis(1);
/// A handshake of TLS takes no more bytes of a stranger: a certificate that names the most volumes and users fits three
/// times.
pub const HANDSHAKE_BYTES_MAX: usize = 24 << 10;
/// A connection on which nothing happened for so long is closed when there is no room for others.
pub const IDLE_MIN: Duration = Duration::from_secs(2);
/// Received payloads of a server that gets no pool from its owner.
pub const SERVER_POOL_BYTES: usize = 256 << 20;
/// Threads of a server unless said otherwise: one a core, at most this many.
pub const SERVER_THREADS_MAX: usize = 4;
/// Time for the hello.
pub const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
/// Time from the first to the last byte of a frame.
pub const FRAME_TIMEOUT: Duration = Duration::from_secs(30);
/// Time in which 512 KiB of a payload (or what is left of it) have to come, before its buffer is taken away.
pub const PAYLOAD_STALL: Duration = Duration::from_secs(5);
/// The same while others wait for a buffer.
pub const PAYLOAD_STALL_CONTENDED: Duration = Duration::from_secs(2);
/// Time in which a peer has to take 512 KiB of what waits for it, or all of it; else it counts as not reading.
pub const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// Calls in flight on one client connection; further ones queue.
pub const CLIENT_IN_FLIGHT_MAX: usize = 1024;
/// Calls that queue on one client connection, for a free place or for the connection; further ones get `NotSent`.
pub const CLIENT_QUEUE_MAX: usize = 16_384;
/// Bytes that queue on one client connection; further calls get `NotSent`.
pub const CLIENT_QUEUE_BYTES_MAX: usize = 64 << 20;
/// Bytes of requests handed to one client connection's socket queue; further calls queue before it.
pub const CLIENT_OUT_MAX: usize = 16 << 20;
/// Bytes of one-way messages and calls waiting on one connection, beyond which one-way messages are dropped.
pub const CLIENT_ONEWAY_MAX: usize = 32 << 20;
/// Received payloads of a client that gets no pool from its owner.
pub const CLIENT_POOL_BYTES: usize = 256 << 20;
/// Time for connecting, name resolution and hello included.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Waiting time after the first failed attempt to connect; doubles with every further one.
pub const BACKOFF_MIN: Duration = Duration::from_millis(20);
/// Longest waiting time between two attempts to connect.
pub const BACKOFF_MAX: Duration = Duration::from_secs(2);
/// A connection without calls for this long is closed.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(300);

/// Smallest pool that a server or client works with: one payload of the largest size (and its rounding).
pub const POOL_BYTES_MIN: usize = 2 * PAYLOAD_MAX;

/// Bounds and threads of a server.
#[derive(Clone)]
pub struct ServerConfig {
    /// Threads, each with its own share of the connections.
    pub threads: usize,
    /// See [`SERVER_IN_FLIGHT_MAX`].
    pub in_flight_max: usize,
    /// See [`SERVER_OUT_QUEUE_MAX`].
    pub out_queue_max: usize,
    /// See [`SERVER_OUT_QUEUE_HARD`].
    pub out_queue_hard: usize,
    /// See [`SERVER_MESSAGES_MAX`].
    pub messages_max: usize,
    /// See [`SERVER_CONNECTIONS_MAX`].
    pub connections_max: usize,
    /// Where received payloads go. When it is empty, connections wait.
    pub pool: BufPool,
    /// See [`HELLO_TIMEOUT`].
    pub hello_timeout: Duration,
    /// See [`FRAME_TIMEOUT`].
    pub frame_timeout: Duration,
    /// See [`PAYLOAD_STALL`].
    pub payload_stall: Duration,
    /// See [`PAYLOAD_STALL_CONTENDED`].
    pub payload_stall_contended: Duration,
    /// See [`IDLE_MIN`].
    pub idle_min: Duration,
    /// See [`WRITE_TIMEOUT`].
    pub write_timeout: Duration,
    /// Name of the threads, followed by a number.
    pub thread_name: String,
    /// Where records of all requests and answers go.
    pub request_log: Option<Arc<dyn RequestSink>>,
    /// Where logins, refusals and changes of the cluster are told.
    pub audit: Audit,
}

impl Default for ServerConfig {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        Self {
            threads: cores.min(SERVER_THREADS_MAX),
            in_flight_max: SERVER_IN_FLIGHT_MAX,
            out_queue_max: SERVER_OUT_QUEUE_MAX,
            out_queue_hard: SERVER_OUT_QUEUE_HARD,
            messages_max: SERVER_MESSAGES_MAX,
            connections_max: SERVER_CONNECTIONS_MAX,
            pool: BufPool::new(SERVER_POOL_BYTES),
            hello_timeout: HELLO_TIMEOUT,
            frame_timeout: FRAME_TIMEOUT,
            payload_stall: PAYLOAD_STALL,
            payload_stall_contended: PAYLOAD_STALL_CONTENDED,
            idle_min: IDLE_MIN,
            write_timeout: WRITE_TIMEOUT,
            thread_name: "rpc".to_owned(),
            request_log: None,
            audit: Audit::default(),
        }
    }
}

/// Bounds of a client.
#[derive(Clone)]
pub struct ClientConfig {
    /// Connections to each address for calls without bulk.
    pub small_connections: usize,
    /// Connections to each address for calls that send or fetch payloads.
    pub bulk_connections: usize,
    /// See [`CLIENT_IN_FLIGHT_MAX`].
    pub in_flight_max: usize,
    /// See [`CLIENT_QUEUE_MAX`].
    pub queue_max: usize,
    /// See [`CLIENT_QUEUE_BYTES_MAX`].
    pub queue_bytes_max: usize,
    /// See [`CLIENT_OUT_MAX`].
    pub out_max: usize,
    /// See [`CLIENT_ONEWAY_MAX`].
    pub oneway_max: usize,
    /// Where received payloads go unless the call brings a buffer. When it is empty, the connection waits.
    pub pool: BufPool,
    /// See [`CONNECT_TIMEOUT`].
    pub connect_timeout: Duration,
    /// See [`BACKOFF_MIN`].
    pub backoff_min: Duration,
    /// See [`BACKOFF_MAX`].
    pub backoff_max: Duration,
    /// See [`FRAME_TIMEOUT`].
    pub frame_timeout: Duration,
    /// See [`WRITE_TIMEOUT`].
    pub write_timeout: Duration,
    /// See [`IDLE_TIMEOUT`].
    pub idle_timeout: Duration,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            small_connections: 1,
            bulk_connections: 1,
            in_flight_max: CLIENT_IN_FLIGHT_MAX,
            queue_max: CLIENT_QUEUE_MAX,
            queue_bytes_max: CLIENT_QUEUE_BYTES_MAX,
            out_max: CLIENT_OUT_MAX,
            oneway_max: CLIENT_ONEWAY_MAX,
            pool: BufPool::new(CLIENT_POOL_BYTES),
            connect_timeout: CONNECT_TIMEOUT,
            backoff_min: BACKOFF_MIN,
            backoff_max: BACKOFF_MAX,
            frame_timeout: FRAME_TIMEOUT,
            write_timeout: WRITE_TIMEOUT,
            idle_timeout: IDLE_TIMEOUT,
        }
    }
}
