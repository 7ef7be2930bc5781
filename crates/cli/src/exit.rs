//! Exit codes of `cairn fs`, `cairn admin` and `cairn inspect`: a closed table that scripts rely on (add, never edit).
use cairn_client::{ClientError, UriError};
use cairn_types::ErrorCode;
use std::io::ErrorKind;

/// How a command ended. The table with its meanings is in docs/reference/cli.md.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Exit {
    Done = 0,
    /// Anything that has no code of its own.
    Other = 1,
    /// The command line makes no sense.
    Usage = 2,
    NotFound = 3,
    Exists = 4,
    Permission = 5,
    /// No space, quota reached, or too few disks.
    NoSpace = 6,
    /// Nobody answered; certainly nothing was done.
    Unreachable = 7,
    /// It was sent, but no answer came: it may or may not have been done.
    OutcomeUnknown = 8,
    /// Bytes are damaged or differ.
    Damaged = 9,
    /// Some of several things were done, others failed.
    Partial = 10,
    /// A configuration key or value is wrong; nothing was set.
    BadConfig = 11,
    /// Somebody else changed it meanwhile.
    Changed = 12,
    /// The servers belong to another cluster.
    WrongCluster = 13,
    /// A directory where a file is needed, or the reverse.
    WrongKind = 14,
    /// A name, path or value is too long.
    TooLong = 15,
    /// The address of the cluster cannot be resolved.
    UnknownCluster = 16,
    BadLayout = 17,
    /// A text that is no remote path.
    BadUri = 18,
    NotEmpty = 19,
    /// A directory or an address that another process has.
    InUse = 20,
    /// Bytes that servers which cannot be reached now may have.
    Unavailable = 21,
    /// Ctrl-C or a request to end.
    Interrupted = 130,
    /// Whoever read the output is gone; said to nobody.
    BrokenPipe = 141,
}

impl Exit {
    /// The whole table.
    pub const ALL: &'static [Exit] = &[
        Exit::Done,
        Exit::Other,
        Exit::Usage,
        Exit::NotFound,
        Exit::Exists,
        Exit::Permission,
        Exit::NoSpace,
        Exit::Unreachable,
        Exit::OutcomeUnknown,
        Exit::Damaged,
        Exit::Partial,
        Exit::BadConfig,
        Exit::Changed,
        Exit::WrongCluster,
        Exit::WrongKind,
        Exit::TooLong,
        Exit::UnknownCluster,
        Exit::BadLayout,
        Exit::BadUri,
        Exit::NotEmpty,
        Exit::InUse,
        Exit::Unavailable,
        Exit::Interrupted,
        Exit::BrokenPipe,
    ];

    pub fn code(self) -> u8 {
        self as u8
    }
    /// The word in JSON errors.
    pub fn name(self) -> &'static str {
        match self {
            Self::Done => "ok",
            Self::Other => "other",
            Self::Usage => "usage",
            Self::NotFound => "not_found",
            Self::Exists => "exists",
            Self::Permission => "permission",
            Self::NoSpace => "no_space",
            Self::Unreachable => "unreachable",
            Self::OutcomeUnknown => "outcome_unknown",
            Self::Damaged => "damaged",
            Self::Partial => "partial",
            Self::BadConfig => "bad_config",
            Self::Changed => "changed",
            Self::WrongCluster => "wrong_cluster",
            Self::WrongKind => "wrong_kind",
            Self::TooLong => "too_long",
            Self::UnknownCluster => "unknown_cluster",
            Self::BadLayout => "bad_layout",
            Self::BadUri => "bad_uri",
            Self::NotEmpty => "not_empty",
            Self::InUse => "in_use",
            Self::Unavailable => "unavailable",
            Self::Interrupted => "interrupted",
            Self::BrokenPipe => "broken_pipe",
        }
    }

    /// Of a server's error code.
    pub fn of_code(code: ErrorCode) -> Exit {
        use ErrorCode as E;
        match code {
            E::NotFound | E::NoAttribute | E::UnknownVolume | E::UnknownNode | E::UnknownPg | E::UnknownPartition => {
                Exit::NotFound
            }
            E::Exists => Exit::Exists,
            E::PermissionDenied | E::NotPermitted | E::ReadOnly | E::KeyForbids => Exit::Permission,
            E::NoSpace | E::QuotaExceeded | E::NotEnoughDisks | E::PgFull => Exit::NoSpace,
            E::NotLeader | E::Unavailable | E::Overloaded | E::NotServing | E::NotPrimary | E::BelowMinimum => {
                Exit::Unreachable
            }
            E::DeadlineExceeded | E::SessionEnded => Exit::OutcomeUnknown,
            E::ChecksumMismatch | E::Missing | E::OffsetMismatch => Exit::Damaged,
            E::DiskFailed => Exit::Unavailable,
            E::BadConfig => Exit::BadConfig,
            E::Conflict | E::WrongSession | E::Stale | E::ChunkDeleted | E::StaleEpoch | E::WrongIncarnation => {
                Exit::Changed
            }
            E::WrongCluster => Exit::WrongCluster,
            E::NotDirectory | E::IsDirectory => Exit::WrongKind,
            E::NameTooLong | E::FileTooLarge | E::OutOfRange | E::AttributeTooLarge => Exit::TooLong,
            E::BadLayout => Exit::BadLayout,
            E::NotEmpty | E::VolumeNotEmpty => Exit::NotEmpty,
            E::InvalidArgument | E::CrossVolume => Exit::Usage,
            E::VersionUnsupported
            | E::Internal
            | E::BadRequest
            | E::UnknownOperation
            | E::BadSequence
            | E::TooManyLinks
            | E::TooManySymlinks
            | E::Locked
            | E::TooManyLocks
            | E::NotSupported
            | E::Sharded
            | E::NotInPlace
            | E::LeaseHeld
            | E::ChunkSealed
            | E::ChainFailed => Exit::Other,
        }
    }

    /// Of an error of the client library.
    pub fn of_client(error: &ClientError) -> Exit {
        match error {
            ClientError::Remote { error, .. } => Exit::of_code(error.code),
            ClientError::Unreachable { .. } | ClientError::NoLeader { .. } => Exit::Unreachable,
            ClientError::OutcomeUnknown { .. } => Exit::OutcomeUnknown,
            ClientError::Unreadable { .. } => Exit::Damaged,
            ClientError::Unavailable { .. } | ClientError::NotAtRest { .. } => Exit::Unavailable,
            ClientError::NoWritableGroup { full: true, .. } => Exit::NoSpace,
            ClientError::NoWritableGroup { full: false, .. } => Exit::Unreachable,
            ClientError::Changed { .. } => Exit::Changed,
            ClientError::Malformed { .. } | ClientError::Protocol { .. } => Exit::Other,
            ClientError::Uri(UriError::NameTooLong(_) | UriError::PathTooLong) => Exit::TooLong,
            ClientError::Uri(_) => Exit::BadUri,
            ClientError::Key(_) => Exit::Permission,
        }
    }

    /// Of an error of the local file system.
    pub fn of_io(error: &std::io::Error) -> Exit {
        match error.kind() {
            ErrorKind::NotFound => Exit::NotFound,
            ErrorKind::AlreadyExists => Exit::Exists,
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => Exit::Permission,
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Exit::NoSpace,
            ErrorKind::NotADirectory | ErrorKind::IsADirectory => Exit::WrongKind,
            ErrorKind::InvalidFilename | ErrorKind::FileTooLarge => Exit::TooLong,
            ErrorKind::DirectoryNotEmpty => Exit::NotEmpty,
            ErrorKind::BrokenPipe => Exit::BrokenPipe,
            _ => Exit::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_client::refusal::Refusal;

    fn remote(code: ErrorCode) -> Exit {
        Exit::of_client(&ClientError::Remote { what: "x".into(), error: Refusal::new(code, "y") })
    }

    /// The table that people read would say something else than the program does.
    #[test]
    fn the_table_of_the_documentation_is_this_one() {
        let page = include_str!("../../../docs/reference/cli.md");
        let table =
            page.split("## Exit codes").nth(1).and_then(|rest| rest.split("\n## ").next()).expect("the section");
        let rows: Vec<&str> = table.lines().filter(|line| line.starts_with("| ") && line.contains('`')).collect();
        assert_eq!(rows.len(), Exit::ALL.len());
        for (row, exit) in rows.iter().zip(Exit::ALL) {
            assert!(row.starts_with(&format!("| {} | `{}` |", exit.code(), exit.name())), "{row}");
        }
    }

    /// A script that tells a missing file from a dead cluster would do the wrong thing if a row moved.
    #[test]
    fn codes_of_remote_errors() {
        for (code, exit) in [
            (ErrorCode::NotFound, 3),
            (ErrorCode::UnknownVolume, 3),
            (ErrorCode::Exists, 4),
            (ErrorCode::PermissionDenied, 5),
            (ErrorCode::NotPermitted, 5),
            (ErrorCode::NoSpace, 6),
            (ErrorCode::QuotaExceeded, 6),
            (ErrorCode::SessionEnded, 8),
            (ErrorCode::ChecksumMismatch, 9),
            (ErrorCode::DiskFailed, 21),
            (ErrorCode::BadConfig, 11),
            (ErrorCode::Conflict, 12),
            (ErrorCode::WrongCluster, 13),
            (ErrorCode::NotDirectory, 14),
            (ErrorCode::IsDirectory, 14),
            (ErrorCode::NameTooLong, 15),
            (ErrorCode::BadLayout, 17),
            (ErrorCode::NotEmpty, 19),
            (ErrorCode::Internal, 1),
        ] {
            assert_eq!(remote(code).code(), exit, "{code}");
        }
    }

    /// The other errors of the client library each have their class.
    #[test]
    fn codes_of_client_errors() {
        let (what, last) = (String::from("x"), String::from("y"));
        let unreachable =
            ClientError::Unreachable { what: what.clone(), tried: "h:1".into(), seconds: 1, last: last.clone() };
        let unknown = ClientError::OutcomeUnknown { what: what.clone(), seconds: 1, last, again: None };
        let unreadable = ClientError::Unreadable { what: what.clone(), offset: 0, length: 1, detail: "z".into() };
        let (detail, away) = (String::from("z"), vec![String::from("disk d1")]);
        let away = ClientError::Unavailable { what: what.clone(), offset: 0, length: 1, away, detail };
        let group = |full| ClientError::NoWritableGroup { what: what.clone(), detail: "z".into(), full };
        let (full, silent) = (group(true), group(false));
        let exits = [
            (unreachable, 7),
            (unknown, 8),
            (unreadable, 9),
            (away, 21),
            (full, 6),
            (silent, 7),
            (ClientError::Changed { what }, 12),
            (ClientError::Uri(UriError::PathTooLong), 15),
            (ClientError::Uri(UriError::NotRemote("a".into())), 18),
        ];
        for (error, exit) in exits {
            assert_eq!(Exit::of_client(&error).code(), exit, "{error}");
        }
    }

    /// Local errors use the same numbers as remote ones.
    #[test]
    fn codes_of_local_errors() {
        for (errno, exit) in
            [(2, 3), (17, 4), (13, 5), (30, 5), (28, 6), (20, 14), (21, 14), (36, 15), (32, 141), (5, 1)]
        {
            let error = std::io::Error::from_raw_os_error(errno);
            assert_eq!(Exit::of_io(&error).code(), exit, "errno {errno}: {error}");
        }
    }
}
