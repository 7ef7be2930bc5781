//! [`UserKey`]: the key of a `cairn dev`, put where commands of the same user look for one:
//! `~/.config/cairn/HOST:PORT`.
//!
//! Invariants: nothing that another user could have put there is followed, replaced or trusted, wherever the directory
//! is; a key that no `cairn dev` wrote stays as it is; who has a key speaks to nobody without one, so it stays when the
//! cluster ends: another user who listens at the address then gets nothing out of commands. The next `cairn dev` at the
//! address replaces it, or takes it away if it has no keys. Where the system picked the port nobody comes back to the
//! address, and it goes with the cluster. Not here: how commands find it (`client::key`).
use cairn_client::key::directory;
use rustix::fs::{AtFlags, Mode, OFlags, fstat, linkat, open, openat, renameat, unlinkat};
use rustix::io::Errno;
use std::fs::{DirBuilder, File};
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// What a key that was put there begins with.
const MARK: &str = "Cairn dev: ";
/// Keys are some kilobytes.
const BYTES_MAX: u64 = 1 << 20;

/// Keys that were put there, until it is dropped.
pub struct UserKey {
    dir: OwnedFd,
    /// Names, and what was written.
    placed: Vec<String>,
    text: String,
    stays: bool,
}

impl UserKey {
    /// Puts a key there for all names of an address, where it stays or goes with the cluster. What went wrong is told
    /// in sentences.
    pub fn place(address: &str, key: &str, cluster: &Path, stays: bool) -> (Option<UserKey>, Vec<String>) {
        let opened = user_directory().and_then(|path| {
            make(&path)?;
            Ok((enter(&path)?, path))
        });
        let (dir, path) = match opened {
            Ok(opened) => opened,
            Err(why) => return (None, vec![why]),
        };
        let text = format!(
            "{MARK}put here for the cluster in {cluster:?}; another cairn dev at this address replaces it.\n{key}"
        );
        let (mut placed, mut wrong) = (Vec::new(), Vec::new());
        for name in names(address) {
            match write(&dir, &name, &text) {
                Ok(()) => placed.push(name),
                Err(why) => wrong.push(format!("{}: {why}", path.join(name).display())),
            }
        }
        (Some(UserKey { dir, placed, text, stays }), wrong)
    }
}

impl Drop for UserKey {
    fn drop(&mut self) {
        for name in self.placed.iter().filter(|_| !self.stays) {
            // Somebody else's by now, or gone: it stays as it is.
            if matches!(read(&self.dir, name), Ok(Some(found)) if found == self.text) {
                let _ = unlinkat(&self.dir, name.as_str(), AtFlags::empty());
            }
        }
    }
}

/// Takes away what an earlier `cairn dev` with keys left for this address, at which there is a cluster without. Returns
/// keys that are in the way and stay.
pub fn clear(address: &str) -> Vec<PathBuf> {
    let Ok((dir, path)) = user_directory().and_then(|path| Ok((enter(&path)?, path))) else { return Vec::new() };
    let mut stay = Vec::new();
    for name in names(address) {
        match read(&dir, &name) {
            Ok(Some(found)) if found.starts_with(MARK) => {
                let _ = unlinkat(&dir, name.as_str(), AtFlags::empty());
            }
            Ok(None) => {}
            Ok(Some(_)) | Err(_) => stay.push(path.join(name)),
        }
    }
    stay
}

/// All that a user of this machine may call an address by.
fn names(address: &str) -> Vec<String> {
    let mut names = vec![address.to_owned()];
    let Some((host, port)) = address.rsplit_once(':') else { return names };
    let ip = address.parse::<SocketAddr>().ok().map(|address| address.ip());
    if host == "localhost" || ip.is_some_and(|ip| ip == IpAddr::V4(Ipv4Addr::LOCALHOST) || ip.is_unspecified()) {
        names.extend(
            ["127.0.0.1", "localhost"].map(|host| format!("{host}:{port}")).into_iter().filter(|name| name != address),
        );
    }
    // One with a slash would lead elsewhere.
    names.retain(|name| !name.contains('/'));
    names
}

fn user_directory() -> Result<PathBuf, String> {
    directory().ok_or_else(|| "neither $HOME nor $XDG_CONFIG_HOME names a directory".to_owned())
}

/// Makes the directory, and the one above it.
fn make(path: &Path) -> Result<(), String> {
    for dir in path.parent().into_iter().chain([path]) {
        match DirBuilder::new().mode(0o700).create(dir) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                return Err(format!("{} cannot be made: {error}", dir.display()));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Opens the directory, if it is this user's and nobody else writes there.
fn enter(path: &Path) -> Result<OwnedFd, String> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::RDONLY | OFlags::CLOEXEC;
    let shown = path.display();
    let dir = open(path, flags, Mode::empty()).map_err(|error| match error {
        Errno::LOOP | Errno::NOTDIR => format!("{shown} is a link or no directory, and is not followed"),
        error => format!("{shown}: {error}"),
    })?;
    let found = fstat(&dir).map_err(|error| format!("{shown}: {error}"))?;
    let (user, mode) = (rustix::process::geteuid().as_raw(), found.st_mode & 0o7777);
    if found.st_uid != user {
        return Err(format!("{shown} belongs to uid {}, and this is uid {user}", found.st_uid));
    }
    if mode & 0o022 != 0 {
        return Err(format!("others can write in {shown} (mode {mode:04o}): chmod 700 it"));
    }
    Ok(dir)
}

/// A file's text; `None`: there is none. What is no ordinary file of this user is an error.
fn read(dir: &OwnedFd, name: &str) -> Result<Option<String>, String> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match openat(dir, name, flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(None),
        Err(Errno::LOOP) => return Err("it is a link, and is not followed".to_owned()),
        file => File::from(file.map_err(|error| error.to_string())?),
    };
    if !file.metadata().is_ok_and(|found| found.is_file()) {
        return Err("it is no ordinary file".to_owned());
    }
    let mut text = Vec::new();
    file.take(BYTES_MAX).read_to_end(&mut text).map_err(|error| error.to_string())?;
    Ok(Some(String::from_utf8_lossy(&text).into_owned()))
}

/// Writes a file, in one step, unless something is there that no `cairn dev` wrote.
fn write(dir: &OwnedFd, name: &str, text: &str) -> Result<(), String> {
    let told = |error: Errno| error.to_string();
    let stays =
        || "a key that cairn dev did not write is there, and stays: move it away if it is not needed".to_owned();
    let is_there = match read(dir, name)? {
        None => false,
        // An empty one is what a power cut left.
        Some(found) if found.is_empty() || found.starts_with(MARK) => true,
        Some(_) => return Err(stays()),
    };
    let beside = format!(".{name}.new-{}", std::process::id());
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    // What an earlier process of this number left.
    let _ = unlinkat(dir, beside.as_str(), AtFlags::empty());
    let mut file = File::from(openat(dir, beside.as_str(), flags, Mode::RUSR | Mode::WUSR).map_err(told)?);
    let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(|error| error.to_string());
    let placed = written.and_then(|()| match is_there {
        true => renameat(dir, beside.as_str(), dir, name).map_err(told),
        // Fails where somebody has put something meanwhile.
        false => match linkat(dir, beside.as_str(), dir, name, AtFlags::empty()) {
            Err(Errno::EXIST) => Err(stays()),
            linked => linked.map_err(told),
        },
    });
    if !is_there || placed.is_err() {
        let _ = unlinkat(dir, beside.as_str(), AtFlags::empty());
    }
    placed
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A command that names the cluster in another way would be refused; or two clusters take each other's key away.
    #[test]
    fn an_address_has_its_names() {
        let all = ["127.0.0.1:7400", "localhost:7400"];
        assert_eq!(names(all[0]), all);
        assert_eq!(names(all[1]), [all[1], all[0]]);
        assert_eq!(names("0.0.0.0:1"), ["0.0.0.0:1", "127.0.0.1:1", "localhost:1"]);
        assert_eq!(names("127.0.0.2:7400"), ["127.0.0.2:7400"]);
        assert_eq!(names("[::1]:7400"), ["[::1]:7400"]);
        assert_eq!(names("a/b:7400"), Vec::<String>::new());
    }

    /// The key of a real cluster, which may be the only one, would be replaced; or what an attacker put there followed.
    #[test]
    fn only_what_cairn_dev_wrote_is_replaced() {
        let top = tempfile::tempdir().expect("a directory");
        let path = top.path().join("cairn");
        make(&path).expect("made");
        let dir = enter(&path).expect("entered");
        let file = |name: &str| path.join(name);
        write(&dir, "a:1", "Cairn dev: one").expect("written");
        write(&dir, "a:1", "Cairn dev: two").expect("replaced");
        assert_eq!(std::fs::read_to_string(file("a:1")).expect("read"), "Cairn dev: two");
        std::fs::write(file("b:1"), "the key of a cluster").expect("written");
        assert!(write(&dir, "b:1", "Cairn dev: x").expect_err("it stays").contains("stays"));
        assert_eq!(std::fs::read_to_string(file("b:1")).expect("read"), "the key of a cluster");
        std::os::unix::fs::symlink(file("a:1"), file("c:1")).expect("a link");
        assert!(write(&dir, "c:1", "Cairn dev: x").expect_err("a link").contains("link"));
        assert_eq!(std::fs::read_to_string(file("a:1")).expect("read"), "Cairn dev: two");
        let mut left: Vec<_> =
            std::fs::read_dir(&path).expect("listed").flatten().map(|entry| entry.file_name()).collect();
        left.sort();
        assert_eq!(left, ["a:1", "b:1", "c:1"]);
    }
}
