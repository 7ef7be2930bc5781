//! Whose rights the server of a configuration has: root, who looks at a node before it is started, may do what that
//! server may not.
use super::Finding;
use crate::config::Config;
use rustix::process::{Gid, Resource, Rlimit, Uid, geteuid, setrlimit};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Where packages and administrators put units.
const UNITS: [&str; 2] = ["/etc/systemd/system/cairn@.service", "/usr/lib/systemd/system/cairn@.service"];
/// Whose configurations the unit starts servers with.
const CONFIGS: &str = "/etc/cairn";

/// Somebody as whom a server runs, and why that is thought.
#[derive(PartialEq, Eq, Debug)]
struct User {
    uid: u32,
    gid: u32,
    /// Files that the unit lets it open; `None`: the unit says nothing of them.
    files: Option<Rlimit>,
    why: String,
}

/// Root goes on with the rights of the server's user and its unit's limit of open files, for good. Called while the
/// process has one thread.
pub fn become_the_servers(path: &Path, config: &Config) -> Option<Finding> {
    if !geteuid().is_root() {
        return None;
    }
    let units = UNITS.iter().find_map(|unit| fs::read_to_string(unit).ok()).unwrap_or_default();
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let key = config.security.as_ref().map(|security| security.key.as_path());
    let user = of_unit(path, &units, &users)
        .or_else(|| owner(&config.node.dir))
        // The directory comes with the first start; the key, which nobody else may read, is there before.
        .or_else(|| owner(key?))
        .filter(|user| user.uid != 0)?;
    let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
    // Root of a container may not raise its limit: what it has is looked at then.
    let _ = user.files.map(|files| setrlimit(Resource::Nofile, files));
    let done = set_thread_groups(&[gid])
        .and_then(|()| set_thread_res_gid(gid, gid, gid))
        .and_then(|()| set_thread_res_uid(uid, uid, uid));
    Some(match done {
        Ok(()) => Finding::good("user", format!("looked at with the rights of {}", user.why)),
        Err(error) => Finding::warning(
            "user",
            format!("this process cannot take the rights of {}: {error}", user.why),
            "what root may do, the server may not",
            "run doctor as that user",
        ),
    })
}

/// The user of the unit that starts servers with this configuration.
fn of_unit(config: &Path, unit: &str, users: &str) -> Option<User> {
    config.starts_with(CONFIGS).then_some(())?;
    let name = unit.lines().find_map(|line| line.strip_prefix("User="))?.trim();
    let line = users.lines().find(|line| line.split(':').next() == Some(name))?;
    let mut numbers = line.split(':').skip(2).map(str::parse);
    let (uid, gid) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    let files = unit.lines().filter_map(|line| line.strip_prefix("LimitNOFILE=")).next_back().and_then(limit);
    Some(User { uid, gid, files, why: format!("{name} (uid {uid}), as whom cairn@.service runs it") })
}

/// A limit as units have it: one number, or a soft and a hard one.
fn limit(text: &str) -> Option<Rlimit> {
    let number = |text: &str| match text.trim() {
        "infinity" => Some(None),
        text => text.parse().ok().map(Some),
    };
    let (soft, hard) = text.split_once(':').unwrap_or((text, text));
    Some(Rlimit { current: number(soft)?, maximum: number(hard)? })
}

fn owner(of: &Path) -> Option<User> {
    let about = fs::metadata(of).ok()?;
    let (uid, gid) = (about.uid(), about.gid());
    Some(User { uid, gid, files: None, why: format!("uid {uid}, to whom {} belongs", of.display()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Root would be told that all is well with a node whose server may not write to its disks.
    #[test]
    fn the_unit_says_who_runs_a_server() {
        let (unit, users) =
            ("[Service]\nUser=cairn\nGroup=cairn\n", "root:x:0:0::/root:/bin/sh\ncairn:x:998:997::/:/\n");
        let found = of_unit(Path::new("/etc/cairn/node.toml"), unit, users).expect("somebody");
        assert_eq!((found.uid, found.gid, found.files), (998, 997, None));
        assert!(found.why.starts_with("cairn (uid 998)"), "{}", found.why);
        assert_eq!(of_unit(Path::new("/home/a/node.toml"), unit, users), None, "the unit does not start that one");
        assert_eq!(of_unit(Path::new("/etc/cairn/node.toml"), "", users), None);
        assert_eq!(of_unit(Path::new("/etc/cairn/node.toml"), unit, ""), None);
    }

    /// Root would be told to raise a limit that the unit raises, by the limits of his own shell.
    #[test]
    fn the_unit_says_how_many_files_a_server_may_open() {
        let of = |soft, hard| Some(Rlimit { current: soft, maximum: hard });
        assert_eq!(limit("65536"), of(Some(65_536), Some(65_536)));
        assert_eq!(limit("1024:infinity"), of(Some(1024), None));
        assert_eq!((limit(""), limit("many")), (None, None));
        let unit = include_str!("../../../../packaging/systemd/cairn@.service");
        let users = "cairn:x:998:997::/:/\n";
        let found = of_unit(Path::new("/etc/cairn/node.toml"), unit, users).expect("somebody");
        assert_eq!(found.files, of(Some(65_536), Some(65_536)));
    }
}
