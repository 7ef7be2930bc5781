//! When snapshots are taken by themselves, and how many are kept; value of the key (0, schedule), of a directory of (0,
//! schedule, inode). Of feature level 13; of directories of 18.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 1 | 0x10 |
//! | 1 | varints | of each rule: period (1 hourly, 2 daily, 3 weekly, 4 monthly), how many are kept, number of the last period that is done |
use super::varint::Cursor;
use crate::message::writer::put_varint;
use crate::schedule::{Period, Rule};

const TAG: u8 = 0x10;

/// Appends the value.
pub(crate) fn encode_rules(rules: &[Rule], out: &mut Vec<u8>) {
    out.push(TAG);
    for rule in rules {
        put_varint(out, u64::from(rule.period as u8));
        put_varint(out, u64::from(rule.keep));
        put_varint(out, rule.done);
    }
}

/// Reads a value; `None` if no version wrote it.
pub(crate) fn decode_rules(value: &[u8]) -> Option<Vec<Rule>> {
    let mut cursor = Cursor::new(value);
    (cursor.byte()? == TAG).then_some(())?;
    let mut rules: Vec<Rule> = Vec::new();
    while !cursor.rest().is_empty() {
        let period = Period::from_code(cursor.varint()?)?;
        let keep = u32::try_from(cursor.varint()?).ok().filter(|keep| *keep > 0)?;
        let rule = Rule { period, keep, done: cursor.varint()? };
        rules.last().is_none_or(|last| last.period < period).then_some(())?;
        rules.push(rule);
    }
    (!rules.is_empty()).then_some(rules)
}
