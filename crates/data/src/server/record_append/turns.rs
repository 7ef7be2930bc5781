//! Whose turn it is: one of those who wait for what is durable to be published does it for all, and one of those who
//! find the chunk full opens the next one and tells the others. So the metadata has a few operations a chunk, however
//! many write to it.
//!
//! Who was asked and did not tell in time is followed by another one. Nothing depends on what is told but who is asked
//! next: a writer looks at what was published itself where that matters (client).

use std::collections::VecDeque;
use std::time::Duration;

use cairn_types::{ChunkId, Time};
use cairn_wire::data::{RecordAppendResponse, RecordsTold};

use super::state::{Roller, State};
use super::{Answers, over};

/// Who publishes takes less, or is gone.
const PUBLISHER_PATIENCE: Duration = Duration::from_secs(2);
/// Who opens the next chunk takes less.
const ROLLER_PATIENCE: Duration = Duration::from_secs(3);
/// Who waits for the next chunk longer than this finds it out itself.
const HELD_MAX: Duration = Duration::from_secs(5);

/// The asker's turn to open the next chunk.
const ROLL: RecordAppendResponse =
    RecordAppendResponse { end: 0, durable: 0, published: 0, publish: false, next: None, roll: true, lanes: 0 };

impl State {
    pub(super) fn told(&mut self, id: ChunkId, told: &RecordsTold, now: Time) {
        self.published = self.published.max(told.published);
        self.publisher = None;
        if let Some(next) = told.next {
            self.next = Some(next);
        }
        if told.closed {
            // Nobody will tell where its file goes on.
            self.sealed = false;
            self.over.get_or_insert_with(|| over(id, "it was closed when nobody wrote to it"));
        }
        // Who told is not the only one: the chunk may have been closed by somebody who was not asked.
        self.roller = self.roller.filter(|roller| now.since(roller.since) < ROLLER_PATIENCE);
    }

    /// Answers those who need not wait any more, and those whose turn it is.
    pub(super) fn turns(&mut self, now: Time) -> Answers {
        let published = self.published;
        let mut answers = Answers::new();
        for parked in self.parked.extract_if(.., |parked| parked.end <= published).collect::<Vec<_>>() {
            answers.push((parked.reply, Ok(self.response(parked.end))));
        }
        let is_free = |since: Option<Time>, patience| since.is_none_or(|since| now.since(since) >= patience);
        if is_free(self.publisher, PUBLISHER_PATIENCE)
            && let Some(last) = (0..self.parked.len()).max_by_key(|i| self.parked[*i].end)
        {
            let parked = self.parked.swap_remove(last);
            self.publisher = Some(now);
            answers.push((parked.reply, Ok(self.response(parked.end))));
        }
        if let Some(next) = self.next {
            let moved = RecordAppendResponse { published, next: Some(next), ..RecordAppendResponse::default() };
            answers.extend(self.held.drain(..).map(|held| (held.reply, Ok(moved))));
        } else if let Some(over) = self.over.as_ref().filter(|_| !self.sealed) {
            answers.extend(self.held.drain(..).map(|held| (held.reply, Err(over.clone()))));
        }
        let drained = self.waiting.is_empty() && self.in_flight == 0 && self.parked.is_empty();
        if self.full
            && drained
            && is_free(self.roller.map(|roller| roller.since), ROLLER_PATIENCE)
            && let Some(first) = self.held.pop_front()
        {
            self.roller = Some(Roller { since: now, writer: first.writer });
            answers.push((first.reply, Ok(ROLL)));
        }
        self.let_go_of_the_roller(now, &mut answers);
        answers
    }

    /// Who opens the next chunk does not leave this one before all that it asked for was answered: nothing of it waits
    /// for what it is to tell.
    fn let_go_of_the_roller(&mut self, now: Time, answers: &mut Answers) {
        let opens = self.roller.filter(|roller| roller.writer != 0 && now.since(roller.since) < ROLLER_PATIENCE);
        let Some(roller) = opens else { return };
        let (own, others): (VecDeque<_>, _) =
            std::mem::take(&mut self.held).into_iter().partition(|held| held.writer == roller.writer);
        self.held = others;
        answers.extend(own.into_iter().map(|held| (held.reply, Ok(ROLL))));
    }

    /// The same, now and then.
    pub(super) fn tick(&mut self, id: ChunkId, now: Time) -> Answers {
        let mut answers = self.turns(now);
        while self.held.front().is_some_and(|held| now.since(held.since) >= HELD_MAX)
            && let Some(held) = self.held.pop_front()
        {
            answers.push((held.reply, Err(over(id, "nobody told where its file goes on"))));
        }
        answers
    }
}
