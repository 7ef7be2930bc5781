//! [`Word`]: since when this server knows all that the manager knew then, about every group of its disks.
//!
//! Whoever may have been removed from a group, and does not know it, has blocks that others overwrite. So a reader who
//! asks for it gets copies only while the word is young; and a primary overwrites nothing in place after a member left,
//! for longer than a word stays young anywhere. A word counts from the moment in which it was asked for, and only once
//! every state that came with it is at least [told](super::told).
//!
//! Whoever has just started may have a disk that forgot what it had synced, and serve all the same, because too few
//! others do: what was overwritten there is compared in the first moments. So for these, too, a reader is sent to
//! somebody else.

use cairn_chunk_core::fence;
use cairn_types::{ErrorCode, Time};
use cairn_wire::error::WireError;
use parking_lot::Mutex;

use super::Inner;
use super::member::Member;

/// How the manager was heard.
#[derive(Default)]
pub(super) struct Word {
    times: Mutex<Times>,
}

#[derive(Default)]
struct Times {
    /// When it was asked last.
    asked: Option<Time>,
    /// When it was asked for what it answered last.
    heard: Option<Time>,
    /// When it answered first since the start.
    since: Option<Time>,
}

impl Word {
    /// A heartbeat is sent.
    pub(super) fn asked(&self, now: Time) {
        self.times.lock().asked = Some(now);
    }

    /// What came with its answer was told.
    pub(super) fn came(&self, now: Time) {
        let mut times = self.times.lock();
        if let Some(asked) = times.asked.take() {
            times.heard = Some(asked);
            times.since.get_or_insert(now);
        }
    }
}

impl Inner {
    /// Refuses while this server does not know whether its disks are still members.
    pub(super) fn check_word(&self) -> Result<(), WireError> {
        let (now, heard) = (self.clock.now(), self.word.times.lock().heard);
        let text = match heard.map(|heard| now.since(heard)) {
            Some(age) if age < self.config.word_max => return Ok(()),
            Some(age) => format!("this server has not heard of the manager for {} ms", age.as_millis()),
            None => "this server has just started".to_owned(),
        };
        let text = format!("{text}, and does not know whether its disks are still members; ask another one");
        Err(WireError::new(ErrorCode::Unavailable, text))
    }

    /// Refuses in the first moments after the start, if somebody else serves: the copies here may not have been
    /// compared yet.
    pub(super) fn check_compared(&self, member: &Member) -> Result<(), WireError> {
        let (now, since) = (self.clock.now(), self.word.times.lock().since);
        let old = since.is_some_and(|since| now.since(since) >= self.config.compared_within);
        if old || fence::serving(&member.pg).all(|other| other == member.disk) {
            return Ok(());
        }
        let text = "this server has just started, and its copies are still being compared with others; ask another one";
        Err(WireError::new(ErrorCode::Unavailable, text))
    }
}
