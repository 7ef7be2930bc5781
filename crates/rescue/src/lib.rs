//! Saving a cluster whose metadata is in danger: backups of it, putting it back, and making the cluster map anew from
//! disks.
//!
//! Works on directories of nodes that do not run, and on directories of backups; fetching a backup from a running
//! cluster is up to whoever has a connection (the CLI). Not here: what the manager's new state is (`manager-core`'s
//! `rebuild`), how members of before are kept out (`raft-host`'s eras).
pub mod backup_set;
pub mod error;
pub mod manager_state;
pub mod map;
pub mod node_dir;
pub mod restore;
pub mod scan;

pub use backup_set::BackupSet;
pub use error::RescueError;
pub use node_dir::NodeDir;
