//! [`Descriptors`]: how a process deals out the file descriptors that it may have. Disks come first: what strangers
//! open never takes those that a disk or a log needs.
//!
//! Invariant: the parts together are at most the limit.
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// With fewer a node gets by, but with few connections and few files open; its status says so.
pub const FEW: u64 = 4096;
/// What is recommended: enough for the full number of connections and a dozen disks.
pub const RECOMMENDED: u64 = 65_536;

/// Logs, checkpoints, listeners, timers, libraries.
const OWN: u64 = 192;
/// Of a disk beside its chunks: journal, directories, files that are read at the moment, pipes.
const DISK_OWN: u64 = 64;
/// Chunks of a disk whose files stay open, and descriptors of each.
const DISK_CHUNKS_MAX: u64 = 512;
const DISK_CHUNKS_MIN: u64 = 16;
const CHUNK_FILES: u64 = 2;
/// Connections that were accepted only to be told that there are too many.
const REFUSALS: u64 = 64;
const RPC_MAX: u64 = 16_384;
const RPC_MIN: u64 = 64;
/// What counts as no limit.
const ENDLESS: u64 = 1 << 20;

/// The parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptors {
    /// All that the node may have.
    pub limit: u64,
    /// Chunks of each disk whose files stay open.
    pub disk_chunks: usize,
    /// Connections of its RPC port.
    pub rpc: usize,
    /// Connections of its HTTP port.
    pub http: usize,
    /// Connections to other nodes.
    pub outgoing: usize,
}

/// There are too few to serve at all.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "the process may open {limit} files, which is too few for {disks} disks and the connections of a node; set LimitNOFILE={RECOMMENDED} in the unit, or raise the hard limit (ulimit -Hn)"
)]
pub struct TooFew {
    limit: u64,
    disks: usize,
}

impl Descriptors {
    /// Deals `limit` out among `disks` and connections.
    pub fn deal(limit: u64, disks: usize) -> Result<Descriptors, TooFew> {
        let too_few = TooFew { limit, disks };
        let of_disks = disks as u64;
        let http = (limit / 16).clamp(32, 128);
        let outgoing = (limit / 8).clamp(64, 4096);
        let kept = OWN + http + outgoing + REFUSALS + DISK_OWN * of_disks;
        let Some(left) = limit.checked_sub(kept) else { return Err(too_few) };
        let disk_chunks = match of_disks {
            0 => DISK_CHUNKS_MAX,
            disks => (left / 2 / (CHUNK_FILES * disks)).min(DISK_CHUNKS_MAX),
        };
        let rpc = (left - disk_chunks.min(left) * CHUNK_FILES * of_disks).min(RPC_MAX);
        if disk_chunks < DISK_CHUNKS_MIN || rpc < RPC_MIN {
            return Err(too_few);
        }
        Ok(Descriptors {
            limit,
            disk_chunks: disk_chunks as usize,
            rpc: rpc as usize,
            http: http as usize,
            outgoing: outgoing as usize,
        })
    }

    /// What a person should know about the limit, and do.
    pub fn problem(&self) -> Option<String> {
        (self.limit < FEW).then(|| {
            format!(
                "it may open {} files only: {} connections, {} chunks of a disk kept open; set LimitNOFILE={RECOMMENDED} in its unit and restart it",
                self.limit, self.rpc, self.disk_chunks
            )
        })
    }
}

/// What the process may open at most (its hard limit).
pub fn limit() -> u64 {
    getrlimit(Resource::Nofile).maximum.unwrap_or(ENDLESS).min(ENDLESS)
}

/// Lets the process open as many files as it may: each chunk in use and each connection is one.
pub fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }) {
        tracing::warn!(%error, ?limit, "the limit of open files cannot be raised");
    }
}

/// What the process has open now.
pub fn open_now() -> u64 {
    std::fs::read_dir("/proc/self/fd").map_or(0, |all| all.count() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Connections would take what disks need, or a node with enough descriptors would not start.
    #[test]
    fn the_parts_fit_the_limit() {
        for limit in [512, 600, 1024, 4096, 20_000, 65_536, 524_288, ENDLESS] {
            for disks in [0usize, 1, 2, 4, 12, 60] {
                let Ok(parts) = Descriptors::deal(limit, disks) else {
                    assert!(limit < 1024 || disks as u64 > limit / 200, "{limit} suffice for {disks} disks");
                    continue;
                };
                let chunks = disks as u64 * (parts.disk_chunks as u64 * CHUNK_FILES + DISK_OWN);
                let all = OWN + REFUSALS + chunks + (parts.rpc + parts.http + parts.outgoing) as u64;
                assert!(all <= limit, "{all} of {limit}: {parts:?}");
                assert!(parts.rpc as u64 >= RPC_MIN);
            }
        }
        let parts = Descriptors::deal(RECOMMENDED, 12).expect("recommended");
        assert_eq!((parts.rpc as u64, parts.disk_chunks as u64), (RPC_MAX, DISK_CHUNKS_MAX));
        assert_eq!(parts.problem(), None);
        assert!(Descriptors::deal(1024, 1).expect("few").problem().is_some_and(|said| said.contains("LimitNOFILE")));
        let error = Descriptors::deal(256, 1).expect_err("too few").to_string();
        assert!(error.contains("256") && error.contains("LimitNOFILE"), "{error}");
    }
}
