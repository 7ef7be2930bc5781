//! A disk that joins an erasure group gets its shard from the member whose place it is to have, or makes it of the shards of
//! the others: whichever has been faster lately. The one reads k times less, the other does not wait for a disk that is slow.
//!
//! Invariant: what comes from the member that leaves matches the checksums that came with it; whatever it has not got, or
//! not good, is made of the others' as if it were not there.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use cairn_chunk_core::row_decode::Remade;
use cairn_format::chunk_header::row_tables;
use cairn_format::pg_state::{PgStateMember, PgStateRecord};
use cairn_types::{BLOCK_SIZE, DiskId, Epoch, MemberState};
use cairn_wire::data::PgState;

use super::Inner;
use super::fetch::At;
use super::member::Member;
use super::rebuild::{Rebuild, Rebuilt};

/// One in so many pieces goes the other way, to see whether that has become faster.
const LOOK_AGAIN: u32 = 64;
/// What did not come counts as if it had come so late.
const FAILED: Duration = Duration::from_secs(5);
/// Weight of the latest piece: one in so many.
const WEIGHT: u32 = 4;

/// Where a piece comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// The member that leaves.
    Copy,
    /// The shards of others.
    Make,
}

/// How long each way took for a block, lately.
#[derive(Debug, Default)]
pub(crate) struct Ways {
    copy: Option<Duration>,
    make: Option<Duration>,
    pieces: u32,
}

impl Ways {
    /// Each way once, then the faster one.
    fn choose(&mut self) -> Way {
        self.pieces = self.pieces.wrapping_add(1);
        let (faster, other) = match (self.copy, self.make) {
            (None, _) => return Way::Copy,
            (_, None) => return Way::Make,
            (Some(copy), Some(make)) if copy <= make => (Way::Copy, Way::Make),
            _ => (Way::Make, Way::Copy),
        };
        if self.pieces.is_multiple_of(LOOK_AGAIN) { other } else { faster }
    }

    fn took(&mut self, way: Way, time: Duration, blocks: usize) {
        let latest = time / blocks.max(1) as u32;
        let known = match way {
            Way::Copy => &mut self.copy,
            Way::Make => &mut self.make,
        };
        *known = Some(known.map_or(latest, |known| (known * (WEIGHT - 1) + latest) / WEIGHT));
    }
}

/// The member that leaves, as a disk that joins in its place needs it.
#[derive(Debug, Clone)]
pub(super) struct Leaver {
    disk: DiskId,
    /// The group with it in its place, and with epoch 0: a block under a checksum is the same in every epoch.
    pg: Arc<PgStateRecord>,
}

/// The member in whose place a disk joins, while it serves.
pub(super) fn leaver_of(state: &PgState, disk: DiskId) -> Option<PgStateMember> {
    let joining = state.joining.filter(|joining| joining.disk == disk.get())?;
    let member = state.members.get(usize::try_from(joining.position).ok()?)?;
    let code = u8::try_from(member.state).ok().and_then(MemberState::from_code)?;
    let leaver = PgStateMember { disk: DiskId(member.disk), node: cairn_types::NodeId(member.node), state: code };
    (code == MemberState::Serving).then_some(leaver)
}

impl Leaver {
    /// Of a member that joins; none of any other.
    pub(super) fn of(member: &Member) -> Option<Self> {
        let leaver = {
            let state = member.runtime.state.lock();
            state.leaver.filter(|_| state.epoch == member.pg.epoch)?
        };
        let mut pg = PgStateRecord { epoch: Epoch(0), ..(*member.pg).clone() };
        *pg.members.get_mut(usize::from(member.shard()))? = leaver;
        Some(Self { disk: leaver.disk, pg: Arc::new(pg) })
    }
}

impl Inner {
    /// Blocks of the shard from the member that leaves, if there is one, that way is the faster one, and it has them good.
    pub(super) async fn copy_from_leaver(self: &Arc<Self>, job: &Rebuild, blocks: &Range<u32>) -> Option<Rebuilt> {
        let leaver = job.leaver.as_ref()?;
        if job.runtime.state.lock().ways.choose() == Way::Make {
            return None;
        }
        let begun = self.clock.now();
        let at = At { pg: &leaver.pg, disk: leaver.disk, id: job.id, made: Some(job.creation_epoch) };
        let offset = u64::from(blocks.start) * BLOCK_SIZE as u64;
        let fetch = self.fetch_rows(&at, offset, (blocks.len() * BLOCK_SIZE) as u32);
        let rows = row_tables(leaver.pg.scheme, job.shard as u8) * blocks.len();
        let copied = match tokio::time::timeout(self.config.rebuild_hedge, fetch).await {
            Ok(Ok(fetched)) if fetched.row_crcs.len() == rows => Some(fetched),
            Ok(Ok(_)) | Err(_) => None,
            Ok(Err(error)) => {
                tracing::debug!(chunk = %job.id, ?blocks, %error, "the member that leaves does not give this; it is made of the others' shards");
                None
            }
        };
        let time = if copied.is_some() { self.clock.now().since(begun) } else { FAILED };
        job.runtime.state.lock().ways.took(Way::Copy, time, if copied.is_some() { blocks.len() } else { 1 });
        let fetched = copied?;
        Some(Rebuilt {
            data: fetched.data,
            sums: Remade { crcs: fetched.crcs, row_crcs: fetched.row_crcs },
            lost: Vec::new(),
        })
    }

    /// Blocks were made of the others' shards.
    pub(super) fn made_of_others(&self, job: &Rebuild, begun: cairn_types::Time, blocks: &Range<u32>) {
        if job.leaver.is_some() {
            job.runtime.state.lock().ways.took(Way::Make, self.clock.now().since(begun), blocks.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A slow disk would be emptied at its own pace, or one that works by reading k others.
    #[test]
    fn the_faster_way_is_taken_and_the_other_one_tried_again() {
        let mut ways = Ways::default();
        let ms = Duration::from_millis;
        assert_eq!(ways.choose(), Way::Copy, "first the way that reads less");
        ways.took(Way::Copy, ms(128), 128);
        assert_eq!(ways.choose(), Way::Make, "then the other one, to know it");
        ways.took(Way::Make, ms(384), 128);
        let chosen: Vec<Way> = (0..LOOK_AGAIN).map(|_| ways.choose()).collect();
        assert_eq!(chosen.iter().filter(|way| **way == Way::Make).count(), 1);
        // It becomes slow.
        (0..8).for_each(|_| ways.took(Way::Copy, ms(1280), 128));
        let copies = (0..LOOK_AGAIN).filter(|_| ways.choose() == Way::Copy).count();
        assert_eq!(copies, 1);
        // And good again: each time it is tried counts.
        (0..8).for_each(|_| ways.took(Way::Copy, ms(128), 128));
        assert_eq!(ways.choose(), Way::Copy);
        ways.took(Way::Copy, FAILED, 1);
        assert_eq!(ways.choose(), Way::Make, "a failure counts much");
    }
}
