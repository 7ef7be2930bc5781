//! The proof: the shipping client, data servers, namespace and manager in one process, on simulated disks and a faulty
//! network, beside a model of bytes. `docs/internals/proof.md` says how it is run and what it has caught.
//!
//! **Threads, time and the network** are those of crate `dst`: the program `sim` runs one seed in its process, and the
//! same seed is the same run. Every process is a host there with one address ([`plug`]), so faults of the network
//! ([`links`]) know who opened a connection to whom. Nothing of the product is another one for that.
//!
//! Not here: disks (`sim`), the scheduler (`dst`), real processes and kernels (tests of the binary).
pub mod cluster;
pub mod copies;
pub mod data_node;
pub mod encoded;
pub mod faults;
pub mod file;
pub mod fleet;
pub mod ground;
pub mod head;
pub mod keyring;
pub mod links;
pub mod managers;
mod marks;
pub mod members;
pub mod plug;
mod renewal;
pub mod replicas;
pub mod roster;
pub mod run_log;
pub mod seed;
mod sleep;
pub mod upkeep;
pub mod workload;
