//! What servers are told of this process, and whether addresses that it was given can be names at all.
//!
//! For fronts that act on behalf of the process they run in. A mount acts for others and asks the kernel who they are
//! (`fuse`).
use crate::credentials::Credentials;

/// Supplementary groups that requests carry (the bound of the wire's `Credentials`).
const GROUPS_MAX: usize = 64;

/// Effective user and groups of this process.
pub fn credentials() -> Credentials {
    let mut groups: Vec<u32> =
        rustix::process::getgroups().unwrap_or_default().iter().map(|group| group.as_raw()).collect();
    groups.truncate(GROUPS_MAX);
    Credentials { uid: rustix::process::geteuid().as_raw(), gid: rustix::process::getegid().as_raw(), groups }
}

/// The host's name, for reading and writing nearby.
pub fn host_name() -> String {
    let name = rustix::system::uname();
    name.nodename().to_string_lossy().into_owned()
}

/// Whether one of the addresses can be resolved. A name that no resolver knows is a wrong name, not a server that is
/// down; the error is the cause.
pub async fn check_names(addresses: &[String]) -> Result<(), String> {
    let mut last = None;
    for address in addresses {
        match tokio::net::lookup_host(address).await {
            Ok(_) => return Ok(()),
            Err(error) => last = Some(error),
        }
    }
    Err(last.map_or_else(|| "no address was given".to_owned(), |error| format!("the name is not known ({error})")))
}
