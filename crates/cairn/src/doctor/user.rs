//! Whose rights the server of a configuration has: root, who looks at a node before it is started, may do what that
//! server may not.
use super::Finding;
use crate::config::Config;
use rustix::process::{Gid, Uid, geteuid};
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
    why: String,
}

/// Root goes on with the rights of the server's user, for good. Called while the process has one thread.
pub fn become_the_servers(path: &Path, config: &Config) -> Option<Finding> {
    if !geteuid().is_root() {
        return None;
    }
    let units = UNITS.iter().find_map(|unit| fs::read_to_string(unit).ok()).unwrap_or_default();
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let user = of_unit(path, &units, &users).or_else(|| owner(&config.node.dir)).filter(|user| user.uid != 0)?;
    let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
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
    Some(User { uid, gid, why: format!("{name} (uid {uid}), as whom cairn@.service runs it") })
}

fn owner(dir: &Path) -> Option<User> {
    let about = fs::metadata(dir).ok()?;
    let (uid, gid) = (about.uid(), about.gid());
    Some(User { uid, gid, why: format!("uid {uid}, to whom {} belongs", dir.display()) })
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
        assert_eq!((found.uid, found.gid), (998, 997));
        assert!(found.why.starts_with("cairn (uid 998)"), "{}", found.why);
        assert_eq!(of_unit(Path::new("/home/a/node.toml"), unit, users), None, "the unit does not start that one");
        assert_eq!(of_unit(Path::new("/etc/cairn/node.toml"), "", users), None);
        assert_eq!(of_unit(Path::new("/etc/cairn/node.toml"), unit, ""), None);
    }
}
