//! What the leader of a partition tells those who ask how encoding goes on.
//!
//! Invariant: files and bytes that wait agree: both are of now where few files wait, else the bytes are those of the
//! last look. Not here: the work (`stage`), and what is asked for (`asked`).

use cairn_meta_core::{Namespace, StagedFile};
use cairn_types::WallTime;
use cairn_wire::meta::StageStatusResponse;
use parking_lot::Mutex;

use super::asked::Asked;

/// Files that are looked at under one hold of the lock.
pub(super) const LOOK_FILES: usize = 512;

/// What the leader tells those who ask.
#[derive(Debug, Default)]
pub(crate) struct StageDesk {
    pub(super) status: Mutex<StageStatusResponse>,
    pub(super) asked: Asked,
}

impl StageDesk {
    /// As of now.
    pub(crate) fn answer(&self, namespace: &Namespace, wall: WallTime) -> StageStatusResponse {
        let mut told = self.status.lock().clone();
        told.waiting_files = namespace.staged_count();
        if told.waiting_files <= LOOK_FILES as u64 {
            let mut now = StageStatusResponse::default();
            namespace.staged_files(0, LOOK_FILES).0.iter().for_each(|file| note(&mut now, file, wall));
            copy_waiting(&now, &mut told);
        }
        told
    }

    /// What a look found.
    pub(super) fn looked(&self, found: &StageStatusResponse, held: bool) {
        let mut told = self.status.lock();
        copy_waiting(found, &mut told);
        told.held = held;
    }
}

/// Counts a file that waits.
pub(super) fn note(told: &mut StageStatusResponse, file: &StagedFile, wall: WallTime) {
    told.waiting_bytes += file.bytes;
    let at = due_at(file);
    if at > wall {
        told.next_due_ns = if told.next_due_ns == 0 { at.0 } else { told.next_due_ns.min(at.0) };
    } else if file.is_mostly_shared() {
        told.shared_files += 1;
        told.shared_bytes += file.bytes;
    } else {
        told.due_files += 1;
        told.due_bytes += file.bytes;
    }
}

/// When the time of a file comes. A clock that is ahead makes it come early, which does no harm.
pub(super) fn due_at(file: &StagedFile) -> WallTime {
    let after = u64::try_from(file.after.duration().as_nanos()).unwrap_or(u64::MAX);
    WallTime(file.changed.saturating_add(after))
}

fn copy_waiting(from: &StageStatusResponse, to: &mut StageStatusResponse) {
    (to.waiting_bytes, to.next_due_ns) = (from.waiting_bytes, from.next_due_ns);
    (to.due_files, to.due_bytes) = (from.due_files, from.due_bytes);
    (to.shared_files, to.shared_bytes) = (from.shared_files, from.shared_bytes);
}
