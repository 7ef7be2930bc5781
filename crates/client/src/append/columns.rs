//! What one session writes to columns of stripe groups: it fills all columns of one group alike, so that what it wrote
//! can be encoded together, whoever else writes.
//!
//! A stream for each column; what comes next goes to the one that has got least. A file stays with a stream for a
//! while, the longer the more was written, so that long files have few extents. When all columns have got about a
//! chunk, the next stripe group is taken: by free space, queues and rack, as any group for a new chunk.
//!
//! Invariant: a seat only says where a chunk would lie best. A column that cannot be had now is replaced by any group
//! that takes the chunk, so no write fails or waits for the sake of encoding. Not here: what is encoded together
//! (`stage::together`).
use super::pick::{best_column, whole_groups};
use super::shape::Shape;
use super::stream::{WriteStream, start_at};
use super::target::Target;
use crate::cluster::Cluster;
use crate::error::Result;
use crate::view::PgView;
use cairn_types::{BLOCK_SIZE, CHUNK_SIZE_MAX, PgId, StripeGroupId};
use parking_lot::Mutex;
use std::sync::Arc;

/// A column gets at least so much more than the one with least before a file goes on elsewhere, and at most.
const AHEAD_MIN: u64 = 1 << 20;
const AHEAD_MAX: u64 = 8 << 20;
/// In between this part of what a column has got.
const AHEAD_PART: u64 = 8;

/// The stripe group that a session fills.
struct Filling {
    columns: u8,
    /// The position of the first stream's column: sessions that write little begin at different ones.
    first: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    group: Option<StripeGroupId>,
    /// Bytes since that was chosen.
    taken: u64,
}

impl Filling {
    /// So much of a group is filled before the next one is taken. Columns differ by less than what a chunk lacks then,
    /// so all streams come to the next group with the same chunk.
    fn enough(&self) -> u64 {
        (CHUNK_SIZE_MAX - AHEAD_MAX) * u64::from(self.columns)
    }
}

/// The column that a stream of a session fills.
#[derive(Clone)]
pub(crate) struct Seat {
    filling: Arc<Filling>,
    number: usize,
}

impl Seat {
    /// Its column for a new chunk, if that can be had now.
    pub(super) fn column(&self, cluster: &Cluster, target: Target, avoid: &[PgId]) -> Option<PgView> {
        let view = cluster.view();
        let groups = whole_groups(&view, target.volume, target.class);
        let position = (self.filling.first + self.number) % usize::from(self.filling.columns);
        let mut state = self.filling.state.lock();
        let goes_on = state.group.filter(|_| state.taken < self.filling.enough());
        let pg = match goes_on.and_then(|group| groups.get(&group)) {
            Some(columns) => columns[position],
            None => {
                let may = |pg: &&PgView| !avoid.contains(&pg.id);
                let candidates: Vec<&PgView> = groups.values().map(|columns| columns[position]).filter(may).collect();
                let best = best_column(cluster, &view, &candidates)?;
                *state = State { group: best.column.as_ref().map(|column| column.group), taken: 0 };
                best
            }
        };
        (!avoid.contains(&pg.id)).then(|| pg.clone())
    }
}

/// The streams of one session and class.
pub(super) struct ColumnStreams {
    filling: Arc<Filling>,
    streams: Vec<Option<WriteStream>>,
    /// Bytes that each has got, in whole blocks.
    taken: Vec<u64>,
}

impl ColumnStreams {
    /// `random`: says which column is filled first.
    pub(super) fn new(columns: u8, random: u64) -> Self {
        let count = usize::from(columns);
        let first = (random % u64::from(columns.max(1))) as usize;
        let filling = Arc::new(Filling { columns, first, state: Mutex::default() });
        Self { filling, streams: vec![None; count], taken: vec![0; count] }
    }

    /// The stream for so many bytes that follow on what was written to `before`.
    pub(super) fn get(
        &mut self,
        cluster: &Arc<Cluster>,
        target: Target,
        bytes: u64,
        before: Option<&WriteStream>,
    ) -> Result<WriteStream> {
        let bytes = bytes.next_multiple_of(BLOCK_SIZE as u64);
        let number = self.choose(bytes, before);
        let stream = match self.streams[number].clone().filter(|stream| !stream.is_ended()) {
            Some(stream) => stream,
            None => {
                let seat = Seat { filling: self.filling.clone(), number };
                start_at(cluster.clone(), target, Shape::Column(self.filling.columns), Some(seat))?
            }
        };
        self.streams[number] = Some(stream.clone());
        self.taken[number] += bytes;
        self.filling.state.lock().taken += bytes;
        Ok(stream)
    }

    fn choose(&self, bytes: u64, before: Option<&WriteStream>) -> usize {
        let has_room = |number: &usize| self.streams[*number].as_ref().is_none_or(|s| s.room() as u64 >= bytes);
        let before = before.and_then(|before| {
            self.streams.iter().position(|stream| stream.as_ref().is_some_and(|stream| stream.is_same(before)))
        });
        next(&self.taken, bytes, before, has_room)
    }

    pub(super) fn streams(&self) -> impl Iterator<Item = &WriteStream> {
        self.streams.iter().flatten()
    }
}

/// The column for so many bytes: the one of `before` while that is not too far ahead, else the one that has got least.
/// One without room, because its members are slow, is passed over: it gets more later.
fn next(taken: &[u64], bytes: u64, before: Option<usize>, has_room: impl Fn(&usize) -> bool) -> usize {
    let least = taken.iter().copied().min().unwrap_or(0);
    let ahead = (taken.iter().sum::<u64>() / taken.len().max(1) as u64 / AHEAD_PART).clamp(AHEAD_MIN, AHEAD_MAX);
    let stays = |number: &usize| taken[*number] + bytes <= least + ahead && has_room(number);
    if let Some(number) = before.filter(stays) {
        return number;
    }
    let poorest = |numbers: &mut dyn Iterator<Item = usize>| numbers.min_by_key(|number| taken[*number]);
    let with_room = poorest(&mut (0..taken.len()).filter(&has_room));
    with_room.or_else(|| poorest(&mut (0..taken.len()))).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Columns would not be filled alike, so that what is left in the fuller ones crosses racks to be encoded; or a
    /// long file have an extent for each MiB.
    #[test]
    fn columns_are_filled_alike_and_long_files_lie_in_long_pieces() {
        let any = |_: &usize| true;
        let (mut taken, mut before, mut extents) = (vec![0u64; 6], None, 0);
        for part in 0..4096u64 {
            let number = next(&taken, MIB, before, any);
            extents += u64::from(before != Some(number));
            taken[number] += MIB;
            before = Some(number);
            let (least, most) = (taken.iter().min().expect("some"), taken.iter().max().expect("some"));
            assert!(most - least <= MIB.max((part * MIB / 6 / AHEAD_PART).min(AHEAD_MAX)), "{taken:?}");
        }
        assert!((512..700).contains(&extents), "{extents}");
        // Small files, each by itself.
        let mut taken = vec![0u64; 6];
        for bytes in (0..300u64).map(|file| 4096 * (1 + file % 9)) {
            let number = next(&taken, bytes, None, any);
            taken[number] += bytes;
        }
        let (least, most) = (taken.iter().min().expect("some"), taken.iter().max().expect("some"));
        assert!(most - least <= 4096 * 9, "{taken:?}");
    }

    /// A member that stands still would hold up all writers; or a column stay behind for ever.
    #[test]
    fn a_column_without_room_is_passed_over_and_gets_more_later() {
        assert_eq!(next(&[5, 0, 7], 1, None, |number| *number != 1), 0);
        assert_eq!(next(&[5, 0, 7], 1, Some(1), |number| *number != 1), 0);
        assert_eq!(next(&[5, 0, 7], 1, None, |_| true), 1);
        assert_eq!(next(&[5, 0, 7], 1, None, |_| false), 1, "it waits there");
    }
}
