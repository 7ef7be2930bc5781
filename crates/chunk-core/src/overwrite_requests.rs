//! Which overwrites of which sessions a primary has taken in its epoch, so that a request that is repeated is not done
//! again behind a newer one.
//!
//! A session numbers its requests and says with each below which number it waits for nothing any more. Invariants: a
//! request below that is never done; one that is under way or done is not done again; what is remembered is bounded by
//! [`SESSIONS_MAX`] sessions of [`REQUESTS_MAX`] requests.

use std::collections::BTreeMap;

use cairn_types::SessionId;

/// Sessions that are remembered; the one that asked longest ago goes first.
pub const SESSIONS_MAX: usize = 4096;
/// Requests of one session that may be unanswered.
pub const REQUESTS_MAX: usize = 1024;

/// What a request is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seen<T> {
    /// Not known: it is done now.
    New,
    /// It is being done.
    Running,
    /// It was done.
    Done(T),
    /// Its session has said that it is over.
    Over,
    /// Its session has too many unanswered ones.
    TooMany,
}

/// Requests of all sessions; `T` is what a repeat is answered.
#[derive(Debug)]
pub struct OverwriteRequests<T> {
    sessions: BTreeMap<SessionId, Session<T>>,
    clock: u64,
}

#[derive(Debug)]
struct Session<T> {
    floor: u64,
    last_use: u64,
    requests: BTreeMap<u64, Option<T>>,
}

impl<T> Default for OverwriteRequests<T> {
    fn default() -> Self {
        Self { sessions: BTreeMap::new(), clock: 0 }
    }
}

impl<T: Clone> OverwriteRequests<T> {
    /// A request came; nothing below `floor` is waited for. A new one counts as running from now on.
    pub fn came(&mut self, session: SessionId, request: u64, floor: u64) -> Seen<T> {
        self.clock += 1;
        let clock = self.clock;
        if !self.sessions.contains_key(&session) && self.sessions.len() >= SESSIONS_MAX {
            // Of those with nothing under way; there is one unless every session has a request on the way.
            let idle = self.sessions.iter().filter(|(_, known)| known.requests.values().all(Option::is_some));
            let Some(oldest) = idle.min_by_key(|(_, known)| known.last_use).map(|(id, _)| *id) else {
                return Seen::TooMany;
            };
            self.sessions.remove(&oldest);
        }
        let new = || Session { floor: 0, last_use: 0, requests: BTreeMap::new() };
        let known = self.sessions.entry(session).or_insert_with(new);
        known.last_use = clock;
        known.floor = known.floor.max(floor);
        let floor = known.floor;
        known.requests.retain(|request, outcome| *request >= floor || outcome.is_none());
        if request < floor {
            return Seen::Over;
        }
        match known.requests.get(&request) {
            Some(Some(outcome)) => Seen::Done(outcome.clone()),
            Some(None) => Seen::Running,
            None if known.requests.len() >= REQUESTS_MAX => Seen::TooMany,
            None => {
                known.requests.insert(request, None);
                Seen::New
            }
        }
    }

    /// A request was done, or (`None`) was not and may be done when it comes again.
    pub fn ended(&mut self, session: SessionId, request: u64, outcome: Option<T>) {
        let Some(known) = self.sessions.get_mut(&session) else { return };
        match outcome {
            Some(outcome) if request >= known.floor => {
                known.requests.insert(request, Some(outcome));
            }
            _ => {
                known.requests.remove(&request);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: SessionId = SessionId(7);

    /// An old request that arrives late would undo a newer one.
    #[test]
    fn repeats_are_not_done_again() {
        let mut requests: OverwriteRequests<u8> = OverwriteRequests::default();
        assert_eq!(requests.came(S, 5, 5), Seen::New);
        assert_eq!(requests.came(S, 5, 5), Seen::Running);
        assert_eq!(requests.came(SessionId(8), 5, 5), Seen::New, "another session's");
        requests.ended(S, 5, Some(9));
        assert_eq!(requests.came(S, 5, 5), Seen::Done(9));
        assert_eq!(requests.came(S, 6, 5), Seen::New);
        requests.ended(S, 6, None);
        assert_eq!(requests.came(S, 6, 6), Seen::New, "it was not done");
        assert_eq!(requests.came(S, 5, 5), Seen::Over, "its session has said so");
        requests.ended(S, 6, Some(1));
        assert_eq!(requests.came(S, 8, 8), Seen::New);
        assert_eq!(requests.came(S, 6, 0), Seen::Over);
    }

    /// Memory would grow with clients, or a request under way be forgotten and done twice.
    #[test]
    fn what_is_remembered_is_bounded() {
        let mut requests: OverwriteRequests<()> = OverwriteRequests::default();
        for request in 0..REQUESTS_MAX as u64 {
            assert_eq!(requests.came(S, request, 0), Seen::New);
        }
        assert_eq!(requests.came(S, 5000, 0), Seen::TooMany);
        for session in 100..100 + SESSIONS_MAX as u64 {
            let session = SessionId(session);
            assert_eq!(requests.came(session, 1, 1), Seen::New);
            requests.ended(session, 1, Some(()));
        }
        assert!(requests.sessions.len() <= SESSIONS_MAX);
        assert_eq!(requests.came(S, 3, 0), Seen::Running, "not forgotten");
        assert_eq!(requests.came(SessionId(101 + SESSIONS_MAX as u64), 1, 1), Seen::New);
    }
}
