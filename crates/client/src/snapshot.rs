//! Snapshots of a volume or a directory: [`Snapshot`], and the rules by which they are taken by themselves.
use cairn_wire::meta;

/// How often a rule of a schedule takes a snapshot.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum SnapshotPeriod {
    Hour,
    Day,
    /// From Monday on, in UTC as all of them.
    Week,
    Month,
    /// Of a later version.
    Unknown(u32),
}

impl SnapshotPeriod {
    /// Those that this version knows.
    pub const ALL: [SnapshotPeriod; 4] = [Self::Hour, Self::Day, Self::Week, Self::Month];

    /// As schedules are written: `hourly` and so on.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hour => "hourly",
            Self::Day => "daily",
            Self::Week => "weekly",
            Self::Month => "monthly",
            Self::Unknown(_) => "unknown",
        }
    }
    const fn of_wire(code: u32) -> Self {
        match code {
            1 => Self::Hour,
            2 => Self::Day,
            3 => Self::Week,
            4 => Self::Month,
            code => Self::Unknown(code),
        }
    }
    const fn code(self) -> u32 {
        match self {
            Self::Hour => 1,
            Self::Day => 2,
            Self::Week => 3,
            Self::Month => 4,
            Self::Unknown(code) => code,
        }
    }
}

/// At most one snapshot in a period, and so many are kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SnapshotRule {
    pub period: SnapshotPeriod,
    pub keep: u32,
}

impl SnapshotRule {
    fn of_wire(found: meta::SnapshotRule) -> Self {
        Self { period: SnapshotPeriod::of_wire(found.period), keep: found.keep }
    }
    pub(crate) fn to_wire(self) -> meta::SnapshotRule {
        meta::SnapshotRule { period: self.period.code(), keep: self.keep }
    }
}

/// The rules for a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirectorySchedule {
    /// Its inode; 0: of the volume.
    pub directory: u64,
    pub rules: Vec<SnapshotRule>,
}

/// A snapshot.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Snapshot {
    /// Ascending, never given twice.
    pub number: u64,
    pub name: Vec<u8>,
    pub created_ns: u64,
    /// It is not to be read any more, and what it holds is being freed.
    pub deleting: bool,
    /// Blocks of 4 KiB of one copy that no file and no newer snapshot names.
    pub kept_blocks: u64,
    /// Of the rule of the schedule that took it and may remove it.
    pub rule: Option<SnapshotPeriod>,
    /// Inode of the directory in which it is shown; 0: in all.
    pub directory: u64,
}

impl Snapshot {
    fn of_wire(found: meta::Snapshot) -> Self {
        let meta::Snapshot { number, name, created_ns, deleting, kept_blocks, rule, directory } = found;
        let rule = (rule != 0).then(|| SnapshotPeriod::of_wire(rule));
        Self { number, name, created_ns, deleting, kept_blocks, rule, directory }
    }
}

/// What a partition knows of snapshots.
pub(crate) struct SnapshotList {
    pub(crate) snapshots: Vec<Snapshot>,
    /// That of the volume and those of directories.
    pub(crate) schedules: Vec<DirectorySchedule>,
    /// Snapshots and schedules of directories are understood.
    pub(crate) of_directories: bool,
}

impl SnapshotList {
    pub(crate) fn of_wire(found: meta::ListSnapshotsResponse) -> Self {
        let rules = |rules: Vec<meta::SnapshotRule>| rules.into_iter().map(SnapshotRule::of_wire).collect::<Vec<_>>();
        let of_volume = Some(DirectorySchedule { directory: 0, rules: rules(found.schedule) });
        let of_volume = of_volume.filter(|schedule| !schedule.rules.is_empty());
        let others = found.schedules.into_iter();
        let others = others.map(|one| DirectorySchedule { directory: one.directory, rules: rules(one.rules) });
        Self {
            snapshots: found.snapshots.into_iter().map(Snapshot::of_wire).collect(),
            schedules: of_volume.into_iter().chain(others).collect(),
            of_directories: found.of_directories,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A schedule would take snapshots at other times than it says.
    #[test]
    fn periods_have_their_codes() {
        for (code, period) in (1..).zip(SnapshotPeriod::ALL) {
            assert_eq!((SnapshotPeriod::of_wire(code), period.code()), (period, code));
        }
        assert_eq!(SnapshotPeriod::of_wire(9).code(), 9, "of a later version");
        assert_eq!(Snapshot::of_wire(meta::Snapshot::default()).rule, None);
    }

    /// The rules of a directory would be taken for the volume's.
    #[test]
    fn the_schedule_of_the_volume_comes_first() {
        let rule = |period| meta::SnapshotRule { period, keep: 3 };
        let of = meta::DirectorySchedule { directory: 7, rules: vec![rule(2)] };
        let found = meta::ListSnapshotsResponse { schedule: vec![rule(1)], schedules: vec![of], ..Default::default() };
        let list = SnapshotList::of_wire(found);
        let told: Vec<_> = list.schedules.iter().map(|one| (one.directory, one.rules[0].period)).collect();
        assert_eq!(told, [(0, SnapshotPeriod::Hour), (7, SnapshotPeriod::Day)]);
    }
}
