//! [`ServerStats`]: what a server counts, for the metrics.

use super::latency::Latency;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::log_limit::LogLimit;

/// Why a connection ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum CloseReason {
    /// The peer closed it.
    PeerClosed,
    /// The network or the peer's process failed.
    Io,
    /// Bytes that are not a frame: wrong magic, lengths over the limit, bad checksum.
    BadFrame,
    /// A frame that does not belong there: an answer, a second hello.
    OutOfPlace,
    /// The hello was malformed or something else came first.
    BadHello,
    /// The peer belongs to another cluster.
    WrongCluster,
    /// No common protocol version.
    NoCommonVersion,
    /// No key, one that is not of this cluster, or one that does not fit what the peer says of itself.
    NotAllowed,
    /// The hello did not come in time.
    HelloTimeout,
    /// A frame was begun and not completed in time.
    FrameTimeout,
    /// The peer did not read its answers in time.
    WriteTimeout,
    /// More answers waited than the peer, or all of its key or address, may leave unread.
    OutQueueFull,
    /// Too much of requests had come in part from all of its key or address.
    MemoryFull,
    /// Over the number of connections.
    TooManyConnections,
    /// It asked nothing, or said no hello, or was one of very many, and others needed the place.
    MadeRoom,
    /// A payload came too slowly to keep its buffer.
    PayloadStalled,
    /// No memory for payloads was to be had.
    NoBuffers,
    /// The server stopped.
    Shutdown,
}

impl CloseReason {
    /// Every reason.
    pub const ALL: [CloseReason; 18] = [
        Self::PeerClosed,
        Self::Io,
        Self::BadFrame,
        Self::OutOfPlace,
        Self::BadHello,
        Self::WrongCluster,
        Self::NoCommonVersion,
        Self::NotAllowed,
        Self::HelloTimeout,
        Self::FrameTimeout,
        Self::WriteTimeout,
        Self::OutQueueFull,
        Self::MemoryFull,
        Self::TooManyConnections,
        Self::MadeRoom,
        Self::PayloadStalled,
        Self::NoBuffers,
        Self::Shutdown,
    ];

    /// Label in metrics and logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::PeerClosed => "peer_closed",
            Self::Io => "io",
            Self::BadFrame => "bad_frame",
            Self::OutOfPlace => "out_of_place",
            Self::BadHello => "bad_hello",
            Self::WrongCluster => "wrong_cluster",
            Self::NoCommonVersion => "no_common_version",
            Self::NotAllowed => "not_allowed",
            Self::HelloTimeout => "hello_timeout",
            Self::FrameTimeout => "frame_timeout",
            Self::WriteTimeout => "write_timeout",
            Self::OutQueueFull => "out_queue_full",
            Self::MemoryFull => "memory_full",
            Self::TooManyConnections => "too_many_connections",
            Self::MadeRoom => "made_room",
            Self::PayloadStalled => "payload_stalled",
            Self::NoBuffers => "no_buffers",
            Self::Shutdown => "shutdown",
        }
    }

    /// Whether the peer did something that a person should hear of.
    pub(crate) fn is_noteworthy(self) -> bool {
        !matches!(self, Self::PeerClosed | Self::Io | Self::Shutdown)
    }
}

/// Counters of a server since its start; read them at any time.
#[derive(Default)]
pub struct ServerStats {
    /// Connections open now.
    pub connections_open: AtomicU64,
    /// Of them those that speak without TLS, hello accepted.
    pub connections_plain: AtomicU64,
    /// Connections accepted.
    pub connections_total: AtomicU64,
    /// Requests handed to the service.
    pub requests: AtomicU64,
    /// Answers that report an error.
    pub error_answers: AtomicU64,
    /// Bytes received.
    pub bytes_in: AtomicU64,
    /// Bytes sent.
    pub bytes_out: AtomicU64,
    /// Times that `accept` failed.
    pub accept_errors: AtomicU64,
    /// How long requests took.
    pub latency: Latency,
    closed: [AtomicU64; CloseReason::ALL.len()],
    pub(crate) log: [LogLimit; CloseReason::ALL.len()],
}

impl ServerStats {
    /// Connections that ended for this reason.
    pub fn closed(&self, reason: CloseReason) -> u64 {
        self.closed[reason as usize].load(Relaxed)
    }

    pub(crate) fn count_closed(&self, reason: CloseReason) {
        self.closed[reason as usize].fetch_add(1, Relaxed);
    }
}

/// Adds `count` when there is something to add: many rounds count nothing.
pub(crate) fn add(counter: &AtomicU64, count: u64) {
    if count > 0 {
        counter.fetch_add(count, Relaxed);
    }
}
