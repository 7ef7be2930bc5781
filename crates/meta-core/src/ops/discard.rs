//! Discard: a session gives back bytes that it wrote and that no file came to name, as those of a write that failed.
//!
//! The partition takes the writer's word for both, as it does in a publish. What a file names is never sent here: a
//! client discards only what it certainly did not publish.
use crate::error::Result;
use crate::extent_map::check_incoming;
use crate::message::request;
use crate::namespace::{Context, Namespace};
use crate::writer_session::check_writer;

impl Namespace {
    pub(crate) fn discard(&mut self, context: &Context<'_>, bytes: &[u8]) -> Result<()> {
        let request = request::Discard::decode(bytes)?;
        check_incoming(&request.extents, self.level, &mut self.scratch.incoming)?;
        check_writer(request.written_by, !self.scratch.incoming.is_empty(), context)?;
        self.check_sets(&request.sets, None)?;
        self.free_incoming();
        Ok(())
    }
}
