//! A client: writes chunks, overwrites blocks of its own, reads those of all; its word of what was acknowledged is the
//! model's.

use std::collections::BTreeMap;
use std::sync::Arc;

use cairn_chunk_core::fence;
use cairn_format::pg_state::PgStateRecord;
use cairn_replica_core::message::Stamp;
use cairn_types::{DiskId, Epoch, SessionId};

use crate::words::Block;

/// A chunk that is being written.
#[derive(Debug, Clone)]
pub struct Writing {
    /// Its index.
    pub index: u32,
    /// Its epoch.
    pub epoch: Epoch,
    /// Whom it is sent to.
    pub map: Arc<PgStateRecord>,
    /// Blocks, or rows.
    pub blocks: Vec<Block>,
    /// Bytes sent, a shard.
    pub sent: u64,
    /// Frames without an answer.
    pub open: usize,
    /// Who answered first, since which start.
    pub stamps: BTreeMap<DiskId, u64>,
    /// Frames still to be sent before the next sync.
    pub frames: u32,
    /// Syncs after which it is closed.
    pub syncs: u32,
    /// Answers to the sync that is under way.
    pub syncing: Option<(u64, usize, u64)>,
    /// Part of it was acknowledged.
    pub published: bool,
}

/// What a client waits for.
#[derive(Debug, Clone)]
pub enum Waits {
    /// An index.
    Index(Arc<PgStateRecord>),
    /// A frame.
    Frame,
    /// A sync.
    Sync,
    /// A seal.
    Seal,
    /// An overwrite.
    Overwrite,
    /// A read: where, since when, of whom.
    Read {
        /// The chunk.
        index: u32,
        /// The first block.
        block: u32,
        /// From there.
        bytes: u64,
        /// Since when.
        since: u64,
        /// Who was asked.
        disk: DiskId,
    },
}

/// An overwrite that is repeated until it is answered.
#[derive(Debug, Clone)]
pub struct Overwriting {
    /// The chunk.
    pub index: u32,
    /// Its number.
    pub request: u64,
    /// What.
    pub runs: Vec<(u32, Vec<Block>)>,
    /// It is under way.
    pub asked: bool,
    /// Attempts.
    pub tries: u32,
    /// Whom the present attempt names.
    pub map: Arc<PgStateRecord>,
}

/// As named above.
#[derive(Debug)]
pub struct Client {
    /// Its session.
    pub session: SessionId,
    /// The group as it knows it.
    pub map: Arc<PgStateRecord>,
    /// The chunk that it writes.
    pub writing: Option<Writing>,
    /// The overwrite that it is at.
    pub overwriting: Option<Overwriting>,
    /// Its calls.
    pub waits: BTreeMap<u64, Waits>,
    /// The next call.
    pub next_call: u64,
    /// The next overwrite.
    pub next_request: u64,
    /// It asked for an index.
    pub allocating: bool,
}

impl Client {
    /// Of a session.
    pub fn new(session: u64, map: Arc<PgStateRecord>) -> Self {
        Self {
            session: SessionId(session),
            map,
            writing: None,
            overwriting: None,
            waits: BTreeMap::new(),
            next_call: 1,
            next_request: 1,
            allocating: false,
        }
    }

    /// A new call.
    pub fn waits_for(&mut self, what: Waits) -> u64 {
        self.next_call += 1;
        self.waits.insert(self.next_call, what);
        self.next_call
    }
}

/// The leader by a map.
pub fn leader(map: &PgStateRecord) -> Option<DiskId> {
    fence::primary(map)
}

/// Where a leader passes things on to.
pub fn chain(map: &PgStateRecord) -> Vec<DiskId> {
    fence::receivers(map).filter(|disk| Some(*disk) != leader(map)).collect()
}

/// Whether every serving member is named.
pub fn names_all(map: &PgStateRecord, members: &[Stamp]) -> bool {
    fence::serving(map).all(|disk| members.iter().any(|stamp| stamp.disk == disk))
}
