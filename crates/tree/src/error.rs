//! Why a checkpoint page was refused. Everything here is a data fault: the caller takes an older checkpoint or asks
//! another replica.

/// A page image or a sequence of page images that cannot be a tree.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TreeError {
    /// The bytes are not a leaf page of a version that this program reads.
    #[error("not a tree page: magic {magic:#06x}, version {version}, kind {kind}; take another checkpoint")]
    NotAPage { magic: u16, version: u8, kind: u8 },
    /// The stored checksum differs from that of the bytes.
    #[error("tree page is damaged: checksum {found:#010x}, stored {stored:#010x}; take another checkpoint")]
    ChecksumMismatch { stored: u32, found: u32 },
    /// The checksum fits, but the content breaks a rule of the format.
    #[error("tree page breaks the format: {rule} (entry {entry}); take another checkpoint")]
    Malformed { rule: &'static str, entry: usize },
    /// The first key of a page does not follow the last key of the page before.
    #[error("tree page {page} is out of order; take another checkpoint")]
    OutOfOrder { page: usize },
}
