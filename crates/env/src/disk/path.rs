//! Checks of the relative paths that disks take.
//!
//! Invariant: a path that passes stays below the root (symbolic links are not ours to make).

use super::error::DiskError;

/// Refuses paths that are absolute, leave the root, or have empty or `.` parts. `""` (the root) passes.
pub fn check_path(path: &str) -> Result<(), DiskError> {
    if path.is_empty() {
        return Ok(());
    }
    let reason = if path.starts_with('/') {
        "it is absolute"
    } else if path.contains('\0') {
        "it contains a NUL byte"
    } else if path.split('/').any(|part| part == "..") {
        "it contains '..'"
    } else if path.split('/').any(|part| part.is_empty() || part == ".") {
        "it has an empty or '.' part"
    } else {
        return Ok(());
    };
    Err(DiskError::BadPath { path: path.into(), reason })
}

/// The directory that holds `path`'s name; the root is its own parent.
pub fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(dir, _)| dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A path out of a corrupt or foreign file would reach outside the disk's directory.
    #[test]
    fn only_paths_below_the_root_pass() {
        for good in ["", "a", "a/b.c", "..a/b..", "a/.hidden"] {
            assert!(check_path(good).is_ok(), "{good}");
        }
        for bad in ["/", "/a", "..", "a/..", "../a", "a/../b", "a//b", "a/", ".", "a/./b", "a\0b"] {
            assert!(matches!(check_path(bad), Err(DiskError::BadPath { .. })), "{bad}");
        }
        assert_eq!((parent("a/b/c"), parent("a"), parent("")), ("a/b", "", ""));
    }
}
