//! What a member of an erasure group lacks of its own shard of a chunk, seen from what serving members list.
//!
//! | the others | here | then |
//! |---|---|---|
//! | made in this epoch | any | the writer sends it here too |
//! | fewer than k have sealed it or lack it | any | wait: each seals its own |
//! | k-th longest sealed shard is longer | any | rebuild up to it, then seal |
//! | some have freed more | any | free the same, then seal |
//! | else | open | seal |
//! | else | sealed, or absent | same |
//!
//! The k-th longest is what can be rebuilt at all, and all that was published is below it: it was durable on every
//! member that served then. A member that lacks the chunk counts with length 0: it was deleted there, or it never came,
//! or it is lost. Invariants: nothing here is ever shortened, nor deleted because others lack it; only whole blocks are
//! rebuilt.

use cairn_types::{BLOCK_SIZE, Epoch, SessionId};

/// What one member has of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShardSum {
    /// Bytes.
    pub length: u64,
    /// Takes no more.
    pub sealed: bool,
    /// Epoch in which it was made.
    pub creation_epoch: Epoch,
    /// Its writer.
    pub session: SessionId,
    /// Freed blocks.
    pub punched_blocks: u64,
}

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShardVerdict {
    /// Nothing.
    Same,
    /// The writer sends it to this member too.
    WrittenNow,
    /// Others are about to seal it.
    Wait,
    /// Rebuild up to `target` what is not here, free what others have freed, seal.
    Bring {
        /// A multiple of the block size.
        target: u64,
    },
}

/// The table above. `others` has an entry for each serving member that answered, `None` where it lacks the chunk.
pub fn judge_shard(others: &[Option<ShardSum>], here: Option<&ShardSum>, k: usize, epoch: Epoch) -> ShardVerdict {
    let known = others.iter().flatten();
    if known.clone().chain(here).any(|sum| sum.creation_epoch >= epoch) {
        return ShardVerdict::WrittenNow;
    }
    let settled = others.iter().filter(|sum| sum.is_none_or(|sum| sum.sealed));
    let mut lengths: Vec<u64> = settled.map(|sum| sum.map_or(0, |sum| sum.length)).collect();
    lengths.sort_unstable_by(|a, b| b.cmp(a));
    let Some(target) = k.checked_sub(1).and_then(|last| lengths.get(last)) else { return ShardVerdict::Wait };
    let target = target - target % BLOCK_SIZE as u64;
    let freed = known.map(|sum| sum.punched_blocks).max().unwrap_or(0);
    match here {
        None if target == 0 => ShardVerdict::Same,
        Some(here) if here.sealed && here.length >= target && here.punched_blocks >= freed => ShardVerdict::Same,
        _ => ShardVerdict::Bring { target },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Epoch = Epoch(7);

    fn sum(blocks: u64, sealed: bool, made: u64) -> ShardSum {
        let length = blocks * 4096;
        ShardSum { length, sealed, creation_epoch: Epoch(made), session: SessionId(1), punched_blocks: 0 }
    }

    fn have(blocks: u64) -> Option<ShardSum> {
        Some(sum(blocks, true, 3))
    }

    /// A member would count as complete without being so, would make up what nobody can check, or would wait for ever.
    #[test]
    fn verdicts() {
        let open = Some(sum(9, false, 3));
        let bring = |blocks: u64| ShardVerdict::Bring { target: blocks * 4096 };
        for (others, here, wanted) in [
            // The k-th longest counts, here k = 3.
            (vec![have(8), have(8), have(8), have(8)], None, bring(8)),
            (vec![have(8), have(8), have(7), have(2)], None, bring(7)),
            (vec![have(9), have(8), have(7)], have(5), bring(7)),
            (vec![have(9), have(8), have(7)], have(7), ShardVerdict::Same),
            (vec![have(9), have(8), have(7)], have(9), ShardVerdict::Same),
            (vec![have(9), have(8), have(7)], Some(sum(9, false, 3)), bring(7)),
            // Deleted on most, or never there.
            (vec![have(8), have(8), None, None], None, ShardVerdict::Same),
            (vec![None, None, None], have(8), ShardVerdict::Same),
            (vec![None, None, None], Some(sum(8, false, 3)), bring(0)),
            // Open ones say nothing; k others may be enough.
            (vec![have(8), have(8), open], None, ShardVerdict::Wait),
            (vec![have(8), have(8), open, have(8)], None, bring(8)),
            (vec![have(8), have(8)], None, ShardVerdict::Wait),
            // Of this epoch.
            (vec![Some(sum(2, false, 7)), None, None], None, ShardVerdict::WrittenNow),
            (vec![None, None, None], Some(sum(2, false, 7)), ShardVerdict::WrittenNow),
        ] {
            assert_eq!(judge_shard(&others, here.as_ref(), 3, NOW), wanted, "{others:?} {here:?}");
        }
    }

    /// Freed rows would keep their space on a member that was away.
    #[test]
    fn what_others_freed_is_freed_here() {
        let freed = Some(ShardSum { punched_blocks: 2, ..sum(8, true, 3) });
        let others = vec![have(8), freed, have(8)];
        assert_eq!(judge_shard(&others, have(8).as_ref(), 3, NOW), ShardVerdict::Bring { target: 8 * 4096 });
        assert_eq!(judge_shard(&others, freed.as_ref(), 3, NOW), ShardVerdict::Same);
    }

    /// Half a block has no checksum that others could confirm.
    #[test]
    fn only_whole_blocks_are_rebuilt() {
        let part = Some(ShardSum { length: 4096 * 3 + 100, ..sum(0, true, 3) });
        assert_eq!(judge_shard(&[part, part], None, 2, NOW), ShardVerdict::Bring { target: 3 * 4096 });
    }
}
