//! Tests of the host on real threads: a counter replicated on one and three members, restarts, snapshots.

mod fixture;
mod single;
