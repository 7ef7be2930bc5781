//! The role over loopback: one and three members, real logs in temporary directories, data nodes that only take `Free`.

mod across;
mod append_turns;
mod appending;
mod changes;
mod compaction;
mod defragment;
mod fixture;
mod frees;
mod fsck;
mod fullness;
mod garbage;
mod late;
mod leases;
mod levels;
mod locks;
mod members;
mod older;
mod opens;
mod partitions;
mod sessions;
mod single;
mod stage;
mod stale;
mod trash;
mod unreferenced;
mod volatile;
