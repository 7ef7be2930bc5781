//! [`GroupCore`]: one member of one Raft group, without I/O.
//!
//! The leader sends entries while it writes them itself, and batch N + 1 may be taken while batch N is being synced
//! (the `raft` crate's asynchronous ready); answers of followers wait for their own sync.
//!
//! Invariants owned here: outputs come in the order in which they must be carried out; a message that tells a peer of
//! something persistent comes only after [`Input::Persisted`]; a lease is shown only while no other leader can exist;
//! nothing that a peer sends makes it panic.
//!
//! Not here: files, threads, what entries mean.

mod inputs;
mod judging;
mod ready;
pub(crate) mod sleeping;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use cairn_types::{NodeId, Time, Understanding};
use raft::eraftpb::{Entry, Message, MessageType};
use raft::{RawNode, StateRole};

use crate::core::sleeping::Sleep;
use crate::fresh::Freshness;
use crate::lease::{Echoes, Promise};
use crate::log_store::LogStore;
use crate::marks::{Gate, Mark, Marks, Shut, Votes};
use crate::translate::{entry_in, entry_out};
use crate::{
    CoreConfig, HardState, Input, LogEntry, Members, NotLeader, Output, Position, Refused, Restored, RoleChange,
};

/// What is being made durable.
struct Outstanding {
    number: u64,
    /// Sent when it is.
    messages: Vec<Message>,
    /// Index of a snapshot that takes effect then.
    snapshot: Option<u64>,
    /// How far this member has got then.
    mark: Mark,
}

/// A snapshot that a leader offered and that is being fetched.
struct Offered {
    at: Position,
    message: Message,
}

/// One member of one group.
pub struct GroupCore {
    config: CoreConfig,
    node: RawNode<LogStore>,
    hard: HardState,
    hard_put_out: HardState,
    outstanding: VecDeque<Outstanding>,
    applied: Position,
    /// Index of the last change of members that this process applied (at its start: of the last applied entry).
    members_at: u64,
    /// Index of an entry that this leader proposed after it had applied the last change of members, or proposes next.
    /// Whoever has that entry durably has written down with it that the change is committed.
    told_at: u64,
    /// Commit index that went to the others with the newest entries, or alone.
    told_commit: u64,
    promise: Promise,
    echoes: Echoes,
    fresh: Freshness,
    /// Feature levels in the newest answers of members since this one leads.
    levels: BTreeMap<u64, u32>,
    /// No votes before this: promises of an earlier process life may still hold.
    quiet_until: Time,
    /// How far this member got, durably.
    mark: Mark,
    /// How far the others did, as they or their leader said.
    marks: Marks,
    gate: Gate,
    votes: Votes,
    offered: Option<Offered>,
    role: RoleChange,
    /// Leadership was to be handed over in this term, so leases are over.
    handed_over: bool,
    elections: u64,
    timeout: (u64, usize),
    snapshot_ages: BTreeMap<u64, u32>,
    snapshot_bytes: u64,
    refused: u64,
    sleep: Sleep,
}

/// A member's state, for people and metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CoreStatus {
    /// Term.
    pub term: u64,
    /// Whether this member leads.
    pub is_leader: bool,
    /// Who leads, if known.
    pub leader: Option<NodeId>,
    /// Highest committed index.
    pub commit: u64,
    /// Last applied entry.
    pub applied: Position,
    /// Last entry in the log.
    pub last: u64,
    /// Bytes of entries in memory, roughly.
    pub log_bytes: u64,
    /// Members after the last applied entry.
    pub members: Members,
    /// With the term, names these members: no later members of this group have the same pair.
    pub members_at: u64,
    /// A change of members is in the log or not finished yet. At a leader it is finished only when a majority of the
    /// voters that it left, and all of them that are there, know durably that it is committed: they must need nobody's
    /// vote or answer who was removed, for that one's state may be gone from then on.
    pub changing: bool,
    /// Per member, the entries that the leader knows it has; empty elsewhere.
    pub matched: Vec<(NodeId, u64)>,
    /// What the members understand; empty elsewhere than at the leader.
    pub understanding: Understanding,
    /// Messages refused.
    pub refused: u64,
    /// How far this member got, durably.
    pub mark: Mark,
    /// How far all members did, as far as this one knows.
    pub marks: Vec<(NodeId, Mark)>,
    /// Why this member neither votes nor leads, if so.
    pub shut: Option<Shut>,
    /// A person accepted that it has forgotten something, and it has not got it again; or it leads by votes of such
    /// members.
    pub forgot: bool,
}

fn node_id(id: u64) -> Option<NodeId> {
    u32::try_from(id).ok().filter(|&id| id != 0).map(NodeId)
}

impl GroupCore {
    /// Starts a member from what the disk has. The host must have found it consistent.
    ///
    /// # Panics
    /// When entries do not follow the base, or something was applied that is not there.
    pub fn new(config: CoreConfig, restored: Restored, now: Time) -> Self {
        let Restored { hard, base, members, applied, entries, snapshot, fresh, marks, forgot } = restored;
        let entries: Vec<Entry> = entries
            .into_iter()
            .map(|entry| entry_in(entry).expect("the host verified entries when it read them"))
            .collect();
        let last = entries.last().map_or(base.index, |entry| entry.index);
        let last_term = entries.last().map_or(base.term, |entry| entry.term);
        assert!((base.index..=last).contains(&applied.index), "what was applied is in the log");
        let mut start = hard;
        if start.term < last_term {
            // An installed checkpoint was durable before its record in the log: no vote was given in its term.
            start = HardState { term: last_term, vote: 0, commit: start.commit };
        }
        start.commit = start.commit.max(applied.index).min(last);
        let conf = members.to_conf();
        let snapshot_bytes = snapshot.as_ref().map_or(0, |meta| meta.bytes);
        let store = LogStore::new(base, entries, start, conf, snapshot);
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        let node = RawNode::new(&raft_config(&config, applied.index), store, &logger)
            .expect("the configuration is sound and the storage in memory does not fail");
        let quiet_until = if fresh { now } else { now + config.promise() };
        let own = marks.get(&config.node).copied().unwrap_or_default();
        let others = marks.into_iter().filter(|(node, _)| *node != config.node);
        let mark = Mark::of(&start, Position { index: last, term: last_term });
        let gate = Gate::new(fresh, config.witness_ticks, own, mark, forgot);
        let mut core = Self {
            mark,
            marks: others.map(|(node, mark)| (u64::from(node.0), mark)).collect(),
            gate,
            votes: Votes::default(),
            config,
            node,
            hard: start,
            hard_put_out: hard,
            outstanding: VecDeque::new(),
            applied,
            members_at: applied.index,
            told_at: 0,
            told_commit: 0,
            promise: Promise::default(),
            echoes: Echoes::default(),
            fresh: Freshness::default(),
            levels: BTreeMap::new(),
            quiet_until,
            offered: None,
            role: RoleChange::Follower { term: start.term, leader: None },
            handed_over: false,
            elections: 0,
            timeout: (0, 0),
            snapshot_ages: BTreeMap::new(),
            snapshot_bytes,
            refused: 0,
            sleep: Sleep::default(),
        };
        core.fix_timeout();
        core
    }

    /// What somebody wants of this member: it is no time to sleep.
    fn is_wish(input: &Input) -> bool {
        match input {
            Input::Message(_)
            | Input::Tick
            | Input::Persisted(_)
            | Input::Checkpointed(_)
            | Input::SnapshotFailed(_)
            | Input::EntryWanted
            | Input::LeaderLost(_)
            | Input::TellCommit
            | Input::Wake => false,
            Input::Campaign
            | Input::ChangeMembers(_)
            | Input::TransferLeader(_)
            | Input::SnapshotFetched(_)
            | Input::Witnessed(_)
            | Input::AcceptLoss
            | Input::Recalled(_)
            | Input::RaiseTerm(_) => true,
        }
    }

    /// Takes an input at a time (never earlier than before) and appends what is to be done.
    pub fn step(&mut self, now: Time, input: Input, out: &mut Vec<Output>) -> Result<(), Refused> {
        if Self::is_wish(&input) {
            self.wake_all(out);
        }
        let result = match input {
            Input::Message(message) => self.message(now, message, out),
            Input::ChangeMembers(changes) => self.change_members(&changes),
            Input::TransferLeader(to) => self.transfer_leader(to),
            other => {
                self.hear(now, other, out);
                Ok(())
            }
        };
        if result.is_err() {
            self.refused += 1;
        }
        self.ask_for_marks(false, out);
        self.drain(now, out);
        result
    }

    /// Inputs that are never refused.
    fn hear(&mut self, now: Time, input: Input, out: &mut Vec<Output>) {
        match input {
            Input::Message(_) | Input::ChangeMembers(_) | Input::TransferLeader(_) => unreachable!("taken before"),
            Input::Tick => {
                if !self.is_asleep() {
                    self.tick(now);
                    self.grow_tired(now, out);
                    self.ask_for_marks(true, out);
                }
            }
            Input::Wake => self.wake_all(out),
            Input::LeaderLost(term) => self.leader_lost(term, out),
            Input::EntryWanted => self.want_entry(out),
            Input::TellCommit => self.tell_commit(),
            Input::Persisted(number) => self.persisted(now, number, out),
            Input::Campaign => self.campaign(),
            Input::Checkpointed(meta) => self.checkpointed(meta),
            Input::SnapshotFetched(at) => self.snapshot_fetched(at),
            Input::SnapshotFailed(at) => drop(self.offered.take_if(|offered| offered.at == at)),
            Input::Witnessed(testimony) => {
                self.gate.witnessed(testimony);
                self.look_at_gate();
            }
            Input::AcceptLoss => self.accept_loss(),
            Input::Recalled(term) => self.recalled(term),
            Input::RaiseTerm(term) => {
                self.raise_term(term);
                self.look_at_gate();
            }
        }
    }

    /// Proposes one entry; gives where it will stand if it is committed at all.
    pub fn propose(&mut self, now: Time, data: Bytes, out: &mut Vec<Output>) -> Result<Position, Refused> {
        if !self.is_leader() {
            return Err(NotLeader { hint: self.leader() }.into());
        }
        let waiting = self.node.raft.uncommitted_size() as u64;
        if waiting > 0 && waiting + data.len() as u64 > self.config.uncommitted_bytes_max {
            return Err(Refused::Full);
        }
        self.wake();
        self.propose_entry(Entry { data, ..Entry::default() })?;
        let at = Position { index: self.node.raft.raft_log.last_index(), term: self.node.raft.term };
        self.drain(now, out);
        Ok(at)
    }

    fn propose_entry(&mut self, entry: Entry) -> Result<(), NotLeader> {
        let mut message = Message::default();
        message.set_msg_type(MessageType::MsgPropose);
        message.from = self.node.raft.id;
        message.set_entries(vec![entry].into());
        let hint = self.node.raft.lead_transferee.and_then(node_id);
        self.node.raft.step(message).map_err(|_| NotLeader { hint })?;
        self.told_commit = self.node.raft.raft_log.committed;
        Ok(())
    }

    /// Whether something is committed of which this leader has told nobody. It is told with the next entries, with
    /// [`Input::TellCommit`], or with a tick: a message of its own for each commit would cost as much as the entry.
    pub fn has_commit_to_tell(&self) -> bool {
        self.is_leader() && self.node.raft.raft_log.committed > self.told_commit
    }

    fn tell_commit(&mut self) {
        if self.has_commit_to_tell() {
            self.told_commit = self.node.raft.raft_log.committed;
            self.node.raft.bcast_append();
        }
    }

    /// Whether this member leads (it may not have applied all that was acknowledged before; see
    /// [`RoleChange::Leader`]).
    pub fn is_leader(&self) -> bool {
        self.node.raft.state == StateRole::Leader
    }

    /// Who leads, as far as known.
    pub fn leader(&self) -> Option<NodeId> {
        node_id(self.node.raft.leader_id)
    }

    /// The term.
    pub fn term(&self) -> u64 {
        self.node.raft.term
    }

    /// How far this member got, durably.
    pub fn mark(&self) -> Mark {
        self.mark
    }

    /// A person accepted that this member has forgotten something, and it has not got it again. The host keeps that
    /// beside the log, for the next start.
    pub fn has_forgotten(&self) -> bool {
        self.gate.forgot()
    }

    /// Last entry handed out for applying.
    pub fn applied(&self) -> Position {
        self.applied
    }

    /// Members after that entry.
    pub fn members(&self) -> Members {
        Members::from_conf(self.node.store().conf())
    }

    /// Writes put out and not confirmed yet.
    pub fn persisting(&self) -> usize {
        self.outstanding.len()
    }

    /// Until when reads may be served from this member's state without asking anybody. The host publishes it before
    /// it carries out the outputs of the same step.
    pub fn lease_until(&self) -> Option<Time> {
        let raft = &self.node.raft;
        if !self.is_leader() || self.handed_over || self.applied.term != raft.term {
            return None;
        }
        let conf = self.node.store().conf();
        let lease = self.config.lease();
        let until = self.echoes.until(raft.id, &conf.voters, lease)?;
        if conf.voters_outgoing.is_empty() {
            return Some(until);
        }
        Some(until.min(self.echoes.until(raft.id, &conf.voters_outgoing, lease)?))
    }

    /// As of when this member's state, with all outputs so far carried out, has everything that was acknowledged by
    /// anybody; `None`: not known since the start.
    pub fn fresh_as_of(&mut self, now: Time) -> Option<Time> {
        if self.lease_until().is_some_and(|until| now < until) {
            self.fresh.leads(now);
        }
        self.fresh.as_of(self.applied.index)
    }

    /// A picture of the state.
    pub fn status(&self) -> CoreStatus {
        let raft = &self.node.raft;
        let mut matched: Vec<(NodeId, u64)> = Vec::new();
        if self.is_leader() {
            matched.extend(raft.prs().iter().filter_map(|(&id, pr)| Some((node_id(id)?, pr.matched))));
            matched.sort_unstable();
        }
        CoreStatus {
            term: raft.term,
            is_leader: self.is_leader(),
            leader: self.leader(),
            commit: raft.raft_log.committed,
            applied: self.applied,
            last: raft.raft_log.last_index(),
            log_bytes: self.node.store().bytes(),
            members: self.members(),
            members_at: self.members_at,
            changing: raft.has_pending_conf() || self.members().joint || self.is_telling(),
            matched,
            understanding: self.understanding(),
            refused: self.refused,
            mark: self.mark,
            marks: self.known_marks().filter_map(|(id, mark)| Some((node_id(id)?, mark))).collect(),
            shut: self.shut(),
            forgot: self.forgot(),
        }
    }

    /// This member leads, and not enough members are known to know of the last change of them for good.
    fn is_telling(&self) -> bool {
        let raft = &self.node.raft;
        let voters = &self.node.store().conf().voters;
        let lacks_it = |node: &NodeId| {
            let id = u64::from(node.0);
            voters.contains(&id) && raft.prs().get(id).is_some_and(|progress| progress.matched < self.told_at)
        };
        self.is_leader() && (raft.raft_log.committed < self.told_at || self.listeners().iter().any(lacks_it))
    }

    /// What the members understand, as they answered since this one leads.
    pub fn understanding(&self) -> Understanding {
        if !self.is_leader() {
            return Understanding::default();
        }
        let raft = &self.node.raft;
        let others = raft.prs().iter().filter(|(id, _)| **id != raft.id);
        let heard = others.filter_map(|(id, _)| Some((node_id(*id)?, self.levels.get(id).copied())));
        Understanding::of(self.config.node, self.config.feature_level, heard)
    }

    /// All entries behind an index, if they are still in memory: for writing them to the log once more, so that old
    /// segments can go.
    pub fn entries_after(&self, index: u64) -> Option<Vec<LogEntry>> {
        self.node.store().after(index).map(|entries| entries.map(entry_out).collect())
    }

    /// Bytes of entries in memory, roughly.
    pub fn log_bytes(&self) -> u64 {
        self.node.store().bytes()
    }

    /// Fails when something that must always hold does not.
    ///
    /// # Panics
    /// Then.
    pub fn check_invariants(&self) {
        let log = &self.node.raft.raft_log;
        let store = self.node.store();
        store.check_invariants();
        assert!(log.applied <= log.committed && log.committed <= log.last_index(), "{}", log.to_string());
        assert!(store.base().index <= self.applied.index, "entries to be applied are kept");
        assert!(store.checkpoint().is_none_or(|meta| meta.at.index >= store.base().index));
        assert!(self.outstanding.iter().map(|o| o.number).is_sorted_by(|a, b| a < b));
        assert!(self.hard.term == self.node.raft.term && self.hard.vote == self.node.raft.vote);
        assert!(self.lease_until().is_none() || (self.is_leader() && !self.handed_over));
    }
}

fn raft_config(config: &CoreConfig, applied: u64) -> raft::Config {
    raft::Config {
        id: u64::from(config.node.0),
        election_tick: config.election_ticks,
        heartbeat_tick: config.heartbeat_ticks,
        applied,
        max_size_per_msg: config.message_bytes_max,
        max_inflight_msgs: config.inflight_max,
        check_quorum: true,
        skip_bcast_commit: true,
        pre_vote: true,
        max_uncommitted_size: config.uncommitted_bytes_max.max(config.message_bytes_max),
        max_committed_size_per_ready: 16 << 20,
        ..raft::Config::default()
    }
}
