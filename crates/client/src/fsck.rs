//! Checks of a volume by its partitions: how far one is, and what it found.
use cairn_wire::meta;

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
}
