//! A model of what the log must hold, scripts to write, and the comparison.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use cairn_sim::{SimDisk, SimRng};
use cairn_types::{DiskUuid, GroupId};

use crate::StoreError;
use crate::wal::{HardState, LogEntry, Record, RecoveredGroup, Wal, WalConfig};

/// The smallest log that rolls over quickly, without threads but its own.
pub(super) fn config() -> WalConfig {
    WalConfig {
        segment_bytes: 64 << 10,
        prepare_ahead: false,
        mark_every: std::time::Duration::MAX,
        chained: true,
        spares_max: 1,
        ..WalConfig::new("log", DiskUuid([5; 16]))
    }
}

pub(super) type Groups = BTreeMap<GroupId, RecoveredGroup>;

pub(super) fn open(disk: &SimDisk) -> Result<(Wal, Groups), StoreError> {
    Wal::open(Arc::new(disk.clone()), config())
}

/// What must be read back after some records, in the simplest way.
#[derive(Debug, Clone, Default)]
pub(super) struct Model(pub Groups);

impl Model {
    pub fn take(&mut self, records: &[Record]) {
        for record in records {
            let group = self.0.entry(record.group()).or_default();
            match record {
                Record::Entries { entries, .. } => {
                    group.removed = false;
                    group.entries.retain(|old| old.index < entries[0].index);
                    group.entries.extend(entries.iter().cloned());
                    group.entries.retain(|entry| entry.index > group.base.0);
                }
                Record::HardState { state, .. } => {
                    group.removed = false;
                    group.hard = Some(*state);
                }
                Record::Truncate { index, term, .. } => {
                    if *index > group.base.0 {
                        group.base = (*index, *term);
                        group.bootstrap = None;
                    }
                    group.entries.retain(|entry| entry.index > group.base.0);
                    group.fetched = group.fetched.filter(|fetched| fetched.0 > *index);
                }
                Record::Reset { index, term, .. } => {
                    group.base = (*index, *term);
                    group.bootstrap = None;
                    group.fetched = None;
                    group.removed = false;
                    group.entries.clear();
                }
                Record::Tombstone { .. } => *group = RecoveredGroup { removed: true, ..Default::default() },
                Record::Bootstrap { index, term, voters, .. } => {
                    group.base = (*index, *term);
                    group.bootstrap = Some((*index, *term, voters.clone()));
                    group.removed = false;
                }
                Record::Fetched { index, term, .. } => {
                    group.removed = false;
                    group.fetched = Some((*index, *term));
                }
            }
        }
    }
}

pub(super) fn entries(group: u32, first: u64, count: u64, term: u64, bytes: usize) -> Record {
    let entry = |index: u64| LogEntry {
        term,
        index,
        kind: 0,
        data: Bytes::from(vec![(index as u8) ^ (group as u8) ^ (term as u8); bytes]),
    };
    Record::Entries { group: GroupId(group), entries: (first..first + count).map(entry).collect() }
}

pub(super) fn hard(group: u32, term: u64, commit: u64) -> Record {
    Record::HardState { group: GroupId(group), state: HardState { term, vote: 1, commit } }
}

/// Makes scripts like those of real groups: appends, overwritten tails, promises, truncation, resets.
pub(super) struct Script {
    rng: SimRng,
    /// Base, last index and term of each group.
    groups: Vec<(u64, u64, u64)>,
}

impl Script {
    pub fn new(seed: u64) -> Self {
        Self { rng: SimRng::derived(seed, "script"), groups: vec![(0, 0, 1); 3] }
    }

    /// Goes on from what a crash left.
    pub fn continued(seed: u64, model: &Model) -> Self {
        let mut script = Self::new(seed);
        for (at, state) in script.groups.iter_mut().enumerate() {
            if let Some(group) = model.0.get(&GroupId(at as u32 + 1)) {
                let last = group.entries.last().map_or(group.base.0, |entry| entry.index);
                *state = (group.base.0, last, group.hard.map_or(1, |hard| hard.term) + 1);
            }
        }
        script
    }

    /// The next submission.
    pub fn next(&mut self) -> Vec<Record> {
        let mut out = Vec::new();
        for _ in 0..=self.rng.range(0..2) {
            let at = self.rng.index(3);
            let (base, last, term) = &mut self.groups[at];
            let group_base = *base;
            let group = at as u32 + 1;
            match self.rng.range(0..20) {
                0..11 => {
                    let count = 1 + self.rng.range(0..4);
                    out.push(entries(group, *last + 1, count, *term, self.rng.range(0..3000) as usize));
                    *last += count;
                }
                11..13 if *last > *base => {
                    *term += 1;
                    let first = *base + 1 + self.rng.range(0..*last - *base);
                    out.push(hard(group, *term, *base));
                    out.push(entries(group, first, 1, *term, 100));
                    *last = first;
                }
                11..15 => out.push(hard(group, *term, *last)),
                15..19 if *last > *base => {
                    *base += 1 + self.rng.range(0..*last - *base);
                    out.push(Record::Truncate { group: GroupId(group), index: *base, term: *term });
                }
                19 if *last > 0 => {
                    *last += 100;
                    *base = *last;
                    *term += 1;
                    out.push(Record::Fetched { group: GroupId(group), index: *base, term: *term });
                    if self.rng.chance(0.3) {
                        // It was not used.
                        *last -= 100;
                        *base = group_base;
                        continue;
                    }
                    out.push(Record::Reset { group: GroupId(group), index: *base, term: *term });
                    out.push(hard(group, *term, *base));
                }
                _ => out.push(hard(group, *term, *base)),
            }
        }
        out
    }
}
