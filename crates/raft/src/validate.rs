//! Which messages of peers the `raft` crate may see. It panics on some that no correct peer sends (a commit index
//! behind the last entry, entries that do not join): those are refused here, against this member's own state.
//!
//! | message | refused when |
//! |---|---|
//! | any | not for this member, from itself or nobody, term 0, numbers beyond 2^62 |
//! | append | entries not consecutive behind `index`, terms not ascending or beyond the leader's, a position whose index is zero and term not (or the reverse) |
//! | append answer | it matches more than the log has |
//! | heartbeat | its commit index lies behind the last entry: taken without the commit index |
//! | snapshot | without sound members, without this member, from a later term than the message |
//! | start an election | not from the leader of this term, or while something is not durable yet |
//! | others | never |

use raft::eraftpb::{Message, MessageType};

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
