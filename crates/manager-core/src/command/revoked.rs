//! [`RevokeKeys`]: names whose keys count no more.
//!
//! Not here: how servers hear of it (the leader's answers to heartbeats).
use prost::Message;

/// The level from which on members understand it.
pub const REVOKED_LEVEL: u32 = 27;

/// Keys of these names count no more. A name is given out once, so none comes off the list again.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct RevokeKeys {
    #[prost(string, repeated, tag = "1")]
    pub names: Vec<String>,
}
