//! AppendTurn requests: turns of those who append to one file at the same time ([`cairn_meta_core::AppendTurns`]),
//! parked until they are first.
//!
//! Memory of one leader. A request is parked while the namespace is read-locked, and looked at after every entry that
//! changes contents, as those of [`change_waits`](crate::change_waits) are. An append without a turn that would push
//! itself in is made to fail in the log, not refused before it: so its session's slot remembers the outcome, and a
//! repetition of one that was done is answered as that. Bounded: the turns, and [`WAITS_MAX`] requests of at most
//! [`WAIT_MAX`] each, none longer than [`WAIT_BYTES_MAX`].

use std::collections::BTreeMap;
use std::time::Duration;

use cairn_meta_core::{AppendTurns, TurnState};
use cairn_rpc::Reply;
use cairn_types::{ErrorCode, Time};
use cairn_wire::Opcode;
use cairn_wire::error::WireError;
use cairn_wire::meta::{AppendTurnRequest, AppendTurnResponse, Attributes, AttributesResponse, PublishRequest};
use parking_lot::Mutex;
use prost::Message;

use crate::change_waits::WAIT_BYTES_MAX;
use crate::partition::PartitionState;

/// Requests parked at one partition. Beyond it they are told to come again.
const WAITS_MAX: usize = 64 << 10;
/// The longest that one request is parked.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// No file has it.
const NO_VERSION: u64 = u64::MAX;

struct Waiting {
    reply: Reply,
    message: Vec<u8>,
    number: u64,
    until: Time,
}

#[derive(Default)]
struct Table {
    turns: AppendTurns,
    by_inode: BTreeMap<u64, Vec<Waiting>>,
    count: usize,
}

/// See the module.
#[derive(Default)]
pub(crate) struct AppendTurnDesk(Mutex<Table>);

impl PartitionState {
    /// Answers an AppendTurn, now or later.
    pub(crate) fn append_turn(&self, message: &[u8], reply: Reply) {
        let Ok(request) = AppendTurnRequest::decode(message) else {
            return reply.err(WireError::new(ErrorCode::BadRequest, "the message cannot be decoded"));
        };
        let now = self.common.clock.now();
        // What changes the file from here on finds this one parked.
        let namespace = self.namespace.read();
        // The message begins as that of Getattr.
        let mut answer = Vec::new();
        if let Err(error) = namespace.read(Opcode::Getattr, message, &mut answer) {
            return reply.err(error);
        }
        let attributes = attributes(&answer);
        let mut table = self.append_turns.0.lock();
        if request.number == 0 {
            let turn = table.turns.take(request.inode, attributes.size, request.length, now);
            drop(table);
            let Some((number, begin)) = turn else {
                let text = "too many append to the file at the same time; repeat in a moment";
                return reply.err(WireError::new(ErrorCode::Overloaded, text));
            };
            let state = u32::from(begin == attributes.size);
            return reply.ok(&AppendTurnResponse { attributes: Some(attributes), number, begin, state }, ());
        }
        if request.give_up {
            table.turns.give_up(request.inode, request.number);
            drop(table);
            drop(namespace);
            self.look_at_turns(request.inode, now);
            return reply.ok(&response(attributes, request.number, TurnState::Gone), ());
        }
        let state = table.turns.state(request.inode, request.number, attributes.size, now);
        let wait = Duration::from_millis(request.wait_ms.into()).min(WAIT_MAX);
        if state != TurnState::Waits || wait.is_zero() || message.len() > WAIT_BYTES_MAX || table.count >= WAITS_MAX {
            drop(table);
            return reply.ok(&response(attributes, request.number, state), ());
        }
        table.count += 1;
        let waiting = Waiting { reply, message: message.to_vec(), number: request.number, until: now + wait };
        table.by_inode.entry(request.inode).or_default().push(waiting);
    }

    pub(crate) fn has_append_turns(&self) -> bool {
        let table = self.append_turns.0.lock();
        table.count > 0 || !table.turns.is_empty()
    }

    /// What is logged of a publish: one that would take another one's turn fails there.
    pub(crate) fn heed_append_turns(&self, message: &[u8], data: &mut Vec<u8>) {
        if !self.has_append_turns() {
            return;
        }
        let Ok(request) = PublishRequest::decode(message) else { return };
        if !request.check_size || request.turn == 0 {
            return;
        }
        let now = self.common.clock.now();
        let namespace = self.namespace.read();
        let Some(size) = size(&namespace, message) else { return };
        // Another size: it fails anyhow, or it is a repetition of one that was done.
        if size != request.if_size || self.append_turns.0.lock().turns.admits(request.inode, request.turn, size, now) {
            return;
        }
        // Of a field that comes twice the last one counts.
        data.extend_from_slice(
            &PublishRequest { if_data_version: NO_VERSION, ..PublishRequest::default() }.encode_to_vec(),
        );
    }

    /// These files may have another size.
    pub(crate) fn sizes_changed(&self, inodes: &[u64], now: Time) {
        for inode in inodes {
            self.look_at_turns(*inode, now);
        }
    }

    /// Forgets turns of those who do not come, and answers those whose time is over.
    pub(crate) fn expire_append_turns(&self, now: Time) {
        let inodes: Vec<u64> = {
            let mut table = self.append_turns.0.lock();
            table.turns.expire(now);
            table.by_inode.keys().copied().collect()
        };
        self.sizes_changed(&inodes, now);
    }

    /// Answers those of a file who need not wait any more.
    fn look_at_turns(&self, inode: u64, now: Time) {
        let mut answers = Vec::new();
        {
            let namespace = self.namespace.read();
            let mut table = self.append_turns.0.lock();
            let Table { turns, by_inode, count } = &mut *table;
            let request = AppendTurnRequest { inode, ..AppendTurnRequest::default() }.encode_to_vec();
            let first = by_inode.get(&inode).and_then(|waiting| waiting.first());
            let message = first.map_or(&request, |waiting| &waiting.message);
            let mut answer = Vec::new();
            let found = namespace.read(Opcode::Getattr, message, &mut answer);
            let attributes = attributes(&answer);
            if found.is_ok() {
                turns.look(inode, attributes.size, now);
            }
            let Some(waiting) = by_inode.get_mut(&inode) else { return };
            let mut still = Vec::new();
            for one in std::mem::take(waiting) {
                let state = turns.state(inode, one.number, attributes.size, now);
                if found.is_ok() && one.until > now && state == TurnState::Waits {
                    still.push(one);
                } else {
                    answers.push((one.reply, found.clone().map(|()| response(attributes, one.number, state))));
                }
            }
            *count -= answers.len();
            if still.is_empty() {
                by_inode.remove(&inode);
            } else {
                *waiting = still;
            }
        }
        for (reply, outcome) in answers {
            reply.result(outcome);
        }
    }

    /// Another member leads: it is to be asked, and knows of no turns.
    pub(crate) fn end_append_turns(&self) {
        let table = std::mem::take(&mut *self.append_turns.0.lock());
        for one in table.by_inode.into_values().flatten() {
            one.reply.err(self.common.not_leader(None));
        }
    }
}

fn attributes(answer: &[u8]) -> Attributes {
    AttributesResponse::decode(answer).ok().and_then(|answer| answer.attributes).unwrap_or_default()
}

fn size(namespace: &cairn_meta_core::Namespace, message: &[u8]) -> Option<u64> {
    let mut answer = Vec::new();
    namespace.read(Opcode::Getattr, message, &mut answer).ok()?;
    Some(attributes(&answer).size)
}

fn response(attributes: Attributes, number: u64, state: TurnState) -> AppendTurnResponse {
    let state = match state {
        TurnState::Waits => 0,
        TurnState::First => 1,
        TurnState::Gone => 2,
    };
    AppendTurnResponse { attributes: Some(attributes), number, begin: 0, state }
}
