//! Chunks that a serving member lacks, or has less of, without anybody noticing: what other serving members list is
//! held against what is here, and what is missing is brought back as if a reader had asked for it.
//!
//! Invariants: only what was sealed, and only if so many others have it that it can be brought; one page of each member
//! at a time. Not here: when that is done (`compare.rs`).

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use cairn_chunk_core::fence;
use cairn_chunk_core::overwrite::differing_blocks;
use cairn_replica_core::message::ChunkSum;
use cairn_replica_core::reconcile::is_less;
use cairn_types::{ChunkId, DiskId};
use cairn_wire::data::ChunkSummary;
use cairn_wire::error::WireError;

use super::Inner;
use super::catch_up_shards::{PAGE, listed_by_all};
use super::disk_calls::on_control;
use super::member::Member;
use super::missing::Found;
use super::witness::{number_in, own_sum, sum_of};
use crate::disk::{ChunkInfo, DiskStore};

/// Between two looks whether there is room for one more.
const PAUSE: Duration = Duration::from_secs(1);
/// Blocks of one chunk with other checksums elsewhere that are looked at.
const BLOCKS_MAX: usize = 256;

impl Inner {
    /// Looks through all groups of a disk; answers how many chunks were missing.
    pub(super) async fn look_for_vanished(self: &Arc<Self>, disk: DiskId, store: &DiskStore) -> u64 {
        let mut missing = 0;
        for record in store.pg_files().all() {
            let Ok(member) = self.member(disk.get(), record.pg.get(), 0) else { continue };
            let others = fence::serving(&member.pg).any(|other| other != disk);
            if member.pg.retired || !others || fence::check_read(&member.pg, disk).is_err() {
                continue;
            }
            match self.note_vanished(&member, 0..=u32::MAX).await {
                Ok(found) => missing += found,
                // The next pass looks again.
                Err(error) => {
                    tracing::debug!(%disk, pg = %record.pg, %error, "what others have could not be compared with what is here");
                }
            }
        }
        missing
    }

    /// Has brought what other members list among these indices and this one lacks; answers how many.
    pub(super) async fn note_vanished(
        self: &Arc<Self>,
        member: &Member,
        range: RangeInclusive<u32>,
    ) -> Result<u64, WireError> {
        let (mut missing, mut after) = (0, range.start().checked_sub(1));
        loop {
            let pages = self.list_others(member, after, PAGE).await?;
            let (indices, limit) = listed_by_all(&pages);
            for index in indices.into_iter().filter(|index| range.contains(index)) {
                let id = ChunkId { pg: member.pg.pg, index };
                let listed = pages.iter().flat_map(|(disk, page)| page.chunks.iter().map(|chunk| (*disk, chunk)));
                let theirs: Vec<_> = listed.filter(|(_, chunk)| chunk.index == index).collect();
                let sums: Vec<ChunkSum> = theirs.iter().map(|(_, chunk)| sum_of(chunk)).collect();
                let k = member.is_striped().then(|| member.pg.scheme.read_minimum());
                let now = (member.pg.epoch, member.check_entered().is_ok());
                if !is_less(k, now, own_sum(member, id).as_ref(), sums.iter()) {
                    if let Some(here) = member.store.info(id) {
                        self.look_at_differing(member, &here, &theirs).await;
                    }
                    continue;
                }
                // Bounded: what is noted is brought back before there is room for more.
                while !self.restore_later(member, id, Found::List, self.config.restore_delay) {
                    if self.is_stopping() || !self.is_current(member) {
                        return Ok(missing);
                    }
                    tokio::time::sleep(PAUSE).await;
                }
                missing += 1;
            }
            match limit {
                Some(limit) if limit < *range.end() => after = Some(limit),
                _ => return Ok(missing),
            }
        }
    }

    /// Where a copy of the same length has other checksums elsewhere, one of the two may be damaged: what is bad here
    /// is healed, and there the same is done.
    async fn look_at_differing(
        self: &Arc<Self>,
        member: &Member,
        here: &ChunkInfo,
        theirs: &[(DiskId, &ChunkSummary)],
    ) {
        let is_other = |theirs: &ChunkSummary| {
            let changed = here.punched_blocks > 0 || theirs.punched_blocks > 0;
            let same_writes = number_in(theirs) == here.overwrite;
            theirs.sealed
                && theirs.length == here.length
                && theirs.table_crc != here.table_crc
                && same_writes
                && !changed
        };
        if member.is_striped() || !here.sealed {
            return;
        }
        for (other, _) in theirs.iter().filter(|(_, theirs)| is_other(theirs)) {
            if let Err(error) = self.heal_differing(member, here.id, *other).await {
                tracing::debug!(disk = %member.disk, chunk = %here.id, %other, %error, "blocks with other checksums elsewhere are looked at later");
            }
        }
    }

    async fn heal_differing(self: &Arc<Self>, member: &Member, id: ChunkId, other: DiskId) -> Result<(), WireError> {
        let theirs = self.table_of(&member.pg, other, id).await?;
        let store = member.store.clone();
        let ours = on_control(&member.store, move |_| store.tables(id)).await?;
        let there = (&theirs.crcs[..], theirs.summary.length, &theirs.punched);
        let runs = differing_blocks((&ours.crcs, ours.info.length, &ours.punched), there, true);
        for block in runs.into_iter().flatten().take(BLOCKS_MAX) {
            // One that is bad is named and tried again there.
            let (pg, store) = (member.pg.clone(), member.store.clone());
            let _outcome = self.check_and_heal(member.disk, pg, store, id, block).await;
        }
        Ok(())
    }
}
