//! Compaction: what lives in packs that are mostly dead is written anew elsewhere, so that all of them is freed.
//!
//! Behind each pass of garbage collection the leader chooses packs by the lists of that pass, walks through a version
//! of the namespace for what names them, and tells a data node to move that, some hundred extents at a time
//! (`Compact`). The moves are publishes with compare-and-set like any client's, so nothing here has to be remembered: a
//! leader that dies leaves files that were moved and files that were not, and the next pass chooses anew. A pack that
//! stays although it was asked for is left out of more and more passes: else what goes with it would be written anew
//! with each of them. Bounds: those of [`Packs`]; [`PLACES`] extents and [`BYTES`] a request, one request at a time,
//! with rests as long as it took. Not here: which packs are worth it (meta-core), the moves (`jobs` and the client
//! library on data nodes).
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use cairn_meta_core::{PackUse, Packs, PlannedPack, is_mostly_dead};
use cairn_types::{BLOCK_SIZE, Scheme};
use cairn_wire::Opcode;
use cairn_wire::data::{CompactChunk, CompactRequest, CompactResponse};
use cairn_wire::error::WireError;

use crate::chunk_lists::Listed;
use crate::garbage::{Collector, used};
use crate::movers::Movers;
use crate::stats::add;

/// Extents of one request.
const PLACES: usize = 512;
/// Bytes of one request, unless one pack has more.
const BYTES: u64 = 32 << 20;
/// Most passes that leave a pack out.
const RESTS_MAX: u32 = 63;
/// A data node works on a request for half a minute, and then for as long as one file takes.
const DEADLINE: Duration = Duration::from_secs(60);

/// What the last pass found in packs, of all members together.
#[derive(Debug, Default)]
pub(crate) struct PackGauges {
    /// What packs take.
    pub(crate) held: AtomicU64,
    /// Of that not in use.
    pub(crate) dead: AtomicU64,
    /// Packs.
    pub(crate) count: AtomicU64,
    /// Of which too much is dead.
    pub(crate) mostly_dead: AtomicU64,
}

/// Packs that were asked for, and may be there all the same: somebody overwrites what they have, or a member does not
/// free it.
#[derive(Debug, Default)]
pub(crate) struct Tried(BTreeMap<(u32, u32), Tries>);

#[derive(Debug, Default)]
struct Tries {
    times: u32,
    /// Passes that leave it out.
    rests: u32,
}

impl Tried {
    /// Those that a pass that begins leaves out.
    pub(crate) fn resting(&mut self) -> BTreeSet<(u32, u32)> {
        let rests = |(pack, tries): (&(u32, u32), &mut Tries)| {
            tries.rests = tries.rests.checked_sub(1)?;
            Some(*pack)
        };
        self.0.iter_mut().filter_map(rests).collect()
    }

    /// These are asked for. A second time in a row is usual: what was moved is freed a moment later.
    fn asked(&mut self, plan: &[PlannedPack]) {
        let asked: BTreeSet<(u32, u32)> = plan.iter().map(|pack| (pack.pg, pack.index)).collect();
        self.0.retain(|pack, tries| tries.rests > 0 || asked.contains(pack));
        for pack in asked {
            let tries = self.0.entry(pack).or_default();
            tries.rests = ((1 << tries.times) - 1).min(RESTS_MAX);
            tries.times = (tries.times + 1).min(RESTS_MAX.ilog2() + 1);
        }
    }
}

/// Packs as members list them in one pass.
#[derive(Default)]
pub(crate) struct PackList {
    packs: Packs,
    /// Those that are left out.
    pub(crate) resting: BTreeSet<(u32, u32)>,
    held: u64,
    dead: u64,
    count: u64,
    mostly_dead: u64,
}

impl PackList {
    /// Takes a chunk into account: if it is a pack, nobody appends to it, and all members of its group say what they
    /// have.
    pub(crate) fn consider(
        &mut self,
        pg: u32,
        scheme: Option<Scheme>,
        members: usize,
        listed: &Listed,
        grace: Duration,
    ) {
        let Some(scheme) = scheme.filter(|scheme| scheme.is_replicated()) else { return };
        let copies = || listed.copies.iter().map(|(_, chunk)| chunk);
        let idle = Duration::from_millis(copies().map(|chunk| chunk.idle_ms).min().unwrap_or(0));
        let told = copies()
            .all(|chunk| chunk.sealed && chunk.held_bytes > 0 && (chunk.punched_blocks == 0 || !chunk.used.is_empty()));
        if listed.copies.len() < members || !told || idle < grace {
            return;
        }
        let held: u64 = copies().map(|chunk| chunk.held_bytes).sum();
        let live = copies().map(|chunk| used(chunk).iter().map(|(first, end)| u64::from(end - first)).sum::<u64>());
        let live = live.sum::<u64>() * BLOCK_SIZE as u64;
        self.held += held;
        self.dead += held.saturating_sub(live);
        self.count += 1;
        self.mostly_dead += u64::from(is_mostly_dead(live, held));
        if self.resting.contains(&(pg, listed.index)) {
            return;
        }
        let (index, scheme, copies_count) = (listed.index, scheme.code(), listed.copies.len() as u64);
        let used = copies().flat_map(used).collect();
        self.packs.consider(&PackUse { pg, index, scheme, copies: copies_count, held, used });
    }
}

impl Collector {
    /// Moves what lives out of packs that are mostly dead. What fails is left to the next pass.
    pub(crate) async fn compact(&self, list: PackList, term: u64) -> Result<(), WireError> {
        let state = &self.partition.state;
        state.packs.held.store(list.held, Relaxed);
        state.packs.dead.store(list.dead, Relaxed);
        state.packs.count.store(list.count, Relaxed);
        state.packs.mostly_dead.store(list.mostly_dead, Relaxed);
        let mut packs = list.packs;
        packs.keep_worthwhile();
        // What is moved would be there twice as long as a snapshot has it where it was: nothing would be gained.
        if packs.is_empty() || state.namespace.read().has_snapshots() {
            return Ok(());
        }
        self.walk(|packs: &mut Packs, named| packs.visit(named), &mut packs, |_| {}).await?;
        self.names_elsewhere(&mut packs).await?;
        let plan = packs.into_plan();
        if plan.is_empty() {
            return Ok(());
        }
        self.tried.lock().asked(&plan);
        let mut movers = Movers::near(self.partition.clone(), self.client.clone(), plan[0].pg);
        let (mut files, mut bytes) = (0, 0);
        for request in requests(state.volume.get(), &plan) {
            // One node after the other, so that all of it comes into one pack.
            let done: CompactResponse = movers.ask(Opcode::Compact, &request, DEADLINE, term).await?;
            files += u64::from(done.moved);
            bytes += done.moved_bytes;
            add(&state.common.stats.compacted_files, u64::from(done.moved));
            add(&state.common.stats.compacted_bytes, done.moved_bytes);
            add(&state.common.stats.compaction_kept, u64::from(done.kept));
        }
        tracing::info!(partition = %state.id, packs = plan.len(), files, bytes, "packs that were mostly dead were compacted");
        Ok(())
    }
}

/// The plan in parts: whole packs as far as they fit. The places of a request ascend.
fn requests(volume: u32, plan: &[PlannedPack]) -> Vec<CompactRequest> {
    let mut requests = Vec::new();
    let (mut chunks, mut places, mut bytes): (Vec<CompactChunk>, Vec<(u64, u64)>, u64) = Default::default();
    let mut finish = |chunks: &mut Vec<CompactChunk>, places: &mut Vec<(u64, u64)>| {
        places.sort_unstable();
        places.dedup();
        for part in places.chunks(PLACES) {
            let places = part.iter().flat_map(|(inode, offset)| [*inode, *offset]).collect();
            requests.push(CompactRequest { volume, chunks: chunks.clone(), places, whole_shards: false });
        }
        chunks.clear();
        places.clear();
    };
    for pack in plan {
        if !chunks.is_empty() && (places.len() + pack.places.len() > PLACES || bytes + pack.bytes > BYTES) {
            finish(&mut chunks, &mut places);
            bytes = 0;
        }
        chunks.push(CompactChunk { pg: pack.pg, index: pack.index });
        places.extend(&pack.places);
        bytes += pack.bytes;
    }
    finish(&mut chunks, &mut places);
    requests
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Packs that stay would make everything beside them be written anew with each pass; or those that could be moved
    /// at last would never be asked for again.
    #[test]
    fn packs_that_stay_are_asked_for_less_and_less_often() {
        let pack = |index: u32| PlannedPack { pg: 1, index, bytes: 1, places: Vec::new() };
        let (mut tried, mut asked) = (Tried::default(), Vec::new());
        for pass in 0..300 {
            let resting = tried.resting();
            assert!(!resting.contains(&(1, 1000 + pass)), "a new one");
            if !resting.contains(&(1, 7)) {
                tried.asked(&[pack(7), pack(1000 + pass)]);
                asked.push(pass);
            }
            assert!(tried.0.len() <= 2, "what is gone is forgotten");
        }
        assert_eq!(asked, [0, 1, 3, 7, 15, 31, 63, 127, 191, 255]);
        tried.asked(&[]);
        assert!((0..70).all(|_| !tried.resting().contains(&(1, 8))) && tried.resting().is_empty());
    }

    /// A request would be too long for its deadline, or leave something out.
    #[test]
    fn requests_have_all_places_in_parts() {
        let pack = |index: u32, count: u64| PlannedPack {
            pg: 1,
            index,
            bytes: 1 << 20,
            places: (0..count).rev().map(|i| (100 + i, u64::from(index))).collect(),
        };
        let plan = [pack(1, 300), pack(2, 200), pack(3, 100), pack(4, 1000)];
        let all = requests(7, &plan);
        assert_eq!(all.iter().map(|r| r.places.len() / 2).collect::<Vec<_>>(), [500, 100, 512, 488]);
        assert_eq!(all[0].chunks, [CompactChunk { pg: 1, index: 1 }, CompactChunk { pg: 1, index: 2 }]);
        assert!(all.iter().all(|r| r.volume == 7 && r.places.as_chunks::<2>().0.is_sorted()));
        assert_eq!(requests(7, &[PlannedPack { bytes: BYTES, ..pack(1, 1) }, pack(2, 1)]).len(), 2);
    }
}
