//! What a member keeps in memory about overwrites in place of its group: as primary the requests that it has taken and
//! the chunks of which members may differ, as syncing member what it could not take.
//!
//! Invariant: everything but the numbers of leases that were seen and the time after a member left belongs to one
//! epoch. Bounds: requests by [`OverwriteRequests`], repeats that wait by [`WAITING_MAX`], the rest by the chunks of
//! the group.

use std::collections::{BTreeMap, BTreeSet};

use cairn_chunk_core::lease_fence::LeaseFence;
use cairn_chunk_core::overwrite_requests::{OverwriteRequests, Seen};
use cairn_format::overwrite_number::OverwriteNumber;
use cairn_rpc::Reply;
use cairn_types::{Epoch, ErrorCode, SessionId, Time};
use cairn_wire::data::OverwriteResponse;
use cairn_wire::error::WireError;

/// Repeats that wait for the outcome of a request that is under way; further ones are refused as overload.
const WAITING_MAX: usize = 4096;

/// A request of a client.
pub(super) type RequestId = (SessionId, u64);

/// What a request of a client is about.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked {
    pub(super) id: RequestId,
    /// Nothing below is waited for.
    pub(super) floor: u64,
    /// Of the chunk.
    pub(super) index: u32,
    /// The file, and the number of the lease; both 0: none.
    pub(super) lease: (u64, u64),
}

/// As named above.
#[derive(Default)]
pub(crate) struct OverwriteMemory {
    epoch: Epoch,
    /// As primary: the serving members were found or made equal in this epoch.
    pub(super) open: bool,
    requests: OverwriteRequests<OverwriteResponse>,
    leases: LeaseFence,
    /// Repeats of requests that are under way.
    waiting: BTreeMap<RequestId, Vec<Reply>>,
    waiting_count: usize,
    /// Overwrites of a chunk that are under way, by its index.
    running: BTreeMap<u32, u32>,
    /// Chunks of which members may differ, by index: nothing is taken for them before they are equal.
    pub(super) unsettled: BTreeSet<u32>,
    /// Somebody makes them equal.
    pub(super) settling: bool,
    /// A member has so much to write home that nothing is taken before then.
    pub(super) saturated_until: Time,
    /// A member left, and may answer readers until then.
    pub(super) quiet_until: Time,
    /// As syncing member: overwrites of chunks that are not here, by index.
    pub(super) skipped: BTreeMap<u32, OverwriteNumber>,
}

/// What becomes of a request.
pub(super) enum Begin {
    /// It is done now.
    Go(Reply),
    /// It was answered, or will be with the first one.
    Taken,
    /// It is refused.
    No(Reply, WireError),
}

impl OverwriteMemory {
    /// The memory of an epoch; `None` when the group has moved on.
    pub(super) fn at(&mut self, epoch: Epoch) -> Option<&mut Self> {
        if self.epoch < epoch {
            let waiting = std::mem::take(&mut self.waiting);
            // A client that was stopped for long does not know that its lease is over, and learns of the epoch by
            // itself.
            let leases = std::mem::take(&mut self.leases);
            *self = Self { epoch, leases, quiet_until: self.quiet_until, ..Self::default() };
            for reply in waiting.into_values().flatten() {
                reply.err(WireError::stale_epoch(epoch, "the placement group moved on; refresh the cluster map"));
            }
        }
        (self.epoch == epoch).then_some(self)
    }

    /// A request for a chunk came. If it is to be done, one more is under way until [`end`](Self::end).
    pub(super) fn begin(&mut self, asked: Asked, now: Time, reply: Reply) -> Begin {
        let Asked { id, floor, index, lease } = asked;
        let busy = |text: &str| WireError::new(ErrorCode::Overloaded, text);
        if now < self.quiet_until {
            let text = "a member that left a moment ago may still answer readers; write to new space";
            return Begin::No(reply, WireError::new(ErrorCode::NotInPlace, text));
        }
        if !self.open || self.unsettled.contains(&index) {
            return Begin::No(reply, busy("the members are being made equal after a failure; repeat in a moment"));
        }
        if now < self.saturated_until {
            let text = "the journal of a member is full of overwrites; write to new space";
            return Begin::No(reply, WireError::new(ErrorCode::NotInPlace, text));
        }
        if !self.leases.admits(lease.0, lease.1) {
            let text = "the file is overwritten under a newer lease; write to new space";
            return Begin::No(reply, WireError::new(ErrorCode::NotInPlace, text));
        }
        match self.requests.came(id.0, id.1, floor) {
            Seen::New => {
                *self.running.entry(index).or_default() += 1;
                Begin::Go(reply)
            }
            Seen::Done(answer) => {
                reply.ok(&answer, ());
                Begin::Taken
            }
            Seen::Running if self.waiting_count < WAITING_MAX => {
                self.waiting.entry(id).or_default().push(reply);
                self.waiting_count += 1;
                Begin::Taken
            }
            Seen::Running | Seen::TooMany => Begin::No(reply, busy("too many overwrites are under way")),
            Seen::Over => {
                let text = "the session has said that it waits for this overwrite no more";
                Begin::No(reply, WireError::new(ErrorCode::BadRequest, text))
            }
        }
    }

    /// A request ended; `None`: it was not done, or not on all members. Returns the repeats that wait for it.
    pub(super) fn end(&mut self, id: RequestId, index: u32, outcome: Option<OverwriteResponse>) -> Vec<Reply> {
        self.requests.ended(id.0, id.1, outcome);
        if let Some(count) = self.running.get_mut(&index) {
            *count -= 1;
            if *count == 0 {
                self.running.remove(&index);
            }
        }
        let waiting = self.waiting.remove(&id).unwrap_or_default();
        self.waiting_count -= waiting.len();
        waiting
    }

    /// A chunk of which members may differ and for which nothing is under way, behind `after`.
    pub(super) fn next_unsettled(&self, after: Option<u32>) -> Option<u32> {
        let from = after.map_or(0, |after| after.saturating_add(1));
        self.unsettled.range(from..).copied().find(|index| !self.running.contains_key(index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A client whose machine slept would write old blocks over newer ones as soon as the group has another epoch.
    #[test]
    fn newer_leases_are_remembered_in_the_next_epoch() {
        let mut memory = OverwriteMemory::default();
        for epoch in 1..4 {
            let memory = memory.at(Epoch(epoch)).expect("newer");
            assert!(!memory.open && memory.unsettled.is_empty());
            if epoch > 1 {
                assert!(!memory.leases.admits(5, 8), "an older one");
            }
            memory.open = true;
            assert!(memory.leases.admits(5, 9) && memory.leases.admits(6, 1));
        }
    }
}
