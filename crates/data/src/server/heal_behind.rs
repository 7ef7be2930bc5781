//! Healing a block of a replicated chunk of which this member has more than any other one: it took bytes that never
//! reached the others, which were sealed without it.
//!
//! Every serving member has all that was acknowledged, so what lies behind the end of those that are sealed was not.
//! Invariants: bytes that another member has come from there; those behind the ends of all others stay as they are
//! here, and count only if nobody else can have them.

use std::sync::Arc;

use cairn_chunk_core::fence;
use cairn_env::AlignedBuf;
use cairn_types::{BLOCK_SIZE, ChunkId, DiskId, ErrorCode, crc32c};
use cairn_wire::error::WireError;

use super::Inner;
use super::disk_calls::wait;
use super::fetch::is_about_bytes;
use super::member::Member;
use crate::disk::GoodBlock;

fn zeros() -> AlignedBuf {
    let mut data = AlignedBuf::unpooled(BLOCK_SIZE);
    data.resize(BLOCK_SIZE);
    data
}

impl Inner {
    /// A bad block in or behind which all other serving members end: what they have of it, and the rest of what is
    /// here. `None` if one of them has all of it, may get more, or has not got what lies before.
    pub(super) async fn behind_ends(
        self: &Arc<Self>,
        asker: &Member,
        id: ChunkId,
        block: u32,
    ) -> Result<Option<GoodBlock>, WireError> {
        let from = u64::from(block) * BLOCK_SIZE as u64;
        let Some(here) = asker.store.info(id).filter(|here| here.sealed) else { return Ok(None) };
        let wanted = here.length.min(from + BLOCK_SIZE as u64);
        let mut ends: Vec<(u64, DiskId)> = Vec::new();
        for other in fence::serving(&asker.pg).filter(|other| *other != asker.disk) {
            match self.listed(&asker.pg, other, id).await? {
                Some(theirs) if theirs.sealed && theirs.length < wanted => ends.push((theirs.length, other)),
                _ => return Ok(None),
            }
        }
        let Some(end) = ends.iter().map(|(end, _)| *end).max() else { return Ok(None) };
        let own = match wait(|done| asker.store.read(id, from, wanted - from, done)).await {
            Ok(own) => own.data,
            // The device cannot read it: then nobody has these bytes, which nobody was told of.
            Err(error) if error.code == ErrorCode::Missing => zeros(),
            Err(error) => return Err(error),
        };
        let mut data = AlignedBuf::unpooled(BLOCK_SIZE);
        if end > from {
            let Some(theirs) = self.part_of_block(asker, id, from, end, &ends).await? else { return Ok(None) };
            // Bytes of later appends may begin only behind this block: then theirs, filled up with zeros, is what the
            // checksum here says.
            let (known, crc) = (asker.store.tables(id).ok(), crc32c(&theirs));
            if known.is_some_and(|tables| tables.crcs.get(block as usize) == Some(&crc)) {
                return Ok(Some(GoodBlock { data: theirs.freeze(), crc, row_crcs: Vec::new() }));
            }
            data.extend_from_slice(&theirs[..(end - from) as usize]);
        }
        let known = data.len();
        data.extend_from_slice(&own[known..]);
        let crc = crc32c(&data);
        tracing::warn!(disk = %asker.disk, chunk = %id, block, end, "a bad block lies behind the end of the chunk on all other members; what they have of it is taken from there");
        Ok(Some(GoodBlock { data: data.freeze(), crc, row_crcs: Vec::new() }))
    }

    /// The beginning of a block, up to the end of those that have most of it, filled up with zeros.
    async fn part_of_block(
        self: &Arc<Self>,
        asker: &Member,
        id: ChunkId,
        from: u64,
        end: u64,
        ends: &[(u64, DiskId)],
    ) -> Result<Option<AlignedBuf>, WireError> {
        for (_, other) in ends.iter().filter(|(theirs, _)| *theirs == end) {
            match self.fetch(&asker.pg, *other, id, from, (end - from) as u32).await {
                Ok((data, _)) if data.len() == BLOCK_SIZE => return Ok(Some(data)),
                Ok(_) => {}
                Err(error) if is_about_bytes(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }
}
