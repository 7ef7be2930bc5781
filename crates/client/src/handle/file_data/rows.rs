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
            while self.publish_in_order(u64::MAX).await? == Published::WriteAgain {}
            let Some((run, start)) = self.completing().await? else { return Ok(()) };
            if tries == TRIES {
                return Err(ClientError::Changed { what: self.what() });
            }
            tries += 1;
            self.flush_run(run, start).await?;
        }
    }
    /// The first run that completes rows with what lies before it, and where those begin.
    async fn completing(&self) -> Result<Option<(Run, u64)>> {
        let runs = self.state.lock().dirty.runs();
        for run in runs.into_iter().filter(|run| run.offset > 0) {
            let from = run.offset.saturating_sub(GATHER_MAX);
            self.know_extents(from, run.offset).await?;
            let state = self.state.lock();
            let Some(stripe) = rows_of(state.layout) else { return Ok(None) };
            if state.extents.unknown(from, run.offset.min(state.attributes.size)).is_some() {
                continue;
            }
            let extents = state.extents.extents(from, run.offset);
            if let Some(start) = rows_begin(&extents, stripe, run.offset, run.end()) {
                return Ok(Some((run, start)));
            }
        }
        Ok(None)
    }
    async fn flush_run(self: &Arc<Self>, run: Run, start: u64) -> Result<()> {
        let before = self.with(0, |state| {
            let data = state.dirty.take_range(0, run.offset);
            let runs = data.runs();
            if !data.is_empty() {
                self.begin(state, data, runs, 0);
            }
            !state.flights.is_empty()
        });
        if before && self.publish_in_order(u64::MAX).await? == Published::WriteAgain {
            return Ok(());
        }
        self.know_extents(start, run.offset).await?;
        let (version, stretches) = {
            let state = self.state.lock();
            (state.attributes.data_version, state.extents.stretches(start, run.offset))
        };
        let mut parts = match read_stretches(&self.volume, &self.what(), &stretches).await {
            Ok(parts) => parts,
            Err(ClientError::Changed { .. }) => return self.refresh().await.map(|_| ()),
            Err(error) => return Err(error),
        };
        self.with(0, |state| {
            let data: Dirty = state.dirty.take_range(run.offset, run.end());
            for own in data.runs() {
                parts.extend(own.parts);
            }
            let whole = Run { offset: start, parts };
            self.begin(state, data, vec![whole], version);
        });
        self.publish_in_order(u64::MAX).await.map(|_| ())
    }
}
