//! Stages of a file with a later scheme (`r3>rs-6-3`), and the time after which it is encoded.
//!
//! | stage | bytes are | becomes |
//! |---|---|---|
//! | copies | copies; it waits | encoded or kept, when nothing changed it for [`StageAfter`] |
//! | encoded | rows of the later scheme | changed, when it is written |
//! | kept | copies that stay: encoding would not save enough | copies, when it is written |
//! | changed | rows, and what was written since, by the later scheme; it waits | encoded, looked at anew |
//!
//! A file of which nothing is stored is always in the first one. Not here: who encodes (`meta`, `client`).
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// How far a file is. The numbers are in layouts on the wire and on disk.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u8)]
pub enum Stage {
    #[default]
    Copies = 0,
    Encoded = 1,
    Kept = 2,
    Changed = 3,
}

impl Stage {
    /// Of the lowest two bits.
    pub const fn from_code(code: u8) -> Stage {
        match code & 3 {
            0 => Self::Copies,
            1 => Self::Encoded,
            2 => Self::Kept,
            _ => Self::Changed,
        }
    }
    /// What is written is of the later scheme.
    pub const fn is_encoded(self) -> bool {
        matches!(self, Self::Encoded | Self::Changed)
    }
    /// It is looked at when its time has come.
    pub const fn waits(self) -> bool {
        matches!(self, Self::Copies | Self::Changed)
    }
    /// After its contents were changed.
    pub const fn when_written(self) -> Stage {
        if self.is_encoded() { Self::Changed } else { Self::Copies }
    }
    /// For people and programs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Copies => "copies",
            Self::Encoded => "encoded",
            Self::Kept => "kept",
            Self::Changed => "changed",
        }
    }
}

/// Seconds, minutes, hours, days.
const UNITS: [(u64, char); 4] = [(1, 's'), (60, 'm'), (3600, 'h'), (86400, 'd')];
const COUNT_MAX: u64 = 4095;
const DAY: u64 = 86400;

/// Time without a change after which a file is encoded: 1 s to 4095 days. In 14 bits: a unit and how many of it, the
/// largest unit that is exact; 0 is a day.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct StageAfter(u16);

impl StageAfter {
    pub const DEFAULT: StageAfter = StageAfter(0);

    pub(crate) const fn code(self) -> u16 {
        self.0
    }
    /// `None` for what [`StageAfter::of_seconds`] never gives.
    pub(crate) fn from_code(code: u16) -> Option<StageAfter> {
        let (unit, count) = (UNITS.get(usize::from(code >> 12))?.0, u64::from(code & 0xfff));
        match code {
            0 => Some(Self::DEFAULT),
            _ => Self::of_seconds(count * unit).filter(|after| after.0 == code),
        }
    }
    fn of_seconds(seconds: u64) -> Option<StageAfter> {
        if seconds == DAY {
            return Some(Self::DEFAULT);
        }
        let exact = |(_, (unit, _)): &(usize, (u64, char))| {
            seconds.is_multiple_of(*unit) && (1..=COUNT_MAX).contains(&(seconds / unit))
        };
        let (number, (unit, _)) = UNITS.into_iter().enumerate().rev().find(exact)?;
        Some(StageAfter((number as u16) << 12 | (seconds / unit) as u16))
    }
    pub fn duration(self) -> Duration {
        let seconds = match self.0 {
            0 => DAY,
            code => UNITS[usize::from(code >> 12)].0 * u64::from(code & 0xfff),
        };
        Duration::from_secs(seconds)
    }
}

impl fmt::Display for StageAfter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => f.write_str("24h"),
            code => write!(f, "{}{}", code & 0xfff, UNITS[usize::from(code >> 12)].1),
        }
    }
}

impl FromStr for StageAfter {
    type Err = String;

    fn from_str(text: &str) -> Result<StageAfter, String> {
        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let unit = UNITS.iter().find(|(_, name)| text[digits.len()..].chars().eq([*name]));
        let seconds = unit.and_then(|(unit, _)| digits.parse::<u64>().ok()?.checked_mul(*unit));
        seconds.and_then(Self::of_seconds).ok_or_else(|| {
            format!("{text:?} is no time after which files are encoded: 1s to 4095d, such as 90s, 2h or 30d")
        })
    }
}

/// Hours of a day (UTC) in which files are encoded: `always`, `never`, or `22-6`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum StageHours {
    #[default]
    Always,
    Never,
    /// From the first to before the second one, over midnight if that is smaller.
    Between(u8, u8),
}

impl StageHours {
    pub fn has(self, now: crate::WallTime) -> bool {
        let hour = (now.0 / 3_600_000_000_000 % 24) as u8;
        match self {
            Self::Always => true,
            Self::Never => false,
            Self::Between(from, to) if from < to => (from..to).contains(&hour),
            Self::Between(from, to) => hour >= from || hour < to,
        }
    }
}

impl FromStr for StageHours {
    type Err = String;

    fn from_str(text: &str) -> Result<StageHours, String> {
        let hour = |text: &str| text.parse::<u8>().ok().filter(|hour| *hour < 24);
        let between = || {
            let (from, to) = text.split_once('-')?;
            Some((hour(from)?, hour(to)?)).filter(|(from, to)| from != to)
        };
        match text {
            "always" => Ok(Self::Always),
            "never" => Ok(Self::Never),
            _ => between()
                .map(|(from, to)| Self::Between(from, to))
                .ok_or_else(|| "always, never, or two different hours of UTC such as 22-6".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file would be encoded at another time than somebody asked for, or one layout have two numbers.
    #[test]
    fn times_round_trip_and_have_one_code() {
        for (text, shown) in
            [("2s", "2s"), ("90m", "90m"), ("120m", "2h"), ("24h", "24h"), ("1d", "24h"), ("4095d", "4095d")]
        {
            let after: StageAfter = text.parse().expect(text);
            assert_eq!(after.to_string(), shown);
            assert_eq!(shown.parse(), Ok(after));
            assert_eq!(StageAfter::from_code(after.code()), Some(after));
        }
        for text in ["", "s", "0s", "5", "5000s1", "-1s", "1w", "4096d", "99999999999999999999d", "2 h", "é"] {
            assert!(text.parse::<StageAfter>().is_err_and(|why| why.contains("1s to 4095d")), "{text}");
        }
        let valid = (0..1 << 14).filter_map(StageAfter::from_code);
        let mut durations: Vec<Duration> = valid.map(StageAfter::duration).collect();
        let all = durations.len();
        durations.sort_unstable();
        durations.dedup();
        assert_eq!(durations.len(), all, "two codes of one time");
        assert_eq!(StageAfter::DEFAULT.duration(), Duration::from_secs(24 * 3600));
    }

    /// Files would be encoded when disks are busy.
    #[test]
    fn hours_go_over_midnight() {
        let at = |hour: u64| crate::WallTime((1000 * 24 + hour) * 3_600_000_000_000 + 59 * 60_000_000_000);
        let hours = |text: &str| -> Vec<u64> {
            let of: StageHours = text.parse().expect(text);
            (0..24).filter(|hour| of.has(at(*hour))).collect()
        };
        assert_eq!((hours("22-2"), hours("3-5")), (vec![0, 1, 22, 23], vec![3, 4]));
        assert_eq!((hours("always").len(), hours("never").len()), (24, 0));
        for text in ["", "22", "22-24", "5-5", "a-b", "-1-3", "1-2-3"] {
            assert!(text.parse::<StageHours>().is_err(), "{text}");
        }
    }

    /// A file that was written would count as encoded, or never be looked at again.
    #[test]
    fn what_is_written_waits() {
        for code in 0..4 {
            let stage = Stage::from_code(code);
            assert_eq!(stage as u8, code);
            assert!(stage.when_written().waits());
            assert_eq!(
                stage.when_written().is_encoded(),
                stage.is_encoded(),
                "where bytes go does not change by writing"
            );
        }
    }
}
