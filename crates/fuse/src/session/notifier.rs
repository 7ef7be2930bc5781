//! Tells the kernel what it should no longer believe.
//!
//! On a thread of its own: such a message waits for operations on the inode, which may themselves wait for an answer of
//! this process. Messages that find no room are dropped, since times to live end by themselves.
use super::Session;
use cairn_vfs::{Invalidation, Invalidations};
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};

/// Messages that wait for the kernel.
const QUEUE_MAX: usize = 4096;

/// The way to the thread.
pub struct Notifier {
    sender: SyncSender<Invalidation>,
}

impl Notifier {
    /// Starts the thread, and a task that feeds it from `vfs`. The thread ends when all senders are gone.
    pub fn start(device: crate::device::Device, root: u64) -> std::io::Result<Notifier> {
        let (sender, receiver) = sync_channel::<Invalidation>(QUEUE_MAX);
        let tell = move || {
            for message in receiver {
                tell(&device, root, &message);
            }
        };
        std::thread::Builder::new().name("fuse-notify".into()).spawn(tell)?;
        Ok(Notifier { sender })
    }
    pub fn send(&self, message: Invalidation) {
        if let Err(TrySendError::Full(message)) = self.sender.try_send(message) {
            tracing::debug!(?message, "the kernel is behind with invalidations; this one is left to its time to live");
        }
    }
}

fn tell(device: &crate::device::Device, root: u64, message: &Invalidation) {
    let node = |ino: u64| if ino == root { super::ROOT_NODE } else { ino };
    let told = match message {
        Invalidation::Inode { ino, offset, length } => {
            device.invalidate_inode(node(*ino), *offset as i64, *length as i64)
        }
        Invalidation::Entry { parent, name } => device.invalidate_entry(node(*parent), name),
    };
    match told {
        // The kernel does not know the inode or the name, or is unmounting.
        Ok(()) | Err(Errno::NOENT | Errno::NODEV | Errno::NOTDIR | Errno::CONNABORTED) => {}
        Err(error) => tracing::debug!(%error, ?message, "an invalidation was refused"),
    }
}

impl Session {
    /// Hands on what `vfs` says, until it is gone.
    pub fn feed_notifier(self: &Arc<Self>, mut from: Invalidations) {
        let session = self.clone();
        tokio::spawn(async move {
            while let Some(message) = from.recv().await {
                session.notifier.send(message);
            }
        });
    }
    /// The same as [`notify_attributes`](Self::notify_attributes) here and now: it waits for nothing, as it leaves the
    /// pages.
    pub(super) fn invalidate_attributes(&self, node: u64) {
        match self.device.invalidate_inode(node, -1, 0) {
            Ok(()) | Err(Errno::NOENT | Errno::NODEV | Errno::CONNABORTED) => {}
            Err(error) => tracing::debug!(%error, node, "an invalidation was refused"),
        }
    }
    /// The kernel's attributes of an inode are old; its pages are not.
    pub(super) fn notify_attributes(&self, ino: u64) {
        // A negative offset leaves the pages.
        self.notifier.send(Invalidation::Inode { ino, offset: u64::MAX, length: 0 });
    }
}
