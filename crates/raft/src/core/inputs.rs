//! What each input does to the core, before outputs are drawn ([`super::ready`]).

use bytes::Bytes;
use cairn_types::{NodeId, Time};
use cairn_wire::raft::RaftMessage;
use protobuf::Message as _;
use raft::eraftpb::{Entry, EntryType, Message, MessageType};
use raft::{ProgressState, SnapshotStatus, StateRole};

use super::sleeping::WAKE;
use super::{GroupCore, Offered};
use crate::marks::{ASK, TELL};
use crate::members::{encode_changes, to_conf_change};
use crate::translate::{TRANSFER, message_in, snapshot_in};
use crate::validate::{Own, check};
use crate::{MemberChange, NotLeader, Output, Position, Refused, SnapshotMeta};

/// A member begins with so many entries.
const BEGINNING: u64 = 1;

impl GroupCore {
    fn own(&self) -> Own {
        let raft = &self.node.raft;
        Own {
            id: raft.id,
            term: raft.term,
            leader: raft.leader_id,
            last: raft.raft_log.last_index(),
            is_leader: self.is_leader(),
            persisting: !self.outstanding.is_empty(),
        }
    }

    pub(super) fn message(&mut self, now: Time, wire: RaftMessage, out: &mut Vec<Output>) -> Result<(), Refused> {
        if wire.group != self.config.group.0 {
            return Err(Refused::Message("it is for another group"));
        }
        self.wake_by(&wire);
        self.note_marks(&wire);
        if wire.kind == WAKE {
            self.asked_to_wake(&wire, out);
            return Ok(());
        }
        let (forgot, sleep, commit) = (wire.forgot, wire.sleep, wire.commit);
        if matches!(wire.kind, ASK | TELL) {
            return self.about_marks(&wire, out);
        }
        let stamp = wire.lease_stamp;
        let (member_stamp, acknowledged, feature_level) = (wire.member_stamp, wire.acknowledged, wire.feature_level);
        let bytes = wire.snapshot.as_ref().map_or(0, |meta| meta.bytes);
        let meta = wire.snapshot.as_ref().and_then(snapshot_in);
        let mut message = message_in(wire).ok_or(Refused::Message("it has a kind or entry that is unknown"))?;
        check(&mut message, &self.own()).map_err(Refused::Message)?;
        let (kind, from, term) = (message.get_msg_type(), message.from, message.term);
        match kind {
            MessageType::MsgRequestVote | MessageType::MsgRequestPreVote => {
                let forced = message.context == TRANSFER;
                let silent = now < self.quiet_until || self.promise.forbids(from, now);
                // A member that waits to be filled does not know of which group it is, or was.
                let blank = self.node.store().conf().voters.is_empty();
                if blank || (silent && !forced) || !self.may_elect(&message) {
                    return Ok(());
                }
            }
            MessageType::MsgTimeoutNow if self.shut().is_some() => {
                return Err(Refused::Message("this member does not stand for election now"));
            }
            MessageType::MsgRequestVoteResponse if !forgot => self.note_vote(&message),
            MessageType::MsgAppendResponse | MessageType::MsgHeartbeatResponse => {
                self.echoes.note(from, term, stamp, now);
                if term == self.node.raft.term && self.node.raft.prs().get(from).is_some() {
                    self.fresh.note(from, term, member_stamp);
                    self.levels.insert(from, feature_level);
                    self.answered(&message, sleep, stamp);
                }
            }
            MessageType::MsgSnapshot => {
                if let Some(meta) = meta
                    && self.must_fetch(&message)
                {
                    self.heard(now, &message, stamp);
                    self.offer(message, SnapshotMeta { bytes, ..meta }, out);
                    return Ok(());
                }
            }
            _ => {}
        }
        let leads = matches!(kind, MessageType::MsgAppend | MessageType::MsgHeartbeat | MessageType::MsgSnapshot);
        // Refusals of the raft crate (an answer of a stranger) have no effect.
        let _ = self.node.step(message);
        if leads {
            self.promised(now, from, term, stamp);
            let follows = self.node.raft.term == term && self.node.raft.leader_id == from && !self.is_leader();
            if follows {
                self.recall_from_leader(forgot);
            }
            if let Some(index) = acknowledged.checked_sub(1).filter(|_| follows) {
                self.fresh.told(index, member_stamp, now, self.applied.index);
            }
            if follows && sleep {
                self.fall_asleep(commit);
            }
        }
        Ok(())
    }

    /// A member answered in this leader's term.
    fn answered(&mut self, message: &Message, sleep: bool, stamp: u64) {
        let from = message.from;
        self.note_answer(from);
        if sleep {
            self.note_sleeper(from, stamp);
        }
        if message.get_msg_type() == MessageType::MsgHeartbeatResponse && message.commit <= BEGINNING {
            self.fill_anew(from, message.commit);
        }
    }

    /// A member that knows of no committed entry may have none, whatever it acknowledged before it lost its directory:
    /// it is asked anew what it has. The raft crate would go by what it acknowledged, and never send it that again.
    fn fill_anew(&mut self, member: u64, commit: u64) {
        let progress = self.node.raft.mut_prs().get_mut(member);
        if let Some(progress) = progress.filter(|progress| progress.matched > BEGINNING) {
            progress.matched = commit;
            progress.become_probe();
        }
    }

    /// If the sender is this term's leader, this member has just promised it something. Whoever did not vote in the
    /// term gives the leader its vote: it has won already, and a member that left the group, forgot its votes and
    /// joined again can so never help another candidate of the same term.
    fn promised(&mut self, now: Time, from: u64, term: u64, stamp: u64) {
        let raft = &mut self.node.raft;
        if raft.term == term && raft.leader_id == from && raft.state == StateRole::Follower {
            if raft.vote == raft::INVALID_ID {
                raft.vote = from;
            }
            self.promise.renew(from, term, stamp, now + self.config.promise());
        }
    }

    /// A snapshot's offer shows that its sender leads, before the snapshot itself takes effect: to the raft crate it
    /// is a heartbeat that commits nothing.
    fn heard(&mut self, now: Time, message: &Message, stamp: u64) {
        let mut beat = Message::default();
        beat.set_msg_type(MessageType::MsgHeartbeat);
        beat.to = message.to;
        beat.from = message.from;
        beat.term = message.term;
        let _ = self.node.step(beat);
        self.promised(now, message.from, message.term, stamp);
    }

    /// Whether the snapshot brings something that the log lacks.
    fn must_fetch(&self, message: &Message) -> bool {
        let raft = &self.node.raft;
        let meta = message.get_snapshot().get_metadata();
        let log = &raft.raft_log;
        message.term >= raft.term
            && raft.state != StateRole::Leader
            && meta.index > log.committed
            && !log.match_term(meta.index, meta.term)
    }

    fn offer(&mut self, message: Message, meta: SnapshotMeta, out: &mut Vec<Output>) {
        if let Some(offered) = &mut self.offered {
            // One at a time; a newer offer of the same one brings the newer term.
            if offered.at == meta.at {
                offered.message = message;
            }
            return;
        }
        let Some(from) = super::node_id(message.from) else { return };
        self.offered = Some(Offered { at: meta.at, message });
        self.snapshot_bytes = meta.bytes;
        out.push(Output::FetchSnapshot { from, meta });
    }

    pub(super) fn snapshot_fetched(&mut self, at: Position) {
        let Some(offered) = self.offered.take_if(|offered| offered.at == at) else { return };
        let raft = &self.node.raft;
        if raft.state != StateRole::Follower {
            // The leader, whoever it is then, offers one again.
            return;
        }
        let mut message = offered.message;
        // What it holds is committed, whatever term it is now; the answer goes to who leads now.
        message.term = raft.term;
        if raft.leader_id != 0 {
            message.from = raft.leader_id;
        }
        let _ = self.node.step(message);
    }

    pub(super) fn tick(&mut self, now: Time) {
        if !self.is_leader() && !self.outstanding.is_empty() {
            // A member whose disk hangs does not stand for election (and the raft crate relies on it).
            return;
        }
        if self.shut().is_some() {
            if self.is_leader() {
                let term = self.node.raft.term;
                self.node.raft.become_follower(term, raft::INVALID_ID);
            }
            return;
        }
        if !self.is_leader() && self.would_stand() && (now < self.quiet_until || now < self.promise.until) {
            // It has promised a leader to elect nobody before, itself neither, however quickly its ticks came.
            return;
        }
        let before = self.node.raft.state;
        self.node.tick();
        if self.node.raft.state != before || before == StateRole::PreCandidate {
            self.elections += 1;
        }
        if self.is_leader() {
            self.tick_leader();
        }
    }

    /// With one tick more it stands for election.
    fn would_stand(&self) -> bool {
        let raft = &self.node.raft;
        raft.election_elapsed + 1 >= raft.randomized_election_timeout()
    }

    fn tick_leader(&mut self) {
        if self.handed_over && self.node.raft.lead_transferee.is_none() {
            // The member that was to take over may still do so at any time, so reads cannot be served any more.
            let term = self.node.raft.term;
            self.node.raft.become_follower(term, raft::INVALID_ID);
            return;
        }
        let joint = !self.node.store().conf().voters_outgoing.is_empty();
        if joint && !self.node.raft.has_pending_conf() {
            let mut leave = Entry::default();
            leave.set_entry_type(EntryType::EntryConfChangeV2);
            // Tried again with the next tick.
            let _ = self.propose_entry(leave);
        }
        self.tell_members();
        self.tell_commit();
        let in_snapshot: Vec<u64> = self
            .node
            .raft
            .prs()
            .iter()
            .filter(|(_, progress)| progress.state == ProgressState::Snapshot)
            .map(|(&id, _)| id)
            .collect();
        self.snapshot_ages.retain(|id, _| in_snapshot.contains(id));
        for id in in_snapshot {
            let age = self.snapshot_ages.entry(id).or_default();
            *age += 1;
            if *age >= self.config.snapshot_retry_ticks {
                self.snapshot_ages.remove(&id);
                self.node.report_snapshot(id, SnapshotStatus::Failure);
            }
        }
    }

    pub(super) fn campaign(&mut self) {
        if !self.is_leader() && self.outstanding.is_empty() && self.node.raft.promotable() && self.shut().is_none() {
            self.elections += 1;
            // Refused while a change of members waits to be applied; the timer tries again.
            let _ = self.node.campaign();
        }
    }

    pub(super) fn change_members(&mut self, changes: &[MemberChange]) -> Result<(), Refused> {
        if !self.is_leader() {
            return Err(NotLeader { hint: self.leader() }.into());
        }
        let own = self.config.node;
        if changes.is_empty() || changes.len() > crate::members::MEMBERS_MAX {
            return Err(Refused::Change("there must be some changes, and not too many"));
        }
        if changes.iter().any(|c| matches!(c, MemberChange::Remove(n) | MemberChange::Learner(n) if *n == own)) {
            return Err(Refused::Change("the leader cannot remove itself; hand leadership over first"));
        }
        if self.node.raft.has_pending_conf() || self.members().joint {
            return Err(Refused::Change("another change is not finished"));
        }
        if changes.iter().any(|c| matches!(c, MemberChange::Voter(node) if !self.may_vote(*node))) {
            return Err(Refused::Change("a new voter has to be a learner that has caught up before"));
        }
        let mut entry = Entry::default();
        entry.set_entry_type(EntryType::EntryConfChangeV2);
        let data = to_conf_change(changes).write_to_bytes();
        entry.data = Bytes::from(data.expect("a message in memory always encodes"));
        entry.context = Bytes::from(encode_changes(changes));
        Ok(self.propose_entry(entry)?)
    }

    /// A member that would need a checkpoint first could leave the group without a majority for that long.
    fn may_vote(&self, node: NodeId) -> bool {
        let base = self.node.store().base().index;
        self.node.raft.prs().get(u64::from(node.0)).is_some_and(|progress| progress.matched >= base.max(1))
    }

    pub(super) fn transfer_leader(&mut self, to: NodeId) -> Result<(), Refused> {
        if !self.is_leader() {
            return Err(NotLeader { hint: self.leader() }.into());
        }
        if to == self.config.node {
            return Ok(());
        }
        if !self.members().voters.contains(&to) {
            return Err(Refused::Change("leadership goes to a voting member only"));
        }
        self.handed_over = true;
        self.node.transfer_leader(u64::from(to.0));
        Ok(())
    }

    pub(super) fn checkpointed(&mut self, meta: SnapshotMeta) {
        self.snapshot_bytes = meta.bytes;
        self.node.mut_store().set_checkpoint(meta);
        let (keep, applied) = (self.config.keep_bytes, self.applied.index);
        self.node.mut_store().trim(keep, applied);
    }
}
