//! [`BindNode`]: whose key a node has. A node that is no manager is bound to the name in the key that it shows first.
//!
//! Not here: whose key somebody shows, and when another may take its place (manager).
use prost::Message;

/// The level from which on members understand it.
pub const BINDING_LEVEL: u32 = 22;

/// A node is the holder of a key from now on.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct BindNode {
    #[prost(uint32, tag = "1")]
    pub node: u32,
    /// Name in its key.
    #[prost(string, tag = "2")]
    pub holder: String,
    /// Name in the key that it had, empty: it had none. Where it has another one by now nothing is done.
    #[prost(string, tag = "3")]
    pub former: String,
}
