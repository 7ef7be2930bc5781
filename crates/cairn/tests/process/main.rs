//! Tests of the program as a whole: real processes, real ports, real directories.
//!
//! One test program, so that the harness is compiled once and all of it is used. Each test has its own cluster.

mod absent_disk;
mod care;
mod chaos;
mod compaction;
mod convert;
mod defragment;
mod dev;
mod disks;
mod docs;
mod doctor;
mod drain;
mod erasure;
mod events;
mod faults;
mod force;
mod garbage;
mod gray;
mod hostile;
mod layouts;
mod leaders;
mod lists;
mod managers;
mod members;
mod members_again;
mod mistakes;
mod mount;
mod mount_faults;
mod mount_posix;
mod mutated;
mod namespace;
mod namespaces;
mod net;
mod older;
mod proxy;
mod refusals;
mod repair;
mod requests;
mod rescue;
mod sessions;
mod stale;
mod support;
mod trees;
mod upgrade;
mod wait;
