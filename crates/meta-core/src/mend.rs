//! Mending what a check found ([`crate::Fsck`]), as an entry of the log.
//!
//! Totals and quotas are changed by the difference between what was counted and what was kept in the version that was
//! checked: operations since then have changed both alike, so the difference is still right. An inode that nothing
//! leads to gets the name `#inode` in `/lost+found`, which is made if it is not there (mode 0700, root's).
//!
//! The partition of the root has `/lost+found`. One of another partition is made ready for the name there first
//! (`ADOPT_ELSEWHERE`), then gets it (`FOUND`). What ends in between leaves it as it was to the next check: without a
//! name. Who gave it another name meanwhile has added that to its number of links.
//!
//! What an operation across partitions has locked is left to the next check, and so is what another partition may have
//! the name of.
use crate::counters::Counters;
use crate::encoding::{Dentry, Inode, NodeType};
use crate::error::Result;
use crate::fsck::Mend;
use crate::message::request;
use crate::namespace::Namespace;
use cairn_types::InodeId;
use cairn_types::shard::is_shard_name;

/// Where inodes without a name go.
pub const LOST_AND_FOUND: &[u8] = b"lost+found";
/// Items of one entry of the log.
pub const MEND_ITEMS_MAX: usize = 1024;

/// Kinds of items on the wire.
const COUNTERS: u32 = 1;
const QUOTA: u32 = 2;
const ADOPT: u32 = 3;
const LINKS: u32 = 4;
/// Of feature level 6.
const ADOPT_UNCHANGED: u32 = 5;
const NAME: u32 = 6;
/// The feature level from which on members understand all kinds up to here.
pub const MEND_ALL_LEVEL: u32 = 6;
/// Of feature level 25.
const PLACE: u32 = 7;
const ADOPT_ELSEWHERE: u32 = 8;
const FOUND: u32 = 9;
/// The feature level from which on inodes of all partitions get names in `lost+found`.
pub const MEND_ELSEWHERE_LEVEL: u32 = 25;

/// An item as it travels: kind, inode, numbers.
pub fn mend_item(inode: u64, mend: Mend) -> (u32, u64, Vec<i64>) {
    match mend {
        Mend::Counters(change) => (COUNTERS, 0, change.to_vec()),
        Mend::Quota { bytes, inodes } => (QUOTA, inode, vec![bytes, inodes]),
        Mend::Adopt => (ADOPT, inode, Vec::new()),
        Mend::Links(change) => (LINKS, inode, vec![i64::from(change)]),
        Mend::AdoptUnchanged { generation } => (ADOPT_UNCHANGED, inode, vec![generation as i64]),
        // Needs the directory and the name: `mend_name`.
        Mend::Name => (0, inode, Vec::new()),
    }
}

/// The item that removes a name of an inode that is not there: kind, directory, numbers. The name comes with it.
pub fn mend_name(directory: u64, inode: u64) -> (u32, u64, Vec<i64>) {
    (NAME, directory, vec![inode as i64])
}

/// The item that makes `lost+found`.
pub const fn mend_place() -> (u32, u64, Vec<i64>) {
    (PLACE, 0, Vec::new())
}

/// The item that makes an inode ready for a name in a directory of the partition of the root.
pub fn mend_elsewhere(inode: u64, generation: u64, place: u64) -> (u32, u64, Vec<i64>) {
    (ADOPT_ELSEWHERE, inode, vec![generation as i64, place as i64])
}

/// The item that gives it that name, which comes with it, at the partition of the root.
pub fn mend_found(place: u64, inode: u64, d_type: u32) -> (u32, u64, Vec<i64>) {
    (FOUND, place, vec![inode as i64, i64::from(d_type)])
}

/// The name of what was found.
pub fn found_name(inode: u64) -> Vec<u8> {
    format!("#{inode}").into_bytes()
}

fn changed(kept: u64, change: i64) -> u64 {
    kept.saturating_add_signed(change)
}

impl Namespace {
    /// What is not there any more, or is right by now, is passed over.
    pub(crate) fn mend(&mut self, bytes: &[u8]) -> Result<()> {
        let mut items = Vec::new();
        request::MendNamespace::decode(bytes)?.items.visit(|bytes| {
            let item = request::MendItem::decode(bytes)?;
            let mut numbers = Vec::new();
            item.numbers.visit(|number| {
                numbers.push(number as i64);
                numbers.len() < 16
            })?;
            if items.len() < MEND_ITEMS_MAX {
                items.push((item.kind, item.inode, numbers, item.name.to_vec()));
            }
            Ok(())
        })?;
        for (kind, inode, numbers, name) in items {
            match (kind, numbers.as_slice()) {
                (COUNTERS, change) => self.mend_counters(change),
                (QUOTA, [bytes, inodes]) => self.mend_quota(inode, *bytes, *inodes)?,
                (ADOPT, []) => self.adopt(inode)?,
                (LINKS, [change]) => self.mend_links(inode, *change),
                (ADOPT_UNCHANGED, [generation]) => self.adopt_unchanged(inode, *generation as u64)?,
                (NAME, [stray]) => self.mend_name(inode, &name, *stray as u64)?,
                (PLACE, []) => drop(self.lost_and_found()?),
                (ADOPT_ELSEWHERE, [generation, place]) => {
                    self.adopt_elsewhere(inode, *generation as u64, *place as u64)
                }
                (FOUND, [found, d_type]) => self.name_found(inode, &name, *found as u64, *d_type)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn mend_counters(&mut self, change: &[i64]) {
        let Ok(change) = <[i64; 9]>::try_from(change) else { return };
        let kept = self.counters.to_array();
        self.counters = Counters::from_array(std::array::from_fn(|at| changed(kept[at], change[at])));
    }

    fn mend_quota(&mut self, directory: u64, bytes: i64, inodes: i64) -> Result<()> {
        if let Some(mut record) = self.quota_record(directory)? {
            (record.bytes, record.inodes) = (changed(record.bytes, bytes), changed(record.inodes, inodes));
            self.put_quota(directory, &record);
        }
        Ok(())
    }

    fn mend_links(&mut self, id: u64, change: i64) {
        // The next check finds it again.
        if let Ok(mut inode) = self.inode(id)
            && let Ok(links) = u32::try_from(i64::from(inode.nlink) + change)
            && links > 0
        {
            inode.nlink = links;
            inode.touch(self.time);
            self.put_inode(id, &inode);
        }
    }

    /// Removes a name of an inode that no partition has. Without one of its shards a directory would look for names in
    /// the wrong ones.
    fn mend_name(&mut self, directory: u64, name: &[u8], stray: u64) -> Result<()> {
        if is_shard_name(name) {
            return Ok(());
        }
        let Ok(mut above) = self.inode(directory) else { return Ok(()) };
        let Some(dentry) = self.dentry(directory, name)?.filter(|there| there.inode == stray) else { return Ok(()) };
        if self.is_own(stray) && self.stored_inode(stray).is_ok() || self.txs.is_locked(stray) {
            return Ok(());
        }
        self.remove_dentry(directory, name);
        above.size = above.size.saturating_sub(1);
        if dentry.is_dir() {
            above.nlink = above.nlink.saturating_sub(1).max(2);
        }
        above.touch_contents(self.time);
        self.update_directory(directory, &above);
        Ok(())
    }

    /// Gives an inode without names one.
    fn adopt(&mut self, id: u64) -> Result<()> {
        match self.inode(id) {
            Ok(inode) if !self.may_be_named_elsewhere(&inode) => self.adopt_inode(id, inode),
            _ => Ok(()),
        }
    }

    /// The same for one of which all partitions have said that they have no name, when it was as it is now: what gives
    /// it a name changes it.
    fn adopt_unchanged(&mut self, id: u64, generation: u64) -> Result<()> {
        match self.inode(id) {
            Ok(inode) if inode.generation == generation => self.adopt_inode(id, inode),
            _ => Ok(()),
        }
    }

    /// As `adopt_unchanged`, for a name in another partition.
    fn adopt_elsewhere(&mut self, id: u64, generation: u64, place: u64) {
        let Ok(mut inode) = self.inode(id) else { return };
        if inode.generation != generation || !self.is_foreign(place) || self.is_gone_or_going(id) {
            return;
        }
        if inode.is_dir() {
            (inode.parent, inode.is_shard) = (place, false);
            inode.nlink = inode.nlink.max(2);
        } else {
            (inode.nlink, inode.unnamed) = (1, false);
        }
        // What a quota of the root counts is not in other partitions.
        if inode.quota != 0 && self.check_not_counting().is_ok() {
            self.move_to_quota(id, &mut inode, 0);
        }
        inode.touch(self.time);
        self.put_inode(id, &inode);
    }

    /// The name of what another partition has made ready for it.
    fn name_found(&mut self, place: u64, name: &[u8], id: u64, d_type: i64) -> Result<()> {
        let Ok(mut directory) = self.inode(place) else { return Ok(()) };
        let Ok(d_type) = d_type.try_into() else { return Ok(()) };
        let fits = directory.is_dir() && !directory.sharded && self.is_foreign(id) && *name == found_name(id);
        if !fits || self.dentry(place, name)?.is_some() {
            return Ok(());
        }
        let dentry = Dentry { inode: id, d_type };
        directory.nlink += u32::from(dentry.is_dir());
        self.put_dentry(place, name, dentry);
        directory.size += 1;
        directory.touch_contents(self.time);
        self.update_directory(place, &directory);
        Ok(())
    }

    /// `lost+found`, if this partition has it.
    pub fn lost_and_found_place(&self) -> Option<u64> {
        let dentry = self.dentry(InodeId::ROOT.0, LOST_AND_FOUND).ok()??;
        Some(dentry.inode).filter(|place| dentry.is_dir() && self.is_own(*place))
    }

    /// Type of the entry for an inode that was made ready for a name in that directory; `None`: it is not.
    pub fn is_ready_for(&self, id: u64, place: u64) -> Option<u32> {
        let inode = self.inode(id).ok()?;
        let fits = if inode.is_dir() { inode.parent == place } else { inode.nlink > 0 };
        fits.then(|| inode.d_type().into())
    }

    fn adopt_inode(&mut self, id: u64, mut inode: Inode) -> Result<()> {
        let name = found_name(id);
        if id == InodeId::ROOT.0 || self.is_gone_or_going(id) {
            return Ok(());
        }
        let Some(place) = self.lost_and_found()? else { return Ok(()) };
        if self.dentry(place, &name)?.is_some() {
            return Ok(());
        }
        let Ok(mut directory) = self.inode(place) else { return Ok(()) };
        if inode.is_dir() {
            (inode.parent, inode.is_shard) = (place, false);
            inode.nlink = inode.nlink.max(2);
            directory.nlink += 1;
        } else {
            inode.nlink = 1;
            inode.unnamed = false;
        }
        if inode.quota != directory.quota && self.check_not_counting().is_ok() {
            self.move_to_quota(id, &mut inode, directory.quota);
        }
        inode.touch(self.time);
        self.put_inode(id, &inode);
        self.put_dentry(place, &name, Dentry { inode: id, d_type: inode.d_type() });
        directory.size += 1;
        directory.touch_contents(self.time);
        self.update_directory(place, &directory);
        Ok(())
    }

    /// Whether another partition may have the name, or one of them.
    fn may_be_named_elsewhere(&self, inode: &Inode) -> bool {
        let elsewhere = !inode.is_dir() || self.is_foreign(inode.parent);
        self.is_one_of_several() && inode.nlink > 0 && elsewhere
    }

    fn is_gone_or_going(&self, id: u64) -> bool {
        self.is_listed_dead(id) || self.is_deferred(id)
    }

    /// The directory `/lost+found`; `None` if that name is of something else, or no inode is left for it.
    fn lost_and_found(&mut self) -> Result<Option<u64>> {
        if let Some(dentry) = self.dentry(InodeId::ROOT.0, LOST_AND_FOUND)? {
            return Ok(dentry.is_dir().then_some(dentry.inode));
        }
        let (Ok(mut root), Ok(id)) = (self.inode(InodeId::ROOT.0), self.next_inode()) else { return Ok(None) };
        let inode = Inode {
            mode: NodeType::Directory as u16 | 0o700,
            nlink: 2,
            layout: root.layout,
            parent: InodeId::ROOT.0,
            quota: root.quota,
            ..Inode::at(self.time)
        };
        self.put_dentry(InodeId::ROOT.0, LOST_AND_FOUND, Dentry { inode: id, d_type: inode.d_type() });
        self.add_inode(id, &inode);
        root.size += 1;
        root.nlink += 1;
        root.touch_contents(self.time);
        self.update_directory(InodeId::ROOT.0, &root);
        Ok(Some(id))
    }
}
