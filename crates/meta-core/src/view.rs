//! Reading at a snapshot: `DIRECTORY/.snapshots/NAME/…`, for every client.
//!
//! Every directory has an entry `.snapshots` that no listing shows, and in it one for each snapshot at which it was
//! there. Inodes below it have numbers of their own: the lower 48 bits are the inode's, the upper 16 the slot of the
//! snapshot (a `.snapshots` itself: 0x7fff). So whoever knows inodes by number reads snapshots with the same requests
//! as everything else, and no program takes a file and its former self for one. Slots are used in turn, and again only
//! after 32,766 snapshots.
//!
//! Reads are answered by a [`Namespace`] whose tree is read as of the snapshot; it has no sessions, holds, or locks.
//! Nothing of it can be changed: mutations of such numbers are refused (`EROFS`). Volumes with inode numbers above 48
//! bits have no snapshots. Bytes that were not durable when it was taken are not in it.
//!
//! In a volume of several partitions an inode at a snapshot is in the partition that has it now. What an operation
//! across partitions had locked when the snapshot was cut is waited for: whether the snapshot has it is known when that
//! has finished (`tx`).
use crate::at_snapshot::At;
use crate::cut_across::SEVERAL_LEVEL;
use crate::encoding::{Dentry, Extent, Inode, NodeType};
use crate::error::{OpError, Result};
use crate::key::{self, INODE_BITS};
use crate::limits::PAGE_ENTRIES_MAX;
use crate::message::reader::Reader;
use crate::message::request::{self, Header, Who};
use crate::message::writer::{put_attributes, put_attributes_response, put_number};
use crate::namespace::Namespace;
use crate::ops::readdir::put_entry;
use crate::permission::WRITE;
use crate::snapshots::SNAPSHOT_LEVEL;
use cairn_types::ErrorCode;
use cairn_wire::Opcode;

/// The entry of every directory in which its snapshots are.
pub const SNAPSHOTS_NAME: &[u8] = b".snapshots";
const LISTING: u64 = 0x7fff << INODE_BITS;
const INNER: u64 = (1 << INODE_BITS) - 1;

pub(crate) const READ_ONLY: OpError =
    OpError::new(ErrorCode::ReadOnly, "snapshots cannot be changed; copy what you need out of it");
const OF_THE_LIST: OpError = OpError::new(
    ErrorCode::ReadOnly,
    "a snapshot is taken by `cairn fs snapshot create`, renamed by `cairn fs snapshot rename` and deleted by `cairn fs snapshot delete`",
);
pub(crate) const NOT_SHARED: OpError = OpError::new(
    ErrorCode::InvalidArgument,
    "files are cloned out of snapshots from feature level 13 on; copy its bytes",
);
const KEPT_NAME: OpError =
    OpError::new(ErrorCode::Exists, "every directory has its snapshots under the name .snapshots; take another name");

/// Whether a number is one of a snapshot, or of a directory's list of them.
pub(crate) const fn is_apart(id: u64) -> bool {
    id >> INODE_BITS != 0
}

/// What is locked is waited for; what is the matter otherwise is put as one error.
fn waits_or(other: OpError) -> impl Fn(OpError) -> OpError {
    move |error| if matches!(error, OpError::LOCKED | OpError::DELEGATED) { error } else { other }
}

/// A name that a new entry may get.
pub(crate) fn check_new_name(namespace: &Namespace, name: &[u8]) -> Result<()> {
    crate::inode_table::check_entry_name(name)?;
    if name == SNAPSHOTS_NAME && namespace.level >= SNAPSHOT_LEVEL { Err(KEPT_NAME) } else { Ok(()) }
}

impl Namespace {
    /// Whether numbers with upper bits are those of snapshots.
    #[inline]
    pub(crate) const fn has_views(&self) -> bool {
        let level = if self.is_one_of_several() { SEVERAL_LEVEL } else { SNAPSHOT_LEVEL };
        self.level >= level && !self.has_no_snapshots() && !self.is_view
    }

    /// The partition as of a snapshot, for reading.
    pub(crate) fn view(&self, at: At) -> Namespace {
        let mut view = Namespace::empty(self.volume, self.partition, self.inode_first, self.inode_last);
        (view.inode_next, view.level, view.is_view) = (self.inode_next, self.level, true);
        (view.applied, view.time, view.death_last) = (self.applied, self.time, self.death_last);
        view.tree = self.tree.as_of(at);
        view.outward = at.outward;
        view.txs = self.txs.as_of(at);
        view
    }

    pub(crate) fn view_of(&self, id: u64) -> Result<Namespace> {
        let at = self.snapshots.at_slot(id >> INODE_BITS).ok_or(OpError::STALE)?;
        Ok(self.view(at))
    }

    /// What is stored of an inode, as it is seen at the snapshot.
    pub(crate) fn as_seen(&self, id: u64, mut inode: Inode) -> Inode {
        inode.parent |= if inode.parent == 0 { 0 } else { self.outward };
        if id & INNER == self.tree.root_of_snapshot() {
            // Nothing is above a directory that was taken alone.
            inode.parent = id;
        }
        if let Some(volatile) = inode.volatile.take() {
            inode.size = inode.size.min(volatile.from);
        }
        (inode.lease, inode.quota) = (None, 0);
        inode
    }

    /// An extent that begins in the file, as far as it is in it: at a snapshot the end may lie before what was not
    /// durable.
    pub(crate) fn within(&self, extent: Extent, inode: &Inode) -> Extent {
        match self.is_view && extent.end() > inode.size {
            true => extent.part(extent.file_offset, inode.size),
            false => extent,
        }
    }

    /// The entry `.snapshots` of a directory, if a name is that. A shard has none.
    pub(crate) fn snapshots_entry(&self, id: u64, directory: &Inode, name: &[u8]) -> Option<(u64, Inode)> {
        (name == SNAPSHOTS_NAME && self.has_views() && !directory.is_shard)
            .then(|| (LISTING | id, self.listing(id, directory)))
    }

    fn listing(&self, id: u64, directory: &Inode) -> Inode {
        Inode {
            mode: NodeType::Directory as u16 | 0o555,
            nlink: 2,
            uid: directory.uid,
            gid: directory.gid,
            size: self.snapshots.count(id),
            layout: directory.layout,
            parent: id,
            generation: self.snapshots.state.changed_ns.max(1),
            ..Inode::at(self.snapshots.state.changed_ns.max(directory.btime))
        }
    }

    /// A directory whose snapshots are asked for, and its list.
    fn listed(&self, id: u64, who: &Who<'_>) -> Result<(u64, Inode)> {
        let of = id & INNER;
        let directory = self.directory(of).map_err(waits_or(OpError::STALE))?;
        self.check_search(of, &directory, who)?;
        Ok((of, self.listing(of, &directory)))
    }

    /// One step of a path from a directory's list of snapshots.
    fn listing_step(&self, id: u64, name: &[u8], who: &Who<'_>) -> Result<(u64, Inode)> {
        let (of, listing) = match self.listed(id, who) {
            Err(OpError::STALE) if self.is_own(id & INNER) => {
                return self.step_of_gone(id & INNER, name, who).ok_or(OpError::STALE);
            }
            listed => listed?,
        };
        match name {
            b"." => Ok((id, listing)),
            b".." => Ok((of, self.directory(of)?)),
            _ => {
                let at = match self.snapshots.at(of, name) {
                    Some(at) => at,
                    // The partition of the root knows whether it is there, and says it in a moment.
                    None if !self.is_home() && self.snapshots.may_be(of, name) => return Err(OpError::LOCKED),
                    None => return Err(OpError::NOT_FOUND),
                };
                let then = self.view(at).directory(of | at.outward).map_err(waits_or(OpError::NOT_FOUND))?;
                Ok((of | at.outward, then))
            }
        }
    }

    /// A directory that is not there any more keeps its own snapshots, for those who know their names.
    fn step_of_gone(&self, of: u64, name: &[u8], who: &Who<'_>) -> Option<(u64, Inode)> {
        let at = self.snapshots.at(of, name).filter(|at| at.directory == of)?;
        let view = self.view(at);
        let then = view.directory(of | at.outward).ok()?;
        view.check_search(of | at.outward, &then, who).ok()?;
        Some((of | at.outward, then))
    }

    /// One step of a path, from wherever it is.
    pub(crate) fn step_anywhere(&self, id: u64, inode: &Inode, name: &[u8], who: &Who<'_>) -> Result<(u64, Inode)> {
        if !self.has_views() || !is_apart(id) {
            return self.resolve_step(id, inode, name, who);
        }
        match id & !INNER {
            LISTING => self.listing_step(id, name, who),
            _ => self.view_of(id)?.resolve_step(id, inode, name, who),
        }
    }

    /// Attributes of an inode, wherever it is.
    pub(crate) fn inode_anywhere(&self, id: u64) -> Result<Inode> {
        if !self.has_views() || !is_apart(id) {
            return self.live_inode(id);
        }
        match id & !INNER {
            LISTING => Ok(self.listing(id & INNER, &self.directory(id & INNER)?)),
            _ => self.view_of(id)?.live_inode(id),
        }
    }

    /// Target of a link, wherever it is.
    pub(crate) fn target_anywhere(&self, id: u64) -> Result<Vec<u8>> {
        match self.has_views() && is_apart(id) {
            true => self.view_of(id)?.target(id).map(<[u8]>::to_vec),
            false => self.target(id).map(<[u8]>::to_vec),
        }
    }

    /// Answers a read of what the partition of now does not have.
    pub(crate) fn answer_apart(
        &self,
        opcode: Opcode,
        header: &Header<'_>,
        bytes: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<()> {
        let id = asked_inode(opcode, bytes)?;
        if !is_apart(id) {
            return Err(OpError::STALE);
        }
        if id & !INNER != LISTING {
            return self.view_of(id)?.answer(opcode, header, bytes, out);
        }
        let who = &header.who;
        match opcode {
            Opcode::Lookup => {
                let (id, inode) = self.listing_step(id, request::Lookup::decode(bytes)?.name, who)?;
                put_attributes_response(out, id, &inode);
            }
            Opcode::Getattr => put_attributes_response(out, id, &self.listed(id, who)?.1),
            Opcode::Access => {
                let (_, listing) = self.listed(id, who)?;
                let mask = request::Access::decode(bytes)?.mask as u16;
                if mask & WRITE != 0 {
                    return Err(READ_ONLY);
                }
                return if self.allows(id, &listing, who, mask) { Ok(()) } else { Err(OpError::ACCESS_DENIED) };
            }
            Opcode::Readdir => self.list_of_snapshots(id, who, bytes, out)?,
            Opcode::Open => {
                let request = request::Open::decode(bytes)?;
                if request.inode == 0 {
                    let found = self.listing_step(id, request.name, who)?;
                    return match found.0 & !INNER {
                        LISTING => self.open_listing(id, who, out),
                        0 => Err(OpError::IS_DIRECTORY),
                        _ => self.view_of(found.0)?.open_found(header, found, &request, out),
                    };
                }
                return self.open_listing(id, who, out);
            }
            Opcode::ListXattr => {}
            Opcode::GetXattr => return Err(OpError::new(ErrorCode::NoAttribute, "no extended attribute of this name")),
            _ => return Err(OpError::IS_DIRECTORY),
        }
        Ok(())
    }

    /// Nothing keeps the list of a directory's snapshots alive: it goes with the directory.
    pub(crate) fn open_listing(&self, id: u64, who: &Who<'_>, out: &mut Vec<u8>) -> Result<()> {
        put_attributes(out, 1, id, &self.listed(id, who)?.1);
        put_number(out, 5, self.death_position());
        Ok(())
    }

    fn list_of_snapshots(&self, id: u64, who: &Who<'_>, bytes: &[u8], out: &mut Vec<u8>) -> Result<()> {
        let request = request::Readdir::decode(bytes)?;
        let (of, _) = self.listed(id, who)?;
        let count_max = if request.count_max == 0 { PAGE_ENTRIES_MAX } else { request.count_max };
        let mut count = 0;
        for (name, at) in self.snapshots.by_name(of) {
            let id = of | at.outward;
            let value = at.get(&self.tree, key::attributes(id).as_bytes());
            let Some(inode) = value.and_then(Inode::decode).filter(|inode| inode.is_dir() && inode.nlink > 0) else {
                continue;
            };
            if name <= request.after && !request.after.is_empty() {
                continue;
            }
            if count == count_max {
                return Ok(());
            }
            let inode = request.attributes.then_some(inode);
            let dentry = Dentry { inode: id, d_type: (NodeType::Directory as u16 >> 12) as u8 };
            put_entry(out, name, dentry, (inode.as_ref(), false));
            count += 1;
        }
        put_number(out, 2, 1);
        Ok(())
    }

    /// What to say of a mutation whose inode is not there: it may be one of a snapshot.
    pub(crate) fn refuse_apart(&self, opcode: Opcode, bytes: &[u8]) -> Option<OpError> {
        if !self.has_views() {
            return None;
        }
        let numbers = numbers_of(bytes).ok()?;
        let named = |field: usize| is_apart(numbers[field]);
        let in_list = |field: usize| numbers[field] & !INNER == LISTING;
        match opcode {
            Opcode::Mkdir | Opcode::Rmdir | Opcode::RemoveTree if in_list(2) => Some(OF_THE_LIST),
            Opcode::Rename if in_list(2) || in_list(4) => Some(OF_THE_LIST),
            Opcode::CloneRange if named(4) => Some(READ_ONLY),
            Opcode::CloneRange if named(2) => Some(NOT_SHARED),
            Opcode::Link if named(2) || named(3) => Some(READ_ONLY),
            Opcode::Rename if named(2) || named(4) => Some(READ_ONLY),
            Opcode::CloneRange | Opcode::Discard | Opcode::NoteDurable => None,
            _ if named(2) => Some(READ_ONLY),
            _ => None,
        }
    }
}

/// The inode by which a read came.
fn asked_inode(opcode: Opcode, bytes: &[u8]) -> Result<u64> {
    let numbers = numbers_of(bytes)?;
    match opcode {
        Opcode::Open if numbers[2] == 0 => Ok(numbers[3]),
        Opcode::Statfs | Opcode::ListQuotas | Opcode::ListSnapshots | Opcode::ListChanged => Ok(0),
        _ => Ok(numbers[2]),
    }
}

/// Numbers in the first fields of a message; 0 in place of what is no number.
fn numbers_of(bytes: &[u8]) -> Result<[u64; 5]> {
    let mut numbers = [0; 5];
    let mut reader = Reader::new(bytes);
    while let Some((field, value)) = reader.next()? {
        if let Some(number) = numbers.get_mut(field as usize) {
            *number = value.u64().unwrap_or(0);
        }
    }
    Ok(numbers)
}
