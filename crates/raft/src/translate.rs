//! Between the wire's messages and the `raft` crate's.
//!
//! | code | message |
//! |---|---|
//! | 1 / 2 | append / its answer |
//! | 3 / 4 | vote request / its answer |
//! | 5 | snapshot offered |
//! | 6 / 7 | heartbeat / its answer |
//! | 8 | start an election now |
//! | 9 / 10 | pre-vote request / its answer |
//! | 11 / 12 | a member that starts asks what is known of it / the answer ([`crate::marks`]); not the `raft` crate's |
//! | 13 | a follower wakes its leader ([`crate::Slumber`]); not the `raft` crate's |
//!
//! The table is closed: add, never edit. A vote request carries the context `CampaignTransfer` when leadership is
//! handed over; no other context crosses the wire.

use bytes::Bytes;
use cairn_types::GroupId;
use cairn_wire::raft as wire;
use raft::eraftpb::{Entry, EntryType, Message, MessageType};

use crate::entry::{ENTRY_CONFIG, ENTRY_NORMAL, LogEntry};
use crate::members::{MEMBERS_MAX, Members, decode_changes, to_conf_change};
use crate::{Position, SnapshotMeta};
use cairn_types::NodeId;
use protobuf::Message as _;

/// Marks a vote request of a handed-over leadership.
pub(crate) const TRANSFER: &[u8] = b"CampaignTransfer";

const KINDS: [(u32, MessageType); 10] = [
    (1, MessageType::MsgAppend),
    (2, MessageType::MsgAppendResponse),
    (3, MessageType::MsgRequestVote),
    (4, MessageType::MsgRequestVoteResponse),
    (5, MessageType::MsgSnapshot),
    (6, MessageType::MsgHeartbeat),
    (7, MessageType::MsgHeartbeatResponse),
    (8, MessageType::MsgTimeoutNow),
    (9, MessageType::MsgRequestPreVote),
    (10, MessageType::MsgRequestPreVoteResponse),
];

/// An entry as the `raft` crate has it: a change of members is kept in our encoding as its context, and in the
/// crate's encoding, made here, as its data.
pub(crate) fn entry_in(entry: LogEntry) -> Option<Entry> {
    let mut out = Entry { term: entry.term, index: entry.index, ..Entry::default() };
    match entry.kind {
        ENTRY_NORMAL => out.data = entry.data,
        ENTRY_CONFIG => {
            let changes = decode_changes(&entry.data)?;
            out.set_entry_type(EntryType::EntryConfChangeV2);
            if !changes.is_empty() {
                let bytes = to_conf_change(&changes).write_to_bytes();
                out.data = Bytes::from(bytes.expect("a message in memory always encodes"));
            }
            out.context = entry.data;
        }
        _ => return None,
    }
    Some(out)
}

/// The way back.
pub(crate) fn entry_out(entry: &Entry) -> LogEntry {
    let (kind, data) = match entry.get_entry_type() {
        EntryType::EntryNormal => (ENTRY_NORMAL, entry.data.clone()),
        EntryType::EntryConfChange | EntryType::EntryConfChangeV2 => (ENTRY_CONFIG, entry.context.clone()),
    };
    LogEntry { term: entry.term, index: entry.index, kind, data }
}

/// What goes along with a message for leases and for reads at members that do not lead.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Stamps {
    pub lease: u64,
    pub member: u64,
    pub acknowledged: u64,
    pub feature_level: u32,
}

/// A message for the wire; `None` for kinds that stay inside.
pub(crate) fn message_out(
    group: GroupId,
    mut message: Message,
    stamps: Stamps,
    snapshot_bytes: u64,
) -> Option<wire::RaftMessage> {
    let kind = KINDS.iter().find(|(_, kind)| *kind == message.get_msg_type())?.0;
    let entries = message.take_entries();
    let entries = entries.iter().map(entry_out).map(|entry| wire::Entry {
        kind: u32::from(entry.kind),
        term: entry.term,
        index: entry.index,
        data: entry.data,
    });
    let snapshot = message.snapshot.as_ref().map(|snapshot| {
        let meta = snapshot.get_metadata();
        let conf = meta.get_conf_state();
        wire::SnapshotMeta {
            index: meta.index,
            term: meta.term,
            voters: conf.voters.clone(),
            learners: conf.learners.clone(),
            bytes: snapshot_bytes,
        }
    });
    let transfer = kind == 3 && message.context == TRANSFER;
    Some(wire::RaftMessage {
        group: group.0,
        kind,
        to: message.to,
        from: message.from,
        term: message.term,
        log_term: message.log_term,
        index: message.index,
        entries: entries.collect(),
        commit: message.commit,
        commit_term: message.commit_term,
        snapshot,
        request_snapshot: 0,
        reject: message.reject,
        reject_hint: message.reject_hint,
        priority: 0,
        context: if transfer { TRANSFER.to_vec() } else { Vec::new() },
        lease_stamp: stamps.lease,
        member_stamp: stamps.member,
        acknowledged: stamps.acknowledged,
        feature_level: stamps.feature_level,
        marks: Vec::new(),
        // The host, which has a calendar, puts it in.
        wall_ns: 0,
        forgot: false,
        sleep: false,
        entry_wanted: false,
    })
}

/// Members named in an offered snapshot, if they can be a configuration.
pub(crate) fn snapshot_in(meta: &wire::SnapshotMeta) -> Option<SnapshotMeta> {
    let nodes = |ids: &[u64]| -> Option<Vec<NodeId>> {
        if ids.len() > MEMBERS_MAX {
            return None;
        }
        let mut nodes = ids.iter().map(|&id| u32::try_from(id).ok().map(NodeId)).collect::<Option<Vec<NodeId>>>()?;
        nodes.sort_unstable();
        Some(nodes)
    };
    let members = Members { voters: nodes(&meta.voters)?, learners: nodes(&meta.learners)?, joint: false };
    let at = Position { index: meta.index, term: meta.term };
    let sound = members.is_sound() && at.index != 0 && at.term != 0;
    sound.then_some(SnapshotMeta { at, members, bytes: meta.bytes })
}

/// A message from the wire; `None` when it has a kind or an entry that is not ours.
pub(crate) fn message_in(message: wire::RaftMessage) -> Option<Message> {
    let kind = KINDS.iter().find(|(code, _)| *code == message.kind)?.1;
    let mut out = Message::default();
    out.set_msg_type(kind);
    out.to = message.to;
    out.from = message.from;
    out.term = message.term;
    out.log_term = message.log_term;
    out.index = message.index;
    out.commit = message.commit;
    out.commit_term = message.commit_term;
    out.reject = message.reject;
    out.reject_hint = message.reject_hint;
    if message.context == TRANSFER {
        out.context = Bytes::from_static(TRANSFER);
    }
    let mut entries = Vec::with_capacity(message.entries.len());
    for entry in message.entries {
        let kind = u8::try_from(entry.kind).ok()?;
        entries.push(entry_in(LogEntry { term: entry.term, index: entry.index, kind, data: entry.data })?);
    }
    out.set_entries(entries.into());
    if let Some(meta) = &message.snapshot {
        let meta = snapshot_in(meta)?;
        let mut snapshot = raft::eraftpb::Snapshot::default();
        let inner = snapshot.mut_metadata();
        inner.index = meta.at.index;
        inner.term = meta.at.term;
        inner.set_conf_state(meta.members.to_conf());
        out.set_snapshot(snapshot);
    }
    Some(out)
}
