//! When which partition is asked, and which of them by one request: those that one node leads. A session that works in
//! a thousand partitions of ten nodes sends ten of them every five seconds.
//!
//! Asked by itself is what waits for what is wanted, and what did not answer the last time. Not here: the requests
//! (`keep_alive`).
use crate::error::Result;
use crate::meta::session::Session;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// A lease is renewed so long after it was renewed last.
pub(super) const EVERY: Duration = Duration::from_secs(5);
/// The same at partitions that gave leases or delegations, of which the session learns so whether one is wanted.
pub(super) const EVERY_LEASED: Duration = Duration::from_millis(500);
/// What failed is tried again after so long.
pub(super) const AGAIN: Duration = Duration::from_secs(1);
/// What is due within so long is done together.
const TOGETHER: Duration = Duration::from_millis(100);
/// What would be renewed within so long is renewed with what is due, so that it is with it from then on.
const EARLY: Duration = Duration::from_secs(1);
/// Partitions that are renewed by one request, at most. Servers take 1,024 beside the one that is asked.
const GROUP_MAX: usize = 256;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Work {
    /// Tells the root's partition of a session that writes.
    Announce,
    Renew(u32),
}

/// When what is done again.
#[derive(Default)]
pub(super) struct Schedule {
    all: BTreeMap<Work, State>,
}

#[derive(Clone, Copy, Default)]
struct State {
    running: bool,
    /// How it ended last, and when; `None`: never.
    failed: bool,
    ended: Option<Instant>,
    /// When it is to be done again, if the partition gave leases.
    due: Option<Instant>,
}

/// What is begun.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Begun {
    pub(super) work: Work,
    /// The partition gave leases, and may answer when one is wanted.
    pub(super) waits: bool,
    /// It could not be done the last time: others do not wait for it.
    failed: bool,
}

impl Schedule {
    /// What is to be begun now, and when to look again.
    pub(super) fn next(&mut self, session: &Session, now: Instant) -> (Vec<Begun>, Instant) {
        let leased = session.leases.partitions();
        let (mut begin, mut early, mut wake) = (Vec::new(), Vec::new(), now + EVERY);
        let partitions = session.partitions().into_iter().map(Work::Renew);
        for work in session.is_unannounced().then_some(Work::Announce).into_iter().chain(partitions) {
            let state = self.all.entry(work).or_default();
            let waits = matches!(work, Work::Renew(partition) if leased.contains(&partition));
            let due = match state.ended {
                None => now,
                Some(ended) if state.failed => ended + AGAIN,
                Some(ended) if waits => state.due.unwrap_or(ended + EVERY_LEASED),
                Some(ended) => ended + EVERY,
            };
            if state.running {
                continue;
            }
            if due <= now {
                state.running = true;
                begin.push(Begun { work, waits, failed: state.failed });
            } else if due <= now + EARLY && !state.failed && !waits {
                early.push((work, due));
            } else {
                wake = wake.min(due);
            }
        }
        let is_begun = begin.iter().any(|begun| !begun.waits && begun.work != Work::Announce);
        for (work, due) in early {
            if is_begun {
                self.all.entry(work).or_default().running = true;
                begin.push(Begun { work, waits: false, failed: false });
            } else {
                wake = wake.min(due);
            }
        }
        (begin, wake.max(now + TOGETHER))
    }

    /// When it may be due again at the earliest, and whether it was the first time that it failed.
    pub(super) fn done(&mut self, work: Work, outcome: &Result<Option<Instant>>, ended: Instant) -> (Instant, bool) {
        let (failed, due) = (outcome.is_err(), outcome.as_ref().ok().copied().flatten());
        let before = self.all.insert(work, State { running: false, failed, ended: Some(ended), due });
        let again = if failed { ended + AGAIN } else { due.unwrap_or(ended + EVERY_LEASED) };
        (again, failed && before.is_none_or(|state| !state.failed))
    }
}

/// What is renewed by one request each, and what is done by itself.
pub(super) fn grouped(begun: Vec<Begun>, leader: impl Fn(u32) -> Option<String>) -> (Vec<Vec<u32>>, Vec<Begun>) {
    let (mut of_node, mut alone) = (BTreeMap::<String, Vec<u32>>::new(), Vec::new());
    for begun in begun {
        match begun {
            Begun { work: Work::Renew(partition), waits: false, failed: false }
                if let Some(address) = leader(partition) =>
            {
                of_node.entry(address).or_default().push(partition);
            }
            _ => alone.push(begun),
        }
    }
    let mut groups = Vec::new();
    for partitions in of_node.into_values() {
        for group in partitions.chunks(GROUP_MAX) {
            match group {
                [one] => alone.push(by_itself(*one)),
                _ => groups.push(group.to_vec()),
            }
        }
    }
    (groups, alone)
}

pub(super) const fn by_itself(partition: u32) -> Begun {
    Begun { work: Work::Renew(partition), waits: false, failed: false }
}
