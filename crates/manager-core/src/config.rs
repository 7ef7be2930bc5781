//! The table of settings that the whole cluster shares, changed with `cairn admin config`.
//!
//! Invariant: stored values are valid: every change is checked whole, all mistakes are told at once, and nothing is
//! set if there is any. Not here: settings of one process (the configuration file of `cairn server`).
use cairn_types::{ByteCount, Layout, StageHours};
use std::collections::BTreeMap;
use std::time::Duration;

/// Feature level from which on there are staged layouts.
pub const STAGE_LEVEL: u32 = 12;
/// Feature level from which on volumes may have private data. Nodes that know it hold to it.
pub const PRIVATE_LEVEL: u32 = 23;

/// What a value has to be.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// A duration between these numbers of milliseconds.
    Millis(u64, u64),
    /// A whole number between these.
    Count(u64, u64),
    /// A size in bytes between these.
    Size(u64, u64),
    /// A layout that this version can write.
    Layout,
    /// 1, 3 or 5.
    Voters,
    /// `on` or `off`.
    Switch,
    /// Hours of a day.
    Hours,
}

macro_rules! keys {
    ($($key:ident = $name:literal, $default:literal, $kind:expr, $help:literal;)*) => {
        /// A setting.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        pub enum Key { $($key,)* }

        impl Key {
            /// Every setting, by name.
            pub const ALL: &'static [Key] = &[$(Key::$key,)*];
            pub fn name(self) -> &'static str { match self { $(Key::$key => $name,)* } }
            pub fn default_value(self) -> &'static str { match self { $(Key::$key => $default,)* } }
            pub fn help(self) -> &'static str { match self { $(Key::$key => $help,)* } }
            fn kind(self) -> Kind { match self { $(Key::$key => $kind,)* } }
        }
    };
}

const HOUR: u64 = 3_600_000;

keys! {
    ClockDifferenceMax = "clock_difference_max", "10s", Kind::Millis(1_000, HOUR),
        "difference of a node's clock from the others' from which on it is named, and what is logged is timed by theirs";
    DefaultLayout = "default_layout", "r3", Kind::Layout,
        "layout of a volume that is made without one";
    DefragmentExtent = "defragment_extent", "64k", Kind::Size(0, 128 << 10),
        "length of a file's extents, on average, below which they are written anew in the background; 0: never";
    DiskReserve = "disk_reserve", "1g", Kind::Size(0, 1 << 50),
        "free space of a disk below which its placement groups take no new chunks";
    DrainGrayDisks = "drain_gray_disks", "on", Kind::Switch,
        "whether disks that are marked gray are emptied, one at a time";
    GarbageGrace = "garbage_grace", "10m", Kind::Millis(100, 24 * HOUR),
        "time without appends after which a chunk of a writer that died is looked at by garbage collection";
    GarbagePeriod = "garbage_period", "1h", Kind::Millis(100, 720 * HOUR),
        "pause between two passes of garbage collection over a volume";
    GrayAfter = "gray_after", "3m", Kind::Millis(0, 24 * HOUR),
        "time for which the writes of a disk take far longer than those of others before it is marked gray; 0s: never";
    GrayClear = "gray_clear", "24h", Kind::Millis(1_000, 10_000 * HOUR),
        "time without slow writes and bad blocks after which a gray disk is good again";
    MetaMembers = "meta_members", "3", Kind::Voters,
        "members of a new meta partition, if there are as many meta nodes; else 1";
    NodeTimeout = "node_timeout", "10s", Kind::Millis(1_000, HOUR),
        "silence of a node after which it is probed and, if it does not answer, marked down";
    PartitionLoad = "partition_load", "70", Kind::Count(0, 100),
        "percent of its time that the log of a volume's meta partitions takes, on average, above which the volume gets more of them; 0: never";
    PartitionMemory = "partition_memory", "2g", Kind::Size(0, 1 << 50),
        "memory of a meta partition above which its volume gets more of them, for new directories; 0: never";
    PgsPerDisk = "pgs_per_disk", "4", Kind::Count(1, 100),
        "placement groups that take new chunks, per volume and scheme, on each disk";
    PgsPerDiskMax = "pgs_per_disk_max", "1000", Kind::Count(1, 100_000),
        "placement groups of all volumes on one disk beyond which no more are made; a volume gets a quarter of them, at least 4 times pgs_per_disk";
    PgsPerVolumeMax = "pgs_per_volume_max", "1024", Kind::Count(1, 100_000),
        "placement groups of one volume and scheme that take new chunks at the same time";
    PrivateData = "private_data", "off", Kind::Switch,
        "whether file data goes through TLS alone, where keys are required; a node's security.data may ask for it too";
    ProbeDeadline = "probe_deadline", "1s", Kind::Millis(50, 60_000),
        "time that a silent node gets to answer a probe";
    RebalanceAbove = "rebalance_above", "90", Kind::Count(0, 99),
        "percent of a disk in use above which it gives placement groups to emptier ones; 0: never";
    RebalanceBelow = "rebalance_below", "70", Kind::Count(0, 99),
        "percent of a disk in use below which it gets placement groups of disks that are too full";
    RejoinDelay = "rejoin_delay", "10s", Kind::Millis(100, HOUR),
        "time after which a member that was removed but answers again is taken back; doubles with each removal";
    RepairDelay = "repair_delay", "15m", Kind::Millis(0, 7 * 24 * HOUR),
        "time that a disk is away before other disks take its places in placement groups";
    RepairDelayUrgent = "repair_delay_urgent", "30s", Kind::Millis(0, 7 * 24 * HOUR),
        "the same in placement groups that serve with the fewest members that writes need, or fewer";
    RepairInFlight = "repair_in_flight", "256", Kind::Count(0, 100_000),
        "members that are filled at the same time in the places of lost ones, in the whole cluster; 0: none";
    RepairInFlightPerDisk = "repair_in_flight_per_disk", "2", Kind::Count(1, 1_000),
        "the same on each disk";
    RepairRate = "repair_rate", "0", Kind::Size(0, 1 << 50),
        "bytes a second with which members are filled in the places of lost ones, in the whole cluster; 0: as fast as it goes";
    RepairRatePerDisk = "repair_rate_per_disk", "100m", Kind::Size(0, 1 << 50),
        "the same on each disk that is filled";
    ReportProbeDeadline = "report_probe_deadline", "300ms", Kind::Millis(10, 60_000),
        "time that a member gets to answer when a writer reported it";
    ScrubPeriod = "scrub_period", "336h", Kind::Millis(1_000, 10_000 * HOUR),
        "time in which every block of a disk is read at rest once";
    ScrubRateMax = "scrub_rate_max", "100m", Kind::Size(1 << 16, 1 << 40),
        "bytes a second that the scrub of a disk reads at most";
    SlowReports = "slow_reports", "3", Kind::Count(2, 1_000),
        "reports by at least two writers within slow_window after which a member that answers probes is removed as slow";
    SlowWindow = "slow_window", "10s", Kind::Millis(100, HOUR),
        "time in which reports about a slow member are counted";
    SpreadLeadersAfter = "spread_leaders_after", "1m", Kind::Millis(0, 24 * HOUR),
        "time without a change after which one leadership of a partition goes to a node that leads less; 0s: never";
    StageHours = "stage_hours", "always", Kind::Hours,
        "hours of the day (UTC) in which files of staged layouts are encoded: always, never, or such as 22-6";
    StageRate = "stage_rate", "100m", Kind::Size(0, 1 << 50),
        "bytes a second of files that are encoded later, in each meta partition; 0: as fast as it goes";
    StripeGroups = "stripe_groups", "off", Kind::Switch,
        "whether copies of staged layouts are placed for encoding within a rack: in two racks each, so that one rack may fail before they are encoded";
    TrashExpiry = "trash_expiry", "72h", Kind::Millis(0, 10_000 * HOUR),
        "time that what cairn fs rm removes (where no directory says otherwise) and deleted volumes stay in the trash; 0s: none";
}

impl Key {
    /// Settings that nodes go by; they come with the answers to heartbeats.
    pub const OF_NODES: &'static [Key] = &[
        Key::ClockDifferenceMax,
        Key::DefragmentExtent,
        Key::GarbageGrace,
        Key::GarbagePeriod,
        Key::RepairRate,
        Key::RepairRatePerDisk,
        Key::ScrubPeriod,
        Key::ScrubRateMax,
        Key::StageHours,
        Key::StageRate,
    ];

    /// The feature level from which on all members know it: one that does not would refuse the change that others make.
    pub fn level(self) -> u32 {
        match self {
            Key::SpreadLeadersAfter => 1,
            Key::DefragmentExtent => 3,
            Key::ClockDifferenceMax => 5,
            Key::PartitionLoad | Key::PartitionMemory => 6,
            Key::StageHours | Key::StageRate => STAGE_LEVEL,
            Key::StripeGroups => crate::stripe::STRIPE_LEVEL,
            Key::PrivateData => PRIVATE_LEVEL,
            _ => 0,
        }
    }

    pub fn from_name(name: &str) -> Option<Key> {
        Key::ALL.iter().copied().find(|key| key.name() == name)
    }
}

/// The values that differ from their defaults.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Config {
    values: BTreeMap<Key, String>,
}

impl Config {
    /// The value in force, as text.
    pub fn text(&self, key: Key) -> &str {
        self.values.get(&key).map_or(key.default_value(), String::as_str)
    }

    /// Values that differ from their defaults.
    pub fn changed(&self) -> impl Iterator<Item = (Key, &str)> {
        self.values.iter().map(|(key, value)| (*key, value.as_str()))
    }

    /// # Panics
    /// When `key` is no duration.
    pub fn duration(&self, key: Key) -> Duration {
        let millis = parse_millis(self.text(key)).expect("stored values and defaults are valid");
        assert!(matches!(key.kind(), Kind::Millis(..)), "{} is no duration", key.name());
        Duration::from_millis(millis)
    }

    /// A count, a number of voters or a size.
    ///
    /// # Panics
    /// When `key` is neither.
    pub fn number(&self, key: Key) -> u64 {
        match key.kind() {
            Kind::Count(..) | Kind::Voters => self.text(key).parse().expect("stored values and defaults are valid"),
            Kind::Size(..) => self.text(key).parse::<ByteCount>().expect("stored values and defaults are valid").0,
            Kind::Switch => u64::from(self.text(key) == "on"),
            Kind::Millis(..) | Kind::Layout | Kind::Hours => panic!("{} is no number", key.name()),
        }
    }

    /// Layout of a volume that is made without one.
    pub fn default_layout(&self) -> Layout {
        self.text(Key::DefaultLayout).parse().expect("stored values and defaults are valid")
    }

    /// Sets what is valid; an empty value means the default. All mistakes are told at once, and then nothing is set.
    pub fn set<'a>(&mut self, items: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<(), Vec<String>> {
        let mut values = self.values.clone();
        let mut mistakes = Vec::new();
        for (name, value) in items {
            let value = value.trim();
            let Some(key) = Key::from_name(name) else {
                mistakes.push(unknown(name));
                continue;
            };
            if value.is_empty() || value == key.default_value() {
                values.remove(&key);
            } else if let Some(mistake) = flaw(key, value) {
                mistakes.push(format!("{name} = {value:?}: {mistake}"));
            } else {
                values.insert(key, value.to_string());
            }
        }
        if mistakes.is_empty() {
            self.values = values;
            return Ok(());
        }
        Err(mistakes)
    }
}

/// Says that there is no such setting, and which one may be meant.
fn unknown(name: &str) -> String {
    let shared = |key: &Key| {
        let words = |text: &str| text.split('_').map(str::to_string).collect::<Vec<_>>();
        let of_key = words(key.name());
        words(&name.to_ascii_lowercase().replace(['-', '.'], "_")).iter().filter(|w| of_key.contains(w)).count()
    };
    let near = Key::ALL.iter().max_by_key(|key| shared(key)).filter(|key| shared(key) > 0);
    let name: String = name.chars().take(64).collect();
    match near {
        Some(key) => format!("{name:?} is no setting; is {} meant?", key.name()),
        None => {
            let names: Vec<&str> = Key::ALL.iter().map(|key| key.name()).collect();
            format!("{name:?} is no setting; there are {}", names.join(", "))
        }
    }
}

/// Why a value cannot be that of a setting, or `None` if it can.
pub(crate) fn flaw(key: Key, value: &str) -> Option<String> {
    match key.kind() {
        Kind::Millis(min, max) => match parse_millis(value) {
            Some(millis) if (min..=max).contains(&millis) => None,
            Some(_) => Some(format!("between {} and {}", show_millis(min), show_millis(max))),
            None => Some("a duration is written as 300ms, 10s, 15m or 2h".into()),
        },
        Kind::Count(min, max) => match value.parse::<u64>() {
            Ok(count) if (min..=max).contains(&count) => None,
            _ => Some(format!("a whole number from {min} to {max}")),
        },
        Kind::Size(min, max) => match value.parse::<ByteCount>() {
            Ok(ByteCount(size)) if (min..=max).contains(&size) => None,
            Ok(_) => Some(format!("between {} and {}", ByteCount(min), ByteCount(max))),
            Err(why) => Some(why),
        },
        Kind::Layout => match value.parse::<Layout>() {
            Ok(_) => None,
            Err(why) => Some(why.to_string()),
        },
        Kind::Voters => (!matches!(value, "1" | "3" | "5")).then(|| "1, 3 or 5".into()),
        Kind::Hours => value.parse::<StageHours>().err(),
        Kind::Switch => (!matches!(value, "on" | "off")).then(|| "on or off".into()),
    }
}

/// Why a layout cannot be used while members understand no more than this level, or `None` if it can.
pub fn layout_flaw(layout: Layout, level: u32) -> Option<String> {
    let needed = layout.schemes_since_level();
    if level < needed {
        return Some(format!(
            "{layout} needs feature level {needed} of all managers: upgrade those of an older version (cairn admin status names them), or use \
             another layout until then"
        ));
    }
    let staged = layout.staged().filter(|_| level < STAGE_LEVEL)?;
    Some(format!(
        "{layout} is encoded later, which needs feature level {STAGE_LEVEL} of all managers: upgrade those of an older version          (cairn admin status names them); use {staged} (encoded at once) or {} until then",
        layout.fresh().scheme()
    ))
}

/// Layout bits of a command; `None`: not one of this version, or of one that other members do not know.
pub(crate) fn known_layout(bits: u64, level: u32) -> Option<Layout> {
    let layout = Some(bits).filter(|bits| level >= STAGE_LEVEL || bits >> 40 == 0).and_then(Layout::from_bits);
    layout.filter(|layout| level >= layout.schemes_since_level())
}

/// `300ms`, `10s`, `15m`, `2h`.
fn parse_millis(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => HOUR,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

fn show_millis(millis: u64) -> String {
    for (unit, name) in [(HOUR, "h"), (60_000, "m"), (1_000, "s")] {
        if millis >= unit && millis.is_multiple_of(unit) {
            return format!("{}{name}", millis / unit);
        }
    }
    format!("{millis}ms")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A default that its own check refuses would panic when it is first read.
    #[test]
    fn defaults_are_valid_and_names_sorted() {
        for pair in Key::ALL.windows(2) {
            assert!(pair[0].name() < pair[1].name(), "{} is out of order", pair[1].name());
        }
        for key in Key::ALL {
            assert_eq!(flaw(*key, key.default_value()), None, "{}", key.name());
            assert_eq!(Key::from_name(key.name()), Some(*key));
            assert!(!key.help().is_empty());
        }
    }

    /// Half of a change would be in force, or the user would find one mistake at a time.
    #[test]
    fn all_mistakes_at_once_and_nothing_set() {
        let mut config = Config::default();
        let items = [
            ("node_timeout", "20s"),
            ("node_timeouts", "5s"),
            ("probe_deadline", "10"),
            ("slow_reports", "1"),
            ("default_layout", "r3>r2"),
            ("disk_reserve", "lots"),
            ("meta_members", "2"),
            ("xyz", "1"),
        ];
        let mistakes = config.set(items).expect_err("seven mistakes");
        assert_eq!(mistakes.len(), 7, "{mistakes:?}");
        assert!(mistakes[0].contains("is node_timeout meant?") || mistakes[0].contains("node"), "{}", mistakes[0]);
        assert!(mistakes[3].contains("r3>r2"), "{}", mistakes[3]);
        assert_eq!(config, Config::default());
    }

    /// A value could not be put back, or would keep an old default after an upgrade.
    #[test]
    fn set_and_put_back() {
        let mut config = Config::default();
        assert_eq!(config.set([("node_timeout", "1m"), ("disk_reserve", "64k")]), Ok(()));
        assert_eq!(config.duration(Key::NodeTimeout), Duration::from_secs(60));
        assert_eq!(config.number(Key::DiskReserve), 65_536);
        assert_eq!(config.set([("node_timeout", ""), ("disk_reserve", "1g")]), Ok(()));
        assert_eq!(config, Config::default());
        assert_eq!(config.number(Key::PgsPerDisk), 4);
        assert_eq!(config.default_layout(), Layout::replicated(3));
    }
}
