//! Appending in turns, where several clients append to the file at the same time.
//!
//! What is appended floats: its publish demands the size that is known, and whoever loses the race against another
//! client writes the same bytes again for the new end. So a client that lost asks for a *turn* from then on: it is told
//! where its bytes come to lie when all who have a turn before it have published, writes them for that place at once,
//! and publishes when it is the first. Nobody writes in vain, and nobody starves. Invariants: a turn is advice; what
//! keeps appends apart is the size that their publish demands. A flight that is written for another place than the
//! present end is *ahead* by the difference, and is published when that is nothing. Not here: who is first
//! (`meta-core`).
use super::{FileData, State};
use crate::attributes::Attributes;
use crate::error::Result;
use cairn_types::{ErrorCode, Time};
use std::sync::Arc;
use std::time::Duration;

/// Who met another one takes turns for so long.
const MET_FOR: Duration = Duration::from_secs(10);
/// A turn that is not the first after this is given up.
const WAIT_MAX: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(5);
/// States of a turn.
const FIRST: u32 = 1;
const GONE: u32 = 2;

/// What is known of others who append.
#[derive(Default)]
pub(super) struct Rivals {
    /// When one was met last.
    met: Option<Time>,
    /// The servers know of no turns.
    unknown: bool,
}

/// What became of appended bytes that are dirty.
pub(super) enum InTurn {
    /// They go the way of all others.
    Not,
    /// The flight has all of them, and is the first.
    First(u64),
    /// They are dirty again.
    Again,
}

impl State {
    /// Somebody else appended first.
    pub(super) fn lost_race(&mut self, now: Time) {
        if self.appended_from.is_some() {
            self.rivals.met = Some(now);
        }
    }
    fn meets_rivals(&self, now: Time) -> bool {
        !self.rivals.unknown && self.rivals.met.is_some_and(|met| now.since(met) < MET_FOR)
    }
    /// So many bytes are dirty, all of them appended, and nothing is on its way.
    fn floating(&self) -> Option<u64> {
        let from = self.appended_from.filter(|from| *from == self.attributes.size)?;
        let alone = self.flights.is_empty() && self.in_place.under_way.is_none();
        let all = self.dirty.bytes() as u64;
        (alone && all > 0 && self.dirty.ends_with(from, from + all)).then_some(all)
    }
    /// Another client made the file longer by less than a flight is ahead: it comes to lie where it was written for.
    pub(super) fn comes_nearer(&mut self, by: u64) -> bool {
        let [flight] = self.flights.make_contiguous() else { return false };
        if flight.ahead < by {
            return false;
        }
        *flight = Arc::new(flight.moved(by));
        true
    }
}

impl FileData {
    /// Others append at the same time.
    fn meets_rivals(&self) -> bool {
        let now = self.now();
        self.state.lock().meets_rivals(now)
    }
    /// Writes what was appended for the place that its turn gives it, and waits until that is the end of the file.
    pub(super) async fn write_in_turn(self: &Arc<Self>) -> Result<InTurn> {
        if !self.meets_rivals() {
            return Ok(InTurn::Not);
        }
        if let Some(last) = self.begin_below() {
            self.publish_in_order(last).await?;
            return Ok(InTurn::Again);
        }
        let asked = self.state.lock().floating();
        let Some(length) = asked else { return Ok(InTurn::Not) };
        let turn = match self.volume.take_append_turn(self.inode, &self.shown_as, length).await {
            Ok(turn) => turn,
            Err(error) => return self.without_turns(error).map(|()| InTurn::Not),
        };
        self.learn(self.told(turn.attributes)?);
        let now = self.now();
        let begun = self.with(0, |state| {
            state.floating().filter(|all| *all >= length)?;
            let from = state.attributes.size;
            let ahead = turn.begin.checked_sub(from)?;
            if ahead > 0 {
                state.rivals.met = Some(now);
            }
            let data = state.dirty.take_range(from, from + length);
            Some(self.begin_ahead(state, data, ahead, turn.number))
        });
        let Some(flight) = begun else {
            self.give_up(turn.number).await;
            return Ok(InTurn::Again);
        };
        let is_first = async { if turn.state == FIRST { Ok(true) } else { self.await_turn(turn.number).await } };
        let (_, is_first) = tokio::join!(flight.wait(), is_first);
        let now = self.now();
        let outcome = self.with(0, |state| {
            let own = state.flights.front().filter(|front| front.id == flight.id && front.ahead == 0);
            if own.is_some() && matches!(is_first, Ok(true)) {
                // If it failed, that is said where it is published.
                return Ok(InTurn::First(flight.id));
            }
            state.recall(now);
            is_first.map(|_| InTurn::Again)
        });
        if !matches!(outcome, Ok(InTurn::First(_))) || !flight.is_durable() {
            self.give_up(turn.number).await;
        }
        outcome
    }
    /// Those behind it need not wait for it. They do for a second if they do not hear of it.
    async fn give_up(&self, number: u64) {
        if let Err(error) = self.volume.give_up_append_turn(self.inode, &self.shown_as, number).await {
            tracing::debug!(inode = self.inode, %error, "a turn was not given up");
        }
    }
    fn told(&self, found: Option<cairn_wire::meta::Attributes>) -> Result<Attributes> {
        Attributes::of_answer(found).map_err(|odd| odd.of(&self.what()))
    }
    /// Begins a flight of what is dirty and was not appended: it needs no turn.
    fn begin_below(self: &Arc<Self>) -> Option<u64> {
        self.with(0, |state| {
            let from = state.appended_from.filter(|from| state.flights.is_empty() && state.dirty.overlaps(0, *from))?;
            let data = state.dirty.take_range(0, from);
            let runs = data.runs();
            Some(self.begin(state, data, runs, 0).id)
        })
    }
    /// True: it is the first, and the file's size as known is where it begins.
    async fn await_turn(&self, number: u64) -> Result<bool> {
        let begun = self.now();
        loop {
            let turn = self.volume.await_append_turn(self.inode, &self.shown_as, number).await?;
            self.learn(self.told(turn.attributes)?);
            match turn.state {
                FIRST => return Ok(true),
                GONE => return Ok(false),
                _ if self.now().since(begun) >= WAIT_MAX => return Ok(false),
                _ => tokio::time::sleep(PAUSE).await,
            }
        }
    }
    /// Servers that know of no turns, or have no room for more, are done without.
    fn without_turns(&self, error: crate::error::ClientError) -> Result<()> {
        match error.code() {
            Some(ErrorCode::UnknownOperation) => {
                self.state.lock().rivals.unknown = true;
                Ok(())
            }
            Some(ErrorCode::Overloaded) => Ok(()),
            _ => Err(error),
        }
    }
}
