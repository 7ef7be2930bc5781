//! [`LockWaits`]: WaitLock requests that are parked until a lock on their inode is given back, or their time is over.
//!
//! Memory of one leader; nothing is granted here: who is told "free" asks with SetLock, and may lose. A request is parked
//! while the namespace is read-locked, and looked at after every entry that gave a lock back, so no release is missed.
//! Bounded: [`WAITS_MAX`] requests of at most [`WAIT_MAX`] each.

use std::collections::BTreeMap;
use std::time::Duration;

use cairn_rpc::Reply;
use cairn_types::{ErrorCode, Time};
use cairn_wire::Opcode;
use cairn_wire::error::WireError;
use cairn_wire::meta::{WaitLockRequest, WaitLockResponse};
use parking_lot::Mutex;
use prost::Message;

use crate::partition::PartitionState;

/// Requests parked at one partition. Beyond it they are told to come again.
const WAITS_MAX: usize = 64 << 10;
/// The longest that one request is parked.
const WAIT_MAX: Duration = Duration::from_secs(5);

struct Waiting {
    reply: Reply,
    message: Vec<u8>,
    until: Time,
}

#[derive(Default)]
struct Table {
    by_inode: BTreeMap<u64, Vec<Waiting>>,
    count: usize,
}

/// See the module.
#[derive(Default)]
pub(crate) struct LockWaits {
    table: Mutex<Table>,
}

impl PartitionState {
    /// Answers a WaitLock, now or later.
    pub(crate) fn wait_lock(&self, message: &[u8], now: Time, reply: Reply) {
        let Ok(request) = WaitLockRequest::decode(message) else {
            return reply.err(WireError::new(ErrorCode::BadRequest, "the message cannot be decoded"));
        };
        let namespace = self.namespace.read();
        let mut answer = Vec::new();
        if let Err(error) = namespace.read(Opcode::WaitLock, message, &mut answer) {
            return reply.err(error);
        }
        let wait = Duration::from_millis(request.wait_ms.into()).min(WAIT_MAX);
        if !answer.is_empty() || wait.is_zero() {
            return reply.ok_with(|out| out.extend_from_slice(&answer), ());
        }
        let mut table = self.lock_waits.table.lock();
        if table.count >= WAITS_MAX {
            drop(table);
            return reply
                .err(WireError::new(ErrorCode::Overloaded, "too many wait for locks of the partition; repeat"));
        }
        table.count += 1;
        let waiting = Waiting { reply, message: message.to_vec(), until: now + wait };
        table.by_inode.entry(request.inode).or_default().push(waiting);
    }

    /// Locks on these inodes were given back.
    pub(crate) fn locks_released(&self, inodes: &[u64]) {
        if inodes.is_empty() || self.lock_waits.table.lock().count == 0 {
            return;
        }
        for inode in inodes {
            let waiting = {
                let mut table = self.lock_waits.table.lock();
                let waiting = table.by_inode.remove(inode).unwrap_or_default();
                table.count -= waiting.len();
                waiting
            };
            let mut still = Vec::new();
            for one in waiting {
                let mut answer = Vec::new();
                match self.namespace.read().read(Opcode::WaitLock, &one.message, &mut answer) {
                    Ok(()) if answer.is_empty() => still.push(one),
                    Ok(()) => one.reply.ok_with(|out| out.extend_from_slice(&answer), ()),
                    Err(error) => one.reply.err(error),
                }
            }
            let mut table = self.lock_waits.table.lock();
            table.count += still.len();
            if !still.is_empty() {
                table.by_inode.entry(*inode).or_default().extend(still);
            }
        }
    }

    /// Tells those whose time is over to ask again.
    pub(crate) fn expire_lock_waits(&self, now: Time) {
        let mut over = Vec::new();
        {
            let mut table = self.lock_waits.table.lock();
            table.by_inode.retain(|_, waiting| {
                over.extend(waiting.extract_if(.., |one| one.until <= now));
                !waiting.is_empty()
            });
            table.count -= over.len();
        }
        over.into_iter().for_each(|one| one.reply.ok(&WaitLockResponse { free: false }, ()));
    }

    /// Another member leads: it is to be asked.
    pub(crate) fn end_lock_waits(&self) {
        let table = std::mem::take(&mut *self.lock_waits.table.lock());
        for one in table.by_inode.into_values().flatten() {
            one.reply.err(self.common.not_leader(None));
        }
    }
}
