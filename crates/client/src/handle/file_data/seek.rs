//! Where data and holes of an open file begin.
//!
//! Invariant: a turn goes as far as a page of extents is known, never a fixed number of bytes: a hole of any size is
//! one turn. Between turns others get theirs.
use super::{FileData, State};
use crate::error::Result;

/// How far a turn came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    Found(u64),
    /// Nothing before this offset.
    NotBefore(u64),
}

impl FileData {
    /// The next data (or hole) from `offset` on, if it begins before `until`; `None` behind the last.
    pub async fn seek(&self, offset: u64, data: bool, until: u64) -> Result<Option<u64>> {
        let mut at = offset;
        loop {
            let size = self.state.lock().size();
            if at >= size.min(until) {
                // Behind the last byte there is a hole, as POSIX has it.
                return Ok((!data && at == size && offset < size).then_some(size));
            }
            self.know_extents(at, at + 1).await?;
            let turn = {
                let state = self.state.lock();
                let known = state.extents.unknown(at, (at + 1).min(state.attributes.size)).is_none();
                if state.size() == size && known { turn(&state, at, data) } else { Turn::NotBefore(at) }
            };
            match turn {
                Turn::Found(found) => return Ok(Some(found)),
                Turn::NotBefore(next) => at = next,
            }
            tokio::task::yield_now().await;
        }
    }
}

/// Looks as far as is known from an offset on, of which something is.
fn turn(state: &State, from: u64, data: bool) -> Turn {
    let published = state.attributes.size;
    let known_to = state.extents.known_end(from).filter(|end| from < published && *end < published);
    // Behind what is published there are only bytes in memory.
    let end = known_to.unwrap_or_else(|| state.size());
    if data {
        let stored = state.extents.next_extent(from).map(|(at, _)| at.max(from));
        let next = stored.into_iter().chain(next_in_memory(state, from)).min();
        return next.filter(|at| *at < end).map_or(Turn::NotBefore(end), Turn::Found);
    }
    let mut at = from;
    while at < end {
        let stored = state.extents.next_extent(at).filter(|(begin, _)| *begin <= at).map(|(_, end)| end);
        match stored.into_iter().chain(end_in_memory(state, at)).max() {
            Some(covered_to) => at = covered_to,
            None => return Turn::Found(at),
        }
    }
    Turn::NotBefore(end)
}

/// What is not published yet.
fn layers(state: &State) -> impl Iterator<Item = &super::Dirty> {
    let flights = state.flights.iter().map(|flight| &flight.data);
    std::iter::once(&state.dirty).chain(flights).chain(state.in_place.under_way.as_deref())
}

/// The first byte from `at` on that is in memory.
fn next_in_memory(state: &State, at: u64) -> Option<u64> {
    layers(state).filter_map(|layer| layer.next_part(at)).map(|(begin, _)| begin.max(at)).min()
}

/// The end of a part in memory that has the byte at `at`.
fn end_in_memory(state: &State, at: u64) -> Option<u64> {
    layers(state).filter_map(|layer| layer.next_part(at)).filter(|(begin, _)| *begin <= at).map(|(_, end)| end).max()
}
