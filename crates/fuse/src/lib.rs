//! A volume as a mounted file system: the kernel protocol of FUSE, mounting, the supervisor. The semantics are in
//! `vfs`.
//!
//! Three processes: the command `cairn mount` starts a supervisor and ends; the supervisor mounts, holds the connection
//! to the kernel and starts workers; a worker serves. docs/internals/fuse.md has the whole picture.
mod abi;
mod command;
mod device;
pub mod failure;
mod lanes;
mod link;
mod memory;
mod mount;
mod open_table;
pub mod options;
mod queue_file;
mod session;
mod spec;
mod supervisor;
mod suspects;
mod virtual_dir;
mod worker;

pub use command::{Front, MountArgs, UmountArgs, mount as run_mount, umount as run_umount};
pub use supervisor::start::main as supervisor_main;
pub use worker::main as worker_main;
