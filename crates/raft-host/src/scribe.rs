//! [`Scribe`]: the thread that writes down how far the members of a host's groups got ([`crate::book`]).

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;

use cairn_store::StoreError;
use cairn_types::GroupId;

use crate::book::{FLUSH_PAUSE, GroupMarks, MarkBook};
use crate::host::Groups;
use crate::status::GroupStatus;

/// Dropping it ends the thread.
pub(crate) struct Scribe {
    /// Dropped to end it.
    end: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Scribe {
    pub fn start(book: Arc<MarkBook>, groups: Groups) -> Result<Self, StoreError> {
        let (end, ended) = sync_channel::<()>(0);
        let thread = std::thread::Builder::new()
            .name("cairn-marks".into())
            .spawn(move || {
                let mut failing = false;
                while ended.recv_timeout(FLUSH_PAUSE) == Err(RecvTimeoutError::Timeout) {
                    note_all(&book, &groups);
                    let written = book.flush();
                    if let Err(error) = &written
                        && !failing
                    {
                        tracing::error!(%error, "how far members got cannot be written down; will be repeated");
                    }
                    failing = written.is_err();
                }
            })
            .map_err(|error| StoreError::LogStopped { dir: "raft".into(), cause: error.to_string() })?;
        Ok(Self { end: Some(end), thread: Some(thread) })
    }
}

impl Drop for Scribe {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that writes marks down panicked");
        }
    }
}

fn note_all(book: &MarkBook, groups: &Groups) {
    let views: Vec<(GroupId, GroupStatus)> =
        groups.lock().iter().map(|(&group, open)| (group, open.status())).collect();
    for (group, status) in views {
        book.note(group, &view(&status));
    }
}

/// The members of a group as one of them sees them.
pub(crate) fn view(status: &GroupStatus) -> GroupMarks {
    let core = &status.core;
    let members = core.marks.iter().filter(|(node, _)| core.members.contains(*node)).copied().collect();
    GroupMarks { index: core.applied.index, members }
}
