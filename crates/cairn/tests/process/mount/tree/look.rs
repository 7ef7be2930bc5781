//! What a tree looks like: everything that has to be the same on two file systems.
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat, getxattr, listxattr, openat, readlinkat, statat};
use rustix::io::Result;
use std::collections::BTreeMap;
use std::path::Path;

/// Times that tests set lie before this.
const PAST: i64 = 1_000_000_000;

/// Attributes that are the same everywhere. Sizes of directories are not, nor of device nodes.
pub fn short(found: &Stat) -> String {
    let kind = FileType::from_raw_mode(found.st_mode);
    let size = if kind.is_file() || kind.is_symlink() { found.st_size } else { 0 };
    let modified = match found.st_mtime {
        past if past < PAST => format!("{past}.{:09}", found.st_mtime_nsec),
        _ => "now".to_owned(),
    };
    let device = if kind.is_char_device() { found.st_rdev } else { 0 };
    format!(
        "{:o} links {} owner {}:{} size {size} modified {modified} device {device}",
        found.st_mode, found.st_nlink, found.st_uid, found.st_gid,
    )
}

pub fn names_of(list: &[u8]) -> Vec<String> {
    let ours = |name: &str| !name.starts_with("security.") && !name.starts_with("system.");
    let names = list.split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let mut names: Vec<String> =
        names.map(|name| String::from_utf8_lossy(name).into_owned()).filter(|name| ours(name)).collect();
    names.sort();
    names
}

/// Names of a directory with their kinds, sorted.
pub fn list(path: &Path) -> Result<String> {
    let dir = openat(CWD, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let mut names = Vec::new();
    for entry in Dir::read_from(&dir)? {
        let entry = entry?;
        names.push(format!("{:?} {:?}", entry.file_name(), entry.file_type()));
    }
    names.sort();
    Ok(names.join(", "))
}

fn one(path: &Path, found: &Stat) -> Result<String> {
    let mut told = short(found);
    match FileType::from_raw_mode(found.st_mode) {
        FileType::Symlink => told.push_str(&format!(" to {:?}", readlinkat(CWD, path, Vec::new())?)),
        FileType::RegularFile => {
            let bytes = std::fs::read(path)
                .map_err(|error| rustix::io::Errno::from_raw_os_error(error.raw_os_error().unwrap_or(5)))?;
            told.push_str(&format!(" sum {:x}", sum(&bytes)));
        }
        _ => {}
    }
    if !matches!(FileType::from_raw_mode(found.st_mode), FileType::Symlink) {
        let mut names = vec![0; 4096];
        let length = listxattr(path, &mut names[..])?;
        for name in names_of(&names[..length]) {
            let mut value = vec![0; 4096];
            let length = getxattr(path, name.as_str(), &mut value[..])?;
            told.push_str(&format!(" {name}={:x}/{length}", sum(&value[..length])));
        }
    }
    Ok(told)
}

fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(bytes.len() as u64, |sum, byte| sum.wrapping_mul(0x100_0000_01b3) ^ u64::from(*byte))
}

/// Everything below a directory, by its name.
pub fn whole(root: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut dirs = vec![root.to_owned()];
    while let Some(dir) = dirs.pop() {
        let listed = std::fs::read_dir(&dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
        for entry in listed {
            let path = entry.expect("an entry").path();
            let name = path.strip_prefix(root).expect("below it").to_string_lossy().into_owned();
            let told = statat(CWD, &path, AtFlags::SYMLINK_NOFOLLOW).and_then(|stat| {
                if FileType::from_raw_mode(stat.st_mode).is_dir() {
                    dirs.push(path.clone());
                }
                one(&path, &stat)
            });
            found.insert(name, format!("{told:?}"));
        }
    }
    found
}
