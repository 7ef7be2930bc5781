//! What tests of crates above look at and set.
use super::FakeCluster;
use cairn_meta_core::AppliedAt;
use cairn_types::WallTime;
use cairn_wire::Opcode;
use cairn_wire::meta::{ExpireSessions, MetaHeader};
use prost::Message as _;
use std::collections::BTreeMap;

impl FakeCluster {
    /// Calls since the last time, by the operation's name.
    pub fn take_calls(&self) -> BTreeMap<&'static str, u64> {
        std::mem::take(&mut self.fake.state.lock().calls)
    }
    /// Overwrites in place that were done.
    pub fn overwrites(&self) -> u64 {
        self.fake.state.lock().overwrites
    }
    /// From now on members refuse to overwrite in place, or do not.
    pub fn saturate(&self, saturated: bool) {
        self.fake.state.lock().saturated = saturated;
    }
    /// A member that was stopped answers again. What it did not answer meanwhile it never does.
    pub fn resume(&self, disk: u32) {
        self.fake.state.lock().stopped.remove(&disk);
    }
    /// Ends all sessions, as if their leases had run out. How many there were.
    pub fn expire_sessions(&self) -> u64 {
        let mut state = self.fake.state.lock();
        let sessions: Vec<u64> = (2..=state.next_session).collect();
        let count = sessions.len() as u64;
        state.log_index += 1;
        let at = AppliedAt { index: state.log_index, time: WallTime(1_000_000 + state.log_index) };
        let request = ExpireSessions { sessions, unknown_only: false }.encode_to_vec();
        let _header = MetaHeader::default();
        let mut out = Vec::new();
        let applied = state.namespace.apply(at, Opcode::ExpireSessions, &request, &mut out);
        assert!(applied.is_ok(), "{applied:?}");
        count
    }
}
