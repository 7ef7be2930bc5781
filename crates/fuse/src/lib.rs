//! A volume as a mounted file system: the kernel protocol of FUSE, mounting, the supervisor. The semantics are in `vfs`.
