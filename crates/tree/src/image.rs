//! The leaf page as a checkpoint holds it. All integers little-endian.
//!
//! | offset | bytes | what |
//! |---|---|---|
//! | 0 | 2 | magic, `"CT"` |
//! | 2 | 1 | version, 1 |
//! | 3 | 1 | kind, 1 = leaf |
//! | 4 | 2 | `n`, number of entries, at least 1 |
//! | 6 | 2 | `p`, length of the prefix |
//! | 8 | 4 | `h`, length of all entries |
//! | 12 | 4 | CRC-32C of the image with these four bytes zero |
//! | 16 | p | the prefix that starts every key of the page |
//! | 16 + p | 4 n | slots, in key order: u16 distance from the end of the image to the end of the entry, then u16 head: the first two bytes of the key's suffix as a big-endian number, padded with zero |
//! | 16 + p + 4 n | h | entries, the last one first |
//!
//! An entry: length of the key's suffix (1 byte, or 0xFF and 2 bytes from 255 on), the suffix without its first two
//! bytes, the value. Its length follows from the distances. Keys strictly ascend by (head, rest, length of suffix),
//! which is their order as byte strings. The image is 16 + p + 4 n + h bytes, at most [`SEVERAL_MAX`] unless n is 1.
//!
//! Invariants: every image that passes [`LeafPage::decode`] can be searched, walked and edited without a panic; what is
//! the same content under the same prefix is the same image. Files, blocks and their order are the caller's.

use crate::cursor::Position;
use crate::error::TreeError;
use crate::leaf::Leaf;
use crate::node::Node;
use crate::page::{AT_HINT, HEADER, Page, PageBuf, SLOT, decode_suffix_len, read_u16, read_u32, write_u32};
use crate::{KEY_BYTES_MAX, VALUE_BYTES_MAX};

/// The version of the page image that this program writes, and the only one it reads.
pub const IMAGE_VERSION: u8 = 1;
/// Bytes of an image's header. The lengths in it tell the length of the image: see [`image_len`](LeafPage::image_len).
pub const IMAGE_HEADER_BYTES: usize = HEADER;

const MAGIC: [u8; 2] = *b"CT";
const KIND_LEAF: u8 = 1;
const AT_CRC: usize = AT_HINT;
/// Longest image of a page with more than one entry in version 1 of the format: what a distance of 16 bits allows, so
/// that the size of pages in memory can be tuned without a new version.
const SEVERAL_MAX: usize = 32 << 10;

/// Writes the part of the header that is the same in all pages.
pub(crate) fn stamp_header(bytes: &mut [u8]) {
    bytes[..2].copy_from_slice(&MAGIC);
    bytes[2] = IMAGE_VERSION;
    bytes[3] = KIND_LEAF;
}

/// The leaf pages of a tree in key order.
pub struct Pages<'a> {
    position: Position<'a>,
    started: bool,
}

/// A leaf page that can be written to a checkpoint.
#[derive(Clone, Copy)]
pub struct LeafImage<'a> {
    page: Page<'a>,
}

/// A page image that has been checked in itself, owned, ready for [`crate::TreeBuilder::push`].
pub struct LeafPage {
    leaf: Leaf,
}

impl<'a> Pages<'a> {
    pub(crate) fn new(root: Option<&'a Node>) -> Pages<'a> {
        Pages { position: Position::new(root), started: false }
    }
}

impl<'a> Iterator for Pages<'a> {
    type Item = LeafImage<'a>;

    fn next(&mut self) -> Option<LeafImage<'a>> {
        if self.started {
            self.position.next_page();
        } else {
            self.started = true;
            self.position.seek_first();
        }
        self.position.page().map(|page| LeafImage { page })
    }
}

impl LeafImage<'_> {
    /// Entries in this page.
    pub fn entries(&self) -> usize {
        self.page.count()
    }

    /// Bytes of the image.
    pub fn image_len(&self) -> usize {
        self.page.used()
    }

    /// The first key, for an index of a checkpoint.
    pub fn first_key(&self) -> Vec<u8> {
        self.page.key(0)
    }

    /// Appends the image to `out`.
    pub fn append_to(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(self.page.front());
        out.extend_from_slice(self.page.heap());
        let image = &mut out[start..];
        write_u32(image, AT_CRC, 0);
        let crc = checksum(image);
        write_u32(image, AT_CRC, crc as usize);
    }
}

impl LeafPage {
    /// Length of the image that starts with this header, not yet trusted: at least a header, and an upper bound is
    /// for the caller (it knows how many bytes it has). `None` when the bytes are too few to tell.
    pub fn image_len(header: &[u8]) -> Option<usize> {
        let header = header.get(..HEADER)?;
        Some(Page::new(header).used())
    }

    /// Checks an image and takes it over. Any bytes are safe to pass; one allocation of the image's length is made.
    pub fn decode(image: &[u8]) -> Result<LeafPage, TreeError> {
        if image.len() < HEADER {
            return Err(TreeError::Malformed { rule: "an image holds at least a header", entry: 0 });
        }
        if image[..2] != MAGIC || image[2] != IMAGE_VERSION || image[3] != KIND_LEAF {
            let magic = u16::from_be_bytes([image[0], image[1]]);
            return Err(TreeError::NotAPage { magic, version: image[2], kind: image[3] });
        }
        if image.len() > HEADER + KEY_BYTES_MAX + VALUE_BYTES_MAX + 64 || Page::new(image).used() != image.len() {
            return Err(TreeError::Malformed { rule: "an image is as long as its header says", entry: 0 });
        }
        let mut leaf = Leaf::new(image);
        let bytes = leaf.bytes_mut();
        let stored = read_u32(bytes, AT_CRC) as u32;
        write_u32(bytes, AT_CRC, 0);
        let found = checksum(bytes);
        if found != stored {
            return Err(TreeError::ChecksumMismatch { stored, found });
        }
        check_page(bytes)?;
        Ok(LeafPage { leaf })
    }

    /// Entries in this page.
    pub fn entries(&self) -> usize {
        self.leaf.page().count()
    }

    pub(crate) fn into_leaf(self) -> Leaf {
        self.leaf
    }
}

fn checksum(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// Checks all that reading and editing a page rely on. The page may have a gap; magic and checksum are not looked at.
pub(crate) fn check_page(bytes: &[u8]) -> Result<(), TreeError> {
    let malformed = |rule, entry| Err(TreeError::Malformed { rule, entry });
    if bytes.len() < HEADER {
        return malformed("a page holds at least a header", 0);
    }
    let page = Page::new(bytes);
    if page.used() > bytes.len() {
        return malformed("a page fits its bytes", 0);
    }
    let (count, prefix_len) = (page.count(), page.prefix().len());
    if count == 0 {
        return malformed("a leaf has entries", 0);
    }
    if count > 1 && page.used() > SEVERAL_MAX {
        return malformed("a page with several entries is small", 0);
    }
    if prefix_len > KEY_BYTES_MAX {
        return malformed("a key is not too long", 0);
    }
    if page.distance(0) != 0 {
        return malformed("entries end where the page ends", 0);
    }
    let heap = page.heap();
    let slots = &bytes[HEADER + prefix_len..HEADER + prefix_len + SLOT * count];
    let mut before: Option<(u16, &[u8], usize)> = None;
    let mut distance = 0;
    for i in 0..count {
        let next = if i + 1 < count { read_u16(slots, SLOT * (i + 1)) } else { heap.len() };
        if next <= distance || next > heap.len() {
            return malformed("entries follow each other", i);
        }
        let raw = &heap[heap.len() - next..heap.len() - distance];
        if raw[0] == 0xFF && (raw.len() < 3 || read_u16(raw, 1) < 0xFF) {
            return malformed("a suffix length has its shortest form", i);
        }
        let (suffix_len, at) = decode_suffix_len(raw);
        let rest_len = suffix_len.saturating_sub(2);
        if prefix_len + suffix_len > KEY_BYTES_MAX || at + rest_len > raw.len() {
            return malformed("a key fits its entry", i);
        }
        if raw.len() - at - rest_len > VALUE_BYTES_MAX {
            return malformed("a value is not too long", i);
        }
        let head = read_u16(slots, SLOT * i + 2) as u16;
        if (suffix_len == 0 && head != 0) || (suffix_len == 1 && head & 0xFF != 0) {
            return malformed("a short head is padded with zero", i);
        }
        let this = (head, &raw[at..at + rest_len], suffix_len);
        if before.is_some_and(|before| before.0 >= head && before >= this) {
            return malformed("keys ascend", i);
        }
        before = Some(this);
        distance = next;
    }
    Ok(())
}
