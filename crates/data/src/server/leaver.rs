//! A disk that joins an erasure group gets its shard from the member whose place it is to have, or makes it of the
//! shards of the others: whichever has been faster lately. The one reads k times less, the other does not wait for a
//! disk that is slow.
//!
//! Invariant: what comes from the member that leaves matches the checksums that came with it, and the checksums of rows
//! those of the data shards that serve; whatever it has not got, or not good, is made of the others' as if it were not
//! there. What the others cannot make either, block by block, is taken from whoever has it good.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use cairn_chunk_core::row_decode::Remade;
use cairn_env::AlignedBuf;
use cairn_format::chunk_header::row_tables;
use cairn_format::pg_state::{PgStateMember, PgStateRecord};
use cairn_types::{BLOCK_SIZE, DiskId, Epoch, MemberState, Time};
use cairn_wire::data::PgState;

use super::Inner;
use super::copy::Theirs;
use super::fetch::{At, is_about_bytes};
use super::member::Member;
use super::rebuild::{Rebuild, RebuildError, Rebuilt};

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

    pub(super) fn took(&mut self, way: Way, time: Duration, blocks: usize) {
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
    fn at(&self, job: &Rebuild) -> At<'_> {
        At { pg: &self.pg, disk: self.disk, id: job.id, made: Some(job.creation_epoch) }
    }

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
    /// Blocks of the shard from the member that leaves, if there is one, that way is the faster one, and it has them
    /// good.
    pub(super) async fn copy_from_leaver(self: &Arc<Self>, job: &Rebuild, blocks: &Range<u32>) -> Option<Rebuilt> {
        let leaver = job.leaver.as_ref()?;
        if job.runtime.state.lock().ways.choose() == Way::Make {
            return None;
        }
        let begun = self.clock.now();
        let at = leaver.at(job);
        let offset = u64::from(blocks.start) * BLOCK_SIZE as u64;
        let fetch = self.fetch_rows(&at, offset, (blocks.len() * BLOCK_SIZE) as u32);
        let rows = row_tables(leaver.pg.scheme, job.shard as u8) * blocks.len();
        let (copied, answered) = match tokio::time::timeout(self.config.rebuild_hedge, fetch).await {
            Ok(Ok(fetched))
                if fetched.row_crcs.len() == rows && self.rows_agree(job, blocks, &fetched.row_crcs).await =>
            {
                (Some(fetched), true)
            }
            Ok(Ok(_)) => (None, true),
            Err(_) => (None, false),
            Ok(Err(error)) => {
                tracing::debug!(chunk = %job.id, ?blocks, %error, "the member that leaves does not give this; it is made of the others' shards");
                (None, is_about_bytes(&error))
            }
        };
        // A bad block there says nothing about the next piece.
        let (time, pieces) = if answered { (self.clock.now().since(begun), blocks.len()) } else { (FAILED, 1) };
        job.runtime.state.lock().ways.took(Way::Copy, time, pieces);
        let fetched = copied?;
        Some(Rebuilt {
            data: fetched.data,
            sums: Remade { crcs: fetched.crcs, row_crcs: fetched.row_crcs },
            lost: Vec::new(),
        })
    }

    /// Blocks were made of the others' shards, or could not be.
    pub(super) fn made_of_others(&self, job: &Rebuild, begun: Time, blocks: &Range<u32>, made: bool) {
        if job.leaver.is_some() {
            let (time, blocks) = if made { (self.clock.now().since(begun), blocks.len()) } else { (FAILED, 1) };
            job.runtime.state.lock().ways.took(Way::Make, time, blocks);
        }
    }

    /// What the others could not make, as `error` says: each block that the member that leaves has good as it is there,
    /// the rest made of the others' row by row.
    pub(super) async fn of_both(
        self: &Arc<Self>,
        job: &Arc<Rebuild>,
        blocks: &Range<u32>,
        error: RebuildError,
    ) -> Result<Rebuilt, RebuildError> {
        let Some(leaver) = &job.leaver else { return Err(error) };
        let bytes = |block: u32| u64::from(block) * BLOCK_SIZE as u64;
        let held = self.fetch_good(&leaver.at(job), bytes(blocks.start)..bytes(blocks.end)).await;
        if held.good.is_empty() && (held.unanswered || !job.may_lose) {
            return Err(error);
        }
        let mut both = Rebuilt {
            data: AlignedBuf::unpooled(blocks.len() * BLOCK_SIZE),
            sums: Remade { crcs: Vec::new(), row_crcs: Vec::new() },
            lost: Vec::new(),
        };
        for block in blocks.clone() {
            if let Some(good) = held.good.get(&block) {
                both.data.extend_from_slice(&good.data);
                both.sums.crcs.push(good.crc);
                both.sums.row_crcs.extend_from_slice(&good.row_crcs);
                continue;
            }
            let made = self.rebuild_rows(job, &(block..block + 1), job.may_lose && !held.unanswered).await?;
            both.data.extend_from_slice(&made.data);
            both.sums.crcs.extend(made.sums.crcs);
            both.sums.row_crcs.extend(made.sums.row_crcs);
            both.lost.extend(made.lost);
        }
        tracing::debug!(chunk = %job.id, ?blocks, held = held.good.len(), "blocks were put together of the member that leaves and of the others");
        Ok(both)
    }

    /// Whether checksums of rows are those that the data shards have, as far as these serve and answer: on the disk of
    /// the member that leaves they may have become others, and here nothing would tell.
    async fn rows_agree(&self, job: &Rebuild, blocks: &Range<u32>, row_crcs: &[u32]) -> bool {
        let k = job.codec.k();
        if job.shard < k {
            return true;
        }
        let tables = job.data_tables.get_or_init(|| self.data_tables(job)).await;
        let agrees = |(at, found): (usize, &u32)| {
            let (block, shard) = (blocks.start + (at / k) as u32, at % k);
            let theirs = tables[shard].as_ref().filter(|theirs| !theirs.punched.get(block));
            theirs.and_then(|theirs| theirs.crcs.get(block as usize)).is_none_or(|known| known == found)
        };
        let differs = row_crcs.iter().enumerate().position(|row| !agrees(row));
        if let Some(at) = differs {
            let block = blocks.start + (at / k) as u32;
            tracing::warn!(chunk = %job.id, block, "the member that leaves has other checksums of a row than the data shards; it is made of these");
        }
        differs.is_none()
    }

    /// The tables of the data shards that serve.
    async fn data_tables(&self, job: &Rebuild) -> Vec<Option<Theirs>> {
        let mut tables = Vec::new();
        for shard in 0..job.codec.k() {
            let of = job.others.iter().find(|(other, _)| *other == shard).map(|(_, disk)| *disk);
            tables.push(match of {
                Some(disk) => self.table_of(&job.pg, disk, job.id).await.ok(),
                None => None,
            });
        }
        tables
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
