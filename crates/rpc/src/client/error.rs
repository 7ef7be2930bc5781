//! [`CallError`], cut by what the caller may do: certainly not done, outcome unknown, or refused by the server.

use std::time::Duration;

use cairn_types::{ErrorCode, RetryClass};
use cairn_wire::error::WireError;

/// Why a call brought no answer, or a bad one.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CallError {
    /// Certainly not done: the server has not got the whole request and never will. Safe to send anywhere.
    #[error("{addr}: not sent: {cause}")]
    NotSent {
        /// Whom it was meant for.
        addr: String,
        /// Why not.
        cause: NotSent,
    },
    /// Sent, and nobody knows whether it was done.
    #[error("{addr}: outcome unknown: {cause}")]
    Unknown {
        /// Who got it.
        addr: String,
        /// What happened then.
        cause: Unknown,
    },
    /// The server answered with an error.
    #[error("{0}")]
    Remote(#[source] WireError),
}

/// Why a request was not sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotSent {
    /// No connection; for a time further calls fail at once.
    #[error("cannot connect: {why}")]
    Connect {
        /// The last attempt's fault.
        why: String,
        /// When an attempt will be made again; a call made earlier fails at once.
        retry_in: Duration,
    },
    /// The server refused the hello: another cluster, no common version, too many connections.
    #[error("refused by the server: {0}")]
    Refused(WireError),
    /// The server belongs to another cluster than this process, or speaks no common version.
    #[error("{0}")]
    Hello(#[from] cairn_wire::hello::HelloError),
    /// The connection broke before the request was written.
    #[error("the connection broke: {why}")]
    Disconnected {
        /// How.
        why: String,
    },
    /// The deadline passed while the request waited here.
    #[error("the deadline passed while it waited to be sent")]
    Deadline,
    /// Too much waits for this address already.
    #[error("too many calls wait for this address; slow down")]
    Busy,
    /// The request exceeds the limits of a frame.
    #[error("{0}")]
    TooLong(#[from] cairn_wire::frame::FrameError),
    /// The client was closed.
    #[error("the client is closed")]
    Closed,
}

/// What happened to a request that was sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unknown {
    /// The connection broke before the answer.
    #[error("the connection broke before the answer: {why}")]
    Disconnected {
        /// How.
        why: String,
    },
    /// The deadline passed before the answer.
    #[error("no answer within the deadline")]
    Deadline,
    /// The answer cannot be decoded.
    #[error("the answer is not understood: {why}")]
    BadAnswer {
        /// What is wrong with it.
        why: String,
    },
}

impl CallError {
    pub(crate) fn not_sent(addr: &str, cause: NotSent) -> Self {
        Self::NotSent { addr: addr.to_owned(), cause }
    }

    pub(crate) fn unknown(addr: &str, cause: Unknown) -> Self {
        Self::Unknown { addr: addr.to_owned(), cause }
    }

    pub(crate) fn bad_answer(why: String) -> Self {
        Self::Unknown { addr: "the server".to_owned(), cause: Unknown::BadAnswer { why } }
    }

    /// What the caller may do.
    pub fn retry(&self) -> RetryClass {
        match self {
            Self::NotSent { cause: NotSent::TooLong(_) | NotSent::Closed, .. } => RetryClass::Never,
            Self::NotSent { cause: NotSent::Busy, .. } => RetryClass::Here,
            Self::NotSent { .. } => RetryClass::Elsewhere,
            Self::Unknown { .. } => RetryClass::Unknown,
            Self::Remote(error) => error.retry(),
        }
    }

    /// The server's error code, if it answered with one.
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Remote(error) => Some(error.code),
            _ => None,
        }
    }
}

impl crate::late::Failure for CallError {
    fn remote(&self) -> Option<&WireError> {
        match self {
            Self::Remote(error) => Some(error),
            _ => None,
        }
    }
    fn not_sent(&self) -> bool {
        matches!(self, Self::NotSent { .. })
    }
}

/// Why a one-way message was dropped at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// Too much waits for this address.
    #[error("dropped: too much waits for this address")]
    Full,
    /// There is no connection, and none will be tried for a moment.
    #[error("dropped: the address cannot be reached at the moment")]
    Unreachable,
    /// It exceeds the limits of a frame.
    #[error("dropped: it exceeds the limits of a frame")]
    TooLong,
    /// The client was closed.
    #[error("dropped: the client is closed")]
    Closed,
}
