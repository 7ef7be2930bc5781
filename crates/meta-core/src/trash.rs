//! The trash: `/.trash`, a directory of root that anybody may make and use (mode 1777), in it one directory for each
//! user, in these *buckets*: directories named by the second since 1970 in which they are removed with all that is in
//! them, in twelve digits, so that the first one is always the next.
//!
//! What is put there, and how it comes back, is the client's (`cairn-client`, `trash`): the namespace only makes the
//! directory in the right way and removes buckets whose time is over.
//!
//! The trash and the directories of users in it are in the partition of the root, which alone looks for buckets that
//! are over. A bucket that another partition has, and what is in a bucket and elsewhere, goes by [`crate::waiting`].
//!
//! Invariant: a bucket is removed only when the logged time has reached its name, and the time that the clocks of a
//! majority had reached when the removal was decided.
use crate::encoding::{Dentry, Inode};
use crate::error::{OpError, Result};
use crate::key::{self, Kind};
use crate::message::request::ExpireTrash;
use crate::namespace::{Context, Namespace};
use cairn_types::{InodeId, WallTime};

/// Name of the trash in the root.
pub const TRASH: &[u8] = b".trash";
/// Digits of a bucket's name.
pub const BUCKET_DIGITS: usize = 12;
/// Buckets removed by one entry of the log.
const BUCKETS_ENTRY: usize = 64;
/// Users whose directories are looked through.
const USERS_MAX: usize = 65_536;
const SECOND: u64 = 1_000_000_000;

/// A bucket whose time is over.
struct Due {
    user: u64,
    name: Vec<u8>,
    dentry: Dentry,
}

/// The second in a bucket's name.
fn bucket_time(name: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(name).ok()?;
    let digits = text.len() == BUCKET_DIGITS && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok())?
}

/// Whether an entry is the trash.
pub(crate) fn is_trash(parent: u64, name: &[u8]) -> bool {
    parent == InodeId::ROOT.0 && name == TRASH
}

impl Namespace {
    /// Whether a directory is the trash.
    pub(crate) fn is_the_trash(&self, id: u64) -> bool {
        self.dentry(InodeId::ROOT.0, TRASH).is_ok_and(|trash| trash.is_some_and(|trash| trash.inode == id))
    }

    /// Whether any bucket's time is over.
    pub fn is_trash_due(&self, now: WallTime) -> bool {
        self.due_buckets(now.0, 1).is_ok_and(|due| !due.is_empty())
    }

    /// The root, for a trash that is not there yet.
    pub(crate) fn directory_for_trash(&self, context: &Context<'_>) -> Result<Inode> {
        let root = self.searchable(InodeId::ROOT.0, &context.who)?;
        if self.dentry(InodeId::ROOT.0, TRASH)?.is_some() {
            return Err(OpError::EXISTS);
        }
        self.check_quota(root.quota, 0, 1)?;
        Ok(root)
    }

    fn due_buckets(&self, now: u64, max: usize) -> Result<Vec<Due>> {
        let mut due = Vec::new();
        let Some(trash) = self.dentry(InodeId::ROOT.0, TRASH)?.filter(Dentry::is_dir) else { return Ok(due) };
        let users = key::prefix(trash.inode, Kind::Dentry);
        let mut range = self.tree.prefix(users.as_bytes());
        for _ in 0..USERS_MAX {
            let Some((_, value)) = range.next() else { break };
            let Some(user) = Dentry::decode(value).filter(Dentry::is_dir) else { continue };
            let names = key::prefix(user.inode, Kind::Dentry);
            let mut buckets = self.tree.prefix(names.as_bytes());
            while let Some((found, value)) = buckets.next() {
                let name = &found[names.as_bytes().len()..];
                // Names of other kinds are somebody's own; digits come first but for a few signs.
                let Some(time) = bucket_time(name) else { continue };
                if time.saturating_mul(SECOND) > now || due.len() == max {
                    break;
                }
                let dentry = Dentry::decode(value);
                // What is noted goes as soon as the partition that has it agrees.
                if let Some(dentry) = dentry.filter(|d| self.waiting_inode(user.inode, name) != Some(d.inode)) {
                    due.push(Due { user: user.inode, name: name.to_vec(), dentry });
                }
            }
        }
        Ok(due)
    }

    /// Removes buckets whose time is over, a bounded number; what was in them is reclaimed behind.
    pub(crate) fn expire_trash(&mut self, request: &[u8]) -> Result<()> {
        let request = ExpireTrash::decode(request)?;
        let up_to = if request.up_to_ns == 0 { self.time } else { self.time.min(request.up_to_ns) };
        for Due { user, name, dentry } in self.due_buckets(up_to, BUCKETS_ENTRY)? {
            let (mut directory, mut victim) = match (self.inode(user), self.inode(dentry.inode)) {
                // That takes more than an entry of this one's log.
                (Ok(_), Err(OpError::FOREIGN)) => {
                    self.note_waiting(user, &name, dentry.inode);
                    continue;
                }
                (Err(OpError::LOCKED | OpError::DELEGATED), _) | (_, Err(OpError::LOCKED | OpError::DELEGATED)) => {
                    continue;
                }
                // It goes when they have ended.
                (Ok(_), Ok(_)) if self.has_delegation_below(dentry.inode) => continue,
                (Ok(directory), Ok(victim)) => (directory, victim),
                (Err(error), _) | (_, Err(error)) => return Err(error),
            };
            self.remove_dentry(user, &name);
            directory.size -= 1;
            directory.nlink -= u32::from(victim.is_dir());
            directory.touch_contents(self.time);
            self.update_directory(user, &directory);
            victim.touch(self.time);
            self.remove_expired(dentry.inode, victim)?;
        }
        Ok(())
    }

    fn remove_expired(&mut self, id: u64, mut victim: Inode) -> Result<()> {
        if !victim.is_dir() {
            victim.nlink -= 1;
            return self.put_or_bury(id, &victim);
        }
        (victim.nlink, victim.parent) = (0, 0);
        if victim.size == 0 {
            return self.put_or_bury(id, &victim);
        }
        self.put_inode(id, &victim);
        self.list_dead(id, &victim);
        Ok(())
    }
}
