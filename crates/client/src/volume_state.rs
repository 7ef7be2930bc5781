//! What a volume holds and how it is: [`Quota`], [`VolumeCounts`], the progress of encoding, checks by its partitions.
use cairn_wire::meta;

/// Limits of a directory with all below it, or of a volume, and what is used of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Quota {
    /// Of the directory; 0: the volume.
    pub inode: u64,
    /// 0: no limit.
    pub bytes_max: u64,
    /// 0: no limit.
    pub inodes_max: u64,
    /// That extents cover.
    pub bytes_used: u64,
    /// Without the directory itself.
    pub inodes_used: u64,
    /// What was there before is still being counted; limits hold from then on.
    pub counting: bool,
    /// Of the volume: some partitions were not told yet.
    pub being_set: bool,
}

impl Quota {
    pub(crate) fn of_wire(found: meta::Quota) -> Self {
        let meta::Quota { inode, bytes_max, inodes_max, bytes_used, inodes_used, counting, being_set } = found;
        Self { inode, bytes_max, inodes_max, bytes_used, inodes_used, counting, being_set }
    }
}

/// Bytes on all disks together that no file names.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Unreferenced {
    /// Written by sessions that have ended.
    pub left_bytes: u64,
    /// When they are free at the latest, if all members are there.
    pub left_freed_by_ns: u64,
    /// Written a short time ago by sessions that may go on.
    pub recent_bytes: u64,
    /// When they are free if these do not.
    pub recent_freed_by_ns: u64,
}

/// What a volume holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct VolumeCounts {
    pub inodes: u64,
    pub directories: u64,
    pub file_bytes: u64,
    /// That extents cover.
    pub stored_bytes: u64,
    pub memory_bytes: u64,
    /// The volume's quota; 0: none.
    pub quota_bytes: u64,
    pub quota_inodes: u64,
    /// Files and runs of blocks that were removed and whose space is not free yet.
    pub freeing: u64,
    /// Where it was asked for and counted.
    pub unreferenced: Option<Unreferenced>,
}

impl VolumeCounts {
    pub(crate) fn of_wire(found: meta::StatfsResponse) -> Self {
        let unreferenced = found.unreferenced.filter(|found| found.known).map(|found| Unreferenced {
            left_bytes: found.left_bytes,
            left_freed_by_ns: found.left_freed_by_ns,
            recent_bytes: found.recent_bytes,
            recent_freed_by_ns: found.recent_freed_by_ns,
        });
        Self {
            inodes: found.inodes,
            directories: found.directories,
            file_bytes: found.file_bytes,
            stored_bytes: found.stored_bytes,
            memory_bytes: found.memory_bytes,
            quota_bytes: found.quota_bytes,
            quota_inodes: found.quota_inodes,
            freeing: found.freeing,
            unreferenced,
        }
    }
}

/// How the encoding of files with a later scheme goes on in a partition. Counters: since its leader leads.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct StageStatus {
    pub waiting_files: u64,
    pub waiting_bytes: u64,
    /// Of these: their time has come.
    pub due_files: u64,
    pub due_bytes: u64,
    /// When that of the next one comes, since 1970; 0: of none.
    pub next_due_ns: u64,
    /// That is worked on; 0: none.
    pub inode: u64,
    /// How far.
    pub from: u64,
    /// Since when it counts, since 1970.
    pub since_ns: u64,
    pub encoded_files: u64,
    /// Written anew.
    pub encoded_bytes: u64,
    /// Less on all disks.
    pub freed_bytes: u64,
    /// Stay copies.
    pub kept_files: u64,
    /// Others were in the way, or something was not complete; each is tried again.
    pub left_times: u64,
    /// Of the last one that was left.
    pub last_reason: String,
    /// Nothing is encoded at this hour.
    pub held: bool,
}

impl StageStatus {
    pub(crate) fn of_wire(found: meta::StageStatusResponse) -> Self {
        Self {
            waiting_files: found.waiting_files,
            waiting_bytes: found.waiting_bytes,
            due_files: found.due_files,
            due_bytes: found.due_bytes,
            next_due_ns: found.next_due_ns,
            inode: found.inode,
            from: found.from,
            since_ns: found.since_ns,
            encoded_files: found.encoded_files,
            encoded_bytes: found.encoded_bytes,
            freed_bytes: found.freed_bytes,
            kept_files: found.kept_files,
            left_times: found.left_times,
            last_reason: found.last_reason,
            held: found.held,
        }
    }
}

/// Where a check stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FsckState {
    Running,
    Done,
    /// It was not finished.
    Failed,
}

/// How bad a finding is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FsckSeverity {
    /// Something is not as it has to be.
    Wrong,
    /// Fewer copies or shards than there should be.
    Degraded,
    /// Bytes are lost.
    Lost,
    /// Too few members are there to know.
    Unavailable,
    /// Nothing is wrong.
    Note,
}

/// What a check found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FsckFinding {
    /// 0: the volume's totals and lists.
    pub inode: u64,
    /// Empty: it has no name.
    pub path: Vec<u8>,
    pub text: String,
    pub severity: FsckSeverity,
    pub mended: bool,
}

/// How far a check is, and a page of what it found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FsckProgress {
    pub run: u64,
    pub state: FsckState,
    pub stage: String,
    /// Entries of the namespace looked at, by all walks.
    pub steps: u64,
    pub inodes: u64,
    pub directories: u64,
    pub chunks: u64,
    /// Findings without notes, also those that were not kept.
    pub found: u64,
    pub findings: Vec<FsckFinding>,
    /// There are more findings.
    pub more: bool,
    /// Why it failed, or what it left out.
    pub message: String,
}

impl FsckFinding {
    fn of_wire(found: meta::FsckFinding) -> Self {
        let severity = match found.severity {
            2 => FsckSeverity::Degraded,
            3 => FsckSeverity::Lost,
            4 => FsckSeverity::Unavailable,
            5 => FsckSeverity::Note,
            // What a later version adds is nothing good.
            _ => FsckSeverity::Wrong,
        };
        let meta::FsckFinding { inode, path, text, severity: _, mended } = found;
        Self { inode, path, text, severity, mended }
    }
}

impl FsckProgress {
    pub(crate) fn of_wire(found: meta::FsckResponse) -> Self {
        let state = match found.state {
            1 => FsckState::Running,
            2 => FsckState::Done,
            _ => FsckState::Failed,
        };
        Self {
            run: found.run,
            state,
            stage: found.stage,
            steps: found.steps,
            inodes: found.inodes,
            directories: found.directories,
            chunks: found.chunks,
            found: found.found,
            findings: found.findings.into_iter().map(FsckFinding::of_wire).collect(),
            more: found.more,
            message: found.message,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A check that ended badly would count as one that found nothing, or a loss as a note.
    #[test]
    fn a_check_says_how_it_ended() {
        let of = |state| FsckProgress::of_wire(meta::FsckResponse { state, ..Default::default() }).state;
        assert_eq!(
            [of(0), of(1), of(2), of(3)],
            [FsckState::Failed, FsckState::Running, FsckState::Done, FsckState::Failed]
        );
        let of = |severity| FsckFinding::of_wire(meta::FsckFinding { severity, ..Default::default() }).severity;
        use FsckSeverity as S;
        assert_eq!(
            [of(1), of(2), of(3), of(4), of(5), of(6)],
            [S::Wrong, S::Degraded, S::Lost, S::Unavailable, S::Note, S::Wrong]
        );
    }

    /// Nothing that was counted would be told as nothing that is there.
    #[test]
    fn what_was_not_counted_is_not_told() {
        let of = |known| meta::StatfsResponse {
            unreferenced: Some(meta::Unreferenced { known, left_bytes: 5, ..Default::default() }),
            ..Default::default()
        };
        assert_eq!(VolumeCounts::of_wire(of(false)).unreferenced, None);
        assert_eq!(VolumeCounts::of_wire(of(true)).unreferenced.map(|found| found.left_bytes), Some(5));
    }
}
