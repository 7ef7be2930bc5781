//! ReclaimBatch and FreeDone: the leader's own entries. One takes dead inodes apart in bounded steps, the other forgets
//! free records that all members of their placement group have carried out.
use crate::dead::Budget;
use crate::error::Result;
use crate::key;
use crate::limits::{RECLAIM_EXTENTS_MAX, RECLAIM_INODES_MAX};
use crate::message::request;
use crate::namespace::Namespace;

impl Namespace {
    /// Zero in a field asks for the most that one entry may do.
    pub(crate) fn reclaim_batch(&mut self, bytes: &[u8]) -> Result<()> {
        let request = request::ReclaimBatch::decode(bytes)?;
        let bounded = |asked: u32, max: u32| if asked == 0 { max } else { asked.min(max) };
        let budget = Budget {
            inodes: bounded(request.inodes_max, RECLAIM_INODES_MAX) as usize,
            extents: bounded(request.extents_max, RECLAIM_EXTENTS_MAX) as usize,
        };
        self.reclaim(budget, request.deferred_to)
    }

    /// Ids that are not there any more are no error.
    pub(crate) fn free_done(&mut self, bytes: &[u8]) -> Result<()> {
        let request = request::FreeDone::decode(bytes)?;
        let (tree, counters) = (&mut self.tree, &mut self.counters);
        request.free_ids.visit(|id| {
            counters.free_records -= u64::from(tree.remove(key::free_record(id).as_bytes()));
            true
        })
    }
}
