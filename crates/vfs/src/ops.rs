//! The operations, by topic.
pub mod attributes;
pub mod dir;
pub mod guard;
pub(crate) mod handles;
pub mod io;
pub mod locks;
pub mod manage;
pub mod names;
pub mod open;
pub mod paths;
pub mod space;
pub mod xattr;
