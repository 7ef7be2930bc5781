//! What a group's member starts from, by what its checkpoints and the log have.
//!
//! | checkpoint | log | start |
//! |---|---|---|
//! | none | nothing | begin the group with the given members; without members: an empty member that waits for a leader |
//! | any | a tombstone | the checkpoints are dropped; as nothing |
//! | none | begins with the group's beginning | the empty state, then the log |
//! | none | promises alone | the empty member that waits for a leader |
//! | none | was truncated | error: gap |
//! | C | nothing | error: the log was lost, and votes with it |
//! | C | begins at or before C and reaches C with the same term | state C, then the log behind it |
//! | C | has another entry at C, or ends before it, and says that C was fetched | state C, log void (the record that resets it did not follow) |
//! | C | has another entry at C, or ends before it | error: a checkpoint of our own is written of what the log has, so its end was lost (a log without segments of version 2: as the line before) |
//! | C | begins behind C + 1 | error: gap |
//! | newest damaged | any | set aside and reported; the older one is C: the log is kept back to it |
//!
//! Not here: replaying entries (they come out of the core as committed).

use cairn_format::checkpoint::CheckpointHeader;
use cairn_raft::members::decode_changes;
use cairn_raft::{ENTRY_CONFIG, ENTRY_NORMAL, HardState, LogEntry, Members, Position, Restored, SnapshotMeta};
use cairn_store::{CheckpointStore, Record, RecoveredGroup, StoreError};
use cairn_types::{GroupId, NodeId, WallTime};

use crate::error::HostError;
use crate::state_machine::StateMachine;

/// How an unknown group is begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Beginning<'a> {
    /// With these voters.
    Members(&'a [NodeId]),
    /// As an empty member that a leader will fill.
    Join,
    /// Not at all.
    Refused,
}

/// A member ready to start.
pub(crate) struct Start {
    pub restored: Restored,
    /// Logged time of the state.
    pub time: WallTime,
    /// To be made durable before anything else.
    pub records: Vec<Record>,
    /// Checkpoints kept, newest first.
    pub generations: Vec<Position>,
    /// Bytes of entries behind the checkpoint.
    pub log_bytes: u64,
}

/// Index and term of the state that a new group begins with: not zero, so that a member that joins later is never
/// taken for one that has it.
const BEGINNING: Position = Position { index: 1, term: 1 };

/// `announced`: the log says of each checkpoint of elsewhere that it comes.
pub(crate) fn recover<S: StateMachine>(
    dir: &str,
    group: GroupId,
    log: Option<RecoveredGroup>,
    checkpoints: &CheckpointStore,
    announced: bool,
    beginning: Beginning<'_>,
    sm: &mut S,
) -> Result<Start, HostError> {
    if log.as_ref().is_some_and(|log| log.removed) {
        // The node has left the group; what a crash left of its checkpoints is of before.
        checkpoints.drop_group(group)?;
    }
    let (header, bytes, older) = restore_newest(group, checkpoints, sm)?;
    let log = log.filter(|log| !log.removed);
    match (header, log) {
        (None, None) => begin(dir, group, beginning),
        (Some(header), None) => Err(HostError::LogLost { dir: dir.into(), group, index: header.index }),
        (None, Some(log)) => without_checkpoint(dir, group, log),
        (Some(header), Some(log)) => with_checkpoint(dir, group, &header, bytes, older, log, announced),
    }
}

/// Reads the newest sound checkpoint into the state machine.
fn restore_newest<S: StateMachine>(
    group: GroupId,
    checkpoints: &CheckpointStore,
    sm: &mut S,
) -> Result<(Option<CheckpointHeader>, u64, Option<Position>), HostError> {
    loop {
        let found = checkpoints.recover(group)?;
        for error in &found.damaged {
            tracing::error!(%group, %error, "a checkpoint is damaged and was set aside; using the one before it");
        }
        let Some(mut file) = found.newest else { return Ok((None, 0, None)) };
        match sm.restore(&mut file) {
            Ok(()) => {
                let older = found.older.map(|(index, term)| Position { index, term });
                return Ok((Some(file.header().clone()), file.file_len(), older));
            }
            Err(error @ StoreError::Corrupt { .. }) => {
                tracing::error!(%group, %error, "a checkpoint is damaged and is set aside; using the one before it");
                checkpoints.set_aside(group, file.header().index)?;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

fn begin(dir: &str, group: GroupId, beginning: Beginning<'_>) -> Result<Start, HostError> {
    let waiting = HardState::default();
    match beginning {
        Beginning::Refused => Err(HostError::Missing { dir: dir.into(), group }),
        // A record shows later that this member has a log, so that its loss is noticed.
        Beginning::Join => Ok(Start {
            restored: Restored { fresh: true, ..Restored::default() },
            time: WallTime(0),
            records: vec![Record::HardState { group, state: hard_record(waiting) }],
            generations: Vec::new(),
            log_bytes: 0,
        }),
        Beginning::Members(nodes) => {
            let members = Members::of(nodes);
            let hard = HardState { term: BEGINNING.term, vote: 0, commit: BEGINNING.index };
            let voters = members.voters.iter().map(|node| u64::from(node.0)).collect();
            let (index, term) = (BEGINNING.index, BEGINNING.term);
            Ok(Start {
                restored: Restored {
                    hard,
                    base: BEGINNING,
                    members,
                    applied: BEGINNING,
                    fresh: true,
                    ..Restored::default()
                },
                time: WallTime(0),
                records: vec![
                    Record::Bootstrap { group, index, term, voters },
                    Record::HardState { group, state: hard_record(hard) },
                ],
                generations: Vec::new(),
                log_bytes: 0,
            })
        }
    }
}

fn without_checkpoint(dir: &str, group: GroupId, log: RecoveredGroup) -> Result<Start, HostError> {
    let first = log.entries.first().map_or(log.base.0, |entry| entry.index - 1);
    let (base, members) = match &log.bootstrap {
        Some((index, term, voters)) if first <= *index => {
            let nodes: Vec<NodeId> = voters.iter().filter_map(|&id| u32::try_from(id).ok()).map(NodeId).collect();
            (Position { index: *index, term: *term }, Members::of(&nodes))
        }
        None if first == 0 && log.base.0 == 0 => (Position::default(), Members::default()),
        _ => {
            let log = first.max(log.base.0);
            return Err(StoreError::Gap { dir: dir.into(), group: group.0, checkpoint: 0, log }.into());
        }
    };
    let hard = log.hard.map_or_else(HardState::default, hard_state);
    let log_bytes = bytes_of(&log.entries);
    let entries = entries(dir, group, log.entries)?;
    Ok(Start {
        restored: Restored { hard, base, members, applied: base, entries, ..Restored::default() },
        time: WallTime(0),
        records: Vec::new(),
        generations: Vec::new(),
        log_bytes,
    })
}

fn with_checkpoint(
    dir: &str,
    group: GroupId,
    header: &CheckpointHeader,
    bytes: u64,
    older: Option<Position>,
    log: RecoveredGroup,
    announced: bool,
) -> Result<Start, HostError> {
    let at = Position { index: header.index, term: header.term };
    let nodes = |ids: &[u64]| ids.iter().filter_map(|&id| u32::try_from(id).ok()).map(NodeId).collect();
    let members = Members { voters: nodes(&header.voters), learners: nodes(&header.learners), joint: false };
    let first = log.entries.first().map_or(log.base.0, |entry| entry.index - 1);
    let starts = first.max(log.base.0);
    if starts > at.index {
        return Err(StoreError::Gap { dir: dir.into(), group: group.0, checkpoint: at.index, log: starts }.into());
    }
    let hard = log.hard.map_or_else(HardState::default, hard_state);
    let last = log.entries.last().map_or(log.base.0, |entry| entry.index);
    let term_at = |index: u64| {
        if index == log.base.0 {
            return Some(log.base.1);
        }
        let slot = index.checked_sub(log.entries.first()?.index)?;
        log.entries.get(usize::try_from(slot).ok()?).map(|entry| entry.term)
    };
    let joins = last >= at.index && term_at(at.index).is_none_or(|term| term == at.term);
    if !joins && announced && log.fetched != Some((at.index, at.term)) {
        return Err(HostError::LogCut { dir: dir.into(), group, index: at.index, last });
    }
    let mut kept = log.entries;
    // Entries from the log's base on are kept for followers that lag, if they reach back to it.
    let base = Position { index: log.base.0, term: log.base.1 };
    let (base, records) = if !joins {
        kept.clear();
        (at, vec![Record::Reset { group, index: at.index, term: at.term }])
    } else if first == log.base.0 {
        (base, Vec::new())
    } else {
        kept.retain(|entry| entry.index > at.index);
        (at, Vec::new())
    };
    let log_bytes = bytes_of(&kept);
    let entries = entries(dir, group, kept)?;
    let snapshot = Some(SnapshotMeta { at, members: members.clone(), bytes });
    Ok(Start {
        restored: Restored { hard, base, members, applied: at, entries, snapshot, ..Restored::default() },
        time: header.time,
        records,
        generations: std::iter::once(at).chain(older).collect(),
        log_bytes,
    })
}

fn bytes_of(entries: &[cairn_store::LogEntry]) -> u64 {
    entries.iter().map(|entry| entry.data.len() as u64).sum()
}

/// Entries for the core, which relies on their being sound.
fn entries(dir: &str, group: GroupId, from: Vec<cairn_store::LogEntry>) -> Result<Vec<LogEntry>, HostError> {
    let sound = |entry: &cairn_store::LogEntry| match entry.kind {
        ENTRY_NORMAL => true,
        ENTRY_CONFIG => decode_changes(&entry.data).is_some(),
        _ => false,
    };
    if let Some(bad) = from.iter().find(|entry| !sound(entry)) {
        let what = format!("kind {} or its bytes are unknown to this program", bad.kind);
        return Err(HostError::BadEntry { dir: dir.into(), group, index: bad.index, what });
    }
    let entry = |e: cairn_store::LogEntry| LogEntry { term: e.term, index: e.index, kind: e.kind, data: e.data };
    Ok(from.into_iter().map(entry).collect())
}

pub(crate) fn hard_record(hard: HardState) -> cairn_store::HardState {
    cairn_store::HardState { term: hard.term, vote: hard.vote, commit: hard.commit }
}

fn hard_state(hard: cairn_store::HardState) -> HardState {
    HardState { term: hard.term, vote: hard.vote, commit: hard.commit }
}
