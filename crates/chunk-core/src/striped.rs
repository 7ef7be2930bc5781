//! What a member of an erasure group takes: shards, each from the writer itself.
//!
//! | request | taken by | when |
//! |---|---|---|
//! | append | serving and syncing members, without a chain | the chunk was made in the member's present epoch by this session, at the shard's end, whole blocks |
//! | sync | the same | the same |
//! | seal | the same | any epoch |
//! | read | serving members | any epoch |
//!
//! Invariants: the member at position i of a group holds shard i for ever; parity comes with the checksums of its rows
//! and data without any; what was made in an earlier epoch takes nothing more, and no member asks another before it
//! seals it.

use cairn_format::chunk_header::row_tables;
use cairn_format::pg_state::PgStateRecord;
use cairn_types::{BLOCK_SIZE, ChunkId, DiskId, Epoch};

use crate::fence::{Fence, state_of};

/// Why an append to a shard is refused, beside the fences of all chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ShardRefusal {
    /// A shard begins and ends at blocks.
    #[error("an append to a shard has whole blocks of {BLOCK_SIZE} bytes, not {bytes} bytes")]
    PartBlock {
        /// What came.
        bytes: usize,
    },
    /// Parity without them, data with them, or too few.
    #[error("shard {shard} takes {wanted} checksums of rows with this append, {found} came")]
    RowCrcs {
        /// The member's shard.
        shard: u8,
        /// What belongs to the append.
        wanted: usize,
        /// What came.
        found: usize,
    },
    /// The file here is another shard's.
    #[error(
        "the file of {chunk} here is that of shard {found}, the member's is {shard}; the disk is at a wrong position"
    )]
    OtherShard {
        /// The chunk.
        chunk: ChunkId,
        /// The member's shard.
        shard: u8,
        /// The file's.
        found: u8,
    },
}

/// The shard that a member holds: its position in an erasure group, 0 in a replicated one.
pub fn shard_of(pg: &PgStateRecord, disk: DiskId) -> Result<u8, Fence> {
    let position = pg.members.iter().position(|member| member.disk == disk);
    let position = position.ok_or(Fence::NotMember { pg: pg.pg, disk, epoch: pg.epoch })?;
    Ok(if pg.scheme.is_replicated() { 0 } else { u8::try_from(position).unwrap_or(u8::MAX) })
}

/// Checks that a member of an erasure group takes writes, and that nothing is to be passed on.
pub fn check_alone(pg: &PgStateRecord, disk: DiskId, chain: &[u32]) -> Result<(), Fence> {
    let state = state_of(pg, disk)?;
    if !state.receives_writes() {
        return Err(Fence::NotServing { pg: pg.pg, disk, state });
    }
    if chain.is_empty() { Ok(()) } else { Err(Fence::NoChain { pg: pg.pg }) }
}

/// A striped chunk takes bytes only in the epoch in which it was made.
pub fn check_made_now(pg: &PgStateRecord, made: Epoch) -> Result<(), Fence> {
    if made == pg.epoch { Ok(()) } else { Err(Fence::Over { pg: pg.pg, made, current: pg.epoch }) }
}

/// Checks what came for a shard: `bytes` and `row_crcs` checksums of rows; `existing` is the shard of the file here.
pub fn check_shard(
    pg: &PgStateRecord,
    chunk: ChunkId,
    shard: u8,
    existing: Option<u8>,
    bytes: usize,
    row_crcs: usize,
) -> Result<(), ShardRefusal> {
    if let Some(found) = existing.filter(|found| *found != shard) {
        return Err(ShardRefusal::OtherShard { chunk, shard, found });
    }
    if !pg.scheme.is_replicated() && !bytes.is_multiple_of(BLOCK_SIZE) {
        return Err(ShardRefusal::PartBlock { bytes });
    }
    let wanted = row_tables(pg.scheme, shard) * bytes.div_ceil(BLOCK_SIZE);
    if wanted == row_crcs { Ok(()) } else { Err(ShardRefusal::RowCrcs { shard, wanted, found: row_crcs }) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_format::pg_state::PgStateMember;
    use cairn_types::MemberState::{self, Offline, Serving, Syncing, Waiting};
    use cairn_types::{ClusterId, NodeId, PgId, Scheme, VolumeId};

    fn pg(scheme: Scheme, states: &[MemberState]) -> PgStateRecord {
        let member = |(i, state): (usize, &MemberState)| PgStateMember {
            disk: DiskId(i as u32 + 1),
            node: NodeId(i as u32 + 16),
            state: *state,
        };
        PgStateRecord {
            cluster: ClusterId([1; 16]),
            pg: PgId(1),
            volume: VolumeId(1),
            disk: DiskId(1),
            high_water: 0,
            epoch: Epoch(5),
            creation_epoch: Epoch(1),
            term: 1,
            scheme,
            retired: false,
            comparing: false,
            older_epoch: Epoch(0),
            members: states.iter().enumerate().map(member).collect(),
        }
    }

    const RS: Scheme = Scheme::Erasure { k: 3, m: 2 };

    /// A shard would lie where another one belongs, or a member would pass bytes on that are not the other's.
    #[test]
    fn members_take_their_own_shards_alone() {
        let pg = pg(RS, &[Serving, Syncing, Waiting, Offline, Serving]);
        for (disk, shard, takes) in [(1, 0, true), (2, 1, true), (3, 2, false), (4, 3, false), (5, 4, true)] {
            assert_eq!(shard_of(&pg, DiskId(disk)), Ok(shard));
            assert_eq!(check_alone(&pg, DiskId(disk), &[]).is_ok(), takes, "d{disk}");
        }
        assert_eq!(check_alone(&pg, DiskId(1), &[2]), Err(Fence::NoChain { pg: PgId(1) }));
        assert!(matches!(shard_of(&pg, DiskId(9)), Err(Fence::NotMember { .. })));
        assert_eq!(check_made_now(&pg, Epoch(5)), Ok(()));
        assert!(matches!(check_made_now(&pg, Epoch(4)), Err(Fence::Over { .. })));
    }

    /// Parity could not be checked when it is decoded with, or bytes would be taken that no row has.
    #[test]
    fn rows_come_with_parity() {
        let pg_rs = pg(RS, &[Serving; 5]);
        let chunk = ChunkId { pg: PgId(1), index: 3 };
        let check = |shard, existing, bytes, rows| check_shard(&pg_rs, chunk, shard, existing, bytes, rows);
        assert_eq!(check(0, None, 8192, 0), Ok(()));
        assert_eq!(check(2, Some(2), 4096, 0), Ok(()));
        assert_eq!(check(3, None, 8192, 6), Ok(()));
        assert_eq!(check(2, None, 4096, 3), Err(ShardRefusal::RowCrcs { shard: 2, wanted: 0, found: 3 }));
        assert_eq!(check(4, None, 8192, 0), Err(ShardRefusal::RowCrcs { shard: 4, wanted: 6, found: 0 }));
        assert_eq!(check(4, None, 8192, 5), Err(ShardRefusal::RowCrcs { shard: 4, wanted: 6, found: 5 }));
        assert_eq!(check(1, None, 4097, 0), Err(ShardRefusal::PartBlock { bytes: 4097 }));
        assert_eq!(check(1, Some(2), 4096, 0), Err(ShardRefusal::OtherShard { chunk, shard: 1, found: 2 }));
        let pg_r3 = pg(Scheme::Replicated(3), &[Serving; 3]);
        assert_eq!(shard_of(&pg_r3, DiskId(3)), Ok(0));
        assert_eq!(check_shard(&pg_r3, chunk, 0, Some(0), 4097, 0), Ok(()));
        assert!(check_shard(&pg_r3, chunk, 0, None, 4097, 1).is_err());
    }
}
