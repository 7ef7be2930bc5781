//! One operation a file. Each one checks everything first and changes afterwards, so that an error means that nothing
//! was done. The order of checks is that of Linux (fs/namei.c): arguments, the directories named, search permission,
//! the entry, permission to change, ownership in sticky directories, type.
mod access;
mod append;
mod clone_range;
pub(crate) mod clone_then;
mod create;
mod create_unnamed;
mod directory;
mod discard;
mod extents;
mod getattr;
mod getattr_many;
mod hold;
mod link;
mod lock;
mod lookup;
mod mkdir;
mod open;
mod overwrite_lease;
mod publish;
mod publish_attributes;
mod punch;
mod quota;
pub(crate) mod readdir;
mod readlink;
mod reclaim;
mod reclaim_entry;
mod remove_tree;
mod rename;
mod resolve;
mod rmdir;
mod session;
pub(crate) mod setattr;
mod statfs;
mod symlink;
mod unlink;
mod xattr;
