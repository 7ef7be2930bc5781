//! Dates of the Gregorian calendar in UTC, from numbers of days.

/// Year, month, day of a number of days since 1970 (the algorithm of H. Hinnant, "chrono-compatible date algorithms").
pub const fn civil(days: u64) -> (u64, u64, u64) {
    let z = days + 719_468;
    let era = z / 146_097;
    let day_of_era = z % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let mp = (5 * day_of_year + 2) / 153;
    let month = if mp < 10 { mp + 3 } else { mp - 9 };
    (year_of_era + era * 400 + (month <= 2) as u64, month, day_of_year - (153 * mp + 2) / 5 + 1)
}

#[cfg(test)]
mod tests {
    use super::civil;

    /// Names and times that people read would be of another day.
    #[test]
    fn days_are_dates() {
        assert_eq!(civil(0), (1970, 1, 1));
        assert_eq!(civil(59), (1970, 3, 1));
        assert_eq!(civil(11_016), (2000, 2, 29));
        assert_eq!(civil(20_783), (2026, 11, 26));
    }
}
