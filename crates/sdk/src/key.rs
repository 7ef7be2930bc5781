//! Keys that programs hand on to others who work for them, as jobs of Hadoop do.
use crate::error::{Error, Result};
use crate::options::ConnectOptions;
use cairn_client::key::{Key as Choice, KeyText, Shown};

/// A key of a client. Whoever has its [`secret`](Key::secret) is its holder; nothing here prints that.
#[derive(Clone, Debug)]
pub struct Key {
    text: KeyText,
}

/// The key that this process shows to a cluster.
#[derive(Debug)]
pub struct OwnKey {
    /// By which it is revoked.
    pub name: String,
    /// When it was made and when it ends, in seconds since 1970.
    pub made: u64,
    pub until: u64,
    pub key: Key,
}

impl Key {
    /// One that was handed on. `from` says in errors where it was found.
    pub fn handed_on(secret: &[u8], from: &str) -> Key {
        Key { text: KeyText::new(secret, from) }
    }
    pub fn secret(&self) -> &[u8] {
        self.text.secret()
    }
    pub(crate) fn choice(&self) -> Choice {
        Choice::Text(self.text.clone())
    }
}

impl OwnKey {
    /// The one in the file that is shown to a cluster ([`ConnectOptions::cluster`]); `None`: there is no file. That of
    /// an administrator or a server is not handed on.
    pub fn find(options: &ConnectOptions) -> Result<Option<OwnKey>> {
        let addresses = options.addresses()?;
        let cluster = format!("cluster {}", addresses.join(","));
        let shown = Choice::Find.shown(&addresses).map_err(|error| Error::from_client(&cluster, &error))?;
        let Some(Shown { name, made, until, is_client, text }) = shown else { return Ok(None) };
        if !is_client {
            let cause = format!("the key {name} is an administrator's or a server's, which is not handed on");
            let next = "name a client's key by $CAIRN_KEY (cairn key client makes one)";
            return Err(Error::new(libc::EPERM, &cluster, &cause, next));
        }
        Ok(Some(OwnKey { name, made, until, key: Key { text } }))
    }
}
