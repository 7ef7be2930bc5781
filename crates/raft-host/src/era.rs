//! Eras: a group whose state was put back from a backup, or made anew, must never mix with members of before.
//!
//! The upper bits of a term are its era; all terms of one history have the same one. Restoring gives a group a later
//! era. Invariants: a message of an earlier era never reaches the core, and whoever sent it is told the later one; a
//! member that has anything of an earlier era stops for good when it hears of a later one: its log and the present one
//! are different histories, in which the same index means different entries. An empty member takes any era: it has
//! nothing. Not here: who gives a new era (whoever restores, offline).

use cairn_raft::{Position, Restored};
use cairn_types::{era_of, first_term};
use cairn_wire::raft::RaftMessage;

/// What is done with a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is of this history.
    Take,
    /// Its sender is of before: it is told so, with a message of this kind and term.
    Tell(u64),
    /// This member is of before.
    Superseded(u64),
}

/// Compares a message with the member's term and last entry.
pub(crate) fn judge(message: &RaftMessage, own_term: u64, last: Position) -> Verdict {
    let (theirs, own) = (era_of(message.term), era_of(own_term).max(era_of(last.term)));
    let empty = last.index == 0;
    match theirs.cmp(&own) {
        std::cmp::Ordering::Equal => Verdict::Take,
        std::cmp::Ordering::Greater if empty => Verdict::Take,
        std::cmp::Ordering::Greater => Verdict::Superseded(theirs),
        // Tells tell nobody back: two would go on for ever.
        std::cmp::Ordering::Less => Verdict::Tell(first_term(own)),
    }
}

/// Whether a state was put in place by a restore and nothing was done with it since: it ends with the first term of a
/// later era, in which nobody has voted. A member that gets such a state from its leader knows a later term.
pub(crate) fn is_put_in_place(restored: &Restored) -> bool {
    let term = restored.base.term;
    let is_first = era_of(term) > 0 && term == first_term(era_of(term));
    is_first && restored.entries.is_empty() && (restored.hard.term, restored.hard.vote) == (term, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(term: u64) -> RaftMessage {
        RaftMessage { term, ..RaftMessage::default() }
    }

    /// A member of before would vote, or put its entries among those of the restored group.
    #[test]
    fn eras_do_not_mix() {
        let (old, new) = (7, first_term(1_795_000_000) + 3);
        let last = Position { index: 900, term: 7 };
        assert_eq!(judge(&message(8), old, last), Verdict::Take);
        assert_eq!(judge(&message(new), old, last), Verdict::Superseded(1_795_000_000));
        let restored = Position { index: 1 << 32, term: first_term(1_795_000_000) };
        assert_eq!(judge(&message(8), new, restored), Verdict::Tell(first_term(1_795_000_000)));
        assert_eq!(judge(&message(new + 1), new, restored), Verdict::Take);
        // Restarted before it wrote a promise.
        assert_eq!(judge(&message(8), 0, restored), Verdict::Tell(first_term(1_795_000_000)));
    }

    /// A new member of a restored group could never join.
    #[test]
    fn an_empty_member_takes_any_era() {
        let new = first_term(1_795_000_000);
        assert_eq!(judge(&message(new), 0, Position::default()), Verdict::Take);
        assert_eq!(judge(&message(new), 5, Position::default()), Verdict::Take);
    }

    /// Numbers that peers may send end at 2^62.
    #[test]
    fn eras_fit_until_2106() {
        assert!(first_term(u64::from(u32::MAX)) < 1 << 62);
    }
}
