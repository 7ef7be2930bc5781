//! The security of a server process: its key, how strict it is, and the list of revoked keys; it keeps looking at both
//! files.
//!
//! Invariant: a process whose configuration asks for security does not start without it.
//! Not here: what a key lets its holder do (`security`, `rpc`), making keys (`keys.rs`).
mod key_watch;

use crate::audit::AuditLog;
use crate::node::NodeSpec;
use anyhow::Context;
use cairn_rpc::Audit;
use cairn_security::{Change, KeyFile, Mode, Revoked, Tls, WARN_DAYS, date};
use cairn_wire::audience::{Caller, Roles};
use cairn_wire::holder::MANAGER_ID_MAX;
use cairn_wire::protection::Protection;
use key_watch::KeyWatch;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Between two looks at the list of revoked keys: with one request on the way, they are out within 5 s.
const LOOK_PAUSE: Duration = Duration::from_secs(1);

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
    /// How file data goes.
    pub data: Protection,
}

/// The key is another server's.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct NotItsKey(String);

/// What a process with a key works with.
pub struct Security {
    pub tls: Arc<Tls>,
    revoked: Option<Arc<Revoked>>,
    key: PathBuf,
    audit: Option<AuditLog>,
}

impl Security {
    /// Reads the key that a node's configuration names and holds it against the rest of that.
    pub fn load(spec: &NodeSpec) -> anyhow::Result<Option<Security>> {
        let Some(SecuritySpec { mode, key, revoked, audit, data }) = &spec.security else { return Ok(None) };
        let file = KeyFile::read(key).context("security.key")?;
        let revoked = revoked.as_ref().map(|path| Revoked::read(path).map(Arc::new)).transpose();
        let revoked = revoked.context("security.revoked: the list has to be there; an empty file revokes nothing")?;
        let tls = Tls::of_server(&file, *mode, revoked.clone())?;
        let tls = Arc::new(match data {
            Protection::Authenticated => tls,
            Protection::Private => tls.with_private_data(),
        });
        fits(spec, &file)?;
        let holder = file.holder();
        tracing::info!(name = holder.name, ?mode, ?data, until = date(holder.until), "this node has a key");
        if let Some(ending) = ending(&tls) {
            tracing::warn!("{ending}");
        }
        let audit = audit.as_deref().map(AuditLog::start).transpose()?;
        Ok(Some(Security { tls, revoked, key: key.clone(), audit }))
    }

    /// Where servers of this process tell who came in.
    pub fn audit(&self) -> Audit {
        Audit::to(self.audit.as_ref().and_then(AuditLog::sink))
    }

    /// Keeps looking at the list of revoked keys and at the file of the key, until the handle is aborted.
    pub fn watch(&self, runtime: &tokio::runtime::Handle) -> tokio::task::AbortHandle {
        let list = self.revoked.clone();
        let mut key = KeyWatch::new(self.tls.clone(), self.key.clone());
        let looking = async move {
            let mut failed = false;
            loop {
                tokio::time::sleep(LOOK_PAUSE).await;
                if let Some(list) = &list {
                    failed = look_at_list(list, failed);
                }
                look_at_key(&mut key);
            }
        };
        runtime.spawn(looking).abort_handle()
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

/// A key of another process, or with fewer roles than the process has.
fn fits(spec: &NodeSpec, file: &KeyFile) -> anyhow::Result<()> {
    let (path, holder) = (file.path().display(), file.holder());
    let Caller::Node(roles) = holder.caller else { anyhow::bail!("{path} is no key of a server") };
    let wanted = roles_of(spec.manager.is_some(), spec.meta, !spec.disks.is_empty());
    if !roles.covers(wanted) {
        let text = format!(
            "{path} is a key for the roles {roles}, and this process has {wanted}: make one with cairn key node"
        );
        return Err(NotItsKey(text).into());
    }
    let (member, of) = (spec.manager.unwrap_or(0), holder.node.get());
    if of != member && !(member == 0 && of > MANAGER_ID_MAX) {
        let text = format!(
            "{path} is the key of member {of} of the managers, and manager.member says {member} (0: none): make one with cairn key node"
        );
        return Err(NotItsKey(text).into());
    }
    Ok(())
}

/// The roles that a process has.
pub fn roles_of(manager: bool, meta: bool, data: bool) -> Roles {
    let all = [(manager, Roles::MANAGER), (meta, Roles::META), (data, Roles::DATA)];
    all.into_iter().filter(|(has, _)| *has).fold(Roles::default(), |roles, (_, role)| roles.with(role))
}

/// What to say of a key whose end is near.
pub fn ending(tls: &Tls) -> Option<String> {
    let until = tls.until();
    let left = until.saturating_sub(cairn_security::now()) / 86_400;
    (left < WARN_DAYS).then(|| {
        format!(
            "its certificate ends on {}, in {left} days; then nobody speaks to it: make a new key (cairn key node --replace) and put it in place",
            date(until)
        )
    })
}
