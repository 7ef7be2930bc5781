//! POSIX semantics on inode numbers over the client: caches, open files, write-back, read-ahead, locks. No kernel protocol.
