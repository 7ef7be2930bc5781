//! The task of one delegation: sends its batches, one after the other, until it is over.
//!
//! Invariants: a batch keeps slot, sequence number and bytes until it is answered, so that the answer tells what came
//! of the first try, whoever leads the partition by then. The slot is the delegation's own: what others wait for stands
//! behind nobody's requests. What the servers say of the session is told to its delegations alone: a session that this
//! client has merely left stores what waits.
use super::held::{Held, Work};
use crate::encoded_message::EncodedMessage;
use crate::leader::Failure;
use crate::meta::call::MetaCaller;
use crate::meta::route::To;
use crate::meta::session::{KeptSlot, Session};
use cairn_delegate_core::input::{CallId, Input};
use cairn_types::ErrorCode;
use cairn_wire::Opcode;
use cairn_wire::error::WireError;
use cairn_wire::meta::{BatchRequest, BatchResponse};
use futures_util::FutureExt as _;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

/// Before a batch is sent again that nobody answered, or that was refused for the moment.
const AGAIN: Duration = Duration::from_millis(500);

/// A batch that is not answered yet, as it is sent each time.
pub(super) struct Sending {
    bytes: EncodedMessage,
}

impl Sending {
    /// It takes the next sequence number of the slot.
    pub(super) fn new(
        caller: &MetaCaller,
        session: &Session,
        partition: u32,
        slot: &mut KeptSlot,
        mut request: BatchRequest,
    ) -> Self {
        request.header = Some(caller.header(partition, session.id, slot.slot, slot.next()));
        Self { bytes: EncodedMessage::of(&request) }
    }
}

/// Runs until the delegation is over, and tells what was lost.
pub(super) async fn run(caller: Arc<MetaCaller>, held: Arc<Held>, slot: KeptSlot) {
    let serving = AssertUnwindSafe(serve(&caller, &held, slot));
    // The session is renewed as long as the client lives: without anybody who sends, all others would wait so long.
    if serving.catch_unwind().await.is_err() {
        held.broken();
    }
    let Some(lost) = held.take_lost() else { return caller.delegations().remove(held.number) };
    let (number, partition, from) = (held.number, held.partition, lost.from);
    let directory = format!("{} in inode {}", String::from_utf8_lossy(&held.name), held.parent);
    tracing::error!(
        error = %lost.error, inode = number, %directory, partition, count = lost.count, from, inodes = ?lost.inodes,
        "changes in a delegated directory are lost: they were answered and could not be stored; what is in it is answered EIO until it \
         is mounted anew"
    );
    if lost.give_back {
        caller.give_back_delegation(&held.session, partition, number);
    }
}

async fn serve(caller: &Arc<MetaCaller>, held: &Held, mut slot: KeptSlot) {
    let (mut done, mut sending) = (None, None);
    loop {
        match held.next_work(done.take()) {
            Work::Send(call, request) => {
                let sending = next(caller, held, &mut slot, &mut sending, (call, request));
                done = Some(send(caller, held, &mut slot, call, sending).await);
            }
            Work::Sleep(None) => held.work.notified().await,
            Work::Sleep(Some(until)) => {
                let pause = until.since(caller.cluster.clock.now());
                if tokio::time::timeout(pause, held.work.notified()).await.is_err() {
                    done = Some(Input::Tick);
                }
            }
            Work::Nothing => break,
        }
    }
    slot.give_back();
}

/// The batch as it was sent before, or with the next sequence number.
fn next<'a>(
    caller: &MetaCaller,
    held: &Held,
    slot: &mut KeptSlot,
    sending: &'a mut Option<(CallId, Sending)>,
    (call, request): (CallId, BatchRequest),
) -> &'a Sending {
    if sending.as_ref().is_none_or(|(sent, _)| *sent != call) {
        *sending = Some((call, Sending::new(caller, &held.session, held.partition, slot, request)));
    }
    &sending.as_ref().expect("it was put there").1
}

async fn send(caller: &MetaCaller, held: &Held, slot: &mut KeptSlot, call: CallId, sending: &Sending) -> Input {
    match once(caller, held.partition, held.number, slot, sending).await {
        None => Input::Unanswered { call },
        Some(Err(error)) if error.code == ErrorCode::SessionEnded => {
            held.session.mark_ended();
            Input::SessionEnded
        }
        Some(answer) => Input::Answered { call, answer },
    }
}

/// Sends a batch, of the delegation with that number. What its partition's log says of it; `None`: nobody knows, and it
/// is to be sent again.
pub(super) async fn once(
    caller: &MetaCaller,
    partition: u32,
    inode: u64,
    slot: &mut KeptSlot,
    sending: &Sending,
) -> Option<Result<BatchResponse, WireError>> {
    let attempts = caller.attempts(To::from(partition), Opcode::Batch, sending.bytes.clone(), caller.patient());
    match attempts.await {
        Ok(answer) => {
            slot.answered();
            let understood = answer.read::<BatchResponse>();
            // It is in the partition's log; what was said of it is a fault of one of both.
            return Some(understood.map_err(|why| WireError::new(ErrorCode::Internal, why)));
        }
        Err(Failure::Final { error, .. }) if is_of_the_log(error.code) => return Some(Err(error)),
        // Of the server that was asked, or of the way there: another one may take it.
        Err(Failure::Final { error, .. }) => {
            tracing::warn!(inode, partition, %error, "changes in a delegated directory are refused; trying again");
        }
        Err(Failure::GaveUp { last, .. }) => {
            tracing::warn!(inode, partition, last, "changes in a delegated directory are not stored yet; trying again");
        }
    }
    tokio::time::sleep(AGAIN).await;
    None
}

/// Whether a refusal says what the partition's log has, so that it stays one.
const fn is_of_the_log(code: ErrorCode) -> bool {
    matches!(
        code,
        ErrorCode::SessionEnded | ErrorCode::Stale | ErrorCode::Conflict | ErrorCode::BadSequence | ErrorCode::Internal
    )
}
