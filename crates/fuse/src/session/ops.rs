//! Operations by topic: each translates between the kernel's structures and `vfs`.
mod attributes;
mod dirs;
mod files;
mod locks;
mod names;
mod space;
mod xattrs;
