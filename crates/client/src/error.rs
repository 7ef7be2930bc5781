//! Errors of the client library, cut by what a caller does; each names the thing, the cause and the next step.
//!
//! Three outcomes, never two: done (`Ok`), certainly not done, unknown ([`ClientError::is_unknown`]).
use crate::again::Again;
use crate::malformed::Malformed;
use crate::refusal::Refusal;
use crate::uri::UriError;
use cairn_types::{ErrorCode, RetryClass};

/// As a group of [`ClientError::NoLeader`].
pub(crate) const MANAGERS: &str = "the managers";

/// Why a call of the client did not succeed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ClientError {
    /// A server said no; certainly not done unless the code's retry class is Unknown.
    #[error("{what}: {error}")]
    Remote { what: String, error: Refusal },
    /// Nobody answered in time, and nothing was sent that could have been done.
    #[error(
        "{what}: no server could be reached within {seconds} s ({tried}): {last}; check that the cluster runs and that the address is right"
    )]
    Unreachable { what: String, tried: String, seconds: u64, last: String },
    /// Who leads a group that answers reads does not answer; nothing was done.
    #[error(
        "{what}: no leader of {group} answered within {seconds} s ({last}); a majority of its members has to run: {}; {}",
        if group == MANAGERS { "start those that do not answer" } else { "cairn admin status shows which do not" },
        if *stale_tried { "nobody else could answer from an older state either" } else { "cairn fs reads what the others have, which may be old, with --stale-ok" }
    )]
    NoLeader { what: String, group: String, seconds: u64, last: String, stale_tried: bool },
    /// The request was sent, but no answer came: it may or may not have been done.
    #[error(
        "{what}: no answer within {seconds} s, so it may or may not have been done ({last}); look at the result before repeating it"
    )]
    OutcomeUnknown {
        what: String,
        seconds: u64,
        last: String,
        /// What can be sent again, to hear of it.
        again: Option<Again>,
    },
    /// Bytes that should exist could be had from no member: those that answered have not got them intact.
    #[error(
        "{what}: {length} bytes at offset {offset} cannot be read from any copy: {detail}; cairn admin disk ls shows the disks"
    )]
    Unreadable { what: String, offset: u64, length: u64, detail: String },
    /// The same, where members that cannot be reached now may have them.
    #[error(
        "{what}: {length} bytes at offset {offset} cannot be read now: {} cannot be reached: {detail}; they can be read when it is back: \
         cairn admin status says what is down", away.join(", ")
    )]
    Unavailable { what: String, offset: u64, length: u64, away: Vec<String>, detail: String },
    /// What was written anew is not on all disks as it should be, so nothing was replaced by it.
    #[error(
        "{what}, read back from its disks before a file names it: {detail}; the file stays as it is, and it is tried again later"
    )]
    NotAtRest { what: String, detail: String },
    /// Nothing in the cluster takes new data: there is no room (`full`), or nobody answers.
    #[error(
        "{what}: no placement group takes new data: {detail}. {}",
        if *full { "Remove something (rm --skip-trash, cairn fs trash empty) or add disks (cairn fs df)" } else { "Look at cairn admin status" }
    )]
    NoWritableGroup { what: String, detail: String, full: bool },
    #[error(transparent)]
    Uri(#[from] UriError),
    /// The key that is to be shown cannot be used; nothing was asked.
    #[error("{0}")]
    Key(String),
    /// The file was changed, replaced or removed for good while it was read.
    #[error("{what} was changed, or removed, while it was read; repeat the command for what is there now")]
    Changed { what: String },
    /// An answer that lacks a part, or has one that this version does not know.
    #[error("{what}: the server's answer makes no sense: {why}; the versions of client and server may not match")]
    Malformed { what: String, why: Malformed },
    /// An answer that a correct server never gives.
    #[error("{what}: the server's answer makes no sense: {detail}; the versions of client and server may not match")]
    Protocol { what: String, detail: String },
}

impl ClientError {
    /// The wire code, where a server gave one.
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Remote { error, .. } => Some(error.code),
            Self::NoWritableGroup { full: true, .. } => Some(ErrorCode::NoSpace),
            _ => None,
        }
    }
    /// Linux errno for fronts that speak POSIX.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Remote { error, .. } => error.code.errno(),
            Self::Unreachable { .. } | Self::NoLeader { .. } | Self::OutcomeUnknown { .. } => 110,
            Self::NoWritableGroup { full, .. } => {
                if *full {
                    28
                } else {
                    110
                }
            }
            Self::Uri(UriError::NameTooLong(_) | UriError::PathTooLong) => 36,
            Self::Uri(_) => 22,
            Self::Key(_) => 13,
            Self::Changed { .. } => 116,
            // It was waited for, as long as anybody waits.
            Self::Unavailable { .. }
            | Self::Unreadable { .. }
            | Self::NotAtRest { .. }
            | Self::Malformed { .. }
            | Self::Protocol { .. } => 5,
        }
    }
    /// Whether the operation was done is not known.
    pub fn is_unknown(&self) -> bool {
        match self {
            Self::OutcomeUnknown { .. } => true,
            Self::Remote { error, .. } => error.retry() == RetryClass::Unknown,
            _ => false,
        }
    }
    /// What can be sent again to hear of it.
    pub(crate) fn again(&self) -> Option<&Again> {
        match self {
            Self::OutcomeUnknown { again, .. } => again.as_ref(),
            _ => None,
        }
    }
    /// It is the trash that refuses, or what is in it.
    pub fn is_of_trash(&self) -> bool {
        matches!(self, Self::Remote { what, .. } if crate::trash::place::is_in_trash(what.as_bytes()))
    }
    pub fn is_not_found(&self) -> bool {
        self.code() == Some(ErrorCode::NotFound)
    }
    /// The same error about a thing that the caller names better.
    pub fn named(self, name: &str) -> Self {
        let name = name.to_owned();
        match self {
            Self::Remote { error, .. } => Self::Remote { what: name, error },
            Self::Unreachable { tried, seconds, last, .. } => Self::Unreachable { what: name, tried, seconds, last },
            Self::NoLeader { group, seconds, last, stale_tried, .. } => {
                Self::NoLeader { what: name, group, seconds, last, stale_tried }
            }
            Self::OutcomeUnknown { seconds, last, again, .. } => {
                Self::OutcomeUnknown { what: name, seconds, last, again }
            }
            Self::Unreadable { offset, length, detail, .. } => Self::Unreadable { what: name, offset, length, detail },
            Self::Unavailable { offset, length, away, detail, .. } => {
                Self::Unavailable { what: name, offset, length, away, detail }
            }
            Self::NoWritableGroup { detail, full, .. } => Self::NoWritableGroup { what: name, detail, full },
            Self::NotAtRest { detail, .. } => Self::NotAtRest { what: name, detail },
            Self::Changed { .. } => Self::Changed { what: name },
            Self::Malformed { why, .. } => Self::Malformed { what: name, why },
            Self::Protocol { detail, .. } => Self::Protocol { what: name, detail },
            Self::Uri(error) => Self::Uri(error),
            Self::Key(text) => Self::Key(text),
        }
    }
    /// Bytes that nobody gave: damaged if nobody is away who could have them.
    pub(crate) fn unread(what: String, (offset, length): (u64, u64), away: Vec<String>, detail: String) -> Self {
        match away.is_empty() {
            true => Self::Unreadable { what, offset, length, detail },
            false => Self::Unavailable { what, offset, length, away, detail },
        }
    }
    pub(crate) fn remote(what: &str, code: ErrorCode, message: &str) -> Self {
        Self::Remote { what: what.into(), error: Refusal::new(code, message) }
    }
    pub fn protocol(what: &str, detail: impl Into<String>) -> Self {
        Self::Protocol { what: what.into(), detail: detail.into() }
    }
}

/// Result of the client library.
pub type Result<T> = std::result::Result<T, ClientError>;
