//! Whether concurrent operations could have been done one after the other: a linearizability checker.
//!
//! The search of Wing and Gong ("Testing and verifying concurrent objects", 1993), with Lowe's memory of what was tried
//! ("Testing for linearizability", 2017): an operation may come next if no other one had ended before it began, and a
//! set of operations that led to a state once is not tried again. An operation whose outcome is unknown may have
//! happened at any time after it began, or never. Knows nothing of files: the model says what an operation does.
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

/// What one operation at a time would do.
pub trait Model {
    type State: Clone + Eq + Hash;
    type Input;
    type Output;
    /// The state behind an operation that gave this output (`None`: it was done, and nobody heard what it gave), or
    /// `None` if in this state it cannot give that.
    fn step(&self, state: &Self::State, input: &Self::Input, output: Option<&Self::Output>) -> Option<Self::State>;
}

/// One operation of a history.
#[derive(Clone, Debug)]
pub struct Call<I, O> {
    pub client: usize,
    pub input: I,
    /// Moments of one counter that only grows.
    pub begin: u64,
    /// When it ended, and with what; `None`: its outcome is unknown.
    pub end: Option<(u64, O)>,
}

/// What a history is.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict<S> {
    Linearizable,
    /// No order explains it. The longest one that was found: how many operations it has, the state behind it, and which
    /// operations (by their numbers in the history) could not be next there.
    Refused {
        explained: usize,
        state: S,
        stuck: Vec<usize>,
    },
    /// More was tried than the limit allows.
    Undecided,
}

/// A set of operations.
type Set = Vec<u64>;

fn has(set: &Set, at: usize) -> bool {
    set[at / 64] & (1 << (at % 64)) != 0
}

/// What is remembered of a set and the state behind it: millions of them fit into memory.
fn fingerprint(done: &Set, state: &impl Hash) -> (u64, u64) {
    let half = |salt: u8| {
        let mut hasher = DefaultHasher::new();
        (salt, done, state).hash(&mut hasher);
        hasher.finish()
    };
    (half(1), half(2))
}

/// One operation was chosen, and what may follow it.
struct Level<S> {
    state: S,
    done: Set,
    next: std::vec::IntoIter<usize>,
}

/// Looks for an order in at most `limit` steps.
pub fn check<M: Model>(
    model: &M,
    begin: M::State,
    history: &[Call<M::Input, M::Output>],
    limit: usize,
) -> Verdict<M::State> {
    let mut order: Vec<usize> = (0..history.len()).collect();
    order.sort_by_key(|at| history[*at].begin);
    let search = Search { model, history, order };
    search.run(begin, limit)
}

struct Search<'a, M: Model> {
    model: &'a M,
    history: &'a [Call<M::Input, M::Output>],
    /// Operations in the order of their beginnings.
    order: Vec<usize>,
}

impl<M: Model> Search<'_, M> {
    fn run(&self, begin: M::State, limit: usize) -> Verdict<M::State> {
        let nothing: Set = vec![0; self.history.len() / 64 + 1];
        let mut seen = HashSet::from([fingerprint(&nothing, &begin)]);
        let (mut best, mut best_at) = (0, (nothing.clone(), begin.clone()));
        let Some(first) = self.candidates(&nothing) else { return Verdict::Linearizable };
        let mut levels = vec![Level { state: begin, done: nothing, next: first.into_iter() }];
        for _ in 0..limit {
            let Some(level) = levels.last_mut() else {
                let (done, state) = best_at;
                return Verdict::Refused { explained: best, state, stuck: self.candidates(&done).unwrap_or_default() };
            };
            let Some(at) = level.next.next() else {
                levels.pop();
                continue;
            };
            let call = &self.history[at];
            let output = call.end.as_ref().map(|(_, output)| output);
            let Some(state) = self.model.step(&level.state, &call.input, output) else { continue };
            let mut done = level.done.clone();
            done[at / 64] |= 1 << (at % 64);
            if !seen.insert(fingerprint(&done, &state)) {
                continue;
            }
            let Some(next) = self.candidates(&done) else { return Verdict::Linearizable };
            if levels.len() > best {
                (best, best_at) = (levels.len(), (done.clone(), state.clone()));
            }
            levels.push(Level { state, done, next: next.into_iter() });
        }
        Verdict::Undecided
    }

    /// What may be next: whatever began before the first of the others ended. Those with a known outcome come first.
    /// `None` when nothing with a known outcome is left.
    fn candidates(&self, done: &Set) -> Option<Vec<usize>> {
        let mut first_end = u64::MAX;
        let mut found = Vec::new();
        for at in self.order.iter().copied().filter(|at| !has(done, *at)) {
            let call = &self.history[at];
            if call.begin > first_end {
                break;
            }
            if let Some((end, _)) = call.end {
                first_end = first_end.min(end);
            }
            found.push(at);
        }
        found.retain(|at| self.history[*at].begin <= first_end);
        found.sort_by_key(|at| self.history[*at].end.is_none());
        (first_end != u64::MAX).then_some(found)
    }
}
