//! What tests of crates above look at and set.
use super::FakeCluster;
use cairn_meta_core::VolatileFile;
use cairn_wire::Opcode;
use cairn_wire::meta::{EndVolatile, ExpireSessions};
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
    pub fn set_older_build(&self, older: bool) {
        self.fake.state.lock().of_older_build = older;
    }
    pub fn saturate(&self, saturated: bool) {
        self.fake.state.lock().saturated = saturated;
    }
    /// A member that was stopped answers again. What it did not answer meanwhile it never does.
    pub fn resume(&self, disk: u32) {
        self.fake.state.lock().stopped.remove(&disk);
    }
    /// Appends with a sync, and syncs, of all members' primaries so far.
    pub fn syncs(&self) -> u64 {
        let state = self.fake.state.lock();
        state.synced_appends + state.syncs
    }
    /// Ends all sessions, as if their leases had run out. How many there were.
    pub fn expire_sessions(&self) -> u64 {
        let mut state = self.fake.state.lock();
        let sessions: Vec<u64> = (2..=state.next_session).collect();
        let count = sessions.len() as u64;
        state.propose(Opcode::ExpireSessions, &ExpireSessions { sessions, unknown_only: false, ..Default::default() });
        count
    }
    /// What the partition's leader does with files that ended sessions closed before they were durable.
    pub fn settle_volatile(&self) -> usize {
        let mut state = self.fake.state.lock();
        let (files, _) = state.namespace.ended_volatile(0, usize::MAX);
        for file in &files {
            let parts = state.namespace.volatile_parts(file, 0);
            let short = parts.iter().find_map(|part| {
                let there = state.durable_length(part.pg, part.index).saturating_sub(part.chunk_offset);
                (there < part.length).then_some(part.file_offset + there)
            });
            let VolatileFile { inode, session, from, to } = *file;
            let request = EndVolatile { inode, session, from, to, durable_to: short.unwrap_or(to) };
            state.propose(Opcode::EndVolatile, &request);
        }
        files.len()
    }
}
