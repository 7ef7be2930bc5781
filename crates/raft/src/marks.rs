//! [`Mark`] and [`Gate`]: how a member that is an older copy of itself is kept from voting and leading.
//!
//! A directory that was put back from a copy, or rolled back with its machine, has forgotten votes and entries that it
//! acknowledged: its vote could elect a leader that lacks what is committed. So each member tells how far it got (its
//! *mark*), others keep that, and a member that starts asks for it before it takes part in elections.
//!
//! A mark is term and index. The index is the last entry if that is of the term, else 1 if a vote was given in the
//! term, else 0. Within a term a member's log grows only behind the first entry of its leader, so the marks of one
//! member never go back, and a state with a lower mark than a known one is an older one. Entries of earlier terms are
//! not in it: nothing is committed by acknowledging those alone (Ongaro, *Consensus*, section 3.6.2).
//!
//! | known | votes and leads |
//! |---|---|
//! | it takes part for the first time | yes |
//! | nobody was asked yet | no |
//! | all other voters answered, none knows a higher mark | yes |
//! | a majority answered (itself included), and a witness outside the group or its time is over; none knows a higher mark | yes |
//! | somebody knows a higher mark | only for candidates that have got so far, until it has got so far again from a leader, or a person accepts the loss |
//! | a member that has applied more of the log than it has says that it is none | no, until it has got so far |
//!
//! An older member may take entries and acknowledge them: what a leader gives it is there from then on, and a leader
//! was elected without its vote. Once it has reached the mark it is whole again.
//!
//! A member that takes part although it has forgotten something says so with each message, until a leader that has
//! everything has given it an entry of its term; also after a new start. A leader has everything if a majority elected
//! it that forgot nothing.
//!
//! Not here: where marks are kept (raft-host), and who the witness is (the roles).

use std::collections::{BTreeMap, BTreeSet};

use cairn_types::NodeId;
use cairn_wire::raft::MemberMark;

use crate::validate::NUMBER_MAX;
use crate::{HardState, Position};

/// Wire code of the question for what is known of the sender.
pub(crate) const ASK: u32 = 11;
/// Wire code of its answer.
pub(crate) const TELL: u32 = 12;
/// Ticks between two questions.
pub(crate) const ASK_TICKS: u32 = 2;
/// The index of a mark without an entry of its term, but a vote.
const VOTED: u64 = 1;

/// How far a member got, durably.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Mark {
    /// Term.
    pub term: u64,
    /// Last entry of that term; 1: it voted in the term; 0: neither.
    pub index: u64,
}

impl Mark {
    /// The mark of a state.
    pub fn of(hard: &HardState, last: Position) -> Self {
        let index = match last.term == hard.term {
            true => last.index,
            false => u64::from(hard.vote != 0) * VOTED,
        };
        Self { term: hard.term, index }
    }

    /// It has an entry of this term, so all that the term's leader had before.
    pub(crate) fn has_entry_of(self, term: u64) -> bool {
        self.term == term && self.index > VOTED
    }

    pub(crate) fn wire(self, node: u64) -> MemberMark {
        MemberMark { node, term: self.term, index: self.index }
    }

    pub(crate) fn read(mark: &MemberMark) -> Option<(u64, Self)> {
        let node = u32::try_from(mark.node).ok().filter(|node| *node != 0)?;
        let sound = mark.term <= NUMBER_MAX && mark.index <= NUMBER_MAX;
        sound.then_some((u64::from(node), Self { term: mark.term, index: mark.index }))
    }
}

impl std::fmt::Display for Mark {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.index {
            0 | VOTED => write!(f, "term {}", self.term),
            index => write!(f, "entry {index} of term {}", self.term),
        }
    }
}

/// Who knows what of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Teller {
    /// Another member of the group.
    Member(NodeId),
    /// Somebody outside the group: the manager, or the nodes.
    Witness,
    /// What this node wrote down beside its log.
    Itself,
}

/// What somebody outside the group knows of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Testimony {
    /// The highest mark that it was told; zeros: none.
    pub mark: Mark,
    /// The last entry that it knows to be applied somewhere, if the member was none then; 0: it is a member, as far as
    /// it knows.
    pub left_before: u64,
}

/// Why a member neither votes nor leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shut {
    /// It has started and was not compared with what others know of it.
    Checking,
    /// Others know that it got further than it is.
    Older {
        /// So far.
        known: Mark,
        /// What it has.
        have: Mark,
        /// Who knows.
        by: Teller,
    },
    /// The group has gone on without it.
    Left {
        /// At this entry it was no member.
        at: u64,
        /// Who said so.
        by: Teller,
    },
}

/// What a member found out about itself.
#[derive(Debug)]
pub(crate) struct Gate {
    checked: bool,
    asked: bool,
    ticks: u32,
    witness_ticks: u32,
    witnessed: bool,
    heard: BTreeSet<u64>,
    known: (Mark, Teller),
    /// The highest of them with an entry of its term.
    known_entry: Mark,
    left: (u64, Teller),
    accepted: bool,
    forgot: bool,
    /// How far this state got by itself: what it had when it started, its votes since, and entries of leaders in their
    /// terms.
    own: Mark,
}

impl Gate {
    /// `fresh`: it takes part for the first time. `written`: what this node wrote down of itself; `start`: what it has.
    /// `forgot`: something was accepted, and not recalled before its process ended.
    pub fn new(fresh: bool, witness_ticks: u32, written: Mark, start: Mark, forgot: bool) -> Self {
        Self {
            checked: fresh,
            asked: false,
            ticks: 0,
            witness_ticks,
            witnessed: false,
            heard: BTreeSet::new(),
            known: (written, Teller::Itself),
            known_entry: if written.index > VOTED { written } else { Mark::default() },
            left: (0, Teller::Itself),
            accepted: false,
            forgot,
            own: start,
        }
    }

    /// It has this durably. An older member has only got further with an entry of the leader's term: a later term, or a
    /// vote that it gives all the same, shows nothing.
    pub fn attained(&mut self, mark: Mark, last: u64) {
        if mark.index > VOTED || !matches!(self.shut(last), Some(Shut::Older { .. })) {
            self.own = self.own.max(mark);
        }
    }

    /// Why it is shut, for a member whose log ends here.
    pub fn shut(&self, last: u64) -> Option<Shut> {
        let ((known, by), (left, left_by)) = (self.known, self.left);
        match () {
            () if self.accepted => None,
            () if left > last => Some(Shut::Left { at: left, by: left_by }),
            () if known > self.own => Some(Shut::Older { known, have: self.own, by }),
            () if !self.checked => Some(Shut::Checking),
            () => None,
        }
    }

    /// Whether it may vote although it is older: for a candidate that has everything which this member is known to have
    /// acknowledged, and no less than any other voter, each of which has answered since the start; in a later term than
    /// any in which this one is known to have voted. What others know of this member alone is not enough: nobody but
    /// the other one who acknowledged it may know.
    pub fn may_elect(
        &self,
        candidate: Position,
        term: u64,
        last: u64,
        others: impl Iterator<Item = (u64, Mark)>,
    ) -> bool {
        let has = |mark: Mark| (candidate.term, candidate.index) >= (mark.term, mark.index);
        let mut others = others;
        self.checked
            && self.left.0 <= last
            && has(self.known_entry)
            && term > self.known.0.term
            && others.all(|(voter, mark)| self.heard.contains(&voter) && has(mark))
    }

    /// Whether the question is to be put (again).
    pub fn asks(&mut self, tick: bool) -> bool {
        if self.checked {
            return false;
        }
        self.ticks = self.ticks.saturating_add(u32::from(tick));
        if tick { self.ticks.is_multiple_of(ASK_TICKS) } else { !std::mem::replace(&mut self.asked, true) }
    }

    /// A member answered, or cannot because it is of an earlier build.
    pub fn heard(&mut self, from: u64) {
        // After it is checked, for elections of an older member.
        if self.heard.len() < 2 * crate::members::MEMBERS_MAX {
            self.heard.insert(from);
        }
    }

    /// Somebody knows a mark of this member.
    pub fn known(&mut self, mark: Mark, by: Teller) {
        if mark > self.known.0 {
            self.known = (mark, by);
        }
        if mark.index > VOTED {
            self.known_entry = self.known_entry.max(mark);
        }
    }

    /// Somebody knows that it was no member at an entry.
    pub fn left(&mut self, at: u64, by: Teller) {
        if at > self.left.0 {
            self.left = (at, by);
        }
    }

    /// The witness answered.
    pub fn witnessed(&mut self, testimony: Testimony) {
        self.witnessed = true;
        self.known(testimony.mark, Teller::Witness);
        self.left(testimony.left_before, Teller::Witness);
    }

    /// A person accepts what is lost.
    pub fn accept(&mut self, forgot: bool) {
        self.accepted = true;
        self.checked = true;
        self.forgot |= forgot;
    }

    /// Whatever it has forgotten it has again, or somebody was asked for it.
    pub fn recalled(&mut self) {
        self.forgot = false;
    }

    /// A person accepted that something is lost, and it was not recalled.
    pub fn forgot(&self) -> bool {
        self.forgot
    }

    /// The highest mark of this member that anybody knows.
    pub fn highest(&self) -> Mark {
        self.known.0
    }

    /// Whom it still has to hear.
    pub fn unheard<'a>(&'a self, voters: impl Iterator<Item = u64> + 'a) -> impl Iterator<Item = u64> + 'a {
        voters.filter(|voter| !self.heard.contains(voter))
    }

    /// Looks whether enough was heard. `sets`: the voters, in a joint configuration both sets.
    pub fn settle(&mut self, own: u64, sets: [&[u64]; 2]) {
        if self.checked || sets[0].is_empty() {
            return;
        }
        let has = |voter: &u64| *voter == own || self.heard.contains(voter);
        let quorum = |set: &[u64]| set.is_empty() || set.iter().filter(|voter| has(voter)).count() > set.len() / 2;
        let others = sets.iter().any(|set| set.iter().any(|voter| *voter != own));
        let all = others && sets.iter().all(|set| set.iter().all(has));
        let waited = self.witnessed || self.ticks >= self.witness_ticks;
        self.checked = all || (waited && sets.iter().all(|set| quorum(set)));
    }
}

/// Who gave this member their votes and had forgotten nothing. Those that come when it leads already count, too.
#[derive(Debug, Default)]
pub(crate) struct Votes {
    term: u64,
    from: BTreeSet<u64>,
    enough: bool,
}

impl Votes {
    fn begin(&mut self, term: u64) {
        if term > self.term {
            *self = Self { term, ..Self::default() };
        }
    }

    /// One of a term.
    pub fn note(&mut self, term: u64, from: u64) {
        self.begin(term);
        if term == self.term && self.from.len() < crate::members::MEMBERS_MAX {
            self.from.insert(from);
        }
    }

    /// Others were asked for what those who voted in this term may have forgotten.
    pub fn recalled(&mut self, term: u64) {
        self.begin(term);
        self.enough |= term == self.term;
    }

    /// Looks whether they are a majority, in a joint configuration of both sets; that stays so when members come.
    /// `own`: this member if it has forgotten nothing.
    pub fn settle(&mut self, term: u64, own: Option<u64>, sets: [&[u64]; 2]) {
        self.begin(term);
        let counts = |voter: &u64| own == Some(*voter) || self.from.contains(voter);
        let quorum = |set: &[u64]| set.is_empty() || set.iter().filter(|voter| counts(voter)).count() > set.len() / 2;
        self.enough |= term == self.term && sets.iter().all(|set| quorum(set));
    }

    /// A majority that has forgotten nothing elected the leader of this term.
    pub fn are_enough(&self, term: u64) -> bool {
        self.term == term && self.enough
    }
}

/// Marks of the other members.
pub(crate) type Marks = BTreeMap<u64, Mark>;

/// Remembers a mark if it is higher than the known one.
pub(crate) fn note(marks: &mut Marks, node: u64, mark: Mark) {
    let known = marks.entry(node).or_default();
    *known = (*known).max(mark);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(term: u64, index: u64) -> Mark {
        Mark { term, index }
    }

    /// A state that forgot a vote or an acknowledged entry would pass for the newest one; or one that only took another
    /// leader's entries for an older one.
    #[test]
    fn marks_only_grow() {
        let hard = |term, vote| HardState { term, vote, commit: 0 };
        let at = |term, index| Position { index, term };
        let life = [
            Mark::of(&hard(1, 0), at(1, 1)),
            Mark::of(&hard(2, 0), at(1, 1)),
            Mark::of(&hard(2, 3), at(1, 1)),
            Mark::of(&hard(2, 3), at(2, 9)),
            Mark::of(&hard(2, 3), at(2, 12)),
            // The next leader's log is shorter at first.
            Mark::of(&hard(4, 1), at(2, 10)),
            Mark::of(&hard(4, 1), at(4, 11)),
        ];
        assert!(life.windows(2).all(|pair| pair[0] < pair[1]), "{life:?}");
        assert_eq!(Mark::of(&hard(4, 1), at(3, 15)), mark(4, 1), "what another leader will overwrite does not count");
    }

    /// A member would vote before it was compared, or never.
    #[test]
    fn opens_when_enough_was_heard() {
        let gate = || Gate::new(false, 10, Mark::default(), mark(1, 1), false);
        let mut all = gate();
        all.settle(1, [&[1, 2, 3], &[]]);
        all.heard(2);
        all.settle(1, [&[1, 2, 3], &[]]);
        assert_eq!(all.shut(1), Some(Shut::Checking), "the witness was not heard");
        all.heard(3);
        all.settle(1, [&[1, 2, 3], &[]]);
        assert_eq!(all.shut(1), None);
        let mut joint = gate();
        (2..=3).for_each(|node| joint.heard(node));
        joint.witnessed(Testimony::default());
        joint.settle(1, [&[1, 2, 3], &[1, 4, 5]]);
        assert!(joint.shut(1).is_some(), "no majority of the other set");
        joint.heard(4);
        joint.settle(1, [&[1, 2, 3], &[1, 4, 5]]);
        assert_eq!(joint.shut(1), None);
        let mut alone = gate();
        let _asked: Vec<bool> = (0..9).map(|_| alone.asks(true)).collect();
        alone.settle(1, [&[1], &[]]);
        assert_eq!(alone.shut(1), Some(Shut::Checking));
        alone.asks(true);
        alone.settle(1, [&[1], &[]]);
        assert_eq!(alone.shut(1), None, "nobody can be asked");
    }

    /// An old copy would vote because some do not know it, or because it has heard of a later term; or stay shut when
    /// it has everything again.
    #[test]
    fn stays_shut_until_it_is_where_it_was() {
        let mut gate = Gate::new(false, 0, mark(3, 7), mark(3, 6), false);
        gate.heard(2);
        gate.settle(1, [&[1, 2, 3], &[]]);
        let by = Teller::Itself;
        assert_eq!(gate.shut(6), Some(Shut::Older { known: mark(3, 7), have: mark(3, 6), by }));
        gate.known(mark(3, 9), Teller::Member(NodeId(2)));
        gate.known(mark(3, 8), Teller::Witness);
        gate.attained(mark(3, 8), 8);
        let by = Teller::Member(NodeId(2));
        assert_eq!(gate.shut(8), Some(Shut::Older { known: mark(3, 9), have: mark(3, 8), by }));
        for nothing in [mark(4, 0), mark(5, 1)] {
            gate.attained(nothing, 8);
            assert!(gate.shut(8).is_some(), "{nothing:?}");
        }
        gate.attained(mark(5, 9), 9);
        assert_eq!(gate.shut(9), None);
        gate.attained(mark(6, 1), 9);
        assert_eq!(gate.own, mark(6, 1), "it may vote");
        gate.witnessed(Testimony { mark: Mark::default(), left_before: 20 });
        assert_eq!(gate.shut(19), Some(Shut::Left { at: 20, by: Teller::Witness }));
        assert_eq!(gate.shut(20), None);
        gate.known(mark(99, 0), Teller::Witness);
        assert!(gate.shut(20).is_some());
        gate.accept(true);
        assert_eq!(gate.shut(20), None, "a person said so");
    }

    /// The only whole member of three would never lead; or one that lacks what was acknowledged would.
    #[test]
    fn an_older_member_elects_only_who_has_everything() {
        let at = |term, index| Position { index, term };
        let mut gate = Gate::new(false, 10, mark(3, 7), mark(2, 6), false);
        let candidate = [(3, mark(2, 5))];
        let elects =
            |gate: &Gate, at, term, others: &[(u64, Mark)]| gate.may_elect(at, term, 6, others.iter().copied());
        assert!(!elects(&gate, at(3, 7), 4, &candidate), "others may know more of it");
        (2..=3).for_each(|node| gate.heard(node));
        gate.settle(1, [&[1, 2, 3], &[]]);
        assert!(elects(&gate, at(3, 7), 4, &candidate) && elects(&gate, at(4, 1), 5, &candidate));
        assert!(
            !elects(&gate, at(3, 6), 4, &candidate) && !elects(&gate, at(2, 99), 4, &candidate),
            "it lacks entries"
        );
        assert!(!elects(&gate, at(3, 7), 3, &candidate), "it may have voted for another one");
        assert!(
            !elects(&gate, at(3, 7), 4, &[(3, mark(3, 9))]),
            "another one has more, which this one may have acknowledged"
        );
        assert!(!elects(&gate, at(3, 7), 4, &[(4, mark(2, 5))]), "one was not heard");
        gate.left(8, Teller::Witness);
        assert!(!elects(&gate, at(3, 7), 4, &candidate), "it is none of them");
    }

    /// A healthy member would take what it did in this life for something that it has forgotten.
    #[test]
    fn what_it_did_since_it_started_shuts_nobody() {
        let mut gate = Gate::new(false, 10, mark(3, 7), mark(3, 7), false);
        // It follows a leader before it was compared.
        gate.attained(mark(6, 1), 7);
        gate.known(mark(6, 1), Teller::Member(NodeId(2)));
        (2..=3).for_each(|node| gate.heard(node));
        gate.settle(1, [&[1, 2, 3], &[]]);
        assert_eq!(gate.shut(7), None);
        gate.attained(mark(8, 0), 7);
        gate.known(mark(8, 0), Teller::Witness);
        assert_eq!(gate.shut(7), None);
    }
}
