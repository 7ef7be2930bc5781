//! The wire: frames, messages (protobuf), operations. Layer 1: no I/O.
//!
//! Servers never import each other; they meet here. Formats are described in docs/reference/protocol.md.
pub mod audience;
pub mod enrol;
pub mod error;
pub mod frame;
pub mod hello;
pub mod holder;
pub mod opcode;
pub mod protection;
pub mod rights;

pub use opcode::Opcode;

/// Messages shared by all services.
pub mod common {
    include!(concat!(env!("OUT_DIR"), "/cairn.common.rs"));
}
/// Raft traffic.
pub mod raft {
    include!(concat!(env!("OUT_DIR"), "/cairn.raft.rs"));
}
/// Data service.
pub mod data {
    include!(concat!(env!("OUT_DIR"), "/cairn.data.rs"));
}
/// Manager service.
pub mod manager {
    include!(concat!(env!("OUT_DIR"), "/cairn.manager.rs"));
}
/// Meta service.
pub mod meta {
    include!(concat!(env!("OUT_DIR"), "/cairn.meta.rs"));
}
