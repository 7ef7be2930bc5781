//! [`Validity`]: from when to when a certificate counts, read from its bytes (X.509, DER), which no library here tells.
//!
//! It is for planning alone: whether a certificate counts is decided by `webpki`. Invariant: whatever the bytes are,
//! the reader ends, and what it does not understand is no time.
use crate::WARN_DAYS;
use rustls::pki_types::CertificateDer;
use time::{Date, Month, PrimitiveDateTime, Time};

/// Certificates count from so long before they were made: clocks of a cluster differ.
pub(crate) const BEFORE: u64 = 86_400;

const SEQUENCE: u8 = 0x30;
const INTEGER: u8 = 0x02;
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// Seconds since 1970.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Validity {
    /// When it was made.
    pub made: u64,
    /// When it ends.
    pub until: u64,
}

impl Validity {
    /// Of a certificate that an [`Authority`](crate::Authority) made.
    pub(crate) fn of(certificate: &CertificateDer<'_>) -> Option<Self> {
        let (_, certificate, _) = element(certificate)?;
        let (_, signed, _) = element(certificate)?;
        let mut rest = signed;
        // Version, serial number, algorithm, issuer; the times follow.
        for tag in [VERSION, INTEGER, SEQUENCE, SEQUENCE] {
            let (found, _, behind) = element(rest)?;
            if found != tag {
                return None;
            }
            rest = behind;
        }
        let (tag, times, _) = element(rest)?;
        let (first, begin, rest) = element(times)?;
        let (second, end, _) = element(rest)?;
        let (begin, until) = (moment(first, begin)?, moment(second, end)?);
        (tag == SEQUENCE && begin <= until).then(|| Self { made: (begin + BEFORE).min(until), until })
    }

    /// From when on there is a next one: when half of the time is over.
    pub fn renewable(&self) -> u64 {
        self.made + self.life() / 2
    }

    /// When its holder asks for the next one: when two thirds of the time are over.
    pub fn due(&self) -> u64 {
        self.made + self.life() / 3 * 2
    }

    /// From when on its end is spoken of although it should have been renewed: the last days, or the last part of a
    /// life that is short.
    pub fn warned(&self) -> u64 {
        self.until - (WARN_DAYS * BEFORE).min(self.life() / 10 * 3)
    }

    /// For how long it counts.
    pub fn life(&self) -> u64 {
        self.until - self.made
    }
}

/// Tag, contents, and what is behind.
fn element(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&[tag, short], rest) = bytes.split_first_chunk::<2>()?;
    let (length, rest) = match short {
        0..=0x7f => (usize::from(short), rest),
        // A certificate is shorter than 64 KiB here.
        0x81 | 0x82 => {
            let (digits, rest) = rest.split_at_checked(usize::from(short & 0x7f))?;
            (digits.iter().fold(0, |length, digit| length << 8 | usize::from(*digit)), rest)
        }
        _ => return None,
    };
    let (contents, behind) = rest.split_at_checked(length)?;
    Some((tag, contents, behind))
}

/// `YYMMDDHHMMSSZ` or `YYYYMMDDHHMMSSZ` (RFC 5280, 4.1.2.5).
fn moment(tag: u8, text: &[u8]) -> Option<u64> {
    let digits = text.strip_suffix(b"Z")?;
    if !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number = |digits: &[u8]| digits.iter().fold(0i32, |number, digit| number * 10 + i32::from(digit - b'0'));
    let (year, rest) = match (tag, digits.len()) {
        (UTC_TIME, 12) => match number(&digits[..2]) {
            year @ 0..50 => (2000 + year, &digits[2..]),
            year => (1900 + year, &digits[2..]),
        },
        (GENERALIZED_TIME, 14) => (number(&digits[..4]), &digits[4..]),
        _ => return None,
    };
    let part = |at: usize| u8::try_from(number(&rest[at..at + 2])).ok();
    let date = Date::from_calendar_date(year, Month::try_from(part(0)?).ok()?, part(2)?).ok()?;
    let time = Time::from_hms(part(4)?, part(6)?, part(8)?).ok()?;
    u64::try_from(PrimitiveDateTime::new(date, time).assume_utc().unix_timestamp()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server would renew its key too late, or all the time.
    #[test]
    fn times_are_read_as_they_are_written() {
        assert_eq!(moment(UTC_TIME, b"700101000000Z"), Some(0));
        assert_eq!(moment(UTC_TIME, b"491231235959Z"), Some(2_524_607_999));
        assert_eq!(moment(GENERALIZED_TIME, b"20500101000000Z"), Some(2_524_608_000));
        for (tag, bad) in [
            (UTC_TIME, &b"20500101000000Z"[..]),
            (UTC_TIME, b"700101000000"),
            (UTC_TIME, b"701301000000Z"),
            (UTC_TIME, b"700101006000Z"),
            (UTC_TIME, b"7001010000+0Z"),
            (GENERALIZED_TIME, b"700101000000Z"),
            (GENERALIZED_TIME, b""),
            (INTEGER, b"700101000000Z"),
        ] {
            assert_eq!(moment(tag, bad), None, "{bad:?}");
        }
    }

    /// Bytes that are no certificate would bring the reader down, or send it behind their end.
    #[test]
    fn what_is_no_certificate_has_no_times() {
        for bytes in [&[][..], &[0x30], &[0x30, 0x80], &[0x30, 0x84, 0xff, 0xff, 0xff, 0xff], &[0x30, 0x82, 0xff]] {
            assert_eq!(Validity::of(&CertificateDer::from(bytes)), None);
        }
        assert_eq!(element(&[0x30, 0x81, 1, 7, 9]), Some((0x30, &[7][..], &[9][..])));
        assert_eq!(element(&[0x30, 2, 7]), None);
    }
}
