//! The environment seam: clock, randomness, disk and message transport behind object-safe traits, with the real
//! implementations.
//!
//! Everything above this layer that touches the machine's time, chance or disks does it through these traits, so a
//! test can put a simulated environment in their place (the `cairn-sim` crate). All calls block; they are made from
//! I/O threads, never from an asynchronous one.
//!
//! Not here: rules of the file system, and the network of the product (the rpc crate moves frames over TCP; the
//! [`transport`] seam is for cores that speak in whole messages).

pub mod buf;
pub mod clock;
pub mod disk;
pub mod pipe;
pub mod rng;
pub mod transport;

pub use buf::{AlignedBuf, BUF_ALIGN, BufError, BufPool, SharedBuf};
pub use clock::{Clock, RealClock};
pub use disk::{DirEntry, Disk, DiskError, DiskOp, File, LockGuard, OpenOptions, PatientDisk, RealDisk, Space};
pub use pipe::{PIPE_BYTES, Pipe, PipePool};
pub use rng::{FastRng, OsRng, Rng};
pub use transport::Transport;
