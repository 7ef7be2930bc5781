//! What lies on disks and no file names, counted when somebody asks: what writers that are gone left behind, and what
//! others are writing.
//!
//! The leader counts as the garbage collector does, and frees nothing. Invariants: nobody waits for it (an answer has
//! the last count with its age); one count at a time, and only after somebody asked. Memory: that of a pass. Not here:
//! freeing (`garbage.rs`).

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::AcqRel};
use std::time::Duration;

use cairn_meta_core::{GarbageRange, SessionState, Suspects};
use cairn_types::{BLOCK_SIZE, ErrorCode, Time, WallTime};
use cairn_wire::data::ChunkSummary;
use cairn_wire::error::WireError;
use cairn_wire::meta::Unreferenced;
use parking_lot::Mutex;

use crate::chunk_lists::Listed;
use crate::garbage::{Collector, PART_BYTES, used};
use crate::partition::PartitionState;

/// What comes on top of all known pauses: a chunk is sealed, a free record waits and is sent.
const SLACK: Duration = Duration::from_secs(60);

/// The count of a partition, for whoever asks its leader.
#[derive(Default)]
pub(crate) struct Survey {
    wanted: AtomicBool,
    last: Mutex<Option<(Time, Unreferenced)>>,
}

impl Survey {
    pub(crate) fn take_wish(&self) -> bool {
        self.wanted.swap(false, AcqRel)
    }
    /// The last count, and a wish for another one.
    pub(crate) fn ask(&self, now: Time) -> Unreferenced {
        self.wanted.store(true, std::sync::atomic::Ordering::Release);
        let Some((began, found)) = *self.last.lock() else { return Unreferenced::default() };
        let age = now.since(began).as_millis() as u64;
        Unreferenced { age_ms: Some(age), ..found }
    }
}

/// Suspects of one kind, and what of them is left when names were struck out.
#[derive(Default)]
struct Kind {
    suspects: Suspects,
    bytes: u64,
    /// The longest that the grace of one of them still takes.
    wait: Duration,
}

impl Kind {
    fn settle(&mut self, unnamed: Vec<GarbageRange>, copies: &BTreeMap<u32, usize>) {
        let bytes = unnamed.into_iter().map(|range| {
            let copies = copies.get(&range.pg).copied().unwrap_or(1);
            u64::from(range.blocks) * BLOCK_SIZE as u64 * copies as u64
        });
        self.bytes += bytes.sum::<u64>();
    }
}

impl Collector {
    /// Counts, and keeps the result; a pass frees what is left `next` from now at the earliest.
    pub(crate) async fn survey(&self, term: u64, next: Duration) {
        let state = &self.partition.state;
        let began = state.common.clock.now();
        let found = self.count(term, next).await.unwrap_or_else(|error| {
            tracing::debug!(partition = %state.id, %error, "what no file names was not counted");
            Unreferenced::default()
        });
        *state.survey.last.lock() = Some((began, found));
    }

    async fn count(&self, term: u64, next: Duration) -> Result<Unreferenced, WireError> {
        let state: &PartitionState = &self.partition.state;
        let (mut left, mut recent) = (Kind::default(), Kind::default());
        let mut copies = BTreeMap::new();
        for pg in self.groups()? {
            let Some((mut lists, _)) = self.lists(pg) else { continue };
            while let Some(listed) = lists.next().await {
                let members = copies.entry(pg).or_insert(0);
                *members = listed.copies.len().max(*members);
                self.sort(pg, &listed, &mut left, &mut recent);
                if left.suspects.memory_bytes() + recent.suspects.memory_bytes() > PART_BYTES {
                    self.strike(&mut left, &mut recent, &copies).await?;
                }
            }
            if state.leading_term() != Some(term) {
                return Err(WireError::new(ErrorCode::NotLeader, "another member leads"));
            }
        }
        self.strike(&mut left, &mut recent, &copies).await?;
        let freed_by = |kind: &Kind| match kind.bytes {
            0 => 0,
            _ => self.freed_by(next, kind.wait).0,
        };
        Ok(Unreferenced {
            known: true,
            left_bytes: left.bytes,
            left_freed_by_ns: freed_by(&left),
            recent_bytes: recent.bytes,
            recent_freed_by_ns: freed_by(&recent),
            age_ms: None,
        })
    }

    /// Puts a chunk where it belongs, if it may have something that no file names.
    fn sort(&self, pg: u32, listed: &Listed, left: &mut Kind, recent: &mut Kind) {
        let Some((_, first)) = listed.copies.first().filter(|(_, chunk)| chunk.session != 0) else { return };
        let idle = |chunk: &ChunkSummary| Duration::from_millis(chunk.idle_ms);
        let idle = listed.copies.iter().map(|(_, chunk)| idle(chunk)).min().unwrap_or_default();
        let (grace, lease) = (self.grace(), self.timings.lease);
        let session = first.session;
        let (kind, wait) = match self.partition.state.namespace.read().session_state(session) {
            SessionState::Ended => (left, grace.saturating_sub(idle)),
            // What long stays without a name while its writer lives is that writer's.
            SessionState::Live | SessionState::Unknown if idle < grace + lease => (recent, lease + grace),
            SessionState::Unknown => (left, Duration::ZERO),
            SessionState::Live => return,
        };
        kind.wait = kind.wait.max(wait);
        kind.suspects.add(pg, listed.index, session, listed.copies.iter().flat_map(|(_, chunk)| used(chunk)));
    }

    /// Takes out what a version of the namespace of now names, and counts the rest.
    async fn strike(&self, left: &mut Kind, recent: &mut Kind, copies: &BTreeMap<u32, usize>) -> Result<(), WireError> {
        if left.suspects.is_empty() && recent.suspects.is_empty() {
            return Ok(());
        }
        let mut both = (std::mem::take(&mut left.suspects), std::mem::take(&mut recent.suspects));
        self.walk(
            |(left, recent), named| {
                left.strike(named);
                recent.strike(named);
            },
            &mut both,
            |(left, recent)| {
                // The count is too low then; what is left out is counted when the rest is gone.
                left.shrink_to(PART_BYTES);
                recent.shrink_to(PART_BYTES);
            },
        )
        .await?;
        for (kind, suspects) in [(left, both.0), (recent, both.1)] {
            let unnamed = self.strike_elsewhere(suspects.into_garbage().collect(), false).await?;
            kind.settle(unnamed, copies);
        }
        Ok(())
    }

    /// When the pass is over that finds what waits so long.
    fn freed_by(&self, next: Duration, wait: Duration) -> WallTime {
        let mut pass = next;
        while pass < wait {
            pass += self.period().max(Duration::from_secs(1));
        }
        let after = pass + self.timings.free_grace + SLACK;
        WallTime(self.partition.state.common.clock.wall().0.saturating_add(after.as_nanos() as u64))
    }
}
