//! [`Fullness`]: what a partition takes no more while the memory of a member's node is used up.
//!
//! The leader logs it (`SetFullness`), so all members refuse the same requests, also those that were on their way. What
//! frees memory goes on, and what changes little: removals, renames, attributes, locks, sessions, what the leader does
//! by itself, and the end of what other partitions have decided.
//!
//! | degree | refused with NoSpace |
//! |---|---|
//! | 0 | nothing |
//! | 1 | new inodes and names, longer xattrs and access control lists, clones; inodes for other partitions |
//! | 2 | also extents that clients publish, what replaces a file, and directories in the trash |
//!
//! Not here: who says how much memory there is, and when (the `meta` crate).
use crate::encoding::varint::Cursor;
use crate::error::{OpError, Result};
use crate::key;
use crate::message::request::SetFullness;
use crate::message::writer::put_varint;
use crate::namespace::Namespace;
use cairn_types::{ErrorCode, NodeId};
use cairn_wire::error::WireError;

/// Feature level from which on it is logged.
pub const FULLNESS_LEVEL: u32 = 26;

const TAG: u8 = 0x10;
/// Directories of the trash above what is removed: itself, that of the user, the bucket.
const TRASH_DEPTH: usize = 3;
/// As it is kept of a request; [`Namespace::tell_full`] says more.
const FULL: OpError = OpError::new(
    ErrorCode::NoSpace,
    "the memory of a meta node is used up, and its partitions take no more: remove files, give it more memory, or move \
     partitions away (cairn admin partition move)",
);

/// How full a partition is, and on which node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Fullness {
    pub degree: u8,
    /// 0: none.
    pub node: NodeId,
}

impl Fullness {
    /// The highest degree.
    pub const DEGREE_MAX: u8 = 2;

    fn decode(value: &[u8]) -> Option<Self> {
        let mut cursor = Cursor::new(value);
        let (tag, degree, node) = (cursor.byte()?, cursor.byte()?, cursor.varint()?);
        cursor.end()?;
        let known = tag == TAG && (1..=Self::DEGREE_MAX).contains(&degree);
        known.then_some(Self { degree, node: NodeId(u32::try_from(node).ok()?) })
    }
}

impl Namespace {
    /// What is refused now.
    pub fn fullness(&self) -> Fullness {
        self.fullness
    }

    pub(crate) fn set_fullness(&mut self, request: &[u8]) -> Result<()> {
        let request = SetFullness::decode(request)?;
        let degree = u8::try_from(request.degree).ok().filter(|degree| *degree <= Fullness::DEGREE_MAX);
        let degree = degree.ok_or(OpError::BAD_REQUEST)?;
        if degree == 0 {
            self.tree.remove(key::fullness().as_bytes());
            self.fullness = Fullness::default();
            return Ok(());
        }
        self.fullness = Fullness { degree, node: NodeId(request.node) };
        // What their holders make would fill it on.
        self.delegations.want_all();
        let mut value = vec![TAG, degree];
        put_varint(&mut value, request.node.into());
        self.tree.put(key::fullness().as_bytes(), &value);
        Ok(())
    }

    /// What holds for an operation: an item of a delegation is never refused, for its holder has answered it.
    #[inline]
    pub(crate) fn degree(&self) -> u8 {
        if self.delegations.acting().is_some() { 0 } else { self.fullness.degree }
    }

    /// Whether there is room for an inode, a name or a longer attribute.
    #[inline]
    pub(crate) fn check_memory(&self) -> Result<()> {
        if self.degree() == 0 { Ok(()) } else { Err(FULL) }
    }

    /// The same of what comes in place of something else, or is bounded otherwise.
    #[inline]
    pub(crate) fn check_memory_left(&self) -> Result<()> {
        if self.degree() < 2 { Ok(()) } else { Err(FULL) }
    }

    /// Whether there is room for a new entry of a directory. What is removed by way of the trash gets directories
    /// there.
    pub(crate) fn check_memory_for(&self, directory: u64) -> Result<()> {
        match self.degree() {
            0 => Ok(()),
            1 if self.is_in_the_trash(directory) => Ok(()),
            _ => Err(FULL),
        }
    }

    fn is_in_the_trash(&self, directory: u64) -> bool {
        let mut at = directory;
        for _ in 0..TRASH_DEPTH {
            if self.is_the_trash(at) {
                return true;
            }
            let Ok(inode) = self.stored_inode(at) else { return false };
            at = inode.parent;
        }
        false
    }

    /// Says which node it is, and what its partition can do.
    pub(crate) fn tell_full(&self, error: WireError) -> WireError {
        let Fullness { degree, node } = self.fullness;
        if degree == 0 || !Self::is_full(&error) {
            return error;
        }
        let text = format!(
            "the memory for metadata of meta node {node} is used up, and {} has a member there: remove files (cairn fs rm \
             --skip-trash), move partitions to other nodes (cairn admin partition move {} {node} NODE), or give \
             the node more (memory_max_mib in [meta] of its configuration)",
            self.partition(),
            self.partition(),
        );
        WireError::new(ErrorCode::NoSpace, text)
    }

    /// Whether a request was refused because memory is used up.
    pub fn is_full(error: &WireError) -> bool {
        error.code == ErrorCode::NoSpace && error.message.starts_with("the memory ")
    }

    /// What is not in the checkpoint's header, found again when one is loaded.
    pub(crate) fn load_fullness(&mut self) -> Result<()> {
        let stored = self.tree.get(key::fullness().as_bytes());
        let stored = stored.map(|value| Fullness::decode(value).ok_or(OpError::DAMAGED)).transpose()?;
        self.fullness = stored.unwrap_or_default();
        Ok(())
    }
}

/// Whether this is a record of it.
pub(crate) fn is_record(suffix: &[u8], value: &[u8]) -> bool {
    suffix.is_empty() && Fullness::decode(value).is_some()
}
