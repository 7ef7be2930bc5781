//! One open chunk of a stream: the parts that were sent, what of them is acknowledged, what is durable.
//!
//! Pure bookkeeping, driven by `stream`. A replicated chunk has one lane, an erasure chunk one for each shard, a stripe
//! set, which is opened and ends like one chunk, one for each of its chunks. Invariants: a part leaves only when all
//! lanes that have some of it have it durably, or to be sent again elsewhere; parts leave in their order.
use super::lane::{Answer, Lane};
use super::part::{Bytes, Cut, Part, Placed};
use super::segment::{SEGMENT_MAX, block_crcs};
use super::shape::fits_columns;
use cairn_env::buf::SharedBuf;
use cairn_types::{BLOCK_SIZE, CHUNK_SIZE_MAX, ChunkId, ExtentKind, Stripe, Time};
use cairn_wire::common::StripeSet;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// So long after the others a lane that answers pings is reported as well: the manager decides whether its member is
/// too slow.
const SLOW: Duration = Duration::from_millis(2500);

/// More lanes that are silent than may be slow are looked at after so long: the cause is likelier this machine, or its
/// network.
const ALL_SILENT: Duration = Duration::from_secs(1);

/// A chunk that this session writes.
#[derive(Debug)]
pub(crate) struct OpenChunk {
    /// At least one.
    pub lanes: Vec<Lane>,
    kind: ExtentKind,
    /// Of a stripe set its chunks.
    set: Option<Arc<StripeSet>>,
    /// So many lanes may be the slow ones: when no more than these lack something, they are compared with the others.
    spare: usize,
    /// End of what was sent, in the space of the chunk that extents name.
    end: u64,
    /// Bytes since a sync was asked for.
    unasked: u64,
    /// No more parts; seal when all is durable.
    pub closing: bool,
    sent: VecDeque<Sent>,
    /// Parts of `sent` that some lane has not acknowledged.
    in_flight: usize,
}

#[derive(Debug)]
struct Sent {
    part: Part,
    placed: Placed,
    /// Where it lies in the space of the chunk, filler included.
    offset: u64,
    places: Vec<Place>,
    /// Places that are not acknowledged.
    owed: usize,
    /// Since when all but a few lanes have acknowledged it, and have it durably.
    few_since: [Option<Time>; 2],
}

/// What a lane has of a part.
#[derive(Debug)]
struct Place {
    lane: usize,
    offset: u64,
    end: u64,
    acknowledged: bool,
}

impl Sent {
    fn is_acknowledged(&self) -> bool {
        self.owed == 0
    }
}

impl OpenChunk {
    pub fn new(lanes: Vec<Lane>, kind: ExtentKind, spare: usize) -> Self {
        assert!(!lanes.is_empty(), "somebody takes what is written");
        assert!(lanes.is_sorted_by_key(|lane| lane.number), "readers look at columns in this order");
        let set = matches!(kind, ExtentKind::Set(_)).then(|| Arc::new(record(&lanes)));
        Self { lanes, kind, set, spare, end: 0, unasked: 0, closing: false, sent: VecDeque::new(), in_flight: 0 }
    }
    /// The name by which extents know it.
    pub fn id(&self) -> ChunkId {
        self.lanes[0].made.chunk
    }
    fn capacity(&self) -> u64 {
        self.kind.stripe().map_or(CHUNK_SIZE_MAX, Stripe::capacity)
    }
    fn next_offset(&self) -> u64 {
        self.end.next_multiple_of(BLOCK_SIZE as u64)
    }
    /// So many bytes fit.
    pub fn has_room(&self, bytes: u64) -> bool {
        let next = self.next_offset();
        // Nothing follows a short unit.
        let aligned = self.kind.stripe().is_none_or(|stripe| next.is_multiple_of(stripe.unit()));
        let fits = match self.kind {
            ExtentKind::Set(stripe) => fits_columns(bytes, stripe.unit(), self.lanes.len()),
            ExtentKind::Plain | ExtentKind::Erasure(_) => true,
        };
        !self.closing && aligned && fits && next + bytes <= self.capacity()
    }
    /// So little is left that the chunk is better closed.
    pub fn is_nearly_full(&self) -> bool {
        self.capacity() - self.next_offset().min(self.capacity()) < SEGMENT_MAX as u64 / 16
    }
    /// What each lane gets of a part that was not encoded, by its number.
    pub fn cut(&self, part: &Part) -> Vec<Cut> {
        match &part.bytes {
            Bytes::Segment { data, crcs, .. } => {
                vec![Cut { parts: vec![data.clone()], crcs: crcs.clone(), row_crcs: Vec::new() }]
            }
            Bytes::Units(units) => {
                let width = self.lanes.len();
                let sent = self.kind.stripe().map_or(0, |stripe| (self.next_offset() / stripe.unit()) as usize % width);
                let cut = |column| {
                    let first = (column + width - sent) % width;
                    let parts: Vec<SharedBuf> = units.iter().skip(first).step_by(width).cloned().collect();
                    let crcs = parts.iter().flat_map(|part| block_crcs(part)).collect();
                    Cut { parts, crcs, row_crcs: Vec::new() }
                };
                (0..width).map(cut).collect()
            }
        }
    }
    /// Gives the part its places and keeps it. Returns by lane what it gets and at which offset.
    pub fn place(&mut self, part: Part, cuts: Vec<Cut>) -> Vec<(usize, u64, Cut)> {
        let (offset, bytes) = (self.next_offset(), part.bytes.len());
        assert!(self.has_room(bytes) && bytes > 0, "a part must fit its chunk");
        self.end = offset + bytes;
        self.unasked += bytes;
        let mut cuts: Vec<Option<Cut>> = cuts.into_iter().map(|cut| Some(cut).filter(|cut| cut.len() > 0)).collect();
        let mut placed = Vec::with_capacity(self.lanes.len());
        for (number, lane) in self.lanes.iter_mut().enumerate() {
            if let Some(cut) = cuts.get_mut(lane.number).and_then(Option::take) {
                placed.push((number, lane.place(cut.len()), cut));
            }
        }
        let place = |(lane, offset, cut): &(usize, u64, Cut)| Place {
            lane: *lane,
            offset: *offset,
            end: offset + cut.len(),
            acknowledged: false,
        };
        let places: Vec<Place> = placed.iter().map(place).collect();
        // What no lane has would count as durable.
        let stored: u64 = placed.iter().map(|(_, _, cut)| cut.len()).sum();
        match self.kind {
            ExtentKind::Erasure(stripe) => {
                let shard = bytes / u64::from(stripe.columns());
                assert!(placed.len() == self.lanes.len() && placed.iter().all(|(_, _, cut)| cut.len() == shard));
            }
            ExtentKind::Plain | ExtentKind::Set(_) => assert_eq!(stored, bytes, "each byte goes to one lane"),
        }
        let (kind, set) = (self.kind, self.set.clone());
        let at = Placed { chunk: self.id(), offset: offset + part.lead(), kind, set };
        let owed = places.len();
        self.sent.push_back(Sent { part, placed: at, offset, places, owed, few_since: [None; 2] });
        self.in_flight += 1;
        placed
    }

    /// Parts that some lane has not acknowledged.
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }
    /// Answers are owed.
    pub fn waits(&self) -> bool {
        self.lanes.iter().any(|lane| lane.silence.waits())
    }
    pub fn is_idle(&self) -> bool {
        self.sent.is_empty() && !self.waits()
    }
    /// It is time for a sync: for `every` bytes, or because somebody waits. While one is under way those who wait
    /// gather for the next; while parts follow at once, so do those whose part is not acknowledged.
    pub fn wants_sync(&self, every: u64, nothing_follows: bool) -> bool {
        let striped = self.kind.stripe().is_some();
        let syncing = self.lanes.iter().any(Lane::is_syncing);
        if self.unasked >= every {
            // A slow disk of a replicated chunk gets one at a time: a second one behind it would be late.
            return striped || !syncing;
        }
        // The end of a striped file waits for no sync before its own: nobody else gathers there.
        if syncing && !(striped && nothing_follows) {
            return false;
        }
        let waits = |sent: &Sent| sent.part.sync && (nothing_follows || sent.is_acknowledged());
        let uncovered = |sent: &Sent| sent.places.iter().any(|place| self.lanes[place.lane].asked < place.end);
        self.sent.iter().any(|sent| (self.closing || waits(sent)) && uncovered(sent))
    }
    /// One is asked for; of these lanes.
    pub fn ask_sync(&mut self) -> Vec<usize> {
        self.unasked = 0;
        self.lanes.iter_mut().enumerate().filter_map(|(number, lane)| lane.ask_sync().then_some(number)).collect()
    }

    /// A lane answered: to the append at that offset, or to a sync.
    pub fn answered(
        &mut self,
        number: usize,
        (append, synced): (Option<u64>, bool),
        answer: &Answer,
        now: Time,
    ) -> std::result::Result<(), String> {
        self.lanes[number].take(answer, synced, now)?;
        if let Some(offset) = append {
            self.acknowledge(number, offset);
        }
        self.let_go();
        Ok(())
    }
    fn acknowledge(&mut self, lane: usize, offset: u64) {
        let waiting = self.sent.iter_mut().filter(|sent| !sent.is_acknowledged());
        for sent in waiting {
            let own = |place: &&mut Place| (place.lane, place.offset) == (lane, offset) && !place.acknowledged;
            let Some(place) = sent.places.iter_mut().find(own) else { continue };
            place.acknowledged = true;
            sent.owed -= 1;
            if sent.is_acknowledged() {
                self.in_flight -= 1;
                sent.part.show(&sent.placed);
            }
            return;
        }
    }
    /// Whoever waits for what all lanes have durably is told.
    fn let_go(&mut self) {
        while let Some(sent) = self.sent.front() {
            let durable = |place: &Place| place.acknowledged && place.end <= self.lanes[place.lane].durable;
            if !sent.places.iter().all(durable) {
                return;
            }
            if let Some(Sent { part, placed, .. }) = self.sent.pop_front() {
                // A writer that was dropped no longer asks.
                let _gone = part.done.send(Ok(placed));
            }
        }
    }
    /// Lanes that lag behind the others for so long that they are too slow. A lane is compared with its peers only:
    /// when nobody answers, the cause is elsewhere, and the deadlines decide.
    pub fn lagging(&mut self, now: Time) -> Vec<usize> {
        let mut lagging = Vec::new();
        if self.spare == 0 {
            return lagging;
        }
        // What a lane lacks: that it has it, and that it has it durably.
        let lacks = |place: &Place, durably: bool| match durably {
            false => !place.acknowledged,
            true => (self.lanes[place.lane].durable + 1..=self.lanes[place.lane].asked).contains(&place.end),
        };
        for sent in &mut self.sent {
            for (since, durably) in sent.few_since.iter_mut().zip([false, true]) {
                let few = sent.places.iter().filter(|place| lacks(place, durably)).map(|place| place.lane);
                let few: Vec<usize> = few.collect();
                if few.is_empty() || few.len() > self.spare {
                    *since = None;
                } else if now.since(*since.get_or_insert(now)) >= SLOW {
                    lagging.extend(few);
                }
            }
        }
        lagging.sort_unstable();
        lagging.dedup();
        lagging
    }
    /// Lanes that owe answers and have been silent for so long that their members are looked at; `most` in one go.
    pub fn silent(&mut self, now: Time, most: usize) -> Vec<usize> {
        let late = self.lanes.iter().filter(|lane| lane.silence.is_late(now)).count();
        let elsewhere = self.spare > 0 && late > self.spare;
        let lanes = self.lanes.iter_mut().enumerate();
        let silent = lanes.filter(|(_, lane)| !elsewhere || lane.silence.lasts(now, ALL_SILENT));
        silent.filter_map(|(number, lane)| lane.silence.takes_look(now).then_some(number)).take(most).collect()
    }
    /// Somebody waits for all of it.
    pub fn want_sync(&mut self) {
        self.sent.iter_mut().for_each(|sent| sent.part.sync = true);
    }
    /// Where what is not durable and has no name lies: chunk, kind, offset and bytes.
    pub fn unsynced_places(&self) -> Vec<(ChunkId, ExtentKind, u64, u64)> {
        let unnamed = self.sent.iter().filter(|sent| !sent.part.is_shown_in(self.id()));
        let places = unnamed.flat_map(|sent| -> Vec<_> {
            match self.kind {
                ExtentKind::Erasure(_) => vec![(self.id(), self.kind, sent.offset, sent.part.bytes.len())],
                // The chunks of a set are given back one by one.
                ExtentKind::Plain | ExtentKind::Set(_) => {
                    let own =
                        |p: &Place| (self.lanes[p.lane].made.chunk, ExtentKind::Plain, p.offset, p.end - p.offset);
                    sent.places.iter().map(own).collect()
                }
            }
        });
        places.collect()
    }
    /// Everything that is not durable, in order, to be sent elsewhere.
    pub fn take_unsynced(&mut self) -> Vec<Part> {
        self.closing = true;
        self.in_flight = 0;
        self.sent.drain(..).map(|sent| sent.part).collect()
    }
}

/// The record of a set with these columns, which is named by its first chunk.
fn record(columns: &[Lane]) -> StripeSet {
    let (pgs, indices): (Vec<u32>, Vec<u32>) =
        columns.iter().map(|lane| (lane.made.chunk.pg.0, lane.made.chunk.index)).unzip();
    StripeSet { pg: pgs[0], index: indices[0], column_pgs: pgs, column_indices: indices }
}

#[cfg(test)]
mod tests;
