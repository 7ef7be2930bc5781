//! The proof of striping and erasure coding: the shipping client, data servers, namespace and manager in one process, on
//! simulated disks and a faulty network, beside a model of bytes. docs/internals/proof.md says how it is run.
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
