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

use cairn_meta_core as core;
use cairn_raft_host::{AppliedAt, CheckpointWriter, DropReason, Item, Role, StateMachine};
use cairn_rpc::ReplyBatch;
use cairn_store::{CheckpointSource, StoreError};
use cairn_types::ErrorCode;
use cairn_wire::Opcode;
use cairn_wire::error::WireError;
use cairn_wire::meta::SetFeatureLevel;
use prost::Message;

use crate::checkpoint;
use crate::header::Head;
use crate::partition::{Context, PartitionState};
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
}

impl PartitionMachine {
    pub(crate) fn new(state: Arc<PartitionState>) -> Self {
        Self { state, bytes: Vec::new(), outcomes: Vec::new(), replies: ReplyBatch::new() }
    }

    /// Applies items under one hold of the lock and notes what they came to; inodes on which a lock was given back.
    fn apply_some(&mut self, at: core::AppliedAt, items: impl Iterator<Item = Item<Context>>) -> Vec<u64> {
        let mut namespace = self.state.namespace.write();
        for item in items {
            let start = self.bytes.len();
            let outcome = match split(&item.data) {
                Some((opcode, request)) => {
                    self.check_level(at.index, opcode, request);
                    let outcome = namespace.apply(at, opcode, request, &mut self.bytes);
                    if opcode == Opcode::EndSession
                        && let Some(head) = Head::find(request)
                    {
                        self.state.leases.forget(head.session);
                        self.state.openers.forget(head.session);
                        self.state.wanted_leases.forget(head.session);
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
                Some(context) => {
                    if outcome.is_ok()
                        && let Some((opcode, request)) = split(&item.data)
                    {
                        namespace.put_directory(opcode, request, &mut self.bytes);
                    }
                    let end = self.bytes.len();
                    self.outcomes.push((context, outcome.map(|()| start..end)));
                }
                None => self.bytes.truncate(start),
            }
        }
        let wanted = namespace.take_wanted_leases();
        if self.state.leading_term().is_some() {
            self.state.wanted_leases.note(&wanted);
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
            }
        }
        self.bytes.clear();
        if self.bytes.capacity() > KEEP_BYTES {
            self.bytes = Vec::new();
        }
    }
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
fn split(data: &[u8]) -> Option<(Opcode, &[u8])> {
    let (code, request) = data.split_first_chunk::<2>()?;
    Some((Opcode::from_code(u16::from_le_bytes(*code))?, request))
}

impl StateMachine for PartitionMachine {
    type Context = Context;

    fn apply(&mut self, at: AppliedAt, items: Vec<Item<Context>>) {
        let at = core::AppliedAt { index: at.index, time: at.time };
        let mut items = items.into_iter();
        while items.len() > 0 {
            let released = self.apply_some(at, items.by_ref().take(HOLD_ITEMS));
            self.answer();
            self.state.locks_released(&released);
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
        let before = std::mem::replace(&mut *self.state.namespace.write(), namespace);
        drop(before);
        Ok(())
    }

    fn role_changed(&mut self, role: Role) {
        // Under the lock of `recalls`, as the duty `recall` begins to lead: or it would do so for a term that has just ended.
        let become_follower = |until: Option<u64>| {
            self.state.recalls.send_modify(|recalls| {
                *recalls = until;
                self.state.follow();
            });
        };
        match role {
            Role::Leader { term, forgot: true } => {
                tracing::warn!(partition = %self.state.id, term, "what the partition has forgotten is accepted: it begins with inodes that were never given");
                become_follower(Some(term));
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
