//! [`Timers`]: when tasks asked to be handled, by time.
//!
//! Invariant: a task has one time at most, never later than what it asked for last. It may be earlier: that of an
//! earlier request. A task that is handled too early has nothing to do and asks again, so nothing is ever taken out.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use cairn_types::Time;

use super::Task;

#[derive(Default)]
pub(super) struct Timers {
    by_time: BTreeMap<(Time, u64), Weak<dyn Task>>,
    times: BTreeMap<u64, Time>,
}

impl Timers {
    pub fn arm(&mut self, task: &Arc<dyn Task>, at: Time) {
        let number = task.number();
        match self.times.get(&number) {
            Some(armed) if *armed <= at => return,
            Some(armed) => drop(self.by_time.remove(&(*armed, number))),
            None => {}
        }
        self.times.insert(number, at);
        self.by_time.insert((at, number), Arc::downgrade(task));
    }

    /// A task whose time has come.
    pub fn pop(&mut self, now: Time) -> Option<Weak<dyn Task>> {
        let entry = self.by_time.first_entry().filter(|entry| entry.key().0 <= now)?;
        let ((_, number), task) = entry.remove_entry();
        self.times.remove(&number);
        Some(task)
    }

    pub fn first(&self) -> Option<Time> {
        self.by_time.first_key_value().map(|((at, _), _)| *at)
    }
}
