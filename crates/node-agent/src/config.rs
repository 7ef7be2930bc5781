//! [`AgentConfig`]: what the node says about itself, and the timings of its talk with the manager.

use std::time::Duration;

use cairn_types::{DiskUuid, NodeId};

/// What the node says about itself, and how often.
#[derive(Debug, Clone)]
pub struct AgentConfig {
    /// Identity of the node's state directory.
    pub node_uuid: DiskUuid,
    /// Its id from an earlier registration or, for members of the manager's group, from the configuration; 0 if none.
    pub node: NodeId,
    /// "manager", "meta", "data".
    pub roles: Vec<String>,
    /// host:port of the RPC port, as others reach it.
    pub address: String,
    /// host:port of the HTTP port.
    pub http_address: String,
    /// Failure domain above the host.
    pub rack: String,
    /// Failure domain below the rack.
    pub host: String,
    /// Of the software.
    pub version: String,
    /// Between two heartbeats.
    pub heartbeat_interval: Duration,
    /// How long one call to the manager may take; the search for its leader included.
    pub call_deadline: Duration,
    /// Between two attempts to register.
    pub register_pause: Duration,
}

impl AgentConfig {
    /// A heartbeat each second, calls of up to 5 s, an attempt to register every 300 ms.
    pub fn new(node_uuid: DiskUuid, address: impl Into<String>) -> Self {
        Self {
            node_uuid,
            node: NodeId(0),
            roles: Vec::new(),
            address: address.into(),
            http_address: String::new(),
            rack: String::new(),
            host: String::new(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            heartbeat_interval: Duration::from_secs(1),
            call_deadline: Duration::from_secs(5),
            register_pause: Duration::from_millis(300),
        }
    }
}
