//! Appends whose publish got no answer.
//!
//! Such a publish names the version of the contents that it was asked for at, so it is done at that version or never.
//! Until the version is another one it may still be done, and what it named is remembered: a longer file may be its
//! own. When the servers tell of a later version it is looked whether the file names those extents. If so the bytes
//! stand where they were laid, once; if not they never will, and go behind the new end. Invariant: as long as something
//! is in doubt, no later version of the contents is taken from an answer that does not settle it.
use super::{By, FileData, State};
use crate::attributes::Attributes;
use crate::error::{ClientError, Result};
use cairn_types::ErrorCode;
use cairn_wire::common::Extent;
use std::sync::Arc;

/// Publishes of a file without an answer; each was begun after the servers had answered another call.
const DOUBTS_MAX: usize = 16;

/// Extents that the file may or may not name.
pub(super) struct Doubt {
    extents: Vec<Extent>,
    /// Something was written over them since.
    written_over: bool,
}

impl Doubt {
    fn end(&self) -> u64 {
        self.extents.last().map_or(0, |extent| extent.file_offset + extent.length)
    }
    fn overlaps(&self, from: u64, to: u64) -> bool {
        self.extents.iter().any(|extent| extent.file_offset < to && from < extent.file_offset + extent.length)
    }
}

impl State {
    /// The publish of a batch of flights that appends has no answer.
    pub(super) fn doubts_append(&mut self, extents: &[Extent], batch: &[u64]) {
        let mut doubt = Doubt { extents: extents.to_vec(), written_over: false };
        let later = self.flights.iter().filter(|flight| !batch.contains(&flight.id)).map(|flight| &flight.data);
        let mut newer = later.chain([&self.dirty]).flat_map(|data| data.spans());
        doubt.written_over = newer.any(|(from, to)| doubt.overlaps(from, to));
        self.doubts.push(Arc::new(doubt));
    }
    /// Something is written, which goes over what is in doubt there.
    pub(super) fn writes_over_doubts(&mut self, from: u64, to: u64) {
        for doubt in self.doubts.iter_mut().filter(|doubt| doubt.overlaps(from, to)) {
            *doubt = Arc::new(Doubt { extents: doubt.extents.clone(), written_over: true });
        }
    }
    /// What was in doubt is in the file.
    fn was_done(&mut self, doubt: &Doubt, now: cairn_types::Time) {
        self.recall(now);
        if !doubt.written_over {
            for extent in &doubt.extents {
                self.dirty.cut(extent.file_offset, extent.file_offset + extent.length);
            }
        }
        self.stand_up_to(doubt.end());
    }
    /// What was appended before that place stands where it was laid; what was appended behind it still floats, and
    /// moves when an answer tells that somebody else appended since.
    pub(super) fn stand_up_to(&mut self, end: u64) {
        if self.appended_from.is_some_and(|from| end > from) {
            let more = self.size() > end;
            self.appended_from = more.then_some(end);
        }
    }
}

impl FileData {
    /// Whether it is known of everything before the next publish if it was done. More of it is not sent otherwise.
    pub(super) async fn settle_doubts(&self) -> Result<()> {
        match self.state.lock().doubts.len() {
            0 => return Ok(()),
            DOUBTS_MAX => {
                let text = "the last publishes of it were not answered; cairn admin status shows whether all servers \
                            do, and what was appended is kept until then";
                return Err(ClientError::remote(&self.what(), ErrorCode::DeadlineExceeded, text));
            }
            _ => {}
        }
        self.refresh().await.map(drop)
    }
    /// The file has a later version of the contents than is known: which of what is in doubt does it name? True: that
    /// is settled, and the version taken, or nothing is in doubt.
    pub(super) async fn settles(&self, found: Attributes) -> Result<bool> {
        let (doubts, known) = {
            let state = self.state.lock();
            (state.doubts.clone(), state.attributes.data_version)
        };
        let mut done = None;
        for doubt in &doubts {
            match self.names_of(doubt, found.data_version).await? {
                None => return Ok(false),
                Some(false) => {}
                Some(true) => done = Some(doubt.clone()),
            }
        }
        let now = self.now();
        Ok(self.with(0, |state| {
            let same = state.doubts.len() == doubts.len() && state.attributes.data_version == known;
            if !same || state.publishing {
                return false;
            }
            if let Some(done) = done {
                // As it is now: something may have been written over it meanwhile.
                let at = doubts.iter().position(|doubt| Arc::ptr_eq(doubt, &done));
                let doubt = at.and_then(|at| state.doubts.get(at)).cloned().unwrap_or(done);
                state.was_done(&doubt, now);
            }
            state.doubts.clear();
            state.learn(found, now, By::Unknown);
            state.settle();
            true
        }))
    }
    /// Whether the file of that version names any of the extents; `None`: it is of another version by now.
    async fn names_of(&self, doubt: &Doubt, version: u64) -> Result<Option<bool>> {
        for extent in &doubt.extents {
            let (mut at, to) = (extent.file_offset, extent.file_offset + extent.length);
            while at < to {
                let page = self.volume.extents(self.inode, at, to - at).await.map_err(|e| self.named(e))?;
                if page.data_version != version {
                    return Ok(None);
                }
                if page.extents.iter().any(|found| is_part_of(found, extent)) {
                    return Ok(Some(true));
                }
                let Some(last) = page.extents.last().filter(|_| !page.end) else { break };
                at = at.max(last.file_offset) + last.length;
            }
        }
        Ok(Some(false))
    }
}

/// It names bytes of the other one, at their place. Space is used once, so nobody else's are there.
fn is_part_of(found: &Extent, whole: &Extent) -> bool {
    let same_chunk = (found.pg, found.index) == (whole.pg, whole.index);
    let inside = found.chunk_offset < whole.chunk_offset + whole.length
        && whole.chunk_offset < found.chunk_offset + found.length;
    let moved = |extent: &Extent| extent.file_offset.wrapping_sub(extent.chunk_offset);
    same_chunk && inside && moved(found) == moved(whole)
}

#[cfg(test)]
#[path = "doubt/tests.rs"]
mod tests;
