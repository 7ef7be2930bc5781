//! Which session wrote what a request names.
//!
//! Invariant: a file comes to name bytes only by a request of the session that wrote them, and not after that session's
//! end (its requests are refused before anything is looked at). So the chunks of an ended session are garbage if no
//! partition names them after the end: nobody can come to name them later.
//!
//! The session of a chunk is in its header on the data nodes, where a partition cannot look: the writer says it.
use crate::error::{OpError, Result};
use crate::namespace::Context;
use cairn_types::ErrorCode;

const OTHER_WRITER: OpError = OpError::new(
    ErrorCode::WrongSession,
    "the extents were not written under the session that names them; write the file again under one session",
);

/// Refuses extents that another session wrote, or that nobody claims to have written.
pub(crate) fn check_writer(written_by: u64, names_extents: bool, context: &Context<'_>) -> Result<()> {
    if names_extents && written_by != context.session { Err(OTHER_WRITER) } else { Ok(()) }
}
