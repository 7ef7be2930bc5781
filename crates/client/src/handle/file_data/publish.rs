//! Publishing: durable flights become part of the file, in their order.
use super::flight::{Flight, RUNS_MAX};
use super::{By, FileData, TRIES};
use crate::error::{ClientError, Result};
use crate::file_writer::body::Body;
use cairn_types::ErrorCode;
use cairn_wire::common::{Extent, StripeSet};
use cairn_wire::meta::{Attributes, PublishRequest};
use std::sync::Arc;

/// How an attempt ended that did not fail.
#[derive(PartialEq, Eq)]
pub(super) enum Published {
    All,
    /// What was written is dirty again: the session or the end of the file was another.
    WriteAgain,
}

impl FileData {
    /// Makes everything that was written so far durable and visible.
    pub async fn flush(self: &Arc<Self>) -> Result<()> {
        if self.is_clean() {
            return Ok(());
        }
        let _order = self.order.lock().await;
        self.flush_in_order().await
    }
    /// The same under the lock of the order.
    pub(super) async fn flush_in_order(self: &Arc<Self>) -> Result<()> {
        for _ in 0..TRIES {
            if self.has_rows() {
                self.flush_rows().await?;
            }
            let Some(last) = self.begin_all() else { return Ok(()) };
            if self.publish_in_order(last).await? == Published::All {
                return Ok(());
            }
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
            Some(last) => self.publish_in_order(last).await.map(|_| true),
            None => Ok(false),
        }
    }
    /// Publishes all flights that are under way, but not what is dirty.
    pub async fn publish_flights(self: &Arc<Self>) -> Result<()> {
        let _order = self.order.lock().await;
        self.publish_in_order(u64::MAX).await.map(|_| ())
    }

    /// Waits for the flights up to that one and publishes them. If one fails all are dirty again.
    pub(super) async fn publish_in_order(self: &Arc<Self>, last: u64) -> Result<Published> {
        loop {
            let front = self.state.lock().flights.front().filter(|front| front.id <= last).cloned();
            let Some(front) = front else { break };
            front.wait().await;
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
                Err(error) => return self.after_refusal(&batch, error).await,
            }
        }
        // Nothing was recalled meanwhile: whoever asks for a flush wants it again.
        Ok(Published::All)
    }
    fn recall(&self) {
        let now = self.now();
        self.with(0, |state| state.recall(now));
    }
    async fn after_refusal(&self, batch: &[Arc<Flight>], error: ClientError) -> Result<Published> {
        self.recall();
        let conflict = error.code() == Some(ErrorCode::Conflict);
        if conflict {
            self.refresh().await?;
        }
        let appended = conflict || batch.iter().any(|flight| flight.based_on != 0);
        match is_passing(&error) || appended && conflict {
            true => Ok(Published::WriteAgain),
            false => Err(error),
        }
    }

    /// Flights from the first on that are published together.
    fn batch(&self, front: &Arc<Flight>, last: u64) -> Vec<Arc<Flight>> {
        let state = self.state.lock();
        let mut batch = vec![front.clone()];
        if front.based_on != 0 || !front.is_durable() {
            return batch;
        }
        let mut runs = front.data.runs().len();
        for flight in state.flights.iter().skip(1) {
            let own = flight.data.runs();
            runs += own.len();
            let over = |run: &crate::handle::dirty::Run| {
                batch.iter().any(|earlier| earlier.data.overlaps(run.offset, run.end()))
            };
            let fits = flight.id <= last && flight.based_on == 0 && flight.is_durable() && runs <= 2 * RUNS_MAX;
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
        }
        body.check_current_session().await.map_err(|e| self.named(e))?;
        body.places.extents = joined(std::mem::take(&mut body.places.extents));
        let (extents, sets) = (body.places.extents.clone(), body.places.sets.clone());
        let size = extents.last().map_or(0, |e| e.file_offset + e.length);
        let (writer, request) = {
            let state = self.state.lock();
            let appended = state.appended_from.is_some_and(|from| size > from);
            let request = PublishRequest {
                size,
                if_data_version: batch[0].based_on,
                mtime_ns: state.mtime_ns,
                written_by: body.session.0,
                check_size: appended,
                if_size: if appended { state.attributes.size } else { 0 },
                ..Default::default()
            };
            (state.writer.clone(), request)
        };
        let publish = async |extents, sets| {
            writer.publish(self.inode, &self.shown_as, PublishRequest { extents, sets, ..request }).await
        };
        let answer = body.places.publish(publish).await?;
        self.was_published(batch, &extents, &sets, answer);
        Ok(())
    }
    fn was_published(&self, batch: &[Arc<Flight>], extents: &[Extent], sets: &[StripeSet], answer: Attributes) {
        let now = self.now();
        self.with(0, |state| {
            let ids: Vec<u64> = batch.iter().map(|flight| flight.id).collect();
            state.flights.retain(|flight| !ids.contains(&flight.id));
            let end = extents.last().map_or(0, |e| e.file_offset + e.length);
            if state.appended_from.is_some_and(|from| end > from) {
                // These stand where they were laid; what was appended behind them still floats.
                let more = state.size() > end;
                state.appended_from = more.then_some(answer.size.max(end));
            }
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

/// Writing it again helps.
fn is_passing(error: &ClientError) -> bool {
    error.code() == Some(ErrorCode::WrongSession) || matches!(error, ClientError::Changed { .. })
}

/// In the order of the file, neighbours in a chunk as one.
fn joined(mut extents: Vec<Extent>) -> Vec<Extent> {
    extents.sort_unstable_by_key(|extent| extent.file_offset);
    let mut joined: Vec<Extent> = Vec::with_capacity(extents.len());
    for extent in extents {
        match joined.last_mut() {
            Some(last)
                if (last.pg, last.index, last.flags) == (extent.pg, extent.index, extent.flags)
                    && last.file_offset + last.length == extent.file_offset
                    && last.chunk_offset + last.length == extent.chunk_offset =>
            {
                last.length += extent.length;
            }
            _ => joined.push(extent),
        }
    }
    joined
}
