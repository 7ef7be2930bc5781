//! What a check finds, and what can be done about it.
/// Something that is not as it has to be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// The inode; 0: the volume's own lists and totals.
    pub inode: u64,
    pub text: String,
    /// What `mend` can do about it.
    pub mend: Option<Mend>,
}

/// A change that makes something right again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mend {
    /// Totals change by this much, in the order of the checkpoint's header.
    Counters([i64; 9]),
    /// Use of a quota changes by this much: bytes, inodes.
    Quota { bytes: i64, inodes: i64 },
    /// An inode that nothing leads to gets a name in `lost+found`. `names` is how many it has.
    Adopt,
    /// The number of links changes by this much.
    Links(i32),
    /// As [`Adopt`](Self::Adopt), unless it was changed since: no partition has a name of it.
    AdoptUnchanged { generation: u64 },
    /// The name goes: what it names is not there and never will be again. The partition that has the name does it.
    Name,
}

/// What a check came to.
#[derive(Debug)]
pub struct FsckReport {
    pub inodes: u64,
    pub directories: u64,
    /// Directories in which clones are built, or were when their builders died: nothing is wrong with them. Some of
    /// them, if there are many.
    pub unfinished: Vec<u64>,
    pub findings: Vec<Finding>,
    /// Findings with those that were not kept.
    pub found: u64,
}

/// A name under which commands build clones: `.NAME.cloning`.
pub(super) fn is_unfinished(name: &[u8]) -> bool {
    name.starts_with(b".") && name.ends_with(b".cloning") && name.len() > b"..cloning".len()
}
