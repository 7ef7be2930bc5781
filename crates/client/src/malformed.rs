//! [`Malformed`]: what is wrong with an answer that a correct server never gives. Every conversion from the wire ends
//! in a value or in this.
use crate::error::ClientError;

/// See the module.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Malformed {
    /// A part that has to be there is not.
    #[error("it has no {0}")]
    Missing(&'static str),
    /// A part has a code that this version does not know.
    #[error("its {part} has the code {code}, which this version does not know")]
    UnknownCode { part: &'static str, code: u64 },
}

impl Malformed {
    /// As the error of a call about `what`.
    pub(crate) fn of(self, what: &str) -> ClientError {
        ClientError::Malformed { what: what.into(), why: self }
    }
}
