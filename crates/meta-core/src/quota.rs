//! Quotas: limits on the bytes that extents cover and on inodes, of directories (one inside another) and of the volume.
//!
//! Every inode is counted by one quota, the innermost around it, and by those around that. It notes which one
//! ([`Inode::quota`]); a directory notes which one counts what is made in it, which is the directory itself if it has a
//! quota. A file with names in several directories is counted once, where it was made or moved to last.
//!
//! When a quota comes or goes, or a directory moves to another one, the directory notes the new one at once and is
//! listed to be counted over: `ReclaimBatch` moves its entries, and lists the directories among them. So no operation
//! counts a tree; until that is done the use is that of what was counted over (`counting`), and nothing else may begin
//! that needs counting over (`Overloaded`: it comes again). So which quota is around which is never more than one step
//! behind, and never a circle.
//!
//! Invariants ([`Namespace::check_invariants`]): the use of a quota is the sum over the inodes that are counted by it;
//! a quota that was removed stays until nothing is counted by it; while nothing is listed to be counted over, what has
//! one name is counted by the quota of its directory. What is deleted counts until it is taken apart. Volumes without
//! quotas pay a comparison. Not here: the check of limits before changes (`ops`), the leader's batches (`dead`).
use crate::dead::Budget;
use crate::encoding::{Dentry, Inode, QuotaRecord};
use crate::error::{OpError, Result};
use crate::key::{self, Kind};
use crate::namespace::Namespace;
use crate::parts_elsewhere::{LOOKS, Parts};
use cairn_types::ErrorCode;

/// Feature level from which on a quota takes in only what it counts all of, and lets go of what moves to another
/// partition.
pub(crate) const TREE_LEVEL: u16 = 24;

const TAG: u8 = 0x10;

/// The last name of a directory that was counted over, in the value of its entry in the list.
pub(crate) fn decode_recount(value: &[u8]) -> Option<&[u8]> {
    value.strip_prefix(&[TAG]).filter(|name| name.len() <= 255)
}

const OF_DIRECTORY: [&str; 2] = [
    "the quota of a directory around it on bytes is used up; remove files or ask for more",
    "the quota of a directory around it on the number of files is used up; remove files or ask for more",
];

impl QuotaRecord {
    /// `texts`: what to say when there are too many bytes, or too many files.
    fn allows(&self, bytes: u64, inodes: u64, texts: [&'static str; 2]) -> Result<()> {
        if self.removed {
            return Ok(());
        }
        let over = |used: u64, more: u64, max: u64| max > 0 && more > 0 && used.saturating_add(more) > max;
        if over(self.bytes, bytes, self.bytes_max) {
            return Err(OpError::new(ErrorCode::QuotaExceeded, texts[0]));
        }
        if over(self.inodes, inodes, self.inodes_max) {
            return Err(OpError::new(ErrorCode::QuotaExceeded, texts[1]));
        }
        Ok(())
    }
}

/// A change of what a quota counts; `references` only of the innermost one.
#[derive(Clone, Copy, Default)]
struct Share {
    bytes: u64,
    inodes: u64,
    references: u64,
}

impl Namespace {
    /// Whether anything has to be looked at for what is counted by `quota`.
    #[inline]
    pub(crate) fn has_quota(&self, quota: u64) -> bool {
        quota != 0 || self.volume_quota.is_some() || self.lending.bound.is_some()
    }

    pub(crate) fn quota_record(&self, quota: u64) -> Result<Option<QuotaRecord>> {
        match self.tree.get(key::quota(quota).as_bytes()) {
            Some(value) => QuotaRecord::decode(value).map(Some).ok_or(OpError::DAMAGED),
            None => Ok(None),
        }
    }

    fn known_quota(&self, quota: u64) -> QuotaRecord {
        let record = self.quota_record(quota).ok().flatten();
        record.expect("an inode is counted by a quota that exists, checked when it was noted")
    }

    /// The volume's limits with its use in this partition.
    pub(crate) fn volume_quota(&self) -> Option<QuotaRecord> {
        let (bytes_max, inodes_max) = self.volume_quota?;
        let (bytes, inodes) = (self.counters.stored_bytes, self.counters.inodes.saturating_sub(1));
        Some(QuotaRecord { bytes_max, inodes_max, bytes, inodes, ..QuotaRecord::default() })
    }

    /// Whether so much more may be counted by `quota`.
    #[inline]
    pub(crate) fn check_quota(&self, quota: u64, bytes: u64, inodes: u64) -> Result<()> {
        // An item was answered before the limit came.
        if !self.has_quota(quota) || self.delegations.acting().is_some() {
            return Ok(());
        }
        // Of the volume last: for more of that the leader may ask elsewhere.
        self.check_quotas_up_to(quota, &[], bytes, inodes)?;
        self.check_volume(bytes, inodes)
    }

    /// As [`check_quota`](Self::check_quota), without those in `counted` that count it already.
    fn check_quotas_up_to(&self, quota: u64, counted: &[u64], bytes: u64, inodes: u64) -> Result<()> {
        let mut at = quota;
        while at != 0 && !counted.contains(&at) {
            let record = self.quota_record(at)?.ok_or(OpError::DAMAGED)?;
            record.allows(bytes, inodes, OF_DIRECTORY)?;
            at = record.outer;
        }
        Ok(())
    }

    pub(crate) fn put_quota(&mut self, quota: u64, record: &QuotaRecord) {
        let value = &mut self.scratch.value;
        value.clear();
        record.encode(value);
        self.tree.put(key::quota(quota).as_bytes(), value);
    }

    fn add_share(&mut self, quota: u64, share: Share) {
        let (mut at, mut references) = (quota, share.references);
        while at != 0 {
            let mut record = self.known_quota(at);
            record.bytes += share.bytes;
            record.inodes += share.inodes;
            record.references += references;
            self.put_quota(at, &record);
            (at, references) = (record.outer, 0);
        }
    }

    fn subtract_share(&mut self, quota: u64, share: Share) {
        let (mut at, mut references) = (quota, share.references);
        while at != 0 {
            let mut record = self.known_quota(at);
            record.bytes -= share.bytes;
            record.inodes -= share.inodes;
            record.references -= references;
            self.put_quota(at, &record);
            (at, references) = (record.outer, 0);
        }
        self.drop_unused_quota(quota);
    }

    /// A quota that was removed goes with what was counted by it last.
    fn drop_unused_quota(&mut self, quota: u64) {
        let mut at = quota;
        while at != 0 {
            let record = self.known_quota(at);
            if !record.removed || record.references > 0 {
                return;
            }
            self.tree.remove(key::quota(at).as_bytes());
            self.quotas -= 1;
            if record.outer != 0 {
                let mut outer = self.known_quota(record.outer);
                outer.references -= 1;
                self.put_quota(record.outer, &outer);
            }
            at = record.outer;
        }
    }

    /// The quota that counts an inode itself.
    pub(crate) fn counted_by(&self, id: u64, inode: &Inode) -> u64 {
        let is_root_of_one = inode.is_dir() && inode.quota == id && id != 0;
        if is_root_of_one { self.known_quota(id).outer } else { inode.quota }
    }

    /// A new inode is counted. Its directory's quota is noted in it.
    #[inline]
    pub(crate) fn count_inode(&mut self, inode: &Inode) {
        if inode.quota != 0 {
            self.add_share(inode.quota, Share { bytes: inode.stored, inodes: 1, references: 1 });
        }
    }

    /// An inode is gone. If it is a directory with a quota, that goes as well, in time.
    #[inline]
    pub(crate) fn uncount_inode(&mut self, id: u64, inode: &Inode) {
        if inode.quota == 0 {
            return;
        }
        let by = self.counted_by(id, inode);
        if by != inode.quota {
            self.retire_quota(id);
        }
        if by != 0 {
            self.subtract_share(by, Share { bytes: inode.stored, inodes: 1, references: 1 });
        }
    }

    fn retire_quota(&mut self, id: u64) {
        let record = QuotaRecord { removed: true, bytes_max: 0, inodes_max: 0, ..self.known_quota(id) };
        self.put_quota(id, &record);
        self.drop_unused_quota(id);
    }

    /// Extents of a file cover more (or less) than before.
    #[inline]
    pub(crate) fn count_bytes(&mut self, inode: &Inode, gained: u64, lost: u64) {
        if inode.quota == 0 {
            return;
        }
        if gained > 0 {
            self.add_share(inode.quota, Share { bytes: gained, ..Share::default() });
        }
        if lost > 0 {
            self.subtract_share(inode.quota, Share { bytes: lost, ..Share::default() });
        }
    }

    /// Refuses, for a while, what needs counting over while something else is being counted over.
    pub(crate) fn check_not_counting(&self) -> Result<()> {
        if self.recounts == 0 {
            return Ok(());
        }
        Err(OpError::new(ErrorCode::Overloaded, "directories are being counted by another quota; try again"))
    }

    /// Whether an inode may come to be counted by `quota`, and by what is around it. A directory counts as one inode;
    /// what is in it is counted over behind.
    pub(crate) fn check_quota_move(&self, id: u64, inode: &Inode, quota: u64) -> Result<()> {
        if self.txs.is_deciding() && self.txs.has_guests() && (inode.quota != 0 || quota != 0) {
            // What leaves all quotas is taken off where it was counted: here, if it is of this partition.
            let leaves = self.level >= TREE_LEVEL && quota == 0 && self.is_own(id);
            if !leaves {
                return Err(OpError::new(
                    ErrorCode::CrossVolume,
                    "a quota counts one of the directories, and what it counts stays in one partition; copy instead",
                ));
            }
        }
        let from = self.counted_by(id, inode);
        if from == quota || self.delegations.acting().is_some() {
            return Ok(());
        }
        if quota != 0 && inode.is_dir() && self.level >= TREE_LEVEL {
            self.check_is_all_here(id, inode)?;
        }
        if inode.is_dir() && (inode.size > 0 || inode.quota == id) {
            self.check_not_counting()?;
        }
        let mut counted = Vec::new();
        let mut at = from;
        while at != 0 {
            counted.push(at);
            at = self.quota_record(at)?.ok_or(OpError::DAMAGED)?.outer;
        }
        let share = self.share_of(id, inode);
        self.check_quotas_up_to(quota, &counted, share.bytes, share.inodes)
    }

    /// Refuses to bring a directory to a quota that would not count all of it.
    fn check_is_all_here(&self, id: u64, directory: &Inode) -> Result<()> {
        let mut looks = LOOKS;
        match self.parts_below(id, directory, &mut looks)? {
            Parts::Here => Ok(()),
            Parts::Elsewhere => Err(OpError::new(
                ErrorCode::CrossVolume,
                "other partitions have directories below it, which the quota of where it goes would not count; copy it there instead",
            )),
            Parts::Unknown => Err(OpError::new(
                ErrorCode::CrossVolume,
                "it has too much below it to tell whether the quota of where it goes would count all of it; copy it there, or move what                  is in it",
            )),
        }
    }

    /// Whether something may be counted by a quota behind that stays out of sight now: no directory of the partition is
    /// given parts elsewhere meanwhile.
    pub(crate) const fn may_come_to_a_quota(&self) -> bool {
        self.level >= TREE_LEVEL && self.recounts > 0
    }

    /// What moves with an inode: itself, and all that its own quota has counted.
    fn share_of(&self, id: u64, inode: &Inode) -> Share {
        if inode.is_dir() && inode.quota == id {
            let record = self.known_quota(id);
            return Share { bytes: record.bytes, inodes: record.inodes + 1, references: 2 };
        }
        Share { bytes: inode.stored, inodes: 1, references: 1 }
    }

    /// Counts an inode by another quota from now on. The caller stores the attributes.
    pub(crate) fn move_to_quota(&mut self, id: u64, inode: &mut Inode, quota: u64) {
        let from = self.counted_by(id, inode);
        if from == quota {
            return;
        }
        let share = self.share_of(id, inode);
        // The new one first: what is around both must not go in between.
        self.add_share(quota, share);
        let is_root_of_one = inode.is_dir() && inode.quota == id;
        if is_root_of_one {
            let record = QuotaRecord { outer: quota, ..self.known_quota(id) };
            self.put_quota(id, &record);
        } else {
            inode.quota = quota;
        }
        if from != 0 {
            self.subtract_share(from, share);
        }
        if inode.is_dir() && !is_root_of_one && inode.size > 0 {
            self.list_recount(id);
        }
    }

    /// All entries of a directory are to be counted by its quota, from the first one on.
    fn list_recount(&mut self, id: u64) {
        self.recounts += u64::from(self.tree.put(key::recount(id).as_bytes(), &[TAG]));
    }

    fn unlist_recount(&mut self, id: u64) {
        self.recounts -= u64::from(self.tree.remove(key::recount(id).as_bytes()));
    }

    /// A step of counting over; false when there is nothing to count over.
    pub(crate) fn reclaim_recount(&mut self, budget: &mut Budget) -> Result<bool> {
        if self.recounts == 0 {
            return Ok(false);
        }
        let id = self.first_listed(Kind::Recount).ok_or(OpError::DAMAGED)?;
        if self.recount_waits() {
            return Ok(false);
        }
        budget.take_inode();
        let directory = match self.stored_inode(id) {
            Ok(directory) if directory.is_dir() && directory.nlink > 0 => directory,
            Ok(_) | Err(OpError::STALE) => {
                self.unlist_recount(id);
                return Ok(true);
            }
            Err(error) => return Err(error),
        };
        let mut entries = self.entries_to_count(id, budget.inodes.max(1))?;
        let locked = entries.iter().position(|(_, dentry)| self.txs.is_locked(dentry.inode));
        entries.truncate(locked.unwrap_or(entries.len()));
        let Some((last, _)) = entries.last() else {
            self.unlist_recount(id);
            return Ok(true);
        };
        let value = [&[TAG], last.as_slice()].concat();
        self.tree.put(key::recount(id).as_bytes(), &value);
        for (_, dentry) in &entries {
            budget.take_inode();
            if self.is_foreign(dentry.inode) {
                // What another partition has is not counted here.
                continue;
            }
            let mut child = self.stored_inode(dentry.inode)?;
            if self.counted_by(dentry.inode, &child) != directory.quota {
                self.move_to_quota(dentry.inode, &mut child, directory.quota);
                self.put_inode(dentry.inode, &child);
            }
        }
        Ok(true)
    }

    fn entries_to_count(&self, id: u64, limit: usize) -> Result<Vec<(Vec<u8>, Dentry)>> {
        let after = self.tree.get(key::recount(id).as_bytes()).and_then(decode_recount).ok_or(OpError::DAMAGED)?;
        self.entries_after(id, after, limit)
    }

    /// Whether what is to be counted over next is locked by an operation across partitions, which knows by what it was
    /// counted.
    pub(crate) fn recount_waits(&self) -> bool {
        let next = || {
            let id = self.first_listed(Kind::Recount)?;
            let entry = self.entries_to_count(id, 1).ok()?.pop();
            Some(self.txs.is_locked(id) || entry.is_some_and(|(_, dentry)| self.txs.is_locked(dentry.inode)))
        };
        self.recounts > 0 && self.txs.has_locks() && next().unwrap_or(false)
    }

    pub(crate) fn entries_after(&self, directory: u64, after: &[u8], limit: usize) -> Result<Vec<(Vec<u8>, Dentry)>> {
        let prefix = key::prefix(directory, Kind::Dentry);
        let from = key::dentry(directory, after);
        let mut entries = Vec::new();
        let mut cursor = self.tree.cursor();
        let mut found = cursor.seek(from.as_bytes());
        while found && entries.len() < limit {
            let Some(name) = cursor.key().strip_prefix(prefix.as_bytes()) else { break };
            if after.is_empty() || name != after {
                entries.push((name.to_vec(), Dentry::decode(cursor.value()).ok_or(OpError::DAMAGED)?));
            }
            found = cursor.advance();
        }
        Ok(entries)
    }

    /// Gives a directory limits of its own, or other ones.
    pub(crate) fn set_directory_quota(&mut self, id: u64, directory: &mut Inode, bytes_max: u64, inodes_max: u64) {
        if directory.quota != id {
            let outer = directory.quota;
            match self.quota_record(id).ok().flatten() {
                // It was removed, and not everything is counted elsewhere yet: it counts on, inside what is around now.
                Some(record) if record.outer != outer => {
                    let share = Share { bytes: record.bytes, inodes: record.inodes, references: 1 };
                    self.add_share(outer, share);
                    self.put_quota(id, &QuotaRecord { outer, ..record });
                    if record.outer != 0 {
                        self.subtract_share(record.outer, share);
                    }
                }
                Some(_) => {}
                None => {
                    self.put_quota(id, &QuotaRecord { outer, ..QuotaRecord::default() });
                    self.quotas += 1;
                    self.add_share(outer, Share { references: 1, ..Share::default() });
                }
            }
            directory.quota = id;
            if directory.size > 0 {
                self.list_recount(id);
            }
        }
        let record = QuotaRecord { removed: false, bytes_max, inodes_max, ..self.known_quota(id) };
        self.put_quota(id, &record);
    }

    /// Takes a directory's limits away.
    pub(crate) fn remove_directory_quota(&mut self, id: u64, directory: &mut Inode) {
        if directory.quota != id {
            return;
        }
        directory.quota = self.known_quota(id).outer;
        if directory.size > 0 {
            self.list_recount(id);
        } else {
            self.unlist_recount(id);
        }
        self.retire_quota(id);
    }

    pub(crate) fn set_volume_quota(&mut self, limits: Option<(u64, u64)>) {
        self.volume_quota = limits;
        match limits {
            Some((bytes_max, inodes_max)) => {
                let value = &mut self.scratch.value;
                value.clear();
                QuotaRecord { bytes_max, inodes_max, ..QuotaRecord::default() }.encode(value);
                self.tree.put(key::volume_quota().as_bytes(), value);
            }
            None => {
                self.tree.remove(key::volume_quota().as_bytes());
            }
        }
    }

    /// What is not in the checkpoint's header, found again when one is loaded.
    pub(crate) fn recount_quotas(&mut self) -> Result<()> {
        if let Some(value) = self.tree.get(key::volume_quota().as_bytes()) {
            let limits = QuotaRecord::decode(value).ok_or(OpError::DAMAGED)?;
            self.volume_quota = Some((limits.bytes_max, limits.inodes_max));
        }
        for (kind, count) in [(Kind::Quota, &mut self.quotas), (Kind::Recount, &mut self.recounts)] {
            let prefix = key::prefix(0, kind);
            let mut range = self.tree.prefix(prefix.as_bytes());
            while range.next().is_some() {
                *count += 1;
            }
        }
        Ok(())
    }
}
