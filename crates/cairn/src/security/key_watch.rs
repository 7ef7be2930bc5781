//! [`KeyWatch`]: takes the key that somebody puts into the place of a server's own, while the server runs.
//!
//! Invariant: what cannot be used, or is not a later key of the same server, changes nothing. Not here: what is shown
//! to others (`security::Tls`).
use cairn_security::{KeyFile, SecurityError, Tls};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What tells a file from another one, and from itself before it, its owner or its mode was changed.
type Stamp = (u64, u64, i64, i64, i64, i64);

/// Looks at the file of a server's key.
pub struct KeyWatch {
    tls: Arc<Tls>,
    path: PathBuf,
    /// Of the key that was read last, of the file at the last look, and of one that the system did not let be read.
    read: Option<Stamp>,
    last: Option<Stamp>,
    unread: Option<Stamp>,
}

impl KeyWatch {
    /// Of a key that counts. Its file is read once more: it may be another one since.
    pub fn new(tls: Arc<Tls>, path: PathBuf) -> Self {
        Self { tls, path, read: None, last: None, unread: None }
    }

    /// When the key ends that counts now.
    pub fn until(&self) -> u64 {
        self.tls.until()
    }

    /// Looks once. `true`: another key counts now. A file that is still being written is looked at again.
    pub fn look(&mut self) -> Result<bool, SecurityError> {
        let now = stamp(&self.path);
        let rests = std::mem::replace(&mut self.last, now) == now;
        // Where it is gone the key of before goes on; a later one is waited for.
        if !rests || now.is_none() || now == self.read {
            return Ok(false);
        }
        let renewed = KeyFile::read(&self.path).and_then(|file| self.tls.renew(&file));
        if matches!(renewed, Err(SecurityError::Io { .. })) {
            // Tried again at each look, and said once.
            let was_said = std::mem::replace(&mut self.unread, now) == now;
            return if was_said { Ok(false) } else { renewed };
        }
        self.read = now;
        renewed
    }
}

fn stamp(path: &Path) -> Option<Stamp> {
    let found = fs::metadata(path).ok()?;
    Some((found.ino(), found.size(), found.mtime(), found.mtime_nsec(), found.ctime(), found.ctime_nsec()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_security::{Authority, DAY, Mode, Wanted, write_secret};
    use cairn_types::NodeId;
    use cairn_wire::audience::{Caller, Roles};
    use cairn_wire::rights::Rights;
    use std::os::unix::fs::PermissionsExt;

    fn issue(authority: &Authority, name: &str, roles: Roles, days: u64) -> String {
        let (caller, rights) = (Caller::Node(roles), Rights::everything());
        let wanted = Wanted { name: name.into(), caller, node: NodeId(0), life: days * DAY, rights, again: true };
        authority.issue(&wanted).expect("a key")
    }

    /// A server would go on with a key that ends, or take another's or a broken one.
    #[test]
    fn only_a_later_key_of_the_same_server_is_taken() {
        let dir = tempfile::tempdir().expect("a directory");
        let authority = |name: &str| Authority::create(&dir.path().join(name)).expect("an authority");
        let (own, other) = (authority("ca"), authority("other"));
        let path = dir.path().join("n1.key");
        let put = |text: &str| write_secret(&path, text, true).expect("written");
        put(&issue(&own, "n1", Roles::DATA, 10));
        let file = KeyFile::read(&path).expect("a key");
        let first = file.holder().until;
        let tls = Arc::new(Tls::of_server(&file, Mode::Required, None).expect("a server"));
        let mut watch = KeyWatch::new(tls.clone(), path.clone());
        // A file counts when it is the same in two looks.
        let mut look = || watch.look().and_then(|early| if early { Ok(true) } else { watch.look() });
        assert!(!look().expect("nothing new"));
        let later = issue(&own, "n1", Roles::DATA, 20);
        let wrong = [
            issue(&own, "n2", Roles::DATA, 20),
            issue(&other, "n1", Roles::DATA, 20),
            issue(&own, "n3", Roles::META, 20),
            // Of before, such as a restored one.
            issue(&own, "n1", Roles::DATA, 5),
            later[..later.len() / 2].to_owned(),
            String::new(),
        ];
        for text in &wrong {
            put(text);
            assert!(look().is_err(), "{text}");
            assert!(!look().expect("it is said once"));
            assert_eq!(tls.until(), first);
        }
        std::fs::remove_file(&path).expect("removed");
        assert!(!look().expect("it may come back"));
        put(&later);
        let mode = |mode| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("a mode");
        mode(0o644);
        assert!(look().is_err(), "others can read it");
        // What the message says to do.
        mode(0o600);
        assert!(look().expect("a later key"));
        assert!(tls.until() > first + 5 * 86_400);
        assert!(!look().expect("nothing new"));
    }
}
