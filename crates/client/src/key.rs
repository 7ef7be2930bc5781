//! [`Key`]: which key this process shows to a cluster.
//!
//! Invariants: a key that was named, or that lies where keys are looked for, is used or is an error: nobody who has a
//! key speaks without it. Nothing that another user could have put there is taken for a key. Not here: what is in the
//! file (`security`).
use crate::error::{ClientError, Result};
use cairn_security::{KeyFile, SecurityError, Tls, moment, now};
use cairn_wire::audience::Caller;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Names the file of the key where a command or a program names none.
pub const KEY_VARIABLE: &str = "CAIRN_KEY";

/// Which key is shown.
#[derive(Clone, Debug, Default)]
pub enum Key {
    /// That of [`KEY_VARIABLE`], or the one of this user for a manager's address; none where neither is there.
    #[default]
    Find,
    /// None.
    None,
    /// The one in a file.
    File(PathBuf),
    /// One that was read already: a server's, for what it does as a client.
    Given(Arc<Tls>),
    /// One that somebody handed on.
    Text(KeyText),
}

/// The text of a key: its certificate, those of its authorities, its private key. **Invariant:** nothing here prints
/// it or writes it anywhere.
#[derive(Clone)]
pub struct KeyText {
    pem: Arc<[u8]>,
    from: Arc<str>,
}

impl KeyText {
    /// `from` says in errors where it was found, for example "the token of the job".
    pub fn new(pem: &[u8], from: &str) -> Self {
        Self { pem: pem.into(), from: from.into() }
    }
    /// What whoever has it needs to be its holder.
    pub fn secret(&self) -> &[u8] {
        &self.pem
    }
    /// Reads it, if its time is not over.
    fn read(&self) -> Result<Tls> {
        let bad = |error: SecurityError| ClientError::Key(error.to_string());
        let file = KeyFile::parse(Path::new(&*self.from), &self.pem).map_err(bad)?;
        if file.holder().until <= now() {
            let (from, name, when) = (&self.from, &file.holder().name, moment(file.holder().until));
            let next = "have a key made that counts longer (cairn key client), and hand that one on";
            return Err(ClientError::Key(format!("the key {name} in {from} ended at {when}; {next}")));
        }
        Tls::of_client(&file).map_err(bad)
    }
}

impl fmt::Debug for KeyText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyText({})", self.from)
    }
}

/// A key that this process would show, with its text.
#[derive(Debug)]
pub struct Shown {
    /// By which it is revoked.
    pub name: String,
    /// Seconds since 1970.
    pub made: u64,
    pub until: u64,
    /// It works with files and does not change the cluster.
    pub is_client: bool,
    pub text: KeyText,
}

impl Key {
    /// A file that was named, or else what is found. An empty name is none.
    pub fn named(file: Option<PathBuf>) -> Self {
        file.filter(|file| !file.as_os_str().is_empty()).map_or(Self::Find, Self::File)
    }

    /// Reads the key for a cluster with these managers.
    pub fn read(&self, managers: &[String]) -> Result<Option<Arc<Tls>>> {
        let bad = |error: SecurityError| ClientError::Key(error.to_string());
        match self {
            Self::Given(tls) => return Ok(Some(tls.clone())),
            Self::Text(text) => return Ok(Some(Arc::new(text.read()?))),
            Self::None | Self::Find | Self::File(_) => {}
        }
        let Some(path) = self.path(managers)? else { return Ok(None) };
        let file = KeyFile::read(&path).map_err(bad)?;
        Ok(Some(Arc::new(Tls::of_client(&file).map_err(bad)?)))
    }

    /// The key in the file that is shown, for handing it on; `None`: no file is.
    pub fn shown(&self, managers: &[String]) -> Result<Option<Shown>> {
        let Some(path) = self.path(managers)? else { return Ok(None) };
        let bad = |error: SecurityError| ClientError::Key(error.to_string());
        let (file, pem) = KeyFile::read_with_text(&path).map_err(bad)?;
        let holder = file.holder();
        Ok(Some(Shown {
            name: holder.name.clone(),
            made: file.validity().map_or_else(now, |validity| validity.made),
            until: holder.until,
            is_client: holder.caller == Caller::Client,
            text: KeyText::new(&pem, &path.to_string_lossy()),
        }))
    }

    /// The file that is shown.
    fn path(&self, managers: &[String]) -> Result<Option<PathBuf>> {
        match self {
            Self::None | Self::Given(_) | Self::Text(_) => Ok(None),
            Self::File(path) => Ok(Some(path.clone())),
            Self::Find => match std::env::var_os(KEY_VARIABLE).filter(|path| !path.is_empty()) {
                Some(path) => Ok(Some(path.into())),
                None => of_user(managers).map_err(|error| ClientError::Key(error.to_string())),
            },
        }
    }
}

/// The directory with the keys of this user, a file for each address.
pub fn directory() -> Option<PathBuf> {
    let of =
        |variable: &str| std::env::var_os(variable).filter(|path| Path::new(path).is_absolute()).map(PathBuf::from);
    Some(of("XDG_CONFIG_HOME").or_else(|| Some(of("HOME")?.join(".config")))?.join("cairn"))
}

/// The key of this user for one of the addresses.
fn of_user(managers: &[String]) -> std::result::Result<Option<PathBuf>, SecurityError> {
    let Some(dir) = directory() else { return Ok(None) };
    // An address with a slash would lead elsewhere.
    for path in managers.iter().filter(|address| !address.contains('/')).map(|address| dir.join(address)) {
        match std::fs::symlink_metadata(&path) {
            Ok(found) if found.is_file() => return Ok(Some(path)),
            Ok(_) => {
                let why =
                    "keys are looked for here, and this is no ordinary file; name the key with --key or $CAIRN_KEY";
                return Err(SecurityError::Exposed { path, why: why.to_owned() });
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {}
            // The variables may be of another user, whose keys are none of this one's; who needs one is told by the
            // cluster.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                let path = path.display();
                tracing::warn!(%path, "this user may not look for a key there ({error}) and goes on without; name one with --key or $CAIRN_KEY");
            }
            Err(source) => return Err(SecurityError::Io { path, source }),
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_security::{Authority, DAY, Wanted, write_secret};
    use cairn_types::NodeId;
    use cairn_wire::rights::Rights;

    fn issue(authority: &Authority, name: &str, caller: Caller, life: u64) -> String {
        let wanted =
            Wanted { name: name.to_owned(), caller, node: NodeId(0), life, rights: Rights::everything(), again: false };
        authority.issue(&wanted).expect("a key")
    }

    /// A job could not work with the key of who submitted it, would not be told why, or would print it to a log.
    #[test]
    fn a_key_is_handed_on_as_a_text_that_nothing_prints() {
        let dir = tempfile::tempdir().expect("a directory");
        let authority = Authority::create(&dir.path().join("ca")).expect("an authority");
        let file = dir.path().join("alice.key");
        let text = issue(&authority, "alice", Caller::Client, 9 * DAY);
        write_secret(&file, &text, false).expect("written");
        let shown = Key::File(file).shown(&[]).expect("read").expect("a key");
        assert_eq!((shown.name.as_str(), shown.is_client, shown.text.secret()), ("alice", true, text.as_bytes()));
        assert_eq!(shown.until - shown.made, 9 * DAY);
        let handed = KeyText::new(shown.text.secret(), "the token");
        let key = Key::Text(handed);
        assert!(key.read(&[]).expect("it is a key").is_some());
        assert_eq!(format!("{key:?}"), "Text(KeyText(the token))");
        assert!(!format!("{shown:?}").contains("PRIVATE"));
        assert!(
            key.shown(&[]).expect("nothing to read").is_none(),
            "only what is in a file is handed on by this process"
        );
        let admin = dir.path().join("ops.key");
        write_secret(&admin, &issue(&authority, "ops", Caller::Admin, DAY), false).expect("written");
        assert!(!Key::File(admin).shown(&[]).expect("read").expect("a key").is_client);
    }

    /// Whoever reads the log of a job would not know that its key has ended, or what to do.
    #[test]
    fn a_text_that_is_no_key_or_has_ended_says_so() {
        let dir = tempfile::tempdir().expect("a directory");
        let authority = Authority::create(&dir.path().join("ca")).expect("an authority");
        let over = issue(&authority, "job-1", Caller::Client, 0);
        let said =
            |pem: &str| Key::Text(KeyText::new(pem.as_bytes(), "the token")).read(&[]).expect_err("no key").to_string();
        let told = said(&over);
        assert!(
            told.starts_with("the key job-1 in the token ended at 20") && told.contains("; have a key made"),
            "{told}"
        );
        let told = said("something else");
        assert!(told.contains("the token is no key of a Cairn cluster") && told.contains("cairn key"), "{told}");
        assert!(!said(&over.replace("-----BEGIN PRIVATE", "-----BEGIN SOMETHING")).contains("BEGIN"));
    }
}
