//! Operations of the manager service, one kind a file.
pub(crate) mod binding;
mod config;
mod drain;
mod events;
mod force;
mod heartbeat;
mod jobs;
mod managers;
mod map;
pub(crate) mod marks;
mod members;
mod own_disks;
mod pgs;
mod private_data;
mod register;
mod renew;
mod report;
mod restored;
mod revoked;
mod session;
pub(crate) mod split;
mod status;
mod volumes;

pub(crate) use drain::target_message;
pub(crate) use report::TAKEOVER_PATIENCE;
