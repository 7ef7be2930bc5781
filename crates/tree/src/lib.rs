//! The ordered byte-string map that holds the metadata of one meta partition: a packed copy-on-write B+ tree.
//!
//! Entries live in leaf pages of a few KiB ([`page`]) that are shared between versions of the tree by one reference
//! count a page. [`Tree::snapshot`] copies one pointer; a later change of either version copies the pages on its path
//! and edits pages that nobody else holds in place. A checkpoint is the leaf pages themselves ([`Tree::pages`]), and
//! [`TreeBuilder`] puts validated pages back under fresh inner nodes without parsing entries ([`image`] has the byte
//! table).
//!
//! Invariants owned by this crate: keys strictly ascend within and across pages; every page fits [`PAGE_MAX`] bytes
//! unless it holds a single entry; all leaves are at the same depth; `len`, `page_count` and `memory_bytes` are exact.
//! What it does not do: no I/O, no threads, no locks, no knowledge of what keys and values mean.

mod builder;
mod cursor;
mod error;
mod image;
mod inner;
mod leaf;
mod node;
mod page;
mod tree;

pub use builder::TreeBuilder;
pub use cursor::{Cursor, EntryRef, Range};
pub use error::TreeError;
pub use image::{IMAGE_HEADER_BYTES, IMAGE_VERSION, LeafImage, LeafPage, Pages};
pub use tree::{Tree, Update};

/// Longest key, in bytes. A dentry key is at most 8 + 1 + 255.
pub const KEY_BYTES_MAX: usize = 512;

/// Longest value, in bytes. Values beyond a page get a page of their own.
pub const VALUE_BYTES_MAX: usize = 1 << 20;

/// A leaf page with more than one entry never exceeds this size. With the reference counts and the allocator's word
/// a full page takes 4 KiB.
pub const PAGE_MAX: usize = 4096 - 24;

/// The smallest key that is greater than every key starting with `prefix`; `None` when there is none (all bytes 0xFF).
pub fn prefix_end(prefix: &[u8]) -> Option<Vec<u8>> {
    let keep = prefix.iter().rposition(|&b| b != 0xFF)? + 1;
    let mut end = prefix[..keep].to_vec();
    end[keep - 1] += 1;
    Some(end)
}
