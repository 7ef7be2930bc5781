//! Small state of all groups in the log: for the replay, for what each new segment repeats, and for which segments
//! are still needed.
//!
//! Invariant: replaying the segments that are kept gives the same as replaying all that were ever written.

use std::collections::BTreeMap;

use bytes::Bytes;
use cairn_format::wal_record::WalRecord;
use cairn_types::GroupId;

use super::record::{HardState, LogEntry, Record};

/// What the log knows of one group at the start.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RecoveredGroup {
    /// The promises, if any were ever made.
    pub hard: Option<HardState>,
    /// Index and term that the log was truncated up to (0, 0: never).
    pub base: (u64, u64),
    /// Index, term and voters of the group's beginning, while the log still reaches back to it.
    pub bootstrap: Option<(u64, u64, Vec<u64>)>,
    /// Index and term of a checkpoint that was made elsewhere and put here, or was about to be, without the log having
    /// been reset to it.
    pub fetched: Option<(u64, u64)>,
    /// Entries behind the base, consecutive. The first one may lie further behind than base + 1; then the log has a
    /// gap and only a checkpoint can close it.
    pub entries: Vec<LogEntry>,
    /// The node has left the group.
    pub removed: bool,
}

/// State of one group while the log is open.
#[derive(Debug, Default)]
struct Live {
    hard: Option<HardState>,
    base: (u64, u64),
    bootstrap: Option<(u64, u64, Vec<u64>)>,
    fetched: Option<(u64, u64)>,
    removed: bool,
    /// Highest entry index per segment.
    spans: BTreeMap<u64, u64>,
}

/// All groups.
#[derive(Debug, Default)]
pub(super) struct Groups {
    live: BTreeMap<GroupId, Live>,
}

impl Groups {
    /// Notes a record that is durable in a segment.
    pub(super) fn note(&mut self, segment: u64, record: &Record) {
        let live = self.live.entry(record.group()).or_default();
        match record {
            Record::Entries { entries, .. } => {
                live.removed = false;
                let first = entries.first().map_or(0, |entry| entry.index);
                let last = entries.last().map_or(0, |entry| entry.index);
                // What earlier segments have from the first one on is replaced.
                for earlier in live.spans.values_mut() {
                    *earlier = (*earlier).min(first.saturating_sub(1));
                }
                let span = live.spans.entry(segment).or_default();
                *span = (*span).max(last);
            }
            Record::HardState { state, .. } => {
                live.hard = Some(*state);
                live.removed = false;
            }
            Record::Truncate { index, term, .. } => live.truncate(*index, *term),
            Record::Reset { index, term, .. } => {
                live.base = (*index, *term);
                live.bootstrap = None;
                live.fetched = None;
                live.removed = false;
                live.spans.clear();
            }
            Record::Tombstone { .. } => *live = Live { removed: true, ..Live::default() },
            Record::Bootstrap { index, term, voters, .. } => {
                live.base = (*index, *term);
                live.bootstrap = Some((*index, *term, voters.clone()));
                live.removed = false;
            }
            Record::Fetched { index, term, .. } => {
                live.fetched = Some((*index, *term));
                live.removed = false;
            }
        }
    }

    /// What the first batch of a new segment repeats.
    pub(super) fn preamble(&self) -> Vec<Record> {
        let mut records = Vec::new();
        for (&group, live) in &self.live {
            if live.removed {
                records.push(Record::Tombstone { group });
                continue;
            }
            if let Some(state) = live.hard {
                records.push(Record::HardState { group, state });
            }
            match &live.bootstrap {
                Some((index, term, voters)) => {
                    records.push(Record::Bootstrap { group, index: *index, term: *term, voters: voters.clone() });
                }
                None if live.base != (0, 0) => {
                    records.push(Record::Truncate { group, index: live.base.0, term: live.base.1 });
                }
                None => {}
            }
            if let Some((index, term)) = live.fetched {
                records.push(Record::Fetched { group, index, term });
            }
        }
        records
    }

    /// The group that still needs entries of a segment.
    pub(super) fn holder(&self, segment: u64) -> Option<GroupId> {
        let needs = |live: &Live| live.spans.get(&segment).is_some_and(|&last| last > live.base.0);
        self.live.iter().find(|(_, live)| needs(live)).map(|(&group, _)| group)
    }

    /// Forgets a segment that is gone.
    pub(super) fn forget(&mut self, segment: u64) {
        for live in self.live.values_mut() {
            live.spans.remove(&segment);
        }
    }
}

impl Live {
    fn truncate(&mut self, index: u64, term: u64) {
        if index > self.base.0 {
            self.base = (index, term);
            self.bootstrap = None;
        }
        self.fetched = self.fetched.filter(|fetched| fetched.0 > index);
    }
}

/// Collects the groups while the log is replayed.
#[derive(Debug, Default)]
pub(super) struct Replay {
    pub(super) live: Groups,
    groups: BTreeMap<GroupId, RecoveredGroup>,
}

impl Replay {
    /// Applies one record that was read from a segment; `body` are the batch's bytes that its data lies in.
    pub(super) fn apply(
        &mut self,
        segment: u64,
        group: GroupId,
        record: &WalRecord<'_>,
        body: &Bytes,
    ) -> Result<(), String> {
        let own = owned(group, record, body);
        if let Record::Entries { entries, .. } = &own {
            self.groups.entry(group).or_default().append(entries)?;
        } else {
            let state = self.groups.entry(group).or_default();
            match &own {
                Record::Entries { .. } => {}
                Record::HardState { state: hard, .. } => {
                    state.hard = Some(*hard);
                    state.removed = false;
                }
                Record::Truncate { index, term, .. } => state.truncate(*index, *term),
                Record::Reset { index, term, .. } => {
                    state.base = (*index, *term);
                    state.bootstrap = None;
                    state.fetched = None;
                    state.entries.clear();
                    state.removed = false;
                }
                Record::Tombstone { .. } => *state = RecoveredGroup { removed: true, ..Default::default() },
                Record::Bootstrap { index, term, voters, .. } => {
                    state.base = (*index, *term);
                    state.bootstrap = Some((*index, *term, voters.clone()));
                    state.removed = false;
                }
                Record::Fetched { index, term, .. } => {
                    state.fetched = Some((*index, *term));
                    state.removed = false;
                }
            }
        }
        self.live.note(segment, &own);
        Ok(())
    }

    /// The groups and the live index.
    pub(super) fn finish(self) -> (BTreeMap<GroupId, RecoveredGroup>, Groups) {
        (self.groups, self.live)
    }
}

impl RecoveredGroup {
    fn append(&mut self, new: &[LogEntry]) -> Result<(), String> {
        let Some(first) = new.first().map(|entry| entry.index) else {
            return Ok(());
        };
        self.removed = false;
        if let Some(have) = self.entries.first().map(|entry| entry.index) {
            let last = have + self.entries.len() as u64 - 1;
            if first > last + 1 {
                return Err(format!("entries from {first} on follow entry {last}"));
            }
            // What follows a replaced entry is void.
            self.entries.truncate(usize::try_from(first.saturating_sub(have)).unwrap_or(usize::MAX));
        }
        self.entries.extend(new.iter().filter(|entry| entry.index > self.base.0).cloned());
        Ok(())
    }

    fn truncate(&mut self, index: u64, term: u64) {
        if index > self.base.0 {
            self.base = (index, term);
            self.bootstrap = None;
        }
        self.fetched = self.fetched.filter(|fetched| fetched.0 > index);
        let base = self.base.0;
        self.entries.retain(|entry| entry.index > base);
    }
}

fn owned(group: GroupId, record: &WalRecord<'_>, body: &Bytes) -> Record {
    match record {
        WalRecord::Entries(entries) => Record::Entries {
            group,
            entries: entries
                .iter()
                .map(|e| LogEntry { term: e.term, index: e.index, kind: e.kind, data: body.slice_ref(e.data) })
                .collect(),
        },
        WalRecord::HardState { term, vote, commit } => {
            Record::HardState { group, state: HardState { term: *term, vote: *vote, commit: *commit } }
        }
        WalRecord::Truncate { index, term } => Record::Truncate { group, index: *index, term: *term },
        WalRecord::Reset { index, term } => Record::Reset { group, index: *index, term: *term },
        WalRecord::Fetched { index, term } => Record::Fetched { group, index: *index, term: *term },
        WalRecord::Tombstone => Record::Tombstone { group },
        WalRecord::Bootstrap { index, term, voters } => {
            Record::Bootstrap { group, index: *index, term: *term, voters: voters.clone() }
        }
    }
}
