//! Administration of a cluster: what managers tell of it, and what they are asked to do with it. The calls are methods
//! of [`Client`](crate::Client); what a change needs of who asks is the servers' to say.
pub mod backup;
pub mod changes;
pub mod data;
pub mod events;
pub mod keys;
pub mod members;
pub mod settings;
pub mod status;
pub mod target;
pub mod volumes;
