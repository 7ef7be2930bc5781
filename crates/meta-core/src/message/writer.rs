//! Writing protobuf answers straight into the caller's buffer, byte for byte as the generated code would.
use crate::encoding::varint::{self, VARINT_MAX};
use crate::encoding::{Extent, Inode};

/// Appends a base-128 number.
#[inline]
pub(crate) fn put_varint(out: &mut Vec<u8>, value: u64) {
    if value < 0x80 {
        return out.push(value as u8);
    }
    let (bytes, length) = varint::encode(value);
    out.extend_from_slice(&bytes[..length]);
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

/// Appends a message field whose contents `write` appends. The length is written as one byte and moved if it needs
/// more.
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

/// Bytes of attributes at most: 15 fields with a tag of one byte and a number of at most ten.
const ATTRIBUTES_MAX: usize = 15 * (1 + VARINT_MAX);

/// The fields of `Attributes`, on the stack: appending them one by one to a vector costs a check of its capacity each.
struct AttributesBytes {
    bytes: [u8; ATTRIBUTES_MAX],
    len: usize,
}

impl AttributesBytes {
    #[inline]
    fn new(id: u64, inode: &Inode) -> Self {
        let fields = [
            id,
            u64::from(inode.mode),
            u64::from(inode.nlink) - u64::from(inode.shards).min(u64::from(inode.nlink)),
            u64::from(inode.uid),
            u64::from(inode.gid),
            inode.entries(),
            inode.atime,
            inode.mtime,
            inode.ctime,
            inode.btime,
            inode.layout,
            inode.generation,
            u64::from(inode.rdev),
            inode.stored,
            inode.data_version,
        ];
        let (mut bytes, mut len) = ([0; ATTRIBUTES_MAX], 0);
        for (i, field) in fields.into_iter().enumerate() {
            if field == 0 {
                continue;
            }
            bytes[len] = (i as u8 + 1) << 3;
            len += 1;
            if field < 0x80 {
                bytes[len] = field as u8;
                len += 1;
                continue;
            }
            let (number, length) = varint::encode(field);
            bytes[len..len + VARINT_MAX].copy_from_slice(&number);
            len += length;
        }
        AttributesBytes { bytes, len }
    }
}

/// Appends an `Attributes` message as a field.
#[inline]
pub(crate) fn put_attributes(out: &mut Vec<u8>, field: u32, id: u64, inode: &Inode) {
    let attributes = AttributesBytes::new(id, inode);
    let bytes = &attributes.bytes[..attributes.len];
    match (inode.lease, inode.volatile) {
        (None, None) if !inode.sharded && !inode.is_shard => put_element(out, field, bytes),
        (lease, volatile) => put_message(out, field, |out| {
            out.extend_from_slice(bytes);
            put_number(out, 16, lease.map_or(0, |lease| lease.session));
            put_number(out, 17, volatile.map_or(0, |volatile| volatile.session));
            put_number(out, 18, if inode.sharded { inode.shards.into() } else { 0 });
            put_number(out, 19, if inode.is_shard { inode.parent } else { 0 });
        }),
    }
}

/// Appends an `AttributesResponse`.
#[inline]
pub(crate) fn put_attributes_response(out: &mut Vec<u8>, id: u64, inode: &Inode) {
    put_attributes(out, 1, id, inode);
}

/// Appends the fields of `common.Extent`.
pub(crate) fn put_extent(out: &mut Vec<u8>, extent: &Extent) {
    put_number(out, 1, extent.file_offset);
    put_number(out, 2, extent.length);
    put_number(out, 3, u64::from(extent.pg));
    put_number(out, 4, u64::from(extent.index));
    put_number(out, 5, extent.chunk_offset);
    put_number(out, 6, u64::from(extent.flags()));
}
