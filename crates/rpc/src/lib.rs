//! RPC over TCP: the frames of `cairn_wire::frame` on tokio, for servers and clients.
//!
//! Many requests are in flight on one connection and answers come in any order. All frames of one socket read are
//! handled before one socket write. Payloads go straight between the socket and aligned pooled buffers. Every queue
//! is bounded, every call has a deadline, and the first frame in each direction settles protocol version and cluster.
//!
//! Not here: what the operations mean (the server crates), retries other than to find a leader (the client crate).

pub mod admin_socket;
mod audit;
pub mod carrier;
pub mod client;
mod config;
mod connection;
mod fuzz;
mod hub;
mod identity;
pub mod late;
pub mod leader;
mod log_limit;
mod node_keys;
mod out;
mod payload;
mod reader;
mod server;
mod socket;
mod stream;
mod trace;
mod watch;

pub use audit::{Audit, AuditSink, Refusal};
pub use client::{Call, CallError, CallOptions, Client, Lane, NotSent, Peer, Response, SendError, Unknown};
pub use config::{ClientConfig, HANDSHAKE_BYTES_MAX, ServerConfig, connections_for_clients};
pub use connection::{Connection, ConnectionError, Incoming};
#[doc(hidden)]
pub use fuzz::fuzz_codes;
pub use identity::Identity;
pub use leader::{LeaderClient, LeaderError, Repeat};
pub use node_keys::NodeKeys;
pub use payload::Payload;
pub use server::{
    CloseReason, LATENCY_BOUNDS_US, Latency, LatencyOf, Outcome, PeerInfo, Reply, ReplyBatch, Request, RequestSink,
    Server, ServerError, ServerStats, Service, WithoutKey,
};
pub use trace::next_trace_id;

#[cfg(test)]
mod tests;
