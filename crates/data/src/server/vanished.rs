//! Chunks that vanished from a serving member without anybody noticing: some seconds after its start, where it serves at once, and at
//! the end of each scrub, what other serving members list is held against what is here, and what is missing is brought back as if a reader had asked for it.
//!
//! Invariants: only what was sealed, and only if so many others have it that it can be brought; one page of each member at a time.

use std::sync::Arc;
use std::time::Duration;

use cairn_chunk_core::fence;
use cairn_format::crc_table::blocks_of;
use cairn_types::{ChunkId, DiskId};
use cairn_wire::data::ChunkSummary;
use cairn_wire::error::WireError;

use super::Inner;
use super::catch_up_shards::{PAGE, listed_by_all};
use super::member::Member;
use crate::disk::DiskStore;

/// Between two looks whether there is room for one more.
const PAUSE: Duration = Duration::from_secs(1);

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
            match self.note_vanished(&member).await {
                Ok(found) => missing += found,
                // The next pass looks again.
                Err(error) => {
                    tracing::debug!(%disk, pg = %record.pg, %error, "what others have could not be compared with what is here");
                }
            }
        }
        missing
    }

    pub(super) async fn note_vanished(self: &Arc<Self>, member: &Member) -> Result<u64, WireError> {
        let (mut missing, mut after) = (0, None);
        let is_whole = |theirs: &ChunkSummary| {
            theirs.sealed && theirs.length > 0 && theirs.punched_blocks < u64::from(blocks_of(theirs.length))
        };
        loop {
            let pages = self.list_others(member, after, PAGE).await?;
            let (indices, limit) = listed_by_all(&pages);
            for index in indices {
                let id = ChunkId { pg: member.pg.pg, index };
                let theirs = pages.iter().flat_map(|(_, page)| &page.chunks);
                let holders = theirs.filter(|theirs| theirs.index == index && is_whole(theirs)).count();
                if member.store.info(id).is_some() || holders < member.pg.scheme.read_minimum() {
                    continue;
                }
                // Bounded: what is noted is brought back before there is room for more.
                while !self.restore_later(member, id, self.config.restore_delay) {
                    if self.is_stopping() || !self.is_current(member) {
                        return Ok(missing);
                    }
                    tokio::time::sleep(PAUSE).await;
                }
                missing += 1;
            }
            match limit {
                None => return Ok(missing),
                limit => after = limit,
            }
        }
    }
}
