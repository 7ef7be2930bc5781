//! The requests of `meta.proto`, borrowed. One table: name, fields, numbers.
use super::reader::{Reader, RepeatedMessages, RepeatedNumbers, Value};
use crate::error::{OpError, Result};

/// Who asks.
#[derive(Clone, Copy)]
pub(crate) struct Who<'a> {
    pub uid: u32,
    pub gid: u32,
    groups: RepeatedNumbers<'a>,
}

impl<'a> Who<'a> {
    fn decode(bytes: &'a [u8]) -> Result<Self> {
        let mut who = Who { uid: 0, gid: 0, groups: RepeatedNumbers::new(bytes, 3, true) };
        let mut reader = Reader::new(bytes);
        while let Some((field, value)) = reader.next()? {
            match field {
                1 => who.uid = value.u32()?,
                2 => who.gid = value.u32()?,
                3 => who.groups.is_empty = false,
                _ => {}
            }
        }
        Ok(who)
    }

    pub const fn is_root(&self) -> bool {
        self.uid == 0
    }

    /// The primary group or one of the supplementary ones.
    pub fn in_group(&self, gid: u32) -> bool {
        let mut found = self.gid == gid;
        if !found {
            let read = self.groups.visit(|group| {
                found = group as u32 == gid;
                !found
            });
            // A list that cannot be read gives no membership.
            found &= read.is_ok();
        }
        found
    }
}

/// What every request but the internal ones starts with.
#[derive(Clone, Copy)]
pub(crate) struct Header<'a> {
    pub volume: u32,
    pub partition: u32,
    pub session: u64,
    pub slot: u32,
    pub sequence: u64,
    pub who: Who<'a>,
}

impl<'a> Header<'a> {
    /// Finds the header in a request: field 1, nearly always the first bytes.
    pub fn find(request: &'a [u8]) -> Result<Self> {
        let mut reader = Reader::new(request);
        while let Some((field, value)) = reader.next()? {
            if field == 1 {
                return Self::decode(value.bytes()?);
            }
        }
        Err(OpError::BAD_REQUEST)
    }

    fn decode(bytes: &'a [u8]) -> Result<Self> {
        let mut header = Header { volume: 0, partition: 0, session: 0, slot: 0, sequence: 0, who: Who::decode(&[])? };
        let mut has_who = false;
        let mut reader = Reader::new(bytes);
        while let Some((field, value)) = reader.next()? {
            match field {
                1 => header.volume = value.u32()?,
                2 => header.partition = value.u32()?,
                3 => header.session = value.u64()?,
                4 => header.slot = value.u32()?,
                5 => header.sequence = value.u64()?,
                6 => {
                    header.who = Who::decode(value.bytes()?)?;
                    has_who = true;
                }
                _ => {}
            }
        }
        // Without this, a request that forgets its credentials would be root's.
        if has_who { Ok(header) } else { Err(OpError::BAD_REQUEST) }
    }
}

/// An extent as it comes in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct ExtentMessage {
    pub file_offset: u64,
    pub length: u64,
    pub pg: u32,
    pub index: u32,
    pub chunk_offset: u64,
    pub flags: u32,
}

impl ExtentMessage {
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut extent = Self::default();
        let mut reader = Reader::new(bytes);
        while let Some((field, value)) = reader.next()? {
            match field {
                1 => extent.file_offset = value.u64()?,
                2 => extent.length = value.u64()?,
                3 => extent.pg = value.u32()?,
                4 => extent.index = value.u32()?,
                5 => extent.chunk_offset = value.u64()?,
                6 => extent.flags = value.u32()?,
                _ => {}
            }
        }
        Ok(extent)
    }
}

macro_rules! field {
    (type u64) => { u64 };
    (type u32) => { u32 };
    (type bool) => { bool };
    (type bytes) => { &'a [u8] };
    (type messages) => { RepeatedMessages<'a> };
    (type numbers) => { RepeatedNumbers<'a> };
    (start u64, $request:ident, $number:literal) => { 0 };
    (start u32, $request:ident, $number:literal) => { 0 };
    (start bool, $request:ident, $number:literal) => { false };
    (start bytes, $request:ident, $number:literal) => { &[] };
    (start messages, $request:ident, $number:literal) => { RepeatedMessages::new($request, $number, true) };
    (start numbers, $request:ident, $number:literal) => { RepeatedNumbers::new($request, $number, true) };
    (set u64, $to:expr, $value:ident) => { $to = $value.u64()? };
    (set u32, $to:expr, $value:ident) => { $to = $value.u32()? };
    (set bool, $to:expr, $value:ident) => { $to = $value.bool()? };
    (set bytes, $to:expr, $value:ident) => { $to = $value.bytes()? };
    (set messages, $to:expr, $value:ident) => {{ $value.bytes()?; $to.is_empty = false }};
    (set numbers, $to:expr, $value:ident) => { $to.is_empty = matches!($value, Value::Fixed) };
}

macro_rules! requests {
    ($($name:ident $(<$life:lifetime>)? { $($field:ident: $kind:ident = $number:literal),* $(,)? })*) => {$(
        #[derive(Clone, Copy)]
        pub(crate) struct $name $(<$life>)? {
            $(pub $field: field!(type $kind),)*
        }

        impl $(<$life>)? $name $(<$life>)? {
            #[inline]
            pub fn decode(request: & $($life)? [u8]) -> Result<Self> {
                let mut message = $name { $($field: field!(start $kind, request, $number),)* };
                let mut reader = Reader::new(request);
                while let Some((field, value)) = reader.next()? {
                    match field {
                        $($number => field!(set $kind, message.$field, value),)*
                        _ => {}
                    }
                }
                Ok(message)
            }
        }
    )*};
}

requests! {
    Lookup<'a> { parent: u64 = 2, name: bytes = 3 }
    Resolve<'a> { start: u64 = 2, path: bytes = 3, in_shard: bool = 4 }
    Getattr { inode: u64 = 2 }
    Readlink { inode: u64 = 2 }
    Readdir<'a> { inode: u64 = 2, after: bytes = 3, count_max: u32 = 4, attributes: bool = 5, shards: bool = 6 }
    GetExtents { inode: u64 = 2, offset: u64 = 3, length: u64 = 4, count_max: u32 = 5, shared_now: bool = 6 }
    GetXattr<'a> { inode: u64 = 2, name: bytes = 3 }
    ListXattr { inode: u64 = 2 }
    Access { inode: u64 = 2, mask: u32 = 3 }
    Open<'a> { inode: u64 = 2, parent: u64 = 3, name: bytes = 4, access: u32 = 5, extents_max: u32 = 6 }
    GetLock { inode: u64 = 2, owner: u64 = 3, kind: u32 = 4, lock_type: u32 = 5, start: u64 = 6, end: u64 = 7 }
    SetLock {
        inode: u64 = 2, owner: u64 = 3, kind: u32 = 4, lock_type: u32 = 5, start: u64 = 6, end: u64 = 7, pid: u32 = 8,
    }
    GetQuota { inode: u64 = 2 }
    ListQuotas { after: u64 = 2, resume: bool = 3, count_max: u32 = 4 }
    SetQuota { inode: u64 = 2, bytes_max: u64 = 3, inodes_max: u64 = 4, remove: bool = 5 }
    PublishAttributes<'a> { publish: bytes = 2, attributes: bytes = 3 }
    GetattrMany<'a> { inodes: numbers = 2, apart: bool = 3 }
    Mkdir<'a> { parent: u64 = 2, name: bytes = 3, mode: u32 = 4, layout: u64 = 5, umask: u32 = 6, ask: bytes = 9 }
    DelegationAsk { ids: u32 = 1, token: u64 = 2, level: u32 = 3 }
    Batch<'a> {
        delegation: u64 = 2, from: u64 = 3, items: messages = 4, more_ids: u32 = 5, end: bool = 6, ids_to: u64 = 7,
    }
    BatchItem<'a> { opcode: u32 = 1, time_ns: u64 = 2, request: bytes = 3, expect: u32 = 4 }
    EndDelegations<'a> { numbers: numbers = 2 }
    Create<'a> {
        parent: u64 = 2, name: bytes = 3, mode: u32 = 4, rdev: u32 = 5, layout: u64 = 6, exclusive: bool = 7,
        replace: bool = 8, hold: bool = 9, size: u64 = 10, extents: messages = 11, mtime_ns: u64 = 12,
        set_owner: bool = 13, uid: u32 = 14, gid: u32 = 15, sets: messages = 16, written_by: u64 = 17,
        umask: u32 = 18,
    }
    Symlink<'a> { parent: u64 = 2, name: bytes = 3, target: bytes = 4 }
    CreateUnnamed { parent: u64 = 2, mode: u32 = 3, layout: u64 = 4, umask: u32 = 5 }
    Link<'a> { inode: u64 = 2, parent: u64 = 3, name: bytes = 4, replace: bool = 5 }
    Unlink<'a> { parent: u64 = 2, name: bytes = 3 }
    Rmdir<'a> { parent: u64 = 2, name: bytes = 3 }
    RemoveTree<'a> { parent: u64 = 2, name: bytes = 3 }
    Rename<'a> { parent: u64 = 2, name: bytes = 3, new_parent: u64 = 4, new_name: bytes = 5, flags: u32 = 6 }
    Setattr {
        inode: u64 = 2, valid: u32 = 3, mode: u32 = 4, uid: u32 = 5, gid: u32 = 6, size: u64 = 7, atime_ns: u64 = 8,
        mtime_ns: u64 = 9, layout: u64 = 10, lease: u64 = 12,
    }
    SetXattr<'a> { inode: u64 = 2, name: bytes = 3, value: bytes = 4, flags: u32 = 5 }
    RemoveXattr<'a> { inode: u64 = 2, name: bytes = 3 }
    Publish<'a> {
        inode: u64 = 2, extents: messages = 3, size: u64 = 4, set_size: bool = 5, if_data_version: u64 = 6,
        mtime_ns: u64 = 7, sets: messages = 8, written_by: u64 = 9,
        layout: u64 = 10, check_size: bool = 11, if_size: u64 = 12, kill_privileges: bool = 13,
        lease: u64 = 16, keep_mtime: bool = 17, durability: u32 = 18,
    }
    Punch {
        inode: u64 = 2, offset: u64 = 3, length: u64 = 4, extend: bool = 5, if_data_version: u64 = 6,
        kill_privileges: bool = 7, lease: u64 = 9,
    }
    OverwriteLease {
        inode: u64 = 2, release: bool = 3, number: u64 = 4, changed: bool = 5, mtime_ns: u64 = 6, answered: bool = 7,
    }
    CloneRange {
        source: u64 = 2, source_offset: u64 = 3, inode: u64 = 4, offset: u64 = 5, length: u64 = 6,
        if_data_version: u64 = 7, mtime_ns: u64 = 8, kill_privileges: bool = 9, lease: u64 = 10,
        if_source_version: u64 = 11,
    }
    Hold { inode: u64 = 2, write: bool = 3 }
    Release<'a> { inode: u64 = 2, also: numbers = 3 }
    Discard<'a> { extents: messages = 2, sets: messages = 3, written_by: u64 = 4 }
    NoteDurable<'a> { files: messages = 2 }
    GetAppend { inode: u64 = 2, number: u64 = 3, lane: u32 = 4 }
    OpenAppend { inode: u64 = 2, after: u64 = 3, pg: u32 = 4, index: u32 = 5, creation_epoch: u64 = 6, lane: u32 = 7 }
    PublishAppend<'a> { inode: u64 = 2, number: u64 = 3, to: u64 = 4, more: messages = 5 }
    PublishTo { number: u64 = 1, to: u64 = 2 }
    CreateSnapshot<'a> { name: bytes = 2, directory: u64 = 13 }
    DeleteSnapshot<'a> { name: bytes = 2, number: u64 = 13 }
    RenameSnapshot<'a> { name: bytes = 2, new_name: bytes = 3, number: u64 = 13 }
    ListChanged<'a> { older: u64 = 2, newer: u64 = 3, after: bytes = 4, count_max: u32 = 5 }
    DurableFile { inode: u64 = 1, to: u64 = 2 }
    EndVolatile { inode: u64 = 1, session: u64 = 2, from: u64 = 3, to: u64 = 4, durable_to: u64 = 5 }
    ExpireSessions<'a> { sessions: numbers = 1, unknown_only: bool = 2, delegations: numbers = 3 }
    ReclaimBatch { inodes_max: u32 = 1, extents_max: u32 = 2, deferred_to: u64 = 3 }
    ReclaimEntry<'a> { directory: u64 = 1, name: bytes = 2 }
    AddShard { directory: u64 = 1, index: u32 = 2, count: u32 = 3, partition: u32 = 4 }
    ExpireTrash { up_to_ns: u64 = 1 }
    SetSnapshotSchedule<'a> { rules: messages = 2, directory: u64 = 13 }
    SnapshotRule { period: u32 = 1, keep: u32 = 2 }
    RunSchedule<'a> { up_to_ns: u64 = 1, gone: numbers = 11 }
    SetFeatureLevel { level: u32 = 1 }
    SetDeferral { on: bool = 1 }
    SetFullness { degree: u32 = 1, node: u32 = 2 }
    FreeDone<'a> { free_ids: numbers = 1 }
    FreeGarbage<'a> { ranges: messages = 1 }
    MendNamespace<'a> { items: messages = 1 }
    MendItem<'a> { kind: u32 = 1, inode: u64 = 2, numbers: numbers = 3, name: bytes = 4 }
    GarbageRange { pg: u32 = 1, index: u32 = 2, first_block: u32 = 3, blocks: u32 = 4, session: u64 = 5 }
}
