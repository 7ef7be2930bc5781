//! Requests of the kernel, from reading them to their answers.
//!
//! Threads read requests (`reader`). An operation is polled once where it was read; what is not done at once goes on as
//! a task of the runtime, so cached answers cost no hop between threads. Every request has an entry in a table until it
//! is answered (`in_flight`), where interrupts find it. Operations themselves are in `ops`, by topic; they translate
//! between the kernel's structures and `vfs`, which owns all semantics.
//!
//! Not here: getting the connection (`mount`), its first request (`handshake`), replacing the process (`supervisor`).
pub mod attributes;
pub mod caller;
mod dispatch;
pub mod handshake;
mod in_flight;
mod interrupt;
mod notifier;
mod ops;
mod privileged;
mod reader;
pub(crate) mod reply;
pub(crate) mod request;
mod resent;
pub mod stats;
mod watchdog;

use crate::device::Device;
use crate::open_table::OpenTable;
use crate::virtual_dir::VirtualDir;
use cairn_vfs::Vfs;
use handshake::Agreed;
use in_flight::InFlight;
use notifier::Notifier;
use privileged::Privileged;
use stats::Stats;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use watchdog::Pulse;

pub use reader::Readers;

/// Inode number of the mount's root in the protocol.
pub const ROOT_NODE: u64 = 1;
/// Requests that are read and not answered. No more are read when so many are there.
pub const IN_FLIGHT_MAX: usize = 4096;
/// What an operation gets beyond the limit of `vfs` before it is given up here.
const DEADLINE_SLACK: Duration = Duration::from_secs(5);

/// What all requests of a mount share.
pub struct Session {
    pub vfs: Vfs,
    pub device: Device,
    pub agreed: Agreed,
    /// Inode that is the root of the mount.
    pub root: u64,
    pub table: OpenTable,
    pub stats: Stats,
    pub virtual_dir: Option<VirtualDir>,
    pub(crate) pulse: Pulse,
    in_flight: InFlight,
    privileged: Privileged,
    stopping: AtomicBool,
    abandoned: AtomicBool,
    notifier: Notifier,
}

impl Session {
    pub fn new(
        vfs: Vfs,
        device: Device,
        agreed: Agreed,
        root: u64,
        table: OpenTable,
        virtual_dir: Option<VirtualDir>,
    ) -> std::io::Result<Arc<Session>> {
        let notifier = Notifier::start(device.clone(), root)?;
        Ok(Arc::new(Session {
            vfs,
            device,
            agreed,
            root,
            table,
            stats: Stats::default(),
            virtual_dir,
            pulse: Pulse::default(),
            in_flight: InFlight::default(),
            privileged: Privileged::default(),
            stopping: AtomicBool::new(false),
            abandoned: AtomicBool::new(false),
            notifier,
        }))
    }
    /// Inode of a node of the protocol.
    pub(crate) fn ino(&self, node: u64) -> u64 {
        if node == ROOT_NODE { self.root } else { node }
    }
    /// Node of an inode.
    pub(crate) fn node(&self, ino: u64) -> u64 {
        if ino == self.root { ROOT_NODE } else { ino }
    }
    /// Requests that are not answered yet.
    pub fn in_flight(&self) -> usize {
        self.in_flight.count()
    }
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }
    fn deadline(&self) -> Duration {
        self.vfs.options().timeout + DEADLINE_SLACK
    }
    /// Waits until everything that was read is answered; what is not by then is left for whoever comes next.
    pub async fn drain(&self, at_most: Duration) {
        let drained = async {
            while self.in_flight.count() > 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        // The rest is sent again, to whoever comes next.
        let _rest_is_sent_again = tokio::time::timeout(at_most, drained).await;
    }
    /// Answers nothing any more: what is still under way is for another process.
    pub fn abandon(&self) {
        self.abandoned.store(true, Ordering::Release);
    }
    pub(crate) fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests;
