//! What members say of a chunk, as [`reconcile`] takes it, which decides what is true of it and who gets what from
//! whom.
//!
//! Invariant: who counts is what [`Role`] says. Not here: how that is carried out (`seal_old.rs`, `copy.rs`,
//! `catch_up_shards.rs`).

use cairn_chunk_core::fence;
use cairn_chunk_core::overwrite::Follow;
use cairn_format::overwrite_number::OverwriteNumber;
use cairn_replica_core::message::ChunkSum;
use cairn_replica_core::reconcile::{self, Here, Now, Purpose, Said, Verdict, Witness};
use cairn_replica_core::role::{Right, Role};
use cairn_replica_core::roster::Roster;
use cairn_types::{ChunkId, DiskId, Epoch, SessionId};
use cairn_wire::data::{ChunkSummary, ListChunksResponse};
use cairn_wire::error::WireError;

use super::Inner;
use super::member::Member;

/// The number that a list names.
pub(super) fn number_in(theirs: &ChunkSummary) -> OverwriteNumber {
    OverwriteNumber { epoch: Epoch(theirs.overwrite_epoch), count: theirs.overwrite_count }
}

/// A chunk as another member lists it.
pub(super) fn sum_of(theirs: &ChunkSummary) -> ChunkSum {
    ChunkSum {
        index: theirs.index,
        length: theirs.length,
        durable: theirs.durable_length,
        sealed: theirs.sealed,
        made: Epoch(theirs.creation_epoch),
        session: SessionId(theirs.session),
        table_crc: theirs.table_crc,
        freed: u32::try_from(theirs.punched_blocks).unwrap_or(u32::MAX),
        number: number_in(theirs),
        follow: Follow::default(),
    }
}

/// A chunk as it is here.
pub(super) fn own_sum(member: &Member, id: ChunkId) -> Option<ChunkSum> {
    let info = member.store.info(id)?;
    Some(ChunkSum {
        index: id.index,
        length: info.length,
        durable: info.durable,
        sealed: info.sealed,
        made: info.creation_epoch,
        session: info.session,
        table_crc: info.table_crc,
        freed: info.punched_blocks,
        number: info.overwrite,
        follow: member.store.chunk(id).map(|chunk| chunk.follow()).unwrap_or_default(),
    })
}

/// Whether a member has a right by its role in the epoch of `member`.
pub(super) fn has_right(member: &Member, disk: DiskId, right: Right) -> bool {
    Role::of(&member.pg, disk, false).rights().contains(&right)
}

pub(super) fn witness(member: &Member, disk: DiskId, said: Said) -> Witness {
    Witness { disk, serves: has_right(member, disk, Right::Witness), said }
}

/// What is here of a chunk: another shard than the member's is nothing of its own.
pub(super) fn own_witness(member: &Member, id: ChunkId) -> Witness {
    let own = own_sum(member, id).filter(|_| member.check_shard(id).is_ok());
    witness(member, member.disk, own.map_or(Said::Lacks, Said::Has))
}

/// What the others that serve list of a chunk; of whom there is no page said nothing.
pub(super) fn listed(member: &Member, pages: &[(DiskId, ListChunksResponse)], id: ChunkId) -> Vec<Witness> {
    let of = |page: &ListChunksResponse| page.chunks.iter().find(|chunk| chunk.index == id.index).map(sum_of);
    let said = |disk: DiskId| match pages.iter().find(|(from, _)| *from == disk) {
        Some((_, page)) => of(page).map_or(Said::Lacks, Said::Has),
        None => Said::Silent,
    };
    let others = fence::serving(&member.pg).filter(|disk| *disk != member.disk);
    others.map(|disk| witness(member, disk, said(disk))).collect()
}

impl Inner {
    /// What a member has of a chunk.
    pub(super) async fn ask_witness(&self, member: &Member, disk: DiskId, id: ChunkId) -> Result<Witness, WireError> {
        if disk == member.disk {
            return Ok(own_witness(member, id));
        }
        let found = self.listed(&member.pg, disk, id).await?;
        Ok(witness(member, disk, found.as_ref().map(sum_of).map_or(Said::Lacks, Said::Has)))
    }

    /// What is to be done about a chunk.
    pub(super) fn decide(&self, member: &Member, purpose: Purpose, id: ChunkId, witnesses: &[Witness]) -> Verdict {
        let roster = Roster::of(&member.pg, member.disk, false);
        let now = Now { skipped: self.skipped(member, id), ..member.runtime.state.lock().now(id.index) };
        reconcile::decide(purpose, &Here::of(&roster, now), witnesses)
    }
}
