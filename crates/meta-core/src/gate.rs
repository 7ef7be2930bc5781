//! [`Gate`]: while a snapshot of several partitions is taken, what would change this one waits in front of its log.
//!
//! The leader closes it when it is asked to hold, and opens it when it proposes its cut, or when the hold has lasted
//! too long. What waited is proposed then, in the order in which it came, behind the cut.
//!
//! Invariants: between closing and the cut of the same attempt nothing is proposed; an attempt whose hold has ended
//! holds nothing any more: a request that comes late, or again, does not make it look as if it had held all the time.
//! The cut is of the term of the hold. Not here: when a hold lapses, and proposing (the `meta` crate).
use cairn_wire::meta::CutAttempt;
use std::collections::VecDeque;

/// What may wait.
pub const WAITING_MAX: usize = 16 << 10;
pub const WAITING_BYTES_MAX: usize = 64 << 20;

/// See the module.
#[derive(Debug)]
pub struct Gate<T> {
    hold: Option<Hold>,
    waiting: VecDeque<T>,
    bytes: usize,
}

#[derive(Debug)]
struct Hold {
    attempt: CutAttempt,
    term: u64,
    /// It has neither lapsed nor been cut.
    lasts: bool,
}

impl<T> Default for Gate<T> {
    fn default() -> Self {
        Gate { hold: None, waiting: VecDeque::new(), bytes: 0 }
    }
}

/// Attempts of one leader of the root's partition, and of the next one, ascend.
fn order(attempt: &CutAttempt) -> (u64, u64) {
    (attempt.term, attempt.number)
}

impl<T> Gate<T> {
    /// Closes it for an attempt, in a term in which this member leads. False: this attempt has held and ended, or a
    /// later one came.
    pub fn close(&mut self, attempt: CutAttempt, term: u64) -> bool {
        match &self.hold {
            Some(hold) if hold.attempt == attempt => hold.lasts && hold.term == term,
            Some(hold) if order(&hold.attempt) >= order(&attempt) => false,
            // What waits for an earlier attempt waits on.
            _ => {
                self.hold = Some(Hold { attempt, term, lasts: true });
                true
            }
        }
    }

    pub fn is_closed(&self) -> bool {
        self.hold.as_ref().is_some_and(|hold| hold.lasts)
    }

    /// Lets something wait; it comes back if too much does.
    pub fn wait(&mut self, what: T, bytes: usize) -> Result<(), T> {
        if self.waiting.len() >= WAITING_MAX || self.bytes + bytes > WAITING_BYTES_MAX {
            return Err(what);
        }
        self.bytes += bytes;
        self.waiting.push_back(what);
        Ok(())
    }

    /// Opens it for the cut of an attempt that has held in that term all the time since. What waited is to be proposed
    /// behind the cut.
    pub fn cut(&mut self, attempt: CutAttempt, term: u64) -> Option<VecDeque<T>> {
        let holds = |hold: &&mut Hold| hold.lasts && hold.attempt == attempt && hold.term == term;
        self.hold.as_mut().filter(holds)?.lasts = false;
        Some(self.take())
    }

    /// The hold of an attempt ends without a cut. What waited is to be proposed.
    pub fn lapse(&mut self, attempt: CutAttempt) -> VecDeque<T> {
        match self.hold.as_mut().filter(|hold| hold.lasts && hold.attempt == attempt) {
            Some(hold) => {
                hold.lasts = false;
                self.take()
            }
            None => VecDeque::new(),
        }
    }

    fn take(&mut self) -> VecDeque<T> {
        self.bytes = 0;
        std::mem::take(&mut self.waiting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt(term: u64, number: u64) -> CutAttempt {
        CutAttempt { partition: 1, term, number }
    }

    /// A snapshot would have what was acknowledged in one partition after another had cut: what a hold let through is
    /// not in it.
    #[test]
    fn a_cut_needs_a_hold_that_lasted() {
        let mut gate = Gate::default();
        assert!(gate.cut(attempt(1, 1), 7).is_none(), "nothing was held");
        assert!(gate.close(attempt(1, 1), 7) && gate.is_closed());
        assert!(gate.close(attempt(1, 1), 7), "asked again");
        gate.wait("a", 1).unwrap();
        gate.wait("b", 1).unwrap();
        assert!(gate.cut(attempt(1, 2), 7).is_none(), "another attempt");
        assert!(gate.cut(attempt(1, 1), 8).is_none(), "another term");
        assert_eq!(gate.cut(attempt(1, 1), 7), Some(["a", "b"].into()), "in order");
        assert!(!gate.is_closed());
        assert!(!gate.close(attempt(1, 1), 7) && !gate.is_closed(), "a request that comes late");

        assert!(gate.close(attempt(1, 2), 7));
        gate.wait("c", 1).unwrap();
        assert_eq!(gate.lapse(attempt(1, 1)), [""; 0], "another attempt's");
        assert_eq!(gate.lapse(attempt(1, 2)), ["c"]);
        assert!(gate.cut(attempt(1, 2), 7).is_none(), "it lapsed");
        assert!(!gate.close(attempt(1, 2), 7), "and does not last anew");
        assert!(gate.cut(attempt(1, 2), 7).is_none());
    }

    /// A leader of the root's partition that is none any more would open what the next one has closed.
    #[test]
    fn a_later_attempt_counts() {
        let mut gate = Gate::default();
        assert!(gate.close(attempt(1, 5), 7));
        gate.wait((), 1).unwrap();
        assert!(gate.close(attempt(2, 1), 7), "of the next leader");
        assert!(!gate.close(attempt(1, 6), 7));
        assert!(gate.lapse(attempt(1, 5)).is_empty() && gate.is_closed());
        assert!(!gate.close(attempt(2, 1), 9), "this partition has another leader meanwhile, or again");
        assert_eq!(gate.cut(attempt(2, 1), 7).map(|waited| waited.len()), Some(1));
    }

    /// Requests would take all memory while something is held.
    #[test]
    fn what_waits_is_bounded() {
        let mut gate = Gate::default();
        assert!(gate.close(attempt(1, 1), 1));
        (0..WAITING_MAX).for_each(|_| gate.wait((), 1).unwrap());
        assert!(gate.wait((), 1).is_err());
        gate.lapse(attempt(1, 1));
        assert!(gate.close(attempt(1, 2), 1) && gate.wait((), WAITING_BYTES_MAX).is_ok());
        assert!(gate.wait((), 1).is_err());
    }
}
