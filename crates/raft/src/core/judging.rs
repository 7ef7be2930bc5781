//! Comparing a member that starts with what others know of it ([`crate::marks`]): questions, answers, consequences.

use cairn_wire::raft::{MemberMark, RaftMessage};
use raft::eraftpb::Message;

use super::{GroupCore, node_id};
use crate::marks::{ASK, Mark, Shut, TELL, Teller, note};
use crate::validate::{NUMBER_MAX, is_absurd};
use crate::{HardState, Output, Position, Refused};

/// Wire code of a leader's heartbeat.
const HEARTBEAT: u32 = 6;

impl GroupCore {
    /// The mark of what is in memory; it counts once that is durable.
    pub(super) fn mark_of_log(&self) -> Mark {
        let log = &self.node.raft.raft_log;
        let hard = HardState { term: self.hard.term, vote: self.hard.vote, commit: self.hard.commit };
        Mark::of(&hard, Position { index: log.last_index(), term: log.last_term() })
    }

    /// Why this member neither votes nor leads, if so.
    pub fn shut(&self) -> Option<Shut> {
        self.gate.shut(self.node.raft.raft_log.last_index())
    }

    /// This is durable.
    pub(super) fn attained(&mut self, mark: Mark) {
        self.mark = mark;
        self.gate.attained(mark, self.node.raft.raft_log.last_index());
    }

    /// Whether this member gives its vote to whoever deserves it.
    pub(super) fn may_elect(&self, candidate: &Message) -> bool {
        match self.shut() {
            None => true,
            Some(Shut::Older { .. }) => {
                let at = Position { index: candidate.index, term: candidate.log_term };
                let others = self.voters().filter(|id| ![self.node.raft.id, candidate.from].contains(id));
                let others = others.map(|id| (id, self.marks.get(&id).copied().unwrap_or_default()));
                self.gate.may_elect(at, candidate.term, self.node.raft.raft_log.last_index(), others)
            }
            Some(Shut::Checking | Shut::Left { .. }) => false,
        }
    }

    pub(super) fn known_marks(&self) -> impl Iterator<Item = (u64, Mark)> {
        let own = (self.node.raft.id, self.mark);
        std::iter::once(own).chain(self.marks.iter().map(|(&id, &mark)| (id, mark)))
    }

    /// What goes along with a message.
    pub(super) fn marks_for(&self, all: bool) -> Vec<MemberMark> {
        let count = if all { usize::MAX } else { 1 };
        self.known_marks().take(count).map(|(id, mark)| mark.wire(id)).collect()
    }

    /// A person accepts what this member has forgotten. Terms of the leaders that it has forgotten are not given again:
    /// others would take what comes under them for the word of those.
    pub(super) fn accept_loss(&mut self) {
        let shut = self.shut().is_some();
        self.gate.accept(shut);
        let others = self.marks.values().map(|mark| mark.term);
        let term = others.fold(self.gate.highest().term, u64::max);
        // Beyond all: a leader that is there believes that this member has what it acknowledged in its term; the next
        // one fills it.
        self.raise_term(term.saturating_add(1));
        self.look_at_gate();
    }

    /// Whether something that was acknowledged may be unknown here, as a person accepted.
    pub(super) fn forgot(&self) -> bool {
        if self.is_leader() { !self.votes.are_enough(self.node.raft.term) } else { self.gate.forgot() }
    }

    /// A leader looks who elected it.
    pub(super) fn look_at_votes(&mut self) {
        if !self.is_leader() {
            return;
        }
        let raft = &self.node.raft;
        if !self.votes.are_enough(raft.term) {
            let conf = self.node.store().conf();
            let own = (!self.gate.forgot()).then_some(raft.id);
            self.votes.settle(raft.term, own, [&conf.voters, &conf.voters_outgoing]);
        }
        // Then it has everything; durably, with an entry of its term behind it.
        if self.votes.are_enough(raft.term) && self.mark.has_entry_of(raft.term) {
            self.gate.recalled();
        }
    }

    /// A member that has forgotten nothing answered this candidate.
    pub(super) fn note_vote(&mut self, answer: &Message) {
        let raft = &self.node.raft;
        if !answer.reject && answer.term == raft.term && raft.prs().get(answer.from).is_some() {
            self.votes.note(answer.term, answer.from);
        }
    }

    /// A leader that has everything has given this member, durably, an entry of its term: so all that was acknowledged
    /// before.
    pub(super) fn recall_from_leader(&mut self, forgot: bool) {
        let term = self.node.raft.term;
        if !forgot && self.gate.forgot() && self.mark.has_entry_of(term) {
            self.gate.recalled();
        }
    }

    pub(super) fn recalled(&mut self, term: u64) {
        // Whoever leads by now asks for itself; this member too, if a person has accepted something since.
        if self.is_leader() && term == self.node.raft.term {
            self.gate.recalled();
            self.votes.recalled(term);
        }
    }

    /// Goes on in this term, with nobody who leads; never back.
    pub(super) fn raise_term(&mut self, term: u64) {
        if term > self.node.raft.term && term <= NUMBER_MAX {
            self.node.raft.become_follower(term, 0);
        }
    }

    fn voters(&self) -> impl Iterator<Item = u64> {
        let conf = self.node.store().conf();
        conf.voters.iter().chain(&conf.voters_outgoing).copied()
    }

    /// Whether it is a member by the last applied entry, voting or not. Before this member has any entry it knows none.
    pub fn has_member(&self, id: u64) -> bool {
        self.is_member(id)
    }

    /// Whether somebody who may be none of the group asks whether he is one, as one does that was put out meanwhile:
    /// nothing else in such a message counts.
    pub fn is_question(message: &RaftMessage) -> bool {
        message.kind == ASK
    }

    fn is_member(&self, id: u64) -> bool {
        let conf = self.node.store().conf();
        [&conf.voters, &conf.voters_outgoing, &conf.learners, &conf.learners_next].iter().any(|set| set.contains(&id))
    }

    /// Puts the question to the voters that have not answered.
    pub(super) fn ask_for_marks(&mut self, tick: bool, out: &mut Vec<Output>) {
        if self.gate.asks(tick) {
            let own = self.node.raft.id;
            let others: Vec<u64> = self.gate.unheard(self.voters()).filter(|id| *id != own).collect();
            out.extend(others.into_iter().map(|to| Output::Send(self.question(to, ASK))));
        }
        if tick {
            self.look_at_gate();
        }
    }

    pub(super) fn question(&self, to: u64, kind: u32) -> RaftMessage {
        let raft = &self.node.raft;
        RaftMessage {
            group: self.config.group.0,
            kind,
            to,
            from: raft.id,
            term: raft.term,
            marks: self.marks_for(kind == TELL),
            forgot: self.forgot(),
            feature_level: self.config.feature_level,
            ..RaftMessage::default()
        }
    }

    /// A question or an answer.
    pub(super) fn about_marks(&mut self, wire: &RaftMessage, out: &mut Vec<Output>) -> Result<(), Refused> {
        if wire.to != self.node.raft.id || wire.index > NUMBER_MAX {
            return Err(Refused::Message("it is for another member, or a number in it is absurd"));
        }
        let Some(from) = node_id(wire.from) else { return Err(Refused::Message("it comes from nobody")) };
        if wire.kind == ASK {
            let index = self.applied.index;
            // One that has no members yet does not know who is one.
            let reject = !self.is_member(wire.from) && !self.node.store().conf().voters.is_empty();
            out.push(Output::Send(RaftMessage { index, reject, ..self.question(wire.from, TELL) }));
            return Ok(());
        }
        let by = Teller::Member(from);
        if let Some(mark) = self.mark_of_own(wire) {
            self.gate.known(mark, by);
        }
        if wire.reject {
            self.gate.left(wire.index, by);
        }
        self.gate.heard(wire.from);
        self.look_at_gate();
        Ok(())
    }

    fn mark_of_own(&self, wire: &RaftMessage) -> Option<Mark> {
        let own = self.node.raft.id;
        self.sound_marks(wire).find(|(id, _)| *id == own).map(|(_, mark)| mark)
    }

    /// Without those that nobody can have: whoever believed them of itself would wait for ever to get so far.
    fn sound_marks(&self, wire: &RaftMessage) -> impl Iterator<Item = (u64, Mark)> {
        let term = self.node.raft.term;
        wire.marks.iter().filter_map(Mark::read).filter(move |(_, mark)| !is_absurd(mark.term, term))
    }

    /// What any message says of marks: its sender's own, and a leader's heartbeat those of all.
    pub(super) fn note_marks(&mut self, wire: &RaftMessage) {
        if wire.to != self.node.raft.id || !self.is_member(wire.from) {
            return;
        }
        if wire.marks.is_empty() {
            // A build from before there were marks.
            self.gate.heard(wire.from);
            return self.look_at_gate();
        }
        let leads = wire.kind == HEARTBEAT && wire.term >= self.node.raft.term;
        let marks: Vec<(u64, Mark)> = self.sound_marks(wire).collect();
        for (id, mark) in marks {
            if id == self.node.raft.id {
                if leads && let Some(from) = node_id(wire.from) {
                    self.gate.known(mark, Teller::Member(from));
                }
            } else if id == wire.from || (leads && self.is_member(id)) {
                note(&mut self.marks, id, mark);
            }
        }
    }

    /// Takes part in elections as soon as it may.
    pub(super) fn look_at_gate(&mut self) {
        let own = self.node.raft.id;
        let conf = self.node.store().conf();
        self.gate.settle(own, [&conf.voters, &conf.voters_outgoing]);
        let alone = conf.voters == [own] && conf.voters_outgoing.is_empty();
        if alone && self.leader().is_none() && self.shut().is_none() {
            self.campaign();
        }
    }
}
