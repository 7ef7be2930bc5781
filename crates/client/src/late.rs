//! Whoever leads a group and does not answer is not waited for alone: it may stand still or be cut off, and another member lead by now.
//!
//! While an answer is late, other members get the same request, one at a time and in turn: who does not lead says so at once, and who leads by now
//! answers. That is the repeat that would come anyway after the deadline of the attempt, under the same number, only sooner; so it is executed no
//! more often than before. The first one is waited for meanwhile. Invariant: of all calls of this client that wait for one group, one asks
//! around, at most every [`EVERY`]: a cluster that is slow is not asked twice for everything. What one of them finds is taken by all.
//! Not here: who is asked first, and what follows from an answer (`meta/call.rs`, `cluster.rs`).
use crate::net::{Net, NetError};
use cairn_env::Clock;
use cairn_types::{ErrorCode, RetryClass, Time};
use cairn_wire::Opcode;
use cairn_wire::error::WireError;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

/// An answer that takes so long is late; an election takes about 1.3 s.
const AFTER: Duration = Duration::from_millis(400);
/// Others are asked so often, and hints looked for.
const EVERY: Duration = Duration::from_millis(200);
/// Longest wait for one that is asked because it might lead.
const OTHER_MAX: Duration = Duration::from_secs(1);

/// The questions of a client, by group: when the last one was asked, and how many there were.
#[derive(Default)]
pub(crate) struct Questions {
    groups: Mutex<BTreeMap<u32, (Time, usize)>>,
}

impl Questions {
    /// The number of the question that may be asked now.
    fn next(&self, group: u32, now: Time) -> Option<usize> {
        let mut groups = self.groups.lock();
        let (last, count) = groups.entry(group).or_default();
        if *count > 0 && now.since(*last) < EVERY {
            return None;
        }
        (*last, *count) = (now, count.wrapping_add(1));
        Some(*count)
    }
}

/// Members of one Raft group, as a caller knows them.
pub(crate) trait Members: Sync {
    /// Number of its questions.
    fn group(&self) -> u32;
    fn addresses(&self) -> Vec<String>;
    /// Who led last.
    fn leader(&self) -> Option<String>;
}

/// What came of a call.
pub(crate) struct Answer<A> {
    /// Who gave it, or should have.
    pub(crate) from: String,
    pub(crate) result: Result<A, NetError>,
    /// Somebody else got the request as well and has not answered.
    pub(crate) unsure: bool,
}

/// A network, and what was asked around in it.
pub(crate) struct Asking<'a> {
    pub(crate) net: &'a Net,
    pub(crate) clock: &'a Arc<dyn Clock>,
    pub(crate) questions: &'a Questions,
}

impl Asking<'_> {
    /// Calls `first`, and others while it is late, until the deadline of the first call.
    pub(crate) async fn call<A: prost::Message + Default>(
        &self,
        first: &str,
        members: &impl Members,
        opcode: Opcode,
        request: &impl prost::Message,
        deadline: Duration,
    ) -> Answer<A> {
        let mut asked = pin!(self.net.call::<A>(first, opcode, request, deadline));
        let one = |address: String, deadline: Duration| {
            Box::pin(async move {
                let result = self.net.call::<A>(&address, opcode, request, deadline).await;
                (address, result)
            })
        };
        let mut other: Option<Pin<Box<_>>> = None;
        let mut late = pin!(tokio::time::sleep(AFTER));
        let mut unsure = false;
        loop {
            tokio::select! {
                biased;
                result = &mut asked => {
                    return Answer { from: first.to_owned(), result, unsure: unsure || other.is_some() };
                }
                (from, result) = async { other.as_mut().expect("looked at only when it is there").await }, if other.is_some() => {
                    other = None;
                    match result {
                        Err(NetError::Remote(error)) if !decided(&error) => {
                            unsure |= error.retry() == RetryClass::Unknown;
                            let hint = error.leader_hint.filter(|hint| hint != first && *hint != from);
                            other = hint.map(|hint| one(hint, deadline));
                        }
                        Err(NetError::NotSent(_)) => {}
                        Err(NetError::Unknown(_)) => unsure = true,
                        result => return Answer { from, result, unsure: true },
                    }
                }
                () = &mut late => {
                    late.as_mut().reset(tokio::time::Instant::now() + EVERY);
                    if other.is_none() {
                        other = self.whom(first, members).map(|(address, longest)| one(address, longest.min(deadline)));
                    }
                }
            }
        }
    }

    /// Who may lead instead, and how long that one is waited for.
    fn whom(&self, first: &str, members: &impl Members) -> Option<(String, Duration)> {
        if let Some(leader) = members.leader().filter(|leader| leader != first) {
            return Some((leader, Duration::MAX));
        }
        let others: Vec<String> = members.addresses().into_iter().filter(|address| address != first).collect();
        if others.is_empty() {
            return None;
        }
        let number = self.questions.next(members.group(), self.clock.now())?;
        Some((others[number % others.len()].clone(), OTHER_MAX))
    }
}

/// Who says this leads. Other refusals may come from one who does not.
fn decided(error: &WireError) -> bool {
    match error.code {
        ErrorCode::LeaseHeld => true,
        ErrorCode::BadRequest | ErrorCode::UnknownOperation | ErrorCode::NotSupported | ErrorCode::Internal => false,
        ErrorCode::WrongCluster | ErrorCode::VersionUnsupported => false,
        _ => error.retry() == RetryClass::Never,
    }
}

#[cfg(test)]
mod tests;
