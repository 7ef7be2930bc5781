//! A volume gets partitions after it was made: the end of a range that had none, and what a new partition knows of
//! sessions.
//!
//! The only partition of a volume gives out all ids. Before others are made it ends its range by an entry of its log;
//! nothing that it has moves. A new one begins without names, and with the sessions that have ended: a request of one
//! of them that comes late would name blocks which were given back meanwhile.
use crate::error::{OpError, Result};
use crate::lend::LEND_LEVEL;
use crate::limits::{ENDED_SESSIONS_LIMIT, ENDED_SESSIONS_MAX, SPARE_LEVEL, SPARED_SESSIONS_MAX};
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
            self.wait_for_delegations()?;
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

    /// For a partition that is made later. Of very many that live below the floor the oldest go on there; the others
    /// count as ended.
    pub fn ended_sessions(&self) -> TakeSessions {
        let (floor, ended) = self.sessions.ended();
        let live = self.sessions.not_ended(floor).into_iter().take(SPARED_SESSIONS_MAX);
        TakeSessions { floor, ended: ended.collect(), live: live.collect() }
    }

    /// Up to which session nothing more needs to be remembered one by one, when that is much. Before that floor is
    /// logged, the other partitions say who of those below it lives there.
    pub fn floor_wanted(&self) -> Option<u64> {
        if self.level < SPARE_LEVEL { None } else { self.sessions.floor_wanted() }
    }

    /// Sessions up to `last` that have not ended as far as is known here.
    pub fn sessions_live_up_to(&self, last: u64) -> std::collections::BTreeSet<u64> {
        self.sessions.live_up_to(last)
    }

    /// Sessions up to this one have ended, but those that are spared.
    pub fn sessions_floor(&self) -> u64 {
        self.sessions.ended().0
    }

    /// Ended sessions that are remembered one by one, whatever others say.
    pub(crate) const fn ended_sessions_max(&self) -> usize {
        if self.level < SPARE_LEVEL { ENDED_SESSIONS_MAX } else { ENDED_SESSIONS_LIMIT }
    }

    pub(crate) fn take_sessions(&mut self, bytes: &[u8]) -> Result<()> {
        let TakeSessions { floor, ended, live } = TakeSessions::decode(bytes).map_err(|_| OpError::BAD_REQUEST)?;
        self.sessions.take(floor, &ended, &live, self.ended_sessions_max());
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

    /// A mount that lives for weeks would lose its session, and its locks, at its first change in another partition.
    #[test]
    fn a_floor_spares_who_lives_elsewhere() {
        let state = |of: &Namespace, session| of.session_state(session);
        let many = 10..12 + ENDED_SESSIONS_MAX as u64;
        let last = many.end;
        let mut root = namespace(1, (1 << 40) - 1);
        root.level = SPARE_LEVEL;
        // The mount lives in the root's partition, another one only elsewhere.
        root.sessions.keep_answer(7, 0, 1, b"");
        many.for_each(|session| root.end_session(session));
        let floor = root.floor_wanted().expect("there are many");
        assert_eq!((root.sessions.floor(), state(&root, 8)), (0, SessionState::Unknown), "others are asked first");
        let cut = |live: &[u64]| TakeSessions { floor, live: live.to_vec(), ..TakeSessions::default() }.encode_to_vec();
        root.take_sessions(&cut(&[7, 8, 10, 99_999_999])).expect("sound");
        assert_eq!(root.sessions.floor(), floor);
        assert!(root.floor_wanted().is_none(), "half of them are forgotten");
        let expected = [SessionState::Live, SessionState::Unknown, SessionState::Ended, SessionState::Ended];
        assert_eq!([7, 8, 9, 10].map(|session| state(&root, session)), expected, "what has ended stays so");
        assert_eq!(state(&root, last), SessionState::Unknown);

        let mut new = namespace(1 << 40, (2 << 40) - 1);
        new.take_sessions(&root.ended_sessions().encode_to_vec()).expect("sound");
        assert_eq!([7, 8].map(|session| state(&new, session)), [SessionState::Unknown; 2], "they live");
        let ended = (1..last).filter(|session| state(&new, *session) == SessionState::Ended).count() as u64;
        assert_eq!(ended, last - 1 - 2, "all others have ended");
        new.sessions.keep_answer(7, 0, 1, b"");
        for session in [7, 8] {
            new.end_session(session);
            assert_eq!(state(&new, session), SessionState::Ended);
        }
        // Who does not live anywhere any more is not spared for ever.
        root.take_sessions(&cut(&[])).expect("sound");
        assert_eq!(state(&root, 8), SessionState::Ended);
        new.take_sessions(&cut(&[8])).expect("sound");
        assert_eq!(state(&new, 8), SessionState::Ended, "it is never unknown again");
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
