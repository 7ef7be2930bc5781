//! Sessions, slots and kept answers: each request of (session, slot, sequence) is executed once (NFSv4.1, RFC 8881
//! §2.10.6).
//!
//! Sessions and slots arise on first use, slots with sequence 1; a slot that was never used costs nothing, whatever its
//! number. Ids ascend at the manager and are never repeated, so
//! ended sessions are remembered as a set that is cut to a floor when it grows: an unknown session at or below the
//! floor counts as ended. Those that live in other partitions of the volume are spared: they stay unknown.
//!
//! Invariants: a request of an ended session is never executed, so what has ended is never unknown again; a spared
//! session is at or below the floor, and goes when it ends. Cloning is O(1); after it, what changes is copied once.
use crate::error::{OpError, Result};
use crate::limits::{ENDED_SESSIONS_MAX, KEPT_ANSWER_MAX, SESSIONS_MAX, SLOTS_MAX};
use cairn_types::{ErrorCode, SessionId};
use cairn_wire::error::WireError;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

mod image;
#[cfg(test)]
mod tests;

const KEPT_OK: u8 = 0;
const KEPT_ERROR: u8 = 1;

/// What a partition knows of a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SessionState {
    Live,
    Ended,
    /// It has made no mutation here yet.
    Unknown,
}

/// What is to be done with a request.
pub(crate) enum Gate<'a> {
    Execute,
    /// It was executed; this is what was kept.
    Kept(&'a [u8]),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Slot {
    number: u32,
    /// Last executed.
    sequence: u64,
    /// One byte of outcome, then the answer, or the error's code (u16) and text.
    answer: Vec<u8>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Session {
    /// Those that were used, ascending.
    slots: Vec<Slot>,
}

impl Session {
    /// Where a slot is, or would be.
    #[inline]
    fn place(&self, number: u32) -> std::result::Result<usize, usize> {
        // Clients use the lowest numbers first, so that a slot stands at its number.
        match self.slots.get(number as usize) {
            Some(slot) if slot.number == number => Ok(number as usize),
            _ => self.slots.binary_search_by_key(&number, |slot| slot.number),
        }
    }

    fn slot(&self, number: u32) -> Option<&Slot> {
        self.place(number).ok().map(|at| &self.slots[at])
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SessionTable {
    live: Arc<BTreeMap<u64, Arc<Session>>>,
    ended: Arc<BTreeSet<u64>>,
    /// Every session up to this one that is not live has ended, but those that are spared.
    floor: u64,
    /// Up to the floor, and not known to have ended: they live in another partition, or did.
    spared: Arc<BTreeSet<u64>>,
    /// Used slots of all live sessions.
    slots: u64,
    /// Bytes of the answers that they keep.
    answers: u64,
}

impl SessionTable {
    pub fn state(&self, session: u64) -> SessionState {
        if SessionId(session).is_append() {
            // Writes no names. What it wrote is named by the file, or by its open append.
            return SessionState::Ended;
        }
        if self.live.contains_key(&session) {
            SessionState::Live
        } else if (session <= self.floor && !self.spared.contains(&session)) || self.ended.contains(&session) {
            SessionState::Ended
        } else {
            SessionState::Unknown
        }
    }

    pub fn live(&self) -> impl Iterator<Item = u64> + '_ {
        self.live.keys().copied()
    }

    pub fn check_not_ended(&self, session: u64) -> Result<()> {
        match self.state(session) {
            SessionState::Ended => Err(ENDED),
            SessionState::Live | SessionState::Unknown => Ok(()),
        }
    }

    /// A holder's own namespace knows its session.
    pub fn make_live(&mut self, session: u64) {
        Arc::make_mut(&mut self.live).entry(session).or_default();
    }

    /// Decides about a request before anything of it is looked at.
    #[inline]
    pub fn gate(&self, session: u64, slot: u32, sequence: u64) -> Result<Gate<'_>> {
        if slot >= SLOTS_MAX || session == 0 {
            return Err(OpError::new(
                ErrorCode::BadRequest,
                "a mutation names a session and one of its slots 0 to 255",
            ));
        }
        let slot = match self.live.get(&session) {
            Some(live) => live.slot(slot),
            None => {
                self.check_not_ended(session)?;
                if self.live.len() >= SESSIONS_MAX {
                    return Err(TOO_MANY);
                }
                None
            }
        };
        let last = slot.map_or(0, |slot| slot.sequence);
        match slot {
            _ if last.checked_add(1) == Some(sequence) => Ok(Gate::Execute),
            Some(slot) if sequence == last && last > 0 => Ok(Gate::Kept(&slot.answer)),
            _ => Err(OpError::new(
                ErrorCode::BadSequence,
                "the sequence number of the slot is neither the last nor the next one; open a new session",
            )),
        }
    }

    /// Gives a kept answer again.
    pub fn repeat(kept: &[u8], out: &mut Vec<u8>) -> std::result::Result<(), WireError> {
        match kept {
            [KEPT_OK, answer @ ..] => {
                out.extend_from_slice(answer);
                Ok(())
            }
            [KEPT_ERROR, low, high, text @ ..] => {
                let code = ErrorCode::from_code(u16::from_le_bytes([*low, *high])).unwrap_or(ErrorCode::Internal);
                Err(WireError::new(code, String::from_utf8_lossy(text)))
            }
            _ => Err(OpError::DAMAGED.to_wire()),
        }
    }

    #[inline]
    pub fn keep_answer(&mut self, session: u64, slot: u32, sequence: u64, answer: &[u8]) {
        assert!(answer.len() < KEPT_ANSWER_MAX, "answers of mutations are attributes or empty");
        self.keep(session, slot, sequence, |kept| {
            kept.push(KEPT_OK);
            kept.extend_from_slice(answer);
        });
    }

    pub fn keep_error(&mut self, session: u64, slot: u32, sequence: u64, error: OpError) {
        let text = error.text.as_bytes();
        self.keep(session, slot, sequence, |kept| {
            kept.push(KEPT_ERROR);
            kept.extend_from_slice(&error.code.code().to_le_bytes());
            kept.extend_from_slice(&text[..text.len().min(KEPT_ANSWER_MAX - 3)]);
        });
    }

    /// Moves a slot on to `sequence` and fills its empty answer.
    #[inline]
    fn keep(&mut self, session: u64, slot: u32, sequence: u64, fill: impl FnOnce(&mut Vec<u8>)) {
        let session = Arc::make_mut(Arc::make_mut(&mut self.live).entry(session).or_default());
        let at = session.place(slot).unwrap_or_else(|at| {
            if session.slots.is_empty() {
                // Most sessions use one.
                session.slots.reserve_exact(1);
            }
            session.slots.insert(at, Slot { number: slot, ..Slot::default() });
            self.slots += 1;
            at
        });
        let slot = &mut session.slots[at];
        slot.sequence = sequence;
        self.answers -= slot.answer.len() as u64;
        slot.answer.clear();
        fill(&mut slot.answer);
        self.answers += slot.answer.len() as u64;
    }

    /// Ends a session, known or not. Returns false when it had ended before.
    pub fn end(&mut self, session: u64) -> bool {
        let removed = Arc::make_mut(&mut self.live).remove(&session);
        for slot in removed.iter().flat_map(|session| &session.slots) {
            self.slots -= 1;
            self.answers -= slot.answer.len() as u64;
        }
        let was_live = removed.is_some();
        if session <= self.floor {
            let was_spared = self.spared.contains(&session) && Arc::make_mut(&mut self.spared).remove(&session);
            return was_live || was_spared;
        }
        let is_new = Arc::make_mut(&mut self.ended).insert(session);
        was_live || is_new
    }

    /// Raises the floor where more than `max` ended ones are remembered one by one, whoever lives elsewhere below it.
    pub fn bound_ended(&mut self, max: usize) {
        if self.ended.len() > max {
            let ended = Arc::make_mut(&mut self.ended);
            let keep_from = ended.iter().nth(max / 2).copied().expect("the set is larger than its half");
            let kept = ended.split_off(&keep_from);
            self.floor = ended.last().copied().expect("the lower half is not empty");
            *ended = kept;
        }
    }

    /// The floor under which half of the ended ones would be, when there are many.
    pub fn floor_wanted(&self) -> Option<u64> {
        let is_many = self.ended.len() > ENDED_SESSIONS_MAX;
        is_many.then(|| self.ended.iter().nth(ENDED_SESSIONS_MAX / 2).copied()).flatten()
    }

    /// No session was ever live or has ended here.
    pub fn is_new(&self) -> bool {
        self.floor == 0 && self.live.is_empty() && self.ended.is_empty()
    }

    /// The floor, and those above it that have ended, ascending.
    pub fn ended(&self) -> (u64, impl Iterator<Item = u64> + '_) {
        (self.floor, self.ended.iter().copied())
    }

    /// Live sessions up to `last`.
    pub fn live_up_to(&self, last: u64) -> BTreeSet<u64> {
        self.live.range(..=last).map(|(session, _)| *session).collect()
    }

    /// Sessions up to `last` that have not ended as far as is known here: live ones, and spared ones.
    pub fn not_ended(&self, last: u64) -> BTreeSet<u64> {
        let live = self.live.range(..=last).map(|(session, _)| *session);
        live.chain(self.spared.range(..=last).copied()).collect()
    }

    /// Ends what has ended elsewhere: `ended`, and up to the floor all but `live`, which are spared unless they have
    /// ended here. `max`: as of [`bound_ended`](Self::bound_ended). Afterwards the table is not [new](Self::is_new),
    /// whatever that was.
    pub fn take(&mut self, floor: u64, ended: &[u64], live: &[u64], max: usize) {
        for session in ended {
            self.end(*session);
            self.bound_ended(max);
        }
        // Of those above the floor that was asked for nobody was asked.
        let kept: Vec<u64> = self.spared.iter().copied().filter(|session| *session > floor).collect();
        let floor = self.floor.max(floor).max(1);
        let is_unknown = |session: &u64| *session <= floor && self.state(*session) == SessionState::Unknown;
        let spared = live.iter().copied().chain(kept).filter(is_unknown).collect();
        self.spared = Arc::new(spared);
        self.floor = floor;
        Arc::make_mut(&mut self.ended).retain(|session| *session > floor);
    }

    /// What sessions, their slots and kept answers take, as if each buffer had just the length that it needs.
    pub fn memory_bytes(&self) -> u64 {
        // An entry of a B-tree that is filled in ascending order (half full), and what it points to with its counts.
        let live = 2 * (size_of::<u64>() + size_of::<Arc<Session>>()) + size_of::<Session>() + 2 * size_of::<usize>();
        let slots = self.slots * size_of::<Slot>() as u64;
        self.live.len() as u64 * live as u64 + slots + self.answers + (self.ended.len() + self.spared.len()) as u64 * 16
    }

    /// Whether a slot was used, so that a request in it needs no further memory.
    pub fn has_slot(&self, session: u64, slot: u32) -> bool {
        self.live.get(&session).is_some_and(|session| session.place(slot).is_ok())
    }
}

const TOO_MANY: OpError = OpError::new(
    ErrorCode::Overloaded,
    "the partition has 1,048,576 live sessions and takes no more: end some (clients that nothing is heard of end after 20 s), \
     then repeat",
);

const ENDED: OpError = OpError::new(
    ErrorCode::SessionEnded,
    "the session has ended; whether the request was done before that is not known; open a new session",
);
