//! Contents of files, byte by byte.
use crate::node::{Body, Node, Place};
use crate::operation::{Publish, Punch};
use crate::state::{Model, Request};
use cairn_types::ErrorCode;
use std::collections::BTreeSet;

const BLOCK: u64 = 4096;
const CHUNK: u64 = 64 << 20;

/// A run of bytes in a file that lies in one piece in a chunk.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Piece {
    pub file_offset: u64,
    pub length: u64,
    pub pg: u32,
    pub index: u32,
    pub chunk_offset: u64,
}

impl Piece {
    pub fn end(&self) -> u64 {
        self.file_offset + self.length
    }
}

/// Whether the pieces of a request can be taken.
pub(crate) fn check_pieces(pieces: &[Piece]) -> Result<(), ErrorCode> {
    for piece in pieces {
        let inside = piece.length <= CHUNK && piece.chunk_offset <= CHUNK && piece.chunk_offset + piece.length <= CHUNK;
        let congruent = piece.file_offset % BLOCK == piece.chunk_offset % BLOCK;
        if piece.length == 0 || !inside || !congruent {
            return Err(ErrorCode::InvalidArgument);
        }
        if piece.file_offset + piece.length > i64::MAX as u64 {
            return Err(ErrorCode::FileTooLarge);
        }
    }
    for (i, a) in pieces.iter().enumerate() {
        for b in &pieces[i + 1..] {
            if a.file_offset < b.end() && b.file_offset < a.end() {
                return Err(ErrorCode::InvalidArgument);
            }
        }
    }
    Ok(())
}

/// A session names what it wrote itself.
pub(crate) fn check_writer(written_by: u64, pieces: &[Piece], request: &Request) -> Result<(), ErrorCode> {
    if pieces.is_empty() || written_by == request.session { Ok(()) } else { Err(ErrorCode::WrongSession) }
}

/// Puts pieces into a file.
pub(crate) fn write_pieces(bytes: &mut Vec<Option<Place>>, pieces: &[Piece]) {
    for piece in pieces {
        if (bytes.len() as u64) < piece.end() {
            bytes.resize(piece.end() as usize, None);
        }
        for i in 0..piece.length {
            bytes[(piece.file_offset + i) as usize] = Some((piece.pg, piece.index, piece.chunk_offset + i));
        }
    }
}

impl Node {
    /// Where each byte lies.
    pub fn bytes(&self) -> &[Option<Place>] {
        match &self.body {
            Body::File(bytes) => bytes,
            _ => &[],
        }
    }

    /// The longest runs of bytes that lie in one piece.
    pub fn pieces(&self) -> Vec<Piece> {
        let mut pieces: Vec<Piece> = Vec::new();
        for (offset, place) in self.bytes().iter().enumerate() {
            let Some((pg, index, chunk_offset)) = *place else { continue };
            let offset = offset as u64;
            match pieces.last_mut() {
                Some(last)
                    if last.end() == offset
                        && (last.pg, last.index) == (pg, index)
                        && last.chunk_offset + last.length == chunk_offset =>
                {
                    last.length += 1;
                }
                _ => pieces.push(Piece { file_offset: offset, length: 1, pg, index, chunk_offset }),
            }
        }
        pieces
    }

    /// Blocks of chunks that any byte of the file lies in.
    pub fn blocks(&self) -> BTreeSet<(u32, u32, u64)> {
        let mut all: Vec<_> =
            self.bytes().iter().flatten().map(|(pg, index, offset)| (*pg, *index, offset / BLOCK)).collect();
        all.dedup();
        all.into_iter().collect()
    }
}

impl Model {
    /// Changes a file's bytes; blocks that it used before and does not use any more are free.
    pub(crate) fn change_bytes(&mut self, inode: u64, change: impl FnOnce(&mut Vec<Option<Place>>)) {
        let node = self.nodes.get_mut(&inode).expect("the caller looked");
        let before = node.blocks();
        if let Body::File(bytes) = &mut node.body {
            change(bytes);
        }
        let after = node.blocks();
        self.lose(before.difference(&after).copied().collect());
    }

    /// What one file names no more is free, unless another one has it as well.
    pub(crate) fn lose(&mut self, lost: BTreeSet<(u32, u32, u64)>) {
        self.free.extend(lost);
        if self.shares {
            for node in self.nodes.values() {
                node.blocks().iter().for_each(|block| _ = self.free.remove(block));
            }
        }
    }

    /// CloneRange by root: from an offset on a file comes to name the same places as another one, or as one did at some
    /// moment.
    pub fn clone_in(&mut self, inode: u64, offset: u64, places: &[Option<Place>], now: u64) {
        self.shares = true;
        let end = offset as usize + places.len();
        self.change_bytes(inode, |bytes| {
            bytes.resize(bytes.len().max(end), None);
            bytes[offset as usize..end].copy_from_slice(places);
        });
        let node = self.node(inode);
        node.data_version += 1;
        node.drop_capability();
        node.modified(now);
    }

    /// write(2) by others than root takes setuid and setgid away.
    pub(crate) fn after_write(&mut self, inode: u64, request: &Request) {
        let node = self.nodes.get_mut(&inode).expect("the caller looked");
        if !request.caller.is_root() {
            node.drop_privileges(request.caller.is_member(node.gid));
        }
    }

    /// A write of nobody in particular.
    pub(crate) fn kill_privileges(&mut self, inode: u64, kill: bool) {
        let node = self.nodes.get_mut(&inode).expect("the caller looked");
        if kill && node.is_file() {
            node.drop_privileges(true);
        }
    }

    /// fallocate(2): FALLOC_FL_PUNCH_HOLE, or FALLOC_FL_ZERO_RANGE with a size that may grow.
    pub(crate) fn punch(&mut self, request: &Request, punch: &Punch) -> Result<(), ErrorCode> {
        let Punch { inode, offset, length, extend, if_data_version, kill_privileges } = *punch;
        if length == 0 {
            return Err(ErrorCode::InvalidArgument);
        }
        if offset > i64::MAX as u64 - length.min(i64::MAX as u64) || length > i64::MAX as u64 {
            return Err(ErrorCode::FileTooLarge);
        }
        let node = self.existing(inode)?;
        if node.is_directory() {
            return Err(ErrorCode::IsDirectory);
        }
        if !node.is_file() {
            return Err(ErrorCode::InvalidArgument);
        }
        if !self.may_write_contents(inode, request) {
            return Err(ErrorCode::PermissionDenied);
        }
        if if_data_version != 0 && if_data_version != self.nodes[&inode].data_version {
            return Err(ErrorCode::Conflict);
        }
        self.change_bytes(inode, |bytes| {
            let end = (offset + length) as usize;
            if extend && bytes.len() < end {
                bytes.resize(end, None);
            }
            let end = end.min(bytes.len());
            for byte in bytes.get_mut(offset as usize..end).unwrap_or_default() {
                *byte = None;
            }
        });
        self.after_write(inode, request);
        self.kill_privileges(inode, kill_privileges);
        let node = self.node(inode);
        node.data_version += 1;
        node.drop_capability();
        node.modified(request.now);
        Ok(())
    }

    /// May write by the mode, or opened it for writing.
    pub(crate) fn may_write_contents(&self, inode: u64, request: &Request) -> bool {
        request.caller.can_write(&self.nodes[&inode]) || self.holds.get(&(request.session, inode)) == Some(&true)
    }

    pub(crate) fn publish(&mut self, request: &Request, publish: &Publish) -> Result<(), ErrorCode> {
        let Publish { inode, pieces, size, set_size, if_data_version, mtime, written_by, if_size, kill_privileges } =
            publish;
        let (inode, size, set_size) = (*inode, *size, *set_size);
        check_pieces(pieces)?;
        check_writer(*written_by, pieces, request)?;
        if size > i64::MAX as u64 {
            return Err(ErrorCode::FileTooLarge);
        }
        let end = pieces.iter().map(Piece::end).max().unwrap_or(0);
        if set_size && end > size {
            return Err(ErrorCode::InvalidArgument);
        }
        let node = self.existing(inode)?;
        if node.is_directory() {
            return Err(ErrorCode::IsDirectory);
        }
        if !node.is_file() {
            return Err(ErrorCode::InvalidArgument);
        }
        if !self.may_write_contents(inode, request) {
            return Err(ErrorCode::PermissionDenied);
        }
        let node = &self.nodes[&inode];
        let other_version = *if_data_version != 0 && *if_data_version != node.data_version;
        if other_version || if_size.is_some_and(|size| size != node.bytes().len() as u64) {
            return Err(ErrorCode::Conflict);
        }
        self.change_bytes(inode, |bytes| {
            write_pieces(bytes, pieces);
            if set_size || (bytes.len() as u64) < size {
                bytes.resize(size as usize, None);
            }
        });
        self.after_write(inode, request);
        self.kill_privileges(inode, *kill_privileges);
        let node = self.nodes.get_mut(&inode).expect("it was there");
        node.data_version += 1;
        node.drop_capability();
        node.modified(request.now);
        if *mtime != 0 {
            node.mtime = *mtime;
        }
        Ok(())
    }
}
