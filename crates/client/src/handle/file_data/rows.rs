//! Files of an erasure layout: what does not fill a row is replicated until later writes complete it. Then it is read back
//! and written as rows together with them, and published only if the file is still at the version that was read.
use super::publish::Published;
use super::{FileData, TRIES};
use crate::error::{ClientError, Result};
use crate::handle::dirty::{Dirty, Run};
use crate::handle::range_read::read_stretches;
use crate::handle::tail::{GATHER_MAX, rows_begin};
use crate::handle::write_out::rows_of;
use std::sync::Arc;

impl FileData {
    pub(super) fn has_rows(&self) -> bool {
        rows_of(self.state.lock().layout).is_some()
    }
    /// Writes the runs that complete rows; the others stay dirty.
    pub(super) async fn flush_rows(self: &Arc<Self>) -> Result<()> {
        let mut tries = 0;
        loop {
            // What is read back has to have what was written before it.
            if let Some(last) = self.last_flight()
                && self.publish_in_order(last).await? == Published::WriteAgain
            {
                return Ok(());
            }
            let Some((run, start)) = self.completing().await? else { return Ok(()) };
            if tries == TRIES {
                return Err(ClientError::Changed { what: self.what() });
            }
            tries += 1;
            self.flush_run(run, start).await?;
        }
    }
    /// The first run that completes rows with what lies before it, and where those begin.
    async fn completing(&self) -> Result<Option<((u64, u64), u64)>> {
        let spans = self.state.lock().dirty.spans();
        for (offset, end) in spans.into_iter().filter(|span| span.0 > 0) {
            let from = offset.saturating_sub(GATHER_MAX);
            self.know_extents(from, offset).await?;
            let state = self.state.lock();
            let Some(stripe) = rows_of(state.layout) else { return Ok(None) };
            if state.extents.unknown(from, offset.min(state.attributes.size)).is_some() {
                continue;
            }
            let extents = state.extents.extents(from, offset);
            if let Some(start) = rows_begin(&extents, stripe, offset, end) {
                return Ok(Some(((offset, end), start)));
            }
        }
        Ok(None)
    }
    async fn flush_run(self: &Arc<Self>, (offset, end): (u64, u64), start: u64) -> Result<()> {
        let before = self.with(0, |state| {
            let data = state.dirty.take_range(0, offset);
            let runs = data.runs();
            if !data.is_empty() {
                self.begin(state, data, runs, 0);
            }
            !state.flights.is_empty()
        });
        if before && self.publish_in_order(u64::MAX).await? == Published::WriteAgain {
            return Ok(());
        }
        self.know_extents(start, offset).await?;
        let (version, stretches) = {
            let state = self.state.lock();
            (state.attributes.data_version, state.extents.stretches(start, offset))
        };
        let mut parts = match read_stretches(&self.volume, &self.what(), &stretches).await {
            Ok(parts) => parts,
            Err(ClientError::Changed { .. }) => return self.refresh().await.map(|_| ()),
            Err(error) => return Err(error),
        };
        self.with(0, |state| {
            let data: Dirty = state.dirty.take_range(offset, end);
            for own in data.runs() {
                parts.extend(own.parts);
            }
            let whole = Run { offset: start, parts };
            self.begin(state, data, vec![whole], version);
        });
        self.publish_in_order(u64::MAX).await.map(|_| ())
    }
}
