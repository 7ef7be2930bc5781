//! Carries out what the core puts out.

use std::collections::BTreeMap;

use bytes::Bytes;
use cairn_raft::{BatchFrame, LogEntry, Output, Position, RoleChange, SnapshotMeta};
use cairn_store::{Completion, Record, StoreError};
use cairn_types::NodeId;
use cairn_wire::raft::RaftMessage;

use super::Owner;
use crate::jobs::Fetch;
use crate::mailbox::Event;
use crate::outbox;
use crate::pool;
use crate::recovery::hard_record;
use crate::state_machine::{AppliedAt, DropReason, Item, Role, StateMachine};

/// Bytes of entries put into one record of the log (a single larger entry goes alone).
const RECORD_BYTES: usize = 1 << 20;
/// The feature level whose builds read segments of version 2 and all records.
const CHAIN_LEVEL: u32 = 5;

/// What goes to the log in one submission.
#[derive(Default)]
struct Writes {
    records: Vec<Record>,
    number: u64,
}

impl<S: StateMachine> Owner<S> {
    /// Carries everything out. A lease ends first: a member that gave it up must not be seen to have it when its
    /// messages arrive. It begins last: what a new leader's state lacks is among the outputs.
    pub(super) fn carry_out(&mut self) {
        if self.failed {
            self.outputs.clear();
            return;
        }
        let same = self.leads && !self.outputs.iter().any(|output| matches!(output, Output::Role(_)));
        self.parts.shared.set_lease(self.core.lease_until().filter(|_| same));
        if self.outputs.is_empty() {
            return self.publish_freshness();
        }
        let mut writes = Writes::default();
        let mut messages: BTreeMap<NodeId, Vec<RaftMessage>> = BTreeMap::new();
        let mut rest = Vec::new();
        for output in std::mem::take(&mut self.outputs) {
            match output {
                Output::Persist { number, reset, hard, entries } => {
                    writes.number = number;
                    self.record(&mut writes.records, reset, hard, entries);
                }
                Output::Send(mut message) => {
                    message.wall_ns = self.parts.clock.wall().0;
                    if let Ok(to) = u32::try_from(message.to) {
                        messages.entry(NodeId(to)).or_default().push(message);
                    }
                }
                other => rest.push(other),
            }
        }
        // The disk starts first, then the peers, then it is applied here.
        self.submit(writes);
        for (to, messages) in messages {
            outbox::send(self.parts.transport.as_ref(), to, messages, self.parts.clock.now());
        }
        let mut applied = false;
        for output in rest {
            if !self.failed {
                applied |= self.carry_out_here(output);
            }
        }
        if applied && !self.failed {
            self.sm.applied_batch();
            self.allow_chain();
            self.parts.shared.set_applied(self.core.applied().index);
        }
        if self.leads && !self.failed {
            self.parts.shared.set_lease(self.core.lease_until());
        }
        self.publish_freshness();
    }

    /// The log keeps to what the program of before understands until the group has left that behind.
    pub(super) fn allow_chain(&self) {
        let wal = &self.parts.wal;
        if !wal.is_chained() && self.sm.level() >= CHAIN_LEVEL {
            wal.chain();
        }
    }

    /// What the core has handed out is applied now.
    fn publish_freshness(&mut self) {
        if self.failed {
            return;
        }
        if let Some(as_of) = self.core.fresh_as_of(self.parts.clock.now()) {
            self.parts.shared.set_fresh(as_of);
        }
    }

    fn record(
        &mut self,
        records: &mut Vec<Record>,
        reset: Option<Position>,
        hard: Option<cairn_raft::HardState>,
        entries: Vec<LogEntry>,
    ) {
        let group = self.parts.group;
        if let Some(at) = reset {
            records.push(Record::Reset { group, index: at.index, term: at.term });
        }
        if let Some(hard) = hard {
            records.push(Record::HardState { group, state: hard_record(hard) });
        }
        let max = RECORD_BYTES.min(self.parts.wal.record_bytes_max() / 2);
        let mut part = Vec::new();
        let mut bytes = 0;
        for entry in entries {
            if bytes > 0 && bytes + entry.data.len() > max {
                records.push(Record::Entries { group, entries: std::mem::take(&mut part) });
                bytes = 0;
            }
            bytes += entry.data.len() + 64;
            let LogEntry { term, index, kind, data } = entry;
            part.push(cairn_store::LogEntry { term, index, kind, data });
        }
        if !part.is_empty() {
            records.push(Record::Entries { group, entries: part });
        }
    }

    fn submit(&mut self, writes: Writes) {
        if writes.number == 0 {
            return;
        }
        let mailbox = self.mailbox.clone();
        let number = writes.number;
        let done = Box::new(move |result: Result<(), StoreError>| {
            // A closed group needs it no more.
            mailbox.post(Event::Persisted(number, result));
        });
        self.log_wait.submitted(self.parts.clock.now());
        self.log(writes.records, Some(done));
    }

    /// Gives records to the log.
    pub(super) fn log(&mut self, records: Vec<Record>, done: Option<Completion>) {
        let wal = &self.parts.wal;
        let submitted = match wal.is_crowded() {
            true => pool::blocking(|| wal.submit(records, done)),
            false => wal.submit(records, done),
        };
        if let Err(error) = submitted {
            self.fail(&error.to_string());
        }
    }

    /// Gives whether the state changed.
    fn carry_out_here(&mut self, output: Output) -> bool {
        match output {
            Output::Apply { at, data } => {
                self.checkpoints.log_bytes += data.len() as u64 + 32;
                self.applied = at;
                return self.apply(at, data);
            }
            Output::Restore(meta) => return self.restore(&meta),
            Output::FetchSnapshot { from, meta } => self.fetch(from, meta),
            Output::EntryWanted => self.entry_wanted = true,
            Output::CheckpointWanted => self.checkpoint_wanted = true,
            Output::Role(role) => self.role(role),
            Output::MembersChanged(members) => {
                let group = self.parts.group;
                tracing::info!(%group, voters = ?members.voters, learners = ?members.learners, "members changed");
            }
            Output::Persist { .. } | Output::Send(_) => unreachable!("sorted out before"),
        }
        false
    }

    fn apply(&mut self, at: Position, data: Bytes) -> bool {
        let contexts = self.contexts_for(at);
        if data.is_empty() {
            return false;
        }
        let frame = match BatchFrame::decode(&data) {
            Ok(frame) => frame,
            Err(error) => {
                self.fail(&format!("entry {} of group {} cannot be applied: {error}", at.index, self.parts.group));
                return false;
            }
        };
        self.log_clock.observe(frame.time);
        self.parts.shared.set_logged(frame.time);
        let at = AppliedAt { index: at.index, term: at.term, time: frame.time };
        let items = match contexts {
            Some(contexts) if contexts.len() == frame.items.len() => frame
                .items
                .into_iter()
                .zip(contexts)
                .map(|(data, context)| Item { data, context: Some(context) })
                .collect(),
            _ => frame.items.into_iter().map(|data| Item { data, context: None }).collect(),
        };
        self.sm.apply(at, items);
        true
    }

    /// The contexts of the batch that this member proposed at this place. Those whose place was taken by another
    /// leader's entry were certainly not done.
    fn contexts_for(&mut self, at: Position) -> Option<Vec<S::Context>> {
        let mut lost = Vec::new();
        let mut found = None;
        while let Some(first) = self.pending.front() {
            if first.at.index > at.index {
                break;
            }
            let Some(pending) = self.pending.pop_front() else { break };
            if pending.at == at {
                found = Some(pending.contexts);
                break;
            }
            let reason = DropReason::NotLeader { hint: self.hint() };
            lost.extend(pending.contexts.into_iter().map(|context| (context, reason)));
        }
        if !lost.is_empty() {
            self.sm.dropped(lost);
        }
        found
    }

    fn role(&mut self, role: RoleChange) {
        let group = self.parts.group;
        match role {
            RoleChange::Elected { term } => {
                tracing::info!(%group, term, "elected leader");
                self.log_clock.new_leadership();
                self.parts.shared.set_leader(Some(self.parts.config.node), false);
            }
            RoleChange::Leader { term } => {
                self.leads = true;
                self.eager = 0;
                self.parts.shared.set_applied(self.core.applied().index);
                self.parts.shared.set_core(self.core.status());
                self.sm.applied_batch();
                self.parts.shared.set_leader(Some(self.parts.config.node), true);
                self.sm.role_changed(Role::Leader { term, forgot: self.core.status().forgot });
            }
            RoleChange::Follower { term, leader } => {
                tracing::info!(%group, term, leader = ?leader, "follows");
                self.leads = false;
                self.log_clock.new_leadership();
                self.parts.shared.set_leader(leader, false);
                self.drop_pending();
                self.refuse_waiting();
                self.sm.role_changed(Role::Follower { leader });
            }
        }
    }

    fn fetch(&mut self, from: NodeId, meta: SnapshotMeta) {
        tracing::info!(group = %self.parts.group, %from, index = meta.at.index, bytes = meta.bytes, "fetching a checkpoint");
        let fetch = Fetch {
            wal: self.parts.wal.clone(),
            store: self.parts.store.clone(),
            transport: self.parts.transport.clone(),
            mailbox: self.mailbox.clone(),
            group: self.parts.group,
            from,
            meta,
            part_bytes: self.parts.config.fetch_part_bytes,
        };
        fetch.spawn();
    }
}
