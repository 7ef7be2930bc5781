//! [`StageStatus`]: how files come to their later scheme.
use cairn_wire::meta;

/// How the encoding of files with a later scheme goes on in a partition. Counters: since its leader leads.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct StageStatus {
    pub waiting_files: u64,
    pub waiting_bytes: u64,
    /// Of these: their time has come, and clones have most of their bytes, too.
    pub shared_files: u64,
    pub shared_bytes: u64,
    /// Of the others: their time has come.
    pub due_files: u64,
    pub due_bytes: u64,
    /// When that of the next one comes, since 1970; 0: of none.
    pub next_due_ns: u64,
    /// That is worked on; 0: none.
    pub inode: u64,
    /// How far.
    pub from: u64,
    /// Since when it counts, since 1970.
    pub since_ns: u64,
    pub encoded_files: u64,
    /// Written anew.
    pub encoded_bytes: u64,
    /// Less on all disks.
    pub freed_bytes: u64,
    /// Stay copies.
    pub kept_files: u64,
    /// Others were in the way, or something was not complete; each is tried again.
    pub left_times: u64,
    /// Of the last one that was left, while it is to be tried again.
    pub last_reason: String,
    /// Nothing is encoded at this hour.
    pub held: bool,
}

impl StageStatus {
    pub(crate) fn of_wire(found: meta::StageStatusResponse) -> Self {
        Self {
            waiting_files: found.waiting_files,
            waiting_bytes: found.waiting_bytes,
            shared_files: found.shared_files,
            shared_bytes: found.shared_bytes,
            due_files: found.due_files,
            due_bytes: found.due_bytes,
            next_due_ns: found.next_due_ns,
            inode: found.inode,
            from: found.from,
            since_ns: found.since_ns,
            encoded_files: found.encoded_files,
            encoded_bytes: found.encoded_bytes,
            freed_bytes: found.freed_bytes,
            kept_files: found.kept_files,
            left_times: found.left_times,
            last_reason: found.last_reason,
            held: found.held,
        }
    }
}
