//! [`Renewal`]: fetches the next key of a server from its cluster's authority before the present one ends.
//!
//! The key goes where the present one is; [`KeyWatch`](super::key_watch::KeyWatch) takes it from there as one that a
//! person put in place. Invariants: what is put in place is a later key of the same server, which was checked; a
//! failure changes nothing, is tried again with growing pauses, and is known to whoever asks, and so is a next key
//! that is not taken; each attempt has a private key of its own, which is nowhere before its certificate is there;
//! what somebody else puts in place meanwhile stays.
use crate::joining::{self, Answered};
use anyhow::Context;
use cairn_security::{KeyFile, NewKey, Tls, Validity, check_secret, holder_of, now, write_secret};
use cairn_wire::enrol::Asked;
use parking_lot::Mutex;
use rustix::fs::{Access, AtFlags, CWD};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Between two looks at the clock, which may have been set.
const LOOK: Duration = Duration::from_secs(1);
/// Between two attempts at first; it doubles.
const PAUSE_MIN: u64 = 1;
/// And at most, or a part of the key's life.
const PAUSE_MAX: u64 = 3600;
const PAUSES_IN_A_LIFE: u64 = 30;

/// The last failure, if the last attempt was one.
pub type Trouble = Arc<Mutex<Option<String>>>;

/// Renews one server's key.
pub struct Renewal {
    tls: Arc<Tls>,
    key: PathBuf,
    authority: String,
    trouble: Trouble,
}

impl Renewal {
    pub fn new(tls: Arc<Tls>, key: PathBuf, authority: String, trouble: Trouble) -> Self {
        Self { tls, key, authority, trouble }
    }

    /// Goes on until it is dropped.
    pub async fn run(self) {
        let (mut pause, mut not_before) = (PAUSE_MIN, 0);
        loop {
            tokio::time::sleep(LOOK).await;
            let Some(validity) = self.tls.validity().filter(|validity| is_due(validity, &self.tls)) else {
                // Also when a person put another key in place.
                (pause, not_before) = (PAUSE_MIN, 0);
                *self.trouble.lock() = None;
                continue;
            };
            if now() < not_before {
                continue;
            }
            match self.renew().await {
                Ok(()) => {
                    *self.trouble.lock() = None;
                    tracing::info!(authority = self.authority, "this server's key was renewed");
                }
                Err(error) => {
                    let why = format!("{error:#}");
                    // The same again and again is said once.
                    if self.trouble.lock().replace(why.clone()).as_ref() != Some(&why) {
                        tracing::warn!(
                            authority = self.authority,
                            why,
                            "this server's key cannot be renewed; it is tried again"
                        );
                    }
                }
            }
            // Time for the new one to be taken, too.
            not_before = now().saturating_add(pause.max(2));
            pause = (pause * 2).min(PAUSE_MAX).min((validity.life() / PAUSES_IN_A_LIFE).max(PAUSE_MIN));
        }
    }

    async fn renew(&self) -> anyhow::Result<()> {
        let (path, tls) = (self.key.clone(), self.tls.clone());
        let begun = tokio::task::spawn_blocking(move || Begun::of(&path, &tls)).await??;
        let asked = joining::ask(&self.authority, self.tls.renewing(), &begun.key, Asked::Renew).await?;
        tokio::task::spawn_blocking(move || begun.finish(&asked)).await?
    }
}

/// The servers of a cluster got their keys together, and are not to come back together: each has its moment in a tenth
/// of the time that is left.
fn is_due(validity: &Validity, tls: &Tls) -> bool {
    let hash = tls.holder().name.bytes().fold(5381u64, |hash, byte| hash.wrapping_mul(33) ^ u64::from(byte));
    let spread = (validity.until - validity.due()) / 10;
    now() >= validity.due() + hash.checked_rem(spread).unwrap_or(0)
}

/// A renewal on its way.
struct Begun {
    /// Where the present key is; not a link to it.
    path: PathBuf,
    text: Vec<u8>,
    file: KeyFile,
    key: NewKey,
}

impl Begun {
    /// Also shows whether anything can be written there, before anybody is asked.
    fn of(path: &Path, tls: &Tls) -> anyhow::Result<Self> {
        let path = &fs::canonicalize(path).with_context(|| path.display().to_string())?;
        check_secret(path)?;
        let text = fs::read(path).with_context(|| path.display().to_string())?;
        let file = KeyFile::parse(path, &text)?;
        let had = file.holder();
        anyhow::ensure!(
            had.name == tls.holder().name && had.until <= tls.until(),
            "{} has another key than the one that counts, and it is not taken while this server runs; the log says why. Restart it with \
             that key, or put the one of before back",
            path.display()
        );
        let above = path.parent().unwrap_or(Path::new("/"));
        let may = rustix::fs::accessat(CWD, above, Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS);
        may.context(
            "the next key cannot be put in place: the server's user has to be able to write into its directory",
        )?;
        Ok(Self { path: path.to_path_buf(), text, file, key: NewKey::generate()? })
    }

    fn finish(&self, answered: &Answered) -> anyhow::Result<()> {
        let Self { path, text: before, file, key } = self;
        let holder = holder_of(&answered.certificate).context("the new certificate names nobody")?;
        let text = key.file(&holder, &answered.certificate, file.trusted());
        let next = KeyFile::parse(path, text.as_bytes())?;
        next.check()?;
        let (had, got) = (file.holder(), next.holder());
        let is_same = got.name == had.name && got.caller == had.caller && got.node == had.node;
        anyhow::ensure!(
            is_same && got.until >= had.until,
            "the authority gave out the key {got}, which is no later one of {had}"
        );
        let now = fs::read(path).with_context(|| path.display().to_string())?;
        anyhow::ensure!(
            now == *before,
            "{} was changed while the next key was fetched; it is looked at again",
            path.display()
        );
        Ok(write_secret(path, &text, true)?)
    }
}

#[cfg(test)]
mod tests;
