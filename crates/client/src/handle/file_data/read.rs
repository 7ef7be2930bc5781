//! Reading: dirty bytes over flights over blocks read ahead over what is published.
use super::{FileData, State, TRIES};
use crate::error::{ClientError, Result};
use crate::handle::ahead::Block;
use crate::handle::dirty::Dirty;
use crate::handle::extents::Stretch;
use crate::handle::range_read::{read_stretches, zeros};
use cairn_env::buf::SharedBuf;
use std::sync::Arc;

/// First window of read-ahead.
const WINDOW_MIN: u64 = 1 << 20;
/// A read this far from where the last one ended still belongs to the sequence: several threads of a kernel read ahead.
const SLACK: u64 = 512 << 10;
/// Reads that make a sequence.
const STREAK: u32 = 2;
/// Reads of this size are a sequence from the second on.
const LARGE: u64 = 256 << 10;
/// Blocks of replicated chunks, and of those of which a block asks several disks.
const BLOCK: u64 = 1 << 20;
const BLOCK_STRIPED: u64 = 4 << 20;

/// How a handle has read so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReadPattern {
    next: u64,
    streak: u32,
    window: u64,
}

impl ReadPattern {
    /// Takes a read into account; how far from its end on is worth being read ahead.
    fn advance(&mut self, offset: u64, length: u64, window_max: u64) -> u64 {
        let near = offset == self.next || self.streak >= STREAK && offset.abs_diff(self.next) <= SLACK;
        if !near {
            *self = ReadPattern { next: offset + length, streak: u32::from(length >= LARGE), window: 0 };
            return 0;
        }
        self.next = self.next.max(offset + length);
        self.streak = self.streak.saturating_add(if length >= LARGE { 2 } else { 1 });
        if self.streak >= STREAK && offset > 0 {
            self.window = (self.window * 2).clamp(WINDOW_MIN, window_max.max(WINDOW_MIN));
        }
        self.window.min(window_max)
    }
}

enum Part {
    Memory(SharedBuf),
    Ahead(Arc<Block>, u64, u64),
    Stored(Vec<Stretch>),
    Zeros(u64),
}

impl FileData {
    /// Up to `length` bytes from `offset` on; fewer only at the end of the file. With a pattern whoever reads one part
    /// after the other finds the next ones read ahead, at most `ahead_max` bytes.
    pub async fn read(
        self: &Arc<Self>,
        offset: u64,
        length: u64,
        pattern: Option<&parking_lot::Mutex<ReadPattern>>,
        ahead_max: u64,
    ) -> Result<Vec<SharedBuf>> {
        let ahead = pattern.map_or(0, |pattern| pattern.lock().advance(offset, length, ahead_max));
        let mut ahead = offset.saturating_add(length).saturating_add(ahead);
        let mut last = None;
        for _ in 0..TRIES {
            let version = self.state.lock().attributes.data_version;
            match self.read_once(offset, length, ahead).await {
                Err(error) if self.was_moved(&error, version).await => last = Some(error),
                outcome => return outcome,
            }
            // Not ahead again: an error of a block is looked at by whoever needs its bytes.
            ahead = 0;
            self.state.lock().forget_contents();
            self.refresh().await?;
        }
        Err(last.unwrap_or_else(|| ClientError::Changed { what: self.what() }))
    }

    /// Whether bytes of a version could not be read because the file is another by now, or has them elsewhere. A member
    /// that freed a chunk remembers that for a time only; later it says that it lacks it, as if it were lost.
    pub(super) async fn was_moved(&self, error: &ClientError, version: u64) -> bool {
        if matches!(error, ClientError::Changed { .. }) {
            return true;
        }
        self.volume.getattr(self.inode).await.is_ok_and(|now| now.data_version != version)
    }

    async fn read_once(self: &Arc<Self>, offset: u64, length: u64, ahead_to: u64) -> Result<Vec<SharedBuf>> {
        let parts = loop {
            let (size, published) = {
                let state = self.state.lock();
                (state.size(), state.attributes.size)
            };
            let end = offset.saturating_add(length).min(size);
            if offset >= end {
                return Ok(Vec::new());
            }
            let ahead_to = ahead_to.min(published);
            self.know_extents(offset, end.max(ahead_to)).await?;
            let planned = {
                let mut state = self.state.lock();
                let known = state.extents.unknown(offset, end.min(published)).is_none();
                (state.attributes.size == published && known).then(|| {
                    if ahead_to > end {
                        state.blocks.passed(offset);
                        self.read_ahead(&mut state, offset, ahead_to);
                    }
                    plan(&state, offset, end)
                })
            };
            match planned {
                Some(parts) => break parts,
                // It was changed meanwhile.
                None => tokio::task::yield_now().await,
            }
        };
        let mut data = Vec::new();
        for part in parts {
            match part {
                Part::Memory(bytes) => data.push(bytes),
                Part::Zeros(length) => zeros(length, &mut data),
                Part::Stored(stretches) => {
                    data.append(&mut read_stretches(&self.volume, &self.what(), &stretches).await?);
                }
                Part::Ahead(block, from, to) => {
                    let read = block.read(from, to, &mut data).await;
                    read.map_err(|_| ClientError::Changed { what: self.what() })?;
                }
            }
        }
        Ok(data)
    }

    /// Begins blocks for what of `from..to` is published, known and in none yet.
    fn read_ahead(self: &Arc<Self>, state: &mut State, from: u64, to: u64) {
        let size = if state.layout.stripe().is_some() { BLOCK_STRIPED } else { BLOCK };
        let mut at = from;
        while at < to {
            if let Some(block) = state.blocks.at(at) {
                at = block.to;
                continue;
            }
            // Whole blocks, if the file goes on: the next read would begin the rest.
            let full = (at / size + 1) * size;
            let end = full.min(state.attributes.size).min(state.blocks.next(at).unwrap_or(u64::MAX));
            if state.extents.unknown(at, end).is_some() {
                return;
            }
            let stretches = state.extents.stretches(at, end);
            let (volume, what) = (self.volume.clone(), self.what());
            let read = async move { read_stretches(&volume, &what, &stretches).await };
            if !state.blocks.begin((at, end), read) {
                return;
            }
            at = end;
        }
    }
}

/// What of the range is not published: the newest of each byte.
fn in_memory(state: &State, from: u64, to: u64) -> Dirty {
    let mut memory = Dirty::default();
    let flights = state.flights.iter().rev().map(|flight| &flight.data);
    let layers = std::iter::once(&state.dirty).chain(flights).chain(state.in_place.under_way.as_deref());
    for layer in layers {
        for (at, data) in layer.pieces(from, to) {
            memory.fill(at, &data);
        }
    }
    memory
}

fn plan(state: &State, from: u64, to: u64) -> Vec<Part> {
    let memory = in_memory(state, from, to);
    let mut parts = Vec::new();
    let mut at = from;
    for (start, data) in memory.pieces(from, to) {
        plan_stored(state, at, start, &mut parts);
        at = start + data.len() as u64;
        parts.push(Part::Memory(data));
    }
    plan_stored(state, at, to, &mut parts);
    parts
}

fn plan_stored(state: &State, from: u64, to: u64, parts: &mut Vec<Part>) {
    let published = state.attributes.size.min(to);
    let mut at = from;
    while at < published {
        let end = match state.blocks.at(at) {
            Some(block) => {
                let end = block.to.min(published);
                parts.push(Part::Ahead(block, at, end));
                end
            }
            None => {
                let end = state.blocks.next(at).unwrap_or(u64::MAX).min(published);
                parts.push(Part::Stored(state.extents.stretches(at, end)));
                end
            }
        };
        at = end;
    }
    if at < to {
        parts.push(Part::Zeros(to - at));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Random reads would fetch megabytes that nobody wants, or sequential ones wait for each request.
    #[test]
    fn sequences_are_read_ahead() {
        let mut pattern = ReadPattern::default();
        let max = 16 << 20;
        let windows: Vec<u64> = (0..8).map(|i| pattern.advance(i * 131_072, 131_072, max) >> 20).collect();
        assert_eq!(windows, [0, 1, 2, 4, 8, 16, 16, 16]);
        assert_eq!(pattern.advance(9 * 131_072, 131_072, max) >> 20, 16, "a little out of order");
        assert_eq!(pattern.advance(8 * 131_072, 131_072, max) >> 20, 16);
        let random = [77 << 20, 3 << 20, 500 << 20];
        assert!(random.iter().all(|at| pattern.advance(*at, 4096, max) == 0));
        assert_eq!(pattern.advance((500 << 20) + 4096, 4096, max), 0);
        assert_eq!(pattern.advance((500 << 20) + 8192, 4096, max) >> 20, 1);
    }
}
