//! [`ChangeWaits`]: WaitChange requests that are parked until the contents of their file change, or their time is over.
//!
//! Memory of one leader. A request is parked while the namespace is read-locked, and looked at after every entry that
//! changes contents, so no change is missed: files that are removed, or changed as a part of a larger operation, are
//! noticed when the time is over. Bounded: [`WAITS_MAX`] requests of at most [`WAIT_MAX`] each, and
//! [`WAIT_BYTES_MAX`] of a request.

use std::collections::BTreeMap;
use std::time::Duration;

use cairn_rpc::Reply;
use cairn_types::{ErrorCode, Time};
use cairn_wire::Opcode;
use cairn_wire::error::WireError;
use cairn_wire::meta::{
    AttributesResponse, CloneRangeRequest, GetattrRequest, PublishAttributesRequest, WaitChangeRequest,
};
use parking_lot::Mutex;
use prost::Message;

use crate::partition::PartitionState;

/// Requests parked at one partition. Beyond it they are told to come again.
const WAITS_MAX: usize = 64 << 10;
/// A longer request is not parked: it comes again. Credentials with a thousand groups fit.
pub(crate) const WAIT_BYTES_MAX: usize = 8 << 10;
/// The longest that one request is parked.
const WAIT_MAX: Duration = Duration::from_secs(5);

struct Waiting {
    reply: Reply,
    message: Vec<u8>,
    data_version: u64,
    until: Time,
}

#[derive(Default)]
struct Table {
    by_inode: BTreeMap<u64, Vec<Waiting>>,
    count: usize,
}

/// See the module.
#[derive(Default)]
pub(crate) struct ChangeWaits(Mutex<Table>);

/// The file whose contents an operation of the log changes.
pub(crate) fn changed_by(opcode: Opcode, request: &[u8]) -> Option<u64> {
    match opcode {
        Opcode::Publish
        | Opcode::PublishVolatile
        | Opcode::PublishAppend
        | Opcode::CloseAppend
        | Opcode::Punch
        // All of them begin with the header and the inode.
        | Opcode::Setattr => GetattrRequest::decode(request).ok().map(|request| request.inode),
        Opcode::CloneRange => CloneRangeRequest::decode(request).ok().map(|request| request.inode),
        Opcode::PublishAttributes => {
            PublishAttributesRequest::decode(request).ok()?.publish.map(|publish| publish.inode)
        }
        _ => None,
    }
}

impl PartitionState {
    /// Answers a WaitChange, now or later.
    pub(crate) fn wait_change(&self, message: &[u8], now: Time, reply: Reply) {
        let Ok(request) = WaitChangeRequest::decode(message) else {
            return reply.err(WireError::new(ErrorCode::BadRequest, "the message cannot be decoded"));
        };
        let namespace = self.namespace.read();
        let wait = Duration::from_millis(request.wait_ms.into()).min(WAIT_MAX);
        // The message begins as that of Getattr, and has its answer.
        let mut answer = Vec::new();
        match namespace.read(Opcode::Getattr, message, &mut answer) {
            Err(error) => return reply.err(error),
            Ok(()) if wait.is_zero() || message.len() > WAIT_BYTES_MAX || version(&answer) != request.data_version => {
                return reply.ok_with(|out| out.extend_from_slice(&answer), ());
            }
            Ok(()) => {}
        }
        let mut table = self.change_waits.0.lock();
        if table.count >= WAITS_MAX {
            drop(table);
            let text = "too many wait for changes of files of the partition; repeat in a second";
            return reply.err(WireError::new(ErrorCode::Overloaded, text));
        }
        table.count += 1;
        let (data_version, until) = (request.data_version, now + wait);
        let waiting = Waiting { reply, message: message.to_vec(), data_version, until };
        table.by_inode.entry(request.inode).or_default().push(waiting);
    }

    pub(crate) fn has_change_waits(&self) -> bool {
        self.change_waits.0.lock().count > 0
    }

    /// The contents of these files may have changed.
    pub(crate) fn contents_changed(&self, inodes: &[u64]) {
        for inode in inodes {
            let waiting = {
                let mut table = self.change_waits.0.lock();
                let waiting = table.by_inode.remove(inode).unwrap_or_default();
                table.count -= waiting.len();
                waiting
            };
            let mut still = Vec::new();
            for one in waiting {
                match self.look(&one) {
                    Ok(answer) if version(&answer) == one.data_version => still.push(one),
                    Ok(answer) => one.reply.ok_with(|out| out.extend_from_slice(&answer), ()),
                    Err(error) => one.reply.err(error),
                }
            }
            let mut table = self.change_waits.0.lock();
            table.count += still.len();
            if !still.is_empty() {
                table.by_inode.entry(*inode).or_default().extend(still);
            }
        }
    }

    /// Tells those whose time is over how their file is.
    pub(crate) fn expire_change_waits(&self, now: Time) {
        let mut over = Vec::new();
        {
            let mut table = self.change_waits.0.lock();
            table.by_inode.retain(|_, waiting| {
                over.extend(waiting.extract_if(.., |one| one.until <= now));
                !waiting.is_empty()
            });
            table.count -= over.len();
        }
        for one in over {
            match self.look(&one) {
                Ok(answer) => one.reply.ok_with(|out| out.extend_from_slice(&answer), ()),
                Err(error) => one.reply.err(error),
            }
        }
    }

    /// Another member leads: it is to be asked.
    pub(crate) fn end_change_waits(&self) {
        let table = std::mem::take(&mut *self.change_waits.0.lock());
        for one in table.by_inode.into_values().flatten() {
            one.reply.err(self.common.not_leader(None));
        }
    }

    fn look(&self, one: &Waiting) -> Result<Vec<u8>, WireError> {
        let mut answer = Vec::new();
        self.namespace.read().read(Opcode::Getattr, &one.message, &mut answer)?;
        Ok(answer)
    }
}

fn version(answer: &[u8]) -> u64 {
    let answer = AttributesResponse::decode(answer).unwrap_or_default();
    answer.attributes.map_or(0, |attributes| attributes.data_version)
}
