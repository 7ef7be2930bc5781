//! A snapshot, value of the key (0, snapshot, number); and what is known of all of them, value of the key (0,
//! snapshots).
//!
//! A snapshot:
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 1 | 0x10; 0x11 while it is being deleted; 0x12 and 0x13 the same of one that a schedule took (feature level 13) |
//! | 1 | varints | slot (1 to 32766), when it was taken (nanoseconds since 1970), the inode that was the next to be made |
//! | | varint | of 0x12 and 0x13: the rule (1 hourly, 2 daily, 3 weekly, 4 monthly) |
//! | | rest | name |
//!
//! One of a volume with several partitions (feature level 16):
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 1 | 0x14; 0x15 while it is being deleted; 0x16 while it is not known whether all partitions have it |
//! | 1 | varints | slot, when it was taken, the inode that was the next to be made, the rule (0: none), index of the log entry that cut it |
//! | | rest | name |
//!
//! One of a directory (feature level 18):
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 1 | 0x17; 0x18 while it is being deleted; 0x19 while it is not known whether all partitions have it |
//! | 1 | varints | slot, when it was taken, the inode that was the next to be made, the rule (0: none), index of the log entry that cut it (0: the volume has one partition), inode of the directory |
//! | | rest | name |
//!
//! All of them:
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 1 | 0x10 |
//! | 1 | varints | last number, last slot, when one was taken, renamed or deleted last; until when no overwrite lease is given; when one lapsed last (nanoseconds since 1970) |
use super::varint::Cursor;
use crate::inode_table::check_entry_name;
use crate::message::writer::put_varint;
use crate::schedule::Period;
use crate::snapshots::SLOT_MAX;

const TAG: u8 = 0x10;
const DELETING: u8 = 0x11;
const SCHEDULED: u8 = 0x12;
const SCHEDULED_DELETING: u8 = 0x13;
const OF_SEVERAL: u8 = 0x14;
const OF_SEVERAL_DELETING: u8 = 0x15;
const OF_SEVERAL_PENDING: u8 = 0x16;
const OF_DIRECTORY: u8 = 0x17;
const OF_DIRECTORY_DELETING: u8 = 0x18;
const OF_DIRECTORY_PENDING: u8 = 0x19;

/// See the module.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SnapshotRecord {
    pub slot: u16,
    pub created_ns: u64,
    pub inode_next: u64,
    pub deleting: bool,
    /// The rule of the schedule that took it, which may remove it; 0: somebody took it, or gave it another name.
    pub rule: u8,
    /// Not known yet to be cut in all partitions: it becomes complete, or is deleted. Never while `deleting`.
    pub pending: bool,
    /// Index of the log entry that cut it, in a volume of several partitions; else 0.
    pub cut: u64,
    /// Inode of the directory in which it is shown; 0: in all.
    pub directory: u64,
    pub name: Vec<u8>,
}

impl SnapshotRecord {
    /// Appends the value.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(match (self.cut, self.rule, self.deleting) {
            (_, _, true) if self.directory != 0 => OF_DIRECTORY_DELETING,
            _ if self.directory != 0 && self.pending => OF_DIRECTORY_PENDING,
            _ if self.directory != 0 => OF_DIRECTORY,
            (0, 0, false) => TAG,
            (0, 0, true) => DELETING,
            (0, _, false) => SCHEDULED,
            (0, _, true) => SCHEDULED_DELETING,
            (_, _, true) => OF_SEVERAL_DELETING,
            _ if self.pending => OF_SEVERAL_PENDING,
            _ => OF_SEVERAL,
        });
        put_varint(out, u64::from(self.slot));
        put_varint(out, self.created_ns);
        put_varint(out, self.inode_next);
        if self.rule != 0 || self.cut != 0 || self.directory != 0 {
            put_varint(out, u64::from(self.rule));
        }
        if self.cut != 0 || self.directory != 0 {
            put_varint(out, self.cut);
        }
        if self.directory != 0 {
            put_varint(out, self.directory);
        }
        out.extend_from_slice(&self.name);
    }

    /// Reads a value; `None` if no version wrote it.
    pub fn decode(value: &[u8]) -> Option<SnapshotRecord> {
        let mut cursor = Cursor::new(value);
        let tag = cursor.byte()?;
        let slot = u16::try_from(cursor.varint()?).ok().filter(|slot| (1..=SLOT_MAX).contains(slot))?;
        let (created_ns, inode_next) = (cursor.varint()?, cursor.varint()?);
        let of_several = matches!(tag, OF_SEVERAL | OF_SEVERAL_DELETING | OF_SEVERAL_PENDING);
        let of_directory = matches!(tag, OF_DIRECTORY | OF_DIRECTORY_DELETING | OF_DIRECTORY_PENDING);
        let rule = match tag {
            TAG | DELETING => 0,
            SCHEDULED | SCHEDULED_DELETING => Period::from_code(cursor.varint()?)? as u8,
            _ if of_several || of_directory => match cursor.varint()? {
                0 => 0,
                code => Period::from_code(code)? as u8,
            },
            _ => return None,
        };
        let cut = match (of_several, of_directory) {
            (true, _) => cursor.varint().filter(|cut| *cut != 0)?,
            (_, true) => cursor.varint()?,
            _ => 0,
        };
        let directory = if of_directory { cursor.varint().filter(|directory| *directory != 0)? } else { 0 };
        let name = cursor.rest().to_vec();
        check_entry_name(&name).ok()?;
        let deleting = matches!(tag, DELETING | SCHEDULED_DELETING | OF_SEVERAL_DELETING | OF_DIRECTORY_DELETING);
        let pending = matches!(tag, OF_SEVERAL_PENDING | OF_DIRECTORY_PENDING);
        // Only what was cut with other partitions is not known to be complete.
        let is_known = !pending || cut != 0;
        let record = SnapshotRecord { slot, created_ns, inode_next, deleting, rule, pending, cut, directory, name };
        is_known.then_some(record)
    }
}

/// See the module.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SnapshotState {
    pub last: u64,
    pub last_slot: u16,
    pub changed_ns: u64,
    pub no_leases_until_ns: u64,
    pub lapsed_ns: u64,
}

impl SnapshotState {
    /// Appends the value.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(TAG);
        for number in [self.last, self.last_slot.into(), self.changed_ns, self.no_leases_until_ns, self.lapsed_ns] {
            put_varint(out, number);
        }
    }

    /// Reads a value; `None` if no version wrote it.
    pub fn decode(value: &[u8]) -> Option<SnapshotState> {
        let mut cursor = Cursor::new(value);
        let tag = cursor.byte()?;
        let last = cursor.varint()?;
        let last_slot = u16::try_from(cursor.varint()?).ok().filter(|slot| *slot <= SLOT_MAX)?;
        let (changed_ns, no_leases_until_ns, lapsed_ns) = (cursor.varint()?, cursor.varint()?, cursor.varint()?);
        cursor.end()?;
        (tag == TAG).then_some(SnapshotState { last, last_slot, changed_ns, no_leases_until_ns, lapsed_ns })
    }
}
