//! Reading and writing inodes and names: the small steps that operations are made of.
//!
//! Invariant: of an inode that is missing because it is another partition's nobody is told that it is gone. A request
//! comes here by one inode (the directory of a name, else the inode itself), which `live_inode` and `directory` look
//! for: its client has an old map. What it names besides is looked for with [`Namespace::apart`]. Whether an id is
//! foreign is asked only when there is no such inode, so it costs other requests nothing.
use crate::encoding::{Dentry, Inode};
use crate::error::{OpError, Result};
use crate::key;
use crate::message::request::Who;
use crate::namespace::Namespace;
use crate::staged::STAGE_LEVEL;
use cairn_tree::Update;
use cairn_types::name::{NameError, check_name};
use cairn_types::{ErrorCode, InodeId, Layout};

/// Bits of a layout from here on came with [`STAGE_LEVEL`].
const LATER_BITS: u32 = 40;

pub(crate) const NO_NUMBERS: OpError =
    OpError::new(ErrorCode::Overloaded, "the delegation has no numbers of inodes left; get more with its next batch");

impl Inode {
    /// An inode with all times the same and all else zero.
    pub(crate) const fn at(time: u64) -> Inode {
        Inode {
            mode: 0,
            nlink: 0,
            uid: 0,
            gid: 0,
            size: 0,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
            layout: 0,
            generation: 1,
            rdev: 0,
            stored: 0,
            data_version: 0,
            unnamed: false,
            parent: 0,
            acl: false,
            default_acl: false,
            shards: 0,
            sharded: false,
            is_shard: false,
            quota: 0,
            lease: None,
            volatile: None,
        }
    }

    /// A directory with directories in it.
    pub(crate) fn has_subdirectories(&self) -> bool {
        self.is_dir() && self.nlink > 2
    }

    /// Entries of a directory that users see; its shards are none.
    pub(crate) const fn entries(&self) -> u64 {
        self.size.saturating_sub(self.shards as u64)
    }

    /// Attributes changed.
    pub(crate) const fn touch(&mut self, now: u64) {
        self.ctime = now;
        self.generation = self.generation.wrapping_add(1);
    }

    /// Contents changed: data, or the entries of a directory.
    pub(crate) fn touch_contents(&mut self, now: u64) {
        self.mtime = now;
        self.note_written();
        self.touch(now);
    }
}

/// A name that an entry may have.
pub(crate) fn check_entry_name(name: &[u8]) -> Result<()> {
    check_name(name).map_err(|error| match error {
        NameError::TooLong => OpError::new(ErrorCode::NameTooLong, "a name has at most 255 bytes"),
        NameError::Empty => OpError::new(ErrorCode::InvalidArgument, "the name is empty"),
        NameError::Dots => OpError::new(ErrorCode::InvalidArgument, "the name is \".\" or \"..\""),
        NameError::BadByte => OpError::new(ErrorCode::InvalidArgument, "the name contains NUL or '/'"),
    })
}

/// A layout that this version knows and all members understand, in whatever stage.
pub(crate) fn known_layout(bits: u64, level: u16) -> Result<Layout> {
    let understood = Some(bits).filter(|bits| level >= STAGE_LEVEL || bits >> LATER_BITS == 0);
    let layout = understood.and_then(Layout::from_bits);
    layout.filter(|layout| u32::from(level) >= layout.schemes_since_level()).ok_or(OpError::new(
        ErrorCode::BadLayout,
        "not a layout that all members of the partition know: upgrade those of an older version",
    ))
}

/// Feature level from which on ids that are passed over depend on the era.
const SKIP_BY_ERA_LEVEL: u16 = 26;
/// More than a partition gives out in each second of a life, on average.
const INODES_A_SECOND: u64 = 1 << 14;
/// Eras with ids of their own: seconds, twelve days of them.
const ERAS: u64 = 1 << 20;

/// The layout asked for, or the directory's: what is new is in no later stage.
pub(crate) fn layout_or(asked: u64, inherited: u64, level: u16) -> Result<u64> {
    match asked {
        0 => Ok(inherited),
        bits => known_layout(bits, level).map(|layout| layout.fresh().to_bits()),
    }
}

impl Namespace {
    /// Attributes of an inode, dead or alive, for an operation: refused while one across partitions has locked it, or a
    /// session leads it.
    #[inline]
    pub(crate) fn inode(&self, id: u64) -> Result<Inode> {
        if self.txs.is_locked(id) {
            return Err(OpError::LOCKED);
        }
        if self.delegations.hides(id) {
            return Err(self.refuse_delegated(id));
        }
        self.stored_inode(id)
    }

    /// The same for what is no operation: locked or not, led by a session or not.
    #[inline]
    pub(crate) fn stored_inode(&self, id: u64) -> Result<Inode> {
        let value = self.tree.get(key::attributes(id).as_bytes());
        let value = value.ok_or_else(|| match self.is_foreign(id) && !self.txs.is_gone(id) {
            true => OpError::FOREIGN,
            false => OpError::STALE,
        })?;
        let inode = Inode::decode(value).ok_or(OpError::DAMAGED)?;
        Ok(if self.is_view { self.as_seen(id, inode) } else { inode })
    }

    /// Whether another partition has the inode, if there is one. Nobody has 0.
    #[inline]
    pub(crate) const fn is_foreign(&self, id: u64) -> bool {
        // At a snapshot an inode is where it is now.
        let id = if self.is_view || self.has_views() { InodeId(id).now().0 } else { id };
        id != 0 && (id < self.inode_first || id > self.inode_last)
    }

    /// Whether this partition gives out, or has given out, an id.
    #[inline]
    pub(crate) const fn is_own(&self, id: u64) -> bool {
        id != 0 && !self.is_foreign(id)
    }

    /// Whether the volume may have inodes of other partitions.
    #[inline]
    pub const fn is_one_of_several(&self) -> bool {
        self.inode_first > InodeId::ROOT.0 || self.inode_last < u64::MAX
    }

    /// [`Namespace::inode`] of the one by which a request came here.
    #[inline]
    pub(crate) fn routed(&self, id: u64) -> Result<Inode> {
        self.inode(id).map_err(|error| if error == OpError::FOREIGN { OpError::ELSEWHERE } else { error })
    }

    /// The error of looking for an inode that a request names besides `at`, by which it came here.
    #[cold]
    pub(crate) fn apart(&self, error: OpError, at: u64) -> OpError {
        if error == OpError::ELSEWHERE && !self.is_foreign(at) { OpError::FOREIGN } else { error }
    }

    /// Attributes of an inode that has a name, is held, or may be open by a reader.
    #[inline]
    pub(crate) fn live_inode(&self, id: u64) -> Result<Inode> {
        let inode = self.routed(id)?;
        // Of one that another partition has prepared that one has seen that it lives.
        let lives = inode.nlink > 0 || self.is_held(id) || self.is_deferred(id) || self.txs.is_guest(id);
        if lives { Ok(inode) } else { Err(OpError::STALE) }
    }

    /// A directory that is part of the tree.
    #[inline]
    pub(crate) fn directory(&self, id: u64) -> Result<Inode> {
        let inode = self.routed(id)?;
        if !inode.is_dir() {
            return Err(OpError::NOT_DIRECTORY);
        }
        if self.is_removed(&inode) { Err(OpError::REMOVED) } else { Ok(inode) }
    }

    /// True for a directory that was removed, or one above it with all that was in it.
    #[inline]
    pub(crate) fn is_removed(&self, directory: &Inode) -> bool {
        directory.nlink == 0 || (self.counters.dead_directories > 0 && self.is_below_dead(directory))
    }

    /// A directory that `who` may search.
    #[inline]
    pub(crate) fn searchable(&self, id: u64, who: &Who<'_>) -> Result<Inode> {
        let directory = self.directory(id)?;
        self.check_search(id, &directory, who)?;
        Ok(directory)
    }

    /// True when a directory above was removed with all that was in it.
    fn is_below_dead(&self, directory: &Inode) -> bool {
        let mut at = directory.parent;
        while at != InodeId::ROOT.0 {
            match self.stored_inode(at) {
                Ok(above) if above.nlink > 0 => at = above.parent,
                Ok(_) => return true,
                // Not here: it belongs to another partition.
                Err(_) => return false,
            }
        }
        false
    }

    /// True when `above` is `below` or a directory that it is in. An error where the way up leaves the partition.
    pub(crate) fn is_same_or_above(&self, above: u64, below: u64) -> Result<bool> {
        let mut at = below;
        while at != above {
            // Nothing that an item can name is above the top of its delegation.
            if at == InodeId::ROOT.0 || self.delegations.acting() == Some(at) {
                return Ok(false);
            }
            if at == 0 {
                // What is above was removed with all that is in it.
                return Err(OpError::REMOVED);
            }
            // One that another operation has locked may have been moved by it.
            at = self.inode(at)?.parent;
        }
        Ok(true)
    }

    #[inline]
    pub(crate) fn dentry(&self, directory: u64, name: &[u8]) -> Result<Option<Dentry>> {
        match self.tree.get(key::dentry(directory, name).as_bytes()) {
            Some(value) => self.read_dentry(value).map(Some),
            None => Ok(None),
        }
    }

    /// What is stored at a name.
    #[inline]
    pub(crate) fn read_dentry(&self, value: &[u8]) -> Result<Dentry> {
        let dentry = Dentry::decode(value).ok_or(OpError::DAMAGED)?;
        Ok(Dentry { inode: dentry.inode | self.outward, ..dentry })
    }

    #[inline]
    pub(crate) fn put_inode(&mut self, id: u64, inode: &Inode) {
        let value = &mut self.scratch.value;
        value.clear();
        inode.encode(value);
        self.tree.put(key::attributes(id).as_bytes(), value);
        if inode.has_later_scheme() {
            self.list_if_waiting(id, inode);
        }
    }

    /// As [`Namespace::put_inode`] for a directory that is there: changes the value in place.
    #[inline]
    pub(crate) fn update_directory(&mut self, id: u64, directory: &Inode) {
        let done = self.tree.get_mut(key::attributes(id).as_bytes()).is_some_and(|v| directory.overwrite_directory(v));
        assert!(done, "directory {id} was read in this operation");
        if directory.size >= self.huge.limit && directory.may_get_shards() {
            self.huge.note(id);
        }
    }

    /// Sets a name, new or not.
    pub(crate) fn put_dentry(&mut self, directory: u64, name: &[u8], dentry: Dentry) {
        let value = &mut self.scratch.value;
        value.clear();
        dentry.encode(value);
        self.tree.put(key::dentry(directory, name).as_bytes(), value);
    }

    /// Sets a name if there is none; else answers what is there.
    #[inline]
    pub(crate) fn put_new_dentry(&mut self, directory: u64, name: &[u8], dentry: Dentry) -> Result<Option<Dentry>> {
        let mut there = None;
        let (tree, value) = (&mut self.tree, &mut self.scratch.value);
        tree.update(key::dentry(directory, name).as_bytes(), value, |old, value| match old {
            Some(old) => {
                there = Some(Dentry::decode(old));
                Update::Keep
            }
            None => {
                dentry.encode(value);
                Update::Put
            }
        });
        match there {
            None => Ok(None),
            Some(Some(dentry)) => Ok(Some(dentry)),
            Some(None) => Err(OpError::DAMAGED),
        }
    }

    pub(crate) fn remove_dentry(&mut self, directory: u64, name: &[u8]) {
        let was_there = self.tree.remove(key::dentry(directory, name).as_bytes());
        assert!(was_there, "the name was read in this operation");
    }

    /// Extents of a file cover so many bytes more.
    pub(crate) fn gain_stored(&mut self, inode: &mut Inode, gained: u64) {
        inode.stored += gained;
        self.counters.stored_bytes += gained;
        self.count_bytes(inode, gained, 0);
    }

    /// Extents of a file cover so many bytes less.
    pub(crate) fn lose_stored(&mut self, inode: &mut Inode, lost: u64) {
        inode.stored -= lost;
        inode.note_stored();
        self.counters.stored_bytes -= lost;
        self.count_bytes(inode, 0, lost);
    }

    /// The id that the next new inode gets.
    #[inline]
    pub(crate) fn next_inode(&self) -> Result<u64> {
        if let Some(given) = self.txs.new_guest() {
            return Ok(given);
        }
        if let Some(number) = self.delegations.acting() {
            return self.delegations.get(number).and_then(|record| record.ids.next()).ok_or(NO_NUMBERS);
        }
        if self.inode_next == 0 || self.inode_next > self.inode_last {
            return Err(OpError::new(ErrorCode::NoSpace, "the partition has given out all its inode ids"));
        }
        Ok(self.inode_next)
    }

    /// Goes on with ids that this state cannot have given before some of it was forgotten. A backup may be put back
    /// twice: the era, which is a time in seconds, has the second life begin further on than the first one can have
    /// got.
    pub(crate) fn skip_inodes(&mut self, era: u64) {
        let Ok(next) = self.next_inode() else { return };
        // Behind the last one there is none: 0.
        let skipped = (next | u64::from(u32::MAX)).wrapping_add(1);
        let further = skipped.saturating_add((era % ERAS) * INODES_A_SECOND);
        let is_room = skipped != 0 && self.level >= SKIP_BY_ERA_LEVEL && further < self.inode_last;
        self.inode_next = if is_room { further } else { skipped };
    }

    /// Stores a new inode under the id of [`Namespace::next_inode`].
    #[inline]
    pub(crate) fn add_inode(&mut self, id: u64, inode: &Inode) {
        if self.txs.is_guest(id) {
            return self.put_inode(id, inode);
        }
        match self.delegations.acting_record() {
            Some(record) => record.ids.give(id),
            None => {
                assert!(id == self.inode_next, "inode ids are given in order");
                self.inode_next = self.inode_next.wrapping_add(1);
            }
        }
        self.put_inode(id, inode);
        self.counters.inodes += 1;
        self.counters.directories += u64::from(inode.is_dir());
        if inode.is_regular() {
            self.counters.file_bytes += inode.size;
        }
        self.counters.stored_bytes += inode.stored;
        self.count_inode(inode);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A member of an earlier build could not decode what is stored, and would stop.
    #[test]
    fn later_schemes_wait_for_their_level() {
        let bits = |layout: &str| layout.parse::<Layout>().expect("a layout").to_bits();
        for layout in ["rs-8-2", "r3>rs-10-2", "r3>rs-6-2@2h"] {
            assert_eq!(known_layout(bits(layout), 30).expect_err(layout).code, ErrorCode::BadLayout);
            assert!(known_layout(bits(layout), 31).is_ok(), "{layout}");
        }
        assert!(known_layout(bits("rs-4-2"), 0).is_ok() && known_layout(bits("r3>rs-6-3@2h"), 12).is_ok());
    }
}
