//! Paths as programs write them.
use crate::error::{Error, Result};
use cairn_client::RemotePath;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Where something is in a volume.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct At {
    pub(crate) remote: RemotePath,
    /// It ends with a slash, as names of directories do.
    pub(crate) of_directory: bool,
}

/// An absolute path without `.`, `..` and doubled slashes, which are resolved by the text, as the command line does.
pub(crate) fn absolute(path: &Path) -> Result<At> {
    let bytes = path.as_os_str().as_bytes();
    if bytes.first() != Some(&b'/') {
        let next = "begin it with /, which is the root of the volume";
        return Err(Error::new(libc::EINVAL, &path.to_string_lossy(), "it is no absolute path", next));
    }
    let remote =
        RemotePath::parse(bytes).map_err(|error| Error::from_client(&path.to_string_lossy(), &error.into()))?;
    // The root has no other name.
    let of_directory = remote.path != b"/" && [&b"/"[..], b"/.", b"/.."].iter().any(|end| bytes.ends_with(end));
    Ok(At { remote, of_directory })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_absolute_paths_are_paths_of_a_volume() {
        let ends = [("/a/c", false), ("/a//./b/../c/", true), ("/a/c/.", true), ("/a/c/b/..", true)];
        for (path, of_directory) in ends {
            let at = absolute(Path::new(path)).expect("a path");
            assert_eq!((&at.remote.path[..], at.of_directory), (&b"/a/c"[..], of_directory), "{path}");
        }
        for (bad, errno) in [("", 22), ("a", 22), ("vol:/a", 22), ("/\0", 22)] {
            assert_eq!(absolute(Path::new(bad)).map_err(|error| error.errno), Err(errno), "{bad:?}");
        }
        let long = format!("/{}", "x".repeat(256));
        assert_eq!(absolute(Path::new(&long)).map_err(|error| error.errno), Err(libc::ENAMETOOLONG));
    }
}
