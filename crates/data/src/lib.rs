//! The data service: serves the chunks of placement groups from the disks of a node.
//!
//! [`disk`] keeps chunks on one disk, [`server`] speaks with clients, other members and the manager. The rules are in
//! `cairn-chunk-core`, the formats in `cairn-format`.
pub mod config;
pub mod disk;
pub mod server;

pub use config::DataConfig;
pub use disk::DiskConfig;
pub use server::{DataEnv, DataServer, StartError};
