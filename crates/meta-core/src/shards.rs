//! Sharded directories: one directory's names in several partitions.
//!
//! A shard is a directory that its directory has under a name that begins with a slash, so nobody else makes, sees or
//! removes it ([`cairn_types::shard`]). All that holds of directories in other partitions holds of it: who names it,
//! locks, removed trees, checks. A directory gets one shard after the other (`AddShard`); from the last one on, a name
//! that it does not have belongs to the shard that [`shard_of`](cairn_types::shard::shard_of) says. What it has stays
//! until it is removed or renamed. So of a name that it does not have any more it never gets another one, and who has
//! heard that it is not there goes on at the shard without a lock.
//!
//! Operations by a name that is not there answer `Sharded`, and clients repeat them at the shard. What is said of the
//! directory itself is the directory's: owner, mode, layout and access control lists are copied to its shards in the
//! same step, times and counts are put together by who asks.
//!
//! Invariants ([`Namespace::check_invariants`]): a directory has as many entries with such names as it notes shards,
//! each a directory; what is a shard and has its parent here has such a name there. The root, the trash and shards are
//! never sharded, and what a quota counts is not when it gets the first shard.
use crate::encoding::{Dentry, Inode};
use crate::error::{OpError, Result};
use crate::inode_table::check_entry_name;
use crate::key;
use crate::message::request;
use crate::namespace::Namespace;
use cairn_types::shard::{SHARDS_MAX, is_shard_name, shard_name};
use cairn_types::{ErrorCode, InodeId};
use cairn_wire::meta;
use std::collections::BTreeSet;

/// Entries from which on a directory is huge, as long as nobody says otherwise.
pub const HUGE: u64 = 1_000_000;
/// Huge directories that are remembered at a time.
const HUGE_MAX: usize = 64;

/// Directories that have grown beyond a limit since somebody asked. No state.
#[derive(Debug)]
pub(crate) struct Huge {
    pub limit: u64,
    seen: BTreeSet<u64>,
}

impl Default for Huge {
    fn default() -> Self {
        Self { limit: HUGE, seen: BTreeSet::new() }
    }
}

impl Huge {
    #[cold]
    pub fn note(&mut self, directory: u64) {
        if self.seen.len() < HUGE_MAX {
            self.seen.insert(directory);
        }
    }
}

/// A name that an entry has, be it a shard's.
pub(crate) fn is_stored_name(name: &[u8]) -> bool {
    is_shard_name(name) || check_entry_name(name).is_ok()
}

impl Inode {
    /// Whether it is a directory that could have more shards, as far as can be seen by itself.
    #[inline]
    pub(crate) const fn may_get_shards(&self) -> bool {
        !self.sharded && !self.is_shard && self.quota == 0 && self.nlink > 0
    }

    /// What a shard has of its directory: all that says who may do what, and what new entries inherit.
    pub(crate) const fn take_from_sharded(&mut self, directory: &Inode) {
        (self.mode, self.uid, self.gid, self.layout) = (directory.mode, directory.uid, directory.gid, directory.layout);
        (self.acl, self.default_acl) = (directory.acl, directory.default_acl);
    }
}

impl Namespace {
    /// What is at a name of a directory; of one whose new names are in shards that is not known here.
    #[inline]
    pub(crate) fn entry(&self, id: u64, directory: &Inode, name: &[u8]) -> Result<Option<Dentry>> {
        match self.dentry(id, name)? {
            None if directory.sharded => Err(OpError::SHARDED),
            there => Ok(there),
        }
    }

    /// The directory itself, or the one that it is a shard of.
    pub(crate) fn above_shards(&self, id: u64) -> u64 {
        match self.stored_inode(id) {
            Ok(inode) if inode.is_dir() && inode.is_shard => inode.parent,
            _ => id,
        }
    }

    /// The shards of a directory with their names; refused while they were not prepared.
    fn shards(&self, id: u64, directory: &Inode) -> Result<Vec<([u8; 3], u64)>> {
        let mut shards = Vec::new();
        for name in (0..directory.shards).map(shard_name) {
            let there = self.dentry(id, &name)?.ok_or(OpError::FOREIGN)?;
            shards.push((name, there.inode));
        }
        Ok(shards)
    }

    /// For a listing of them.
    pub(crate) fn list_shards(&self, id: u64, directory: &Inode) -> Vec<([u8; 3], Dentry)> {
        let there = |name: [u8; 3]| Some((name, self.dentry(id, &name).ok().flatten()?));
        (0..directory.shards).map(shard_name).filter_map(there).collect()
    }

    /// Refuses to remove a directory that has entries, in itself or in a shard.
    pub(crate) fn check_empty(&self, id: u64, directory: &Inode) -> Result<()> {
        if directory.entries() > 0 {
            return Err(OpError::NOT_EMPTY);
        }
        for (_, shard) in self.shards(id, directory)? {
            match self.inode(shard) {
                Ok(shard) if shard.size > 0 => return Err(OpError::NOT_EMPTY),
                Ok(_) | Err(OpError::STALE) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Removes the empty shards of a directory that is removed itself.
    pub(crate) fn remove_shards(&mut self, id: u64, directory: &mut Inode, now: u64) -> Result<()> {
        for (name, shard) in self.shards(id, directory)? {
            self.remove_dentry(id, &name);
            directory.size -= 1;
            if let Ok(mut inode) = self.inode(shard) {
                (inode.nlink, inode.parent) = (0, 0);
                inode.touch(now);
                self.put_or_bury(shard, &inode)?;
            }
        }
        (directory.shards, directory.sharded) = (0, false);
        Ok(())
    }

    /// Refuses a change of a directory while its shards cannot take part in it.
    pub(crate) fn check_shards(&self, id: u64, directory: &Inode) -> Result<()> {
        if directory.shards == 0 {
            return Ok(());
        }
        self.shards(id, directory)?.into_iter().try_for_each(|(_, shard)| self.inode(shard).map(|_| ()))
    }

    /// Has its shards follow a directory whose owner, mode, layout or access control lists were changed; with `times`
    /// also its time of change.
    pub(crate) fn change_shards(&mut self, id: u64, directory: &Inode, times: bool) -> Result<()> {
        for (_, shard) in self.shards(id, directory)? {
            let mut inode = self.inode(shard)?;
            inode.take_from_sharded(directory);
            if times {
                inode.mtime = directory.mtime;
            }
            inode.touch(directory.ctime);
            self.put_inode(shard, &inode);
            self.copy_acls(id, shard);
        }
        Ok(())
    }

    fn copy_acls(&mut self, from: u64, to: u64) {
        let (acls, inode) = (self.tx_xattrs(from), to);
        self.take_acls(&meta::TxInode { inode, attributes: Vec::new(), xattrs: acls });
    }

    /// An inode has these access control lists, and no others.
    pub(crate) fn take_acls(&mut self, of: &meta::TxInode) {
        for old in self.tx_xattrs(of.inode) {
            self.tree.remove(key::xattr(of.inode, &old.name).as_bytes());
        }
        for new in of.xattrs.iter().filter(|new| crate::acl::is_acl(&new.name)) {
            self.tree.put(key::xattr(of.inode, &new.name).as_bytes(), &new.value);
        }
    }

    /// Makes a shard of a directory, the next one. Repeated it does nothing.
    pub(crate) fn add_shard(&mut self, bytes: &[u8]) -> Result<()> {
        let request = request::AddShard::decode(bytes)?;
        let id = request.directory;
        let mut directory = self.directory(id)?;
        let count = u8::try_from(request.count).ok().filter(|count| (1..=SHARDS_MAX).contains(count));
        let count = count.filter(|count| request.index < u32::from(*count)).ok_or(OpError::BAD_REQUEST)?;
        if directory.sharded || request.index != u32::from(directory.shards) {
            return Ok(());
        }
        self.check_may_be_sharded(id, &directory)?;
        let shard = self.next_inode()?;
        let name = shard_name(directory.shards);
        let mut inode = Inode { nlink: 2, parent: id, is_shard: true, ..Inode::at(directory.mtime) };
        inode.take_from_sharded(&directory);
        self.put_dentry(id, &name, Dentry { inode: shard, d_type: inode.d_type() });
        self.add_inode(shard, &inode);
        self.copy_acls(id, shard);
        directory.size += 1;
        directory.nlink += 1;
        directory.shards += 1;
        directory.sharded = directory.shards == count;
        directory.generation = directory.generation.wrapping_add(1);
        self.update_directory(id, &directory);
        Ok(())
    }

    fn check_may_be_sharded(&self, id: u64, directory: &Inode) -> Result<()> {
        let not = |text| Err(OpError::new(ErrorCode::NotSupported, text));
        if !self.is_one_of_several() {
            return not(
                "a directory is sharded over the partitions of its volume, which has one; cairn admin partition split makes more",
            );
        }
        if id == InodeId::ROOT.0 || self.is_the_trash(id) {
            return not("the root of a volume and the trash are not sharded; choose a directory below");
        }
        if directory.is_shard {
            return not("a shard of a directory is not sharded itself; choose the directory");
        }
        if self.may_come_to_a_quota() {
            return self.check_not_counting();
        }
        if directory.quota != 0 {
            return not(
                "what a quota counts stays in one partition, so the directory is not sharded; remove the quota first",
            );
        }
        Ok(())
    }
}

/// For the server around it.
impl Namespace {
    /// Directories with at least so many entries are told by [`huge_directories`](Self::huge_directories) from now on,
    /// when they change.
    pub fn set_huge_limit(&mut self, entries: u64) {
        self.huge.limit = entries;
    }

    /// Those that changed since the last call.
    pub fn huge_directories(&mut self) -> BTreeSet<u64> {
        std::mem::take(&mut self.huge.seen)
    }

    /// How many shards a directory has, and whether these are all. An error says why it gets none.
    pub fn shards_of(&self, id: u64) -> std::result::Result<(u8, bool), cairn_wire::error::WireError> {
        let shards = self.directory(id).and_then(|directory| {
            if !directory.sharded {
                self.check_may_be_sharded(id, &directory)?;
            }
            Ok((directory.shards, directory.sharded))
        });
        shards.map_err(OpError::to_wire)
    }
}
