//! [`StaleReads`]: whether answers of servers that do not lead are taken, how old they may be, and how old they were.
//!
//! Invariant: without them nobody who does not lead is asked for anything. Not here: the questions themselves
//! (`meta/stale.rs`, `cluster.rs`).
use cairn_types::Time;
use cairn_wire::Opcode;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::time::Duration;

/// A leader that does not answer for so long is not waited for any more: twice what an election takes.
const LEADER_PATIENCE: Duration = Duration::from_secs(2);
/// Deadline of one attempt at a leader then.
const LEADER_ATTEMPT: Duration = Duration::from_secs(1);
/// Who answers instead is asked for so long before the leader is looked for again.
const LOOK_AGAIN: Duration = Duration::from_secs(10);
/// Deadline for one member that does not lead.
pub(crate) const STALE_DEADLINE: Duration = Duration::from_secs(1);

/// Reads may be answered by servers that do not lead, when who leads does not answer. What they answer was so at some
/// moment, whole; it may lack what was done since, and one of them may know less than another.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StaleReads {
    /// Nobody whose state may be older than this answers; `None`: however old.
    pub age_max: Option<Duration>,
}

/// How old answers were.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Staleness {
    /// Everything that was acknowledged so long before the answers is in them.
    pub age: Duration,
    /// Who answered for whom: the group, and host:port.
    pub sources: BTreeMap<String, String>,
}

/// How long a leader is tried.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    pub(crate) patience: Duration,
    pub(crate) attempt: Duration,
}

/// Who answered in the place of a leader, and until when it is asked first.
#[derive(Clone, Debug)]
struct Deputy {
    address: String,
    until: Time,
}

#[derive(Default)]
struct State {
    told: Option<Staleness>,
    /// By partition; 0 are the managers.
    deputies: BTreeMap<u32, Deputy>,
}

/// The setting of a connection, and what came of it.
#[derive(Default)]
pub(crate) struct Stale {
    allowed: Option<StaleReads>,
    state: Mutex<State>,
}

impl Stale {
    pub(crate) fn new(allowed: Option<StaleReads>) -> Self {
        Self { allowed, state: Mutex::default() }
    }
    /// The setting for an operation, if there is one.
    pub(crate) fn allows(&self, opcode: Opcode) -> Option<StaleReads> {
        self.allowed.filter(|_| opcode.may_be_stale() || opcode == Opcode::GetMap)
    }
    /// What servers are told of the oldest state that is taken; 0: however old.
    pub(crate) fn age_ms_max(&self) -> u64 {
        let max = self.allowed.and_then(|allowed| allowed.age_max);
        max.map_or(0, |max| u64::try_from(max.as_millis()).unwrap_or(u64::MAX).max(1))
    }
    /// How long the leader is tried before others are asked.
    pub(crate) fn pace(pace: Pace) -> Pace {
        Pace { patience: pace.patience.min(LEADER_PATIENCE), attempt: pace.attempt.min(LEADER_ATTEMPT) }
    }
    /// Who answered for the leader a moment ago.
    pub(crate) fn deputy(&self, group: u32, now: Time) -> Option<String> {
        let state = self.state.lock();
        state.deputies.get(&group).filter(|deputy| now < deputy.until).map(|deputy| deputy.address.clone())
    }
    /// The leader is looked for again.
    pub(crate) fn forget(&self, group: u32) {
        self.state.lock().deputies.remove(&group);
    }
    /// Somebody answered for the leader. One that was asked again stays as long as it would have.
    pub(crate) fn answered(&self, group: u32, address: &str, now: Time) {
        let mut state = self.state.lock();
        let known = state.deputies.get(&group).is_some_and(|deputy| deputy.address == address && now < deputy.until);
        if !known {
            state.deputies.insert(group, Deputy { address: address.to_owned(), until: now + LOOK_AGAIN });
        }
    }
    /// An answer was so old.
    pub(crate) fn note(&self, group: String, address: &str, age: Duration) {
        let mut state = self.state.lock();
        let told = state.told.get_or_insert_with(|| Staleness { age, sources: BTreeMap::new() });
        told.age = told.age.max(age);
        told.sources.insert(group, address.to_owned());
    }
    pub(crate) fn told(&self) -> Option<Staleness> {
        self.state.lock().told.clone()
    }
}

#[cfg(test)]
mod tests;
