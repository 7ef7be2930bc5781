//! Overwriting published blocks where they are, under the file's overwrite lease.
//!
//! Dirty areas of whole blocks (partial ones are filled up with what is read back, verified) go to the chunks that have
//! them if they are small; everything else goes to new space as a flight. Invariants: blocks go in place only while the
//! file names them: the lease is held, no flight that is not published covers them, and own changes of the extents wait
//! (`order`); they count as durable only if the lease was still good when all members had answered; they stay in memory
//! until then. The metadata is told of changes in place some time later (`tell`), and by giving the lease back.
use super::flight::{FLIGHT_BYTES, RUNS_MAX};
use super::{By, FileData, Publishing, State, TRIES};
use crate::error::{ClientError, Result};
use crate::handle::dirty::Dirty;
use crate::handle::extents::{ExtentCache, Stretch};
use crate::handle::range_read::read_under;
use crate::handle::write_out::rows_of;
use crate::meta::lease::Lease;
use crate::overwrite::{BlockWrite, Epochs, Overwritten};
use cairn_env::buf::SharedBuf;
use cairn_types::{BLOCK_SIZE, ChunkId, EXTENT_SHARED, ErrorCode, ExtentKind, PgId, Time};
use cairn_wire::meta::PublishRequest;
use std::sync::Arc;
use std::time::Duration;

const BLOCK: u64 = BLOCK_SIZE as u64;
/// Runs from this length on go to new space: there they cost as little, and the members' journals are left to what is
/// small.
const RUN_MAX: u64 = 256 << 10;
/// Areas of a flush that are worth asking for the lease at once.
const AREAS_AT_ONCE: usize = 16;
/// Flushes of fewer areas after which it is asked for.
const FLUSHES: u32 = 2;
/// Bytes of an area up to which writing in the background goes in place, too.
const SCATTERED: usize = 64 << 10;
/// Whether it is scattered is looked at so often: that takes longer the more there is.
const SCATTERED_LOOK: Duration = Duration::from_millis(100);
/// Nothing goes in place for so long after a member refused it.
const REFUSED_PAUSE: Duration = Duration::from_millis(300);
/// The lease is not asked for so long after somebody else wanted it; doubled each time, up to the longest.
const WANTED_PAUSE: Duration = Duration::from_secs(10);
const WANTED_PAUSE_MAX: Duration = Duration::from_secs(160);
/// A lease that was not used for so long is given back.
const IDLE: Duration = Duration::from_secs(30);
/// A flush tries so long to write in place; then it goes to new space. Whoever wants the lease waits for it.
const CARRY_OUT_MAX: Duration = Duration::from_secs(10);
/// Times that extents are asked for because more was written meanwhile.
const PLANS: usize = 4;

/// What a file's memory knows of overwriting in place.
#[derive(Default)]
pub(super) struct InPlace {
    pub lease: Option<Arc<Lease>>,
    /// On their way to their blocks.
    pub under_way: Option<Arc<Dirty>>,
    /// Since when blocks were changed that no publish has told of.
    pub untold: Option<Time>,
    /// Not all requests were answered: some may still arrive. Until that was told with a lease.
    unanswered: bool,
    /// Flushes that could have gone in place.
    flushes: u32,
    not_before: Time,
    last_use: Time,
    /// Until then what is dirty counts as scattered without another look.
    scattered_until: Time,
    wanted: u32,
}

/// What became of everything that was dirty.
pub(super) enum Placed {
    /// Nothing of it goes in place.
    Not,
    /// What could be is in place, the rest is on its way; the last flight.
    Begun(Option<u64>),
    /// It is dirty again.
    Again,
}

/// Whole blocks of the file; the last one may go beyond its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Area {
    from: u64,
    to: u64,
}

/// A part of an area in one chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Target {
    chunk: ChunkId,
    offset: u64,
    from: u64,
    to: u64,
}

/// What is sent.
struct Plan {
    lease: Arc<Lease>,
    data: Arc<Dirty>,
    targets: Vec<Target>,
    /// Bytes that are missing of the blocks, in order.
    missing: Vec<Stretch>,
    last: Option<u64>,
}

enum Planning {
    Nothing,
    Unknown(Vec<Area>),
    Ready(Plan),
}

impl State {
    /// Small areas of dirty bytes where something is published, and nothing that is on its way.
    fn areas(&self) -> Vec<Area> {
        if self.is_guarded() || self.layout.stripe().is_some() || rows_of(self.layout).is_some() {
            return Vec::new();
        }
        let size = self.attributes.size;
        let floats = self.appended_from.unwrap_or(u64::MAX);
        let mut areas: Vec<(Area, bool)> = Vec::new();
        for (from, to) in self.dirty.spans() {
            let fits = to - from < RUN_MAX && to <= size.min(floats);
            let area = Area { from: from - from % BLOCK, to: to.next_multiple_of(BLOCK) };
            match areas.last_mut() {
                Some((last, all)) if last.to > area.from => {
                    last.to = area.to;
                    *all &= fits;
                }
                _ => areas.push((area, fits)),
            }
        }
        let free = |area: &Area| !self.flights.iter().any(|flight| flight.data.overlaps(area.from, area.to));
        areas.into_iter().filter(|(area, fits)| *fits && free(area)).map(|(area, _)| area).collect()
    }
    /// Whether what is dirty is better written in place than to new space.
    pub(super) fn is_scattered(&mut self, now: Time) -> bool {
        if self.dirty.is_empty() || now < self.in_place.not_before {
            return false;
        }
        if now < self.in_place.scattered_until {
            return true;
        }
        let areas = self.areas();
        let bytes: u64 = areas.iter().map(|area| area.to - area.from).sum();
        let few = areas.is_empty() || areas.len() < AREAS_AT_ONCE && self.in_place.lease.is_none();
        let scattered = !few && bytes as usize / areas.len() < SCATTERED && bytes as usize * 2 >= self.dirty.bytes();
        if scattered {
            self.in_place.scattered_until = now + SCATTERED_LOOK;
        }
        scattered
    }
    fn plan(&mut self, lease: &Arc<Lease>, begin: impl FnOnce(&mut State)) -> Planning {
        let (areas, size) = (self.areas(), self.attributes.size);
        let known = |area: &&Area| self.extents.unknown(area.from, area.to.min(size)).is_some();
        let unknown: Vec<Area> = areas.iter().filter(known).copied().collect();
        if !unknown.is_empty() {
            return Planning::Unknown(unknown);
        }
        let (mut data, mut targets, mut missing) = (Dirty::default(), Vec::new(), Vec::new());
        for area in areas {
            let Some(own) = targets_of(&self.extents, area, size) else { continue };
            let taken = self.dirty.take_range(area.from, area.to);
            for (from, to) in taken.gaps(area.from, area.to.min(size)) {
                missing.extend(self.extents.stretches(from, to));
            }
            data.put_back(&taken);
            targets.extend(own);
        }
        if targets.is_empty() {
            return Planning::Nothing;
        }
        // What is left goes to new space at the same time.
        begin(self);
        let data = Arc::new(data);
        self.in_place.under_way = Some(data.clone());
        let last = self.flights.back().map(|flight| flight.id);
        Planning::Ready(Plan { lease: lease.clone(), data, targets, missing, last })
    }
}

/// Where the blocks of an area are. `None` if one of them is not wholly in one extent of a replicated chunk (what the
/// file does not name of a block cannot be written there) or another file may have it as well.
fn targets_of(extents: &ExtentCache, area: Area, size: u64) -> Option<Vec<Target>> {
    let end = area.to.min(size);
    let target = |stretch: Stretch| {
        let extent = stretch.extent?;
        let whole = stretch.from.is_multiple_of(BLOCK) && (stretch.to.is_multiple_of(BLOCK) || stretch.to == size);
        let plain =
            ExtentKind::from_flags(extent.flags) == Some(ExtentKind::Plain) && extent.flags & EXTENT_SHARED == 0;
        let chunk = ChunkId { pg: PgId(extent.pg), index: extent.index };
        let (from, to) = (stretch.from, stretch.to);
        (whole && plain).then_some(Target { chunk, offset: extent.chunk_offset, from, to })
    };
    extents.stretches(area.from, end).into_iter().map(target).collect()
}

/// The bytes of the blocks, filled up with zeros behind the end of the file.
fn writes(plan: &Plan, missing: &[SharedBuf]) -> Vec<BlockWrite> {
    let mut whole = Dirty::default();
    whole.put_back(&plan.data);
    let mut rest = missing.iter().flat_map(|part| part.iter().copied());
    for stretch in &plan.missing {
        let bytes: Vec<u8> = rest.by_ref().take((stretch.to - stretch.from) as usize).collect();
        whole.fill(stretch.from, &SharedBuf::from_owner(bytes));
    }
    let write = |target: &Target| {
        let end = target.to.next_multiple_of(BLOCK);
        let pieces = whole.pieces(target.from, end);
        let data = match &pieces[..] {
            [(at, piece)] if *at == target.from && piece.len() as u64 == end - target.from => piece.clone(),
            pieces => {
                let mut bytes = vec![0; (end - target.from) as usize];
                for (at, piece) in pieces {
                    let at = (at - target.from) as usize;
                    bytes[at..at + piece.len()].copy_from_slice(piece);
                }
                SharedBuf::from_owner(bytes)
            }
        };
        BlockWrite { chunk: target.chunk, offset: target.offset, data }
    };
    plan.targets.iter().map(write).collect()
}

/// Takes what is under way back if nobody said what became of it: its bytes are dirty again.
struct PutBack<'a>(&'a FileData);

impl Drop for PutBack<'_> {
    fn drop(&mut self) {
        let now = self.0.now();
        self.0.with(0, |state| {
            if state.in_place.under_way.is_some() {
                // Requests may still be on their way: new space is the better place until they have ended.
                state.in_place.unanswered = true;
                state.in_place.not_before = state.in_place.not_before.max(now + REFUSED_PAUSE);
                state.recall(now);
            }
        });
    }
}

impl FileData {
    /// Whether what is dirty goes in place when it is flushed.
    pub fn goes_in_place(&self) -> bool {
        let now = self.now();
        self.state.lock().is_scattered(now)
    }
    /// Number of the lease, for requests that change what the file names.
    pub(super) fn lease_number(&self) -> u64 {
        self.state.lock().in_place.lease.as_ref().map_or(0, |lease| lease.number)
    }

    /// Writes what is dirty: in place what can be, the rest to new space. Under the lock of the order.
    pub(super) async fn write_in_place(self: &Arc<Self>) -> Result<Placed> {
        let using = self.using.lock().await;
        let Some(lease) = self.lease().await else { return Ok(Placed::Not) };
        let Some(plan) = self.plan_in_place(&lease).await? else { return Ok(Placed::Not) };
        // Whoever does not wait for the end of this, or panics, leaves nothing under way.
        let left = PutBack(self);
        let carried = tokio::time::timeout(CARRY_OUT_MAX, self.carry_out(&plan)).await;
        let outcomes = carried.unwrap_or_else(|_| {
            let (seconds, last) = (CARRY_OUT_MAX.as_secs(), "members take too long".to_owned());
            Err(ClientError::OutcomeUnknown { what: self.what(), seconds, last, again: None })
        });
        if outcomes.is_err() {
            self.state.lock().in_place.unanswered = true;
        }
        // Everything was answered by now, or given up: if the lease is still good, the file named these blocks all the
        // time.
        let kept = self.volume.confirm_lease(&lease).await;
        drop(using);
        if !kept {
            self.lose_lease(&lease);
            return Ok(Placed::Again);
        }
        let refused: Vec<Target> = match outcomes {
            Ok(outcomes) => {
                let refused =
                    outcomes.iter().zip(&plan.targets).filter(|(outcome, _)| **outcome != Overwritten::InPlace);
                refused.map(|(_, target)| *target).collect()
            }
            Err(error) => {
                tracing::debug!(inode = self.inode, %error, "blocks were not overwritten in place; they go to new space");
                plan.targets.clone()
            }
        };
        let placed = self.end_in_place(&plan, &refused);
        drop(left);
        Ok(placed)
    }

    /// The lease, asked for if it is worth it.
    async fn lease(self: &Arc<Self>) -> Option<Arc<Lease>> {
        let now = self.now();
        let held = {
            let mut state = self.state.lock();
            let areas = if now < state.in_place.not_before { 0 } else { state.areas().len() };
            if areas == 0 {
                return None;
            }
            state.in_place.last_use = now;
            let held = state.in_place.lease.clone();
            if held.is_none() {
                state.in_place.flushes += 1;
                if areas < AREAS_AT_ONCE && state.in_place.flushes <= FLUSHES {
                    return None;
                }
            }
            held
        };
        if let Some(lease) = held {
            if self.volume.confirm_lease(&lease).await {
                return Some(lease);
            }
            self.lose_lease(&lease);
            return None;
        }
        if self.make_durable().await.is_err() {
            // Members overwrite only what is durable.
            return None;
        }
        match self.volume.take_lease(self.inode, &self.shown_as).await {
            Ok(Some((lease, attributes))) => {
                let now = self.now();
                let fits = self.with(0, |state| {
                    state.in_place.lease = Some(lease.clone());
                    // What changed before the grant makes what is cached of the extents old.
                    state.learn(attributes, now, By::Unknown);
                    state.attributes.data_version == attributes.data_version
                });
                self.watch(&lease);
                // Else something is in doubt, and the extents are those of before.
                fits.then_some(lease)
            }
            Ok(None) => {
                self.was_wanted();
                None
            }
            Err(error) => {
                tracing::debug!(inode = self.inode, %error, "no lease for overwriting in place");
                self.was_wanted();
                None
            }
        }
    }
    /// Gives the lease back when it is wanted.
    fn watch(self: &Arc<Self>, lease: &Arc<Lease>) {
        let (file, lease, volume) = (Arc::downgrade(self), lease.clone(), self.volume.clone());
        tokio::spawn(async move {
            if !lease.wanted().await {
                return;
            }
            let given = match file.upgrade() {
                Some(file) => {
                    file.was_wanted();
                    file.give_back(&lease).await
                }
                None => volume.give_lease(&lease, true, 0, false).await.map(|_| ()),
            };
            if let Err(error) = given {
                tracing::debug!(inode = lease.inode, %error, "an overwrite lease is given back when it is asked for again");
            }
        });
    }
    /// Others use the file: new space is the better place for a while.
    fn was_wanted(&self) {
        let now = self.now();
        let mut state = self.state.lock();
        let pause = (WANTED_PAUSE * (1 << state.in_place.wanted.min(4))).min(WANTED_PAUSE_MAX);
        state.in_place.wanted += 1;
        state.in_place.not_before = now + pause;
    }
    fn lose_lease(&self, lease: &Arc<Lease>) {
        lease.want();
        let now = self.now();
        self.with(0, |state| {
            if state.in_place.lease.as_ref().is_some_and(|own| Arc::ptr_eq(own, lease)) {
                state.in_place.lease = None;
                // The end of its session has told of it.
                state.in_place.untold = None;
            }
            state.recall(now);
        });
    }

    async fn plan_in_place(self: &Arc<Self>, lease: &Arc<Lease>) -> Result<Option<Plan>> {
        for _ in 0..PLANS {
            let now = self.now();
            let planning = self.with(0, |state| {
                let planning = state.plan(lease, |state| self.begin_rest(state));
                if matches!(planning, Planning::Ready(_)) {
                    state.in_place.untold.get_or_insert(now);
                    if state.dirty.is_empty() {
                        state.dirty_since = None;
                    }
                }
                planning
            });
            match planning {
                Planning::Nothing => return Ok(None),
                Planning::Ready(plan) => return Ok(Some(plan)),
                Planning::Unknown(areas) => {
                    for area in areas {
                        self.know_extents(area.from, area.to).await?;
                    }
                }
            }
        }
        Ok(None)
    }
    /// Fills blocks up and sends them. What was read back may be old in another epoch: then it is read anew.
    async fn carry_out(&self, plan: &Plan) -> Result<Vec<Overwritten>> {
        loop {
            let under = Arc::new(self.epochs(&plan.missing).await?);
            match self.carry_out_under(plan, &under).await {
                Err(error) if !self.is_under(&under) => {
                    tracing::debug!(inode = self.inode, %error, "a placement group moved on; blocks are filled up anew");
                }
                outcomes => return outcomes,
            }
        }
    }
    async fn carry_out_under(&self, plan: &Plan, under: &Arc<Epochs>) -> Result<Vec<Overwritten>> {
        let missing = match plan.missing.is_empty() {
            true => Vec::new(),
            false => read_under(&self.volume, &self.what(), &plan.missing, under).await?,
        };
        let (had, wanted) = (
            missing.iter().map(|part| part.len() as u64).sum::<u64>(),
            plan.missing.iter().map(|stretch| stretch.to - stretch.from).sum::<u64>(),
        );
        if had != wanted {
            return Err(ClientError::protocol(&self.what(), format!("{had} bytes were read back instead of {wanted}")));
        }
        self.volume.overwrite_under(&plan.lease, under, &writes(plan, &missing)).await
    }
    /// The epochs in which the groups are that have the bytes.
    async fn epochs(&self, missing: &[Stretch]) -> Result<Epochs> {
        let cluster = self.volume.cluster();
        let mut epochs = Epochs::new();
        for pg in missing.iter().filter_map(|stretch| stretch.extent.as_ref()).map(|extent| PgId(extent.pg)) {
            let known = || cluster.view().pgs.get(&pg.0).map(|group| group.epoch);
            if known().is_none() {
                cluster.refresh().await?;
            }
            let unknown = || ClientError::protocol(&self.what(), format!("{pg} is not in the map"));
            epochs.insert(pg, known().ok_or_else(unknown)?);
        }
        Ok(epochs)
    }
    fn is_under(&self, epochs: &Epochs) -> bool {
        let view = self.volume.cluster().view();
        epochs.iter().all(|(pg, epoch)| view.pgs.get(&pg.0).is_some_and(|known| known.epoch == *epoch))
    }
    /// The blocks are in place but for those that were refused, which go to new space.
    fn end_in_place(self: &Arc<Self>, plan: &Plan, refused: &[Target]) -> Placed {
        let now = self.now();
        self.with(0, |state| {
            if !refused.is_empty() {
                state.in_place.not_before = state.in_place.not_before.max(now + REFUSED_PAUSE);
            }
            let Some(under_way) = state.in_place.under_way.take() else { return Placed::Again };
            for target in &plan.targets {
                state.blocks.cut(target.from, target.to);
            }
            let mut back = Dirty::default();
            for target in refused {
                under_way.pieces(target.from, target.to).iter().for_each(|(at, data)| back.fill(*at, data));
            }
            let covered = |target: &Target| state.flights.iter().any(|f| f.data.overlaps(target.from, target.to));
            if refused.iter().any(covered) {
                // Newer bytes are on their way and stay above these.
                state.recall(now);
                state.dirty.put_back(&back);
                state.dirty_since.get_or_insert(now);
                return Placed::Again;
            }
            let mut last = plan.last;
            while !back.is_empty() {
                let data = back.take(RUNS_MAX, FLIGHT_BYTES);
                let runs = data.runs();
                last = Some(self.begin(state, data, runs, 0).id);
            }
            state.settle();
            Placed::Begun(last)
        })
    }

    /// Tells the metadata that blocks were changed in place, and when.
    pub async fn tell(self: &Arc<Self>) -> Result<()> {
        if self.state.lock().in_place.untold.is_none() {
            return Ok(());
        }
        let _order = self.order.lock().await;
        let mut last = None;
        for _ in 0..TRIES {
            let Some((_publishing, writer, request)) = self.untold() else { return Ok(()) };
            match writer.publish(self.inode, &self.shown_as, request).await {
                Ok(answer) => {
                    let now = self.now();
                    self.with(0, |state| {
                        state.in_place.untold = None;
                        state.learn(answer, now, By::Own);
                        state.settle();
                    });
                    return Ok(());
                }
                // A second time does no harm, under another session neither.
                Err(error) if error.code() == Some(ErrorCode::SessionEnded) => last = Some(error),
                Err(error) => return Err(self.named(error)),
            }
        }
        Err(self.named(last.unwrap_or_else(|| ClientError::Changed { what: self.what() })))
    }
    fn untold(&self) -> Option<(Publishing<'_>, crate::Volume, PublishRequest)> {
        let mut state = self.state.lock();
        state.in_place.untold?;
        let lease = state.in_place.lease.as_ref()?.number;
        let request = PublishRequest { lease, ..state.with_mtime() };
        let writer = state.writer.clone();
        Some((Publishing::begin(self, &mut state), writer, request))
    }
    /// Makes everything written so far durable and visible, times included.
    pub async fn finish(self: &Arc<Self>) -> Result<()> {
        self.flush().await?;
        self.tell().await
    }
    /// Nothing waits to be written, published or told.
    pub fn is_settled(&self) -> bool {
        self.is_clean() && self.state.lock().in_place.untold.is_none()
    }
    pub fn has_lease(&self) -> bool {
        self.state.lock().in_place.lease.is_some()
    }
    /// The lease was not used for a while.
    pub fn has_idle_lease(&self) -> bool {
        let now = self.now();
        let state = self.state.lock();
        state.in_place.lease.is_some() && now.since(state.in_place.last_use) > IDLE
    }
    /// Gives the lease back, if there is one.
    pub async fn end_lease(&self) -> Result<()> {
        let lease = self.state.lock().in_place.lease.clone();
        match lease {
            Some(lease) => self.give_back(&lease).await,
            None => Ok(()),
        }
    }
    async fn give_back(&self, lease: &Arc<Lease>) -> Result<()> {
        // What is under way is waited for.
        let _using = self.using.lock().await;
        let (writer, changed, mtime_ns, answered) = {
            let mut state = self.state.lock();
            if !state.in_place.lease.as_ref().is_some_and(|own| Arc::ptr_eq(own, lease)) {
                return Ok(());
            }
            state.in_place.lease = None;
            let changed = state.in_place.untold.take().is_some();
            let answered = !std::mem::take(&mut state.in_place.unanswered);
            (state.writer.clone(), changed, state.mtime_ns.unwrap_or(0) as u64, answered)
        };
        let answer = writer.give_lease(lease, changed, mtime_ns, answered).await.map_err(|e| self.named(e))?;
        let now = self.now();
        self.with(0, |state| {
            // Only what was changed raised the version.
            state.learn(answer, now, if changed { By::Own } else { By::Unknown });
            state.settle();
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests;
