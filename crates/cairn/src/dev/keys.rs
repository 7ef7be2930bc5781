//! [`DevKeys`]: the authority and the keys of a `cairn dev`, in the directory `keys` of its cluster.
//!
//! Invariants: whether the directory is there says whether the cluster has keys, for it appears whole, in one step; it
//! is believed only where it is this user's and nobody else's. A cluster that had keys does not go on without them
//! unless somebody says so. Not here: where commands find the key of whoever started
//! the cluster (`user_key.rs`), what keys are for (`security`).
use crate::security::SecuritySpec;
use anyhow::Context;
use cairn_security::{Authority, CA_KEY, DAY, KeyFile, Mode, Wanted, write_secret};
use cairn_types::NodeId;
use cairn_wire::audience::{Caller, Roles};
use cairn_wire::protection::Protection;
use cairn_wire::rights::Rights;
use std::fs::{self, DirBuilder, File};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// In the cluster's directory.
pub const KEYS: &str = "keys";
/// What keys are made in begins with it; one that was left by a kill is of no use to anybody.
const UNFINISHED: &str = ".keys-";
/// In the cluster's directory: it has keys, so if they are gone they are lost.
const HAS_KEYS: &str = ".has-keys";
/// In the directory of keys: names whose keys do not count any more.
const REVOKED: &str = "revoked";
/// In the directory of keys.
const AUTHORITY: &str = "authority";
/// The key of whoever started the cluster.
const CLIENT: &str = "client";
/// The first node: manager and meta.
pub const HEAD: &str = "node1";
/// Its member of the managers' group.
const MEMBER: u32 = 1;
/// As `cairn key` makes them.
const DAYS: u64 = 3650;

/// Keys that a cluster has.
pub struct DevKeys {
    dir: PathBuf,
}

impl DevKeys {
    /// Those of a cluster's directory; `None`: it has none.
    pub fn find(data_dir: &Path) -> anyhow::Result<Option<DevKeys>> {
        let dir = data_dir.join(KEYS);
        let shown = dir.display();
        let found = match fs::symlink_metadata(&dir) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            found => found.with_context(|| format!("{shown} cannot be looked at"))?,
        };
        anyhow::ensure!(
            found.is_dir(),
            "{shown} is no directory, and keys are not taken from elsewhere: put the directory itself there"
        );
        let (user, mode) = (rustix::process::geteuid().as_raw(), found.mode() & 0o7777);
        anyhow::ensure!(
            found.uid() == user,
            "{shown} belongs to uid {}, and this is uid {user}: whose keys these are cannot be told; start it as that user, or with another --data-dir",
            found.uid()
        );
        anyhow::ensure!(mode & 0o077 == 0, "other users can reach {shown} (mode {mode:04o}): chmod 700 it");
        let authority = dir.join(AUTHORITY).join(CA_KEY);
        anyhow::ensure!(
            authority.is_file(),
            "{shown} has no {AUTHORITY}/{CA_KEY}: put the keys of this cluster back, or start it with --insecure \
             (which serves every user of this machine)"
        );
        // Before anything is served: from then on their loss is noticed.
        let mark = data_dir.join(HAS_KEYS);
        if !mark.exists() {
            fs::write(&mark, "").with_context(|| format!("{} cannot be written", mark.display()))?;
        }
        Ok(Some(DevKeys { dir }))
    }

    /// Of a cluster without keys: an error if it had some.
    pub fn refuse_lost(data_dir: &Path) -> anyhow::Result<()> {
        let shown = data_dir.display();
        anyhow::ensure!(
            !data_dir.join(HAS_KEYS).exists(),
            "the cluster in {shown} has keys, and its directory {KEYS} is gone: put it back, or start it with --secure to make \
             new ones, or with --insecure to serve every user of this machine"
        );
        Ok(())
    }

    /// Makes them for a cluster that has none.
    pub fn make(data_dir: &Path, nodes: usize) -> anyhow::Result<DevKeys> {
        let (beside, dir) = (unfinished(data_dir)?, data_dir.join(KEYS));
        let made = (|| {
            Authority::create(&beside.join(AUTHORITY))?;
            write_secret(&beside.join(REVOKED), "", false)?;
            DevKeys { dir: beside.clone() }.complete(nodes)?;
            match fs::rename(&beside, &dir) {
                Ok(()) => File::open(data_dir)?.sync_all()?,
                // Another process on the same directory was faster: one of the two goes on.
                Err(error) if matches!(error.kind(), ErrorKind::DirectoryNotEmpty | ErrorKind::AlreadyExists) => {
                    fs::remove_dir_all(&beside)?;
                }
                Err(error) => return Err(error.into()),
            }
            anyhow::Ok(())
        })();
        if made.is_err() {
            // What was not finished is of no use to anybody.
            drop(fs::remove_dir_all(&beside));
        }
        made.with_context(|| format!("making keys in {}", data_dir.display()))?;
        Self::find(data_dir)?.with_context(|| format!("{} is gone", dir.display()))
    }

    /// Makes keys that are not there: of all nodes, or of those that came later.
    pub fn complete(&self, nodes: usize) -> anyhow::Result<()> {
        let authority = Authority::open(&self.dir.join(AUTHORITY))?;
        let wanted = |name: &str, caller, node| Wanted {
            name: name.to_owned(),
            caller,
            node: NodeId(node),
            life: DAYS * DAY,
            rights: Rights::everything(),
            // A server's that was lost.
            again: matches!(caller, Caller::Node(_)),
        };
        let mut all = vec![(HEAD.to_owned(), wanted(HEAD, Caller::Node(Roles::MANAGER.with(Roles::META)), MEMBER))];
        all.extend((1..=nodes).map(data_name).map(|name| (name.clone(), wanted(&name, Caller::Node(Roles::DATA), 0))));
        if !self.file(CLIENT).exists() {
            // A name is given out once.
            let given = authority.issued()?;
            let is_free = |name: &String| given.iter().all(|holder| holder.name != *name);
            let name = (1..).map(|number| format!("dev-{number}")).find(is_free).context("a name")?;
            all.push((CLIENT.to_owned(), wanted(&name, Caller::Admin, 0)));
        }
        for (name, wanted) in all.iter().filter(|(name, _)| !self.file(name).exists()) {
            write_secret(&self.file(name), &authority.issue(wanted)?, false)?;
        }
        Ok(())
    }

    fn file(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.key"))
    }

    /// The key of whoever started the cluster: it may everything, and is not squashed.
    pub fn client(&self) -> PathBuf {
        self.file(CLIENT)
    }

    /// The same as it is put elsewhere.
    pub fn client_text(&self) -> anyhow::Result<String> {
        let path = self.client();
        KeyFile::read(&path)?;
        fs::read_to_string(&path).with_context(|| path.display().to_string())
    }

    /// What a node works with.
    pub fn of_node(&self, name: &str) -> SecuritySpec {
        SecuritySpec {
            mode: Mode::Required,
            key: self.file(name),
            revoked: Some(self.dir.join(REVOKED)),
            audit: None,
            audit_removals: false,
            data: Protection::Authenticated,
            authority: None,
        }
    }
}

/// Name of a data node, of its directory and of its key.
pub fn data_name(number: usize) -> String {
    format!("data{number}")
}

/// Whether something in a directory without a cluster may be of one that is being begun: keys that were made before
/// anything else, or what a kill left of them.
pub fn is_of_keys(data_dir: &Path, name: &std::ffi::OsStr) -> bool {
    let is_unfinished = name.to_str().is_some_and(|name| name.starts_with(UNFINISHED));
    is_unfinished || name == HAS_KEYS || name == KEYS && data_dir.join(KEYS).join(AUTHORITY).join(CA_KEY).is_file()
}

/// A new directory for this user alone, in which keys are made.
fn unfinished(data_dir: &Path) -> anyhow::Result<PathBuf> {
    let process = std::process::id();
    for number in 0..1000 {
        let dir = data_dir.join(format!("{UNFINISHED}{process}-{number}"));
        match DirBuilder::new().mode(0o700).create(&dir) {
            Ok(()) => return Ok(dir),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error).with_context(|| format!("making {}", dir.display())),
        }
    }
    anyhow::bail!("{} is full of {UNFINISHED}{process}-…: remove them", data_dir.display())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, symlink};

    /// Nodes that came later, or whose key was lost, would not start; or what is there would be replaced.
    #[test]
    fn keys_are_made_once_and_completed() {
        let dir = tempfile::tempdir().expect("a directory");
        assert!(DevKeys::find(dir.path()).expect("looked").is_none());
        let keys = DevKeys::make(dir.path(), 2).expect("made");
        let before = keys.client_text().expect("a key");
        fs::remove_file(keys.file("data1")).expect("lost");
        let again = DevKeys::find(dir.path()).expect("looked").expect("there");
        again.complete(3).expect("completed");
        for (name, roles) in [("node1", "manager+meta"), ("data1", "data"), ("data3", "data")] {
            let holder = KeyFile::read(&again.of_node(name).key).expect("a key").holder().clone();
            assert!(matches!(holder.caller, Caller::Node(has) if has.to_string() == roles), "{name}");
        }
        assert_eq!(again.client_text().expect("a key"), before);
        fs::remove_file(again.client()).expect("lost");
        again.complete(3).expect("completed");
        assert_eq!(KeyFile::read(&again.client()).expect("a key").holder().name, "dev-2");
        // Made at the same time by two: both have the same.
        let other = DevKeys::make(dir.path(), 3).expect("there already");
        assert_eq!(other.client_text().expect("a key"), again.client_text().expect("a key"));
        let left = fs::read_dir(dir.path()).expect("listed").flatten().map(|entry| entry.file_name());
        let mut left: Vec<_> = left.collect();
        left.sort();
        assert_eq!(left, [HAS_KEYS, KEYS], "nothing is left beside them");
    }

    /// Another user of the machine would give a cluster its keys, or read them.
    #[test]
    fn keys_of_others_are_not_taken() {
        let top = tempfile::tempdir().expect("a directory");
        let (one, two) = (top.path().join("one"), top.path().join("two"));
        for dir in [&one, &two] {
            fs::create_dir(dir).expect("a directory");
        }
        let keys = DevKeys::make(&one, 1).expect("made");
        DevKeys::refuse_lost(&two).expect("it never had any");
        assert!(DevKeys::refuse_lost(&one).is_err(), "a cluster that lost its keys serves nobody without being told");
        let refused = |dir: &Path| DevKeys::find(dir).err().map(|error| error.to_string()).unwrap_or_default();
        symlink(one.join(KEYS), two.join(KEYS)).expect("a link");
        assert!(refused(&two).contains("is no directory"), "{}", refused(&two));
        fs::set_permissions(&keys.dir, Permissions::from_mode(0o750)).expect("a mode");
        assert!(refused(&one).contains("chmod 700"), "{}", refused(&one));
        fs::set_permissions(&keys.dir, Permissions::from_mode(0o700)).expect("a mode");
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&keys.dir, Some(65534), None).expect("given away");
            assert!(refused(&one).contains("belongs to uid 65534"), "{}", refused(&one));
            std::os::unix::fs::chown(&keys.dir, Some(0), None).expect("taken back");
        }
        fs::remove_file(keys.dir.join(AUTHORITY).join(CA_KEY)).expect("lost");
        assert!(refused(&one).contains("--insecure"), "{}", refused(&one));
    }
}
