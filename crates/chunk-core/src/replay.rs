//! What a restart makes of a chunk's file and of the journal's records about it, as an exhaustive table.
//!
//! | file | journal says | then |
//! |---|---|---|
//! | any | deleted | remove the file |
//! | absent | deleted, made again | make it from the journal, as if there were nothing in front of that |
//! | there | deleted, made again | write it anew from the journal: it may be the one that was deleted |
//! | absent | created | make it from the journal |
//! | absent | changes without creation | it is lost here: report, others have it |
//! | absent | nothing | nothing |
//! | header unreadable | created | write the header again, go on as with a new one |
//! | header unreadable | anything else | set it aside and report |
//! | state unreadable | an extent | take length and seal from the journal |
//! | state unreadable | no extent | set it aside and report |
//! | good | anything | use it, redo the changes |
//!
//! It works because a file is only made after its creation is durable in the journal, and because headers and states
//! are only written while what is in them is in the journal too. So of a chunk that was made again under the number of
//! a deleted one nothing but bytes has to be in its file, and those it has: they are promised only once the name is
//! durable. Then the length: [`verified_length`].

use cairn_types::BLOCK_SIZE;

/// The chunk's file as found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HomeFile {
    /// There is none.
    Absent,
    /// It does not start with this chunk's header.
    BadHeader,
    /// The header is good, the state is not.
    BadState,
    /// Both are good.
    Good,
}

/// The journal's records about the chunk, since the oldest that is kept; if it was deleted and made again under its
/// number, since that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct JournalSays {
    /// A record of its creation.
    pub created: bool,
    /// A record with length and seal.
    pub extent: bool,
    /// A record with freed blocks.
    pub punched: bool,
    /// A record of its end, and none of its creation behind that.
    pub deleted: bool,
    /// A record of the end of one that had its number before it was created.
    pub again: bool,
}

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplayPlan {
    /// No file, no records that matter.
    Nothing,
    /// Take the file away.
    Remove,
    /// Make the file, then redo the records.
    Make,
    /// Write header and state anew over the file, then redo the records.
    Rewrite,
    /// Redo the records on the file as it is; with a bad state, length and seal start from the journal.
    Redo,
    /// Rename the file so that nobody takes it for good, and report it.
    SetAside,
    /// Report that the file vanished.
    Lost,
}

/// The table above.
pub fn plan(file: HomeFile, journal: JournalSays) -> ReplayPlan {
    let any = journal.created || journal.extent || journal.punched;
    match file {
        HomeFile::Absent if journal.deleted => ReplayPlan::Nothing,
        _ if journal.deleted => ReplayPlan::Remove,
        HomeFile::Absent if journal.created => ReplayPlan::Make,
        HomeFile::Absent if any => ReplayPlan::Lost,
        HomeFile::Absent => ReplayPlan::Nothing,
        _ if journal.again => ReplayPlan::Rewrite,
        HomeFile::BadHeader if journal.created => ReplayPlan::Rewrite,
        HomeFile::BadHeader => ReplayPlan::SetAside,
        HomeFile::BadState if journal.extent || journal.created => ReplayPlan::Redo,
        HomeFile::BadState => ReplayPlan::SetAside,
        HomeFile::Good => ReplayPlan::Redo,
    }
}

/// The longest prefix that this member can stand for: `durable` bytes were promised and stay even if a block of them is
/// bad (it is healed from another member, not cut off); of what follows, up to `claimed`, as many blocks as `good` says
/// match their checksums.
pub fn verified_length(durable: u64, claimed: u64, mut good: impl FnMut(u32) -> bool) -> u64 {
    let block = BLOCK_SIZE as u64;
    let mut length = durable;
    let mut at = durable / block;
    while at * block < claimed && good(at as u32) {
        length = ((at + 1) * block).min(claimed);
        at += 1;
    }
    length.max(durable)
}

#[cfg(test)]
mod tests {
    use super::*;
    use HomeFile::{Absent, BadHeader, BadState, Good};

    /// A chunk could come back from the dead, lose its bytes, or be taken for good with a wrong length.
    #[test]
    fn the_table_is_exhaustive() {
        let (mut removed, mut seen) = (0, 0);
        for bits in 0..24u8 {
            // Made again is a creation behind a deletion.
            let says = JournalSays {
                created: bits & 1 != 0 || bits & 16 != 0,
                extent: bits & 2 != 0,
                punched: bits & 4 != 0,
                deleted: bits & 8 != 0,
                again: bits & 16 != 0,
            };
            for file in [Absent, BadHeader, BadState, Good] {
                seen += 1;
                let plan = plan(file, says);
                if says.deleted {
                    removed += 1;
                    assert_eq!(plan, if file == Absent { ReplayPlan::Nothing } else { ReplayPlan::Remove });
                    continue;
                }
                let wanted = match (file, says.created, says.extent, says.punched) {
                    (Absent, true, ..) => ReplayPlan::Make,
                    (Absent, false, false, false) => ReplayPlan::Nothing,
                    (Absent, ..) => ReplayPlan::Lost,
                    _ if says.again => ReplayPlan::Rewrite,
                    (BadHeader, true, ..) => ReplayPlan::Rewrite,
                    (BadHeader, ..) | (BadState, false, false, _) => ReplayPlan::SetAside,
                    (BadState | Good, ..) => ReplayPlan::Redo,
                };
                assert_eq!(plan, wanted, "{file:?} {says:?}");
            }
        }
        assert_eq!((seen, removed), (96, 32));
    }

    /// Promised bytes would be cut off, or unverified ones taken for good.
    #[test]
    fn only_verified_blocks_extend_the_promise() {
        assert_eq!(verified_length(0, 10_000, |_| true), 10_000);
        assert_eq!(verified_length(0, 10_000, |b| b < 2), 8192);
        assert_eq!(verified_length(5000, 10_000, |_| false), 5000);
        assert_eq!(verified_length(5000, 10_000, |b| b == 1), 8192);
        assert_eq!(verified_length(8192, 8192, |_| panic!("nothing to verify")), 8192);
        assert_eq!(verified_length(9000, 4096, |_| panic!("nothing to verify")), 9000);
    }
}
