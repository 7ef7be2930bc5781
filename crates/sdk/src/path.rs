//! Paths as programs write them.
use crate::error::{Error, Result};
use cairn_client::RemotePath;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// An absolute path without `.`, `..` and doubled slashes, which are resolved by the text, as the command line does.
pub(crate) fn absolute(path: &Path) -> Result<RemotePath> {
    let bytes = path.as_os_str().as_bytes();
    if bytes.first() != Some(&b'/') {
        let next = "begin it with /, which is the root of the volume";
        return Err(Error::new(libc::EINVAL, &path.to_string_lossy(), "it is no absolute path", next));
    }
    RemotePath::parse(bytes).map_err(|error| Error::from_client(&path.to_string_lossy(), &error.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_absolute_paths_are_paths_of_a_volume() {
        assert_eq!(absolute(Path::new("/a//./b/../c/")).map(|path| path.path), Ok(b"/a/c".to_vec()));
        for (bad, errno) in [("", 22), ("a", 22), ("vol:/a", 22), ("/\0", 22)] {
            assert_eq!(absolute(Path::new(bad)).map_err(|error| error.errno), Err(errno), "{bad:?}");
        }
        let long = format!("/{}", "x".repeat(256));
        assert_eq!(absolute(Path::new(&long)).map_err(|error| error.errno), Err(libc::ENAMETOOLONG));
    }
}
