//! Tests of the host on real threads: a counter replicated on one and three members, restarts, snapshots, failures.

mod clocks;
mod damage;
mod eras;
pub(crate) mod fixture;
mod freeze;
mod full;
mod older;
mod panics;
mod rpc;
mod single;
mod sleep;
mod strangers;
mod three;
