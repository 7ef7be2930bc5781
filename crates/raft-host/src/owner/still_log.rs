//! A leader whose log stands still hands leadership over: its disk is full, or hangs.
//!
//! Entries go to the others at the same time as to the log here, but a leader applies nothing that it has not durably
//! itself. So while its log takes nothing nobody is answered, although a majority has everything, and its heartbeats go
//! on. Invariant: leadership goes only to a voter that has acknowledged the whole log, so whose own log moves; without
//! one it stays. Not here: why the log stands still, and when it goes on (`cairn_store`).

use std::time::Duration;

use cairn_raft::Input;
use cairn_types::{NodeId, Time};

use super::Owner;
use crate::state_machine::StateMachine;

/// What was given to the log is waited for so long.
const PATIENCE: Duration = Duration::from_secs(2);

/// What was given to the log and is not durable yet.
#[derive(Default, Debug)]
pub(super) struct LogWait {
    outstanding: usize,
    /// When the log last moved, or got something to do.
    moved: Time,
}

impl LogWait {
    pub(super) fn submitted(&mut self, now: Time) {
        if self.outstanding == 0 {
            self.moved = now;
        }
        self.outstanding += 1;
    }
    pub(super) fn persisted(&mut self, now: Time) {
        self.outstanding = self.outstanding.saturating_sub(1);
        self.moved = now;
    }
    fn stands_still(&self, now: Time) -> bool {
        self.outstanding > 0 && now.since(self.moved) >= PATIENCE
    }
}

impl<S: StateMachine> Owner<S> {
    /// Lets another member lead while the log here stands still.
    pub(super) fn leave_a_still_log(&mut self, now: Time) {
        if !self.leads || !self.log_wait.stands_still(now) {
            return;
        }
        let (status, own) = (self.core.status(), self.parts.config.node);
        let complete = |id: &NodeId| {
            *id != own && status.matched.iter().any(|(member, index)| member == id && *index >= status.last)
        };
        let Some(heir) = status.members.voters.iter().copied().find(complete) else { return };
        let group = self.parts.group;
        tracing::info!(%group, %heir, "the log of this member stands still: another one is to lead");
        // Tried again if it comes to nothing.
        self.log_wait.moved = now;
        self.step_quietly(Input::TransferLeader(heir));
    }
}
