//! Calls to meta partitions: find the leader, repeat with the same sequence number, keep three outcomes apart.
use super::delegations::Delegations;
use super::keep_alive::keep_alive_task;
use super::route::To;
use super::session::{Session, SlotLease};
use super::shards::KnownShards;
use crate::again::{Again, Sent};
use crate::cluster::Cluster;
use crate::credentials::Credentials;
use crate::encoded_message::{Coming, EncodedMessage};
use crate::error::{ClientError, Result};
use crate::late::Members;
use crate::leader::{Failure, Group, Verdict, ask_leader};
use crate::refusal::Refusal;
use crate::stale::{Pace, Stale};
use cairn_types::{ErrorCode, InodeId, RetryClass, SessionId};
use cairn_wire::Opcode;
use cairn_wire::common::Empty;
use cairn_wire::error::WireError;
use cairn_wire::manager::{OpenSessionRequest, OpenSessionResponse};
use cairn_wire::meta::{DiscardRequest, EndSessionRequest, MetaHeader};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Deadline of one attempt.
const ATTEMPT: Duration = Duration::from_secs(5);
/// Partitions at which a session is ended at once.
const ENDS_AT_ONCE: usize = 64;

/// The way to the partitions of one volume, under one session at a time, on behalf of one user.
pub(crate) struct MetaCaller {
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) volume: u32,
    pub(crate) who: Credentials,
    pub(super) shared: Arc<Shared>,
}

/// What the callers of all users of a volume share.
#[derive(Default)]
pub(super) struct Shared {
    session: RwLock<Option<Arc<Session>>>,
    opening: tokio::sync::Mutex<()>,
    /// Address that answered last, by partition.
    leaders: Mutex<BTreeMap<u32, String>>,
    pub(super) shards: KnownShards,
    pub(super) delegations: Arc<Delegations>,
}

impl MetaCaller {
    pub(crate) fn new(cluster: Arc<Cluster>, volume: u32, who: Credentials) -> Arc<Self> {
        let who = cluster.squashed(who);
        Arc::new(Self { cluster, volume, who, shared: Arc::default() })
    }
    /// The same way and session on behalf of another user.
    pub(crate) fn as_user(&self, who: Credentials) -> Arc<Self> {
        let who = self.cluster.squashed(who);
        Arc::new(Self { cluster: self.cluster.clone(), volume: self.volume, who, shared: self.shared.clone() })
    }

    pub(super) fn delegations(&self) -> &Arc<Delegations> {
        &self.shared.delegations
    }

    fn live_session(&self) -> Option<Arc<Session>> {
        self.shared.session.read().clone().filter(|session| !session.is_ended())
    }

    /// The session, opened at the first use and again after it ended.
    pub(crate) async fn session(self: &Arc<Self>) -> Result<Arc<Session>> {
        match self.live_session() {
            Some(session) => Ok(session),
            None => self.open_session().await,
        }
    }

    fn open_session(self: &Arc<Self>) -> Coming<'_, Result<Arc<Session>>> {
        Box::pin(self.open_one_session())
    }

    async fn open_one_session(self: &Arc<Self>) -> Result<Arc<Session>> {
        let _one_opens = self.shared.opening.lock().await;
        if let Some(session) = self.live_session() {
            return Ok(session);
        }
        let request = OpenSessionRequest { client: crate::CLIENT_NAME.into(), volume: self.volume };
        let answer: OpenSessionResponse =
            self.cluster.manager("opening a session", Opcode::OpenSession, &request).await?;
        if let Some(map) = answer.map {
            self.cluster.learn(map);
        }
        let session = Arc::new(Session::new(SessionId(answer.session)));
        *self.shared.session.write() = Some(session.clone());
        tokio::spawn(keep_alive_task(self.as_user(self.who.clone()), session.clone()));
        Ok(session)
    }

    /// The session, under which chunks are going to be made.
    pub(crate) async fn writer_session(self: &Arc<Self>) -> Result<Arc<Session>> {
        let session = self.session().await?;
        session.note_writer();
        Ok(session)
    }

    /// Makes a session that writes known to the partition, if nothing else did yet: chunks of a session that the
    /// partition does not know for long are taken for what a dead writer left.
    pub(super) async fn announce(self: &Arc<Self>, session: &Session) -> Result<()> {
        let partition = self.partition_of(InodeId::ROOT.0).await?;
        let Some(lease) = session.own_slot(partition).await else { return Ok(()) };
        let make = |header| DiscardRequest { header: Some(header), written_by: session.id.0, ..Default::default() };
        self.mutate_in::<Empty, _>(session, lease, "announcing the session", partition, Opcode::Discard, make).await?;
        session.note_announced();
        Ok(())
    }

    /// Ends the session, so that what it held is released at once instead of at the end of its lease.
    pub(crate) async fn end_session(self: &Arc<Self>) {
        if !self.shared.delegations.end_all(self.cluster.patience).await {
            // Its end would throw away what is not stored yet; what is sent for it goes on meanwhile.
            tracing::error!("changes in delegated directories are not stored yet: the session is left to expire");
            return;
        }
        let Some(session) = self.shared.session.write().take() else { return };
        if session.is_ended() {
            return;
        }
        let mut partitions = session.partitions();
        if session.is_writer()
            && let Ok(root) = self.partition_of(InodeId::ROOT.0).await
            && !partitions.contains(&root)
        {
            // Nothing came of what it wrote: its end makes that garbage.
            partitions.push(root);
        }
        if let Err(error) = self.end_everywhere("ending the session", session.id, partitions).await {
            tracing::debug!(%error, "the session was left to expire");
        }
        session.mark_ended();
    }

    /// Ends a session at these partitions, side by side: one that does not answer keeps no other one from it. The error
    /// of one of those where it was left.
    pub(crate) async fn end_everywhere(&self, what: &str, session: SessionId, partitions: Vec<u32>) -> Result<()> {
        let mut running = FuturesUnordered::new();
        let mut outcome = Ok(());
        for partition in partitions {
            running.push(self.end_at(what, session, partition));
            if running.len() >= ENDS_AT_ONCE {
                outcome = running.next().await.unwrap_or(Ok(())).and(outcome);
            }
        }
        while let Some(ended) = running.next().await {
            outcome = ended.and(outcome);
        }
        outcome
    }

    async fn end_at(&self, what: &str, session: SessionId, partition: u32) -> Result<()> {
        let request = EndSessionRequest { header: Some(self.header(partition, session, 0, 0)) };
        self.read::<Empty, _>(what, partition, Opcode::EndSession, request).await.map(|_| ())
    }

    /// The partition that owns an inode.
    pub(crate) async fn partition_of(&self, inode: u64) -> Result<u32> {
        for attempt in 0..2 {
            if let Some(partition) = self.cluster.view().partition_of(self.volume, inode) {
                return Ok(partition.id);
            }
            if attempt == 0 {
                self.cluster.refresh().await?;
            }
        }
        let text = "the volume has no meta partition for it yet; see cairn admin volume";
        Err(ClientError::remote(&format!("inode {inode}"), ErrorCode::UnknownPartition, text))
    }

    pub(super) fn header(&self, partition: u32, session: SessionId, slot: u32, sequence: u64) -> MetaHeader {
        MetaHeader { volume: self.volume, partition, session: session.0, slot, sequence, who: Some(self.who.to_wire()) }
    }

    /// Header of a read.
    pub(crate) fn read_header(&self, partition: u32) -> MetaHeader {
        let session = self.shared.session.read().as_ref().map_or(SessionId(0), |s| s.id);
        self.header(partition, session, 0, 0)
    }

    /// A read of a partition, or another call to it that may be repeated freely. By an inode:
    /// [`read_by`](Self::read_by).
    pub(crate) async fn read<A: prost::Message + Default, R: prost::Message>(
        &self,
        what: &str,
        partition: u32,
        opcode: Opcode,
        request: R,
    ) -> Result<A> {
        self.read_at(what, To::from(partition), opcode, EncodedMessage::of(&request)).await?.answer(what)
    }

    pub(super) fn read_at<'a>(
        &'a self,
        what: &'a str,
        to: To<'a>,
        opcode: Opcode,
        request: EncodedMessage,
    ) -> Coming<'a, Result<EncodedMessage>> {
        Box::pin(self.read_encoded(what, to, opcode, request))
    }

    async fn read_encoded(
        &self,
        what: &str,
        to: To<'_>,
        opcode: Opcode,
        request: EncodedMessage,
    ) -> Result<EncodedMessage> {
        let partition = to.partition;
        let stale = self.cluster.stale.allows(opcode).is_some();
        let mut pace = self.patient();
        if stale {
            if let Some(answer) = self.read_from_deputy(what, partition, opcode, &request).await {
                return answer;
            }
            pace = Stale::pace(pace);
        }
        match self.attempts(to, opcode, request.clone(), pace).await {
            Ok(answer) => Ok(answer),
            Err(Failure::Final { error, .. }) => {
                Err(ClientError::Remote { what: what.into(), error: Refusal::of_wire(error) })
            }
            Err(Failure::GaveUp { last, .. }) if stale => {
                self.read_from_any(what, partition, opcode, &request, last).await
            }
            Err(Failure::GaveUp { last, .. }) if opcode.may_be_stale() => {
                Err(self.cluster.no_leader(pace.patience, what, format!("partition p{partition}"), last, false))
            }
            Err(Failure::GaveUp { last, .. }) => Err(self.cluster.gave_up(what, false, last)),
        }
    }

    /// The session, and a slot of it at a partition.
    pub(super) async fn slot(self: &Arc<Self>, partition: u32) -> Result<(Arc<Session>, SlotLease)> {
        loop {
            let session = self.session().await?;
            match session.slot(partition).await {
                Some(lease) => return Ok((session, lease)),
                None => session.mark_ended(),
            }
        }
    }

    /// A mutation under a session that may not be the present one any more, that never waits for other sessions.
    pub(crate) async fn mutate_under<A: prost::Message + Default, R: prost::Message>(
        &self,
        session: &Session,
        what: &str,
        partition: u32,
        opcode: Opcode,
        request: impl FnOnce(MetaHeader) -> R,
    ) -> Result<A> {
        match session.own_slot(partition).await {
            Some(lease) => self.mutate_in(session, lease, what, partition, opcode, request).await,
            None => Err(ClientError::remote(what, ErrorCode::BadSequence, "the session's slots are used up")),
        }
    }

    /// A mutation under this session and slot.
    pub(super) async fn mutate_in<A: prost::Message + Default, R: prost::Message>(
        &self,
        session: &Session,
        lease: SlotLease,
        what: &str,
        partition: u32,
        opcode: Opcode,
        request: impl FnOnce(MetaHeader) -> R,
    ) -> Result<A> {
        let request = request(self.header(partition, session.id, lease.slot, lease.sequence));
        let answer =
            self.send_in(session, lease, what, To::from(partition), opcode, EncodedMessage::of(&request)).await?;
        self.done(what, answer)
    }

    /// The answer to a mutation. One that is not understood says that something was done, but not what.
    pub(super) fn done<A: prost::Message + Default>(&self, what: &str, answer: EncodedMessage) -> Result<A> {
        answer.read().map_err(|why| self.cluster.gave_up(what, true, why))
    }

    /// A mutation; the request's header is that of the slot.
    pub(super) fn send_in<'a>(
        &'a self,
        session: &'a Session,
        lease: SlotLease,
        what: &'a str,
        to: To<'a>,
        opcode: Opcode,
        request: EncodedMessage,
    ) -> Coming<'a, Result<EncodedMessage>> {
        Box::pin(self.send_encoded(session, lease, what, to, opcode, request))
    }

    async fn send_encoded(
        &self,
        session: &Session,
        lease: SlotLease,
        what: &str,
        to: To<'_>,
        opcode: Opcode,
        request: EncodedMessage,
    ) -> Result<EncodedMessage> {
        match self.attempts(to, opcode, request.clone(), self.patient()).await {
            Ok(answer) => {
                lease.finish();
                Ok(answer)
            }
            Err(Failure::Final { error, sent, refused }) => {
                match error.code {
                    // It answers others by this code, too.
                    _ if refused => match sent {
                        true => drop(lease),
                        false => lease.unused(),
                    },
                    ErrorCode::SessionEnded | ErrorCode::BadSequence => session.mark_ended(),
                    // Refused before it reached the log, or so that it counts as if: the number was not used, unless by
                    // one who did not answer.
                    ErrorCode::BadRequest
                    | ErrorCode::UnknownOperation
                    | ErrorCode::CrossVolume
                    | ErrorCode::KeyForbids
                    | ErrorCode::UnknownPartition => match sent {
                        true => drop(lease),
                        false => lease.unused(),
                    },
                    _ => lease.finish(),
                }
                Err(ClientError::Remote { what: what.into(), error: Refusal::of_wire(error) })
            }
            Err(Failure::GaveUp { sent: false, last }) => {
                lease.unused();
                Err(self.cluster.gave_up(what, false, last))
            }
            // The slot is used no more.
            Err(Failure::GaveUp { sent: true, last }) => {
                let sent = Sent { partition: to.partition, by: to.by.to_vec(), opcode, request };
                let seconds = self.cluster.patience.as_secs();
                let again = Some(Again(Arc::new(sent)));
                Err(ClientError::OutcomeUnknown { what: what.into(), seconds, last, again })
            }
        }
    }

    /// What came of something that was sent before; it is done now if it was not.
    pub(crate) async fn ask_again<A: prost::Message + Default>(&self, what: &str, again: &Again) -> Result<A> {
        let Sent { partition, by, opcode, request } = &*again.0;
        let to = To { partition: *partition, by };
        match self.attempts(to, *opcode, request.clone(), self.patient()).await {
            Ok(answer) => self.done(what, answer),
            // What refuses the connection says nothing of it.
            Err(Failure::Final { error, refused: true, .. }) => {
                Err(self.cluster.gave_up(what, true, error.to_string()))
            }
            Err(Failure::Final { error, .. }) => {
                Err(ClientError::Remote { what: what.into(), error: Refusal::of_wire(error) })
            }
            Err(Failure::GaveUp { last, .. }) => Err(self.cluster.gave_up(what, true, last)),
        }
    }

    /// How long a leader is tried as a rule.
    pub(super) fn patient(&self) -> Pace {
        Pace { patience: self.cluster.patience, attempt: ATTEMPT }
    }

    pub(super) async fn attempts(
        &self,
        to: To<'_>,
        opcode: Opcode,
        request: EncodedMessage,
        pace: Pace,
    ) -> std::result::Result<EncodedMessage, Failure> {
        let mut group = PartitionOf { caller: self, to, patience: pace.patience, waits: false };
        ask_leader(&self.cluster, &mut group, opcode, &request, pace).await
    }

    /// The same for what the leader may answer late: nobody else is asked meanwhile.
    pub(super) async fn patient_attempts(
        &self,
        to: To<'_>,
        opcode: Opcode,
        request: EncodedMessage,
        pace: Pace,
    ) -> std::result::Result<EncodedMessage, Failure> {
        let mut group = PartitionOf { caller: self, to, patience: pace.patience, waits: true };
        ask_leader(&self.cluster, &mut group, opcode, &request, pace).await
    }

    /// Nobody but who holds this one uses the volume's sessions any more.
    pub(super) fn has_no_others(&self) -> bool {
        Arc::strong_count(&self.shared) == 1
    }

    /// Who answered as the partition's leader last, or else who leads it by the map.
    pub(super) fn leader_address(&self, partition: u32) -> Option<String> {
        let heard = self.shared.leaders.lock().get(&partition).cloned();
        heard.or_else(|| self.member_address(partition, 0))
    }

    /// Of all members, the leader last heard of first.
    pub(super) fn member_addresses(&self, partition: u32) -> Vec<String> {
        let members = self.cluster.view().partitions.get(&partition).map_or(0, |p| p.nodes.len());
        (0..members).filter_map(|round| self.member_address(partition, round)).collect()
    }

    fn member_address(&self, partition: u32, round: usize) -> Option<String> {
        let view = self.cluster.view();
        let partition = view.partitions.get(&partition)?;
        let leader = partition.nodes.iter().position(|n| *n == partition.leader).unwrap_or(0);
        let node = *partition.nodes.get((leader + round) % partition.nodes.len().max(1))?;
        view.nodes.get(&node).map(|n| n.address.clone())
    }
}

/// A partition, in one call.
struct PartitionOf<'a> {
    caller: &'a MetaCaller,
    to: To<'a>,
    patience: Duration,
    /// A late answer is no reason to ask others.
    waits: bool,
}

impl Members for PartitionOf<'_> {
    fn group(&self) -> u32 {
        self.to.partition
    }
    fn addresses(&self) -> Vec<String> {
        if self.waits { Vec::new() } else { self.caller.member_addresses(self.to.partition) }
    }
    fn leader(&self) -> Option<String> {
        self.caller.shared.leaders.lock().get(&self.to.partition).cloned()
    }
}

impl Group for PartitionOf<'_> {
    fn first(&self, round: usize) -> Option<String> {
        self.leader().or_else(|| self.caller.member_address(self.to.partition, round))
    }
    fn leads(&self, address: &str) {
        let mut leaders = self.caller.shared.leaders.lock();
        if leaders.get(&self.to.partition).is_none_or(|known| known != address) {
            leaders.insert(self.to.partition, address.to_owned());
        }
    }
    fn does_not_lead(&self, address: Option<&str>) {
        let mut leaders = self.caller.shared.leaders.lock();
        // Unless somebody else was found meanwhile.
        if leaders.get(&self.to.partition).map(String::as_str) == address {
            leaders.remove(&self.to.partition);
        }
    }
    async fn verdict(&self, error: &WireError) -> Verdict {
        match error.retry() {
            _ if error.code == ErrorCode::UnknownPartition && self.caller.is_elsewhere(self.to).await => {
                Verdict::AnswerOfAny
            }
            RetryClass::Never => Verdict::Answer,
            RetryClass::Unknown if error.code == ErrorCode::SessionEnded => Verdict::AnswerOfAny,
            // It leads; whoever has the lease needs a moment.
            _ if error.code == ErrorCode::LeaseHeld => Verdict::Wait,
            _ => Verdict::Again,
        }
    }
    fn heard(&mut self, _from: Option<&str>, _why: &str, _error: Option<&WireError>) -> Duration {
        self.patience
    }
    async fn look_up(&self) {
        self.caller.cluster.refresh_quietly().await;
    }
    fn name(&self) -> String {
        format!("partition p{}", self.to.partition)
    }
    fn nobody(&self) -> String {
        format!("meta {} does not answer", self.name())
    }
}
