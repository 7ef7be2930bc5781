//! [`Found`]: what the check of a namespace finds in one pass over all keys. Every entry has a kind that is known, and
//! is what its key says.
use crate::check_snapshots::FoundSnapshots;
use crate::cut::decode_mark;
use crate::defer::decode_deferral;
use crate::encoding::{
    AppendRecord, DelegationRecord, Dentry, Extent, FreeRecord, Hold, Inode, LockRange, QuotaRecord, ShareRecord,
    TxLock,
};
use crate::key::{self, Kind};
use crate::locks::{Owner, decode_count};
use crate::quota::decode_recount;
use crate::shards::is_stored_name;
use crate::stripe_set::{Columns, decode_part};
use crate::tx::{TxId, decode_decided};
use crate::waiting::decode_note;
use std::collections::{BTreeMap, BTreeSet};

/// What was found in one pass over all keys.
#[derive(Default)]
pub(crate) struct Found {
    pub inodes: BTreeMap<u64, Inode>,
    /// Names of each inode: directories that have them.
    pub names: BTreeMap<u64, Vec<u64>>,
    pub entries: BTreeMap<u64, u64>,
    pub subdirectories: BTreeMap<u64, u64>,
    pub extents: BTreeMap<u64, Vec<Extent>>,
    pub sets: BTreeMap<(u64, u32, u32), Columns>,
    pub targets: BTreeSet<u64>,
    /// Inodes of which there are keys other than attributes.
    pub owners: BTreeSet<u64>,
    pub holds: BTreeSet<(u64, u64)>,
    /// Those for writing.
    pub writers: BTreeSet<(u64, u64)>,
    pub session_holds: BTreeSet<(u64, u64)>,
    pub dead: BTreeMap<u64, bool>,
    pub dead_sessions: BTreeSet<u64>,
    /// Marks of files that are being cut.
    pub cuts: BTreeMap<u64, u64>,
    pub volatile: BTreeSet<u64>,
    /// Inode and number of open appends, and of those that are listed.
    pub open_appends: BTreeSet<(u64, u64)>,
    pub appending: BTreeSet<(u64, u64)>,
    pub staged: BTreeSet<u64>,
    /// Inodes whose death is deferred, with its number, as they say and as listed.
    pub deferrals: BTreeSet<(u64, u64)>,
    pub deferred: BTreeSet<(u64, u64)>,
    pub deferring: bool,
    pub quotas: BTreeMap<u64, QuotaRecord>,
    pub volume_quota: Option<QuotaRecord>,
    pub recounts: BTreeSet<u64>,
    pub locks: BTreeMap<u64, Vec<(Owner, LockRange)>>,
    /// (session, inode) → locks, as listed.
    pub session_locks: BTreeMap<(u64, u64), u64>,
    pub free: BTreeSet<(u32, u32, u64)>,
    pub free_records: u64,
    pub tx_locks: BTreeMap<TxId, TxLock>,
    /// Entries that reclaiming waits for, with their inode.
    pub waiting: BTreeMap<(u64, Vec<u8>), u64>,
    pub waiting_directories: BTreeSet<u64>,
    pub entry_inodes: BTreeMap<(u64, Vec<u8>), u64>,
    /// In the order of their blocks.
    pub shares: Vec<ShareRecord>,
    pub snapshots: FoundSnapshots,
    pub delegations: BTreeMap<u64, DelegationRecord>,
}

/// Notes an entry; `None`: it is not what its key says.
pub(crate) fn collect_entry(found: &mut Found, inode: u64, kind: Kind, suffix: &[u8], value: &[u8]) -> Option<()> {
    if (inode == 0) != (kind as u8 & 0x80 != 0) {
        return None;
    }
    if inode != 0 && kind != Kind::Attributes {
        found.owners.insert(inode);
    }
    match kind {
        Kind::Attributes => {
            found.inodes.insert(inode, Inode::decode(value).filter(|_| suffix.is_empty())?);
        }
        Kind::Target => {
            found.targets.insert(inode);
        }
        Kind::Dentry => {
            let dentry = Dentry::decode(value).filter(|_| is_stored_name(suffix))?;
            found.names.entry(dentry.inode).or_default().push(inode);
            found.entry_inodes.insert((inode, suffix.to_vec()), dentry.inode);
            *found.entries.entry(inode).or_default() += 1;
            *found.subdirectories.entry(inode).or_default() += u64::from(dentry.is_dir());
        }
        Kind::Extent => {
            let extent = Extent::decode(key::file_offset(suffix)?, value)?;
            found.extents.entry(inode).or_default().push(extent);
        }
        Kind::StripeSet => {
            let (set, part) = suffix.split_at_checked(8)?;
            let (pg, index) = set.split_at_checked(4)?;
            let set = (inode, u32::from_be_bytes(pg.try_into().ok()?), u32::from_be_bytes(index.try_into().ok()?));
            decode_part(value, found.sets.entry(set).or_default()).filter(|()| part.len() == 2)?;
        }
        Kind::Xattr => {}
        Kind::Hold => {
            let held = (inode, key::number(suffix)?);
            if Hold::decode(value)?.write {
                found.writers.insert(held);
            }
            found.holds.insert(held);
        }
        Kind::Lock => {
            let (owner, start) = key::lock_parts(suffix)?;
            found.locks.entry(inode).or_default().push((owner, LockRange::decode(start, value)?));
        }
        Kind::Append => {
            let (number, append) = (key::number(suffix)?, AppendRecord::decode(value)?);
            if append.open {
                found.open_appends.insert((inode, number));
            }
        }
        Kind::Deferral => {
            found.deferrals.insert((inode, decode_deferral(value).filter(|_| suffix.is_empty())?));
        }
        _ => return collect_listed(found, kind, suffix, value),
    }
    Some(())
}

/// An entry of the partition's own lists.
fn collect_listed(found: &mut Found, kind: Kind, suffix: &[u8], value: &[u8]) -> Option<()> {
    match kind {
        Kind::SessionHold => {
            let (session, held) = suffix.split_at_checked(8)?;
            found.session_holds.insert((key::number(held)?, key::number(session)?));
        }
        Kind::DeadInode => {
            found.dead.insert(key::number(suffix)?, value == [0x11]).is_none().then_some(())?;
        }
        Kind::FreeRecord => {
            let record = FreeRecord::decode(key::number(suffix)?, value)?;
            let blocks = record.first_block..record.first_block + record.blocks;
            found.free.extend(blocks.map(|block| (record.pg, record.index, block)));
            found.free_records += 1;
        }
        Kind::Cut => {
            found.cuts.insert(key::number(suffix)?, decode_mark(value)?);
        }
        Kind::Staged => {
            found.staged.insert(key::number(suffix).filter(|_| value == [0x10])?);
        }
        Kind::Volatile => {
            found.volatile.insert(key::number(suffix).filter(|_| value == [0x10])?);
        }
        Kind::Appending => {
            found.appending.insert(key::deferred_death(suffix).filter(|_| value == [0x10])?);
        }
        Kind::VolumeQuota => {
            found.volume_quota = Some(QuotaRecord::decode(value).filter(|_| suffix.is_empty())?);
        }
        Kind::Delegation => {
            found.delegations.insert(key::number(suffix)?, DelegationRecord::decode(value)?);
        }
        Kind::Quota => {
            found.quotas.insert(key::number(suffix)?, QuotaRecord::decode(value)?);
        }
        Kind::Recount => {
            decode_recount(value)?;
            found.recounts.insert(key::number(suffix)?);
        }
        Kind::SessionLock => {
            let (session, locked) = suffix.split_at_checked(8)?;
            found.session_locks.insert((key::number(session)?, key::number(locked)?), decode_count(value)?);
        }
        Kind::Deferring => {
            found.deferring = suffix.is_empty() && value == [0x10];
        }
        Kind::Deferred => {
            let (number, dead) = key::deferred_death(suffix)?;
            found.deferred.insert((dead, number));
        }
        Kind::DeadSession => {
            found.dead_sessions.insert(key::number(suffix)?);
        }
        _ => return collect_of_others(found, kind, suffix, value),
    }
    Some(())
}

/// An entry about operations with other partitions, about blocks of several owners, or about snapshots.
fn collect_of_others(found: &mut Found, kind: Kind, suffix: &[u8], value: &[u8]) -> Option<()> {
    match kind {
        Kind::TxLock => {
            found.tx_locks.insert(key::tx_of_lock(suffix)?, TxLock::decode(value)?);
        }
        Kind::TxDecision => {
            key::tx_of_decision(suffix)?;
            decode_decided(value)?;
        }
        Kind::WaitingEntry => {
            let (directory, name) = key::waiting_parts(suffix)?;
            found.waiting.insert((directory, name.to_vec()), decode_note(value)?);
        }
        Kind::WaitingDirectory => {
            let directory = key::number(suffix).filter(|_| value == [0x10])?;
            found.waiting_directories.insert(directory);
            found.dead.insert(directory, true).is_none().then_some(())?;
        }
        Kind::Lent | Kind::Setting | Kind::Bound => crate::lend::is_record(kind, suffix, value).then_some(())?,
        Kind::Fullness => crate::fullness::is_record(suffix, value).then_some(())?,
        Kind::Share => found.shares.push(ShareRecord::decode(key::share_parts(suffix)?, value)?),
        _ => found.snapshots.collect(kind, suffix, value)?,
    }
    Some(())
}
