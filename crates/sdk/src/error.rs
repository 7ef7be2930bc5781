//! Errors of the interface: an errno for programs, and for people the thing, the cause and the next step.
use cairn_client::ClientError;
use cairn_vfs::VfsError;
use std::fmt;
use std::path::Path;

/// Result of a call.
pub type Result<T> = std::result::Result<T, Error>;

/// Why something was not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// Linux errno, never 0.
    pub errno: i32,
    /// What it was about: a path of the volume, or the cluster.
    pub what: String,
    pub cause: String,
    pub next_step: String,
}

impl Error {
    pub(crate) fn new(errno: i32, what: &str, cause: &str, next_step: &str) -> Error {
        Error { errno, what: what.to_owned(), cause: cause.to_owned(), next_step: next_step.to_owned() }
    }
    pub(crate) fn of_path(errno: i32, path: &Path, cause: &str) -> Error {
        Error::new(errno, &path.to_string_lossy(), cause, next_step(errno))
    }
    /// What a lower layer said about `what`. It names inodes, where whoever called named a path.
    pub(crate) fn told(what: &str, errno: i32, text: &str) -> Error {
        let text = match text.split_once(": ") {
            Some((named, rest)) if named == what || named.starts_with("inode ") => rest,
            _ => text,
        };
        match text.split_once("; ") {
            Some((cause, next)) => Error::new(errno, what, cause, next),
            None => Error::new(errno, what, text, next_step(errno)),
        }
    }
    pub(crate) fn from_client(what: &str, error: &ClientError) -> Error {
        let errno = match error.errno() {
            0 => libc::EIO,
            errno => errno,
        };
        Error::told(what, errno, &error.to_string())
    }
    pub(crate) fn from_vfs(what: &Path, error: &VfsError) -> Error {
        // Somebody else removed it between two steps of a call, again and again.
        let errno = if error.errno == libc::ESTALE { libc::ENOENT } else { error.errno };
        Error::told(&what.to_string_lossy(), errno, &error.text)
    }
    pub fn is_not_found(&self) -> bool {
        self.errno == libc::ENOENT
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; {}", self.what, self.cause, self.next_step)
    }
}

impl std::error::Error for Error {}

impl From<Error> for std::io::Error {
    fn from(error: Error) -> Self {
        std::io::Error::new(std::io::Error::from_raw_os_error(error.errno).kind(), error)
    }
}

/// What whoever reads it does next, where the servers said only the cause.
fn next_step(errno: i32) -> &'static str {
    match errno {
        libc::ENOENT => "check the path; cairn fs ls shows what there is",
        libc::EEXIST => "choose another name, or remove it first",
        libc::ENOTDIR => "look at each part of the path with cairn fs stat",
        libc::EISDIR => "name a file",
        libc::ENOTEMPTY => "remove what is in it first",
        libc::EACCES => "ask its owner for access; cairn fs stat shows owner and mode",
        libc::EPERM => "ask its owner or an administrator",
        libc::ENAMETOOLONG => "names have at most 255 bytes, paths 4096; shorten it",
        libc::ENOSPC => "remove something or add disks; cairn fs df shows what is free",
        libc::EDQUOT => "remove something or have the quota raised; cairn fs quota ls shows quotas",
        libc::EBADF => "open it again",
        libc::EFBIG => "files have at most 2^63 - 1 bytes; write nearer to the beginning",
        libc::EINVAL => "check what the call was given",
        libc::EXDEV => "copy it, then remove the source",
        libc::ENODATA => "the names that it has can be listed",
        libc::EROFS => "connect without the option read-only",
        libc::ELOOP => "two links may point at each other",
        _ => "cairn admin status shows whether the cluster serves",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A person would read about inodes, or be left without the next step, or read two.
    #[test]
    fn errors_name_the_path_the_cause_and_one_next_step() {
        let path = Path::new("/a/b");
        let told = |text: &str| Error::from_vfs(path, &VfsError::new(libc::ENOENT, text)).to_string();
        assert_eq!(told("/a/b: no such file; look at /a"), "/a/b: no such file; look at /a");
        let step = next_step(libc::ENOENT);
        assert_eq!(told("inode 1/b: no such file"), format!("/a/b: no such file; {step}"));
        assert_eq!(told("NotFound"), format!("/a/b: NotFound; {step}"));
        let stale =
            Error::from_vfs(path, &VfsError::new(libc::ESTALE, "inode 7 has lost its name; look the path up again"));
        assert!(stale.is_not_found(), "{stale}");
    }

    /// Programs that match on kinds of `std::io` would find none.
    #[test]
    fn kinds_of_std_are_known() {
        let error: std::io::Error = Error::of_path(libc::ENOENT, Path::new("/a"), "no such file").into();
        assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
        assert!(error.to_string().starts_with("/a: no such file; "), "{error}");
    }
}
