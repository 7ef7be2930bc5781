//! The contents of an open file, shared by all its handles in this process: what is known of its attributes and
//! extents, what was written and not published yet, what was read ahead.
//!
//! Written bytes are *dirty* until they are taken for a *flight*, which writes them to new space and ends when they are
//! durable; flights are *published* in the order of their taking, and only then are their bytes forgotten. Reading puts
//! dirty bytes over flights over what is published. Invariants: bytes leave the memory only after they were published,
//! or cut by a later truncation; the budget holds the bytes of dirty parts, flights and blocks read ahead; an older
//! flight is never put over a newer one. Small dirty parts go in place instead (`in_place`): below all flights, they
//! were there before any that is. Not here: when to write in the background, permissions, locks (`vfs`).
mod change;
pub(crate) mod clone;
mod doubt;
mod flight;
mod guard;
mod in_place;
mod later;
mod publish;
pub(crate) mod read;
mod rows;
mod seek;
mod show;
mod shut_out;
mod turn;

use super::ahead::Blocks;
use super::budget::Budget;
use super::dirty::Dirty;
use super::extents::ExtentCache;
use super::in_doubt::Doubt;
use crate::attributes::Attributes;
use crate::error::{ClientError, Result};
use crate::meta::volume::{Volume, shown};
use crate::opened::Opened;
use cairn_env::buf::SharedBuf;
use cairn_types::{ErrorCode, Layout, Time};
use cairn_wire::common::{Extent, StripeSet};
use flight::Flight;
use guard::Guard;
use in_place::InPlace;
use later::Later;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use turn::Rivals;

/// Times that something is begun anew because the file or the session was another meanwhile.
const TRIES: usize = 8;

/// See the module.
pub struct FileData {
    volume: Volume,
    inode: u64,
    shown_as: Vec<u8>,
    budget: Arc<Budget>,
    state: Mutex<State>,
    /// Publishing, truncating and punching happen one after the other.
    order: tokio::sync::Mutex<()>,
    /// Held while blocks are overwritten in place and while the lease for that is taken or given back.
    using: tokio::sync::Mutex<()>,
    /// Held while the servers are told of attributes that waited.
    telling: tokio::sync::Mutex<()>,
    /// Held while the mark is looked at that shuts writers out.
    guarding: tokio::sync::Mutex<()>,
    /// A publish is not on its way any more.
    publish_ended: tokio::sync::Notify,
}

struct State {
    attributes: Attributes,
    /// When they were answered; none: they are known to be old.
    fresh: Option<Time>,
    layout: Layout,
    extents: ExtentCache,
    blocks: Blocks,
    dirty: Dirty,
    dirty_since: Option<Time>,
    /// The oldest first.
    flights: VecDeque<Arc<Flight>>,
    next_flight: u64,
    in_place: InPlace,
    unpublished_since: Option<Time>,
    /// Bytes from here on were appended behind the end that was known, and move if the file turns out to be longer.
    appended_from: Option<u64>,
    /// An append that is done, or not, at the version that is known.
    doubt: Option<Arc<Mutex<Doubt>>>,
    rivals: Rivals,
    /// Of the last write or as it was set since; `None`: the server's time of the publish.
    mtime_ns: Option<i64>,
    /// When the last write was that is not published.
    wrote_ns: i64,
    /// On whose behalf it is published.
    writer: Volume,
    /// Times that somebody else was found to have changed the contents.
    foreign: u64,
    /// Something was cut off since everything was durable: what replaces it has to be before it is seen.
    was_cut: bool,
    /// A publish is on its way: an answer to another call may tell of it, and is not taken for somebody else's change.
    publishing: bool,
    /// Attributes that are set here and that the servers do not know yet.
    later: Option<Later>,
    /// Version of the contents with which this client made the file.
    made_at: Option<u64>,
    guard: Guard,
}

/// Who writes, and when.
#[derive(Clone, Copy)]
pub struct Writer<'a> {
    pub volume: &'a Volume,
    /// 0: the server's time of the publish.
    pub mtime_ns: i64,
    /// As [`FileData::guard`] answered it; 0: he cannot be shut out.
    pub generation: u64,
}

/// What a file's memory holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DataStatus {
    pub dirty_bytes: usize,
    pub flight_bytes: usize,
    pub ahead_bytes: usize,
    /// Flights on their way or waiting to be published.
    pub flights: usize,
    /// How long ago the oldest dirty byte was written, and the oldest that is not published.
    pub dirty_age: Option<Duration>,
    pub unpublished_age: Option<Duration>,
    /// Bytes that are durable and wait to be published.
    pub durable_bytes: usize,
    /// How long ago blocks were changed in place that the metadata was not told of.
    pub untold_age: Option<Duration>,
    /// How long ago the oldest attributes were set that the servers were not told of.
    pub later_age: Option<Duration>,
}

/// Who changed what an answer tells of.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum By {
    /// An operation of this file's own, which raised the version by one at most.
    Own,
    Unknown,
}

impl State {
    fn held(&self) -> usize {
        let in_place = self.in_place.under_way.as_ref().map_or(0, |data| data.bytes());
        self.dirty.bytes() + in_place + self.flights.iter().map(|flight| flight.data.bytes()).sum::<usize>()
    }
    /// The size with what is not published.
    fn size(&self) -> u64 {
        let flights = self.flights.iter().map(|flight| flight.data.end()).max().unwrap_or(0);
        self.attributes.size.max(self.dirty.end()).max(flights)
    }
    /// Takes attributes of an answer. False if what is cached of the contents is not of that version.
    fn learn(&mut self, new: Attributes, now: Time, by: By) -> bool {
        let known = self.attributes.data_version;
        if new.generation < self.attributes.generation && new.data_version <= known {
            // An answer that was overtaken.
            return new.data_version == known;
        }
        let may_be_own = match (by, self.doubt.is_some()) {
            (By::Unknown, in_doubt) => self.publishing || in_doubt,
            // One that is the next version leaves none for what is in doubt.
            (By::Own, in_doubt) => in_doubt && new.data_version > known + 1,
        };
        if may_be_own && new.data_version > known {
            // The contents wait until it is known whose they are; names, owners and times are what this one says.
            self.attributes = of_contents(self.attributes, new);
            return false;
        }
        self.fresh = Some(now);
        let same = new.data_version == known || by == By::Own && new.data_version == known + 1;
        if new.data_version < known {
            self.forget_contents();
            return false;
        }
        self.layout = Layout::from_bits(new.layout).unwrap_or(self.layout);
        if by == By::Unknown && self.is_overwritten_elsewhere(&new) {
            // What was read of the same version may be old.
            self.blocks.clear();
            self.foreign += 1;
        }
        let end = self.attributes.size;
        let overtaken = new.generation < self.attributes.generation;
        self.attributes = if overtaken { of_contents(new, self.attributes) } else { new };
        if !same {
            self.forget_contents();
            self.foreign += 1;
        }
        if self.attributes.data_version > known {
            // It was asked for at the version before.
            self.doubt = None;
        }
        if let Some(from) = self.appended_from
            && (new.size > from || new.size < from && from == end)
        {
            self.relocate(from, new.size);
        }
        true
    }
    /// Another session may be changing blocks in place.
    fn is_overwritten_elsewhere(&self, new: &Attributes) -> bool {
        let own = self.in_place.lease.as_ref().map_or(0, |lease| lease.session.id.0);
        new.overwriter != 0 && new.overwriter != own
    }
    /// A change set the time of modification, after what is not published yet was written.
    fn newer_mtime(&mut self, answer: &Attributes) {
        if self.mtime_ns.is_some() && answer.mtime_ns != self.attributes.mtime_ns {
            self.mtime_ns = Some(answer.mtime_ns);
        }
    }
    fn forget_contents(&mut self) {
        self.extents.clear();
        self.blocks.clear();
    }
    /// Takes all flights back, so that what they hold is written again with what was written since.
    fn recall(&mut self, now: Time) {
        while let Some(flight) = self.flights.pop_back() {
            self.dirty.put_back(&flight.data);
        }
        if let Some(under_way) = self.in_place.under_way.take() {
            self.dirty.put_back(&under_way);
        }
        if !self.dirty.is_empty() {
            self.dirty_since.get_or_insert(now);
        }
    }
    /// Somebody else made the file longer, or cut it: what was appended here goes behind its end.
    fn relocate(&mut self, from: u64, to: u64) {
        if to < from || !self.comes_nearer(to - from) {
            self.recall(self.fresh.unwrap_or_default());
        }
        self.dirty.shift(from, to);
        self.blocks.cut(from.min(to), u64::MAX);
        self.appended_from = Some(to);
    }
    fn settle(&mut self) {
        if self.dirty.is_empty() {
            self.dirty_since = None;
            if self.flights.is_empty() && self.in_place.under_way.is_none() {
                self.unpublished_since = None;
                self.appended_from = None;
                self.doubt = None;
                if self.in_place.untold.is_none() {
                    self.mtime_ns = None;
                    self.wrote_ns = 0;
                }
            }
        }
    }
}

/// A publish is on its way as long as it lives.
struct Publishing<'a>(&'a FileData);

impl<'a> Publishing<'a> {
    fn begin(file: &'a FileData, state: &mut State) -> Self {
        state.publishing = true;
        Self(file)
    }
}

impl Drop for Publishing<'_> {
    fn drop(&mut self) {
        self.0.state.lock().publishing = false;
        self.0.publish_ended.notify_waiters();
    }
}

/// Attributes of one answer with what another one says of the contents.
fn of_contents(contents: Attributes, other: Attributes) -> Attributes {
    Attributes {
        size: contents.size,
        stored_bytes: contents.stored_bytes,
        data_version: contents.data_version,
        overwriter: contents.overwriter,
        ..other
    }
}

impl FileData {
    /// A file as an open answered it. `volume`: on whose behalf it is read.
    pub fn new(volume: &Volume, shown_as: &[u8], opened: &Opened, budget: Arc<Budget>) -> Result<Arc<FileData>> {
        let attributes = opened.attributes;
        let layout = Layout::from_bits(attributes.layout)
            .ok_or_else(|| ClientError::protocol(&shown(shown_as), "the file's layout is not known to this version"))?;
        let mut extents = ExtentCache::default();
        let known_to = match (opened.end, opened.extents.last()) {
            (true, _) => u64::MAX,
            (false, Some(last)) => last.file_offset + last.length,
            (false, None) => 0,
        };
        if known_to > 0 {
            extents.learn(0, known_to, &opened.extents, &opened.sets);
        }
        let state = State {
            attributes,
            fresh: Some(volume.cluster().clock.now()),
            layout,
            extents,
            blocks: Blocks::new(budget.clone()),
            dirty: Dirty::default(),
            dirty_since: None,
            flights: VecDeque::new(),
            next_flight: 1,
            in_place: InPlace::default(),
            unpublished_since: None,
            appended_from: None,
            doubt: None,
            rivals: Rivals::default(),
            mtime_ns: None,
            wrote_ns: 0,
            writer: volume.clone(),
            // What whoever opens it keeps of it may be old.
            foreign: u64::from(attributes.overwriter != 0),
            was_cut: false,
            publishing: false,
            later: None,
            made_at: None,
            guard: Guard::default(),
        };
        Ok(Arc::new(FileData {
            volume: volume.clone(),
            inode: attributes.inode,
            shown_as: shown_as.to_vec(),
            budget,
            state: Mutex::new(state),
            order: tokio::sync::Mutex::new(()),
            using: tokio::sync::Mutex::new(()),
            telling: tokio::sync::Mutex::new(()),
            guarding: tokio::sync::Mutex::new(()),
            publish_ended: tokio::sync::Notify::new(),
        }))
    }
    pub fn inode(&self) -> u64 {
        self.inode
    }
    fn what(&self) -> String {
        shown(&self.shown_as)
    }
    fn named(&self, error: ClientError) -> ClientError {
        error.named(&self.what())
    }
    fn now(&self) -> Time {
        self.volume.cluster().clock.now()
    }
    /// Changes the state; what it holds less afterwards is free again.
    fn with<T>(&self, reserved: usize, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock();
        let before = state.held() + reserved;
        let outcome = change(&mut state);
        let after = state.held();
        drop(state);
        assert!(before >= after, "bytes are reserved before they are written");
        self.budget.release(before - after);
        outcome
    }

    /// Attributes as known, with what was written here and is not published taken into account.
    pub fn attributes(&self) -> Attributes {
        let state = self.state.lock();
        let mut attributes = state.attributes;
        attributes.size = state.size();
        if let Some(later) = &state.later {
            later.put_over(&mut attributes);
        }
        attributes.mtime_ns = state.mtime_ns.unwrap_or(attributes.mtime_ns);
        // What a write changes, too, whatever time of modification was set since.
        attributes.ctime_ns = attributes.ctime_ns.max(state.wrote_ns);
        // Space that is about to be taken.
        attributes.stored_bytes += state.held() as u64;
        attributes
    }
    /// How long ago the attributes were answered; longer than any limit if they are known to be old.
    pub fn age(&self) -> Duration {
        let fresh = self.state.lock().fresh;
        fresh.map_or(Duration::MAX, |fresh| self.now().since(fresh))
    }
    /// Somebody changed attributes by a name: the next question goes to the servers.
    pub fn make_old(&self) {
        self.state.lock().fresh = None;
    }
    /// It has no name any more, and is kept because it is open.
    pub fn lost_name(&self) {
        self.state.lock().attributes.nlink = 0;
    }
    /// Version of the contents that is known to be published.
    pub fn data_version(&self) -> u64 {
        self.state.lock().attributes.data_version
    }
    /// Times that somebody else's change of the contents was noticed.
    pub fn foreign_changes(&self) -> u64 {
        self.state.lock().foreign
    }
    /// Nothing waits to be written or published.
    pub fn is_clean(&self) -> bool {
        let state = self.state.lock();
        let contents = state.dirty.is_empty() && state.flights.is_empty() && state.in_place.under_way.is_none();
        contents && state.later.is_none()
    }
    /// The same, and it is durable, whoever wrote it.
    pub fn is_durable(&self) -> bool {
        self.is_clean() && self.state.lock().attributes.volatile_of == 0 && !self.volume.has_volatile(self.inode)
    }
    pub fn status(&self) -> DataStatus {
        let now = self.now();
        let state = self.state.lock();
        let flight_bytes = state.flights.iter().map(|flight| flight.data.bytes()).sum();
        DataStatus {
            dirty_bytes: state.dirty.bytes(),
            flight_bytes,
            ahead_bytes: state.blocks.bytes(),
            flights: state.flights.len(),
            dirty_age: state.dirty_since.map(|since| now.since(since)),
            unpublished_age: state.unpublished_since.map(|since| now.since(since)),
            untold_age: state.in_place.untold.map(|since| now.since(since)),
            later_age: state.later.as_ref().map(|later| now.since(later.since)),
            durable_bytes: state.flights.iter().take_while(|f| f.is_durable()).map(|f| f.data.bytes()).sum(),
        }
    }
    /// Takes attributes that another call answered.
    pub fn learn(&self, attributes: Attributes) {
        self.learn_as(attributes, By::Unknown);
    }
    fn learn_as(&self, attributes: Attributes, by: By) {
        let now = self.now();
        self.with(0, |state| {
            state.learn(attributes, now, by);
        });
    }
    /// The answer of another open.
    pub fn reopened(&self, opened: &Opened) {
        let attributes = opened.attributes;
        let now = self.now();
        self.with(0, |state| {
            let fits = state.learn(attributes, now, By::Unknown);
            if fits && attributes.data_version == state.attributes.data_version && opened.end {
                state.extents.learn(0, u64::MAX, &opened.extents, &opened.sets);
            }
        });
    }
    /// Asks for the attributes, and knows the contents of that version afterwards: if it is a later one than is known,
    /// and may be that of an own publish, the end of that is waited for.
    pub async fn refresh(&self) -> Result<Attributes> {
        for _ in 0..TRIES {
            let found = self.volume.getattr(self.inode).await.map_err(|e| self.named(e))?;
            self.learn(found);
            if self.data_version() >= found.data_version {
                break;
            }
            self.wait_for_publish(found.data_version).await;
            if self.data_version() >= found.data_version {
                break;
            }
            self.settle_doubt().await?;
        }
        Ok(self.attributes())
    }
    /// Waits until no publish is on its way, or that version is known.
    async fn wait_for_publish(&self, version: u64) {
        loop {
            let ended = self.publish_ended.notified();
            tokio::pin!(ended);
            // From here on no notification is missed.
            ended.as_mut().enable();
            {
                let state = self.state.lock();
                if !state.publishing || state.attributes.data_version >= version {
                    return;
                }
            }
            ended.await;
        }
    }

    /// Puts bytes into the file, over what is there or beyond its end. As many have to be reserved in the budget
    /// before; the time is that of the write.
    pub fn write(self: &Arc<Self>, by: Writer<'_>, offset: u64, data: SharedBuf) -> Result<()> {
        let reserved = data.len();
        self.with(reserved, |state| {
            self.check_room(state, &by, offset, reserved)?;
            self.put(state, by, offset, data);
            Ok(())
        })
    }
    /// Puts bytes behind the end, wherever it turns out to be. Returns where that is as far as is known.
    pub fn append(self: &Arc<Self>, by: Writer<'_>, data: SharedBuf) -> Result<u64> {
        let reserved = data.len();
        self.with(reserved, |state| {
            let offset = state.size();
            self.check_room(state, &by, offset, reserved)?;
            state.appended_from.get_or_insert(offset);
            self.put(state, by, offset, data);
            Ok(offset)
        })
    }
    fn check_room(&self, state: &State, by: &Writer<'_>, offset: u64, length: usize) -> Result<()> {
        if state.is_shut_out(by.generation) {
            return Err(self.shut_out_error());
        }
        match offset.checked_add(length as u64).is_none_or(|end| end > i64::MAX as u64) {
            true => Err(ClientError::remote(&self.what(), ErrorCode::FileTooLarge, "no file is that long")),
            false => Ok(()),
        }
    }
    fn put(&self, state: &mut State, by: Writer<'_>, offset: u64, data: SharedBuf) {
        let (now, mtime_ns) = (self.now(), by.mtime_ns);
        state.writer = by.volume.clone();
        state.mtime_ns = Some(mtime_ns).filter(|ns| *ns != 0);
        state.wrote_ns = mtime_ns;
        state.wrote_later();
        state.dirty_since.get_or_insert(now);
        state.unpublished_since.get_or_insert(now);
        state.writes_over_doubt(offset, offset + data.len() as u64);
        state.dirty.write(offset, data);
    }
    /// The modification time was set: what is published later does not change it.
    pub fn set_mtime(&self, mtime_ns: i64) {
        let mut state = self.state.lock();
        if state.unpublished_since.is_some() || state.in_place.untold.is_some() {
            state.mtime_ns = Some(mtime_ns);
        }
    }
    /// Drops what was read ahead.
    pub fn drop_ahead(&self) {
        self.state.lock().blocks.clear();
    }

    /// Fetches extents until all of the range are known, of the version that the state is at.
    async fn know_extents(&self, from: u64, to: u64) -> Result<()> {
        loop {
            let (at, version, size) = {
                let state = self.state.lock();
                let size = state.attributes.size;
                let Some(at) = state.extents.unknown(from, to.min(size)) else { return Ok(()) };
                (at, state.attributes.data_version, size)
            };
            // Not only what is asked for: a page costs no more.
            let page = self.volume.extents(self.inode, at, size - at).await.map_err(|e| self.named(e))?;
            let end = page.end || page.extents.is_empty();
            let known_to = if end { size } else { page.extents.last().map_or(size, |e| e.file_offset + e.length) };
            let stale = {
                let mut state = self.state.lock();
                let fits = page.data_version == version && state.attributes.data_version == version;
                if fits {
                    state.extents.learn(at, known_to, &page.extents, &page.sets);
                }
                !fits && page.data_version != state.attributes.data_version
            };
            if stale {
                self.refresh().await?;
            }
        }
    }
    /// Something else is in the file's ranges now.
    fn published(state: &mut State, extents: &[Extent], sets: &[StripeSet]) {
        state.extents.put(extents, sets);
        for extent in extents {
            state.blocks.cut(extent.file_offset, extent.file_offset + extent.length);
        }
    }
}

impl Drop for FileData {
    fn drop(&mut self) {
        let state = self.state.lock();
        self.budget.release(state.held());
        if let Some(lease) = &state.in_place.lease {
            // Whoever watches it gives it back.
            lease.want();
        }
    }
}
