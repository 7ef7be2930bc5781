//! A volume gets partitions after it was made: the end of a range that had none, and what a new partition knows of
//! sessions.
//!
//! The only partition of a volume gives out all ids. Before others are made it ends its range by an entry of its log;
//! nothing that it has moves. A new one begins without names, and with the sessions that have ended: a request of one
//! of them that comes late would name blocks which were given back meanwhile.
use crate::error::{OpError, Result};
use crate::lend::LEND_LEVEL;
use crate::namespace::Namespace;
use cairn_types::{ErrorCode, InodeId};
use cairn_wire::meta::TakeSessions;
use prost::Message;

const LIMITED: OpError = OpError::new(
    ErrorCode::NotSupported,
    "the volume has a limit, which is counted over several partitions from feature level 7 of all its members on: upgrade them, or take it off",
);

const SNAPSHOTS: OpError = OpError::new(
    ErrorCode::NotSupported,
    "a volume with snapshots gets no more partitions; delete them with `cairn fs snapshot delete`, or go on with one partition",
);

impl Namespace {
    /// Ends a range without an end in front of a multiple of 2^40. One that has an end keeps it.
    pub(crate) fn end_range(&mut self) -> Result<()> {
        if self.has_volume_limit() && self.level < LEND_LEVEL {
            return Err(LIMITED);
        }
        if self.has_snapshots() {
            return Err(SNAPSHOTS);
        }
        if self.inode_last == u64::MAX {
            // As much as a restored state passes over stays free.
            let reached = self.inode_next.saturating_add(u64::from(u32::MAX));
            self.inode_last = reached | ((1 << InodeId::RANGE_BITS) - 1);
        }
        Ok(())
    }

    /// Whether the volume has a limit, as the partition of its root knows.
    pub fn has_volume_limit(&self) -> bool {
        self.volume_quota().is_some()
    }

    /// The last id that this partition gives out.
    pub const fn inode_last(&self) -> u64 {
        self.inode_last
    }

    /// Whether sessions may have ended of which this partition was not told: nothing was done in it yet, and it is not
    /// the first of its volume.
    pub fn lacks_sessions(&self) -> bool {
        self.inode_first > InodeId::ROOT.0 && self.counters().inodes == 0 && self.sessions.is_new()
    }

    /// For a partition that is made later.
    pub fn ended_sessions(&self) -> TakeSessions {
        let (floor, ended) = self.sessions.ended();
        TakeSessions { floor, ended: ended.collect() }
    }

    pub(crate) fn take_sessions(&mut self, bytes: &[u8]) -> Result<()> {
        let TakeSessions { floor, ended } = TakeSessions::decode(bytes).map_err(|_| OpError::BAD_REQUEST)?;
        self.sessions.take(floor, &ended);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::namespace::NamespaceConfig;
    use crate::session::SessionState;
    use cairn_types::{Layout, PartitionId, VolumeId};

    fn namespace(first: u64, last: u64) -> Namespace {
        let config = NamespaceConfig::new(VolumeId(1), PartitionId(1), Layout::replicated(3));
        Namespace::new(&NamespaceConfig { inodes: first..=last, ..config })
    }

    /// Two partitions would give the same id, or ids that were given would belong to another one.
    #[test]
    fn a_range_ends_behind_what_was_given_and_only_once() {
        for (next, last) in [(2, 1 << 40), (1 << 39, 1 << 40), ((1 << 40) - 5, 2 << 40), (7 << 40, 8 << 40)] {
            let mut one = namespace(1, u64::MAX);
            one.inode_next = next;
            assert!(!one.is_one_of_several());
            one.end_range().expect("no limit");
            assert_eq!(one.inode_last(), last - 1, "{next}");
            assert!(one.is_one_of_several() && one.is_own(next) && one.is_foreign(last));
            one.inode_next = last - 1;
            one.end_range().expect("no limit");
            assert_eq!(one.inode_last(), last - 1, "an end does not move");
        }
        let mut limited = namespace(1, u64::MAX);
        limited.set_volume_quota(Some((1 << 30, 0)));
        assert!(limited.end_range().is_err() && !limited.is_one_of_several(), "its limit would be counted nowhere");
        limited.level = LEND_LEVEL;
        assert!(limited.end_range().is_ok() && limited.is_one_of_several(), "it is lent to others");
    }

    /// What an ended session sends late would be done in a partition that was made after its end.
    #[test]
    fn a_new_partition_knows_which_sessions_have_ended() {
        let mut root = namespace(1, (1 << 40) - 1);
        assert!([7, 9, 12].into_iter().all(|session| root.sessions.end(session)));
        root.sessions.set_floor(8);
        let mut new = namespace(1 << 40, (2 << 40) - 1);
        assert!(new.lacks_sessions() && !root.lacks_sessions());
        new.take_sessions(&root.ended_sessions().encode_to_vec()).expect("sound");
        let ended: Vec<u64> = (1..14).filter(|session| new.session_state(*session) == SessionState::Ended).collect();
        assert_eq!(ended, [1, 2, 3, 4, 5, 6, 7, 8, 9, 12]);
        assert!(!new.lacks_sessions());
        let mut other = namespace(2 << 40, (3 << 40) - 1);
        other.take_sessions(&TakeSessions::default().encode_to_vec()).expect("sound");
        assert!(!other.lacks_sessions(), "it was told that there are none");
    }
}
