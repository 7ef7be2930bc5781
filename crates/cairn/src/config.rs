//! `cairn.toml`: what one server process is, checked as a whole; every mistake is reported at once with its line.
//!
//! The keys are described in docs/reference/config.md. Not here: what the roles do with them.
mod read;
#[cfg(test)]
mod tests;

use crate::node::http_door::HttpSpec;
use crate::security::{Expected, SecuritySpec, roles_of};
use cairn_telemetry::LogConfig;
use cairn_types::DiskUuid;
use std::path::PathBuf;

pub use read::parse;

/// Checkpoints kept of each Raft group unless a configuration says otherwise.
pub const CHECKPOINT_GENERATIONS: usize = 2;
/// Size of the request log unless a configuration says otherwise.
pub const REQUEST_LOG_MIB: u64 = 64;

/// A checked configuration of one process.
#[derive(Clone, Debug)]
pub struct Config {
    pub node: NodeConfig,
    pub manager: ManagerSection,
    pub meta: bool,
    pub data: Option<DataSection>,
    pub log: LogConfig,
    /// Who sees what of metrics and health.
    pub http: HttpSpec,
    /// Bytes of memory for metadata; `None`: what the machine suggests.
    pub meta_memory_max: Option<u64>,
    /// `None`: off.
    pub security: Option<SecuritySpec>,
}

impl Config {
    /// What the key of the process has to be.
    pub fn key(&self) -> Expected {
        let member = self.manager.member;
        Expected { roles: roles_of(member.is_some(), self.meta, self.data.is_some()), member: member.unwrap_or(0) }
    }
}

/// `[node]`
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// State of the process: label, Raft log, checkpoints.
    pub dir: PathBuf,
    pub listen: String,
    /// What others connect to; `listen` if it is not given.
    pub advertise: Option<String>,
    /// The usual one, above the RPC port, if it is not given.
    pub http: Option<String>,
    pub rack: String,
    pub host: String,
    /// Checkpoints kept of each Raft group.
    pub checkpoint_generations: usize,
    /// Highest feature level that the process says it understands, and works with.
    pub feature_level_max: u32,
    /// Size of the request log; 0: there is none.
    pub request_log_mib: u64,
    /// Changes of the cluster are taken over TCP from anybody who can connect.
    pub admin_over_tcp: bool,
}

/// `[manager]`
#[derive(Clone, Debug)]
pub struct ManagerSection {
    /// (member number = node id 1 to 15, host:port) of every member of the manager's group.
    pub members: Vec<(u32, String)>,
    /// The member that this process is.
    pub member: Option<u32>,
    /// It waits without a vote until the group has added it.
    pub join: bool,
    /// Name of the cluster, for people; used when it is made.
    pub cluster_name: String,
}

/// `[data]`
#[derive(Clone, Debug)]
pub struct DataSection {
    /// A directory a disk.
    pub disks: Vec<PathBuf>,
    /// Disks that are lost for good: an empty directory where one of them was becomes a new disk.
    pub replaced_disks: Vec<DiskUuid>,
    /// Reads bypass the page cache.
    pub direct_reads: bool,
}

/// All mistakes of a configuration file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConfigErrors {
    pub file: String,
    /// (line, what is wrong and what is right)
    pub mistakes: Vec<(usize, String)>,
}

impl std::fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let count = self.mistakes.len();
        write!(f, "{}: {count} mistake{}", self.file, if count == 1 { "" } else { "s" })?;
        for (line, text) in &self.mistakes {
            write!(f, "\n  line {line}: {text}")?;
        }
        write!(f, "\nthe keys are listed in docs/reference/config.md")
    }
}

impl std::error::Error for ConfigErrors {}
