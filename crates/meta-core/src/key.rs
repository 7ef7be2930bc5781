//! Keys: inode (u64, big-endian) ‖ kind (one byte) ‖ suffix. What belongs to an inode is together, a listing and the
//! extents of a file are each in order.
//!
//! | kind | key continues with | value |
//! |---|---|---|
//! | 0x01 attributes | nothing | [`crate::encoding::Inode`] |
//! | 0x02 target | nothing | 0x10, then the target of the symbolic link |
//! | 0x10 dentry | name | [`crate::encoding::Dentry`] |
//! | 0x20 extent | file offset, as an ordered number | [`crate::encoding::Extent`] |
//! | 0x21 stripe set | placement group, index (u32), part (u16), big-endian | columns, 64 in a part |
//! | 0x30 xattr | name | 0x10, then the value |
//! | 0x40 hold | session, u64 big-endian | [`crate::encoding::Hold`] |
//! | 0x41 deferral | nothing | 0x10, then the number of its death, a varint: see `defer` |
//! | 0x42 lock | kind (one byte), session, owner, first byte, each u64 big-endian | [`crate::encoding::LockRange`] |
//! | 0x43 append | number, u64 big-endian | [`crate::encoding::AppendRecord`] |
//!
//! Inode 0 does not exist; under it are the partition's own lists:
//!
//! | kind | key continues with | value |
//! |---|---|---|
//! | 0x81 session hold | session, inode, both u64 big-endian | 0x10 |
//! | 0x82 dead inode | inode, u64 big-endian | 0x10 file, 0x11 directory |
//! | 0x83 free record | id, u64 big-endian | [`crate::encoding::FreeRecord`] |
//! | 0x84 dead session | session, u64 big-endian | 0x10 |
//! | 0x85 cut | inode, u64 big-endian | 0x10, then the mark, a varint: see `cut` |
//! | 0x86 deferring | nothing | 0x10: sessions use Open, see `defer` |
//! | 0x87 deferred death | number, inode, both u64 big-endian | 0x10 |
//! | 0x88 session lock | session, inode, both u64 big-endian | 0x10, then the number of its locks, a varint |
//! | 0x89 volume quota | nothing | [`crate::encoding::QuotaRecord`] |
//! | 0x8a quota | directory, u64 big-endian | [`crate::encoding::QuotaRecord`] |
//! | 0x8b recount | directory, u64 big-endian | 0x10, then the last name that was counted: see `quota` |
//! | 0x8c share | placement group, index, first block, each u32 big-endian | [`crate::encoding::ShareRecord`] |
//! | 0x8d volatile | inode, u64 big-endian | 0x10: see `volatile` |
//! | 0x8e tx lock | partition (u32), term, number (u64), big-endian | [`crate::encoding::TxLock`] |
//! | 0x8f tx decision | term, number, both u64 big-endian | 0x10, then a `TxDecided` |
//! | 0x90 waiting entry | directory, u64 big-endian, then the name | 0x10, then its inode, a varint: see `waiting` |
//! | 0x91 waiting directory | directory, u64 big-endian | 0x10 |
//! | 0x92 staged | inode, u64 big-endian | 0x10: see `staged` |
//! | 0x96 appending | inode, number, both u64 big-endian | 0x10: see `appending` |
//! | 0x98 lent | partition, u32 big-endian | [`crate::encoding::LentRecord`] |
//! | 0x99 setting | nothing | [`crate::encoding::SettingRecord`] |
//! | 0x9a bound | nothing | [`crate::encoding::BoundRecord`] |
//! | 0x9b fullness | nothing | 0x10, the degree (one byte), then the node, a varint: see `fullness` |
//! | 0x9c delegation | number, u64 big-endian (feature level 28) | [`crate::encoding::DelegationRecord`] |
//! | 0xa0 image | a key of an inode, 0x00, number of a snapshot, u64 big-endian | 0x10, then the value that the key had; 0x11: it was not there. See `layers` |
//! | 0xa1 changed | number of a snapshot, u64 big-endian, then a key of an inode | 0x10 |
//! | 0xa2 snapshot | number, u64 big-endian | [`crate::encoding::SnapshotRecord`] |
//! | 0xa3 snapshots | nothing | [`crate::encoding::SnapshotState`] |
//! | 0xa4 kept blocks | number of a snapshot, id, both u64 big-endian | [`crate::encoding::KeptRecord`] |
//! | 0xa5 schedule | nothing, or the inode of a directory, u64 big-endian (feature level 18) | when snapshots of it are taken by themselves (`encoding/schedule.rs`) |
//!
//! An ordered number is one byte with the count of its bytes (0 for the number 0), then the bytes, big-endian without
//! leading zeros: numbers of any size compare as their byte strings, and offset 0 takes one byte.

use crate::locks::Owner;
use crate::tx::TxId;

/// Bytes of inode and kind.
const HEAD: usize = 9;
/// Bytes of a key with a name.
const NAMED: usize = HEAD + 255;
/// Bytes of a key with a directory and a name.
const WAITING: usize = NAMED + 8;
/// Bytes of a key with one number.
const NUMBERED: usize = HEAD + 9;

/// What a key is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    Attributes = 0x01,
    Target = 0x02,
    Dentry = 0x10,
    Extent = 0x20,
    StripeSet = 0x21,
    Xattr = 0x30,
    Hold = 0x40,
    Deferral = 0x41,
    Lock = 0x42,
    Append = 0x43,
    SessionHold = 0x81,
    DeadInode = 0x82,
    FreeRecord = 0x83,
    DeadSession = 0x84,
    Cut = 0x85,
    Deferring = 0x86,
    Deferred = 0x87,
    SessionLock = 0x88,
    VolumeQuota = 0x89,
    Quota = 0x8a,
    Recount = 0x8b,
    Share = 0x8c,
    Volatile = 0x8d,
    TxLock = 0x8e,
    TxDecision = 0x8f,
    WaitingEntry = 0x90,
    WaitingDirectory = 0x91,
    Staged = 0x92,
    Appending = 0x96,
    Lent = 0x98,
    Setting = 0x99,
    Bound = 0x9a,
    Fullness = 0x9b,
    Delegation = 0x9c,
    Image = 0xa0,
    Changed = 0xa1,
    Snapshot = 0xa2,
    Snapshots = 0xa3,
    Kept = 0xa4,
    Schedule = 0xa5,
}

impl Kind {
    pub const fn from_code(code: u8) -> Option<Kind> {
        Some(match code {
            0x01 => Kind::Attributes,
            0x02 => Kind::Target,
            0x10 => Kind::Dentry,
            0x20 => Kind::Extent,
            0x21 => Kind::StripeSet,
            0x30 => Kind::Xattr,
            0x40 => Kind::Hold,
            0x41 => Kind::Deferral,
            0x42 => Kind::Lock,
            0x43 => Kind::Append,
            0x81 => Kind::SessionHold,
            0x82 => Kind::DeadInode,
            0x83 => Kind::FreeRecord,
            0x84 => Kind::DeadSession,
            0x85 => Kind::Cut,
            0x86 => Kind::Deferring,
            0x87 => Kind::Deferred,
            0x88 => Kind::SessionLock,
            0x89 => Kind::VolumeQuota,
            0x8a => Kind::Quota,
            0x8b => Kind::Recount,
            0x8c => Kind::Share,
            0x8d => Kind::Volatile,
            0x8e => Kind::TxLock,
            0x8f => Kind::TxDecision,
            0x90 => Kind::WaitingEntry,
            0x91 => Kind::WaitingDirectory,
            0x92 => Kind::Staged,
            0x96 => Kind::Appending,
            0x98 => Kind::Lent,
            0x99 => Kind::Setting,
            0x9a => Kind::Bound,
            0x9b => Kind::Fullness,
            0x9c => Kind::Delegation,
            0xa0 => Kind::Image,
            0xa1 => Kind::Changed,
            0xa2 => Kind::Snapshot,
            0xa3 => Kind::Snapshots,
            0xa4 => Kind::Kept,
            0xa5 => Kind::Schedule,
            _ => return None,
        })
    }

    /// Whether snapshots keep what entries of this kind were: all that users see of an inode.
    #[inline]
    pub(crate) const fn is_in_snapshots(code: u8) -> bool {
        matches!(code, 0x01 | 0x02 | 0x10 | 0x20 | 0x21 | 0x30)
    }
}

/// A key on the stack, with room for `CAP` bytes.
#[derive(Clone, Copy)]
pub struct Key<const CAP: usize> {
    bytes: [u8; CAP],
    len: u16,
}

impl<const CAP: usize> Key<CAP> {
    #[inline]
    fn new(inode: u64, kind: Kind) -> Self {
        let mut key = Key { bytes: [0; CAP], len: HEAD as u16 };
        key.bytes[..8].copy_from_slice(&inode.to_be_bytes());
        key.bytes[8] = kind as u8;
        key
    }

    #[inline]
    fn with(mut self, suffix: &[u8]) -> Self {
        let at = usize::from(self.len);
        self.bytes[at..at + suffix.len()].copy_from_slice(suffix);
        self.len += suffix.len() as u16;
        self
    }

    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

/// Prefix of all keys of an inode.
pub fn of_inode(inode: u64) -> [u8; 8] {
    inode.to_be_bytes()
}

/// Prefix of all keys of a kind under an inode.
#[inline]
pub fn prefix(inode: u64, kind: Kind) -> Key<HEAD> {
    Key::new(inode, kind)
}

#[inline]
pub fn attributes(inode: u64) -> Key<HEAD> {
    Key::new(inode, Kind::Attributes)
}

/// Target of a symbolic link.
pub fn target(inode: u64) -> Key<HEAD> {
    Key::new(inode, Kind::Target)
}

/// The name has at most 255 bytes.
#[inline]
pub fn dentry(directory: u64, name: &[u8]) -> Key<NAMED> {
    Key::new(directory, Kind::Dentry).with(name)
}

/// The name has at most 255 bytes.
pub fn xattr(inode: u64, name: &[u8]) -> Key<NAMED> {
    Key::new(inode, Kind::Xattr).with(name)
}

#[inline]
pub fn extent(inode: u64, file_offset: u64) -> Key<NUMBERED> {
    let bytes = file_offset.to_be_bytes();
    let skip = file_offset.leading_zeros() as usize / 8;
    Key::new(inode, Kind::Extent).with(&[(8 - skip) as u8]).with(&bytes[skip..])
}

/// Prefix of the parts of a stripe set.
pub fn stripe_set_prefix(inode: u64, pg: u32, index: u32) -> Key<19> {
    Key::new(inode, Kind::StripeSet).with(&pg.to_be_bytes()).with(&index.to_be_bytes())
}

pub fn stripe_set(inode: u64, pg: u32, index: u32, part: u16) -> Key<19> {
    stripe_set_prefix(inode, pg, index).with(&part.to_be_bytes())
}

pub fn hold(inode: u64, session: u64) -> Key<NUMBERED> {
    Key::new(inode, Kind::Hold).with(&session.to_be_bytes())
}

/// Prefix of the holds of a session.
pub fn session_holds(session: u64) -> Key<NUMBERED> {
    Key::new(0, Kind::SessionHold).with(&session.to_be_bytes())
}

pub fn session_hold(session: u64, inode: u64) -> Key<25> {
    Key::new(0, Kind::SessionHold).with(&session.to_be_bytes()).with(&inode.to_be_bytes())
}

pub fn dead_inode(inode: u64) -> Key<NUMBERED> {
    Key::new(0, Kind::DeadInode).with(&inode.to_be_bytes())
}

pub fn free_record(id: u64) -> Key<NUMBERED> {
    Key::new(0, Kind::FreeRecord).with(&id.to_be_bytes())
}

pub fn dead_session(session: u64) -> Key<NUMBERED> {
    Key::new(0, Kind::DeadSession).with(&session.to_be_bytes())
}

pub fn cut(inode: u64) -> Key<NUMBERED> {
    Key::new(0, Kind::Cut).with(&inode.to_be_bytes())
}

/// That an inode's death is deferred.
pub fn deferral(inode: u64) -> Key<HEAD> {
    Key::new(inode, Kind::Deferral)
}

pub fn deferring() -> Key<HEAD> {
    Key::new(0, Kind::Deferring)
}

/// That memory is used up.
pub fn fullness() -> Key<HEAD> {
    Key::new(0, Kind::Fullness)
}

pub fn deferred(number: u64, inode: u64) -> Key<25> {
    Key::new(0, Kind::Deferred).with(&number.to_be_bytes()).with(&inode.to_be_bytes())
}

pub fn volume_quota() -> Key<HEAD> {
    Key::new(0, Kind::VolumeQuota)
}

pub fn quota(directory: u64) -> Key<NUMBERED> {
    Key::new(0, Kind::Quota).with(&directory.to_be_bytes())
}

/// That a directory's entries are counted over.
pub fn recount(directory: u64) -> Key<NUMBERED> {
    Key::new(0, Kind::Recount).with(&directory.to_be_bytes())
}

/// That a file waits to be encoded.
pub fn staged(inode: u64) -> Key<NUMBERED> {
    Key::new(0, Kind::Staged).with(&inode.to_be_bytes())
}

/// That a file has volatile bytes.
pub fn volatile(inode: u64) -> Key<NUMBERED> {
    Key::new(0, Kind::Volatile).with(&inode.to_be_bytes())
}

/// Inodes that an operation across partitions has locked here.
pub fn tx_lock(tx: TxId) -> Key<29> {
    let key = Key::new(0, Kind::TxLock).with(&tx.partition.to_be_bytes());
    key.with(&tx.term.to_be_bytes()).with(&tx.number.to_be_bytes())
}

/// The operation in the suffix of a lock's key.
pub fn tx_of_lock(suffix: &[u8]) -> Option<TxId> {
    let (partition, rest) = suffix.split_first_chunk::<4>()?;
    let ([term, number], []) = rest.as_chunks::<8>() else { return None };
    let [term, number] = [term, number].map(|bytes| u64::from_be_bytes(*bytes));
    Some(TxId { partition: u32::from_be_bytes(*partition), term, number })
}

/// What an operation that this partition decided did to others.
pub fn tx_decision(term: u64, number: u64) -> Key<25> {
    Key::new(0, Kind::TxDecision).with(&term.to_be_bytes()).with(&number.to_be_bytes())
}

/// Term and number in the suffix of a decision's key.
pub fn tx_of_decision(suffix: &[u8]) -> Option<(u64, u64)> {
    let ([term, number], []) = suffix.as_chunks::<8>() else { return None };
    Some((u64::from_be_bytes(*term), u64::from_be_bytes(*number)))
}

/// An entry at which reclaiming waits. The name has at most 255 bytes; without it: prefix of those of a directory.
pub fn waiting_entry(directory: u64, name: &[u8]) -> Key<WAITING> {
    Key::new(0, Kind::WaitingEntry).with(&directory.to_be_bytes()).with(name)
}

/// Directory and name in the suffix of such an entry's key.
pub fn waiting_parts(suffix: &[u8]) -> Option<(u64, &[u8])> {
    let (directory, name) = suffix.split_first_chunk::<8>()?;
    (!name.is_empty()).then_some((u64::from_be_bytes(*directory), name))
}

/// A dead directory with nothing but such entries.
pub fn waiting_directory(directory: u64) -> Key<NUMBERED> {
    Key::new(0, Kind::WaitingDirectory).with(&directory.to_be_bytes())
}

/// What is lent to a partition.
pub fn lent(partition: u32) -> Key<13> {
    Key::new(0, Kind::Lent).with(&partition.to_be_bytes())
}

/// The partition in the suffix of such a key.
pub fn partition(suffix: &[u8]) -> Option<u32> {
    suffix.try_into().ok().map(u32::from_be_bytes)
}

/// That a limit of the volume is being set.
pub fn setting() -> Key<HEAD> {
    Key::new(0, Kind::Setting)
}

/// What the partition may use of the volume's limit.
pub fn bound() -> Key<HEAD> {
    Key::new(0, Kind::Bound)
}

/// What a session leads.
pub fn delegation(number: u64) -> Key<NUMBERED> {
    Key::new(0, Kind::Delegation).with(&number.to_be_bytes())
}

/// Bytes of a key that has another one and a number in it.
const NESTED: usize = HEAD + NAMED + 9;

/// Bits of an inode's number within its volume; what is above says at which snapshot it is looked at.
pub(crate) const INODE_BITS: u32 = cairn_types::InodeId::SNAPSHOT_BITS;

/// From here on are the images of this key, and of all that come after it.
pub(crate) fn images_from(of: &[u8]) -> Key<NESTED> {
    Key::new(0, Kind::Image).with(of)
}

/// Prefix of what a key was in snapshots. No key begins with another one of its kind and a zero.
pub(crate) fn images_of(of: &[u8]) -> Key<NESTED> {
    Key::new(0, Kind::Image).with(of).with(&[0])
}

/// What a key was in a snapshot, and in those before it that have no image of it.
pub(crate) fn image(of: &[u8], snapshot: u64) -> Key<NESTED> {
    images_of(of).with(&snapshot.to_be_bytes())
}

/// The key in the key of its image, and the snapshot.
pub(crate) fn image_parts(image: &[u8]) -> Option<(&[u8], u64)> {
    let (of, snapshot) = image.get(HEAD..)?.split_last_chunk::<8>()?;
    let (zero, of) = of.split_last()?;
    (*zero == 0 && of.len() >= HEAD && image[..8] == [0; 8] && image[8] == Kind::Image as u8)
        .then_some((of, u64::from_be_bytes(*snapshot)))
}

/// Prefix of the keys that have images in a snapshot.
pub(crate) fn changed_in(snapshot: u64) -> Key<NUMBERED> {
    Key::new(0, Kind::Changed).with(&snapshot.to_be_bytes())
}

/// That a key has an image in a snapshot.
pub(crate) fn changed(snapshot: u64, of: &[u8]) -> Key<NESTED> {
    Key::new(0, Kind::Changed).with(&snapshot.to_be_bytes()).with(of)
}

pub(crate) fn snapshot(number: u64) -> Key<NUMBERED> {
    Key::new(0, Kind::Snapshot).with(&number.to_be_bytes())
}

pub(crate) fn snapshots() -> Key<HEAD> {
    Key::new(0, Kind::Snapshots)
}

/// `directory`: 0 for the volume.
pub(crate) fn schedule(directory: u64) -> Key<NUMBERED> {
    let key = Key::new(0, Kind::Schedule);
    if directory == 0 { key } else { key.with(&directory.to_be_bytes()) }
}

/// Prefix of the blocks that nothing names any more but a snapshot, and maybe those before it.
pub(crate) fn kept_by(snapshot: u64) -> Key<NUMBERED> {
    Key::new(0, Kind::Kept).with(&snapshot.to_be_bytes())
}

pub(crate) fn kept(snapshot: u64, id: u64) -> Key<25> {
    Key::new(0, Kind::Kept).with(&snapshot.to_be_bytes()).with(&id.to_be_bytes())
}

/// Prefix of the shared blocks of a chunk.
pub fn shares_of(pg: u32, index: u32) -> Key<21> {
    Key::new(0, Kind::Share).with(&pg.to_be_bytes()).with(&index.to_be_bytes())
}

pub fn share(pg: u32, index: u32, first_block: u32) -> Key<21> {
    shares_of(pg, index).with(&first_block.to_be_bytes())
}

/// Placement group, index and first block in the suffix of a share's key.
pub fn share_parts(suffix: &[u8]) -> Option<(u32, u32, u32)> {
    let ([pg, index, first], []) = suffix.as_chunks::<4>() else { return None };
    let [pg, index, first] = [pg, index, first].map(|bytes| u32::from_be_bytes(*bytes));
    Some((pg, index, first))
}

/// A lock that starts at this byte.
pub(crate) fn lock(inode: u64, owner: Owner, start: u64) -> Key<34> {
    let key = Key::new(inode, Kind::Lock).with(&[owner.kind]).with(&owner.session.to_be_bytes());
    key.with(&owner.owner.to_be_bytes()).with(&start.to_be_bytes())
}

/// Owner and first byte in the suffix of a lock's key.
pub(crate) fn lock_parts(suffix: &[u8]) -> Option<(Owner, u64)> {
    let (kind, rest) = suffix.split_first()?;
    let ([session, owner, start], []) = rest.as_chunks::<8>() else { return None };
    let [session, owner, start] = [session, owner, start].map(|bytes| u64::from_be_bytes(*bytes));
    (*kind <= 1).then_some((Owner { kind: *kind, session, owner }, start))
}

/// Prefix of the inodes that a session has locks on.
pub fn session_locks(session: u64) -> Key<NUMBERED> {
    Key::new(0, Kind::SessionLock).with(&session.to_be_bytes())
}

/// An append of a file.
pub fn append(inode: u64, number: u64) -> Key<NUMBERED> {
    Key::new(inode, Kind::Append).with(&number.to_be_bytes())
}

/// That an append of a file is open.
pub(crate) fn appending(inode: u64, number: u64) -> Key<25> {
    Key::new(0, Kind::Appending).with(&inode.to_be_bytes()).with(&number.to_be_bytes())
}

/// Prefix of those of a file.
pub(crate) fn appending_of(inode: u64) -> Key<NUMBERED> {
    Key::new(0, Kind::Appending).with(&inode.to_be_bytes())
}

pub fn session_lock(session: u64, inode: u64) -> Key<25> {
    Key::new(0, Kind::SessionLock).with(&session.to_be_bytes()).with(&inode.to_be_bytes())
}

/// Number and inode in the suffix of a deferred death's key; inode and number in that of an open append.
pub fn deferred_death(suffix: &[u8]) -> Option<(u64, u64)> {
    let (number_, inode) = suffix.split_at_checked(8)?;
    Some((number(number_)?, number(inode)?))
}

/// Takes a key apart: inode, kind, suffix.
pub fn split(key: &[u8]) -> Option<(u64, Kind, &[u8])> {
    let (inode, rest) = key.split_first_chunk::<8>()?;
    let (kind, suffix) = rest.split_first()?;
    Some((u64::from_be_bytes(*inode), Kind::from_code(*kind)?, suffix))
}

/// The number in the suffix of an extent's key.
#[inline]
pub fn file_offset(suffix: &[u8]) -> Option<u64> {
    let (count, digits) = suffix.split_first()?;
    if usize::from(*count) != digits.len() || digits.len() > 8 || digits.first() == Some(&0) {
        return None;
    }
    Some(digits.iter().fold(0, |number, digit| number << 8 | u64::from(*digit)))
}

/// A u64, big-endian, that is all of the suffix.
pub fn number(suffix: &[u8]) -> Option<u64> {
    suffix.try_into().ok().map(u64::from_be_bytes)
}
