//! The directory in which a name was made or removed, beside the answer: kernels look at it again before the next
//! change in it.
use crate::message::request;
use crate::message::writer::put_attributes;
use crate::namespace::Namespace;
use cairn_wire::Opcode;

/// Field of `AttributesResponse` and `RemovedResponse`.
const DIRECTORY: u32 = 2;

impl Namespace {
    /// Appends to the answer of an operation that was done the attributes of the directory, as they are now. They are
    /// no part of what is kept to answer a repeated request.
    pub fn put_directory(&self, opcode: Opcode, request: &[u8], out: &mut Vec<u8>) {
        let parent = match opcode {
            Opcode::Unlink => request::Unlink::decode(request).map(|request| request.parent),
            Opcode::Rmdir => request::Rmdir::decode(request).map(|request| request.parent),
            Opcode::Mkdir => request::Mkdir::decode(request).map(|request| request.parent),
            Opcode::Symlink => request::Symlink::decode(request).map(|request| request.parent),
            _ => return,
        };
        let Ok(parent) = parent else { return };
        // It may have been removed since, if the request is repeated.
        if let Ok(inode) = self.live_inode(parent) {
            put_attributes(out, DIRECTORY, parent, &inode);
        }
    }
}
