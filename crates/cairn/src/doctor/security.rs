//! The key of a node: whether it can be used, who else can, and for how long it counts.
use super::Finding;
use crate::config::Config;
use crate::security::{SecuritySpec, fits, warned};
use cairn_security::{KeyFile, Revoked, TokenFile, date, moment};
use std::fs;
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

const DAY: u64 = 86_400;
/// For a machine that should answer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
const NO_START: &str = "the server does not start like this";

/// Looks at the key that a configuration names, and at what stands beside it.
pub fn look(config: &Config) -> Vec<Finding> {
    let token = config.http.token.as_deref().and_then(token);
    let Some(security) = &config.security else { return token.into_iter().collect() };
    let beside = [
        token,
        security.revoked.as_deref().and_then(|path| list(path, &security.key)),
        clock(&security.key),
        security.audit.as_deref().and_then(audit),
        renewal(security),
    ];
    key(config, security).into_iter().chain(beside.into_iter().flatten()).collect()
}

fn token(path: &Path) -> Option<Finding> {
    let error = TokenFile::open(path).err()?;
    let what = format!("the tokens of http.token: {error}");
    Some(Finding::bad("key", what, NO_START, "what the line above says"))
}

/// Whoever can write the list takes himself off it.
fn list(path: &Path, key: &Path) -> Option<Finding> {
    let (found, key) = (fs::metadata(path).ok()?, fs::metadata(key).ok()?);
    let mode = found.mode() & 0o7777;
    let what = format!("others can change the list of revoked keys {} (mode {mode:04o})", path.display());
    let is_others = mode & 0o022 != 0 || ![0, key.uid()].contains(&found.uid());
    let why = "whoever is on it can take himself off it";
    is_others.then(|| Finding::warning("key", what, why, "chmod 644 it, and let it be root's or the server's user's"))
}

/// Certificates count from a day before they were made.
fn clock(key: &Path) -> Option<Finding> {
    let made = fs::metadata(key).ok()?.modified().ok()?.duration_since(UNIX_EPOCH).ok()?.as_secs();
    let now = cairn_security::now();
    (now + DAY < made).then(|| {
        let what = format!("this machine's clock says {}, and the key was put here on {}", moment(now), moment(made));
        let why =
            "its certificate counts for nobody whose clock is before its time, and those of others do not count here";
        Finding::bad("key", what, why, "set the clock (chrony, systemd-timesyncd)")
    })
}

fn audit(path: &Path) -> Option<Finding> {
    let above = path.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let what = format!("the directory of the audit log {} is not there", path.display());
    (!above.is_dir()).then(|| Finding::bad("audit", what, NO_START, "make it, for the server's user alone"))
}

fn key(config: &Config, security: &SecuritySpec) -> Option<Finding> {
    let path = &security.key;
    if let Some(Err(error)) = security.revoked.as_deref().map(Revoked::read) {
        let what = format!("the list of revoked keys: {error}");
        return Some(Finding::bad(
            "key",
            what,
            NO_START,
            "make the file that security.revoked names; an empty one revokes nothing",
        ));
    }
    let file = match KeyFile::read(path) {
        Ok(file) => file,
        Err(error) => return Some(Finding::bad("key", error.to_string(), NO_START, "what the line above says")),
    };
    let (holder, left) = (file.holder(), file.days_left());
    let what =
        format!("{} is the key of {} {}, until {}", path.display(), holder.kind(), holder.name, date(holder.until));
    if fits(&config.key(), &file).is_err() {
        let what = format!("{what}, and not one for this configuration");
        return Some(Finding::bad("key", what, NO_START, "cairn key node --replace"));
    }
    let renewed = file.validity().filter(|_| security.authority.is_some());
    if cairn_security::now() < warned(holder.until, renewed) {
        return Some(Finding::good("key", what));
    }
    let todo = match renewed {
        Some(_) => {
            "look in the node's log why it is not renewed; when it has ended, cairn key token and cairn key enrol, both with --replace"
        }
        None => "cairn key node --replace; the node takes the new key by itself",
    };
    Some(Finding::warning("key", format!("{what}, in {left} days"), "then nobody speaks to this node", todo))
}

/// Whether a key can be renewed where the configuration says.
fn renewal(security: &SecuritySpec) -> Option<Finding> {
    let (authority, key) = (security.authority.as_deref()?, &security.key);
    let above = key.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let (dir, file) = (fs::metadata(above).ok()?, fs::metadata(key).ok()?);
    let user = file.uid();
    if user != 0 && !(dir.uid() == user && dir.mode() & 0o200 != 0) {
        let what = format!("uid {user}, whose the key is, cannot write into {}", above.display());
        let todo = "put the key into a directory of the server's user, such as /var/lib/cairn";
        return Some(Finding::warning("key", what, "the key cannot be renewed by itself", todo));
    }
    let addresses = authority.to_socket_addrs().ok().into_iter().flatten();
    let answers = addresses.take(4).any(|address| TcpStream::connect_timeout(&address, CONNECT_TIMEOUT).is_ok());
    (!answers).then(|| {
        let what = format!("nobody answers at {authority}, where the key is to be renewed (security.authority)");
        let todo = "start cairn key serve there, or look whether the way to it is open";
        Finding::warning("key", what, "the key ends if that stays so", todo)
    })
}
