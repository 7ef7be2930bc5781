//! The session table in a checkpoint.
//!
//! A page of live sessions is a sequence of records; numbers are base-128:
//!
//! | field | |
//! |---|---|
//! | session | |
//! | number of slots | at most 256: one more than the highest that was used |
//! | for each slot: sequence (0: it was never used), length of the kept answer, kept answer | at most 512 bytes: 0 and the answer, or 1, the error's code (u16 little-endian) and text |
//!
//! A page of ended sessions, or of spared ones, is a sequence of numbers: the first id, then the distance to the one
//! before. The floor is in the checkpoint's header.
use super::{Session, SessionTable, Slot};
use crate::encoding::Cursor;
use crate::limits::{KEPT_ANSWER_MAX, SLOTS_MAX};
use crate::message::writer::put_varint;
use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;

impl SessionTable {
    /// Live sessions, and those in the pages of ended and of spared ones.
    pub fn counts(&self) -> (u64, u64) {
        (self.live.len() as u64, (self.ended.len() + self.spared.len()) as u64)
    }

    pub fn floor(&self) -> u64 {
        self.floor
    }

    pub fn set_floor(&mut self, floor: u64) {
        self.floor = floor;
    }

    /// Appends live sessions greater than `after` until `out` has about `bytes`; returns the last one, `None` at the
    /// end.
    pub fn append_live(&self, after: Option<u64>, bytes: usize, out: &mut Vec<u8>) -> Option<u64> {
        let start = out.len();
        let low = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut last = None;
        for (id, session) in self.live.range((low, Bound::Unbounded)) {
            put_varint(out, *id);
            put_varint(out, session.slots.last().map_or(0, |slot| u64::from(slot.number) + 1));
            let mut next = 0;
            for slot in &session.slots {
                // Neither a sequence nor an answer.
                out.extend(std::iter::repeat_n(0, 2 * (slot.number - next) as usize));
                next = slot.number + 1;
                put_varint(out, slot.sequence);
                put_varint(out, slot.answer.len() as u64);
                out.extend_from_slice(&slot.answer);
            }
            last = Some(*id);
            if out.len() - start >= bytes {
                break;
            }
        }
        last
    }

    /// Appends all ended sessions above the floor (their number is bounded); false when there are none.
    pub fn append_ended(&self, out: &mut Vec<u8>) -> bool {
        append_set(&self.ended, out)
    }

    /// The same of spared ones.
    pub fn append_spared(&self, out: &mut Vec<u8>) -> bool {
        append_set(&self.spared, out)
    }

    /// Adds the sessions of a page; `None` if no version wrote it.
    pub fn load_live(&mut self, page: &[u8]) -> Option<()> {
        let live = Arc::make_mut(&mut self.live);
        let mut cursor = Cursor::new(page);
        while cursor.end().is_none() {
            let id = cursor.varint()?;
            let count = cursor.varint().filter(|count| *count <= u64::from(SLOTS_MAX))?;
            let mut session = Session::default();
            for number in 0..count as u32 {
                let sequence = cursor.varint()?;
                let answer = cursor.block().filter(|answer| answer.len() <= KEPT_ANSWER_MAX)?.to_vec();
                if sequence == 0 && answer.is_empty() {
                    continue;
                }
                self.slots += 1;
                self.answers += answer.len() as u64;
                session.slots.push(Slot { number, sequence, answer });
            }
            session.slots.shrink_to_fit();
            if live.last_key_value().is_some_and(|(last, _)| *last >= id) {
                return None;
            }
            live.insert(id, Arc::new(session));
        }
        Some(())
    }

    /// Sets the ended sessions of a page; `None` if no version wrote it.
    pub fn load_ended(&mut self, page: &[u8]) -> Option<()> {
        load_set(Arc::make_mut(&mut self.ended), page)
    }

    /// The same of spared ones; the floor is known.
    pub fn load_spared(&mut self, page: &[u8]) -> Option<()> {
        load_set(Arc::make_mut(&mut self.spared), page)?;
        self.spared.last().is_none_or(|last| *last <= self.floor).then_some(())
    }
}

fn append_set(set: &BTreeSet<u64>, out: &mut Vec<u8>) -> bool {
    let mut before = 0;
    for id in set {
        put_varint(out, id - before);
        before = *id;
    }
    !set.is_empty()
}

fn load_set(set: &mut BTreeSet<u64>, page: &[u8]) -> Option<()> {
    let mut cursor = Cursor::new(page);
    let mut id = 0u64;
    while cursor.end().is_none() {
        id = id.checked_add(cursor.varint().filter(|distance| *distance > 0)?)?;
        set.insert(id);
    }
    Some(())
}
