//! The node's one agent towards the manager: registration, heartbeats, the cluster map, for all roles of a process.
//!
//! A process registers once, whatever its roles. Each role is a [`Contributor`]: it brings disks and reports, and is
//! told the ids, the incarnation and every change of the map. The order of a start: [`NodeAgent::start`] (a data role
//! joins at once, for its disks are part of the registration), [`NodeAgent::wait_registered`], then the roles that
//! need the node's id join with [`NodeAgent::join`] and get the whole map so far.
//!
//! Not here: what roles do with the map, where ids are stored (the owner does it in
//! [`Contributor::registered`]), finding the leader (`rpc`).

mod agent;
mod config;
mod contributor;
mod seen;
mod settings;
mod view;
mod work;

pub use agent::{AgentError, NodeAgent};
pub use config::AgentConfig;
pub use contributor::{Contributor, Registration};
pub use settings::Settings;
pub use view::MapView;

#[cfg(test)]
mod tests;
