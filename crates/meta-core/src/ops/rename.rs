//! Rename: moves a name, replacing, exchanging or refusing what is at the other end. One step, as all operations.
//!
//! Checks in the order of Linux (`do_renameat2`, `vfs_rename`): flags, both directories, both entries, no-replace,
//! ancestry, permissions and sticky bits, types, links, emptiness. Two names of one file: nothing is done.
use crate::encoding::{Dentry, Inode};
use crate::error::{OpError, Result};
use crate::inode_table::check_entry_name;
use crate::limits::LINKS_MAX;
use crate::message::request;
use crate::namespace::{Context, Namespace};
use crate::permission::WRITE;
use crate::view::check_new_name;
use cairn_types::ErrorCode;

const NO_REPLACE: u32 = 1;
const EXCHANGE: u32 = 2;

/// One side of a rename: a directory and the entry in it.
struct Side<'a> {
    parent: u64,
    name: &'a [u8],
    directory: Inode,
    entry: Option<(Dentry, Inode)>,
}

impl Side<'_> {
    /// The directory that users see: that of a shard.
    fn whole(&self) -> u64 {
        if self.directory.is_shard { self.directory.parent } else { self.parent }
    }
}

impl Namespace {
    pub(crate) fn rename(&mut self, context: &Context<'_>, bytes: &[u8]) -> Result<()> {
        let request = request::Rename::decode(bytes)?;
        if request.flags > EXCHANGE {
            return Err(OpError::new(ErrorCode::InvalidArgument, "a rename has one of the flags no-replace, exchange"));
        }
        check_entry_name(request.name)?;
        check_new_name(self, request.new_name)?;
        let old_directory = self.searchable(request.parent, &context.who)?;
        let new_directory = self.searchable(request.new_parent, &context.who);
        let new_directory = new_directory.map_err(|error| self.apart(error, request.parent))?;
        let old = self.side(request.parent, request.name, old_directory)?;
        let new = self.side(request.new_parent, request.new_name, new_directory)?;
        let (dentry, inode) = old.entry.ok_or(OpError::NOT_FOUND)?;
        if request.flags == NO_REPLACE && new.entry.is_some() {
            return Err(OpError::EXISTS);
        }
        if request.flags == EXCHANGE && new.entry.is_none() {
            return Err(OpError::NOT_FOUND);
        }
        self.check_ancestry(&old, &new, request.flags)?;
        if new.entry.is_some_and(|(there, _)| there.inode == dentry.inode) {
            return Ok(());
        }
        self.check_rename(&old, (dentry.inode, &inode), &new, request.flags, context)?;
        let swaps = new.entry.is_some_and(|(_, other)| request.flags == EXCHANGE && other.volatile.is_some());
        if new.entry.is_some() && inode.volatile.is_some() || swaps {
            // Where the old file was there would be none after a crash.
            return Err(OpError::VOLATILE);
        }
        self.check_quota_move(dentry.inode, &inode, new.directory.quota)?;
        if let Some((there, other)) = new.entry.filter(|_| request.flags == EXCHANGE) {
            self.check_quota_move(there.inode, &other, old.directory.quota)?;
        }
        match new.entry {
            Some(there) if request.flags == EXCHANGE => self.exchange(&old, (dentry, inode), &new, there, context),
            _ => self.move_entry(&old, (dentry, inode), &new, context)?,
        }
        Ok(())
    }

    fn side<'a>(&self, parent: u64, name: &'a [u8], directory: Inode) -> Result<Side<'a>> {
        let entry = match self.entry(parent, &directory, name)? {
            Some(dentry) => Some((dentry, self.inode(dentry.inode)?)),
            None => None,
        };
        if entry.is_some_and(|(_, inode)| inode.is_dir() && inode.nlink == 0) {
            // The directory was prepared, then removed with what is above it, then what is in it was prepared.
            return Err(OpError::REMOVED);
        }
        Ok(Side { parent, name, directory, entry })
    }

    /// Nothing is moved below itself, in either direction.
    fn check_ancestry(&self, old: &Side<'_>, new: &Side<'_>, flags: u32) -> Result<()> {
        if old.whole() == new.whole() {
            return Ok(());
        }
        const INTO_ITSELF: OpError =
            OpError::new(ErrorCode::InvalidArgument, "a directory cannot be moved below itself");
        if let Some((dentry, inode)) = &old.entry
            && self.would_be_below(dentry.inode, inode, new.parent, true)?
        {
            return Err(INTO_ITSELF);
        }
        if let Some((there, inode)) = &new.entry
            && self.would_be_below(there.inode, inode, old.parent, flags == EXCHANGE)?
        {
            return Err(if flags == EXCHANGE { INTO_ITSELF } else { OpError::NOT_EMPTY });
        }
        Ok(())
    }

    /// Whether what is moved to `parent`, or gives way to something of it, is it or is above it.
    fn would_be_below(&self, id: u64, inode: &Inode, parent: u64, is_moved: bool) -> Result<bool> {
        if !inode.is_dir() || !inode.has_subdirectories() {
            return Ok(inode.is_dir() && id == parent);
        }
        if self.is_one_of_several() && !is_moved {
            // It is not empty, which is said later on.
            return Ok(false);
        }
        self.check_move(inode)?;
        self.is_same_or_above(id, parent)
    }

    fn move_entry(
        &mut self,
        old: &Side<'_>,
        (dentry, mut inode): (Dentry, Inode),
        new: &Side<'_>,
        context: &Context<'_>,
    ) -> Result<()> {
        let is_dir = u32::from(inode.is_dir());
        let (mut from, mut to) = (old.directory, new.directory);
        self.remove_dentry(old.parent, old.name);
        self.put_dentry(new.parent, new.name, dentry);
        inode.touch(context.now);
        if inode.is_dir() {
            inode.parent = new.parent;
        }
        self.move_to_quota(dentry.inode, &mut inode, new.directory.quota);
        self.put_inode(dentry.inode, &inode);
        from.size -= 1;
        from.nlink -= is_dir;
        if old.parent == new.parent {
            to = from;
        }
        to.size += 1;
        to.nlink += is_dir;
        if let Some((there, mut victim)) = new.entry {
            to.size -= 1;
            to.nlink -= u32::from(victim.is_dir());
            victim.touch(context.now);
            if victim.is_dir() {
                self.remove_shards(there.inode, &mut victim, context.now)?;
            }
            victim.nlink = if victim.is_dir() { 0 } else { victim.nlink - 1 };
            victim.parent = 0;
            self.put_or_bury(there.inode, &victim)?;
        }
        self.update_parents(old.parent, from, new.parent, to, context);
        Ok(())
    }

    fn exchange(
        &mut self,
        old: &Side<'_>,
        (dentry, mut inode): (Dentry, Inode),
        new: &Side<'_>,
        (there, mut other): (Dentry, Inode),
        context: &Context<'_>,
    ) {
        let (mut from, mut to) = (old.directory, new.directory);
        self.put_dentry(old.parent, old.name, there);
        self.put_dentry(new.parent, new.name, dentry);
        inode.touch(context.now);
        other.touch(context.now);
        if inode.is_dir() {
            inode.parent = new.parent;
        }
        if other.is_dir() {
            other.parent = old.parent;
        }
        self.move_to_quota(dentry.inode, &mut inode, new.directory.quota);
        self.put_inode(dentry.inode, &inode);
        self.move_to_quota(there.inode, &mut other, old.directory.quota);
        self.put_inode(there.inode, &other);
        if old.parent != new.parent {
            let (leaves, comes) = (u32::from(inode.is_dir()), u32::from(other.is_dir()));
            from.nlink = from.nlink - leaves + comes;
            to.nlink = to.nlink - comes + leaves;
        }
        self.update_parents(old.parent, from, new.parent, to, context);
    }

    fn update_parents(&mut self, old: u64, mut from: Inode, new: u64, mut to: Inode, context: &Context<'_>) {
        to.touch_contents(context.now);
        self.update_directory(new, &to);
        if old != new {
            from.touch_contents(context.now);
            self.update_directory(old, &from);
        }
    }
}

impl Namespace {
    /// Permissions, types, links and emptiness.
    fn check_rename(
        &self,
        old: &Side<'_>,
        (id, inode): (u64, &Inode),
        new: &Side<'_>,
        flags: u32,
        context: &Context<'_>,
    ) -> Result<()> {
        let who = &context.who;
        let exchange = flags == EXCHANGE;
        self.check_delete(old.parent, &old.directory, inode, who)?;
        let other = new.entry.as_ref().map(|(_, other)| other);
        match other {
            None => self.check_change(new.parent, &new.directory, who)?,
            Some(other) => {
                self.check_delete(new.parent, &new.directory, other, who)?;
                if !exchange && inode.is_dir() && !other.is_dir() {
                    return Err(OpError::NOT_DIRECTORY);
                }
                if !exchange && !inode.is_dir() && other.is_dir() {
                    return Err(OpError::IS_DIRECTORY);
                }
            }
        }
        let other_is_dir = other.is_some_and(Inode::is_dir);
        if old.whole() != new.whole() {
            // A directory that changes its parent is itself changed: its `..`.
            let blocked = |id, moved: &Inode| moved.is_dir() && !self.allows(id, moved, who, WRITE);
            let other_blocked = new.entry.as_ref().is_some_and(|(there, other)| blocked(there.inode, other));
            if blocked(id, inode) || (exchange && other_blocked) {
                return Err(OpError::new(
                    ErrorCode::PermissionDenied,
                    "a directory that is moved to another one needs w permission itself",
                ));
            }
            let grows = |directory: &Inode, comes: bool, leaves: bool| comes && !leaves && directory.nlink >= LINKS_MAX;
            if grows(&new.directory, inode.is_dir(), other_is_dir)
                || (exchange && grows(&old.directory, other_is_dir, inode.is_dir()))
            {
                return Err(OpError::TOO_MANY_LINKS);
            }
        }
        if let Some((there, other)) = new.entry.as_ref().filter(|(_, other)| !exchange && other.is_dir()) {
            self.check_empty(there.inode, other)?;
        }
        Ok(())
    }
}
