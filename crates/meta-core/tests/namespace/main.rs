//! The namespace as its callers see it: protobuf in, protobuf out.
#![allow(clippy::unwrap_used, reason = "a failed step of a test panics")]
mod acls;
mod across;
mod against_model;
mod appends;
mod checkpoints;
mod clones;
mod compaction;
mod contents;
mod deferral;
mod driver;
mod files;
mod fullness;
mod garbage;
mod leases;
mod permissions;
mod quotas;
mod ranges;
mod renames;
mod sessions;
mod snapshots;
mod snapshots_of_directories;
mod staged;
mod translate;
mod trash;
mod trees;
mod volatile;
