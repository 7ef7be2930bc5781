//! A flight: bytes on their way to new space.
use super::{FileData, State};
use crate::error::{ClientError, Result};
use crate::file_writer::body::Body;
use crate::handle::dirty::{Dirty, Run};
use crate::handle::tail::first_row;
use crate::handle::write_out::{is_replicated, rows_of, write_runs};
use crate::stripe::group::rows_of_group;
use cairn_types::Time;
use parking_lot::Mutex;
use std::sync::Arc;
use tokio::sync::watch;

/// Runs of a flight; each is an extent of the publish.
pub(super) const RUNS_MAX: usize = 1024;
/// Bytes of a flight of a replicated layout.
pub(super) const FLIGHT_BYTES: usize = 8 << 20;
/// Flights of a file that are begun in the background.
const BACKGROUND_MAX: usize = 8;

#[derive(Default)]
pub(super) struct Flight {
    pub id: u64,
    pub data: Dirty,
    /// Version that bytes were read back of; 0: none were.
    pub based_on: u64,
    /// It ends when it is in the memory of all members.
    pub shown: bool,
    /// It was written for a place so many bytes behind the one where it is, and is not published before the file is
    /// that long.
    pub ahead: u64,
    /// Number of its turn; 0: none.
    pub turn: u64,
    landing: Arc<Landing>,
}

/// What becomes of a flight.
#[derive(Default)]
struct Landing {
    outcome: Mutex<Option<Result<Body>>>,
    done: watch::Sender<bool>,
}

impl Flight {
    /// The same flight, so many bytes further behind and nearer to the place that it was written for.
    pub(super) fn moved(&self, by: u64) -> Flight {
        let mut data = Dirty::default();
        data.put_back(&self.data);
        data.shift(0, by);
        let Flight { id, based_on, shown, turn, .. } = *self;
        Flight { id, data, based_on, shown, ahead: self.ahead - by, turn, landing: self.landing.clone() }
    }
    pub(super) fn is_done(&self) -> bool {
        *self.landing.done.borrow()
    }
    pub(super) fn is_durable(&self) -> bool {
        self.is_done() && matches!(&*self.landing.outcome.lock(), Some(Ok(_)))
    }
    pub(super) async fn wait(&self) {
        let mut done = self.landing.done.subscribe();
        // The sender lives in the flight itself.
        let _never_dropped = done.wait_for(|done| *done).await;
    }
    /// What became of it; once.
    pub(super) fn take(&self) -> Result<Body> {
        let gone = || Err(ClientError::protocol("a write in the background", "it was taken already"));
        self.landing.outcome.lock().take().unwrap_or_else(gone)
    }
}

impl FileData {
    /// Begins a flight of what was taken out of the dirty parts.
    pub(super) fn begin(
        self: &Arc<Self>,
        state: &mut State,
        data: Dirty,
        runs: Vec<Run>,
        based_on: u64,
    ) -> Arc<Flight> {
        self.begin_as(state, data, runs, Flight { based_on, ..Flight::default() })
    }
    /// Begins one of appended bytes, written for a place that is so far ahead.
    pub(super) fn begin_ahead(self: &Arc<Self>, state: &mut State, data: Dirty, ahead: u64, turn: u64) -> Arc<Flight> {
        let runs = data.runs().into_iter().map(|run| Run { offset: run.offset + ahead, ..run }).collect();
        self.begin_as(state, data, runs, Flight { ahead, turn, ..Flight::default() })
    }
    fn begin_as(self: &Arc<Self>, state: &mut State, data: Dirty, runs: Vec<Run>, as_this: Flight) -> Arc<Flight> {
        let id = state.next_flight;
        state.next_flight += 1;
        let shown = as_this.shown;
        let flight = Arc::new(Flight { id, data, ..as_this });
        state.flights.push_back(flight.clone());
        if state.dirty.is_empty() {
            state.dirty_since = None;
        }
        let (volume, layout, what) = (state.writer.clone(), state.layout, self.what());
        let own = flight.landing.clone();
        tokio::spawn(async move {
            let write = async {
                let mut body = write_runs(&volume, layout, &runs, shown).await?;
                while body.places.awaited() > 0 {
                    body.places.take_one(&what).await?;
                }
                Ok(body)
            };
            let outcome = write.await.map_err(|error: ClientError| error.named(&what));
            *own.outcome.lock() = Some(outcome);
            own.done.send_replace(true);
        });
        flight
    }
    /// Begins flights of everything that is dirty. The number of the last flight, if there is any.
    pub(super) fn begin_all(self: &Arc<Self>) -> Option<u64> {
        self.with(0, |state| {
            self.begin_rest(state);
            state.flights.back().map(|flight| flight.id)
        })
    }
    pub(super) fn begin_rest(self: &Arc<Self>, state: &mut State) {
        while !state.dirty.is_empty() {
            let data = state.dirty.take(RUNS_MAX, FLIGHT_BYTES);
            let runs = data.runs();
            self.begin(state, data, runs, 0);
        }
    }
    /// Begins flights of everything that is dirty, which end when all members have it in memory, if it only adds to the
    /// file: what was durable has to stay when they crash. False: nothing was begun.
    pub(super) fn begin_shown(self: &Arc<Self>) -> bool {
        self.with(0, |state| {
            let adds = state.only_adds();
            if adds {
                self.begin_rest_shown(state);
            }
            adds
        })
    }
    fn begin_rest_shown(self: &Arc<Self>, state: &mut State) {
        while !state.dirty.is_empty() {
            let data = state.dirty.take(RUNS_MAX, FLIGHT_BYTES);
            let runs = data.runs();
            self.begin_as(state, data, runs, Flight { shown: true, ..Flight::default() });
        }
    }
    /// Begins flights of what is dirty in a new file that will soon be closed: while its program does what comes before
    /// that, its bytes are on their way. `show`: as [`begin_shown`](Self::begin_shown).
    pub fn write_early(self: &Arc<Self>, show: bool) {
        self.with(0, |state| {
            if !state.only_adds() || state.flights.len() >= BACKGROUND_MAX {
                return;
            }
            match show {
                true => self.begin_rest_shown(state),
                false => self.begin_rest(state),
            }
        });
    }
    /// Begins a flight in the background if enough has gathered.
    pub fn write_behind(self: &Arc<Self>) {
        let now = self.now();
        self.with(0, |state| {
            while state.flights.len() < BACKGROUND_MAX
                && let Some((from, to)) = state.worth_a_flight(now)
            {
                let data = state.dirty.take_range(from, to);
                let runs = data.runs();
                self.begin(state, data, runs, 0);
            }
        });
    }
    /// Begins flights of everything that is dirty, whatever its size; it is not waited for.
    pub fn write_all_behind(self: &Arc<Self>) {
        self.begin_all();
    }
}

impl State {
    /// What is dirty lies behind everything that the file has, where it does not float, and goes to replicated chunks.
    fn only_adds(&self) -> bool {
        let flights = self.flights.iter().map(|flight| flight.data.end()).max().unwrap_or(0);
        let end = self.attributes.size.max(flights);
        let in_place = &self.in_place;
        let spans = self.dirty.spans();
        let behind = spans.first().is_none_or(|(from, _)| *from >= end);
        let alone = in_place.lease.is_none() && in_place.under_way.is_none() && in_place.untold.is_none();
        let plain = || spans.iter().all(|(from, to)| is_replicated(self.layout, *from, *to));
        behind && alone && self.appended_from.is_none() && !self.was_cut && plain()
    }
    /// A range that fills a flight. One that floats ends with a whole write: what is published apart from it may move.
    fn worth_a_flight(&mut self, now: Time) -> Option<(u64, u64)> {
        let (from, to) = self.fills_a_flight(now)?;
        Some((from, if self.appended_from.is_some() { self.dirty.part_end(to) } else { to }))
    }
    fn fills_a_flight(&mut self, now: Time) -> Option<(u64, u64)> {
        if self.dirty.bytes() < FLIGHT_BYTES || self.is_scattered(now) {
            // What is scattered goes in place, when it is flushed.
            return None;
        }
        let spans = self.dirty.spans();
        let Some(stripe) = rows_of(self.layout) else {
            let mut room = FLIGHT_BYTES as u64;
            let mut last = spans[0];
            for span in spans.iter().take(RUNS_MAX) {
                let taken = room.min(span.1 - span.0);
                last = (span.0, span.0 + taken);
                room -= taken;
                if room == 0 {
                    break;
                }
            }
            return Some((spans[0].0, last.1));
        };
        // Whole groups of rows; what is left over is gathered further.
        let group = rows_of_group(stripe) * stripe.row();
        spans.iter().find_map(|(from, to)| {
            let first = first_row(stripe, *from, *to)?;
            let groups = (to - first) / group;
            (groups > 0).then_some((*from, first + groups.min(2) * group))
        })
    }
}
