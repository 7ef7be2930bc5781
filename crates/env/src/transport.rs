//! The message seam for cores that speak in whole messages.
//!
//! Not here: the product's network (frames, deadlines and reconnects are the rpc crate's) and the simulated one (in
//! the `cairn-sim` crate).

use cairn_types::NodeId;

/// Sends whole messages between nodes, unreliably: a message may be lost, delayed, repeated or overtaken, and no
/// answer says which. Never blocks.
pub trait Transport: Send + Sync {
    /// Hands `msg` over for delivery to `to`.
    fn send(&self, to: NodeId, msg: Vec<u8>);
}
