//! A node with one disk: the replica in one of its lives, and what it waits for.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use cairn_replica_core::config::Config;
use cairn_replica_core::replica::Replica;
use cairn_types::{DiskId, Incarnation};

use crate::disk::SimDisk;
use crate::event::Caller;
use crate::words::Bytes;

/// As named above.
#[derive(Debug)]
pub struct Node {
    /// Its disk's id; the node's place is one less.
    pub id: DiskId,
    /// Its disk.
    pub disk: SimDisk,
    /// The member, while its process runs.
    pub replica: Option<Replica<Bytes>>,
    /// Rises with each start and end.
    pub life: u64,
    /// Since it is registered; it answers nothing before.
    pub incarnation: Incarnation,
    /// Who waits for which request, and what it is.
    pub callers: BTreeMap<u64, (Caller, &'static str)>,
    /// Calls to others that were not answered.
    pub calls: BTreeSet<u64>,
    /// The next request.
    pub next_request: u64,
    /// When what was accepted last for a chunk is done.
    pub done_at: BTreeMap<u32, u64>,
    /// When it is woken.
    pub wake_at: Option<u64>,
    /// How much longer its disk takes, in microseconds.
    pub slow: u64,
    /// It ends after so many outputs.
    pub ends_in: Option<u32>,
    /// When it last asked the manager out of turn.
    pub poked_at: u64,
}

impl Node {
    /// Of a place.
    pub fn new(place: usize) -> Self {
        Self {
            id: DiskId(place as u32 + 1),
            disk: SimDisk::default(),
            replica: None,
            life: 0,
            incarnation: Incarnation(0),
            callers: BTreeMap::new(),
            calls: BTreeSet::new(),
            next_request: 0,
            done_at: BTreeMap::new(),
            wake_at: None,
            slow: 0,
            ends_in: None,
            poked_at: 0,
        }
    }

    /// Its process runs.
    pub fn runs(&self) -> bool {
        self.replica.is_some()
    }

    /// A process begins, with what the disk has.
    pub fn start(&mut self) {
        self.life += 1;
        self.incarnation = Incarnation(0);
        self.callers.clear();
        self.calls.clear();
        self.done_at.clear();
        (self.wake_at, self.ends_in) = (None, None);
        let record = self.disk.now.record.as_ref().map(Arc::clone);
        self.replica = Some(Replica::start(self.id, Incarnation(self.life), config(), record, self.disk.index_end()));
    }
}

/// Times in a run: those of a cluster at a fifth, so that a run of seconds sees what takes a cluster a minute; pieces
/// of two blocks.
pub fn config() -> Config {
    Config {
        quiet: Duration::from_millis(1_200),
        word_max: Duration::from_millis(1_000),
        compared_within: Duration::from_millis(200),
        look_after: Duration::from_secs(1),
        compare_every: Duration::from_secs(4),
        restore_delay: Duration::from_secs(2),
        care_pause: (Duration::from_millis(400), Duration::from_secs(3)),
        reserve_step: 4,
        piece_blocks: 2,
        ..Config::default()
    }
}
