//! A simulator of encoding in the background: what encoding-aware replication (EAR) gains over random replication.
//!
//! It repeats the simulations of Li, Hu, Lee: "Enabling Efficient and Reliable Transition from Replication to Erasure
//! Coding for Clustered File Systems" (DSN 2015, section V-B) with the constants of the authors' program, and calls the
//! placement that ships, of `cairn-placement`. `docs/research/ear.md` has the results. Everything is a function of
//! setting and seed.
//!
//! The events have a heap of their own and not that of `cairn-sim`: a run has ten million, which are numbers here and
//! boxed closures there. Chance is that of `cairn-sim`.
//!
//! Not here: the placement itself, and anything that runs in a cluster.
pub mod balance;
pub mod experiments;
pub mod fair;
pub mod held;
pub mod layout;
pub mod links;

pub mod report;
pub mod run;
pub mod setting;
pub mod svg;
