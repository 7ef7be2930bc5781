//! The security of a server process: its key, how strict it is, and the list of revoked keys; it keeps looking at both
//! files, and renews the key where it is told of the authority.
//!
//! Invariant: a process whose configuration asks for security does not start without it.
//! Not here: what a key lets its holder do (`security`, `rpc`), making keys (`keys.rs`).
mod key_watch;
mod renewal;

use crate::audit::AuditLog;
use crate::node::NodeSpec;
use anyhow::Context;
use cairn_rpc::Audit;
use cairn_security::{Change, DAY, KeyFile, Mode, Revoked, Tls, Validity, WARN_DAYS, date, moment};
use cairn_wire::audience::{Caller, Roles};
use cairn_wire::holder::MANAGER_ID_MAX;
use cairn_wire::protection::Protection;
use key_watch::KeyWatch;
use renewal::{Renewal, Trouble};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Between two looks at the list of revoked keys: with one request on the way, they are out within 5 s.
const LOOK_PAUSE: Duration = Duration::from_secs(1);

/// In the node's directory: the names of revoked keys that the managers told.
const TOLD_FILE: &str = "revoked.told";

/// `[security]` of a configuration that does not say off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecuritySpec {
    pub mode: Mode,
    /// File of the process's key.
    pub key: PathBuf,
    /// File with the names of revoked keys.
    pub revoked: Option<PathBuf>,
    /// File of the audit log.
    pub audit: Option<PathBuf>,
    /// It has who removed names, too.
    pub audit_removals: bool,
    /// How file data goes.
    pub data: Protection,
    /// `host:port` where the key is renewed.
    pub authority: Option<String>,
}

/// The key is another server's.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct NotItsKey(pub String);

/// What a process with a key works with.
pub struct Security {
    pub tls: Arc<Tls>,
    revoked: Arc<Revoked>,
    key: PathBuf,
    audit: Option<AuditLog>,
    authority: Option<String>,
    trouble: Trouble,
}

impl Security {
    /// Reads the key that a node's configuration names and holds it against the rest of that.
    pub fn load(spec: &NodeSpec) -> anyhow::Result<Option<Security>> {
        let Some(SecuritySpec { mode, key, revoked, audit, audit_removals, data, authority }) = &spec.security else {
            tell_open(&spec.listen);
            return Ok(None);
        };
        let file = KeyFile::read(key).context("security.key")?;
        let revoked = Revoked::of_server(revoked.as_deref(), &spec.dir.join(TOLD_FILE));
        let revoked = revoked.context("security.revoked: the list has to be there; an empty file revokes nothing")?;
        let revoked = Arc::new(revoked);
        let tls = Tls::of_server(&file, *mode, Some(revoked.clone()))?;
        let tls = Arc::new(match data {
            Protection::Authenticated => tls,
            Protection::Private => tls.with_private_data(),
        });
        fits(&spec.into(), &file)?;
        let holder = file.holder();
        tracing::info!(name = holder.name, ?mode, ?data, until = date(holder.until), "this node has a key");
        if let Some(ending) = ending(&tls, authority.is_some(), None) {
            tracing::warn!("{ending}");
        }
        let start = |path| AuditLog::start(path, *audit_removals);
        let audit = audit.as_deref().map(start).transpose().context("security.audit")?;
        let (key, authority, trouble) = (key.clone(), authority.clone(), Trouble::default());
        Ok(Some(Security { tls, revoked, key, audit, authority, trouble }))
    }

    /// Where servers of this process tell who came in.
    pub fn audit(&self) -> Audit {
        Audit::to(self.audit.as_ref().and_then(AuditLog::sink))
    }

    /// The list of revoked keys, for what the managers tell of it.
    pub fn revoked(&self) -> Arc<Revoked> {
        self.revoked.clone()
    }

    /// What is told of the key's end, again and again.
    pub fn teller(&self) -> impl Fn() -> Option<String> + Send + Sync + 'static {
        let (tls, renews, trouble) = (self.tls.clone(), self.authority.is_some(), self.trouble.clone());
        move || ending(&tls, renews, trouble.lock().as_deref())
    }

    /// Keeps looking at the list of revoked keys and at the file of the key, and renews that, until the handle is
    /// aborted.
    pub fn watch(&self, runtime: &tokio::runtime::Handle) -> tokio::task::AbortHandle {
        let renewing = self
            .authority
            .clone()
            .map(|authority| Renewal::new(self.tls.clone(), self.key.clone(), authority, self.trouble.clone()).run());
        let list = self.revoked.clone();
        let mut key = KeyWatch::new(self.tls.clone(), self.key.clone());
        let looking = async move {
            let mut failed = false;
            loop {
                tokio::time::sleep(LOOK_PAUSE).await;
                failed = look_at_list(&list, failed);
                look_at_key(&mut key);
            }
        };
        let both = async move {
            match renewing {
                Some(renewing) => drop(tokio::join!(looking, renewing)),
                None => looking.await,
            }
        };
        runtime.spawn(both).abort_handle()
    }
}

/// Whether the list cannot be read, which is said once, not each second.
fn look_at_list(list: &Revoked, failed: bool) -> bool {
    match list.look() {
        Ok(Some(Change { came, went })) => {
            let (revoked, again) = (came.join(", "), went.join(", "));
            tracing::warn!(revoked, again, "the list of revoked keys changed; keys named under `again` count again");
        }
        Ok(None) => {}
        Err(error) => {
            if !failed {
                tracing::error!(%error, "the list of revoked keys cannot be read; the last one goes on to count");
            }
            return true;
        }
    }
    false
}

fn look_at_key(key: &mut KeyWatch) {
    match key.look() {
        Ok(true) => tracing::info!(until = date(key.until()), "a new key of this server was put in place, and counts"),
        Ok(false) => {}
        Err(error) => {
            tracing::warn!(%error, "what was put in the place of this server's key is not taken; the one of before goes on")
        }
    }
}

/// What the key of a process has to be.
pub struct Expected {
    pub roles: Roles,
    /// Its number among the managers, 0: it is none.
    pub member: u32,
}

impl From<&NodeSpec> for Expected {
    fn from(spec: &NodeSpec) -> Self {
        let roles = roles_of(spec.manager.is_some(), spec.meta, !spec.disks.is_empty());
        Self { roles, member: spec.manager.unwrap_or(0) }
    }
}

/// A key of another process, or with fewer roles than the process has.
pub fn fits(expected: &Expected, file: &KeyFile) -> Result<(), NotItsKey> {
    let (path, holder) = (file.path().display(), file.holder());
    let Expected { roles: wanted, member } = expected;
    let Caller::Node(roles) = holder.caller else {
        return Err(NotItsKey(format!("{path} is no key of a server, but that of {}", holder.a_kind())));
    };
    if !roles.covers(*wanted) {
        return Err(NotItsKey(format!(
            "{path} is a key for the roles {roles}, and this process has {wanted}: make one with cairn key node"
        )));
    }
    let of = holder.node.get();
    if of != *member && !(*member == 0 && of > MANAGER_ID_MAX) {
        return Err(NotItsKey(format!(
            "{path} is the key of member {of} of the managers, and manager.member says {member} (0: none): make one with cairn key node"
        )));
    }
    Ok(())
}

/// The roles that a process has.
pub fn roles_of(manager: bool, meta: bool, data: bool) -> Roles {
    let all = [(manager, Roles::MANAGER), (meta, Roles::META), (data, Roles::DATA)];
    all.into_iter().filter(|(has, _)| *has).fold(Roles::default(), |roles, (_, role)| roles.with(role))
}

/// Says that whoever reaches the process is served, where others than programs of the machine do.
fn tell_open(listen: &str) {
    if !is_loopback(listen) {
        tracing::warn!(
            listen,
            "this server has no [security] in its configuration: whoever reaches its address may read, change and remove \
             everything; see the guide on security, or keep others away from the address"
        );
    }
}

/// Whether nobody else than programs of the machine reaches an address.
fn is_loopback(listen: &str) -> bool {
    let host = listen.rsplit_once(':').map_or(listen, |(host, _)| host).trim_matches(['[', ']']);
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// From when on the end of a key is spoken of: of one that is renewed by itself not before that should have happened.
pub fn warned(until: u64, renewed: Option<Validity>) -> u64 {
    renewed.map_or_else(|| until.saturating_sub(WARN_DAYS * DAY), |validity| validity.warned())
}

/// What to say of a key whose end is near, or that cannot be renewed.
fn ending(tls: &Tls, renews: bool, trouble: Option<&str>) -> Option<String> {
    let (until, now) = (tls.until(), cairn_security::now());
    if now < warned(until, tls.validity().filter(|_| renews)) {
        return None;
    }
    let left = cairn_cli::duration(Duration::from_secs(until.saturating_sub(now)));
    let what = format!("its certificate ends on {}, in {left}; then nobody speaks to it", moment(until));
    Some(match (trouble, renews) {
        (Some(why), _) => format!("{what}, and it cannot be renewed: {why}"),
        (None, true) => format!("{what}: it is about to be renewed"),
        (None, false) => {
            format!("{what}: make a new key (cairn key node --replace) and put it in place, or name security.authority")
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever tries Cairn on one machine would be warned of nothing; or nobody of an open port.
    #[test]
    fn only_this_machine_reaches_loopback() {
        for listen in ["127.0.0.1:7400", "127.9.9.9:0", "[::1]:7400", "localhost:7400"] {
            assert!(is_loopback(listen), "{listen}");
        }
        for listen in ["0.0.0.0:7400", "10.0.0.1:7400", "[::]:7400", "storage1:7400"] {
            assert!(!is_loopback(listen), "{listen}");
        }
    }
}
