//! The hello: the first frame in both directions, which settles the protocol version and that both belong to one
//! cluster.
//!
//! The connecting side sends [`Hello`] with opcode 0; the accepting side answers with its own, or with an error frame
//! and closes. Invariant: nothing else crosses a connection before both hellos were accepted, so that a disk or a
//! client of another cluster can never read or write here.
//! Not here: timeouts and sockets (the rpc crate).

use cairn_types::{ClusterId, NodeId};
use prost::Message;

/// Newest protocol version that this build speaks.
pub const PROTOCOL_VERSION: u32 = 1;
/// Oldest protocol version that this build speaks: N and N−1 interoperate.
pub const PROTOCOL_VERSION_MIN: u32 = 1;
/// Largest message of a hello frame in either direction.
pub const HELLO_MAX: usize = 4096;
/// Longest software version text that is kept; longer ones are cut.
pub const SOFTWARE_MAX: usize = 64;

/// Who speaks on a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u32)]
pub enum PeerKind {
    /// The client library, under any front.
    #[default]
    Client = 1,
    /// A server process: manager, meta or data.
    Server = 2,
    /// An operator's tool.
    Tool = 3,
}

impl PeerKind {
    fn from_code(code: u32) -> Option<Self> {
        Some(match code {
            1 => Self::Client,
            2 => Self::Server,
            3 => Self::Tool,
            _ => return None,
        })
    }
}

/// Why two processes cannot talk.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum HelloError {
    /// Not protobuf, too long, or a field out of range.
    #[error("malformed hello: {why}")]
    Malformed {
        /// What is wrong with it.
        why: &'static str,
    },
    /// No version in common.
    #[error(
        "no common protocol version: this side speaks {ours_min} to {ours_max}, the other {theirs_min} to {theirs_max}; \
         upgrade the older side"
    )]
    NoCommonVersion {
        /// Oldest of this side.
        ours_min: u32,
        /// Newest of this side.
        ours_max: u32,
        /// Oldest of the other side.
        theirs_min: u32,
        /// Newest of the other side.
        theirs_max: u32,
    },
    /// The two belong to different clusters.
    #[error(
        "wrong cluster: this side belongs to {ours}, the other to {theirs}; check the address and the configuration"
    )]
    WrongCluster {
        /// Of this side.
        ours: ClusterId,
        /// Of the other side.
        theirs: ClusterId,
    },
}

/// What each side tells the other first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hello {
    /// Oldest protocol version that the sender speaks.
    pub version_min: u32,
    /// Newest protocol version that the sender speaks.
    pub version_max: u32,
    /// Zero: not known yet, "tell me yours".
    pub cluster: ClusterId,
    /// Who it is.
    pub kind: PeerKind,
    /// 0 for clients and for servers that are not registered yet.
    pub node: NodeId,
    /// Version of the program, for people.
    pub software: String,
}

/// The hello as it crosses the wire. Fields are added, never renumbered; unknown ones are skipped.
#[derive(Clone, PartialEq, Message)]
struct HelloMessage {
    #[prost(uint32, tag = "1")]
    version_min: u32,
    #[prost(uint32, tag = "2")]
    version_max: u32,
    #[prost(bytes = "vec", tag = "3")]
    cluster: Vec<u8>,
    #[prost(uint32, tag = "4")]
    kind: u32,
    #[prost(uint32, tag = "5")]
    node: u32,
    #[prost(string, tag = "6")]
    software: String,
}

impl Hello {
    /// A hello of this build.
    pub fn new(cluster: ClusterId, kind: PeerKind, node: NodeId) -> Self {
        Self {
            version_min: PROTOCOL_VERSION_MIN,
            version_max: PROTOCOL_VERSION,
            cluster,
            kind,
            node,
            software: concat!("cairn ", env!("CARGO_PKG_VERSION")).to_owned(),
        }
    }

    /// Appends the protobuf message.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let message = HelloMessage {
            version_min: self.version_min,
            version_max: self.version_max,
            cluster: self.cluster.0.to_vec(),
            kind: self.kind as u32,
            node: self.node.get(),
            software: cut(&self.software).to_owned(),
        };
        out.extend_from_slice(&message.encode_to_vec());
    }

    /// Decodes the message of a hello frame.
    pub fn decode(bytes: &[u8]) -> Result<Self, HelloError> {
        if bytes.len() > HELLO_MAX {
            return Err(HelloError::Malformed { why: "longer than 4096 bytes" });
        }
        let message =
            HelloMessage::decode(bytes).map_err(|_| HelloError::Malformed { why: "not a protobuf message" })?;
        if message.version_min == 0 || message.version_min > message.version_max {
            return Err(HelloError::Malformed { why: "an empty range of protocol versions" });
        }
        let cluster = ClusterId::from_slice(&message.cluster)
            .ok_or(HelloError::Malformed { why: "a cluster id of not 16 bytes" })?;
        let kind = PeerKind::from_code(message.kind).ok_or(HelloError::Malformed { why: "an unknown kind of peer" })?;
        Ok(Self {
            version_min: message.version_min,
            version_max: message.version_max,
            cluster,
            kind,
            node: NodeId(message.node),
            software: cut(&message.software).to_owned(),
        })
    }

    /// The newest protocol version that both sides speak.
    pub fn common_version(&self, theirs: &Hello) -> Result<u32, HelloError> {
        let newest = self.version_max.min(theirs.version_max);
        if newest >= self.version_min.max(theirs.version_min) {
            return Ok(newest);
        }
        Err(HelloError::NoCommonVersion {
            ours_min: self.version_min,
            ours_max: self.version_max,
            theirs_min: theirs.version_min,
            theirs_max: theirs.version_max,
        })
    }

    /// Whether the two may talk: equal clusters, or one of them does not know its cluster yet.
    pub fn check_cluster(&self, theirs: &Hello) -> Result<(), HelloError> {
        if self.cluster == theirs.cluster || self.cluster.is_none() || theirs.cluster.is_none() {
            return Ok(());
        }
        Err(HelloError::WrongCluster { ours: self.cluster, theirs: theirs.cluster })
    }
}

/// At most [`SOFTWARE_MAX`] bytes of `text`, cut between characters.
fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(SOFTWARE_MAX)]
}

/// Decodes a hello from hostile bytes, for fuzzing: must not panic, and what decodes must survive a round trip.
#[doc(hidden)]
pub fn fuzz_hello(data: &[u8]) {
    let Ok(hello) = Hello::decode(data) else { return };
    let mut again = Vec::new();
    hello.encode(&mut again);
    assert_eq!(Hello::decode(&again), Ok(hello.clone()), "a hello that decodes survives a round trip");
    let ours = Hello::new(ClusterId([7; 16]), PeerKind::Server, NodeId(1));
    let both = ours.common_version(&hello).is_ok();
    assert_eq!(both, hello.common_version(&ours).is_ok(), "version negotiation does not depend on the side");
}

#[cfg(test)]
mod tests;
