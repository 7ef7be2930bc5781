//! Which messages of peers the `raft` crate may see. It panics on some that no correct peer sends (a commit index
//! behind the last entry, entries that do not join): those are refused here, against this member's own state.
//!
//! | message | refused when |
//! |---|---|
//! | any | not for this member, from itself or nobody, term 0, numbers beyond 2^62, a term to which no elections lead |
//! | append | entries not consecutive behind `index`, terms not ascending or beyond the leader's, a position whose index is zero and term not (or the reverse) |
//! | append answer | it matches more than the log has |
//! | heartbeat | its commit index lies behind the last entry: taken without the commit index |
//! | snapshot | without sound members, without this member, from a later term than the message |
//! | start an election | not from the leader of this term, or while something is not durable yet |
//! | others | never |

use cairn_types::{era_of, first_term};
use raft::eraftpb::{Message, MessageType};

/// A group has not had more elections than this since a member of it was heard last: one a second for half a year.
const TERMS_BEYOND: u64 = 1 << 24;
/// Largest term or index taken from a peer: leaves room for counting on.
pub(crate) const NUMBER_MAX: u64 = 1 << 62;

/// What the checks need to know of this member.
pub(crate) struct Own {
    pub id: u64,
    pub term: u64,
    pub leader: u64,
    pub last: u64,
    pub is_leader: bool,
    pub persisting: bool,
}

/// Refuses a message, or makes it harmless.
pub(crate) fn check(message: &mut Message, own: &Own) -> Result<(), &'static str> {
    if message.to != own.id {
        return Err("it is for another member");
    }
    if message.from == own.id || message.from == 0 || message.from > u64::from(u32::MAX) {
        return Err("it comes from nobody else");
    }
    if message.term == 0 {
        return Err("it has no term");
    }
    let numbers =
        [message.term, message.log_term, message.index, message.commit, message.commit_term, message.reject_hint];
    if numbers.iter().any(|&number| number > NUMBER_MAX) {
        return Err("a number in it is absurd");
    }
    if is_absurd(message.term, own.term) {
        return Err("no elections lead to its term");
    }
    let kind = message.get_msg_type();
    if kind != MessageType::MsgAppend && !message.entries.is_empty() {
        return Err("it has entries that do not belong there");
    }
    if message.snapshot.is_some() != (kind == MessageType::MsgSnapshot) {
        return Err("it has a snapshot that does not belong there, or lacks one");
    }
    match kind {
        MessageType::MsgAppend => append(message),
        MessageType::MsgAppendResponse => {
            if own.is_leader && message.term == own.term && !message.reject && message.index > own.last {
                return Err("it acknowledges entries that the log does not have");
            }
            Ok(())
        }
        MessageType::MsgHeartbeat => {
            if message.commit > own.last {
                message.commit = 0;
            }
            Ok(())
        }
        MessageType::MsgSnapshot => snapshot(message, own.id),
        MessageType::MsgTimeoutNow => {
            if own.persisting || message.term != own.term || message.from != own.leader {
                return Err("only the leader of this term hands over");
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Whether a term cannot be one of a member's group. Whoever gave it would use up the terms that there are: the group
/// could elect nobody any more, for good.
///
/// No healthy member is refused for it: a term grows by one with an election, and a member that was away that long has
/// missed no more of them. One that begins with nothing, and has no term of this era yet, takes any of the first half
/// of an era. What else is of another era is not looked at here: it does not reach a member that has anything.
pub(crate) fn is_absurd(term: u64, own: u64) -> bool {
    let era = era_of(term);
    if era == era_of(own) && own > 0 {
        return term > own.saturating_add(TERMS_BEYOND);
    }
    term - first_term(era) > first_term(1) / 2
}

fn append(message: &Message) -> Result<(), &'static str> {
    if (message.index == 0) != (message.log_term == 0) {
        return Err("the position before its entries is none");
    }
    let mut index = message.index;
    let mut term = message.log_term;
    for entry in message.entries.iter() {
        index += 1;
        if entry.index != index {
            return Err("its entries are not consecutive");
        }
        if entry.term < term || entry.term > message.term || entry.term == 0 {
            return Err("its entries' terms go back or beyond the leader's");
        }
        term = entry.term;
    }
    if message.log_term > message.term {
        return Err("its position has a term beyond the leader's");
    }
    Ok(())
}

fn snapshot(message: &Message, own: u64) -> Result<(), &'static str> {
    let meta = message.get_snapshot().get_metadata();
    let conf = meta.get_conf_state();
    if meta.index == 0 || meta.index > NUMBER_MAX || meta.term == 0 || meta.term > message.term {
        return Err("its snapshot has no place in the log");
    }
    if !conf.voters.iter().chain(&conf.learners).any(|&id| id == own) {
        return Err("its snapshot does not know this member");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One message would end a group for good; or a member that was away, or that begins, could never come back.
    #[test]
    fn terms_to_which_no_elections_lead_are_absurd() {
        let era = first_term(1_795_000_000);
        for (term, own) in [(1, 0), (9, 8), (3, 900), (1 << 20, 1), (era + 1, 0), (era + 5, era), (era + 9, 7)] {
            assert!(!is_absurd(term, own), "{term} for {own}");
        }
        assert!(!is_absurd(1 << 25, 0), "it begins with nothing");
        for (term, own) in [(1 << 25, 1), ((1 << 30) - 1, 0), (era + (1 << 29) + 1, 0), (era + (1 << 25), era + 4)] {
            assert!(is_absurd(term, own), "{term} for {own}");
        }
        // All that a member can be talked into leaves terms for the elections of ages.
        let own = Own { id: 1, term: 7, leader: 0, last: 4, is_leader: false, persisting: false };
        for kind in [MessageType::MsgHeartbeat, MessageType::MsgRequestVote, MessageType::MsgHeartbeatResponse] {
            let mut message = Message { to: 1, from: 2, term: first_term(1) - 1, ..Message::default() };
            message.set_msg_type(kind);
            assert_eq!(check(&mut message, &own), Err("no elections lead to its term"));
            message.term = 8;
            assert_eq!(check(&mut message, &own), Ok(()));
        }
    }
}
