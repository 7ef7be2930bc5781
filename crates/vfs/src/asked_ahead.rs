//! Directories whose attributes are asked for before anybody wants them: a kernel looks at a directory again before
//! each change in it, and each change makes what is known of it old.
//!
//! Invariants: an answer that another change has overtaken is not used; where nobody looked at the last answer nothing
//! is asked.
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use tokio::sync::watch;

/// Questions at a time: whoever changes more directories than that at once waits for his answers.
const MAX: usize = 64;
/// Directories of which it is remembered that nobody looked at the answer.
const UNSEEN_MAX: usize = 1024;

#[derive(Default)]
pub(crate) struct AskedAhead {
    under_way: Mutex<State>,
}

#[derive(Default)]
struct State {
    next: u64,
    directories: BTreeMap<u64, (u64, watch::Receiver<()>)>,
    unseen: BTreeSet<u64>,
}

/// A question on its way; what waits for it goes on when it is dropped.
pub(crate) struct Asked {
    pub directory: u64,
    number: u64,
    _done: watch::Sender<()>,
}

impl AskedAhead {
    /// A question begins, instead of one that is under way. `None`: there are enough of them, or nobody looked at the
    /// last answer.
    pub(crate) fn begin(&self, directory: u64) -> Option<Asked> {
        let mut state = self.under_way.lock();
        state.directories.remove(&directory);
        if state.unseen.remove(&directory) || state.directories.len() >= MAX {
            return None;
        }
        state.next += 1;
        let (number, (done, wait)) = (state.next, watch::channel(()));
        state.directories.insert(directory, (number, wait));
        Some(Asked { directory, number, _done: done })
    }
    /// The directory changed again: what is on its way is of before.
    pub(crate) fn forget(&self, directory: u64) {
        self.under_way.lock().directories.remove(&directory);
    }
    pub(crate) fn forget_all(&self) {
        self.under_way.lock().directories.clear();
    }
    /// Takes the answer if it is still of use. Nothing of the directory can change meanwhile.
    pub(crate) fn end(&self, asked: &Asked, take: impl FnOnce()) {
        let mut state = self.under_way.lock();
        if state.directories.get(&asked.directory).is_some_and(|(number, _)| *number == asked.number) {
            state.directories.remove(&asked.directory);
            if state.unseen.len() >= UNSEEN_MAX {
                state.unseen.clear();
            }
            state.unseen.insert(asked.directory);
            take();
        }
    }
    /// Somebody looks at the directory.
    pub(crate) fn seen(&self, directory: u64) {
        self.under_way.lock().unseen.remove(&directory);
    }
    /// Waits for the question that is under way. False if there is none.
    pub(crate) async fn wait(&self, directory: u64) -> bool {
        let waiting = self.under_way.lock().directories.get(&directory).map(|(_, wait)| wait.clone());
        let Some(mut wait) = waiting else { return false };
        // It ends with the sender.
        let _never_sent = wait.changed().await;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory would be shown as it was before the last change in it, or be asked for without bound.
    #[tokio::test]
    async fn overtaken_answers_are_dropped() {
        let ahead = AskedAhead::default();
        let mut taken = Vec::new();
        let first = ahead.begin(7).expect("room");
        let second = ahead.begin(7).expect("instead of the first");
        ahead.end(&first, || taken.push(1));
        ahead.end(&second, || taken.push(2));
        ahead.seen(7);
        let third = ahead.begin(7).expect("room");
        ahead.forget(7);
        ahead.end(&third, || taken.push(3));
        assert_eq!(taken, [2]);
        let fourth = ahead.begin(8).expect("room");
        ahead.end(&fourth, || taken.push(4));
        assert!(ahead.begin(8).is_none(), "nobody looked at it");
        let fifth = ahead.begin(8).expect("the directory was forgotten since");
        ahead.end(&fifth, || taken.push(5));
        ahead.seen(8);
        assert!(ahead.begin(8).is_some());
        ahead.forget(8);
        assert!(!ahead.wait(7).await, "nothing is under way");
        let many: Vec<Asked> = (0..MAX as u64).filter_map(|directory| ahead.begin(directory)).collect();
        assert!(many.len() == MAX && ahead.begin(1000).is_none());
        let last = ahead.begin(5);
        assert!(last.is_some(), "instead of one that is there");
        drop((many, last));
        assert!(ahead.wait(5).await, "nobody waits for what was given up");
    }
}
