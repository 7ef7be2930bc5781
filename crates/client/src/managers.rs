//! Calls to the managers, by whoever leads them.
use crate::cluster::{Cluster, FirstContact};
use crate::encoded_message::{Coming, EncodedMessage};
use crate::error::{ClientError, MANAGERS, Result};
use crate::late::Members;
use crate::leader::{Failure, Group, Verdict, ask_leader};
use crate::refusal::Refusal;
use crate::stale::{Pace, Stale};
use cairn_types::{ErrorCode, RetryClass};
use cairn_wire::Opcode;
use cairn_wire::error::WireError;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Deadline of a single attempt.
const ATTEMPT: Duration = Duration::from_secs(3);

impl Cluster {
    /// Calls the manager's leader, until the patience ends.
    pub(crate) async fn manager<A: prost::Message + Default>(
        &self,
        what: &str,
        opcode: Opcode,
        request: &impl prost::Message,
    ) -> Result<A> {
        let answer = self.manager_of_any(what, opcode, EncodedMessage::of(request)).await?;
        answer.read().map_err(|why| self.gave_up(what, true, why))
    }
    fn manager_of_any<'a>(
        &'a self,
        what: &'a str,
        opcode: Opcode,
        request: EncodedMessage,
    ) -> Coming<'a, Result<EncodedMessage>> {
        Box::pin(self.ask_manager(what, opcode, request))
    }
    async fn ask_manager(&self, what: &str, opcode: Opcode, request: EncodedMessage) -> Result<EncodedMessage> {
        let pace = self.manager_pace(opcode);
        let mut managers = Managers::new(self, what, pace.patience);
        match ask_leader(self, &mut managers, opcode, &request, pace).await {
            Ok(answer) => Ok(answer),
            Err(Failure::Final { error, sent, .. }) => {
                Err(ClientError::Remote { what: what.into(), error: Refusal::of_wire(refused(error, sent)) })
            }
            Err(Failure::GaveUp { .. }) if managers.leaderless && opcode == Opcode::GetMap => {
                let stale_tried = self.stale.allows(opcode).is_some();
                Err(self.no_leader(managers.patience, what, MANAGERS.into(), managers.all_said(), stale_tried))
            }
            Err(Failure::GaveUp { sent, last }) => Err(self.gave_up_after(managers.patience, what, sent, last)),
        }
    }
    pub(crate) fn gave_up(&self, what: &str, sent: bool, last: String) -> ClientError {
        self.gave_up_after(self.patience, what, sent, last)
    }
    fn gave_up_after(&self, patience: Duration, what: &str, sent: bool, last: String) -> ClientError {
        let (what, seconds) = (what.to_owned(), patience.as_secs());
        match sent {
            true => ClientError::OutcomeUnknown { what, seconds, last, again: None },
            false => ClientError::Unreachable { what, tried: self.managers.read().join(", "), seconds, last },
        }
    }
    /// Nobody leads a group, or who does cannot be reached; `stale_tried`: others were asked as well.
    pub(crate) fn no_leader(
        &self,
        waited: Duration,
        what: &str,
        group: String,
        last: String,
        stale_tried: bool,
    ) -> ClientError {
        ClientError::NoLeader { what: what.to_owned(), group, seconds: waited.as_secs(), last, stale_tried }
    }
    /// How long the leading manager is tried.
    fn manager_pace(&self, opcode: Opcode) -> Pace {
        let pace = Pace { patience: self.patience, attempt: ATTEMPT };
        if self.stale.allows(opcode).is_some() { Stale::pace(pace) } else { pace }
    }
    fn current_manager(&self) -> String {
        let managers = self.managers.read();
        let at = self.current.load(Ordering::Relaxed) % managers.len().max(1);
        managers.get(at).cloned().unwrap_or_default()
    }
}

/// The managers, in one call. Group 0 of the questions.
struct Managers<'a> {
    cluster: &'a Cluster,
    what: &'a str,
    /// Of the call, once somebody was reached who leads.
    in_contact: Duration,
    patience: Duration,
    /// One of them said that it does not lead.
    leaderless: bool,
    /// What each said last.
    said: BTreeMap<String, String>,
}

impl<'a> Managers<'a> {
    fn new(cluster: &'a Cluster, what: &'a str, in_contact: Duration) -> Self {
        let (leaderless, said) = (false, BTreeMap::new());
        let mut managers = Self { cluster, what, in_contact, patience: in_contact, leaderless, said };
        managers.patience = managers.at_first(|first| first.silent);
        managers
    }
    /// While the first contact is made.
    fn at_first(&self, of: fn(FirstContact) -> Duration) -> Duration {
        self.cluster.first_contact.map_or(self.in_contact, |first| of(first).min(self.in_contact))
    }
    fn all_said(&self) -> String {
        let one = |(who, why): (&String, &String)| match why.starts_with(who.as_str()) {
            true => why.clone(),
            false => format!("{who}: {why}"),
        };
        self.said.iter().map(one).collect::<Vec<_>>().join("; ")
    }
}

impl Members for Managers<'_> {
    fn group(&self) -> u32 {
        0
    }
    fn addresses(&self) -> Vec<String> {
        self.cluster.managers.read().clone()
    }
    fn leader(&self) -> Option<String> {
        Some(self.cluster.current_manager())
    }
}

impl Group for Managers<'_> {
    fn first(&self, _round: usize) -> Option<String> {
        self.leader()
    }
    fn leads(&self, address: &str) {
        let at = self.cluster.managers.read().iter().position(|manager| manager == address);
        if let Some(at) = at {
            self.cluster.current.store(at, Ordering::Relaxed);
        }
    }
    fn does_not_lead(&self, address: Option<&str>) {
        // Unless somebody else was found meanwhile.
        if address == Some(self.cluster.current_manager().as_str()) {
            self.cluster.current.fetch_add(1, Ordering::Relaxed);
        }
    }
    async fn verdict(&self, error: &WireError) -> Verdict {
        if error.retry() == RetryClass::Never { Verdict::AnswerOfAny } else { Verdict::Again }
    }
    fn heard(&mut self, from: Option<&str>, why: &str, error: Option<&WireError>) -> Duration {
        if let Some(error) = error {
            let leaderless = error.code == ErrorCode::NotLeader;
            self.leaderless |= leaderless;
            self.patience = if leaderless { self.at_first(|first| first.leaderless) } else { self.in_contact };
            // Others begin with whom it names.
            error.leader_hint.as_ref().inspect(|hint| self.leads(hint));
        }
        self.said.insert(from.unwrap_or_default().to_owned(), why.to_owned());
        self.patience
    }
    /// Their addresses come with each map.
    async fn look_up(&self) {}
    fn name(&self) -> String {
        MANAGERS.into()
    }
    fn nobody(&self) -> String {
        format!("{}: no manager that leads answers", self.what)
    }
}

/// A server's no, where an earlier try of the same call may have been carried out: then this is perhaps what it answers
/// to a second one ("not found" to a removal, "exists" to a creation).
fn refused(mut error: WireError, tried: bool) -> WireError {
    if tried && matches!(error.code, ErrorCode::NotFound | ErrorCode::Exists | ErrorCode::Conflict) {
        error
            .message
            .push_str("; an earlier try of this, whose answer was lost, may have done it: look before you repeat it");
    }
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A command that was done while leaders changed would be told as one that certainly was not.
    #[test]
    fn a_no_to_a_second_try_says_that_the_first_may_have_been_done() {
        let no = |code, tried| refused(WireError::new(code, "d5 is not being drained"), tried).message;
        assert_eq!(no(ErrorCode::NotFound, false), "d5 is not being drained");
        assert!(no(ErrorCode::NotFound, true).contains("may have done it"));
        assert_eq!(no(ErrorCode::BadRequest, true), "d5 is not being drained");
    }
}
