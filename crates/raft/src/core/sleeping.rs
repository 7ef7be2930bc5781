//! An idle group sleeps: its members count no ticks, and its leader sends nothing, until somebody wakes it.
//!
//! A leader for whom nothing is to do for [`sleep_ticks`](crate::CoreConfig::sleep_ticks) marks its heartbeats. A
//! follower that has everything, applied, falls asleep with such a heartbeat and says so in its answer. When all
//! members have said it, the leader sleeps too; it does not wait for those that it has not heard for as long. Whatever
//! else comes wakes a member: a message, a proposal, a wish.
//!
//! Invariant: **nothing that is safe depends on who sleeps.** Ticks only begin things: heartbeats, elections. A member
//! that sleeps votes, promises and answers by the same rules; a leader that sleeps renews no lease, so the last one
//! ends by itself, and a read needs a round of heartbeats first. What sleep could break is that somebody notices when a
//! leader is gone:
//!
//! | danger | answer |
//! |---|---|
//! | the leader's node dies, or starts anew | the followers' hosts hear from that node as a whole ([`Slumber`] says whom they listen for), and say [`Input::LeaderLost`](crate::Input::LeaderLost) |
//! | the leader does not sleep, or leads no more, and its messages were lost | nodes say which groups they lead that sleep; those that are not named are woken |
//! | a follower is awake and its leader sleeps | after half the shortest election timeout without a word it wakes the leader |
//! | a member that was away comes back | it asks what is known of it, or for votes; one that slept is not among [those](GroupCore::listeners) who are named, and so is woken |
//! | an answer of before is taken for one of now | only answers that echo a stamp of since the leader became drowsy count |
//! | a member is of a build from before | its leader stays awake, by its feature level |
//!
//! Not here: hearing from nodes, and carrying ticks out (raft-host).

use std::collections::{BTreeMap, BTreeSet};

use cairn_types::{NodeId, Time};
use cairn_wire::raft::RaftMessage;
use raft::{ProgressState, StateRole};

use super::{GroupCore, node_id};
use crate::Output;

/// Wire code of the message by which a follower wakes its leader.
pub(super) const WAKE: u32 = 13;
/// Wire code of the answer to a heartbeat.
const HEARTBEAT_RESPONSE: u32 = 7;
/// Feature level from which on members know how to sleep.
const SLEEP_LEVEL: u32 = 6;

/// What a member that sleeps relies on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Slumber {
    /// It leads in this term, and its followers sleep, or are about to: they listen for this node.
    Leads {
        /// The term.
        term: u64,
    },
    /// It listens for the node of this leader.
    Follows {
        /// Who leads.
        leader: NodeId,
        /// In which term.
        term: u64,
    },
}

#[derive(Debug, Default)]
enum Phase {
    #[default]
    Awake,
    /// A leader that asks its followers to sleep, since when, and who does.
    Drowsy { since: Time, asleep: BTreeSet<u64> },
    /// A leader.
    Leads,
    /// A follower, under this leader in this term.
    Follows { leader: u64, term: u64 },
}

/// Whether a member sleeps.
#[derive(Debug, Default)]
pub(super) struct Sleep {
    phase: Phase,
    /// Ticks for which it had nothing to do.
    idle: u32,
    /// A term in which this follower slept: its leader knows how to be woken.
    slept_in: u64,
    /// It has tried to wake its leader since it last heard from it.
    asked: bool,
    /// Ticks since a leader heard these members.
    silent: BTreeMap<u64, u32>,
}

impl Sleep {
    /// Whether a leader waits for a member no more.
    fn is_away(&self, member: u64, patience: u32) -> bool {
        self.silent.get(&member).is_some_and(|ticks| *ticks >= patience)
    }
}

impl GroupCore {
    /// What this member relies on, if it sleeps or is about to.
    pub fn slumber(&self) -> Option<Slumber> {
        let raft = &self.node.raft;
        match self.sleep.phase {
            Phase::Awake => None,
            Phase::Drowsy { .. } | Phase::Leads => self.is_leader().then_some(Slumber::Leads { term: raft.term }),
            Phase::Follows { leader, term } => {
                let still = (raft.state, raft.leader_id, raft.term) == (StateRole::Follower, leader, term);
                node_id(leader).filter(|_| still).map(|leader| Slumber::Follows { leader, term })
            }
        }
    }

    /// Members that a leader which sleeps, or is about to, relies on to sleep, too: all others that are there.
    pub fn listeners(&self) -> Vec<NodeId> {
        let raft = &self.node.raft;
        let others = raft.prs().iter().map(|(id, _)| *id).filter(|id| *id != raft.id && !self.is_away(*id));
        others.filter_map(node_id).collect()
    }

    fn is_away(&self, member: u64) -> bool {
        let patience =
            usize::try_from(self.config.sleep_ticks).unwrap_or(usize::MAX).max(2 * self.config.election_ticks);
        self.sleep.is_away(member, u32::try_from(patience).unwrap_or(u32::MAX))
    }

    /// A member answered this leader.
    pub(super) fn note_answer(&mut self, from: u64) {
        self.sleep.silent.insert(from, 0);
    }

    /// Whether ticks have no effect.
    pub fn is_asleep(&self) -> bool {
        !matches!(self.sleep.phase, Phase::Awake | Phase::Drowsy { .. }) && self.slumber().is_some()
    }

    /// The host has something to do: the member does not sleep for some time.
    pub fn stay_awake(&mut self) {
        self.wake();
    }

    /// Gives whether it slept.
    pub(super) fn wake(&mut self) -> bool {
        self.sleep.idle = 0;
        if matches!(self.sleep.phase, Phase::Awake) {
            return false;
        }
        let slept = self.is_asleep();
        self.sleep.phase = Phase::Awake;
        self.sleep.asked = false;
        if self.is_leader() {
            // A whole time to hear from a majority.
            self.node.raft.election_elapsed = 0;
        }
        slept
    }

    /// Somebody wants it to be awake: its state, or its lease, shall be new.
    pub(super) fn wake_all(&mut self, out: &mut Vec<Output>) {
        if !self.wake() {
            return;
        }
        if self.is_leader() {
            self.node.ping();
        } else {
            self.ask_leader(false, out);
        }
    }

    /// The node of the leader is gone.
    pub(super) fn leader_lost(&mut self, term: u64, out: &mut Vec<Output>) {
        let follows = matches!(self.slumber(), Some(Slumber::Follows { term: known, .. }) if known == term);
        if !follows {
            return;
        }
        // If it is not, it says so at once.
        self.wake_all(out);
        // From now on others are given votes, as soon as what was promised has ended.
        self.node.raft.become_follower(term, raft::INVALID_ID);
    }

    /// A message comes: whether it is one of those that let a member sleep on.
    pub(super) fn wake_by(&mut self, wire: &RaftMessage) {
        let from_leader = wire.from == self.node.raft.leader_id && wire.term == self.node.raft.term;
        let sleeps_on = match self.slumber() {
            // An answer to what it said itself; one that is awake and hears nothing says so.
            Some(Slumber::Leads { term }) => wire.kind == HEARTBEAT_RESPONSE && wire.term == term,
            Some(Slumber::Follows { .. }) => wire.sleep && from_leader,
            None => true,
        };
        if !sleeps_on {
            self.wake();
        }
        if from_leader {
            self.sleep.asked = false;
        }
    }

    /// A follower wakes its leader, or wants an entry from it.
    pub(super) fn ask_leader(&mut self, entry: bool, out: &mut Vec<Output>) {
        let leader = self.node.raft.leader_id;
        self.sleep.asked = true;
        if leader != raft::INVALID_ID && leader != self.node.raft.id {
            let question = self.question(leader, WAKE);
            out.push(Output::Send(RaftMessage { entry_wanted: entry, ..question }));
        }
    }

    /// A follower wants its leader to be awake.
    pub(super) fn asked_to_wake(&mut self, wire: &RaftMessage, out: &mut Vec<Output>) {
        if !self.is_leader() || wire.term != self.node.raft.term || self.node.raft.prs().get(wire.from).is_none() {
            return;
        }
        self.wake();
        self.node.ping();
        if wire.entry_wanted {
            out.push(Output::EntryWanted);
        }
    }

    /// An entry is wanted so that an old part of the log can go: of the host, if this member leads.
    pub(super) fn want_entry(&mut self, out: &mut Vec<Output>) {
        if self.is_leader() {
            out.push(Output::EntryWanted);
        } else {
            self.ask_leader(true, out);
        }
    }

    /// After a tick.
    pub(super) fn grow_tired(&mut self, now: Time, out: &mut Vec<Output>) {
        if !self.is_leader() {
            self.sleep.idle = self.sleep.idle.saturating_add(1);
            let raft = &self.node.raft;
            let silent = raft.election_elapsed * 2 >= self.config.election_ticks;
            if silent && self.sleep.slept_in == raft.term && !self.sleep.asked {
                self.ask_leader(false, out);
            }
            return;
        }
        let raft = &self.node.raft;
        for (id, _) in raft.prs().iter().filter(|(id, _)| **id != raft.id) {
            let silent = self.sleep.silent.entry(*id).or_default();
            *silent = silent.saturating_add(1);
        }
        if self.config.sleep_ticks == 0 || !self.has_nothing_to_do(now) {
            self.wake();
            return;
        }
        self.sleep.idle = self.sleep.idle.saturating_add(1);
        if self.sleep.idle >= self.config.sleep_ticks {
            if matches!(self.sleep.phase, Phase::Awake) {
                self.sleep.phase = Phase::Drowsy { since: now, asleep: BTreeSet::new() };
            }
            self.sleep_if_all_do();
        }
    }

    /// A leader whose members, as far as they are there, all have everything, and know it.
    fn has_nothing_to_do(&self, now: Time) -> bool {
        let raft = &self.node.raft;
        let last = raft.raft_log.last_index();
        let settled = self.has_all_applied() && self.applied.term == raft.term && !self.handed_over;
        let changing = raft.has_pending_conf() || !self.node.store().conf().voters_outgoing.is_empty();
        let leads = self.lease_until().is_some_and(|until| now < until);
        settled
            && !changing
            && leads
            && raft.prs().iter().filter(|(id, _)| **id != raft.id).all(|(id, progress)| {
                let knows = self.levels.get(id).is_some_and(|level| *level >= SLEEP_LEVEL);
                let has_all = progress.matched == last && progress.state != ProgressState::Snapshot;
                self.is_away(*id) || (knows && has_all)
            })
    }

    /// Nothing is to be written, fetched, applied, or made good.
    fn has_all_applied(&self) -> bool {
        let log = &self.node.raft.raft_log;
        let last = log.last_index();
        log.committed == last
            && self.applied.index == last
            && self.outstanding.is_empty()
            && self.offered.is_none()
            && self.shut().is_none()
            && !self.forgot()
    }

    /// A heartbeat of this leader allows to sleep.
    pub(super) fn fall_asleep(&mut self, wire_commit: u64) {
        let raft = &self.node.raft;
        let (leader, term) = (raft.leader_id, raft.term);
        let tired = self.config.sleep_ticks > 0 && self.sleep.idle >= self.config.sleep_ticks / 2;
        if tired && self.has_all_applied() && wire_commit == self.applied.index {
            self.sleep.phase = Phase::Follows { leader, term };
            self.sleep.slept_in = term;
        }
    }

    /// A follower sleeps, as it answered with the newest stamp that it had seen.
    pub(super) fn note_sleeper(&mut self, from: u64, stamp: u64) {
        if let Phase::Drowsy { since, asleep } = &mut self.sleep.phase
            && stamp >= since.0
        {
            asleep.insert(from);
            self.sleep_if_all_do();
        }
    }

    fn sleep_if_all_do(&mut self) {
        let Phase::Drowsy { asleep, .. } = &self.sleep.phase else { return };
        let raft = &self.node.raft;
        if raft.prs().iter().all(|(id, _)| *id == raft.id || asleep.contains(id) || self.is_away(*id)) {
            self.sleep.phase = Phase::Leads;
        }
    }

    /// What a heartbeat, or the answer to one, says of sleep.
    pub(super) fn says_sleep(&self, answer: bool) -> bool {
        match self.sleep.phase {
            Phase::Drowsy { .. } => !answer && self.is_leader(),
            Phase::Follows { .. } => answer && self.is_asleep(),
            Phase::Awake | Phase::Leads => false,
        }
    }

    /// This member's part has changed.
    pub(super) fn forget_sleep(&mut self) {
        self.sleep = Sleep::default();
    }
}
