//! [`Round`]: a directory of its own with the history of what was done in it.
//!
//! Histories of different rounds are checked apart from each other, and each stays short enough to be decided.
use crate::linear::{Call, Verdict, check};
use crate::tree_model::{Answer, Names, Op, Place, TAGS, TOP, Tag, Tree};
use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// Operations of a round; each may need a tag.
const CALLS_MAX: usize = 250;
/// Operations of a round whose outcome is unknown. Each may have happened at any time, so many are hard to decide.
const UNKNOWN_MAX: usize = 6;
/// Steps in which a history is decided; most take as many as they have operations.
const STEPS_MAX: usize = 5_000_000;

pub type History = Vec<Call<Op, Answer>>;

/// A directory, and what was done in it.
pub struct Round {
    /// Of the directory.
    pub path: String,
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
    pub fn new(path: String, inode: u64) -> Round {
        let known = BTreeMap::from([(TOP, (inode, true))]);
        Round { path, inode, clock: AtomicU64::new(0), state: Mutex::new(State { known, ..State::default() }) }
    }
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
    fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }
    /// Whether enough was done in it.
    pub fn is_full(&self) -> bool {
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
    /// Something was seen. One tag has one inode, and the other way round: else an inode was given twice, or changed
    /// its mode.
    pub fn learn(&self, tag: Tag, inode: u64, dir: bool) {
        let mut state = self.state();
        let other = state.known.iter().find(|(_, (there, _))| *there == inode).map(|(tag, _)| *tag);
        assert!(
            other.is_none_or(|other| other == tag),
            "{}: inode {inode} has the tags {other:?} and {tag}",
            self.path
        );
        let before = state.known.insert(tag, (inode, dir));
        assert!(
            before.is_none_or(|before| before == (inode, dir)),
            "{}: tag {tag} was {before:?}, is {inode}, directory: {dir}",
            self.path
        );
    }
    /// An operation begins.
    pub fn begin(&self) -> u64 {
        self.state().begun += 1;
        self.tick()
    }
    /// It ended.
    pub fn end(&self, client: usize, op: Op, begin: u64, outcome: &Outcome) {
        let end = match outcome {
            Outcome::Known(answer) => Some((self.tick(), answer.clone())),
            Outcome::Unknown if !op.is_read() => None,
            Outcome::Unknown | Outcome::Nothing => return,
        };
        let mut state = self.state();
        state.unknown += usize::from(end.is_none());
        state.history.push(Call { client, input: op, begin, end });
    }
    /// How many operations the history has, and how many of unknown outcome; `None`: there are too many orders to tell.
    /// The error is a history of no file system. `is_mount`: of a client.
    pub fn check(&self, is_mount: impl Fn(usize) -> bool) -> Result<Option<(usize, usize)>, String> {
        let state = self.state();
        let history = as_mounts_mean_it(&state.history, is_mount);
        match check(&Names, Tree::new(), &history, STEPS_MAX) {
            Verdict::Linearizable => Ok(Some((history.len(), state.unknown))),
            Verdict::Undecided => Ok(None),
            verdict => Err(format!("{}: {}", self.path, told(&verdict, &history))),
        }
    }
}

/// The kernel asks for both names of a rename one after the other, and does nothing and says that it is done if both
/// are the same file. If that file was moved between the two questions it was never under both. So while others move
/// one of these names, a rename through a mount may have been done, or not.
fn as_mounts_mean_it(history: &History, is_mount: impl Fn(usize) -> bool) -> History {
    let moves = |of: &Call<Op, Answer>| match (&of.input, &of.end) {
        (Op::Rename(from, to, _), None | Some((_, Answer::Done))) => Some([*from, *to]),
        _ => None,
    };
    let beside = |one: &Call<Op, Answer>, other: &Call<Op, Answer>| {
        let ends = |call: &Call<Op, Answer>| call.end.as_ref().map_or(u64::MAX, |(end, _)| *end);
        one.begin < ends(other) && other.begin < ends(one)
    };
    let may_be_none = |at: usize, call: &Call<Op, Answer>| {
        let names = moves(call).filter(|_| is_mount(call.client));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree_model::Mode;

    /// The first that is a mount.
    const MOUNT: usize = 4;

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
            let history = as_mounts_mean_it(&history, |client| client >= MOUNT);
            check(&Names, Tree::new(), &history, STEPS_MAX) == Verdict::Linearizable
        };
        assert!(passes(MOUNT, 3), "the file moved between its questions");
        assert!(!passes(MOUNT, 6), "nothing moved meanwhile");
        assert!(!passes(MOUNT - 1, 3), "the library asks once");
    }
}
