//! One operation of a client, from the request to the answer: as it is where all is here, else prepared at others and
//! decided.
//!
//! Invariants: a decision is proposed at most once under one number; what an attempt has locked elsewhere is released
//! when it is given up (what that does not reach is resolved by those who have it); nothing is held here while others
//! are waited for.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use cairn_meta_core::{Amounts, AtLimit, MOVES, Namespace, TxId};
use cairn_types::{ErrorCode, InodeId, PartitionId};
use cairn_wire::Opcode;
use cairn_wire::common::Empty;
use cairn_wire::error::WireError;
use cairn_wire::meta::{
    self, AboveTxRequest, AboveTxResponse, FinishTxRequest, MetaHeader, MkdirRequest, PrepareTxRequest,
    PrepareTxResponse, TxDecide, TxFinish, TxName, TxParticipant, TxPrepare, TxPrepared,
};
use prost::Message;
use std::collections::BTreeMap;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::lend::{self, Verdict};
use super::place::Placement;
use super::{CALL, Mutation, PATIENCE, Peers, snapshots, wait};
use crate::machine::split;
use crate::partition::{Partition, item};
use crate::stats::count;

/// First pause after an operation met another one; doubles.
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(64);

/// What an attempt came to.
enum Attempt {
    Answered(Result<Bytes, WireError>),
    /// Something of it is locked by another operation, here.
    Locked,
    /// It met another operation elsewhere, or found more than was prepared.
    Again,
    /// There is no room for so much here in what the partition may use of the volume's limit.
    Short(Amounts),
    /// Nor anywhere else.
    Full(AtLimit),
    /// The memory of another partition is used up.
    NoMemory(PartitionId, WireError),
}

/// Carries a mutation out and answers it.
pub(super) async fn drive(partition: Arc<Partition>, peers: Arc<Peers>, mutation: Mutation) {
    let Mutation { data, reply, received } = mutation;
    let driver = Driver { partition: &partition, peers: &peers, received };
    let outcome = match split(&data) {
        Some((Opcode::SetQuota, _)) => lend::set(&driver, data).await,
        Some((Opcode::CreateSnapshot, _)) => snapshots::create(&driver, data).await,
        Some((Opcode::DeleteSnapshot | Opcode::RenameSnapshot, _)) => snapshots::change(&driver, data).await,
        _ => driver.run(data).await,
    };
    let stats = &partition.state.common.stats;
    stats.mutation_took(received.elapsed());
    match outcome {
        Ok(answer) => reply.ok_with(|out| out.extend_from_slice(&answer), ()),
        Err(error) => {
            count(&stats.errors);
            reply.err(error);
        }
    }
}

pub(super) struct Driver<'a> {
    pub(super) partition: &'a Arc<Partition>,
    pub(super) peers: &'a Arc<Peers>,
    pub(super) received: Instant,
}

impl Driver<'_> {
    pub(super) async fn run(&self, data: Bytes) -> Result<Bytes, WireError> {
        let (opcode, _) = split(&data).expect("it was looked at before it came here");
        let across = &self.partition.state.across;
        let mut ends = across.unlocked.subscribe();
        let (mut pause, mut met) = (PAUSE_MIN, false);
        // Room that was got is kept until the attempt after that has used it.
        let (mut ticket, mut at_limit, mut held_by) = (None, None, String::new());
        loop {
            ends.mark_unchanged();
            let attempt = self.attempt(opcode, &data, at_limit).await;
            // That there was no room is looked for again with every attempt.
            at_limit = None;
            let left = PATIENCE.saturating_sub(self.received.elapsed());
            if !matches!(attempt, Attempt::Answered(_)) {
                count(&self.partition.state.common.stats.across_again);
            }
            match attempt {
                Attempt::Answered(outcome) => return outcome,
                _ if left.is_zero() => {
                    let text = match held_by.as_str() {
                        "" => format!(
                            "other operations across partitions held what {} needs for {PATIENCE:?}; repeat it",
                            opcode.name()
                        ),
                        why => format!("{why}; repeat it"),
                    };
                    return Err(WireError::new(ErrorCode::LeaseHeld, text));
                }
                // Any lock that ends wakes all who wait: each looks again, at once and then more and more seldom.
                Attempt::Locked => {
                    wait::for_end(&mut ends, left).await;
                    if std::mem::replace(&mut met, true) {
                        sleep(jitter(pause).min(left)).await;
                        pause = (pause * 2).min(PAUSE_MAX);
                    }
                }
                Attempt::Full(_) if opcode.is_internal() => {
                    let text = "the quota of the volume on the number of files leaves no room for a directory in another partition";
                    return Err(WireError::new(ErrorCode::QuotaExceeded, text));
                }
                Attempt::Full(why) => at_limit = Some(why),
                Attempt::Short(amounts) => {
                    let ticket = ticket.get_or_insert_with(|| across.desk.ticket(amounts));
                    match lend::ask(self.partition, self.peers, Some(ticket)).await {
                        Verdict::Again => {}
                        Verdict::Full(why) => at_limit = Some(why),
                        Verdict::Unknown(why) => {
                            held_by = why;
                            sleep(jitter(pause).min(left)).await;
                            pause = (pause * 2).min(PAUSE_MAX);
                        }
                    }
                }
                Attempt::NoMemory(full, error) => {
                    let wished = MkdirRequest::decode(&data[2..]).is_ok_and(|request| request.partition != 0);
                    if opcode != Opcode::Mkdir || wished {
                        // The number of the request stays unused.
                        return Err(WireError::new(ErrorCode::BadRequest, error.message));
                    }
                    across.place.avoid(full);
                }
                Attempt::Again => {
                    sleep(jitter(pause).min(left)).await;
                    pause = (pause * 2).min(PAUSE_MAX);
                }
            }
        }
    }

    async fn attempt(&self, opcode: Opcode, data: &Bytes, at_limit: Option<AtLimit>) -> Attempt {
        let state = &self.partition.state;
        let Some(term) = state.leading_term() else {
            return Attempt::Answered(Err(state.common.not_leader(self.partition.handle.leader())));
        };
        let mut elsewhere = match self.placed(opcode, &data[2..]).await {
            // Where there is no room elsewhere, what is here is the last of it.
            Ok(elsewhere) => elsewhere.filter(|_| at_limit.is_none()),
            Err(error) => return Attempt::Answered(Err(error)),
        };
        let of_new = elsewhere.filter(|_| opcode == Opcode::Mkdir);
        let begun = of_new.and_then(|of| state.across.ahead.take(term, of));
        let (tx, mut participants) = match begun {
            Some((tx, participant)) => {
                elsewhere = None;
                (tx, vec![participant])
            }
            None => (state.across.begin(term), Vec::new()),
        };
        let prepared = self.prepare(tx, opcode, &data[2..], &mut participants, elsewhere).await;
        let attempt = match prepared {
            Ok(()) if participants.is_empty() => {
                let attempt = self.log(opcode, data, at_limit).await;
                state.across.end(tx);
                return attempt;
            }
            Ok(()) => self.decide(tx, opcode, &data[2..], &participants, at_limit).await,
            Err(attempt) => {
                state.across.end(tx);
                attempt
            }
        };
        if let (Some(of), Attempt::Answered(Ok(_))) = (of_new, &attempt) {
            state.across.ahead.note_made(self.partition, self.peers, term, of);
        }
        if !state.across.is_open(tx) && !state.namespace.read().has_decided(tx) {
            release(self.partition, self.peers, tx, participants);
        }
        attempt
    }

    /// Where a new directory goes, if that is not here. A partition that is named and not known may be newer than this
    /// node's map.
    async fn placed(&self, opcode: Opcode, message: &[u8]) -> Result<Option<PartitionId>, WireError> {
        let state = &self.partition.state;
        let look = || state.across.place.of_new_directory(state, self.peers, opcode, message);
        match look() {
            Err(_) if Placement::is_unknown(state, self.peers, opcode, message) => {
                let left = PATIENCE.saturating_sub(self.received.elapsed());
                let fresh = tokio::time::timeout(left, state.common.fresh_map(state.across.desk.map_rounds())).await;
                if !matches!(fresh, Ok(Ok(()))) {
                    let text =
                        "the partition that is named is not in this node's map, which may be old; repeat in a moment";
                    return Err(WireError::new(ErrorCode::Overloaded, text));
                }
                look()
            }
            placed => placed,
        }
    }

    /// Has others lock and tell what is needed of them, until it is enough.
    async fn prepare(
        &self,
        tx: TxId,
        opcode: Opcode,
        message: &[u8],
        participants: &mut Vec<TxParticipant>,
        mut elsewhere: Option<PartitionId>,
    ) -> Result<(), Attempt> {
        let state = &self.partition.state;
        let failed = |error| Attempt::Answered(Err(error));
        loop {
            let wants = state.namespace.read().tx_wants(opcode, message, participants).map_err(failed)?;
            if wants.is_empty() && elsewhere.is_none() {
                return Ok(());
            }
            if self.received.elapsed() > PATIENCE {
                return Err(Attempt::Again);
            }
            if let Some(error) = self.partition.not_understood(Opcode::TxDecide) {
                return Err(failed(not_yet(error)));
            }
            for directory in wants.above {
                self.look_above(tx, directory, participants).await?;
            }
            let mut asked: BTreeMap<PartitionId, TxPrepare> = BTreeMap::new();
            for inode in wants.inodes {
                of(&mut asked, tx, self.owner(inode)?).inodes.push(inode);
            }
            for (directory, name) in wants.names {
                let request = of(&mut asked, tx, self.owner(directory)?);
                if !request.inodes.contains(&directory) {
                    request.inodes.push(directory);
                }
                request.names.push(TxName { directory, name, ..TxName::default() });
            }
            if wants.moves {
                of(&mut asked, tx, self.owner(InodeId::ROOT.0)?).inodes.push(MOVES);
            }
            if let Some(target) = elsewhere.take() {
                of(&mut asked, tx, target).new_inode = true;
            }
            self.ask_all(asked, participants).await?;
        }
    }

    fn owner(&self, inode: u64) -> Result<PartitionId, Attempt> {
        let state = &self.partition.state;
        let owner = self.peers.owner(state.volume, inode).and_then(|owner| {
            // The range of this partition has ended since the map, and others have what follows.
            let is_old = owner == state.id && inode > state.namespace.read().inode_last();
            let text = "this node does not know yet which partition has an inode that is named; repeat in a moment";
            if is_old { Err(WireError::new(ErrorCode::Unavailable, text)) } else { Ok(owner) }
        });
        owner.map_err(|error| Attempt::Answered(Err(error)))
    }

    fn header(&self, to: PartitionId) -> Option<MetaHeader> {
        Some(header(self.partition, to))
    }

    /// Side by side; all are waited for, so that whatever was locked is known.
    async fn ask_all(
        &self,
        asked: BTreeMap<PartitionId, TxPrepare>,
        participants: &mut Vec<TxParticipant>,
    ) -> Result<(), Attempt> {
        let mut answers = JoinSet::new();
        for (to, prepare) in asked {
            let request = PrepareTxRequest { header: self.header(to), prepare: Some(prepare) };
            let peers = self.peers.clone();
            answers.spawn(async move {
                let answer = peers.call::<PrepareTxResponse>(to, Opcode::PrepareTx, &request, CALL).await;
                (to, answer)
            });
        }
        let mut outcome = Ok(());
        while let Some(answer) = answers.join_next().await {
            let Ok((from, answer)) = answer else {
                outcome = Err(Attempt::Again);
                continue;
            };
            let took = match answer {
                Ok(PrepareTxResponse { prepared: Some(prepared), locked: false, .. }) => {
                    add(participants, from, prepared)
                }
                Ok(answer) => Err(AtLimit::from_code(answer.at_limit).map_or(Attempt::Again, Attempt::Full)),
                Err(error) if Namespace::is_full(&error) => Err(Attempt::NoMemory(from, error)),
                Err(error) => Err(Attempt::Answered(Err(elsewhere_failed(from, error)))),
            };
            outcome = outcome.and(took);
        }
        outcome
    }

    async fn look_above(&self, tx: TxId, directory: u64, participants: &mut Vec<TxParticipant>) -> Result<(), Attempt> {
        let owner = self.owner(directory)?;
        let request = AboveTxRequest { header: self.header(owner), tx: Some(tx.wire()), directory };
        let answer: Result<AboveTxResponse, _> = self.peers.call(owner, Opcode::AboveTx, &request, CALL).await;
        match answer {
            Ok(answer) if answer.locked => Err(Attempt::Again),
            // It is gone, or was never there: what names it is looked at anew.
            Ok(answer) if answer.directories.is_empty() => Err(Attempt::Again),
            Ok(answer) => {
                participant(participants, owner).seen.extend(answer.directories);
                Ok(())
            }
            Err(error) => Err(Attempt::Answered(Err(elsewhere_failed(owner, error)))),
        }
    }

    /// As it is, when nothing of others is needed.
    async fn log(&self, opcode: Opcode, data: &Bytes, at_limit: Option<AtLimit>) -> Attempt {
        let entry = match at_limit {
            None => data.clone(),
            Some(why) => {
                let (opcode, request, why) = (opcode.code().into(), data[2..].to_vec(), why.code());
                item(Opcode::AtLimit, &meta::AtLimit { opcode, request, why })
            }
        };
        let outcome = self.partition.propose_answered(entry).await;
        self.judge(opcode, &data[2..], &[], outcome)
    }

    /// What an attempt came to that was applied.
    fn judge(
        &self,
        opcode: Opcode,
        message: &[u8],
        participants: &[TxParticipant],
        outcome: Result<Bytes, WireError>,
    ) -> Attempt {
        let namespace = &self.partition.state.namespace;
        match outcome {
            Err(error) if Namespace::is_locked_across(&error) => Attempt::Locked,
            Err(error) if let Some(amounts) = Namespace::asks_for(&error) => Attempt::Short(amounts),
            Err(error) if Namespace::is_prepared_anew(&error) => {
                match namespace.read().tx_wants(opcode, message, participants) {
                    // There is nothing that others could prepare for it: it is refused between partitions.
                    Ok(wants) if wants.is_empty() => Attempt::Answered(Err(error)),
                    _ => Attempt::Again,
                }
            }
            outcome => Attempt::Answered(outcome),
        }
    }

    async fn decide(
        &self,
        tx: TxId,
        opcode: Opcode,
        message: &[u8],
        participants: &[TxParticipant],
        at_limit: Option<AtLimit>,
    ) -> Attempt {
        let across = &self.partition.state.across;
        let decide = TxDecide {
            tx: Some(tx.wire()),
            opcode: opcode.code().into(),
            request: message.to_vec(),
            participants: participants.to_vec(),
            at_limit: at_limit.map_or(0, AtLimit::code),
        };
        let outcome = self.partition.propose_answered(item(Opcode::TxDecide, &decide)).await;
        if let Err(error) = &outcome
            && matches!(error.code, ErrorCode::DeadlineExceeded | ErrorCode::Unavailable)
        {
            // It may still become an entry of this term, whoever leads: it stays open here.
            return Attempt::Answered(outcome);
        }
        across.end(tx);
        across.note_decided(tx);
        if outcome.is_ok() {
            count(&self.partition.state.common.stats.across_decided);
        }
        self.judge(opcode, message, participants, outcome)
    }
}

/// Of a request to another partition of the volume.
pub(crate) fn header(partition: &Partition, to: PartitionId) -> MetaHeader {
    MetaHeader { volume: partition.state.volume.get(), partition: to.get(), ..MetaHeader::default() }
}

/// Tells others that nothing came of an operation; nobody waits for that.
pub(super) fn release(partition: &Partition, peers: &Arc<Peers>, tx: TxId, participants: Vec<TxParticipant>) {
    for participant in participants {
        let Some(prepared) = participant.prepared else { continue };
        let to = PartitionId(participant.partition);
        let finish = TxFinish { tx: Some(tx.wire()), effects: None, lock: prepared.lock };
        let request = FinishTxRequest { header: Some(header(partition, to)), finishes: vec![finish] };
        let peers = peers.clone();
        tokio::spawn(async move {
            if let Err(error) = peers.call::<Empty>(to, Opcode::FinishTx, &request, CALL).await {
                tracing::debug!(partition = %to, %error, "locks were not released; who has them will ask");
            }
        });
    }
}

/// The request to prepare that goes to a partition.
fn of(asked: &mut BTreeMap<PartitionId, TxPrepare>, tx: TxId, to: PartitionId) -> &mut TxPrepare {
    asked.entry(to).or_insert_with(|| TxPrepare { tx: Some(tx.wire()), ..TxPrepare::default() })
}

fn participant(participants: &mut Vec<TxParticipant>, partition: PartitionId) -> &mut TxParticipant {
    let at = participants.iter().position(|known| known.partition == partition.get()).unwrap_or_else(|| {
        participants.push(TxParticipant { partition: partition.get(), ..TxParticipant::default() });
        participants.len() - 1
    });
    &mut participants[at]
}

/// Adds what a participant has prepared to what it had; under another lock than before all of it may have changed.
fn add(participants: &mut Vec<TxParticipant>, from: PartitionId, new: TxPrepared) -> Result<(), Attempt> {
    let known = &mut participant(participants, from).prepared;
    let Some(before) = known else {
        *known = Some(new);
        return Ok(());
    };
    if before.lock != new.lock {
        return Err(Attempt::Again);
    }
    before.new_inode = before.new_inode.max(new.new_inode);
    before.inodes.retain(|image| !new.inodes.iter().any(|other| other.inode == image.inode));
    before.inodes.extend(new.inodes);
    before.names.extend(new.names);
    Ok(())
}

/// For the client: which partition keeps its operation from being done. It was not.
fn elsewhere_failed(partition: PartitionId, error: WireError) -> WireError {
    let text = format!("{partition}, which has a part of it, did not take its part: {}", error.message);
    match error.code {
        // Nothing reached the log: only codes that leave the number of the request unused may be answered.
        ErrorCode::NameTooLong | ErrorCode::InvalidArgument | ErrorCode::BadRequest => {
            WireError::new(ErrorCode::BadRequest, text)
        }
        _ => WireError::new(ErrorCode::Overloaded, text),
    }
}

/// Members that do not understand it yet do after an upgrade, and those of a new partition after a moment: the client
/// repeats it.
fn not_yet(error: WireError) -> WireError {
    WireError::new(ErrorCode::Overloaded, error.message)
}

/// Between half of a pause and all of it.
fn jitter(pause: Duration) -> Duration {
    let nanos = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |now| now.subsec_nanos());
    pause / 2 + pause.mul_f64(f64::from(nanos % 1024) / 2048.0)
}
