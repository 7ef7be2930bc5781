//! A state that is older than what was once given: it was restored from a copy, and others went on with what it has
//! forgotten.
//!
//! It **waits** until the nodes have said what they know: meanwhile `apply` refuses everything that could give a
//! number, and everything that goes by what it has forgotten. Then what they know is taken up ([`crate::take_up`]), and
//! it goes on. Invariants: no id, epoch, incarnation, session or map version is given twice. Ids between the first that
//! was forgotten and the first that was given afterwards belong to what was forgotten, for good: whoever comes with one
//! of them is let in under it. Not here: who finds out, and whom it waits for (the manager).
use crate::state::{Counters, State};
use cairn_types::{DiskId, ErrorCode, NodeId, PartitionId, PgId, VolumeId, WallTime, era_of};
use cairn_wire::error::WireError;
use cairn_wire::manager::SeenNumbers;
use prost::Message;

/// Feature level from which on there is such a state.
pub const RESTORED_LEVEL: u32 = 5;
/// A cluster has not given more ids than this since its managers' state was copied.
const IDS_BEYOND: u32 = 1 << 24;
/// Likewise; incarnations and sessions follow the seconds since 1970, times 2^20.
const NUMBERS_BEYOND: u64 = 1 << 54;
/// Likewise; an era has 2^30.
const TERMS_BEYOND: u64 = 1 << 24;

/// The next ids of each kind at some time.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Ids {
    #[prost(uint32, tag = "1")]
    pub node: u32,
    #[prost(uint32, tag = "2")]
    pub disk: u32,
    #[prost(uint32, tag = "3")]
    pub volume: u32,
    #[prost(uint32, tag = "4")]
    pub partition: u32,
    #[prost(uint32, tag = "5")]
    pub pg: u32,
}

impl Ids {
    pub(crate) fn of(next: &Counters) -> Self {
        Self { node: next.node, disk: next.disk, volume: next.volume, partition: next.partition, pg: next.pg }
    }

    /// The lower ones.
    pub(crate) fn min(self, other: Self) -> Self {
        Self {
            node: self.node.min(other.node),
            disk: self.disk.min(other.disk),
            volume: self.volume.min(other.volume),
            partition: self.partition.min(other.partition),
            pg: self.pg.min(other.pg),
        }
    }
}

/// That the state was restored. Also in checkpoints.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Restored {
    #[prost(uint64, tag = "1")]
    pub since_ns: u64,
    /// It waits for what nodes know.
    #[prost(bool, tag = "2")]
    pub waits: bool,
    /// The first ids that it may have forgotten.
    #[prost(message, required, tag = "3")]
    pub from: Ids,
    /// The first that it gave afterwards.
    #[prost(message, required, tag = "4")]
    pub until: Ids,
}

impl State {
    /// Set once the state was restored from a copy.
    pub fn restored(&self) -> Option<&Restored> {
        self.restored.as_ref()
    }

    /// Nothing is given before nodes have said what they know.
    pub fn waits(&self) -> bool {
        self.restored.is_some_and(|restored| restored.waits)
    }

    pub(crate) fn begin_waiting(&mut self, time: WallTime) {
        let next = Ids::of(&self.next);
        let from = self.restored.map_or(next, |before| before.from.min(next));
        self.restored = Some(Restored { since_ns: time.0, waits: true, from, until: next });
    }

    /// Whether a node knows a number that this state has not given.
    pub fn is_behind(&self, seen: &SeenNumbers) -> bool {
        let next = &self.next;
        seen.map_version > self.version
            || seen.incarnation >= next.incarnation
            || seen.session >= next.session
            || seen.node >= next.node
            || seen.disk >= next.disk
            || seen.volume >= next.volume
            || seen.partition >= next.partition
            || seen.pg >= next.pg
    }

    fn forgot(&self, of: impl Fn(&Ids) -> u32, id: u32) -> bool {
        self.restored.is_some_and(|restored| (of(&restored.from)..of(&restored.until)).contains(&id))
    }

    /// Whether a node of this id may have been let in before what is known now; likewise below.
    pub fn forgot_node(&self, id: NodeId) -> bool {
        self.node(id).is_none() && self.forgot(|ids| ids.node, id.get())
    }
    pub fn forgot_disk(&self, id: DiskId) -> bool {
        self.disk(id).is_none() && self.forgot(|ids| ids.disk, id.get())
    }
    pub fn forgot_volume(&self, id: VolumeId) -> bool {
        self.volume(id).is_none() && self.forgot(|ids| ids.volume, id.get())
    }
    pub fn forgot_partition(&self, id: PartitionId) -> bool {
        self.partition(id).is_none() && self.forgot(|ids| ids.partition, id.get())
    }
    pub fn forgot_pg(&self, id: PgId) -> bool {
        self.pg(id).is_none() && self.forgot(|ids| ids.pg, id.get())
    }
}

/// Why what a node says cannot be: numbers so far beyond what is known here that no cluster got there since would use
/// up all that there are. Whoever knows no more than this state is always listened to, whatever a liar made of it.
pub fn nonsense(state: &State, term: u64, seen: &SeenNumbers) -> Option<&'static str> {
    let next = &state.next;
    let ids = [
        (seen.node, next.node),
        (seen.disk, next.disk),
        (seen.volume, next.volume),
        (seen.partition, next.partition),
        (seen.pg, next.pg),
    ];
    let numbers =
        [(seen.map_version, state.version), (seen.incarnation, next.incarnation), (seen.session, next.session)];
    if era_of(seen.term) > era_of(term) {
        return Some(
            "the node follows managers that were restored, or made anew, later than this one: this one takes no part any more",
        );
    }
    let absurd = ids.iter().any(|(seen, next)| *seen > next.saturating_add(IDS_BEYOND))
        || numbers.iter().any(|(seen, next)| *seen > next.saturating_add(NUMBERS_BEYOND))
        || seen.term > term.saturating_add(TERMS_BEYOND);
    absurd.then_some("the highest numbers that the node knows make no sense")
}

/// What everybody is told meanwhile.
pub fn waiting() -> WireError {
    let text = "the managers' state is older than what they once gave (it was restored from a copy): it does nothing before the nodes \
                have said what they know; `cairn admin status` says for whom it waits";
    WireError::new(ErrorCode::Unavailable, text)
}
