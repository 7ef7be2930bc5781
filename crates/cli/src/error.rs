//! [`CliError`]: why a command failed, in words that name the thing, the cause and the next step.
//!
//! The class decides the exit code ([`Exit`]). Errors that were shown already end as [`CliError::Reported`].
use crate::exit::Exit;
use cairn_client::{ClientError, UriError};
use cairn_types::{ErrorCode, LayoutError};
use std::path::{Path, PathBuf};

/// Result of a command.
pub type Result<T> = std::result::Result<T, CliError>;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    #[error("{}", client_text(.0))]
    Client(#[from] ClientError),
    /// The local file system said no.
    #[error("{}: {doing}: {}; {}", path.display(), io_text(error), io_next_step(error))]
    Local { path: PathBuf, doing: &'static str, error: std::io::Error },
    /// Standard output or input failed.
    #[error("{stream}: {error}")]
    Stream { stream: &'static str, error: std::io::Error },
    #[error("{0}")]
    Usage(String),
    #[error("{0}")]
    BadLayout(String),
    /// A class that a check of the command itself found.
    #[error("{text}")]
    Refused { exit: Exit, text: String },
    /// No address of the cluster can be resolved.
    #[error(
        "cluster {addresses}: {cause}; check the spelling of --cluster or $CAIRN_CLUSTER (cairn dev listens at 127.0.0.1:7400)"
    )]
    UnknownCluster { addresses: String, cause: String },
    /// What was stored or fetched differs from its source.
    #[error(
        "{what}: what was {verb} differs from its source ({detail}); copy it again, and look at the log of the data nodes"
    )]
    Mismatch { what: String, verb: &'static str, detail: String },
    /// The source changed while it was copied.
    #[error("{what} changed while it was read{detail}; copy it again when nobody writes it")]
    Changed { what: String, detail: &'static str },
    /// Everything was shown already.
    #[error("{failed} failed, {done} done")]
    Reported { exit: Exit, failed: u64, done: u64 },
    /// Whoever read the output is gone.
    #[error("the reader of the output is gone")]
    BrokenPipe,
    #[error("interrupted; files under their final names are complete")]
    Interrupted,
    /// Something goes on without the command.
    #[error("interrupted; {0}")]
    InterruptedWork(String),
}

impl CliError {
    /// For what a quota has no room.
    pub fn beyond_quota(&self) -> Option<&str> {
        match self {
            Self::Client(ClientError::Remote { what, error }) if error.code == ErrorCode::QuotaExceeded => Some(what),
            _ => None,
        }
    }
    /// A local path and what was tried on it.
    pub fn local(path: &Path, doing: &'static str, error: std::io::Error) -> Self {
        Self::Local { path: path.to_owned(), doing, error }
    }
    pub fn usage(text: impl Into<String>) -> Self {
        Self::Usage(text.into())
    }
    pub fn refused(exit: Exit, text: impl Into<String>) -> Self {
        Self::Refused { exit, text: text.into() }
    }
    /// Writing to standard output failed.
    pub fn stdout(error: std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::BrokenPipe => Self::BrokenPipe,
            _ => Self::Stream { stream: "standard output", error },
        }
    }
    /// Class for scripts.
    pub fn exit(&self) -> Exit {
        match self {
            Self::Client(error) => Exit::of_client(error),
            Self::Local { error, .. } => Exit::of_io(error),
            Self::Stream { error, .. } => Exit::of_io(error),
            Self::Usage(_) => Exit::Usage,
            Self::BadLayout(_) => Exit::BadLayout,
            Self::Refused { exit, .. } | Self::Reported { exit, .. } => *exit,
            Self::UnknownCluster { .. } => Exit::UnknownCluster,
            Self::Mismatch { .. } => Exit::Damaged,
            Self::Changed { .. } => Exit::Changed,
            Self::BrokenPipe => Exit::BrokenPipe,
            Self::Interrupted | Self::InterruptedWork(_) => Exit::Interrupted,
        }
    }
    /// Nothing else will succeed after it either: a tree stops.
    pub fn is_fatal(&self) -> bool {
        // No answer for the whole patience: whoever should answer will not answer for the next file either.
        let silent = matches!(self, Self::Client(ClientError::OutcomeUnknown { .. }));
        silent
            || matches!(
                self.exit(),
                Exit::Unreachable
                    | Exit::NoSpace
                    | Exit::WrongCluster
                    | Exit::UnknownCluster
                    | Exit::Interrupted
                    | Exit::BrokenPipe
            )
    }
    /// The server's code, if one gave it.
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Client(error) => error.code(),
            _ => None,
        }
    }
    pub fn is_not_found(&self) -> bool {
        self.exit() == Exit::NotFound
    }
}

impl From<UriError> for CliError {
    fn from(error: UriError) -> Self {
        Self::Client(ClientError::Uri(error))
    }
}

impl From<LayoutError> for CliError {
    fn from(error: LayoutError) -> Self {
        Self::BadLayout(error.to_string())
    }
}

/// The library's text; where a server gave only the cause, the next step is added.
fn client_text(error: &ClientError) -> String {
    match error {
        ClientError::Remote { what, error } => {
            let message = match error.message.is_empty() {
                true => error.code.name(),
                false => &error.message,
            };
            match next_step(error.code) {
                // A refusal for want of a feature level names who has to do what.
                Some(step) if !message.contains(';') && !message.contains("needs feature level") => {
                    format!("{what}: {message}; {step}")
                }
                _ => format!("{what}: {message}"),
            }
        }
        other => other.to_string(),
    }
}

/// What a person does about a server's error.
fn next_step(code: ErrorCode) -> Option<&'static str> {
    use ErrorCode as E;
    Some(match code {
        E::NotFound => "check the path with cairn fs ls",
        E::Exists => "choose another name, or remove it first",
        E::NotDirectory => "look at each part of it with cairn fs stat",
        E::IsDirectory => "name a file, or use the form for directories (-r)",
        E::NotEmpty => "remove what is in it first, or use cairn fs rm -r",
        E::PermissionDenied => "ask its owner for access (cairn fs stat shows owner and mode)",
        E::NotPermitted => "ask its owner or an administrator",
        E::NameTooLong => "names have at most 255 bytes, paths 4096; shorten it",
        E::QuotaExceeded => "remove something or have the quota raised; cairn fs quota ls shows quotas",
        E::NoSpace | E::PgFull => {
            "remove something (what is in the trash takes space, too: cairn fs trash empty) or add disks; cairn fs df shows what is free"
        }
        E::NotEnoughDisks => "add disks, or use a layout with fewer copies; cairn admin disk ls shows the disks",
        E::WrongCluster => "check --cluster and $CAIRN_CLUSTER: all addresses have to belong to one cluster",
        E::UnknownVolume => "cairn admin volume ls shows the volumes",
        E::VolumeNotEmpty => "remove its files first, or delete it with them: --yes",
        E::BadLayout => {
            "there are r1 to r5, rs-3-2, rs-4-2, rs-6-2, rs-6-3, rs-8-2, rs-8-3, rs-10-2, rs-10-4, rs-12-4, and striped copies such as r2x8/64k"
        }
        E::SessionEnded | E::DeadlineExceeded => "it may or may not have been done: look before repeating it",
        E::Stale => "somebody else changed it meanwhile; repeat the command",
        E::TooManySymlinks => "two links may point at each other; check with cairn fs readlink",
        E::CrossVolume => {
            "within a volume only, and not between directories of which one is counted by a quota of another metadata partition; copy with cairn fs \
             cp -r, then remove the source"
        }
        E::VersionUnsupported | E::UnknownOperation => {
            "client and server have different versions; update the older one"
        }
        E::Internal => "this is a defect; the server's log has the details",
        _ => return None,
    })
}

/// The cause without the number that the standard library appends.
fn io_text(error: &std::io::Error) -> String {
    let text = error.to_string();
    let cut = text.rfind(" (os error").unwrap_or(text.len());
    let mut cause = text[..cut].to_owned();
    if let Some(first) = cause.get(..1) {
        let lower = first.to_ascii_lowercase();
        cause.replace_range(..1, &lower);
    }
    cause
}

fn io_next_step(error: &std::io::Error) -> &'static str {
    match Exit::of_io(error) {
        Exit::NotFound => "check the local path",
        Exit::Exists => "remove it or choose another name",
        Exit::Permission => "check its owner and mode with ls -l",
        Exit::NoSpace => "free space on the local disk, or use another one",
        Exit::WrongKind => "check the local path with ls -l",
        Exit::TooLong => "shorten the name",
        _ => "see the log of the local system (dmesg) if it comes again",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_client::refusal::Refusal;

    fn remote(message: &str) -> CliError {
        let error = Refusal::new(ErrorCode::NotFound, message);
        CliError::Client(ClientError::Remote { what: "/a".into(), error })
    }

    /// A person would be left without the next step, or read two.
    #[test]
    fn the_next_step_is_added_once() {
        assert_eq!(remote("no such file").to_string(), "/a: no such file; check the path with cairn fs ls");
        assert_eq!(remote("no such file; look at /b").to_string(), "/a: no such file; look at /b");
        let error =
            Refusal::new(ErrorCode::VersionUnsupported, "this needs feature level 10, and n3 was not heard yet");
        let error = CliError::Client(ClientError::Remote { what: "/".into(), error }).to_string();
        assert!(error.ends_with("not heard yet"), "nobody has a version that is too old: {error}");
        // A refusal has its own reason: to repeat the command changes nothing.
        let error = Refusal::new(ErrorCode::Conflict, "n20 runs: stop its process first");
        let error = CliError::Client(ClientError::Remote { what: "n20".into(), error });
        assert_eq!(error.to_string(), "n20: n20 runs: stop its process first");
    }

    /// A local error would not say which file it is about.
    #[test]
    fn local_errors_name_the_path() {
        let error = CliError::local(Path::new("/x/y"), "opening", std::io::Error::from_raw_os_error(13));
        assert_eq!(error.to_string(), "/x/y: opening: permission denied; check its owner and mode with ls -l");
        assert_eq!(error.exit(), Exit::Permission);
    }

    /// A tree would go on for hours against a cluster that is gone.
    #[test]
    fn a_lost_cluster_stops_trees_and_a_bad_file_does_not() {
        assert!(!remote("x").is_fatal());
        let error = Refusal::new(ErrorCode::NoSpace, "full");
        assert!(CliError::Client(ClientError::Remote { what: "/a".into(), error }).is_fatal());
    }
}
