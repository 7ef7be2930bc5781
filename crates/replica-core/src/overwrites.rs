//! What a member remembers about overwrites in place: as leader the requests that it has taken and the chunks of which
//! members may differ, as one who catches up what it could not take.
//!
//! Invariants: everything but the time after a member left belongs to one epoch; nothing is taken for a chunk whose
//! members may differ; repeats are answered with the first one.

use std::collections::{BTreeMap, BTreeSet};

use cairn_chunk_core::overwrite_requests::{OverwriteRequests, Seen};
use cairn_format::overwrite_number::OverwriteNumber;
use cairn_types::{ErrorCode, SessionId, Time};

use crate::input::RequestId;
use crate::message::{Refused, Wrote};

/// Repeats that wait for the outcome of a request that is under way.
const WAITING_MAX: usize = 4096;

/// As named above.
#[derive(Debug, Default)]
pub struct Overwrites {
    /// As leader: members were found or made equal in this epoch.
    pub open: bool,
    requests: OverwriteRequests<Wrote>,
    waiting: BTreeMap<(SessionId, u64), Vec<RequestId>>,
    waiting_count: usize,
    running: BTreeMap<u32, u32>,
    unequal: BTreeSet<u32>,
    /// A member left, and may answer readers until then.
    pub quiet_until: Time,
    /// As one who catches up: overwrites of chunks that are not here.
    pub skipped: BTreeMap<u32, OverwriteNumber>,
}

/// What becomes of a request.
#[derive(Debug, PartialEq, Eq)]
pub enum Begin {
    /// It is done now; one more is under way until [`Overwrites::end`].
    Go,
    /// It was done.
    Done(Wrote),
    /// It is answered with the first one.
    Waits,
}

impl Overwrites {
    /// A client asks.
    pub fn begin(
        &mut self,
        now: Time,
        index: u32,
        (session, request, floor): (SessionId, u64, u64),
        id: RequestId,
    ) -> Result<Begin, Refused> {
        let no = |code| Err(Refused::because(code));
        if now < self.quiet_until {
            return no(ErrorCode::NotInPlace);
        }
        if !self.open || self.unequal.contains(&index) {
            return no(ErrorCode::Overloaded);
        }
        match self.requests.came(session, request, floor) {
            Seen::New => {
                *self.running.entry(index).or_default() += 1;
                Ok(Begin::Go)
            }
            Seen::Done(wrote) => Ok(Begin::Done(wrote)),
            Seen::Running if self.waiting_count < WAITING_MAX => {
                self.waiting.entry((session, request)).or_default().push(id);
                self.waiting_count += 1;
                Ok(Begin::Waits)
            }
            Seen::Running | Seen::TooMany => no(ErrorCode::Overloaded),
            Seen::Over => no(ErrorCode::BadRequest),
        }
    }

    /// One that was under way has ended; who waits for it.
    pub fn end(&mut self, index: u32, (session, request): (SessionId, u64), done: Option<Wrote>) -> Vec<RequestId> {
        if let Some(count) = self.running.get_mut(&index) {
            *count -= 1;
            if *count == 0 {
                self.running.remove(&index);
            }
        }
        self.requests.ended(session, request, done);
        let waiting = self.waiting.remove(&(session, request)).unwrap_or_default();
        self.waiting_count -= waiting.len();
        waiting
    }

    /// Whether one of a chunk is under way.
    pub fn is_running(&self, index: u32) -> bool {
        self.running.contains_key(&index)
    }

    /// Members of a chunk may differ: nothing is taken for it before they are equal.
    pub fn differ(&mut self, index: u32) {
        self.unequal.insert(index);
    }

    /// They are equal.
    pub fn are_equal(&mut self, index: u32) {
        self.unequal.remove(&index);
    }

    /// Chunks whose members may differ.
    pub fn unequal(&self) -> &BTreeSet<u32> {
        &self.unequal
    }

    /// A new epoch; who waited for something of the old one.
    pub fn next_epoch(&mut self) -> Vec<RequestId> {
        let quiet_until = self.quiet_until;
        let old = std::mem::replace(self, Self { quiet_until, ..Self::default() });
        old.waiting.into_values().flatten().collect()
    }

    /// Panics if what it owns does not hold.
    pub fn check_invariants(&self) {
        let waiting: usize = self.waiting.values().map(Vec::len).sum();
        assert_eq!(waiting, self.waiting_count, "repeats that wait");
        assert!(self.running.values().all(|count| *count > 0), "what runs is counted");
    }
}
