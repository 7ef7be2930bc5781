//! The key of a node: whether it can be used, who else can, and for how long it counts.
use super::Finding;
use crate::config::Config;
use crate::security::{SecuritySpec, roles_of};
use cairn_security::{KeyFile, Revoked, TokenFile, WARN_DAYS, date, moment};
use cairn_wire::audience::Caller;
use cairn_wire::holder::MANAGER_ID_MAX;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::UNIX_EPOCH;

const DAY: u64 = 86_400;
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
    let wanted = roles_of(config.manager.member.is_some(), config.meta, config.data.is_some());
    let fits = matches!(holder.caller, Caller::Node(roles) if roles.covers(wanted))
        && match config.manager.member {
            Some(member) => holder.node.get() == member,
            None => holder.node.get() == 0 || holder.node.get() > MANAGER_ID_MAX,
        };
    let what =
        format!("{} is the key of {} {}, until {}", path.display(), holder.kind(), holder.name, date(holder.until));
    Some(match (fits, left < WARN_DAYS) {
        (false, _) => Finding::bad(
            "key",
            format!("{what}, and not one for this configuration"),
            NO_START,
            "cairn key node --replace",
        ),
        (true, true) => Finding::warning(
            "key",
            format!("{what}, in {left} days"),
            "then nobody speaks to this node",
            "cairn key node --replace; the node takes the new key by itself",
        ),
        (true, false) => Finding::good("key", what),
    })
}
