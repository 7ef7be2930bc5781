//! [`Renewal`]: fetches the next key of a server from its cluster's authority before the present one ends.
//!
//! The key goes where the present one is; [`KeyWatch`](super::key_watch::KeyWatch) takes it from there as one that a
//! person put in place. Invariants: what is put in place is a later key of the same server, which was checked; a
//! failure
//! changes nothing, is tried again with growing pauses, and is known to whoever asks; the private key is durable before
//! the authority is asked, so the same is asked for again when an answer is lost.
use crate::joining::{self, Answered, pending};
use anyhow::Context;
use cairn_security::{KeyFile, NewKey, Tls, Validity, holder_of, now, write_secret};
use cairn_wire::enrol::Asked;
use parking_lot::Mutex;
use std::fs;
use std::io::ErrorKind;
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
        let path = self.key.clone();
        let (file, key) = tokio::task::spawn_blocking(move || begin(&path)).await??;
        let asked = joining::ask(&self.authority, self.tls.renewing(), &key, Asked::Renew).await?;
        let path = self.key.clone();
        tokio::task::spawn_blocking(move || finish(&path, &file, &key, &asked)).await?
    }
}

/// The servers of a cluster got their keys together, and are not to come back together: each has its moment in a tenth
/// of the time that is left.
fn is_due(validity: &Validity, tls: &Tls) -> bool {
    let hash = tls.holder().name.bytes().fold(5381u64, |hash, byte| hash.wrapping_mul(33) ^ u64::from(byte));
    let spread = (validity.until - validity.due()) / 10;
    now() >= validity.due() + hash.checked_rem(spread).unwrap_or(0)
}

/// Also shows whether anything can be written there, before anybody is asked.
fn begin(path: &Path) -> anyhow::Result<(KeyFile, NewKey)> {
    let file = KeyFile::read(path)?;
    let key = NewKey::kept(&pending(path)).context(
        "the next private key cannot be kept beside the present one: the server's user has to be able to write into that directory",
    )?;
    Ok((file, key))
}

fn finish(path: &Path, file: &KeyFile, key: &NewKey, answered: &Answered) -> anyhow::Result<()> {
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
    write_secret(path, &text, true)?;
    match fs::remove_file(pending(path)) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error).context("removing what was pending"),
        _ => Ok(()),
    }
}
