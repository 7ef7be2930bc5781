//! Resolve: as many components of a path as possible in one call. Stops at a symbolic link, whose target is answered;
//! following it is the client's; and at an inode of another partition, where the client goes on.
//!
//! Search permission is checked on every directory that is gone through. An error of a component is part of the answer,
//! with the last component reached; only an unusable start is an error of the call.
use crate::encoding::{Inode, NodeType};
use crate::error::{OpError, Result};
use crate::inode_table::check_entry_name;
use crate::message::request::{self, Who};
use crate::message::writer::{put_attributes, put_bytes, put_number};
use crate::namespace::Namespace;
use cairn_types::ErrorCode;
use cairn_types::name::PATH_MAX;

impl Namespace {
    pub(crate) fn resolve(&self, who: &Who<'_>, bytes: &[u8], out: &mut Vec<u8>) -> Result<()> {
        let request = request::Resolve::decode(bytes)?;
        let path = request.path;
        if path.len() > PATH_MAX {
            return Err(OpError::new(ErrorCode::NameTooLong, "a path has at most 4096 bytes"));
        }
        let mut at = (request.start, self.inode_anywhere(request.start)?);
        if at.1.is_shard && !request.in_shard {
            // The way up from what is in a shard.
            let id = at.1.parent;
            match self.inode(id) {
                Err(OpError::FOREIGN) => {
                    put_attributes(out, 1, id, &Inode { mode: NodeType::Directory as u16, ..Inode::at(0) });
                    put_number(out, 3, id);
                    return Ok(());
                }
                found => at = (id, found?),
            }
        }
        let mut parent = if at.1.is_dir() { at.1.parent } else { 0 };
        let (mut consumed, mut error) = (0, None);
        while let Some((from, to)) = next_component(path, consumed) {
            match self.step_anywhere(at.0, &at.1, &path[from..to], who) {
                Ok(next) => {
                    parent = if next.1.is_dir() && self.is_own(next.0) { next.1.parent } else { at.0 };
                    at = next;
                    consumed = to;
                }
                // The whole walk waits; it is no answer.
                Err(waits @ (OpError::LOCKED | OpError::DELEGATED)) => return Err(waits),
                Err(refused) => {
                    error = Some(refused.code);
                    break;
                }
            }
            if at.1.is_symlink() || !self.is_own(at.0) {
                break;
            }
        }
        if error.is_none() && self.is_own(at.0) && next_component(path, consumed).is_none() {
            // Slashes at the end are resolved, too, if what is before them is a directory.
            let trailing = path[consumed..].contains(&b'/');
            if trailing && !at.1.is_dir() && !at.1.is_symlink() {
                error = Some(ErrorCode::NotDirectory);
            } else if !at.1.is_symlink() {
                consumed = path.len();
            }
        }
        put_attributes(out, 1, at.0, &at.1);
        put_number(out, 2, consumed as u64);
        put_number(out, 3, parent);
        if at.1.is_symlink() && self.is_own(at.0) {
            put_bytes(out, 4, &self.target_anywhere(at.0)?);
        }
        put_number(out, 5, error.map_or(0, |code| u64::from(code.code())));
        Ok(())
    }

    pub(crate) fn resolve_step(&self, id: u64, inode: &Inode, name: &[u8], who: &Who<'_>) -> Result<(u64, Inode)> {
        if !inode.is_dir() {
            return Err(OpError::NOT_DIRECTORY);
        }
        if inode.nlink == 0 {
            return Err(OpError::REMOVED);
        }
        if self.counters.dead_directories > 0 {
            self.directory(id)?;
        }
        self.check_search(id, inode, who)?;
        if !matches!(name, b"." | b"..") {
            check_entry_name(name)?;
        }
        self.step(id, inode, name)?.ok_or(OpError::NOT_FOUND)
    }
}

/// Start and end of the first component at or after `from`.
fn next_component(path: &[u8], from: usize) -> Option<(usize, usize)> {
    let start = from + path[from..].iter().position(|b| *b != b'/')?;
    let length = path[start..].iter().position(|b| *b == b'/').unwrap_or(path.len() - start);
    Some((start, start + length))
}
