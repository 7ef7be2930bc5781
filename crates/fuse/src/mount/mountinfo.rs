//! The kernel's table of mounts. Reading it asks no file system anything, so a dead mount does not block it.
use crate::failure::{Failure, Result};
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mounted {
    /// `major:minor`.
    pub device: String,
    pub kind: String,
    pub source: String,
    /// Flags of the mount and of its file system, separated by commas.
    pub flags: String,
}

/// What is mounted at a directory; of several the one on top.
pub fn find(dir: &Path) -> Result<Option<Mounted>> {
    let table = std::fs::read("/proc/self/mountinfo").map_err(|error| Failure::io("/proc/self/mountinfo", &error))?;
    Ok(search(&table, dir.as_os_str().as_bytes()))
}

fn search(table: &[u8], dir: &[u8]) -> Option<Mounted> {
    let found = all(table).into_iter().rev().find(|(at, _)| at.as_os_str().as_bytes() == dir);
    found.map(|(_, mounted)| mounted)
}

/// All mounts of a table, and where they are.
pub fn all(table: &[u8]) -> Vec<(PathBuf, Mounted)> {
    let line = |line: &[u8]| {
        let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
        let at = PathBuf::from(OsString::from_vec(unescape(fields.get(4)?)));
        let dash = fields.iter().position(|field| *field == b"-")?;
        let text = |at: usize| fields.get(at).map(|field| String::from_utf8_lossy(&unescape(field)).into_owned());
        let flags = [text(5)?, text(dash + 3).unwrap_or_default()].join(",");
        Some((at, Mounted { device: text(2)?, kind: text(dash + 1)?, source: text(dash + 2)?, flags }))
    };
    table.split(|byte| *byte == b'\n').filter_map(line).collect()
}

/// Spaces and the like are written as `\040`.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut at = 0;
    while at < field.len() {
        let octal = (field[at] == b'\\').then(|| field.get(at + 1..at + 4)).flatten();
        let code =
            octal.and_then(|digits| std::str::from_utf8(digits).ok()).and_then(|d| u8::from_str_radix(d, 8).ok());
        out.push(code.unwrap_or(field[at]));
        at += if code.is_some() { 4 } else { 1 };
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A mount at a directory with a space in its name would not be found, or one below another would.
    #[test]
    fn the_topmost_mount_is_found() {
        let table = b"36 35 98:0 /mnt1 /mnt\\0402 rw,noatime master:1 - ext3 /dev/root rw\n\
            37 35 0:44 / /mnt\\0402 rw - fuse.cairn cairn://h:1/v rw,user_id=0\n";
        let found = search(table, b"/mnt 2").expect("mounted");
        assert_eq!((found.device.as_str(), found.kind.as_str()), ("0:44", "fuse.cairn"));
        assert_eq!((found.source.as_str(), found.flags.as_str()), ("cairn://h:1/v", "rw,rw,user_id=0"));
        assert!(search(table, b"/mnt").is_none());
        assert!(search(b"", b"/").is_none());
    }
}
