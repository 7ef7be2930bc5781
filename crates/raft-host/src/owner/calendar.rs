//! The calendar that a leader times its entries by.
//!
//! Invariant: logged time follows a calendar on which the clocks of others agree ([`crate::Clocks`]). The only member
//! of a group whose calendar is far ahead of the last logged time at its start waits for somebody who confirms it; if
//! nobody does, it is followed, said, and nothing is deleted by age for a time. Not here: that logged time never falls
//! and advances no faster than the monotonic clock ([`cairn_raft::LogClock`]).

use std::time::Duration;

use cairn_types::{Time, WallTime};

use super::Owner;
use crate::clocks::{JUMP, PATIENCE};
use crate::state_machine::StateMachine;

/// Where the calendar stands.
#[derive(Debug, Clone, Copy)]
pub(super) struct Calendar {
    started: Time,
    /// A jump waits for somebody who confirms it.
    held: bool,
}

impl Calendar {
    pub(super) fn begin(now: Time) -> Self {
        Self { started: now, held: false }
    }
}

impl<S: StateMachine> Owner<S> {
    /// The time of the next entry.
    pub(super) fn time_to_log(&mut self, now: Time) -> WallTime {
        let agreed = self.parts.clocks.agreed(now, self.parts.clock.wall());
        let last = self.log_clock.last();
        let jump = Duration::from_nanos(agreed.wall.0.saturating_sub(last.0));
        let alone = self.core.members().voters == [self.parts.config.node] && agreed.others == 0;
        let far = last.0 != 0 && jump > JUMP;
        if alone && far && (self.calendar.held || !self.log_clock.is_running()) {
            if now.since(self.calendar.started) < PATIENCE {
                self.calendar.held = true;
                return self.log_clock.next(now, last);
            }
            let group = self.parts.group;
            tracing::warn!(%group, ahead = ?jump, "the calendar of this machine is far ahead of the last logged time, and nobody's \
                clock confirms it: it is followed, and nothing is deleted by age for an hour; set the clock if it is wrong");
            self.parts.clocks.doubt(now);
        }
        if std::mem::take(&mut self.calendar.held) {
            self.log_clock.new_leadership();
        }
        self.log_clock.next(now, agreed.wall)
    }
}
