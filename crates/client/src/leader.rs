//! Asking whoever leads a group until somebody does it: the one loop of the client that follows hints, tries the other
//! members, waits out elections, and keeps done, certainly not done and unknown apart.
//!
//! The managers and each meta partition are such groups ([`Group`]). Invariant: an attempt that may have been carried
//! out stays one, whatever later attempts say. Not here: others that are asked while one is late (`late`), what follows
//! from a server's no (`managers`, `meta/call`).
use crate::cluster::Cluster;
use crate::encoded_message::EncodedMessage;
use crate::late::{Answer, Members};
use crate::net::NetError;
use crate::stale::Pace;
use cairn_types::RetryClass;
use cairn_wire::Opcode;
use cairn_wire::error::WireError;
use std::time::Duration;

const PAUSE_MIN: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_millis(300);

/// What follows from a server's no.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// It is the answer, of one that leads.
    Answer,
    /// It is the answer, and says nothing of who leads.
    AnswerOfAny,
    /// It leads and cannot yet: it is asked again after a pause.
    Wait,
    /// Somebody else may lead.
    Again,
}

/// A group with a leader, as one call knows it.
pub(crate) trait Group: Members {
    /// Who is asked in this round, unless the one before has named somebody.
    fn first(&self, round: usize) -> Option<String>;
    /// This one leads, as far as is known.
    fn leads(&self, address: &str);
    /// This one does not lead, or does not answer; nobody: none of them was known.
    fn does_not_lead(&self, address: Option<&str>);
    /// What its no means.
    fn verdict(&self, error: &WireError) -> impl Future<Output = Verdict> + Send;
    /// Why one of them did not do it. How long the call goes on, from its beginning.
    fn heard(&mut self, from: Option<&str>, why: &str, error: Option<&WireError>) -> Duration;
    /// Several did not do it: who they are is looked up again.
    fn look_up(&self) -> impl Future<Output = ()> + Send;
    /// What it is called.
    fn name(&self) -> String;
    /// What a person is told who waits: that nobody does it.
    fn nobody(&self) -> String;
}

/// Why nobody did it.
pub(crate) enum Failure {
    /// The servers decided; `sent`: some attempt before may have been executed; `refused`: this one was not even sent.
    Final { error: WireError, sent: bool, refused: bool },
    /// The patience ended; `sent`: some attempt may have been executed.
    GaveUp { sent: bool, last: String },
}

/// Rounds after which the members are looked up again.
const LOOK_UP_EVERY: usize = 3;

/// Tries until an answer comes, or the group's patience ends.
pub(crate) async fn ask_leader(
    cluster: &Cluster,
    group: &mut impl Group,
    opcode: Opcode,
    request: &EncodedMessage,
    pace: Pace,
) -> Result<EncodedMessage, Failure> {
    let started = cluster.clock.now();
    let (mut pause, mut round, mut sent) = (PAUSE_MIN, 0usize, false);
    let mut hint: Option<String> = None;
    loop {
        let first = hint.take().or_else(|| group.first(round));
        round += 1;
        let (from, result) = match first {
            Some(first) => {
                let Answer { from, result, unsure } =
                    cluster.asking().call(&first, group, opcode, request, pace.attempt).await;
                sent |= unsure;
                (Some(from), result)
            }
            None => (None, Err(NetError::NotSent(format!("the map names no node for {}", group.name())))),
        };
        let from = from.as_deref();
        let refused = matches!(result, Err(NetError::Refused(_)));
        let (last, refusal) = match result {
            Ok(answer) => {
                from.inspect(|from| group.leads(from));
                return Ok(answer);
            }
            Err(NetError::Remote(error) | NetError::Refused(error)) => {
                match group.verdict(&error).await {
                    Verdict::Answer => {
                        from.inspect(|from| group.leads(from));
                        return Err(Failure::Final { error, sent, refused });
                    }
                    Verdict::AnswerOfAny => return Err(Failure::Final { error, sent, refused }),
                    Verdict::Wait => {
                        tokio::time::sleep(cluster.jitter(pause)).await;
                        pause = (pause * 2).min(PAUSE_MAX);
                        hint = from.map(str::to_owned);
                    }
                    Verdict::Again => hint = error.leader_hint.clone().filter(|hint| Some(hint.as_str()) != from),
                }
                sent |= error.retry() == RetryClass::Unknown;
                (error.to_string(), Some(error))
            }
            Err(NetError::NotSent(text)) => (text, None),
            Err(NetError::Unknown(text)) => {
                sent = true;
                (text, None)
            }
        };
        let patience = group.heard(from, &last, refusal.as_ref());
        let now = cluster.clock.now();
        if now.since(started) > patience {
            return Err(Failure::GaveUp { sent, last });
        }
        cluster.waits.goes_on(started, now, &format!("{}: {last}", group.nobody()));
        if hint.is_none() {
            group.does_not_lead(from);
            tokio::time::sleep(cluster.jitter(pause)).await;
            pause = (pause * 2).min(PAUSE_MAX);
            if round.is_multiple_of(LOOK_UP_EVERY) {
                group.look_up().await;
            }
        }
    }
}
