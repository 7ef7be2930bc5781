//! Publishing: durable flights become part of the file, in their order.
use super::flight::{Flight, RUNS_MAX};
use super::in_place::Placed;
use super::later::Along;
use super::turn::InTurn;
use super::{By, FileData, Publishing, State};
use crate::attributes::Attributes;
use crate::changes::{SetAttributes, SetTime};
use crate::encoded_message::Coming;
use crate::error::{ClientError, Result};
use crate::file_writer::body::Body;
use crate::meta::volume::Volume;
use crate::moving::joined;
use cairn_types::{EXTENT_SHARED, ErrorCode};
use cairn_wire::common::{Extent, StripeSet};
use cairn_wire::meta::PublishRequest;
use std::sync::Arc;
use std::time::Duration;

/// Times that a publish is repeated because others change the file at the same time.
const CONFLICTS_MAX: usize = 64;

/// Times that everything is written again because the end of the file or the session was another one.
const FLUSH_TRIES: u64 = 200;

/// Number of an append that has no turn, and waits for one if others have.
const NO_TURN: u64 = 1;

/// How an attempt ended that did not fail.
#[derive(PartialEq, Eq)]
pub(super) enum Published {
    All,
    /// What was written is dirty again: the session or the end of the file was another.
    WriteAgain,
}

/// What a publish asks for.
enum Asked<'a> {
    For(Box<(Publishing<'a>, Volume, PublishRequest)>),
    /// Others changed the file, and its mark has to be looked at first.
    Unseen,
    /// The flights were taken back meanwhile: the end of the file was another one, and what was appended goes behind
    /// it; or they were dropped.
    Gone,
}

impl FileData {
    /// Makes everything that was written so far through this client durable and visible.
    pub async fn flush(self: &Arc<Self>) -> Result<()> {
        if !self.is_clean() {
            let _order = self.order.lock().await;
            self.flush_in_order().await?;
        }
        self.make_durable().await
    }
    /// The same under the lock of the order.
    pub(super) fn flush_in_order(self: &Arc<Self>) -> Coming<'_, Result<()>> {
        Box::pin(self.flush_all_in_order())
    }
    async fn flush_all_in_order(self: &Arc<Self>) -> Result<()> {
        for tries in 0..FLUSH_TRIES {
            if tries > 2 {
                // Others append at the same time: not all of them at once again.
                let cluster = self.volume.cluster();
                tokio::time::sleep(cluster.jitter(Duration::from_millis(tries.min(20)))).await;
            }
            self.settle_doubt().await?;
            if self.has_rows() {
                self.flush_rows().await?;
            }
            let last = match self.write_in_turn().await? {
                InTurn::First(flight) => Some(flight),
                InTurn::Again => continue,
                InTurn::Not => match self.write_in_place().await? {
                    Placed::Not => self.begin_all(),
                    Placed::Begun(last) => last,
                    Placed::Again => continue,
                },
            };
            let all = match last {
                Some(last) => self.publish_in_order(last).await?,
                None => {
                    self.send_later().await?;
                    Published::All
                }
            };
            if all == Published::All {
                self.state.lock().was_cut = false;
                return Ok(());
            }
            let now = self.now();
            self.state.lock().lost_race(now);
        }
        Err(ClientError::Changed { what: self.what() })
    }
    /// Publishes what is durable by now, without waiting for the rest. `true`: something was.
    pub async fn publish_durable(self: &Arc<Self>) -> Result<bool> {
        let _order = self.order.lock().await;
        let last = {
            let state = self.state.lock();
            state.flights.iter().take_while(|flight| flight.is_durable()).last().map(|flight| flight.id)
        };
        match last {
            Some(last) => Ok(self.publish_in_order(last).await? == Published::All),
            None => Ok(false),
        }
    }
    /// Publishes the flights that are under way, but not what is dirty. `true`: something was.
    pub async fn publish_flights(self: &Arc<Self>) -> Result<bool> {
        let _order = self.order.lock().await;
        match self.last_flight() {
            Some(last) => Ok(self.publish_in_order(last).await? == Published::All),
            None => Ok(false),
        }
    }
    pub(super) fn last_flight(&self) -> Option<u64> {
        self.state.lock().flights.back().map(|flight| flight.id)
    }

    /// Waits for the flights up to that one and publishes them. If one fails all are dirty again.
    pub(super) fn publish_in_order(self: &Arc<Self>, last: u64) -> Coming<'_, Result<Published>> {
        Box::pin(self.publish_up_to(last))
    }
    async fn publish_up_to(self: &Arc<Self>, last: u64) -> Result<Published> {
        loop {
            let front = self.state.lock().flights.front().filter(|front| front.id <= last).cloned();
            let Some(front) = front else { break };
            self.settle_doubt().await?;
            let told = async { if self.goes_along() { Ok(()) } else { self.send_later().await } };
            let (_, told) = tokio::join!(front.wait(), told);
            told?;
            if front.ahead > 0 {
                // Its turn is gone.
                self.recall();
                return Ok(Published::WriteAgain);
            }
            let batch = self.batch(&front, last);
            let mut bodies = Vec::with_capacity(batch.len());
            for flight in &batch {
                match flight.take() {
                    Ok(body) => bodies.push(body),
                    Err(error) => {
                        self.recall();
                        return if is_passing(&error) { Ok(Published::WriteAgain) } else { Err(error) };
                    }
                }
            }
            match self.publish_batch(&batch, bodies).await {
                Ok(()) => {}
                // A member of the partition is of an older build: it has to be durable first.
                Err(error) if front.shown && error.code() == Some(ErrorCode::UnknownOperation) => {
                    self.recall();
                    return Ok(Published::WriteAgain);
                }
                Err(error) => return self.after_refusal(error),
            }
        }
        // What was set meanwhile, or could not go along.
        self.send_later().await?;
        // Nothing was recalled meanwhile: whoever asks for a flush wants it again.
        Ok(Published::All)
    }
    fn recall(&self) {
        let now = self.now();
        self.with(0, |state| state.recall(now));
    }
    fn after_refusal(&self, error: ClientError) -> Result<Published> {
        self.recall();
        let again = is_passing(&error) || error.code() == Some(ErrorCode::Conflict);
        if again { Ok(Published::WriteAgain) } else { Err(error) }
    }

    /// Flights from the first on that are published together.
    fn batch(&self, front: &Arc<Flight>, last: u64) -> Vec<Arc<Flight>> {
        let state = self.state.lock();
        let mut batch = vec![front.clone()];
        if front.based_on != 0 || front.turn != 0 || !front.is_durable() {
            return batch;
        }
        let mut runs = front.data.spans().len();
        for flight in state.flights.iter().skip(1) {
            let own = flight.data.spans();
            runs += own.len();
            let over = |(from, to): &(u64, u64)| batch.iter().any(|earlier| earlier.data.overlaps(*from, *to));
            let fits = flight.id <= last
                && flight.shown == front.shown
                && flight.based_on == 0
                && flight.turn == 0
                && flight.is_durable()
                && runs <= 2 * RUNS_MAX;
            if !fits || own.iter().any(over) {
                break;
            }
            batch.push(flight.clone());
        }
        batch
    }

    async fn publish_batch(self: &Arc<Self>, batch: &[Arc<Flight>], bodies: Vec<Body>) -> Result<()> {
        let mut bodies = bodies.into_iter();
        let Some(mut body) = bodies.next() else { return Ok(()) };
        for mut other in bodies {
            if other.session != body.session {
                let text = "the session ended while the file was written";
                return Err(ClientError::remote(&self.what(), ErrorCode::WrongSession, text));
            }
            body.places.extents.append(&mut other.places.extents);
            body.places.sets.append(&mut other.places.sets);
            body.shown.get_or_insert_default().extend(other.shown.take().unwrap_or_default());
        }
        body.check_current_session().await.map_err(|e| self.named(e))?;
        body.places.extents.sort_unstable_by_key(|extent| extent.file_offset);
        body.places.extents = joined(std::mem::take(&mut body.places.extents));
        let (extents, sets) = (body.places.extents.clone(), body.places.sets.clone());
        let mut shown = body.shown.take().filter(|_| batch[0].shown);
        let mut tries = 0;
        let mut along = self.take_along().await?;
        loop {
            self.check_mark().await?;
            let (publishing, writer, request) = match self.request(batch, &extents, body.session.0) {
                Asked::For(asked) => *asked,
                Asked::Unseen => continue,
                Asked::Gone => return Err(ClientError::Changed { what: self.what() }),
            };
            let set = along.as_ref().map(|along| self.set_along(along));
            let appends = request.check_size;
            let publish = async |extents, sets| {
                let request = PublishRequest { extents, sets, ..request };
                match set {
                    None => writer.publish(self.inode, &self.shown_as, request).await,
                    Some(set) => writer.publish_attributes(self.inode, &self.shown_as, (request, set)).await,
                }
            };
            match body.places.publish(publish).await {
                Ok(answer) => {
                    self.were_shown(body.session, &extents, shown.take());
                    self.was_published(batch, (&extents, &sets), answer, along.as_ref());
                    return Ok(());
                }
                Err(error) if along.is_some() && self.goes_apart(&error) => {
                    drop(publishing);
                    // The servers are told of it first, or refuse it for good.
                    along = None;
                    self.send_later().await?;
                }
                Err(error) if error.is_unknown() => {
                    // If it was done it is to be looked after.
                    self.were_shown(body.session, &extents, shown.take());
                    return self.unanswered(batch, (&extents, &sets), error, appends.then_some(publishing)).await;
                }
                Err(error) if error.code() == Some(ErrorCode::Conflict) => {
                    drop(publishing);
                    self.refresh().await?;
                    tries += 1;
                    // What was read back at the older version has to be read back again.
                    let queues = batch[0].turn == 0 && tries > 1 && self.state.lock().appended_from.is_some();
                    if tries == CONFLICTS_MAX || queues || batch[0].based_on != 0 || batch[0].shown {
                        return Err(error);
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }
    /// A publish has no answer. `appending`: it makes the file longer behind what others may have appended.
    async fn unanswered(
        &self,
        batch: &[Arc<Flight>],
        (extents, sets): (&[Extent], &[StripeSet]),
        error: ClientError,
        appending: Option<Publishing<'_>>,
    ) -> Result<()> {
        if let Some(publishing) = appending {
            let ids: Vec<u64> = batch.iter().map(|flight| flight.id).collect();
            self.state.lock().doubts_append((extents, sets), error.again().cloned(), &ids);
            drop(publishing);
            // If that is not answered either, the next flush asks.
            self.settle_doubt().await.map_err(|_| error)?;
            return Err(ClientError::Changed { what: self.what() });
        }
        let found = self.volume.getattr(self.inode).await.map_err(|e| self.named(e))?;
        if !self.names(extents, found.data_version).await? {
            return Err(error);
        }
        self.was_published(batch, (extents, sets), found, None);
        Ok(())
    }
    /// What is asked for. It names the version that is known, so that it is done now or, if it is late, never.
    fn request(&self, batch: &[Arc<Flight>], extents: &[Extent], written_by: u64) -> Asked<'_> {
        let size = extents.last().map_or(0, |e| e.file_offset + e.length);
        let mut state = self.state.lock();
        if state.flights.front().is_none_or(|front| !Arc::ptr_eq(front, &batch[0])) {
            return Asked::Gone;
        }
        if !state.may_publish() {
            return Asked::Unseen;
        }
        let appended = state.appended_from.is_some_and(|from| size > from);
        let based_on = batch[0].based_on;
        let request = PublishRequest {
            size,
            if_data_version: if based_on == 0 { state.attributes.data_version } else { based_on },
            written_by,
            check_size: appended,
            if_size: if appended { state.attributes.size } else { 0 },
            lease: state.in_place.lease.as_ref().map_or(0, |lease| lease.number),
            durability: u32::from(batch[0].shown),
            turn: if appended { batch[0].turn.max(NO_TURN) } else { 0 },
            ..state.with_mtime()
        };
        let writer = state.writer.clone();
        Asked::For(Box::new((Publishing::begin(self, &mut state), writer, request)))
    }
    /// Whether the file has these extents: a publish whose answer was lost was done.
    async fn names(&self, extents: &[Extent], version: u64) -> Result<bool> {
        for extent in extents {
            let page = self.volume.extents(self.inode, extent.file_offset, extent.length).await?;
            let within = |found: &Extent| {
                // Somebody may have cloned it since.
                (found.pg, found.index, found.flags & !EXTENT_SHARED) == (extent.pg, extent.index, extent.flags)
                    && found.file_offset <= extent.file_offset
                    && extent.file_offset - found.file_offset + found.chunk_offset == extent.chunk_offset
                    && found.file_offset + found.length >= extent.file_offset + extent.length
            };
            if page.data_version != version || !page.extents.iter().any(within) {
                return Ok(false);
            }
        }
        Ok(true)
    }
    fn was_published(
        &self,
        batch: &[Arc<Flight>],
        (extents, sets): (&[Extent], &[StripeSet]),
        answer: Attributes,
        along: Option<&Along<'_>>,
    ) {
        let now = self.now();
        self.with(0, |state| {
            if let Some(along) = along {
                // Not before the answer, which has them: whoever looks in between would be shown those of before.
                state.went_along(along);
            }
            let ids: Vec<u64> = batch.iter().map(|flight| flight.id).collect();
            state.flights.retain(|flight| !ids.contains(&flight.id));
            let end = extents.last().map_or(0, |e| e.file_offset + e.length);
            state.stand_up_to(end);
            // The publish has the time, and raised the version.
            state.in_place.untold = None;
            let fits = state.learn(answer, now, By::Own) && state.attributes.data_version == answer.data_version;
            if fits {
                Self::published(state, extents, sets);
            } else {
                state.forget_contents();
            }
            state.unpublished_since = if state.flights.is_empty() { state.dirty_since } else { Some(now) };
            state.settle();
        });
    }
}

impl FileData {
    /// What goes along with a publish: not the time of modification that was set before the last write.
    fn set_along(&self, along: &Along<'_>) -> SetAttributes {
        let last = self.state.lock().mtime_ns.map(SetTime::At);
        SetAttributes { mtime: along.set.mtime.filter(|_| along.set.mtime == last), ..along.set }
    }
}

impl State {
    /// A publish that leaves the file with the time of modification that it has here.
    pub(super) fn with_mtime(&self) -> PublishRequest {
        let mtime_ns = self.mtime_ns.unwrap_or(0) as u64;
        // In the request 0 is the server's time; the servers were told of a time that was set, or are told next.
        PublishRequest { mtime_ns, keep_mtime: self.mtime_ns == Some(0), ..Default::default() }
    }
}

/// Writing it again helps.
fn is_passing(error: &ClientError) -> bool {
    // An ended session's publish that is not in the file by now never will be.
    let session = matches!(error.code(), Some(ErrorCode::WrongSession | ErrorCode::SessionEnded));
    session || matches!(error, ClientError::Changed { .. })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::FakeCluster;
    use crate::file_writer::WriteOptions;
    use cairn_types::{Layout, Scheme};
    use futures_util::FutureExt;

    /// A cluster with an empty file `/f`.
    async fn with_file() -> (FakeCluster, crate::Volume) {
        let cluster = FakeCluster::start(3, &[Scheme::Replicated(3)]);
        let client = cluster.connect().await;
        let volume = client.volume("default").await.expect("the volume");
        let layout = Layout::replicated(3);
        let options = WriteOptions { mode: 0o644, mtime_ns: 0, layout, exclusive: false, owner: None };
        volume.write(b"/f", options).await.expect("begun").finish().await.expect("made");
        (cluster, volume)
    }

    /// What was appended behind bytes whose publish was done without an answer would be laid over what others appended
    /// until that was known.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_floats_behind_a_lost_answer_moves() {
        let (cluster, volume) = with_file().await;
        let mut handle = volume.open(b"/f").await.expect("opened");
        let mut other = volume.open(b"/f").await.expect("opened");
        handle.append(&[1; 100]).await.expect("appended");
        let data = handle.data.clone();
        data.begin_all();
        handle.append(&[2; 100]).await.expect("appended");
        let flight = data.state.lock().flights.front().cloned().expect("one is under way");
        flight.wait().await;
        let body = flight.take().expect("durable");
        let batch = [flight];
        let extents = body.places.extents.clone();
        let Asked::For(asked) = data.request(&batch, &extents, body.session.0) else { panic!("it is the first") };
        let (publishing, writer, request) = *asked;
        let request = PublishRequest { extents: extents.clone(), ..request };
        let _lost = writer.publish(data.inode, &data.shown_as, request).await.expect("published");
        drop(publishing);
        other.append(&[3; 50]).await.expect("appended");
        other.sync().await.expect("synced");
        let found = volume.getattr(data.inode).await.expect("there");
        assert!(data.names(&extents, found.data_version).await.expect("extents"));
        data.was_published(&batch, (&extents, &[]), found, None);
        handle.sync().await.expect("synced");
        let model = [vec![1; 100], vec![3; 50], vec![2; 100]].concat();
        assert!(other.read_at(0, 1000).await.expect("read") == model, "an append was laid over another one");
        handle.close().await.expect("closed");
        other.close().await.expect("closed");
        cluster.check_namespace();
    }

    /// Whoever opens a file, or takes a lock of it, after somebody else stored something would be shown the bytes of
    /// before, as long as something of his own is on its way.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_others_stored_is_known_after_an_own_publish() {
        let (_cluster, volume) = with_file().await;
        let handle = volume.open(b"/f").await.expect("opened");
        let mut other = volume.open(b"/f").await.expect("opened");
        other.write_at(0, &[3; 50]).await.expect("written");
        other.sync().await.expect("synced");
        let data = &handle.data;
        let publishing = Publishing::begin(data, &mut data.state.lock());
        let mut refreshed = Box::pin(data.refresh());
        // Until the answer is here; it tells of what the other one stored.
        while data.state.lock().attributes.generation != other.data.state.lock().attributes.generation {
            assert!((&mut refreshed).now_or_never().is_none(), "it knows the size of before");
            tokio::task::yield_now().await;
        }
        assert!((&mut refreshed).now_or_never().is_none(), "it knows the size of before");
        drop(publishing);
        assert_eq!(refreshed.await.expect("asked").size, 50);
        handle.close().await.expect("closed");
        other.close().await.expect("closed");
    }
}
