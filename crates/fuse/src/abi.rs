//! The kernel's FUSE protocol (`include/uapi/linux/fuse.h`, version 7): structures as they lie in memory, by topic.
//!
//! All of them are native-endian and padded to 8 bytes. Sizes are checked at compile time. Not here: what operations
//! mean (`session`), reading and writing the device (`device`).
pub mod attr;
pub mod dir;
pub mod file;
pub mod header;
pub mod init;
pub mod lock;
pub mod names;
pub mod notify;
pub mod opcode;
pub mod statx;

/// Fails the build when a structure has not the size that the kernel's header gives it.
macro_rules! sizes {
    ($($name:ident = $size:literal),+ $(,)?) => {
        $(const _: () = assert!(core::mem::size_of::<$name>() == $size);)+
    };
}
pub(crate) use sizes;
