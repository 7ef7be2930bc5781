//! Whoever leads a group and does not answer is not waited for alone: it may stand still or be cut off, and another
//! member lead by now.
//!
//! While an answer is late, other members get the same request, one at a time and in turn: who does not lead says so at
//! once, and who leads by now answers. That is the repeat that would come anyway after the deadline of the attempt,
//! only sooner; so it is executed no more often than before. The first one is waited for meanwhile. Invariant: of all
//! calls that share their [`Questions`] and wait for one group, one asks around, at most every [`EVERY`]: a cluster
//! that is slow is not asked twice for everything. What one of them finds is taken by all. Not here: who is asked
//! first, and what follows from an answer (`leader.rs`, and the client crate).

use std::collections::BTreeMap;
use std::pin::{Pin, pin};
use std::time::Duration;

use cairn_types::{ErrorCode, RetryClass};
use cairn_wire::error::WireError;
use parking_lot::Mutex;
use tokio::time::Instant;

/// An answer that takes so long is late; an election takes about 1.3 s.
pub const AFTER: Duration = Duration::from_millis(400);
/// Others are asked so often, and hints looked for.
pub const EVERY: Duration = Duration::from_millis(200);
/// Longest wait for one that is asked because it might lead.
const OTHER_MAX: Duration = Duration::from_secs(1);

/// The questions of a client, by group: when the last one was asked, and how many there were.
#[derive(Default)]
pub struct Questions {
    groups: Mutex<BTreeMap<u32, (Instant, usize)>>,
}

impl Questions {
    /// The number of the question that may be asked now.
    fn next(&self, group: u32, now: Instant) -> Option<usize> {
        let mut groups = self.groups.lock();
        let (last, count) = groups.entry(group).or_insert((now, 0));
        if *count > 0 && now.saturating_duration_since(*last) < EVERY {
            return None;
        }
        (*last, *count) = (now, count.wrapping_add(1));
        Some(*count)
    }
}

/// Members of one Raft group, as a caller knows them.
pub trait Members: Sync {
    /// Number of its questions.
    fn group(&self) -> u32;
    fn addresses(&self) -> Vec<String>;
    /// Who led last.
    fn leader(&self) -> Option<String>;
}

/// Why a call gave no answer, as far as it matters here.
pub trait Failure {
    /// The server answered with an error.
    fn remote(&self) -> Option<&WireError>;
    /// Certainly not done: it did not reach the server.
    fn not_sent(&self) -> bool;
}

/// What came of a call.
pub struct Answer<A, E> {
    /// Who gave it, or should have.
    pub from: String,
    pub result: Result<A, E>,
    /// Somebody else got the request as well and has not answered.
    pub unsure: bool,
}

/// Calls `first`, and others while it is late, until the deadline of the first call. `call` makes the request to an
/// address.
pub async fn call<A, E, F>(
    questions: &Questions,
    members: &impl Members,
    first: &str,
    deadline: Duration,
    call: impl Fn(String, Duration) -> F,
) -> Answer<A, E>
where
    E: Failure,
    F: Future<Output = Result<A, E>>,
{
    let mut asked = pin!(call(first.to_owned(), deadline));
    let one = |address: String, deadline: Duration| {
        let asked = call(address.clone(), deadline);
        Box::pin(async move { (address, asked.await) })
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
                let Err(failure) = &result else { return Answer { from, result, unsure: true } };
                match failure.remote() {
                    Some(error) if decided(error) => return Answer { from, result, unsure: true },
                    Some(error) => {
                        unsure |= error.retry() == RetryClass::Unknown;
                        let hint = error.leader_hint.clone().filter(|hint| hint != first && *hint != from);
                        other = hint.map(|hint| one(hint, deadline));
                    }
                    None => unsure |= !failure.not_sent(),
                }
            }
            () = &mut late => {
                late.as_mut().reset(Instant::now() + EVERY);
                if other.is_none() {
                    other = whom(questions, members, first).map(|(address, longest)| one(address, longest.min(deadline)));
                }
            }
        }
    }
}

/// Who may lead instead, and how long that one is waited for.
fn whom(questions: &Questions, members: &impl Members, first: &str) -> Option<(String, Duration)> {
    if let Some(leader) = members.leader().filter(|leader| leader != first) {
        return Some((leader, Duration::MAX));
    }
    let others: Vec<String> = members.addresses().into_iter().filter(|address| address != first).collect();
    if others.is_empty() {
        return None;
    }
    let number = questions.next(members.group(), Instant::now())?;
    Some((others[number % others.len()].clone(), OTHER_MAX))
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
