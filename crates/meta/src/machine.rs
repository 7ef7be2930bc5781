//! [`PartitionMachine`]: a partition's namespace as the state machine of its Raft group.
//!
//! An item of the log is the opcode (u16 little-endian) and the bytes of the request as they came. The namespace's lock
//! is held for a part of an entry, so that readers wait for a fraction of a millisecond at most; answers are handed to
//! the connections after it was let go, and each connection is woken once for all that was committed together.
//!
//! Invariant: the outcome of `apply` depends on the log alone: whom to answer is looked at after the namespace changed.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use bytes::Bytes;
use cairn_meta_core as core;
use cairn_raft_host::{AppliedAt, CheckpointWriter, DropReason, Item, Role, StateMachine};
use cairn_rpc::ReplyBatch;
use cairn_store::{CheckpointSource, StoreError};
use cairn_types::ErrorCode;
use cairn_wire::Opcode;
use cairn_wire::error::WireError;
use cairn_wire::meta::{AtLimit, SetFeatureLevel, TxDecide};
use prost::Message;

use crate::across::{Mutation, Work, prepared};
use crate::change_waits::changed_by;
use crate::checkpoint;
use crate::header::Head;
use crate::partition::{Context, PartitionState, Recall};
use crate::stats::count;

/// Items applied under one hold of the lock.
const HOLD_ITEMS: usize = 128;
/// Buffers above this size are given back after use.
const KEEP_BYTES: usize = 1 << 20;

/// The state machine of one member.
pub(crate) struct PartitionMachine {
    state: Arc<PartitionState>,
    /// Answers of the items at hand, one behind the other.
    bytes: Vec<u8>,
    outcomes: Vec<(Context, Result<Range<usize>, WireError>)>,
    replies: ReplyBatch,
    /// Mutations of clients that have to be prepared at other partitions, or to wait for one.
    handed_over: Vec<Work>,
    /// An operation across partitions, or a delegation, has ended here.
    unlocked: bool,
    /// Delegations are wanted, and sessions with overwrite leases that are.
    recalls: bool,
    in_the_way: Vec<u64>,
    /// Files whose contents may have changed, while somebody waits for that.
    changed: Vec<u64>,
}

impl PartitionMachine {
    pub(crate) fn new(state: Arc<PartitionState>) -> Self {
        Self {
            state,
            bytes: Vec::new(),
            outcomes: Vec::new(),
            replies: ReplyBatch::new(),
            handed_over: Vec::new(),
            unlocked: false,
            recalls: false,
            in_the_way: Vec::new(),
            changed: Vec::new(),
        }
    }

    /// Applies items under one hold of the lock and notes what they came to; inodes on which a lock was given back.
    fn apply_some(&mut self, at: core::AppliedAt, items: impl Iterator<Item = Item<Context>>) -> Vec<u64> {
        let mut timer = self.state.load.timer();
        let mut namespace = self.state.namespace.write();
        // Who waits from now on sees what is applied here.
        let waited = self.state.has_change_waits() || self.state.has_append_turns();
        for item in items {
            timer.changes += 1;
            let start = self.bytes.len();
            let outcome = match split(&item.data) {
                Some((opcode, request)) => {
                    self.check_level(at.index, opcode, request);
                    let led = namespace.delegation_count();
                    let outcome = namespace.apply(at, opcode, request, &mut self.bytes);
                    // What a delegation covered was locked to others, too.
                    self.unlocked |= opcode == Opcode::TxFinish || namespace.delegation_count() < led;
                    self.changed
                        .extend(waited.then(|| changed_by(opcode, request)).flatten().filter(|_| outcome.is_ok()));
                    if opcode == Opcode::EndSession
                        && let Some(head) = Head::find(request)
                    {
                        self.state.leases.forget(head.session);
                        self.state.openers.forget(head.session);
                        self.state.wanted_leases.forget(head.session);
                        self.state.wanted_delegations.forget(head.session);
                    }
                    outcome
                }
                // Left out here, the members would differ.
                None => panic!("entry {} of {}: {}", at.index, self.state.id, unknown(&item.data)),
            };
            match item.context {
                Some(Context::Deferral) => {
                    self.bytes.truncate(start);
                    self.state.asked_to_defer.store(false, Ordering::Release);
                }
                Some(Context::Client { reply, received }) if self.goes_on(&outcome) => {
                    self.bytes.truncate(start);
                    self.handed_over.push(Work::Mutation(Mutation { data: item.data, reply, received }));
                }
                Some(Context::Prepare(reply)) if is_locked(&outcome) => {
                    self.bytes.truncate(start);
                    self.handed_over.push(Work::PrepareLocked(item.data, reply));
                }
                Some(context) => {
                    if outcome.is_ok() {
                        put_directory(&namespace, &item.data, &mut self.bytes);
                    }
                    let end = self.bytes.len();
                    self.outcomes.push((context, outcome.map(|()| start..end)));
                }
                None => self.bytes.truncate(start),
            }
        }
        self.state.across.note_several(namespace.is_one_of_several());
        self.state.across.note_huge(&mut namespace);
        if namespace.is_low() {
            self.state.across.desk.note_low();
        }
        let wanted = namespace.take_wanted_leases();
        if self.state.leading_term().is_some() {
            self.state.wanted_leases.note(&wanted);
            self.in_the_way.extend(wanted.iter().map(|(session, _)| *session));
            self.recalls = namespace.wants_delegations();
        }
        self.state.grown.note(&namespace.take_grown());
        self.state.session_bytes.store(namespace.session_bytes(), Ordering::Relaxed);
        namespace.take_released_locks()
    }

    /// What this process does not say that it understands, it does not apply.
    fn check_level(&self, index: u64, opcode: Opcode, request: &[u8]) {
        let needed = match opcode {
            Opcode::SetFeatureLevel => SetFeatureLevel::decode(request).map_or(0, |request| request.level),
            other => other.feature_level(),
        };
        let level = self.state.common.feature_level;
        assert!(needed <= level, "entry {index} of {}: {}", self.state.id, too_new(needed, level));
    }

    /// Whether a refusal is not the client's yet: the leader has the operation prepared elsewhere, or waits for another
    /// one.
    fn goes_on(&self, outcome: &Result<(), WireError>) -> bool {
        let across = |error: &WireError| {
            core::Namespace::is_prepared_anew(error)
                || core::Namespace::is_locked_across(error)
                || core::Namespace::asks_for(error).is_some()
        };
        self.state.across.is_one_of_several() && outcome.as_ref().is_err_and(across)
    }

    /// Hands out what the items came to.
    fn answer(&mut self) {
        let stats = &self.state.common.stats;
        let now = Instant::now();
        for (context, outcome) in self.outcomes.drain(..) {
            match (context, outcome) {
                (Context::Client { reply, received }, Ok(range)) => {
                    stats.mutation_took(now.saturating_duration_since(received));
                    let answer = &self.bytes[range];
                    self.replies.ok_with(reply, |out| out.extend_from_slice(answer), ());
                }
                (Context::Client { reply, received }, Err(error)) => {
                    stats.mutation_took(now.saturating_duration_since(received));
                    count(&stats.errors);
                    self.replies.err(reply, error);
                }
                (Context::Deferral, _) => {}
                (Context::Own(sender), outcome) => {
                    // A duty that was given up does not listen any more.
                    let _ = sender.send(outcome.map(|_| ()));
                }
                (Context::Answered(sender), outcome) => {
                    let _ = sender.send(outcome.map(|range| Bytes::copy_from_slice(&self.bytes[range])));
                }
                (Context::Prepare(reply), outcome) => match prepared(outcome.map(|range| &self.bytes[range])) {
                    Ok(answer) => self.replies.ok(reply, &answer, ()),
                    Err(error) => self.replies.err(reply, error),
                },
            }
        }
        self.handed_over.drain(..).for_each(|work| self.state.across.hand_over(work));
        if std::mem::take(&mut self.unlocked) {
            self.state.across.note_unlocked();
        }
        self.bytes.clear();
        if self.bytes.capacity() > KEEP_BYTES {
            self.bytes = Vec::new();
        }
    }
}

/// Adds the directory as it is now to the answer to a client's request, however it stands in the log.
fn put_directory(namespace: &core::Namespace, data: &[u8], answer: &mut Vec<u8>) {
    match split(data) {
        Some((Opcode::TxDecide, message)) => {
            let Ok(decide) = TxDecide::decode(message) else { return };
            let opcode = u16::try_from(decide.opcode).ok().and_then(Opcode::from_code);
            if let Some(opcode) = opcode {
                namespace.put_directory(opcode, &decide.request, answer);
            }
        }
        Some((Opcode::AtLimit, message)) => {
            let Ok(request) = AtLimit::decode(message) else { return };
            let opcode = u16::try_from(request.opcode).ok().and_then(Opcode::from_code);
            if let Some(opcode) = opcode {
                namespace.put_directory(opcode, &request.request, answer);
            }
        }
        Some((opcode, request)) => namespace.put_directory(opcode, request, answer),
        None => {}
    }
}

/// Another operation has what it needs.
fn is_locked(outcome: &Result<(), WireError>) -> bool {
    outcome.as_ref().is_err_and(core::Namespace::is_locked_across)
}

/// Why this process cannot be a member any more.
fn too_new(needed: u32, understood: u32) -> String {
    format!(
        "it needs feature level {needed}, which all members had announced, and this process understands {understood}: start \
         the newer build again, or take node.feature_level_max out of its configuration"
    )
}

fn unknown(item: &[u8]) -> String {
    let code = item.first_chunk::<2>().map_or(0, |code| u16::from_le_bytes(*code));
    format!("operation {code:#06x} is of a later version; start the newer build again")
}

/// Takes an item apart.
pub(crate) fn split(data: &[u8]) -> Option<(Opcode, &[u8])> {
    let (code, request) = data.split_first_chunk::<2>()?;
    Some((Opcode::from_code(u16::from_le_bytes(*code))?, request))
}

impl StateMachine for PartitionMachine {
    type Context = Context;

    fn apply(&mut self, at: AppliedAt, items: Vec<Item<Context>>) {
        let at = core::AppliedAt { index: at.index, term: at.term, time: at.time };
        let mut items = items.into_iter();
        while items.len() > 0 {
            let released = self.apply_some(at, items.by_ref().take(HOLD_ITEMS));
            self.answer();
            self.state.tell(self.in_the_way.drain(..));
            if std::mem::take(&mut self.recalls) {
                self.state.tell_wanted();
            }
            self.state.locks_released(&released);
            let changed = std::mem::take(&mut self.changed);
            self.state.sizes_changed(&changed, self.state.common.clock.now());
            self.state.contents_changed(&changed);
        }
    }

    fn level(&self) -> u32 {
        self.state.namespace.read().feature_level()
    }

    fn applied_batch(&mut self) {
        self.replies.flush();
    }

    fn dropped(&mut self, contexts: Vec<(Context, DropReason)>) {
        let common = &self.state.common;
        for (context, reason) in contexts {
            let error = match reason {
                DropReason::NotLeader { hint } => common.not_leader(hint),
                DropReason::Unknown => {
                    count(&common.stats.unknown);
                    let text = "leadership ended before the operation was decided; repeat it with the same sequence \
                                number to learn its outcome";
                    WireError::new(ErrorCode::DeadlineExceeded, text)
                }
            };
            match context {
                Context::Client { reply, .. } => self.replies.err(reply, error),
                Context::Deferral => self.state.asked_to_defer.store(false, Ordering::Release),
                Context::Own(sender) => {
                    // A duty that was given up does not listen any more.
                    let _ = sender.send(Err(error));
                }
                Context::Answered(sender) => {
                    let _ = sender.send(Err(error));
                }
                Context::Prepare(reply) => self.replies.err(reply, error),
            }
        }
        self.replies.flush();
    }

    fn checkpoint(&self) -> CheckpointWriter {
        let snapshot = self.state.namespace.read().snapshot();
        Box::new(move |sink| checkpoint::write(&snapshot, sink))
    }

    fn restore(&mut self, source: &mut dyn CheckpointSource) -> Result<(), StoreError> {
        let namespace = checkpoint::read(source, self.state.id)?;
        let (needed, level) = (namespace.feature_level(), self.state.common.feature_level);
        if needed > level {
            let group = self.state.id.get();
            // Not damage: an older checkpoint would be followed by the same log.
            return Err(StoreError::State { group, index: namespace.applied_index(), what: too_new(needed, level) });
        }
        self.state.session_bytes.store(namespace.session_bytes(), Ordering::Relaxed);
        self.state.across.note_several(namespace.is_one_of_several());
        let before = std::mem::replace(&mut *self.state.namespace.write(), namespace);
        drop(before);
        Ok(())
    }

    fn rests(&mut self, rests: bool) {
        self.state.rests.send_replace(rests);
    }

    fn role_changed(&mut self, role: Role) {
        // Under the lock of `recalls`, as the duty `recall` begins to lead: or it would do so for a term that has just
        // ended.
        let become_follower = |until: Option<Recall>| {
            self.state.recalls.send_modify(|recalls| {
                *recalls = until;
                self.state.follow();
            });
        };
        match role {
            Role::Leader { term, forgot: true } => {
                tracing::warn!(partition = %self.state.id, term, "what the partition has forgotten is accepted: it begins with inodes that were never given");
                become_follower(Some(Recall { term, forgot: true }));
            }
            Role::Leader { term, forgot: false } if self.state.namespace.read().lacks_sessions() => {
                tracing::info!(partition = %self.state.id, term, "leads a new partition, which learns first what sessions have ended");
                become_follower(Some(Recall { term, forgot: false }));
            }
            Role::Leader { term, forgot: false } => {
                tracing::info!(partition = %self.state.id, term, "leads the partition");
                self.state.recalls.send_replace(None);
                self.state.lead(term);
            }
            Role::Follower { leader } => {
                tracing::info!(partition = %self.state.id, ?leader, "follows");
                become_follower(None);
            }
        }
    }
}
