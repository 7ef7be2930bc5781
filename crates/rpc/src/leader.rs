//! [`LeaderClient`]: calls to whichever of several servers leads, by its hints and by trying.
//!
//! Invariants: an attempt never outlives the call's deadline. A request whose outcome is unknown is repeated only if
//! the caller says that repeating is harmless ([`Repeat::Harmless`]); such a one also goes to others while the answer
//! is [late]. Between rounds in which nobody led it waits, so that an election is not met with a storm.
//!
//! Not here: sessions and sequence numbers (who repeats what under which number is the caller's business).

use std::sync::Arc;
use std::time::{Duration, Instant};

use cairn_types::{ErrorCode, RetryClass};
use cairn_wire::Opcode;
use cairn_wire::error::WireError;
use cairn_wire::hello::HelloError;
use parking_lot::RwLock;
use prost::Message;

use crate::client::{CallError, CallOptions, Client, NotSent, Response};
use crate::late::{self, Answer, Members, Questions};
use crate::payload::Payload;

/// Waiting time after the first round in which nobody led; doubles with each further one.
const ROUND_PAUSE_MIN: Duration = Duration::from_millis(20);
/// Longest waiting time between two rounds.
const ROUND_PAUSE_MAX: Duration = Duration::from_millis(500);
/// Longest wait for one server if the request may be repeated elsewhere: a stopped leader must not take all of it.
const ATTEMPT_MAX: Duration = Duration::from_secs(2);
/// Hints followed in a row before it counts as a round in which nobody led.
const HINTS_MAX: u32 = 3;

/// Whether a request may be sent again when its outcome is unknown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Repeat {
    /// Doing it twice is as good as once.
    Harmless,
    /// Only what was certainly not done is sent again.
    Forbidden,
}

/// Why a call to the leader failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum LeaderError {
    /// The leader answered with an error.
    #[error("{0}")]
    Remote(#[source] WireError),
    /// Certainly not done: nobody led within the deadline.
    #[error("no leader of {what} answered within {waited:?} ({last}); check that the servers at {addresses} run")]
    NoLeader { what: String, waited: Duration, addresses: String, last: String },
    /// Sent, and nobody knows whether it was done.
    #[error("{what}: {cause}; it may have been done, look before you repeat it")]
    Unknown { what: String, cause: String },
}

impl LeaderError {
    /// The server's error code, if it answered with one.
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Remote(error) => Some(error.code),
            _ => None,
        }
    }

    /// The same as an answer to somebody else.
    pub fn to_wire(&self) -> WireError {
        match self {
            Self::Remote(error) => error.clone(),
            Self::NoLeader { .. } => WireError::new(ErrorCode::Unavailable, self.to_string()),
            Self::Unknown { .. } => WireError::new(ErrorCode::DeadlineExceeded, self.to_string()),
        }
    }
}

struct Known {
    addresses: Vec<String>,
    /// Who led last.
    leader: Option<String>,
    /// Where to go on when nobody is known to lead.
    next: usize,
}

struct Inner {
    client: Client,
    what: String,
    known: RwLock<Known>,
    /// Who was asked while the leader was late.
    questions: Questions,
}

/// Calls whoever leads. Clones share what they learn.
#[derive(Clone)]
pub struct LeaderClient {
    inner: Arc<Inner>,
}

impl LeaderClient {
    /// `what` names the group for messages ("the manager", "p1"); `addresses` are its members ("host:port").
    pub fn new(client: Client, what: impl Into<String>, addresses: impl IntoIterator<Item = String>) -> Self {
        let known = Known { addresses: addresses.into_iter().collect(), leader: None, next: 0 };
        Self {
            inner: Arc::new(Inner {
                client,
                what: what.into(),
                known: RwLock::new(known),
                questions: Questions::default(),
            }),
        }
    }

    /// The connections below.
    pub fn client(&self) -> &Client {
        &self.inner.client
    }

    /// The members that are asked.
    pub fn addresses(&self) -> Vec<String> {
        self.inner.known.read().addresses.clone()
    }

    /// Replaces the members; an empty list is ignored.
    pub fn set_addresses(&self, addresses: Vec<String>) {
        if !addresses.is_empty() {
            self.inner.known.write().addresses = addresses;
        }
    }

    /// Who led last, if anybody did.
    pub fn leader(&self) -> Option<String> {
        self.inner.known.read().leader.clone()
    }

    /// Tells who is said to lead.
    pub fn set_leader(&self, address: impl Into<String>) {
        self.inner.known.write().leader = Some(address.into());
    }

    /// Calls the leader and decodes its answer. To be awaited in a tokio runtime with timers.
    pub async fn call<A: Message + Default>(
        &self,
        opcode: Opcode,
        request: &impl Message,
        deadline: Duration,
        repeat: Repeat,
    ) -> Result<A, LeaderError> {
        self.call_traced(opcode, request, deadline, repeat, 0).await
    }

    /// As [`call`](Self::call), with a trace id.
    pub async fn call_traced<A: Message + Default>(
        &self,
        opcode: Opcode,
        request: &impl Message,
        deadline: Duration,
        repeat: Repeat,
        trace_id: u64,
    ) -> Result<A, LeaderError> {
        let mut search = Search::new(self, deadline, repeat);
        loop {
            let left = search.left();
            let Some(address) = search.address().filter(|_| !left.is_zero()) else { return Err(search.nobody()) };
            let attempt = if repeat == Repeat::Harmless { left.min(ATTEMPT_MAX) } else { left };
            let ask = |address: String, deadline: Duration| {
                let options = CallOptions::new(deadline).trace(trace_id);
                let call = self.inner.client.call(&address, opcode.code(), request, Payload::None, options);
                async move { call.await.and_then(|response: Response| response.decode::<A>()) }
            };
            let (from, outcome) = match repeat {
                Repeat::Harmless => {
                    let Answer { from, result, .. } =
                        late::call(&self.inner.questions, self, &address, attempt, ask).await;
                    (from, result)
                }
                Repeat::Forbidden => (address.clone(), ask(address, attempt).await),
            };
            match search.judge(&from, outcome) {
                Verdict::Done(answer) => return answer,
                Verdict::Again(pause) => tokio::time::sleep(pause.min(search.left())).await,
            }
        }
    }

    fn next_address(&self) -> Option<String> {
        let mut known = self.inner.known.write();
        let next = known.next;
        known.next = next.wrapping_add(1);
        let count = known.addresses.len();
        if count == 0 { None } else { known.addresses.get(next % count).cloned() }
    }

    fn lost(&self, address: &str) {
        let mut known = self.inner.known.write();
        if known.leader.as_deref() == Some(address) {
            known.leader = None;
        }
    }
}

/// The only group of its questions.
impl Members for LeaderClient {
    fn group(&self) -> u32 {
        0
    }
    fn addresses(&self) -> Vec<String> {
        self.addresses()
    }
    fn leader(&self) -> Option<String> {
        self.leader()
    }
}

enum Verdict<A> {
    Done(Result<A, LeaderError>),
    Again(Duration),
}

/// The state of one call's search.
struct Search<'a> {
    of: &'a LeaderClient,
    start: Instant,
    deadline: Duration,
    repeat: Repeat,
    pause: Duration,
    hint: Option<String>,
    hints: u32,
    failed_in_round: usize,
    /// Servers that said that they do not have what was asked for: members change.
    strangers: usize,
    last: String,
}

impl<'a> Search<'a> {
    fn new(of: &'a LeaderClient, deadline: Duration, repeat: Repeat) -> Self {
        Self {
            of,
            start: Instant::now(),
            deadline,
            repeat,
            pause: ROUND_PAUSE_MIN,
            hint: None,
            hints: 0,
            failed_in_round: 0,
            strangers: 0,
            last: "nobody was asked".into(),
        }
    }

    fn left(&self) -> Duration {
        self.deadline.saturating_sub(self.start.elapsed())
    }

    fn address(&mut self) -> Option<String> {
        self.hint.take().or_else(|| self.of.leader()).or_else(|| self.of.next_address())
    }

    fn judge<A>(&mut self, address: &str, outcome: Result<A, CallError>) -> Verdict<A> {
        let error = match outcome {
            Ok(answer) => {
                self.of.set_leader(address);
                return Verdict::Done(Ok(answer));
            }
            Err(error) => error,
        };
        self.last = error.to_string();
        match error {
            CallError::Remote(error) if error.code == ErrorCode::NotLeader => self.not_leader(address, error),
            CallError::Remote(error) => match error.retry() {
                RetryClass::Elsewhere => self.next(address),
                _ if error.code == ErrorCode::UnknownPartition && self.may_be_a_stranger() => self.next(address),
                RetryClass::Here => Verdict::Again(self.longer_pause()),
                RetryClass::Unknown if self.repeat == Repeat::Harmless && error.code == ErrorCode::DeadlineExceeded => {
                    self.next(address)
                }
                _ => Verdict::Done(Err(LeaderError::Remote(error))),
            },
            CallError::NotSent { cause: NotSent::TooLong(_) | NotSent::Closed, .. } => {
                Verdict::Done(Err(self.nobody()))
            }
            CallError::NotSent { cause: NotSent::Hello(error), .. } => {
                let code = match error {
                    HelloError::WrongCluster { .. } => ErrorCode::WrongCluster,
                    HelloError::NoCommonVersion { .. } | HelloError::Malformed { .. } => ErrorCode::VersionUnsupported,
                };
                let text = format!("{address}: {error}");
                Verdict::Done(Err(LeaderError::Remote(WireError::new(code, text))))
            }
            CallError::NotSent { cause: NotSent::Refused(error), .. }
                if error.retry() == RetryClass::Never && error.code != ErrorCode::NotPermitted =>
            {
                Verdict::Done(Err(LeaderError::Remote(error)))
            }
            CallError::NotSent { .. } => self.next(address),
            CallError::Unknown { .. } if self.repeat == Repeat::Harmless => self.next(address),
            CallError::Unknown { .. } => {
                self.of.lost(address);
                let what = self.of.inner.what.clone();
                Verdict::Done(Err(LeaderError::Unknown { what, cause: self.last.clone() }))
            }
        }
    }

    /// Whether others may have what a server does not: not once as many as there are members have said so.
    fn may_be_a_stranger(&mut self) -> bool {
        self.strangers += 1;
        self.strangers <= self.of.inner.known.read().addresses.len()
    }

    fn not_leader<A>(&mut self, address: &str, error: WireError) -> Verdict<A> {
        match error.leader_hint {
            Some(hint) if self.hints < HINTS_MAX && hint != address => {
                self.of.lost(address);
                self.hints += 1;
                self.hint = Some(hint);
                Verdict::Again(Duration::ZERO)
            }
            _ => self.next(address),
        }
    }

    /// This one did not lead: the next at once, and a pause after each round.
    fn next<A>(&mut self, address: &str) -> Verdict<A> {
        self.of.lost(address);
        self.failed_in_round += 1;
        if self.failed_in_round < self.of.inner.known.read().addresses.len() {
            return Verdict::Again(Duration::ZERO);
        }
        self.failed_in_round = 0;
        self.hints = 0;
        Verdict::Again(self.longer_pause())
    }

    fn longer_pause(&mut self) -> Duration {
        let pause = self.pause;
        self.pause = (pause * 2).min(ROUND_PAUSE_MAX);
        pause
    }

    fn nobody(&self) -> LeaderError {
        let addresses = self.of.addresses().join(", ");
        let what = self.of.inner.what.clone();
        LeaderError::NoLeader { what, waited: self.start.elapsed(), addresses, last: self.last.clone() }
    }
}

#[cfg(test)]
mod tests;
