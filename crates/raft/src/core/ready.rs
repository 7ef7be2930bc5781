//! Draws outputs from the `raft` crate after each input.

use cairn_types::Time;
use cairn_wire::raft::RaftMessage;
use raft::eraftpb::{ConfChangeV2, Entry, EntryType, Message, MessageType, Snapshot};

use super::{GroupCore, Outstanding};
use crate::members::{Members, decode_changes, to_conf_change};
use crate::translate::{Stamps, entry_out, message_out};
use crate::{HardState, Output, Position, RoleChange, SnapshotMeta};

impl GroupCore {
    pub(super) fn drain(&mut self, now: Time, out: &mut Vec<Output>) {
        self.fix_timeout();
        self.note_role(out);
        while self.node.has_ready() {
            self.one_ready(now, out);
            self.fix_timeout();
            self.note_role(out);
        }
        if self.node.store().take_wanted() {
            out.push(Output::CheckpointWanted);
        }
    }

    fn one_ready(&mut self, now: Time, out: &mut Vec<Output>) {
        let mut ready = self.node.ready();
        let number = ready.number();
        for message in ready.take_messages() {
            self.send(now, message, out);
        }
        let snapshot = (!ready.snapshot().is_empty()).then(|| ready.snapshot().clone());
        let restored = snapshot.map(|snapshot| self.install(&snapshot));
        if let Some(hard) = ready.hs() {
            self.hard = HardState { term: hard.term, vote: hard.vote, commit: hard.commit };
        }
        let entries = ready.take_entries();
        self.node.mut_store().append(&entries);
        let messages = ready.take_persisted_messages();
        let committed = ready.take_committed_entries();
        let persists = ready.must_sync() || !entries.is_empty();
        self.node.advance_append_async(ready);
        if persists {
            let changed = self.hard != self.hard_put_out;
            self.hard_put_out = self.hard;
            out.push(Output::Persist {
                number,
                reset: restored.as_ref().map(|meta| meta.at),
                hard: changed.then_some(self.hard),
                entries: entries.iter().map(entry_out).collect(),
            });
            let snapshot = restored.as_ref().map(|meta| meta.at.index);
            let mark = self.mark_of_log();
            self.outstanding.push_back(Outstanding { number, messages, snapshot, mark });
        } else if let Some(last) = self.outstanding.back_mut() {
            last.messages.extend(messages);
        } else {
            self.node.on_persist_ready(number);
            for message in messages {
                self.send(now, message, out);
            }
        }
        if let Some(meta) = restored {
            out.push(Output::MembersChanged(meta.members.clone()));
            out.push(Output::Restore(meta));
        }
        self.hand_out(committed, out);
    }

    /// The log starts anew behind a snapshot whose file is already here.
    fn install(&mut self, snapshot: &Snapshot) -> SnapshotMeta {
        let meta = snapshot.get_metadata();
        let at = Position { index: meta.index, term: meta.term };
        let members = Members::from_conf(meta.get_conf_state());
        let meta = SnapshotMeta { at, members: members.clone(), bytes: self.snapshot_bytes };
        self.applied = at;
        self.members_at = at.index;
        self.node.mut_store().reset(at, members.to_conf());
        self.node.mut_store().set_checkpoint(meta.clone());
        meta
    }

    fn hand_out(&mut self, committed: Vec<Entry>, out: &mut Vec<Output>) {
        let Some(last) = committed.last().map(|entry| entry.index) else { return };
        for entry in committed {
            let at = Position { index: entry.index, term: entry.term };
            self.applied = at;
            if entry.get_entry_type() == EntryType::EntryNormal {
                out.push(Output::Apply { at, data: entry.data });
            } else {
                out.push(Output::Apply { at, data: bytes::Bytes::new() });
                self.apply_members(&entry, out);
            }
        }
        self.node.advance_apply_to(last);
    }

    fn apply_members(&mut self, entry: &Entry, out: &mut Vec<Output>) {
        let changes = decode_changes(&entry.context).expect("entries with changes are verified when they come in");
        let change = if changes.is_empty() { ConfChangeV2::default() } else { to_conf_change(&changes) };
        // A change that makes no sense with the present members (the same everywhere) has no effect.
        let Ok(conf) = self.node.apply_conf_change(&change) else { return };
        self.node.mut_store().set_conf(conf);
        self.members_at = entry.index;
        let members = self.members();
        // Who joins again begins anew.
        self.marks.retain(|&id, _| super::node_id(id).is_some_and(|node| members.contains(node)));
        let raft = &mut self.node.raft;
        if raft.state == raft::StateRole::Leader && !members.voters.contains(&self.config.node) {
            let term = raft.term;
            raft.become_follower(term, raft::INVALID_ID);
        }
        self.told_at = self.node.raft.raft_log.last_index() + 1;
        self.tell_members();
        out.push(Output::MembersChanged(members));
    }

    /// Proposes an entry behind a change of members, if nobody else did. What is committed is written down only with
    /// the next entry or vote: in a group that rests, a member that starts again would not know of the change, and
    /// might wait for the vote of one that was removed, and whose state is gone.
    pub(super) fn tell_members(&mut self) {
        let is_told = self.node.raft.raft_log.last_index() >= self.told_at;
        if !self.is_leader() || is_told || self.members().joint {
            // A joint configuration is left by an entry of its own.
            return;
        }
        // Tried again with the next tick.
        let _ = self.propose_entry(Entry::default());
    }

    pub(super) fn persisted(&mut self, now: Time, number: u64, out: &mut Vec<Output>) {
        while let Some(first) = self.outstanding.front() {
            if first.number > number {
                break;
            }
            let Some(done) = self.outstanding.pop_front() else { break };
            self.node.on_persist_ready(done.number);
            self.attained(self.mark.max(done.mark));
            if let Some(index) = done.snapshot
                && index > self.node.raft.raft_log.applied
            {
                self.node.advance_apply_to(index);
            }
            for message in done.messages {
                self.send(now, message, out);
            }
        }
    }

    fn send(&mut self, now: Time, message: Message, out: &mut Vec<Output>) {
        let stamps = match message.get_msg_type() {
            MessageType::MsgAppend | MessageType::MsgHeartbeat => {
                let member = self.fresh.stamp_of(message.to, message.term);
                let acknowledged = if member == 0 { 0 } else { self.acknowledged(now) };
                Stamps { lease: now.0, member, acknowledged, ..Stamps::default() }
            }
            MessageType::MsgSnapshot => Stamps { lease: now.0, ..Stamps::default() },
            MessageType::MsgAppendResponse | MessageType::MsgHeartbeatResponse => {
                let lease = self.promise.echo(message.to, message.term);
                Stamps { lease, member: now.0, ..Stamps::default() }
            }
            MessageType::MsgTimeoutNow => {
                self.handed_over = true;
                Stamps::default()
            }
            _ => Stamps::default(),
        };
        let stamps = Stamps { feature_level: self.config.feature_level, ..stamps };
        let all = message.get_msg_type() == MessageType::MsgHeartbeat;
        let answer = message.get_msg_type() == MessageType::MsgHeartbeatResponse;
        let sleep = (all || answer) && self.says_sleep(answer);
        if let Some(wire) = message_out(self.config.group, message, stamps, self.snapshot_bytes) {
            let marks = self.marks_for(all);
            out.push(Output::Send(RaftMessage { marks, forgot: self.forgot(), sleep, ..wire }));
        }
    }

    /// The index and 1 beyond which nobody has acknowledged anything at this moment; 0 if that is not known.
    fn acknowledged(&self, now: Time) -> u64 {
        let holds = self.lease_until().is_some_and(|until| now < until);
        if holds { self.node.raft.raft_log.committed + 1 } else { 0 }
    }

    /// Says what changed in this member's part.
    fn note_role(&mut self, out: &mut Vec<Output>) {
        self.look_at_votes();
        let term = self.node.raft.term;
        let role = if !self.is_leader() {
            RoleChange::Follower { term, leader: self.leader() }
        } else if self.applied.term == term {
            RoleChange::Leader { term }
        } else {
            RoleChange::Elected { term }
        };
        if role == self.role {
            return;
        }
        let led = matches!(self.role, RoleChange::Elected { term: t } | RoleChange::Leader { term: t } if t == term);
        if self.is_leader() && !led {
            self.handed_over = false;
            // The entry with which it begins, behind all changes that it has applied.
            self.told_at = self.node.raft.raft_log.last_index();
            self.echoes.begin(term);
            self.fresh.begin(term);
            self.levels.clear();
            self.snapshot_ages.clear();
        }
        self.forget_sleep();
        self.role = role;
        out.push(Output::Role(role));
    }

    /// The `raft` crate draws election timeouts from the system's randomness; ours follow from the seed.
    pub(super) fn fix_timeout(&mut self) {
        let raft = &self.node.raft;
        let key = mix(self.config.seed ^ mix(raft.term) ^ mix(self.elections << 8 | raft.state as u64));
        if self.timeout == (key, raft.randomized_election_timeout()) {
            return;
        }
        let base = self.config.election_ticks;
        let timeout = base + usize::try_from(key % base as u64).expect("smaller than a number of ticks");
        self.node.raft.set_randomized_election_timeout(timeout);
        self.timeout = (key, timeout);
    }
}

/// The finaliser of SplitMix64 (Steele et al., OOPSLA 2014).
fn mix(x: u64) -> u64 {
    let mut z = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
