//! Who uses a mount, as `/proc` tells. Nothing here asks the file system itself, so a dead mount does not block it.
//!
//! Processes of others are seen by root only; who is not seen is not named.
use super::mountinfo;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Named in one message.
const NAMED_MAX: usize = 4;

/// Processes that are in a directory of the mount or have its files open or mapped, and what is mounted below it.
pub fn users(dir: &Path) -> Option<String> {
    let mut found: Vec<String> = Vec::new();
    if let Ok(table) = fs::read("/proc/self/mountinfo") {
        let below = mountinfo::all(&table).into_iter().filter(|(at, _)| at != dir && at.starts_with(dir));
        found.extend(below.map(|(at, _)| format!("{} is mounted below it", at.display())));
    }
    for pid in processes() {
        if let Some(path) = used_by(pid, dir) {
            found.push(format!("{} has {}", named(pid), path.display()));
        }
    }
    listed(found)
}

/// Other places where the file system with this device number (`major:minor`) is mounted, in this and in other name
/// spaces.
pub fn other_places(device: &str) -> Option<String> {
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    let own = fs::read_link("/proc/self/ns/mnt").ok();
    for pid in processes() {
        let space = fs::read_link(format!("/proc/{pid}/ns/mnt")).ok();
        if space.is_none() || !seen.insert(space.clone()) {
            continue;
        }
        let Ok(table) = fs::read(format!("/proc/{pid}/mountinfo")) else { continue };
        for (at, _) in mountinfo::all(&table).into_iter().filter(|(_, mounted)| mounted.device == device) {
            found.push(match space == own {
                true => at.display().to_string(),
                false => format!("{} as {} sees it", at.display(), named(pid)),
            });
        }
    }
    listed(found)
}

fn listed(found: Vec<String>) -> Option<String> {
    let more = found.len().saturating_sub(NAMED_MAX);
    let mut text = found.into_iter().take(NAMED_MAX).collect::<Vec<_>>().join(", ");
    if more > 0 {
        text.push_str(&format!(" and {more} more"));
    }
    (!text.is_empty()).then_some(text)
}

fn processes() -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut all: Vec<u32> = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    all.sort_unstable();
    all
}

fn named(pid: u32) -> String {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    format!("process {pid} ({})", name.trim_end())
}

/// Something below the directory that the process has.
fn used_by(pid: u32, dir: &Path) -> Option<PathBuf> {
    let process = PathBuf::from(format!("/proc/{pid}"));
    let links = ["cwd", "root", "exe"].into_iter().map(|name| process.join(name));
    let open = fs::read_dir(process.join("fd")).into_iter().flatten().flatten().map(|entry| entry.path());
    let found = links.chain(open).filter_map(|link| fs::read_link(link).ok()).find(|path| path.starts_with(dir));
    found.or_else(|| {
        let maps = fs::read(process.join("maps")).ok()?;
        let lines = maps.split(|byte| *byte == b'\n');
        // The path is what follows the sixth column.
        let paths = lines.filter_map(|line| line.iter().position(|byte| *byte == b'/').map(|at| &line[at..]));
        paths.map(|path| PathBuf::from(std::ffi::OsStr::from_bytes(path))).find(|path| path.starts_with(dir))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever is to end what uses a mount would not learn what that is.
    #[test]
    fn an_open_file_is_told_with_its_process() {
        let dir = tempfile::tempdir().expect("directory");
        let at = dir.path().canonicalize().expect("a path");
        assert_eq!(users(&at), None);
        let file = fs::File::create(at.join("open")).expect("file");
        let said = users(&at).expect("this process");
        assert!(said.contains(&format!("process {} (", std::process::id())) && said.ends_with("/open"), "{said}");
        drop(file);
        assert_eq!(users(&at), None);
    }
}
