//! The streams of a volume, shared by the files that are written at the same time.
use super::columns::ColumnStreams;
use super::pick::whole_groups;
use super::shape::Shape;
use super::stream::{WriteStream, start};
use super::target::Target;
use crate::cluster::Cluster;
use crate::error::Result;
use cairn_types::{PgClass, Scheme, Stripe};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// By class of groups, the stripe of rows, and session.
type Key = (PgClass, Option<Stripe>, u64);

/// Each with its own open chunk.
#[derive(Default)]
pub(crate) struct Streams(Mutex<BTreeMap<Key, Set>>);

/// The streams of a key.
#[derive(Default)]
struct Set {
    list: Vec<WriteStream>,
    columns: Columns,
}

/// Those that fill the columns of stripe groups, while there are stripe groups.
#[derive(Default)]
struct Columns {
    streams: Option<ColumnStreams>,
    are_there: bool,
    /// The map in which they were looked for.
    map: Option<u64>,
}

impl Columns {
    fn get(&mut self, cluster: &Arc<Cluster>, target: Target) -> Option<&mut ColumnStreams> {
        let Some(Scheme::Erasure { k, .. }) = target.class.later else { return None };
        let view = cluster.view();
        if self.map != Some(view.version) {
            self.are_there = !whole_groups(&view, target.volume, target.class).is_empty();
            self.map = Some(view.version);
        }
        self.are_there.then(|| self.streams.get_or_insert_with(|| ColumnStreams::new(k, cluster.rng.u64())))
    }
}

impl Streams {
    /// The stream with the most room; up to `most` are started as they are needed. `stripe`: one of rows. Copies that
    /// are encoded later go to the columns of a stripe group in turn: for so many bytes that follow on those in
    /// `before`.
    pub(crate) fn get(
        &self,
        cluster: &Arc<Cluster>,
        target: Target,
        stripe: Option<Stripe>,
        most: usize,
        (bytes, before): (u64, Option<&WriteStream>),
    ) -> Result<WriteStream> {
        let mut streams = self.0.lock();
        // Streams of ended sessions drain and end by themselves.
        streams.retain(|(_, _, owner), _| *owner == target.session.0);
        let set = streams.entry((target.class, stripe, target.session.0)).or_default();
        if most > 1
            && let Some(columns) = set.columns.get(cluster, target)
        {
            return columns.get(cluster, target, bytes, before);
        }
        if let Some(before) = before.filter(|before| before.session == target.session && !before.is_ended()) {
            return Ok(before.clone());
        }
        let list = &mut set.list;
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
        for (_, set) in of_segments {
            let columns = set.columns.streams.iter().flat_map(ColumnStreams::streams);
            set.list.iter().chain(columns).for_each(WriteStream::sync_now);
        }
    }
    /// Those that nobody uses any more make durable what they have, and end.
    pub(crate) fn clear(&self) {
        self.0.lock().clear();
    }
}
