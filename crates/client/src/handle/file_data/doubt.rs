//! An append whose publish got no answer: it is in doubt.
//!
//! Such a publish is sent again, as it was, before anything else is published: the servers know it by its session, slot
//! and number, so it is done once, and the answer says what came of it. In between it may be done at any time: a longer
//! file may be its own. Where its session has ended it is looked whether the file names its extents. If it was done the
//! bytes stand where they were laid; if it never will be they go behind the new end. Invariants: a publish is in doubt
//! alone; as long as it is, no later version of the contents is taken from an answer that does not settle it.
use super::{By, FileData, State};
use crate::again::Again;
use crate::attributes::Attributes;
use crate::error::Result;
use crate::handle::in_doubt::Doubt;
use cairn_types::{ErrorCode, Time};
use cairn_wire::common::{Extent, StripeSet};
use std::sync::Arc;

/// What came of it.
enum Outcome {
    /// With this answer.
    Answered(Attributes),
    /// The file of this version names it.
    Named(Attributes),
    Never,
    /// The file changed while it was looked at.
    Again,
}

impl State {
    /// The publish of a batch of flights that appends has no answer.
    pub(super) fn doubts_append(
        &mut self,
        (extents, sets): (&[Extent], &[StripeSet]),
        again: Option<Again>,
        batch: &[u64],
    ) {
        let as_sent = extents.iter().map(|extent| (extent.file_offset, extent.file_offset + extent.length)).collect();
        let mut doubt = Doubt { again, extents: extents.to_vec(), sets: sets.to_vec(), as_sent };
        let later = self.flights.iter().filter(|flight| !batch.contains(&flight.id)).map(|flight| &flight.data);
        for (from, to) in later.chain([&self.dirty]).flat_map(|data| data.spans()) {
            doubt.written_over(from, to);
        }
        self.doubt = Some(Arc::new(parking_lot::Mutex::new(doubt)));
    }
    /// Something is written, which goes over what is in doubt there.
    pub(super) fn writes_over_doubt(&self, from: u64, to: u64) {
        if let Some(doubt) = &self.doubt {
            doubt.lock().written_over(from, to);
        }
    }
    /// What was in doubt is in the file.
    fn was_done(&mut self, doubt: &Doubt, now: Time) {
        self.recall(now);
        for (from, to) in &doubt.as_sent {
            self.dirty.cut(*from, *to);
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
    /// Finds out what came of the publish that is in doubt, if one is.
    pub(super) async fn settle_doubt(&self) -> Result<()> {
        loop {
            let Some(doubt) = self.state.lock().doubt.clone() else { return Ok(()) };
            let (again, extents) = {
                let doubt = doubt.lock();
                (doubt.again.clone(), doubt.extents.clone())
            };
            let outcome = self.outcome_of(again.as_ref(), &extents).await?;
            let now = self.now();
            self.with(0, |state| {
                // Another call may have found out as well.
                if !state.doubt.as_ref().is_some_and(|known| Arc::ptr_eq(known, &doubt)) {
                    return;
                }
                let doubt = doubt.lock();
                match outcome {
                    Outcome::Again => return,
                    Outcome::Never => state.doubt = None,
                    Outcome::Answered(answer) => {
                        state.was_done(&doubt, now);
                        state.doubt = None;
                        if state.learn(answer, now, By::Own) && state.attributes.data_version == answer.data_version {
                            Self::published(state, &doubt.extents, &doubt.sets);
                        } else {
                            state.forget_contents();
                        }
                    }
                    Outcome::Named(found) => {
                        state.was_done(&doubt, now);
                        state.doubt = None;
                        state.learn(found, now, By::Unknown);
                    }
                }
                state.settle();
            });
        }
    }
    async fn outcome_of(&self, again: Option<&Again>, extents: &[Extent]) -> Result<Outcome> {
        if let Some(again) = again {
            match self.volume.publish_again(&self.shown_as, again).await {
                Ok(answer) => return Ok(Outcome::Answered(answer)),
                Err(error) => match error.code() {
                    // Nothing more comes from that session.
                    Some(ErrorCode::SessionEnded | ErrorCode::WrongSession | ErrorCode::BadSequence) => {}
                    Some(code) if is_verdict(code) => return Ok(Outcome::Never),
                    _ => return Err(error),
                },
            }
        }
        let found = self.volume.getattr(self.inode).await.map_err(|e| self.named(e))?;
        Ok(match self.names_of(extents, found.data_version).await? {
            Some(true) => Outcome::Named(found),
            Some(false) => Outcome::Never,
            None => Outcome::Again,
        })
    }
    /// Whether the file of that version names any of the extents; `None`: it is of another version by now.
    async fn names_of(&self, extents: &[Extent], version: u64) -> Result<Option<bool>> {
        for extent in extents {
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

/// Whoever executed it says so, or would: whatever is refused before says nothing of an earlier attempt.
fn is_verdict(code: ErrorCode) -> bool {
    matches!(
        code,
        ErrorCode::Conflict
            | ErrorCode::NotFound
            | ErrorCode::Stale
            | ErrorCode::PermissionDenied
            | ErrorCode::QuotaExceeded
            | ErrorCode::NoSpace
            | ErrorCode::FileTooLarge
            | ErrorCode::InvalidArgument
    )
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
