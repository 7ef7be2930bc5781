//! Garbage and packs of a volume of several partitions: what one of them does not name another may.
//!
//! The leader of the root's partition collects for all. What its own partition does not name it has struck by each
//! other one: sessions that wrote it are ended there, too, then a version taken after that is walked through. A
//! partition that does not answer ends the pass: no answer is in use. Partitions may be added at any time: they are
//! listed after the sessions have ended here, and one that is made later begins with what has ended here (`begin.rs`).
//! Names do not move between partitions, since extents stay with their inode. Packs are chosen the same way, by what
//! all partitions name; each file is moved by its own partition's compare-and-set.

use std::sync::Arc;
use std::time::Duration;

use cairn_meta_core::{GarbageRange, Named, PackNames, Packs, SessionState, Suspects};
use cairn_rpc::Reply;
use cairn_types::{ErrorCode, InodeId, PartitionId};
use cairn_wire::Opcode;
use cairn_wire::error::WireError;
use cairn_wire::meta::{
    self, ExpireSessions, ListNamedRequest, ListNamedResponse, NamedPlace, StrikeNamedRequest, StrikeNamedResponse,
};

use super::{Collector, walk};
use crate::across::{Peers, header};
use crate::partition::Partition;

/// Ranges of one request: some hundred KiB, and a walk through each partition.
const RANGES: usize = 16 << 10;
/// Ranges of one answer, which may be in smaller pieces: what is left out comes with another pass.
const RANGES_LEFT: usize = 24 << 10;
/// Places of one answer.
const PLACES: usize = 16 << 10;
/// A partition is walked through with rests, and may have many millions of files.
const DEADLINE: Duration = Duration::from_secs(1800);

impl Collector {
    /// The other partitions of the volume; an error where another one collects.
    pub(crate) fn others(&self) -> Result<Vec<PartitionId>, WireError> {
        let state = &self.partition.state;
        if !state.across.is_one_of_several() {
            return Ok(Vec::new());
        }
        if self.peers.owner(state.volume, InodeId::ROOT.0)? != state.id {
            return Err(WireError::new(ErrorCode::NotSupported, "the partition of the root collects for all"));
        }
        let mut others = self.peers.partitions(state.volume);
        others.retain(|other| *other != state.id);
        Ok(others)
    }

    /// The same, with all that were made before this was called.
    async fn others_now(&self) -> Result<Vec<PartitionId>, WireError> {
        if self.partition.state.across.is_one_of_several() {
            self.partition.state.common.fresh_map(self.timings.map_rounds).await?;
        }
        self.others()
    }

    /// Adds what the other partitions name of packs.
    pub(crate) async fn names_elsewhere(&self, packs: &mut Packs) -> Result<(), WireError> {
        for other in self.others_now().await? {
            let chunks = packs.chunks().flat_map(|(pg, index)| [pg, index]).collect();
            let request = ListNamedRequest { header: Some(header(&self.partition, other)), chunks };
            let answer: ListNamedResponse = self.peers.call_long(other, Opcode::ListNamed, &request, DEADLINE).await?;
            answer.places.iter().for_each(|place| packs.visit(&named(place)));
            let (left_out, _) = answer.left_out.as_chunks::<2>();
            left_out.iter().for_each(|[pg, index]| packs.leave_out(*pg, *index));
        }
        Ok(())
    }

    /// What of this no other partition names either.
    pub(crate) async fn strike_elsewhere(
        &self,
        garbage: Vec<GarbageRange>,
        end_sessions: bool,
    ) -> Result<Vec<GarbageRange>, WireError> {
        if garbage.is_empty() || !self.partition.state.across.is_one_of_several() {
            return Ok(garbage);
        }
        // The sessions have ended here. A partition that is made after this map was asked for is told so before it
        // serves anybody.
        let others = self.others_now().await?;
        let mut all = Vec::new();
        for part in garbage.chunks(RANGES) {
            let mut left: Vec<meta::GarbageRange> = part.iter().map(super::message).collect();
            for other in others.iter().filter(|_| !part.is_empty()) {
                if left.is_empty() {
                    break;
                }
                left = self.peers.strike(&self.partition, *other, left, end_sessions).await?;
            }
            all.extend(left.iter().map(range));
        }
        Ok(all)
    }
}

impl Peers {
    async fn strike(
        &self,
        partition: &Partition,
        other: PartitionId,
        ranges: Vec<meta::GarbageRange>,
        end_sessions: bool,
    ) -> Result<Vec<meta::GarbageRange>, WireError> {
        let request = StrikeNamedRequest { header: Some(header(partition, other)), ranges, end_sessions };
        let answer: StrikeNamedResponse = self.call_long(other, Opcode::StrikeNamed, &request, DEADLINE).await?;
        Ok(answer.left)
    }
}

/// Strikes what this partition names, for the leader of another one.
pub(crate) async fn strike(partition: Arc<Partition>, request: StrikeNamedRequest, reply: Reply) {
    match struck(&partition, request).await {
        Ok(left) => reply.ok(&StrikeNamedResponse { left }, ()),
        Err(error) => reply.err(error),
    }
}

async fn struck(partition: &Arc<Partition>, request: StrikeNamedRequest) -> Result<Vec<meta::GarbageRange>, WireError> {
    let state = &partition.state;
    let has_ended = |session| state.namespace.read().session_state(session) == SessionState::Ended;
    let mut sessions: Vec<u64> = request.ranges.iter().map(|range| range.session).collect();
    sessions.dedup();
    sessions.retain(|session| !has_ended(*session));
    sessions.sort_unstable();
    sessions.dedup();
    if !sessions.is_empty() && request.end_sessions {
        // It has ended where its client announced it: nothing of it is done here any more.
        let end = ExpireSessions { sessions, unknown_only: false, ..Default::default() };
        partition.propose_own(Opcode::ExpireSessions, &end).await?;
        for session in &end.sessions {
            state.leases.forget(*session);
            state.openers.forget(*session);
            state.wanted_leases.forget(*session);
            state.wanted_delegations.forget(*session);
        }
    }
    let mut suspects = Suspects::default();
    add(&mut suspects, request.ranges.iter().map(range))?;
    walk(partition, |suspects, named| suspects.strike(named), &mut suspects, |_| {}).await?;
    Ok(suspects.into_garbage().take(RANGES_LEFT).map(|range| super::message(&range)).collect())
}

/// Tells what this partition names of packs, for the leader of another one.
pub(crate) async fn names(partition: Arc<Partition>, request: ListNamedRequest, reply: Reply) {
    let (chunks, _) = request.chunks.as_chunks::<2>();
    let mut names = PackNames::new(chunks.iter().map(|[pg, index]| (*pg, *index)), PLACES);
    match walk(&partition, |names: &mut PackNames, named| names.visit(named), &mut names, |_| {}).await {
        Ok(()) => {
            let (names, left_out) = names.into_parts();
            let left_out = left_out.into_iter().flat_map(|(pg, index)| [pg, index]).collect();
            reply.ok(&ListNamedResponse { places: names.iter().map(place).collect(), left_out }, ());
        }
        Err(error) => reply.err(error),
    }
}

/// As it is sent. Blocks lie within a chunk, so their numbers fit.
fn place(named: &Named) -> NamedPlace {
    NamedPlace {
        inode: named.inode,
        file_offset: named.file_offset,
        pg: named.pg,
        index: named.index,
        first_block: named.first_block as u32,
        blocks: (named.end_block - named.first_block) as u32,
        plain: named.is_plain,
    }
}

fn named(place: &NamedPlace) -> Named {
    let first_block = u64::from(place.first_block);
    let end_block = first_block + u64::from(place.blocks);
    Named {
        inode: place.inode,
        file_offset: place.file_offset,
        pg: place.pg,
        index: place.index,
        first_block,
        end_block,
        held_end: end_block,
        is_plain: place.plain,
        whole_shard: None,
    }
}

/// Ranges ascend; those of one chunk stand together.
fn add(suspects: &mut Suspects, ranges: impl Iterator<Item = GarbageRange>) -> Result<(), WireError> {
    let mut ranges = ranges.peekable();
    let mut last = None;
    while let Some(first) = ranges.next() {
        let chunk = (first.pg, first.index);
        if last.replace(chunk).is_some_and(|last| last >= chunk) {
            return Err(WireError::new(ErrorCode::BadRequest, "ranges of garbage do not ascend"));
        }
        let mut blocks = vec![(first.first_block, first.first_block.saturating_add(first.blocks))];
        while let Some(next) = ranges.next_if(|next| (next.pg, next.index) == chunk) {
            blocks.push((next.first_block, next.first_block.saturating_add(next.blocks)));
        }
        suspects.add(first.pg, first.index, first.session, blocks);
    }
    Ok(())
}

fn range(range: &meta::GarbageRange) -> GarbageRange {
    GarbageRange {
        pg: range.pg,
        index: range.index,
        first_block: range.first_block,
        blocks: range.blocks,
        session: range.session,
    }
}
