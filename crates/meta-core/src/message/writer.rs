//! Writing protobuf answers straight into the caller's buffer, byte for byte as the generated code would.
use crate::encoding::{Extent, Inode};

/// Appends a base-128 number.
#[inline]
pub(crate) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends a number field; zero is the default and left out.
#[inline]
pub(crate) fn put_number(out: &mut Vec<u8>, field: u32, value: u64) {
    if value != 0 {
        put_varint(out, u64::from(field << 3));
        put_varint(out, value);
    }
}

/// Appends a bytes field; empty is the default and left out.
#[inline]
pub(crate) fn put_bytes(out: &mut Vec<u8>, field: u32, bytes: &[u8]) {
    if !bytes.is_empty() {
        put_element(out, field, bytes);
    }
}

/// Appends an element of a repeated bytes field.
#[inline]
pub(crate) fn put_element(out: &mut Vec<u8>, field: u32, bytes: &[u8]) {
    put_varint(out, u64::from(field << 3 | 2));
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Appends a message field whose contents `write` appends. The length is written as one byte and moved if it needs more.
#[inline]
pub(crate) fn put_message(out: &mut Vec<u8>, field: u32, write: impl FnOnce(&mut Vec<u8>)) {
    put_varint(out, u64::from(field << 3 | 2));
    let at = out.len();
    out.push(0);
    write(out);
    let length = out.len() - at - 1;
    if length < 0x80 {
        out[at] = length as u8;
        return;
    }
    let mut rest = length;
    let mut at = at;
    out[at] = rest as u8 | 0x80;
    rest >>= 7;
    while rest > 0 {
        at += 1;
        out.insert(at, rest as u8 | if rest >= 0x80 { 0x80 } else { 0 });
        rest >>= 7;
    }
}

/// Appends the fields of `Attributes`.
#[inline]
pub(crate) fn put_attributes(out: &mut Vec<u8>, id: u64, inode: &Inode) {
    put_number(out, 1, id);
    put_number(out, 2, u64::from(inode.mode));
    put_number(out, 3, u64::from(inode.nlink));
    put_number(out, 4, u64::from(inode.uid));
    put_number(out, 5, u64::from(inode.gid));
    put_number(out, 6, inode.size);
    put_number(out, 7, inode.atime);
    put_number(out, 8, inode.mtime);
    put_number(out, 9, inode.ctime);
    put_number(out, 10, inode.btime);
    put_number(out, 11, inode.layout);
    put_number(out, 12, inode.generation);
    put_number(out, 13, u64::from(inode.rdev));
    put_number(out, 14, inode.stored);
    put_number(out, 15, inode.data_version);
}

/// Appends an `AttributesResponse`.
#[inline]
pub(crate) fn put_attributes_response(out: &mut Vec<u8>, id: u64, inode: &Inode) {
    put_message(out, 1, |out| put_attributes(out, id, inode));
}

/// Appends the fields of `common.Extent`.
pub(crate) fn put_extent(out: &mut Vec<u8>, extent: &Extent) {
    put_number(out, 1, extent.file_offset);
    put_number(out, 2, extent.length);
    put_number(out, 3, u64::from(extent.pg));
    put_number(out, 4, u64::from(extent.index));
    put_number(out, 5, extent.chunk_offset);
    put_number(out, 6, u64::from(extent.flags));
}
