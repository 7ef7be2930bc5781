//! Whether all that is below a directory is in its partition, for quotas: they count what theirs has.
//!
//! Directories without subdirectories are passed over, and a directory is left when all of its subdirectories were
//! seen. So what is looked at is little next to the tree, and bounded all the same: a large tree may stay unknown. Not
//! here: what follows from it (`quota`, `ops/quota`).
use crate::encoding::{Dentry, Inode};
use crate::error::{OpError, Result};
use crate::key::{self, Kind};
use crate::namespace::Namespace;

/// Names that are looked at for a move, in its entry of the log, and for an answer: some milliseconds.
pub(crate) const LOOKS: usize = if cfg!(test) { 64 } else { 16 << 10 };

/// Where what is below a directory is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Parts {
    /// All in this partition. Names of files that another one has do not count: a file is counted where it was made.
    Here,
    /// A directory, or a shard of one, is in another partition.
    Elsewhere,
    /// There was too much to look at.
    Unknown,
}

impl Parts {
    /// As on the wire.
    pub(crate) const fn code(self) -> u64 {
        match self {
            Self::Here => 0,
            Self::Elsewhere => 1,
            Self::Unknown => 2,
        }
    }
}

impl Namespace {
    /// Looks at no more names than are `left`, and takes off what it looked at.
    pub(crate) fn parts_below(&self, id: u64, directory: &Inode, left: &mut usize) -> Result<Parts> {
        if !self.is_one_of_several() {
            return Ok(Parts::Here);
        }
        let mut open = vec![(id, *directory)];
        while let Some((id, directory)) = open.pop() {
            if directory.shards > 0 {
                return Ok(Parts::Elsewhere);
            }
            let mut subdirectories = directory.nlink.saturating_sub(2);
            let prefix = key::prefix(id, Kind::Dentry);
            let mut names = self.tree.prefix(prefix.as_bytes());
            while subdirectories > 0 {
                let Some((_, value)) = names.next() else { break };
                if *left == 0 {
                    return Ok(Parts::Unknown);
                }
                *left -= 1;
                let dentry = Dentry::decode(value).ok_or(OpError::DAMAGED)?;
                if !dentry.is_dir() {
                    continue;
                }
                if self.is_foreign(dentry.inode) {
                    return Ok(Parts::Elsewhere);
                }
                subdirectories -= 1;
                open.push((dentry.inode, self.stored_inode(dentry.inode)?));
            }
        }
        Ok(Parts::Here)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encoding::NodeType;
    use crate::namespace::NamespaceConfig;
    use cairn_types::{Layout, PartitionId, VolumeId};

    /// A move into a quota would hold up its partition for as long as a large tree is walked through, or be taken for
    /// one of which all is counted.
    #[test]
    fn no_more_is_looked_at_than_allowed() {
        let config = NamespaceConfig::new(VolumeId(1), PartitionId(1), Layout::replicated(3));
        let mut namespace = Namespace::new(&NamespaceConfig { inodes: 1..=(1 << 40) - 1, ..config });
        let directory = |nlink| Inode { mode: NodeType::Directory as u16 | 0o755, nlink, ..Inode::at(1) };
        let dentry = |inode, d_type| Dentry { inode, d_type };
        let file = Inode { mode: NodeType::Regular as u16, ..Inode::at(1) }.d_type();
        (0..LOOKS).for_each(|number| namespace.put_dentry(5, format!("a{number}").as_bytes(), dentry(9, file)));
        let parts = |namespace: &Namespace, nlink, looks: usize| {
            let mut left = looks;
            (namespace.parts_below(5, &directory(nlink), &mut left).expect("sound"), looks - left)
        };
        assert_eq!(parts(&namespace, 2, LOOKS), (Parts::Here, 0), "files are not looked at without a subdirectory");
        namespace.put_inode(6, &directory(2));
        namespace.put_dentry(5, b"z", dentry(6, directory(2).d_type()));
        assert_eq!(parts(&namespace, 3, LOOKS), (Parts::Unknown, LOOKS));
        assert_eq!(parts(&namespace, 3, 2 * LOOKS), (Parts::Here, LOOKS + 1));
        namespace.put_dentry(5, b"zz", dentry(1 << 40, directory(2).d_type()));
        assert_eq!(parts(&namespace, 4, 2 * LOOKS), (Parts::Elsewhere, LOOKS + 2));
        assert_eq!(parts(&namespace, 3, 2 * LOOKS), (Parts::Here, LOOKS + 1), "it has no more subdirectories");
        namespace.inode_last = u64::MAX;
        assert_eq!(parts(&namespace, 4, 0), (Parts::Here, 0), "the only partition has everything");
    }
}
