//! Rounds: small shared sets of names, on which clients work until there is enough to check.
//!
//! A round is a directory of its own, so histories of different rounds are checked apart from each other, and each stays
//! short enough to be decided. Some are open at a time, so that a round outlasts a fault. When it is full it rests for a
//! while, so that faults come after its last operation, too; then all of it is listed, which counts as its last
//! operations, and its history has to be one that a file system can have.
use super::linear::{Call, Verdict, check};
use super::tree_model::{Answer, Names, Op, Place, TAGS, TOP, Tag, Tree};
use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Rounds that are worked on at a time.
const OPEN: usize = 3;
/// Operations of a round; each may need a tag.
const CALLS_MAX: usize = 250;
/// Operations of a round whose outcome is unknown. Each may have happened at any time, so many are hard to decide.
const UNKNOWN_MAX: usize = 6;
/// A full round rests so long at most.
const REST: Duration = Duration::from_secs(30);
/// Steps in which a history is decided; most take as many as they have operations.
const STEPS_MAX: usize = 5_000_000;

pub type History = Vec<Call<Op, Answer>>;

/// A directory, and what was done in it.
pub struct Round {
    /// Its name in the directory of all rounds.
    pub name: String,
    pub inode: u64,
    /// Counts beginnings and ends of operations.
    clock: AtomicU64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    history: History,
    /// Operations that were begun.
    begun: usize,
    unknown: usize,
    tag: Tag,
    /// Inodes by tag, and whether they are directories, as far as anybody saw them.
    known: BTreeMap<Tag, (u64, bool)>,
}

/// What somebody learned of an operation.
pub enum Outcome {
    Known(Answer),
    /// Certainly not done, or told nothing.
    Nothing,
    Unknown,
}

impl Round {
    pub fn new(name: String, inode: u64) -> Round {
        let known = BTreeMap::from([(TOP, (inode, true))]);
        Round { name, inode, clock: AtomicU64::new(0), state: Mutex::new(State { known, ..State::default() }) }
    }
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
    fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }
    fn is_full(&self) -> bool {
        let state = self.state();
        state.begun >= CALLS_MAX || state.unknown >= UNKNOWN_MAX
    }
    /// A tag that nothing in this round has.
    pub fn tag(&self) -> Tag {
        let mut state = self.state();
        state.tag += 1;
        assert!(state.tag < TAGS, "more operations than tags");
        state.tag
    }
    /// Everything that was seen in it: tag, inode, and whether it is a directory.
    pub fn known(&self) -> Vec<(Tag, u64, bool)> {
        self.state().known.iter().map(|(tag, (inode, dir))| (*tag, *inode, *dir)).collect()
    }
    /// Something was seen. One tag has one inode, and the other way round: else an inode was given twice, or changed its mode.
    pub fn learn(&self, tag: Tag, inode: u64, dir: bool) {
        let mut state = self.state();
        let other = state.known.iter().find(|(_, (there, _))| *there == inode).map(|(tag, _)| *tag);
        assert!(
            other.is_none_or(|other| other == tag),
            "{}: inode {inode} has the tags {other:?} and {tag}",
            self.name
        );
        let before = state.known.insert(tag, (inode, dir));
        assert!(
            before.is_none_or(|before| before == (inode, dir)),
            "{}: tag {tag} was {before:?}, is {inode}, directory: {dir}",
            self.name
        );
    }
    /// An operation begins.
    pub fn begin(&self) -> u64 {
        self.state().begun += 1;
        self.tick()
    }
    /// It ended.
    pub fn end(&self, client: usize, op: Op, begin: u64, outcome: Outcome) {
        let end = match outcome {
            Outcome::Known(answer) => Some((self.tick(), answer)),
            Outcome::Unknown if !op.is_read() => None,
            Outcome::Unknown | Outcome::Nothing => return,
        };
        let mut state = self.state();
        state.unknown += usize::from(end.is_none());
        state.history.push(Call { client, input: op, begin, end });
    }
    /// Panics if the history is none of a file system. How many operations it has, and how many of unknown outcome; `None`:
    /// there are too many orders to tell.
    pub fn check(&self) -> Option<(usize, usize)> {
        let state = self.state();
        let history = as_mounts_mean_it(&state.history);
        match check(&Names, Tree::new(), &history, STEPS_MAX) {
            Verdict::Linearizable => Some((history.len(), state.unknown)),
            Verdict::Undecided => None,
            verdict => panic!("{}: {}", self.name, told(&verdict, &history)),
        }
    }
}

/// The kernel asks for both names of a rename one after the other, and does nothing and says that it is done if both are the
/// same file. If that file was moved between the two questions it was never under both. So while others move one of these
/// names, a rename through a mount may have been done, or not.
fn as_mounts_mean_it(history: &History) -> History {
    let moves = |of: &Call<Op, Answer>| match (&of.input, &of.end) {
        (Op::Rename(from, to, _), None | Some((_, Answer::Done))) => Some([*from, *to]),
        _ => None,
    };
    let beside = |one: &Call<Op, Answer>, other: &Call<Op, Answer>| {
        let ends = |call: &Call<Op, Answer>| call.end.as_ref().map_or(u64::MAX, |(end, _)| *end);
        one.begin < ends(other) && other.begin < ends(one)
    };
    let may_be_none = |at: usize, call: &Call<Op, Answer>| {
        let names = moves(call).filter(|_| call.client >= super::CLIENTS);
        let met = |names: [Place; 2]| {
            let others = history.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, other)| other);
            others.filter(|other| beside(call, other)).filter_map(moves).flatten().any(|name| names.contains(&name))
        };
        names.is_some_and(met)
    };
    let mut all = history.clone();
    for (at, call) in history.iter().enumerate() {
        if may_be_none(at, call) {
            all[at].end = None;
        }
    }
    all
}

/// The history, and what of it no order explains.
fn told(verdict: &Verdict<Tree>, history: &History) -> String {
    let mut lines: Vec<(u64, String)> = Vec::new();
    for (at, call) in history.iter().enumerate() {
        let marked = matches!(verdict, Verdict::Refused { stuck, .. } if stuck.contains(&at));
        let (mark, op) = (if marked { " <== cannot be next" } else { "" }, &call.input);
        match &call.end {
            Some((end, answer)) => {
                lines.push((call.begin, format!("client {} #{at} begins {op:?}", call.client)));
                lines.push((*end, format!("client {} #{at} ended {op:?}: {answer:?}{mark}", call.client)));
            }
            None => lines.push((call.begin, format!("client {} #{at} unknown {op:?}{mark}", call.client))),
        }
    }
    lines.sort();
    let lines: Vec<String> = lines.into_iter().map(|(moment, line)| format!("{moment:>5} {line}")).collect();
    format!("no order of these operations is one of a file system: {verdict:?}\n{}", lines.join("\n"))
}

struct Resting {
    round: Arc<Round>,
    until: Instant,
}

/// All rounds of a run.
#[derive(Default)]
pub struct Rounds {
    open: Mutex<Vec<Arc<Round>>>,
    resting: Mutex<Vec<Resting>>,
    made: AtomicU64,
}

impl Rounds {
    /// One of the open ones; `None` when a new one is needed first.
    pub fn pick(&self, which: usize) -> Option<Arc<Round>> {
        let mut open = self.open.lock();
        let (full, rest): (Vec<_>, Vec<_>) = open.drain(..).partition(|round| round.is_full());
        *open = rest;
        let mut resting = self.resting.lock();
        for round in full {
            // Rests differ, and follow from nothing that matters.
            let until = Instant::now() + REST.mul_f64((round.inode % 8) as f64 / 8.0);
            resting.push(Resting { round, until });
        }
        if open.len() < OPEN { None } else { Some(open[which % open.len()].clone()) }
    }
    /// Name for a new one.
    pub fn next_name(&self) -> String {
        format!("round-{}", self.made.fetch_add(1, Ordering::Relaxed))
    }
    pub fn add(&self, round: Round) {
        self.open.lock().push(Arc::new(round));
    }
    /// One that nobody works on any more and that rested; in the end all of them.
    pub fn take_rested(&self, in_the_end: bool) -> Option<Arc<Round>> {
        let mut resting = self.resting.lock();
        if in_the_end {
            let open = self.open.lock().drain(..).collect::<Vec<_>>();
            resting.extend(open.into_iter().map(|round| Resting { round, until: Instant::now() }));
        }
        let rested = |it: &Resting| Arc::strong_count(&it.round) == 1 && (in_the_end || it.until <= Instant::now());
        let at = resting.iter().position(rested)?;
        Some(resting.swap_remove(at).round)
    }
    /// One that could not be finished rests again.
    pub fn put_back(&self, round: Arc<Round>) {
        self.resting.lock().push(Resting { round, until: Instant::now() });
    }
}

#[cfg(test)]
mod tests {
    use super::super::CLIENTS;
    use super::super::tree_model::Mode;
    use super::*;

    /// What a kernel does with two questions would count as a broken order of names; or one that is broken would pass.
    #[test]
    fn a_rename_through_a_mount_may_have_met_another_one() {
        let place = |name| Place { dir: TOP, name };
        let rename = || Op::Rename(place(0), place(1), Mode::Replace);
        let call = |client, input, begin, end| Call { client, input, begin, end: Some((end, Answer::Done)) };
        let passes = |mount: usize, begin: u64| {
            let history = vec![
                call(0, Op::Mkdir(place(0), 1), 0, 1),
                call(0, rename(), 4, 5),
                call(mount, rename(), begin, begin + 3),
            ];
            let history = as_mounts_mean_it(&history);
            check(&Names, Tree::new(), &history, STEPS_MAX) == Verdict::Linearizable
        };
        assert!(passes(CLIENTS, 3), "the file moved between its questions");
        assert!(!passes(CLIENTS, 6), "nothing moved meanwhile");
        assert!(!passes(CLIENTS - 1, 3), "the library asks once");
    }
}
