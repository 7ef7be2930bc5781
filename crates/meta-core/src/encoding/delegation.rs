//! What a session leads: value of the key (0, delegation, number). The number is the inode of the directory at the top.
//!
//! | bytes | field |
//! |---|---|
//! | 1 | 0x10 |
//! | varints | session; token; feature level; next item; logged time of the last item, or of the grant; next number of an inode; count of ranges |
//! | varints, for each range, ascending | first number; how many |
use super::varint::Cursor;
use crate::limits::DELEGATION_RANGES_MAX;
use crate::message::writer::put_varint;
use std::ops::RangeInclusive;

const TAG: u8 = 0x10;

/// Numbers that new inodes of a delegation get: ascending, each once.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DelegatedIds {
    /// Ascending, apart from each other, none empty.
    ranges: Vec<RangeInclusive<u64>>,
    /// All below it that are in a range were given.
    next: u64,
}

impl DelegatedIds {
    /// One range, whose first number is given.
    pub fn new(first: RangeInclusive<u64>) -> DelegatedIds {
        DelegatedIds { next: first.start() + 1, ranges: vec![first] }
    }

    pub fn ranges(&self) -> &[RangeInclusive<u64>] {
        &self.ranges
    }

    /// The number that is given next, if one is left.
    pub fn next(&self) -> Option<u64> {
        let range = self.ranges.iter().find(|range| *range.end() >= self.next)?;
        Some(self.next.max(*range.start()))
    }

    /// Notes that [`next`](Self::next) was given. No range has the last u64, so there is one behind it.
    pub fn give(&mut self, id: u64) {
        assert_eq!(self.next(), Some(id), "numbers of a delegation are given in order");
        self.next = id + 1;
    }

    /// Whether a number was given.
    pub fn has_given(&self, id: u64) -> bool {
        id < self.next && self.ranges.iter().any(|range| range.contains(&id))
    }

    /// Adds a range behind all others. False: it is not behind them, or there are too many.
    pub fn extend(&mut self, range: RangeInclusive<u64>) -> bool {
        let is_behind = self.ranges.last().is_none_or(|last| last.end() < range.start());
        let fits = is_behind && !range.is_empty() && *range.end() < u64::MAX;
        if !fits || self.ranges.len() >= DELEGATION_RANGES_MAX {
            return false;
        }
        self.ranges.push(range);
        true
    }

    /// Numbers in all ranges.
    pub fn total(&self) -> u64 {
        self.ranges.iter().map(|range| range.end() - range.start() + 1).sum()
    }

    /// Numbers that are left.
    pub fn left(&self) -> u64 {
        let left = |range: &RangeInclusive<u64>| (range.end() + 1).saturating_sub(self.next.max(*range.start()));
        self.ranges.iter().map(left).sum()
    }
}

/// See the module.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DelegationRecord {
    /// That leads it, and that its items are of.
    pub session: u64,
    /// Shown by whoever goes on with it in place of the session.
    pub token: u64,
    /// Feature level of the partition when it was given, which stays as long as it lasts.
    pub level: u16,
    /// Number of the next item.
    pub next: u64,
    /// Logged time of the last item, or of the grant.
    pub time: u64,
    pub ids: DelegatedIds,
}

impl DelegationRecord {
    /// Appends the value.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(TAG);
        let ids = &self.ids;
        let numbers = [self.session, self.token, self.level.into(), self.next, self.time, ids.next];
        numbers.into_iter().for_each(|number| put_varint(out, number));
        put_varint(out, ids.ranges.len() as u64);
        for range in &ids.ranges {
            put_varint(out, *range.start());
            put_varint(out, range.end() - range.start() + 1);
        }
    }

    /// Reads a value; `None` if no version wrote it.
    pub fn decode(value: &[u8]) -> Option<DelegationRecord> {
        let mut cursor = Cursor::new(value);
        cursor.byte().filter(|tag| *tag == TAG)?;
        let (session, token) = (cursor.varint()?, cursor.varint()?);
        let level = u16::try_from(cursor.varint()?).ok()?;
        let (next, time, next_id) = (cursor.varint()?, cursor.varint()?, cursor.varint()?);
        let count = cursor.varint().filter(|count| (1..=DELEGATION_RANGES_MAX as u64).contains(count))?;
        let mut ids = DelegatedIds { ranges: Vec::new(), next: next_id };
        for _ in 0..count {
            let (first, many) = (cursor.varint()?, cursor.varint()?);
            let last = first.checked_add(many.checked_sub(1)?)?;
            ids.extend(first..=last).then_some(())?;
        }
        cursor.end()?;
        // The directory at the top was given with the first range.
        let is_sound = session != 0 && next_id > *ids.ranges[0].start();
        is_sound.then_some(DelegationRecord { session, token, level, next, time, ids })
    }
}
