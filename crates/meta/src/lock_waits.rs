//! [`LockWaits`]: WaitLock requests that are parked until a lock on their inode is given back, or their time is over.
//!
//! Memory of one leader; nothing is granted here: who is told "free" asks with SetLock, and may lose. A request is
//! parked while the namespace is read-locked, and looked at after every entry that gave a lock back, so no release is
//! missed. Owners of fcntl(2) locks who wait for each other in a ring are told so: one of them, and only when the ring
//! was there at the end of two waits, one after the other, so that a wait that its caller has given up meanwhile is not
//! part of it. Bounded: [`WAITS_MAX`] requests of at most [`WAIT_MAX`] each, none longer than [`WAIT_BYTES_MAX`].

use std::collections::BTreeMap;
use std::time::Duration;

use cairn_rpc::Reply;
use cairn_types::{ErrorCode, Time};
use cairn_wire::Opcode;
use cairn_wire::error::WireError;
use cairn_wire::meta::{GetLockResponse, WaitLockRequest, WaitLockResponse};
use parking_lot::Mutex;
use prost::Message;

use crate::change_waits::WAIT_BYTES_MAX;
use crate::partition::PartitionState;

/// Requests parked at one partition. Beyond it they are told to come again.
const WAITS_MAX: usize = 64 << 10;
/// The longest that one request is parked.
const WAIT_MAX: Duration = Duration::from_secs(5);

/// A ring that is seen a second time after longer than this is another one.
const RING_AGAIN: Duration = Duration::from_secs(15);
/// Owners of a ring that are followed.
const RING_MAX: usize = 256;
const POSIX: u32 = 0;

struct Waiting {
    reply: Reply,
    message: Vec<u8>,
    /// Session and owner.
    who: Owner,
    until: Time,
}

#[derive(Default)]
struct Table {
    by_inode: BTreeMap<u64, Vec<Waiting>>,
    count: usize,
    /// Who was part of a ring at the end of a wait, and when.
    rings: BTreeMap<Owner, Time>,
}

type Owner = (u64, u64);

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
        if !answer.is_empty() || wait.is_zero() || message.len() > WAIT_BYTES_MAX {
            return reply.ok_with(|out| out.extend_from_slice(&answer), ());
        }
        let mut table = self.lock_waits.table.lock();
        if table.count >= WAITS_MAX {
            drop(table);
            return reply
                .err(WireError::new(ErrorCode::Overloaded, "too many wait for locks of the partition; repeat"));
        }
        table.count += 1;
        let who = (request.header.as_ref().map_or(0, |header| header.session), request.owner);
        let waiting = Waiting { reply, message: message.to_vec(), who, until: now + wait };
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
        let mut waits = BTreeMap::new();
        {
            let mut table = self.lock_waits.table.lock();
            if table.by_inode.values().flatten().any(|one| one.until <= now) {
                let messages = table.by_inode.values().flatten().map(|one| (one.who, one.message.clone()));
                waits = messages.filter(|(_, message)| is_posix(message)).collect();
            }
            table.rings.retain(|_, seen| now.since(*seen) < RING_AGAIN);
            table.by_inode.retain(|_, waiting| {
                over.extend(waiting.extract_if(.., |one| one.until <= now));
                !waiting.is_empty()
            });
            table.count -= over.len();
        }
        for one in over {
            let deadlock = is_posix(&one.message) && self.is_deadlock(one.who, &mut waits, now);
            one.reply.ok(&WaitLockResponse { free: false, deadlock }, ());
        }
    }
    /// Whether an owner whose wait is over was in a ring at the end of his last wait, too.
    fn is_deadlock(&self, who: Owner, waits: &mut BTreeMap<Owner, Vec<u8>>, now: Time) -> bool {
        let ring = self.is_in_ring(who, waits);
        let mut table = self.lock_waits.table.lock();
        let seen = table.rings.remove(&who);
        if !ring {
            return false;
        }
        if seen.is_none() {
            table.rings.insert(who, now);
            return false;
        }
        // He gives up: for the others there is no ring any more.
        waits.remove(&who);
        true
    }
    /// Follows who is in the way of whom. Of several in the way one is followed; when he is not any more the next one
    /// is.
    fn is_in_ring(&self, who: Owner, waits: &BTreeMap<Owner, Vec<u8>>) -> bool {
        let namespace = self.namespace.read();
        let mut waiting = who;
        for _ in 0..RING_MAX {
            let Some(message) = waits.get(&waiting) else { return false };
            let mut answer = Vec::new();
            if namespace.read(Opcode::GetLock, message, &mut answer).is_err() {
                return false;
            }
            match GetLockResponse::decode(&answer[..]) {
                Ok(found) if found.r#type != 0 => waiting = (found.session, found.owner),
                _ => return false,
            }
            if waiting == who {
                return true;
            }
        }
        false
    }

    /// Another member leads: it is to be asked.
    pub(crate) fn end_lock_waits(&self) {
        let table = std::mem::take(&mut *self.lock_waits.table.lock());
        for one in table.by_inode.into_values().flatten() {
            one.reply.err(self.common.not_leader(None));
        }
    }
}

/// Rings are those of fcntl(2) locks: flock(2) knows no deadlocks.
fn is_posix(message: &[u8]) -> bool {
    WaitLockRequest::decode(message).is_ok_and(|request| request.kind == POSIX)
}
