//! EndSession and ExpireSessions: what a session held is released. From then on none of its requests is executed.
use crate::dead::Budget;
use crate::error::Result;
use crate::limits::INLINE_EXTENTS_MAX;
use crate::message::request;
use crate::namespace::Namespace;
use crate::session::SessionState;

/// Holds that are released in the entry that ends a session; the rest is left to `ReclaimBatch`.
const INLINE_HOLDS: usize = INLINE_EXTENTS_MAX;

impl Namespace {
    /// Ends a session, known here or not. Repeating it changes nothing.
    pub(crate) fn end_session(&mut self, session: u64) {
        if session == 0 {
            return;
        }
        // What it led is like everything else from now on, and what it had not stored never comes.
        self.end_delegations_of(session);
        let is_new = self.sessions.end(session);
        self.sessions.bound_ended(self.ended_sessions_max());
        if !is_new || (self.counters.holds == 0 && self.locks == 0) {
            return;
        }
        let mut budget = Budget { inodes: INLINE_HOLDS, extents: usize::MAX };
        // A record that cannot be decoded stays in the list, where it is met and reported again.
        let released = matches!(self.release_holds(session, &mut budget), Ok(true));
        if !released || !matches!(self.release_locks(session, &mut budget), Ok(true)) {
            self.list_dead_session(session);
        }
    }

    pub(crate) fn expire_sessions(&mut self, bytes: &[u8]) -> Result<()> {
        let mut sessions = Vec::new();
        let request = request::ExpireSessions::decode(bytes)?;
        request.sessions.visit(|session| {
            sessions.push(session);
            true
        })?;
        for session in sessions {
            // One that was found as a writer of chunks only may have begun to make itself known.
            if !request.unknown_only || self.sessions.state(session) == SessionState::Unknown {
                self.end_session(session);
            }
        }
        let mut delegations = Vec::new();
        request.delegations.visit(|number| {
            delegations.push(number);
            true
        })?;
        // Their holders hear it when they store the next batch. One that has ended meanwhile is passed over.
        delegations.into_iter().for_each(|number| self.end_delegation(number));
        Ok(())
    }
}
