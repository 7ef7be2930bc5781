//! Why a mount was not made, replaced or taken away: a text for people and the code that scripts see.
use cairn_client::ClientError;
use serde::{Deserialize, Serialize};

/// Exit codes: rows of the closed table in docs/reference/cli.md.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[repr(u8)]
pub enum Kind {
    Other = 1,
    Usage = 2,
    NotFound = 3,
    Permission = 5,
    Unreachable = 7,
    OutcomeUnknown = 8,
    WrongKind = 14,
    InUse = 20,
}

/// Names the thing, the cause and the next step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{text}")]
pub struct Failure {
    pub kind: Kind,
    pub text: String,
}

pub type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    pub fn new(kind: Kind, text: impl Into<String>) -> Failure {
        Failure { kind, text: text.into() }
    }
    pub fn usage(text: impl Into<String>) -> Failure {
        Failure::new(Kind::Usage, text)
    }
    pub fn other(text: impl Into<String>) -> Failure {
        Failure::new(Kind::Other, text)
    }
    /// Of the system, while something was done.
    pub fn io(what: &str, error: &std::io::Error) -> Failure {
        let kind = match error.kind() {
            std::io::ErrorKind::NotFound => Kind::NotFound,
            std::io::ErrorKind::PermissionDenied => Kind::Permission,
            _ => Kind::Other,
        };
        Failure::new(kind, format!("{what}: {error}"))
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Failure {
        let kind = match (&error, error.errno()) {
            (ClientError::Unreachable { .. } | ClientError::NoLeader { .. }, _) => Kind::Unreachable,
            (ClientError::OutcomeUnknown { .. }, _) => Kind::OutcomeUnknown,
            (_, libc::ENOENT) => Kind::NotFound,
            (_, libc::EACCES | libc::EPERM) => Kind::Permission,
            (_, libc::ENOTDIR) => Kind::WrongKind,
            _ => Kind::Other,
        };
        Failure::new(kind, error.to_string())
    }
}
