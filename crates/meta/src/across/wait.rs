//! Requests that meet an inode which an operation across partitions has locked: they wait for its end, a client would ask again and again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use cairn_meta_core::Namespace;
use cairn_rpc::Reply;
use cairn_wire::Opcode;
use tokio::sync::watch;

use super::PATIENCE;
use crate::partition::Partition;
use crate::stats::count;

/// An end that is not noticed is looked for so often.
const LOOK: Duration = Duration::from_millis(250);

/// Waits until a lock ended here since `ends` was looked at, a moment at most.
pub(super) async fn for_end(ends: &mut watch::Receiver<u64>, left: Duration) {
    // Nothing to be waited for is left when the partition closes.
    let _ = tokio::time::timeout(left.min(LOOK), ends.changed()).await;
}

/// Answers a read when what it asks for is not locked any more.
pub(super) async fn read(partition: Arc<Partition>, opcode: Opcode, message: Bytes, reply: Reply) {
    let state = &partition.state;
    let began = Instant::now();
    let mut ends = state.across.unlocked.subscribe();
    loop {
        ends.mark_unchanged();
        if let Err(not_leader) = partition.handle.read_permit() {
            return reply.err(state.common.not_leader(not_leader.hint));
        }
        let mut answer = Vec::new();
        let outcome = state.namespace.read().read(opcode, &message, &mut answer);
        let left = PATIENCE.saturating_sub(began.elapsed());
        match outcome {
            Ok(()) => return reply.ok_with(|out| out.extend_from_slice(&answer), ()),
            Err(error) if Namespace::is_locked_across(&error) && !left.is_zero() => for_end(&mut ends, left).await,
            Err(error) => {
                count(&state.common.stats.errors);
                return reply.err(error);
            }
        }
    }
}
