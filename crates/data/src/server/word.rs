//! [`Word`]: since when this server knows all that the manager knew then, about every group of its disks.
//!
//! Whoever may have been removed from a group, and does not know it, has blocks that others overwrite. So a reader who asks for it
//! gets copies only while the word is young; and a primary overwrites nothing in place after a member left, for longer than a
//! word stays young anywhere. A word counts from the moment in which it was asked for, and only once every state that came with it
//! is at least [told](super::told).

use cairn_types::{ErrorCode, Time};
use cairn_wire::error::WireError;
use parking_lot::Mutex;

use super::Inner;

/// When the manager was asked last, and when it was asked for what it answered last.
#[derive(Default)]
pub(super) struct Word {
    times: Mutex<(Option<Time>, Option<Time>)>,
}

impl Word {
    /// A heartbeat is sent.
    pub(super) fn asked(&self, now: Time) {
        self.times.lock().0 = Some(now);
    }

    /// What came with its answer was told.
    pub(super) fn came(&self) {
        let mut times = self.times.lock();
        if let Some(asked) = times.0.take() {
            times.1 = Some(asked);
        }
    }
}

impl Inner {
    /// Refuses while this server does not know whether its disks are still members.
    pub(super) fn check_word(&self) -> Result<(), WireError> {
        let (now, heard) = (self.clock.now(), self.word.times.lock().1);
        let text = match heard.map(|heard| now.since(heard)) {
            Some(age) if age < self.config.word_max => return Ok(()),
            Some(age) => format!("this server has not heard of the manager for {} ms", age.as_millis()),
            None => "this server has just started".to_owned(),
        };
        let text = format!("{text}, and does not know whether its disks are still members; ask another one");
        Err(WireError::new(ErrorCode::Unavailable, text))
    }
}
