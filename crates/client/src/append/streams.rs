//! The streams of a volume, shared by the files that are written at the same time.
use super::shape::Shape;
use super::stream::{WriteStream, start};
use super::target::Target;
use crate::cluster::Cluster;
use crate::error::Result;
use cairn_types::{PgClass, Stripe};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// By class of groups, the stripe of rows, and session.
type Key = (PgClass, Option<Stripe>, u64);

/// Each with its own open chunk.
#[derive(Default)]
pub(crate) struct Streams(Mutex<BTreeMap<Key, Vec<WriteStream>>>);

impl Streams {
    /// The stream with the most room; up to `most` are started as they are needed. `stripe`: one of rows.
    pub(crate) fn get(
        &self,
        cluster: &Arc<Cluster>,
        target: Target,
        stripe: Option<Stripe>,
        most: usize,
    ) -> Result<WriteStream> {
        let mut streams = self.0.lock();
        // Streams of ended sessions drain and end by themselves.
        streams.retain(|(_, _, owner), _| *owner == target.session.0);
        let list = streams.entry((target.class, stripe, target.session.0)).or_default();
        list.retain(|stream| !stream.is_ended());
        let best = list.iter().max_by_key(|stream| stream.room());
        if let Some(best) = best
            && (best.is_empty() || list.len() >= most)
        {
            return Ok(best.clone());
        }
        let stream = start(cluster.clone(), target, stripe.map_or(Shape::Segments, Shape::Rows))?;
        list.push(stream.clone());
        Ok(stream)
    }
    /// What was shown becomes durable now. Rows are never shown: their streams are left alone.
    pub(crate) fn sync_now(&self) {
        let streams = self.0.lock();
        let of_segments = streams.iter().filter(|((_, stripe, _), _)| stripe.is_none());
        of_segments.flat_map(|(_, list)| list).for_each(WriteStream::sync_now);
    }
    /// Those that nobody uses any more make durable what they have, and end.
    pub(crate) fn clear(&self) {
        self.0.lock().clear();
    }
}
