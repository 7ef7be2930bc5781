//! Overwrites in place: what may be overwritten, in which order, and what a member that catches up still needs.
//!
//! The primary gives each overwrite of a chunk the next number and names the one before it. A serving member takes an
//! overwrite only if the one before it is its own last; anything else means that it lacks something, and the primary
//! compares tables then ([`needs_settling`]). A syncing member takes what comes and remembers up to which number the
//! primary's table has to go that it copies ([`Follow`]).
//!
//! | is | overwrite of whole blocks |
//! |---|---|
//! | below the durable length, not freed | taken |
//! | the partial last block, chunk sealed | taken |
//! | the partial last block, chunk open | new space: its writer may be adding to it |
//! | beyond the durable length | refused |
//! | a freed block | refused: the extent map is old |
//!
//! Invariants: overwrites of a chunk have one order on all serving members; a number is never given twice.

use std::ops::Range;

use cairn_format::crc_table::{PunchedBits, blocks_of};
use cairn_format::overwrite_number::OverwriteNumber;
use cairn_types::{BLOCK_SIZE, DiskId, Epoch};

/// Most blocks of one overwrite: 1 MiB.
pub const OVERWRITE_BLOCKS_MAX: u32 = 256;
/// Most runs of blocks of one overwrite.
pub const OVERWRITE_VECTORS_MAX: usize = 256;

/// Why an overwrite is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OverwriteRefusal {
    /// The request makes no sense.
    #[error(
        "an overwrite has 1 to {OVERWRITE_BLOCKS_MAX} whole blocks in ascending runs within 64 MiB, and a checksum a block"
    )]
    Malformed,
    /// There is nothing to overwrite.
    #[error("block {block} lies beyond the {durable} bytes that are durable")]
    BeyondDurable {
        /// The block.
        block: u32,
        /// What is durable.
        durable: u64,
    },
    /// The writer of the chunk may be adding to that block.
    #[error("block {block} is the last of an open chunk; write it to new space")]
    OpenTail {
        /// The block.
        block: u32,
    },
    /// A freed block.
    #[error("block {block} was freed; refresh the extent map of the file")]
    Freed {
        /// The block.
        block: u32,
    },
    /// Not the one after the last that is here.
    #[error("overwrite {number} follows {previous}, but {here} is the last one here")]
    OutOfOrder {
        /// What came.
        number: OverwriteNumber,
        /// What has to be here.
        previous: OverwriteNumber,
        /// What is here.
        here: OverwriteNumber,
    },
    /// It was ordered in an epoch that is over.
    #[error("it was ordered in {asked}, the group is at {current}")]
    OldEpoch {
        /// When it was ordered.
        asked: Epoch,
        /// The member's epoch.
        current: Epoch,
    },
}

/// The runs of an overwrite in order, if they make sense: ascending, apart, not empty, not too many.
pub fn check_runs(runs: &[Range<u32>]) -> Result<u32, OverwriteRefusal> {
    let mut blocks = 0u32;
    let mut end = 0;
    for run in runs {
        if run.start >= run.end
            || run.start < end
            || u64::from(run.end) * BLOCK_SIZE as u64 > cairn_types::CHUNK_SIZE_MAX
        {
            return Err(OverwriteRefusal::Malformed);
        }
        end = run.end;
        blocks += run.end - run.start;
    }
    let fine = (1..=OVERWRITE_BLOCKS_MAX).contains(&blocks) && runs.len() <= OVERWRITE_VECTORS_MAX;
    if fine { Ok(blocks) } else { Err(OverwriteRefusal::Malformed) }
}

/// The table above, for a chunk of which `durable` bytes are durable.
pub fn check_blocks(
    runs: &[Range<u32>],
    durable: u64,
    sealed: bool,
    punched: Option<&PunchedBits>,
) -> Result<(), OverwriteRefusal> {
    let end = blocks_of(durable);
    for run in runs {
        if run.end > end {
            return Err(OverwriteRefusal::BeyondDurable { block: end.max(run.start), durable });
        }
        if run.end == end && !sealed && !durable.is_multiple_of(BLOCK_SIZE as u64) {
            return Err(OverwriteRefusal::OpenTail { block: end - 1 });
        }
        if let Some(block) = run.clone().find(|block| punched.is_some_and(|bits| bits.get(*block))) {
            return Err(OverwriteRefusal::Freed { block });
        }
    }
    Ok(())
}

/// Whether a serving member takes an overwrite.
pub fn check_order(
    here: OverwriteNumber,
    previous: OverwriteNumber,
    number: OverwriteNumber,
) -> Result<(), OverwriteRefusal> {
    if previous == here && number > previous {
        return Ok(());
    }
    Err(OverwriteRefusal::OutOfOrder { number, previous, here })
}

/// What a member knows of a chunk while it catches up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Follow {
    /// The last overwrite that came, or up to which a table was copied.
    pub last: OverwriteNumber,
    /// The table that is copied has to go at least so far; nothing is missing when it is none.
    pub need: OverwriteNumber,
    /// The epoch in which the chunk was found to be as the primary's; from then on it follows by what comes.
    pub in_step: Epoch,
}

impl Follow {
    /// An overwrite came. `whole`: all its blocks are here.
    pub fn came(&mut self, previous: OverwriteNumber, number: OverwriteNumber, whole: bool) {
        if previous != self.last {
            self.need = self.need.max(previous);
        }
        if !whole {
            self.need = self.need.max(number);
        }
        self.last = number;
    }

    /// The chunk was made equal to a table of the primary as of `number`, taken in `epoch`. Returns whether it is in
    /// step with the primary from now on; if not, a newer table is needed.
    pub fn copied(&mut self, number: OverwriteNumber, epoch: Epoch) -> bool {
        if number < self.need {
            return false;
        }
        // What came from this epoch's primary behind the table counts; what this member had alone before does not.
        if self.last.epoch < epoch || self.last < number {
            self.last = number;
        }
        (self.need, self.in_step) = (OverwriteNumber::NONE, epoch);
        true
    }

    /// Whether it holds everything that the primary listed as of `theirs`.
    pub fn has(&self, theirs: OverwriteNumber, epoch: Epoch) -> bool {
        self.in_step == epoch && !self.need.is_some() && self.last >= theirs
    }
}

/// A chunk on a member, as the primary hears of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OverwriteSum {
    /// The member.
    pub disk: DiskId,
    /// Whether it serves.
    pub serving: bool,
    /// Its last overwrite.
    pub number: OverwriteNumber,
    /// Its length.
    pub length: u64,
    /// Checksum of its table.
    pub table_crc: u32,
}

/// Whether the members of a chunk may differ in what was overwritten: all that have it are named, the primary first.
pub fn needs_settling(members: &[OverwriteSum]) -> bool {
    let serving = || members.iter().filter(|sum| sum.serving);
    let Some(first) = serving().next() else { return false };
    // Tables of different lengths say nothing; ends of open chunks are dealt with when they are sealed.
    serving().any(|sum| {
        sum.number != first.number || sum.table_crc != first.table_crc && sum.length == first.length
    }) || serving().any(|sum| sum.length != first.length && sum.number.is_some())
        // One that catches up may have numbers of its own, which must not be given again.
        || members.iter().any(|sum| sum.number > first.number)
}

/// A number that is higher than all that are known.
pub fn number_above(members: impl IntoIterator<Item = OverwriteNumber>, epoch: Epoch) -> OverwriteNumber {
    let count = members.into_iter().map(|number| number.count).max().unwrap_or(0);
    OverwriteNumber { epoch, count: count.saturating_add(1) }
}

/// Blocks in which two tables differ, of those that both have whole and neither has freed. `tails`: partial last blocks
/// are compared as well, if both end at the same byte.
pub fn differing_blocks(
    ours: (&[u32], u64, &PunchedBits),
    theirs: (&[u32], u64, &PunchedBits),
    tails: bool,
) -> Vec<Range<u32>> {
    let (length, block) = (ours.1.min(theirs.1), BLOCK_SIZE as u64);
    let end = if tails && ours.1 == theirs.1 { blocks_of(length) } else { (length / block) as u32 };
    let mut runs: Vec<Range<u32>> = Vec::new();
    for number in 0..end {
        let (a, b) = (ours.0.get(number as usize), theirs.0.get(number as usize));
        if a == b || ours.2.get(number) || theirs.2.get(number) {
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

    const BLOCK: u64 = BLOCK_SIZE as u64;

    fn no(epoch: u64, count: u64) -> OverwriteNumber {
        OverwriteNumber { epoch: Epoch(epoch), count }
    }

    /// Blocks that nobody promised, that others add to, or that belong to nobody could be changed.
    #[test]
    #[expect(clippy::single_range_in_vec_init, reason = "overwrites of one run are meant")]
    fn what_may_be_overwritten() {
        let mut punched = PunchedBits::default();
        punched.set(3..4);
        let at = |runs: &[Range<u32>], durable, sealed| check_blocks(runs, durable, sealed, Some(&punched));
        assert_eq!(at(&[0..1, 2..3], 4 * BLOCK, false), Ok(()));
        assert_eq!(at(&[4..5], 4 * BLOCK + 1, true), Ok(()));
        assert_eq!(at(&[4..5], 4 * BLOCK + 1, false), Err(OverwriteRefusal::OpenTail { block: 4 }));
        assert_eq!(at(&[4..5], 5 * BLOCK, false), Ok(()));
        let beyond = Err(OverwriteRefusal::BeyondDurable { block: 4, durable: 4 * BLOCK });
        assert_eq!(at(&[1..5], 4 * BLOCK, true), beyond);
        assert_eq!(at(&[2..4], 4 * BLOCK, true), Err(OverwriteRefusal::Freed { block: 3 }));
        for bad in [&[][..], &[1..1], &[2..3, 1..2], &[1..3, 2..4], &[0..257], &[16_384..16_385]] {
            assert_eq!(check_runs(bad), Err(OverwriteRefusal::Malformed), "{bad:?}");
        }
        assert_eq!(check_runs(&[0..1, 1..2, 16_383..16_384]), Ok(3));
        assert_eq!(
            check_runs(&(0..257u32).map(|i| i * 2..i * 2 + 1).collect::<Vec<_>>()),
            Err(OverwriteRefusal::Malformed)
        );
    }

    /// Overwrites could be applied in different orders, or one be left out.
    #[test]
    fn order_on_serving_members() {
        assert_eq!(check_order(no(0, 0), no(0, 0), no(4, 1)), Ok(()));
        assert_eq!(check_order(no(4, 7), no(4, 7), no(5, 8)), Ok(()));
        for (here, previous, number) in
            [(no(4, 7), no(4, 8), no(4, 9)), (no(4, 7), no(4, 6), no(4, 7)), (no(4, 7), no(5, 7), no(5, 8))]
        {
            assert!(check_order(here, previous, number).is_err(), "{here} {previous} {number}");
        }
    }

    /// A member would begin to serve without something that was acknowledged while it was away or copied.
    #[test]
    fn a_member_that_catches_up_knows_what_it_lacks() {
        let epoch = Epoch(5);
        // It was away with an overwrite that nobody else has.
        let mut follow = Follow { last: no(3, 9), ..Follow::default() };
        assert!(!follow.has(no(4, 8), epoch));
        follow.came(no(4, 8), no(5, 9), true);
        assert_eq!(follow.need, no(4, 8));
        assert!(!follow.copied(no(4, 7), epoch), "a table from before");
        follow.came(no(5, 9), no(5, 10), false);
        assert!(!follow.copied(no(5, 9), epoch), "a block of the tenth was not here yet");
        follow.came(no(5, 10), no(5, 11), true);
        assert!(follow.copied(no(5, 10), epoch));
        assert_eq!(follow.last, no(5, 11), "that came in the chain");
        assert!(follow.has(no(5, 11), epoch) && !follow.has(no(5, 12), epoch) && !follow.has(no(5, 11), Epoch(6)));
        follow.came(no(5, 12), no(5, 13), true);
        assert!(!follow.has(no(5, 12), epoch), "the twelfth never came");
        // The same where the others have fewer than it had.
        let mut ahead = Follow { last: no(3, 9), ..Follow::default() };
        assert!(ahead.copied(no(3, 7), epoch));
        assert_eq!(ahead.last, no(3, 7));
    }

    /// Members that differ would go on differing, or all chunks would be compared at every change of the epoch.
    #[test]
    fn members_that_differ_are_found() {
        let sum = |disk, number, table_crc| OverwriteSum {
            disk: DiskId(disk),
            serving: true,
            number,
            length: 8192,
            table_crc,
        };
        let same = [sum(1, no(3, 4), 7), sum(2, no(3, 4), 7)];
        assert!(!needs_settling(&same));
        assert!(needs_settling(&[same[0], sum(2, no(3, 3), 7)]));
        assert!(needs_settling(&[same[0], sum(2, no(3, 4), 8)]), "half copied");
        let syncing = |number| OverwriteSum { serving: false, ..sum(3, number, 9) };
        assert!(!needs_settling(&[same[0], same[1], syncing(no(2, 1))]));
        assert!(needs_settling(&[same[0], same[1], syncing(no(3, 5))]), "its number would be given again");
        assert_eq!(number_above([no(3, 4), no(2, 9), no(3, 1)], Epoch(4)), no(4, 10));
        assert_eq!(number_above([], Epoch(4)), no(4, 1));
    }

    /// Blocks that differ would stay different, or ends of open chunks and freed blocks be written over.
    #[test]
    fn tables_are_compared_where_both_have_blocks() {
        let (none, mut freed) = (PunchedBits::default(), PunchedBits::default());
        freed.set(1..2);
        let find = |a: &[u32], a_len, b: &[u32], b_len, bits: &PunchedBits, tails| -> Vec<(u32, u32)> {
            let runs = differing_blocks((a, a_len, &none), (b, b_len, bits), tails);
            runs.into_iter().map(|run| (run.start, run.end)).collect()
        };
        let len = 3 * BLOCK + 5;
        assert_eq!(find(&[1, 2, 3, 4], len, &[1, 9, 9, 9], len, &none, true), [(1, 4)]);
        assert_eq!(find(&[1, 2, 3, 4], len, &[1, 9, 9, 9], len, &freed, false), [(2, 3)]);
        assert_eq!(find(&[1, 2, 3, 4], len, &[9, 2, 9], 2 * BLOCK + 1, &none, true), [(0, 1)]);
    }
}
