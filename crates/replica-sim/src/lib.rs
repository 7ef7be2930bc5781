//! Replicas of one placement group in a world without threads: [`World::run`](world::World::run) runs a seed.
//!
//! The replicas are those of `cairn-replica-core`, the manager's table is the shipping one; disks, network, clients and
//! metadata are made up here. Checked are: what was acknowledged is read, and is on every member at the end; members
//! become equal; an index is given once; a request is answered once; what was freed does not come back.
pub mod chance;
pub mod client;
pub mod count;
pub mod disk;
pub mod event;
pub mod manager;
pub mod model;
pub mod node;
pub mod words;
pub mod world;
