//! Errors of the file system: an errno for the program, a text for the log.
use cairn_client::ClientError;
use std::fmt;

/// Why an operation was not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VfsError {
    /// Linux errno, never 0.
    pub errno: i32,
    /// Names the thing, the cause and the next step.
    pub text: String,
}

/// Result of an operation.
pub type Result<T> = std::result::Result<T, VfsError>;

impl VfsError {
    pub fn new(errno: i32, text: impl Into<String>) -> Self {
        Self { errno, text: text.into() }
    }
    /// Somebody has to look at it: it is no answer that programs expect.
    pub fn is_trouble(&self) -> bool {
        matches!(self.errno, libc::EIO | libc::ETIMEDOUT)
    }
}

impl fmt::Display for VfsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (errno {})", self.text, self.errno)
    }
}

impl std::error::Error for VfsError {}

impl From<ClientError> for VfsError {
    fn from(error: ClientError) -> Self {
        // Programs take EAGAIN for "not now, without blocking" and never expect ETIMEDOUT of a file.
        let errno = match error.errno() {
            0 | libc::EAGAIN | libc::ETIMEDOUT => libc::EIO,
            errno => errno,
        };
        Self { errno, text: error.to_string() }
    }
}
