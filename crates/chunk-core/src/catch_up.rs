//! What a syncing member lacks against the primary, chunk by chunk and block by block.
//!
//! | primary has it | here | then |
//! |---|---|---|
//! | open, made in this epoch | any | comes through the chain |
//! | open, made earlier | any | wait: the primary seals it |
//! | sealed | absent | copy |
//! | sealed | same length and table, sealed | same |
//! | sealed | other | copy what differs, then seal |
//! | absent, index below its high-water mark | made in an earlier epoch | surplus: keep and name it |
//! | absent | made in this epoch, or index not below the mark | keep |
//!
//! Surplus stays although the primary is complete as far as it knows: it may have lost the chunk's file to damage, and
//! then this copy is one of the last. What metadata freed is freed here as well when its `Free` comes. Invariants: no
//! list of a peer ever decides that bytes go; nothing longer than the primary's chunk is cut.

use std::ops::Range;

use cairn_format::crc_table::PunchedBits;
use cairn_types::{BLOCK_SIZE, Epoch};

/// What one side knows of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkSum {
    /// Bytes.
    pub length: u64,
    /// Takes no more.
    pub sealed: bool,
    /// Epoch in which it was made.
    pub creation_epoch: Epoch,
    /// Checksum of the CRC table up to the length.
    pub table_crc: u32,
}

/// What to do about a chunk that the primary has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing.
    Same,
    /// It arrives through the chain.
    InChain,
    /// The primary is about to seal it.
    Wait,
    /// Fetch its table, then what differs.
    Copy,
}

/// The table's upper part.
pub fn judge(primary: &ChunkSum, here: Option<&ChunkSum>, epoch: Epoch) -> Verdict {
    if !primary.sealed {
        return if primary.creation_epoch == epoch { Verdict::InChain } else { Verdict::Wait };
    }
    let same = |here: &ChunkSum| here.sealed && here.length == primary.length && here.table_crc == primary.table_crc;
    if here.is_some_and(same) { Verdict::Same } else { Verdict::Copy }
}

/// The table's lower part: whether a chunk that the primary does not list is one that it once had, or should have.
pub fn is_surplus(index: u32, creation_epoch: Epoch, high_water: u32, epoch: Epoch) -> bool {
    index < high_water && creation_epoch < epoch
}

/// Blocks to fetch: those whose CRC differs or that are not here, except what the primary has punched, and what was
/// punched here: metadata freed it everywhere, also where that was forgotten. `here` are this member's table, its
/// length and what it has punched; a partial last block counts as missing if the primary has more of it.
pub fn missing_blocks(
    primary_crcs: &[u32],
    primary_length: u64,
    punched: &PunchedBits,
    here: (&[u32], u64, &PunchedBits),
) -> Vec<Range<u32>> {
    let (here_crcs, here_length, punched_here) = here;
    let block = BLOCK_SIZE as u64;
    let mut runs: Vec<Range<u32>> = Vec::new();
    for (i, crc) in primary_crcs.iter().enumerate() {
        let number = i as u32;
        let end = ((i as u64 + 1) * block).min(primary_length);
        // A longer block here cannot be compared by its CRC; the caller looks at its bytes.
        let longer = end == primary_length && here_length > end && !end.is_multiple_of(block);
        let here = here_length >= end && (longer || here_crcs.get(i) == Some(crc));
        if here || punched.get(number) || punched_here.get(number) {
            continue;
        }
        match runs.last_mut() {
            Some(run) if run.end == number => run.end += 1,
            _ => runs.push(number..number + 1),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(length: u64, sealed: bool, made: u64, table_crc: u32) -> ChunkSum {
        ChunkSum { length, sealed, creation_epoch: Epoch(made), table_crc }
    }

    /// A member would count as complete without being so, or would copy for ever.
    #[test]
    fn verdicts() {
        let epoch = Epoch(7);
        let good = sum(10, true, 3, 1);
        for (primary, here, wanted) in [
            (sum(10, false, 7, 1), None, Verdict::InChain),
            (sum(10, false, 6, 1), None, Verdict::Wait),
            (good, None, Verdict::Copy),
            (good, Some(good), Verdict::Same),
            (good, Some(sum(10, false, 3, 1)), Verdict::Copy),
            (good, Some(sum(9, true, 3, 1)), Verdict::Copy),
            (good, Some(sum(10, true, 3, 2)), Verdict::Copy),
        ] {
            assert_eq!(judge(&primary, here.as_ref(), epoch), wanted, "{primary:?} {here:?}");
        }
        assert!(is_surplus(3, Epoch(6), 4, epoch));
        assert!(!is_surplus(4, Epoch(6), 4, epoch), "the mark may be behind");
        assert!(!is_surplus(3, Epoch(7), 4, epoch), "it may be younger than the list");
    }

    /// Blocks that differ would stay different, or good ones would be copied again.
    #[test]
    fn blocks_that_differ_are_found() {
        let mut punched = PunchedBits::default();
        let find_both = |punched: &PunchedBits, crcs: &[u32], length, here: &PunchedBits| -> Vec<(u32, u32)> {
            let runs = missing_blocks(&[1, 2, 3, 4], 4 * 4096 - 1, punched, (crcs, length, here));
            runs.into_iter().map(|run| (run.start, run.end)).collect()
        };
        let find =
            |punched: &PunchedBits, crcs: &[u32], length| find_both(punched, crcs, length, &PunchedBits::default());
        assert_eq!(find(&punched, &[], 0), [(0, 4)]);
        assert_eq!(find(&punched, &[1, 2, 3, 4], 4 * 4096 - 1), []);
        assert_eq!(find(&punched, &[1, 9, 3, 4], 4 * 4096 - 1), [(1, 2)]);
        assert_eq!(find(&punched, &[1, 2, 3, 8], 3 * 4096 + 5), [(3, 4)]);
        assert_eq!(find(&punched, &[1, 2, 3, 8], 4 * 4096), [], "longer than the primary's");
        punched.set(0..3);
        assert_eq!(find(&punched, &[], 0), [(3, 4)]);
        let freed_here = [9, 9, 3, 4];
        assert_eq!(find_both(&PunchedBits::default(), &freed_here, 4 * 4096, &PunchedBits::default()), [(0, 2)]);
        let mut here = PunchedBits::default();
        here.set(1..2);
        assert_eq!(find_both(&PunchedBits::default(), &freed_here, 4 * 4096, &here), [(0, 1)], "freed here");
    }
}
