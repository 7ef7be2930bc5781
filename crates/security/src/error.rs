//! [`SecurityError`]: what is wrong with a key, an authority or a certificate, in sentences that say what to do.
use std::io;
use std::path::PathBuf;

/// Why a key cannot be used or made.
#[derive(Debug, thiserror::Error)]
pub enum SecurityError {
    /// It cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// Which file or directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Others could take or replace a private key.
    #[error("{}: {why}", path.display())]
    Exposed {
        /// Which file.
        path: PathBuf,
        /// Who can, and what to do.
        why: String,
    },
    /// It is no key file of Cairn.
    #[error("{} is no key of a Cairn cluster: {why}; cairn key makes one", path.display())]
    NotAKey {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The list of what an authority gave out cannot be used.
    #[error("{}: {why}", path.display())]
    List {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// It holds no tokens for HTTP.
    #[error("{}: {why}; a token a line, for example from openssl rand -hex 24", path.display())]
    Token {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The key is of another kind than is needed.
    #[error("{} is the key of {found}, and {wanted} is needed here; cairn key makes one", path.display())]
    WrongKind {
        /// Which file.
        path: PathBuf,
        /// Whose it is.
        found: String,
        /// Whose it has to be.
        wanted: String,
    },
    /// Its time is over.
    #[error("the certificate in {} ended on {when}: make a new one with cairn key and put it there", path.display())]
    Ended {
        /// Which file.
        path: PathBuf,
        /// The day.
        when: String,
    },
    /// What is to be made is there already.
    #[error("{} is there already and is not replaced; give another name, or move it away", .0.display())]
    Exists(PathBuf),
    /// A name that was given to somebody already, or that cannot be one.
    #[error("{0}")]
    Name(String),
    /// The library for TLS failed.
    #[error("TLS cannot be used: {0}")]
    Tls(String),
    /// The library that makes certificates failed.
    #[error("a certificate cannot be made: {0}")]
    Sign(#[from] rcgen::Error),
}

impl SecurityError {
    pub(crate) fn io(path: impl Into<PathBuf>, source: io::Error) -> Self {
        Self::Io { path: path.into(), source }
    }
}
