//! The proof of striping and erasure coding: the shipping client, data servers, namespace and manager in one process, on
//! simulated disks and a faulty network, beside a model of bytes. `docs/internals/proof.md` says how it is run and what it
//! has caught.
//!
//! **The network** is loopback TCP through a proxy for each process ([`proxy`]), not a transport in memory. The RPC crate
//! has no seam below its sockets: it moves received bytes of files by `splice`, and every server runs its connections on
//! threads of its own, each with its own runtime. A transport in memory on one paused clock would test another RPC crate and
//! another threading than those that ship. The price: time is real, and a seed decides what is done and which faults
//! begin when, but not how threads interleave, so a rare failure needs its seed more than once.
//!
//! Not here: the deterministic simulation of cores (`sim`), real processes and kernels (tests of the binary).
pub mod cluster;
pub mod data_node;
pub mod faults;
pub mod file;
pub mod ground;
pub mod head;
pub mod links;
pub mod members;
pub mod proxy;
pub mod seed;
pub mod workload;
