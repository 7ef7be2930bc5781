//! [`Refusal`]: a server's no.
use cairn_types::{ErrorCode, RetryClass};
use cairn_wire::error::WireError;
use std::fmt;

/// `code` decides what the caller does; `message` is for people.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    pub code: ErrorCode,
    pub message: String,
}

impl Refusal {
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
    pub fn retry(&self) -> RetryClass {
        self.code.retry()
    }
    /// Hints to leaders and epochs were followed before.
    pub(crate) fn of_wire(found: WireError) -> Self {
        Self { code: found.code, message: found.message }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.message)
    }
}

impl std::error::Error for Refusal {}
