//! Files of an erasure layout: what does not fill a row is replicated until later writes complete it. Then it is read
//! back and written as rows together with them, and published only if the file is still at the version that was read.
//!
//! Invariant: where dirty bytes lie is looked at again after every wait: what was appended moves when somebody else
//! makes the file longer meanwhile, and would be laid over what is there now.
use super::publish::Published;
use super::{FileData, TRIES};
use crate::error::Result;
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
        let mut in_vain = 0;
        while in_vain < TRIES {
            // What is read back has to have what was written before it.
            if let Some(last) = self.last_flight()
                && self.publish_in_order(last).await? == Published::WriteAgain
            {
                return Ok(());
            }
            let Some((run, start)) = self.completing().await? else { return Ok(()) };
            in_vain += usize::from(!self.flush_run(run, start).await?);
        }
        // Others change the file all the time: what is left becomes rows some other time.
        Ok(())
    }
    /// The first run that completes rows with what lies before it, and where those begin.
    async fn completing(&self) -> Result<Option<((u64, u64), u64)>> {
        'anew: for _ in 0..TRIES {
            let spans = self.state.lock().dirty.spans();
            for (offset, end) in spans.into_iter().filter(|span| span.0 > 0) {
                let from = offset.saturating_sub(GATHER_MAX);
                self.know_extents(from, offset).await?;
                let state = self.state.lock();
                let Some(stripe) = rows_of(state.layout) else { return Ok(None) };
                if !state.dirty.ends_with(offset, end) {
                    continue 'anew;
                }
                if state.extents.unknown(from, offset.min(state.attributes.size)).is_some() {
                    continue;
                }
                let extents = state.extents.extents(from, offset);
                if let Some(start) = rows_begin(&extents, stripe, offset, end) {
                    return Ok(Some(((offset, end), start)));
                }
            }
            return Ok(None);
        }
        Ok(None)
    }
    /// Writes a run with what lies before it. False: it was not published.
    async fn flush_run(self: &Arc<Self>, (offset, end): (u64, u64), start: u64) -> Result<bool> {
        let before = self.with(0, |state| {
            let data = state.dirty.take_range(0, offset);
            let runs = data.runs();
            if !data.is_empty() {
                self.begin(state, data, runs, 0);
            }
            !state.flights.is_empty()
        });
        if before && self.publish_in_order(u64::MAX).await? == Published::WriteAgain {
            return Ok(false);
        }
        self.know_extents(start, offset).await?;
        let (version, stretches) = {
            let state = self.state.lock();
            if !state.dirty.ends_with(offset, end)
                || state.extents.unknown(start, offset.min(state.attributes.size)).is_some()
            {
                return Ok(false);
            }
            (state.attributes.data_version, state.extents.stretches(start, offset))
        };
        let mut parts = match read_stretches(&self.volume, &self.what(), &stretches).await {
            Ok(parts) => parts,
            Err(error) if self.was_moved(&error, version).await => return self.refresh().await.map(|_| false),
            Err(error) => return Err(error),
        };
        let begun = self.with(0, |state| {
            if !state.dirty.ends_with(offset, end) || state.attributes.data_version != version {
                return false;
            }
            let data: Dirty = state.dirty.take_range(offset, end);
            for own in data.runs() {
                parts.extend(own.parts);
            }
            let whole = Run { offset: start, parts };
            self.begin(state, data, vec![whole], version);
            true
        });
        Ok(begun && self.publish_in_order(u64::MAX).await? == Published::All)
    }
}
