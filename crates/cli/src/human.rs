//! Sizes and times as people read and write them.
use cairn_types::ByteCount;
use cairn_types::date::civil;
use std::time::Duration;

/// A size: digits, or with a binary unit in four to five characters such as `1.5M`.
pub fn size(bytes: u64, human: bool) -> String {
    if !human || bytes < 1024 {
        return bytes.to_string();
    }
    let mut value = bytes as f64;
    for unit in ["K", "M", "G", "T", "P", "E"] {
        value /= 1024.0;
        if value < 9.95 {
            return format!("{value:.1}{unit}");
        }
        if value < 1023.5 || unit == "E" {
            return format!("{value:.0}{unit}");
        }
    }
    bytes.to_string()
}

/// A size with its unit in sentences, such as `1.5 MiB`.
pub fn bytes(count: u64) -> String {
    ByteCount(count).to_string()
}

/// A point in time in the local time zone, to the minute.
pub fn local_time(ns: u64) -> String {
    let seconds = (ns / 1_000_000_000) as libc::time_t;
    // SAFETY: `tm` is plain old data that localtime_r fills; both pointers are valid for the call.
    let tm = unsafe {
        let mut tm: libc::tm = std::mem::zeroed();
        libc::localtime_r(&seconds, &mut tm);
        tm
    };
    format!("{:04}-{:02}-{:02} {:02}:{:02}", tm.tm_year + 1900, tm.tm_mon + 1, tm.tm_mday, tm.tm_hour, tm.tm_min)
}

/// A point in time in UTC, as RFC 3339 writes it, to the nanosecond.
pub fn utc_time(ns: u64) -> String {
    let seconds = ns / 1_000_000_000;
    let (year, month, day) = civil(seconds / 86_400);
    let of_day = seconds % 86_400;
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:09}Z", ns % 1_000_000_000)
}

/// Days since 1970 of a date; `None` if there is no such date after 1969.
fn days_of(year: u64, month: u64, day: u64) -> Option<u64> {
    if !(1970..=2500).contains(&year) || !(1..=12).contains(&month) || day == 0 {
        return None;
    }
    let y = if month <= 2 { year - 1 } else { year };
    let (era, year_of_era) = (y / 400, y % 400);
    let mp = if month > 2 { month - 3 } else { month + 9 };
    let day_of_year = (153 * mp + 2) / 5 + day - 1;
    let days = era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468;
    (civil(days) == (year, month, day)).then_some(days)
}

/// Nanoseconds since 1970 of `@SECONDS[.FRACTION]`, `YYYY-MM-DD` or `YYYY-MM-DDTHH:MM[:SS]` (UTC, an end `Z` may
/// stand).
pub fn parse_time(text: &str) -> Result<u64, String> {
    let bad = || format!("{text:?} is no time: write @SECONDS since 1970, YYYY-MM-DD or YYYY-MM-DDTHH:MM:SS (UTC)");
    if let Some(seconds) = text.strip_prefix('@') {
        let (whole, fraction) = seconds.split_once('.').unwrap_or((seconds, ""));
        let whole: u64 = whole.parse().map_err(|_| bad())?;
        if fraction.len() > 9 || !fraction.bytes().all(|b| b.is_ascii_digit()) {
            return Err(bad());
        }
        let ns: u64 = format!("{fraction:0<9}").parse().map_err(|_| bad())?;
        return whole.checked_mul(1_000_000_000).and_then(|w| w.checked_add(ns)).ok_or_else(bad);
    }
    let text_utc = text.strip_suffix('Z').unwrap_or(text);
    let (date, time) = text_utc.split_once(['T', ' ']).unwrap_or((text_utc, "00:00"));
    let numbers =
        |part: &str, separator| part.split(separator).map(|n| n.parse::<u64>().ok()).collect::<Option<Vec<_>>>();
    let date = numbers(date, '-').ok_or_else(bad)?;
    let time = numbers(time, ':').ok_or_else(bad)?;
    let [year, month, day] = date[..] else { return Err(bad()) };
    let (hour, minute, second) = match time[..] {
        [hour, minute] => (hour, minute, 0),
        [hour, minute, second] => (hour, minute, second),
        _ => return Err(bad()),
    };
    if hour > 23 || minute > 59 || second > 59 {
        return Err(bad());
    }
    let days = days_of(year, month, day).ok_or_else(bad)?;
    Ok((days * 86_400 + hour * 3600 + minute * 60 + second) * 1_000_000_000)
}

/// A size as options take it: `4096`, `64k`, `1.5g`.
pub fn parse_size(text: &str) -> Result<u64, String> {
    text.parse::<ByteCount>().map(|count| count.0)
}

/// `90s`, `15m`, `12h`, `7d`; a number alone is seconds.
pub fn parse_duration(text: &str) -> Option<Duration> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3_600,
        "d" => 86_400,
        "ms" => return digits.parse::<u64>().ok().map(Duration::from_millis),
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(unit).map(Duration::from_secs)
}

/// A time that is never shorter than it is, in one unit.
pub fn duration(duration: Duration) -> String {
    let seconds = duration.as_secs() + u64::from(duration.subsec_nanos() > 0);
    match seconds {
        0..300 => format!("{seconds} s"),
        300..18_000 => format!("{} min", seconds.div_ceil(60)),
        18_000..259_200 => format!("{} h", seconds.div_ceil(3_600)),
        _ => format!("{} d", seconds.div_ceil(86_400)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_fit_their_column() {
        for (count, text) in [
            (0, "0"),
            (1023, "1023"),
            (1024, "1.0K"),
            (10_188, "9.9K"),
            (10_240, "10K"),
            (1 << 20, "1.0M"),
            (1_048_000, "1023K"),
            (1_048_300, "1.0M"),
            (200 << 10, "200K"),
            (u64::MAX, "16E"),
        ] {
            assert_eq!(size(count, true), text, "{count}");
        }
        assert_eq!(size(5000, false), "5000");
    }

    /// What is old would be called younger than it is.
    #[test]
    fn durations_are_rounded_up() {
        for (ms, text) in [
            (0, "0 s"),
            (1, "1 s"),
            (1_000, "1 s"),
            (1_001, "2 s"),
            (300_001, "6 min"),
            (18_000_000, "5 h"),
            (259_200_001, "4 d"),
        ] {
            assert_eq!(duration(Duration::from_millis(ms)), text, "{ms}");
        }
        assert_eq!(parse_duration("90s"), Some(Duration::from_secs(90)));
        assert_eq!(parse_duration("2h"), Some(Duration::from_secs(7_200)));
        assert_eq!((parse_duration("x"), parse_duration("5w")), (None, None));
    }

    /// A file would be stamped with another day.
    #[test]
    fn times_round_trip() {
        for text in ["1970-01-01T00:00:00", "2000-02-29T23:59:59", "2026-11-21T02:10:12", "2100-03-01T12:00:00"] {
            let ns = parse_time(text).expect(text);
            assert_eq!(utc_time(ns), format!("{text}.000000000Z"));
        }
        assert_eq!(parse_time("@1.5"), Ok(1_500_000_000));
        assert_eq!(parse_time("1970-01-02"), Ok(86_400_000_000_000));
        for text in ["", "@", "@-1", "2026-02-30", "2026-13-01", "2026-01-01T24:00", "yesterday", "@1.0000000001"] {
            assert!(parse_time(text).is_err(), "{text}");
        }
    }
}
