//! [`Target`]: what chunks are opened for.
use cairn_types::{PgClass, SessionId};

/// What chunks are opened for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub volume: u32,
    pub class: PgClass,
    pub session: SessionId,
}
