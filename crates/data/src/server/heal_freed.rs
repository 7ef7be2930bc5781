//! A bad block of a replicated chunk that was freed here, on a disk that lost the mark.
//!
//! Metadata told all members to free the chunk, and the others have nothing of it any more that could say so.
//! Invariant: a block is freed only if it is a hole here, no member is away, and none has anything of the block. Where
//! the start found the marks of its chunk damaged, which the next start does not know any more, it may be a hole in
//! part.

use std::sync::Arc;

use cairn_format::crc_table::{PunchedBits, blocks_of};
use cairn_types::{BLOCK_SIZE, ChunkId, MemberState};
use cairn_wire::error::WireError;

use super::Inner;
use super::disk_calls::wait;
use super::fetch::is_about_bytes;
use super::member::Member;

/// Bytes that a device writes, or gives back, at once.
const SECTOR: usize = 512;

impl Inner {
    /// Frees a bad block if it can only be one that was freed before; whether it is.
    pub(super) async fn free_unmarked(
        self: &Arc<Self>,
        asker: &Member,
        id: ChunkId,
        block: u32,
    ) -> Result<bool, WireError> {
        let forgot = asker.store.chunk(id).is_some_and(|chunk| chunk.has_lost_marks());
        let Some(here) = asker.store.info(id).filter(|here| here.sealed) else { return Ok(false) };
        let is_there = |state: MemberState| matches!(state, MemberState::Serving | MemberState::Syncing);
        if !asker.pg.members.iter().all(|member| is_there(member.state)) {
            return Ok(false);
        }
        let from = u64::from(block) * BLOCK_SIZE as u64;
        // One that copies the chunk from here may have got as far as this block.
        let mut others = Vec::new();
        for other in asker.pg.members.iter().filter(|other| other.disk != asker.disk) {
            if self.listed(&asker.pg, other.disk, id).await?.is_some_and(|theirs| theirs.length > from) {
                return Ok(false);
            }
            others.push(other.state);
        }
        let length = here.length.saturating_sub(from).min(BLOCK_SIZE as u64);
        let own = match wait(|done| asker.store.read(id, from, length, done)).await {
            Ok(own) => own.data,
            // What the device cannot read is no hole.
            Err(error) if is_about_bytes(&error) => return Ok(false),
            Err(error) => return Err(error),
        };
        let mut sectors = own[..own.len().min(length as usize)].chunks(SECTOR);
        let is_empty = |part: &[u8]| part.iter().all(|byte| *byte == 0);
        // Power that fails while a hole is punched leaves some sectors as they were, or torn.
        let is_hole = if forgot { sectors.any(is_empty) } else { sectors.all(is_empty) };
        if !others.contains(&MemberState::Serving) || !is_hole {
            return Ok(false);
        }
        let mut freed = PunchedBits::default();
        freed.set(block..block + 1);
        self.take_punched(asker, id, &freed, blocks_of(here.length)).await?;
        tracing::warn!(disk = %asker.disk, chunk = %id, block, "a bad block is a hole, and no other member has anything of it: its mark was lost, and it is freed");
        Ok(true)
    }
}
