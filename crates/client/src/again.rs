//! [`Again`]: a mutation that got no answer, as it was sent.
//!
//! The servers know it by its session, slot and number, and nothing else is ever sent in that slot. So whoever sends
//! the same bytes again hears what came of it, and it is done once, as long as the session lives.
use crate::encoded_message::EncodedMessage;
use cairn_wire::Opcode;
use std::fmt;
use std::sync::Arc;

/// Belongs to an error whose outcome is not known.
#[derive(Clone)]
pub struct Again(pub(crate) Arc<Sent>);

pub(crate) struct Sent {
    pub(crate) partition: u32,
    /// The inodes by which it goes there.
    pub(crate) by: Vec<u64>,
    pub(crate) opcode: Opcode,
    pub(crate) request: EncodedMessage,
}

impl fmt::Debug for Again {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at p{}", self.0.opcode.name(), self.0.partition)
    }
}
