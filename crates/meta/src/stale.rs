//! ReadStale: reads that a member answers from what it has applied, whether it leads or not.
//!
//! Invariants: only who asks for it by this operation gets an answer without a read permit, and only operations that
//! read names and extents; every answer says how old it is at most. Not here: how the age is known (raft-host), whom a
//! client asks, and when (client).

use cairn_meta_core::Namespace;
use cairn_raft_host::GroupHandle;
use cairn_types::ErrorCode;
use cairn_wire::Opcode;
use cairn_wire::error::WireError;
use cairn_wire::meta::{ReadStaleRequest, ReadStaleResponse};
use prost::Message;

use crate::header::Head;
use crate::partition::{Context, Partition};

/// The answer, or why there is none here.
pub(crate) fn read_stale(partition: &Partition, message: &[u8]) -> Result<ReadStaleResponse, WireError> {
    let bad = |text: &str| WireError::new(ErrorCode::BadRequest, text);
    let request = ReadStaleRequest::decode(message).map_err(|_| bad("the message cannot be decoded"))?;
    let opcode = u16::try_from(request.opcode).ok().and_then(Opcode::from_code).filter(|opcode| opcode.may_be_stale());
    let opcode = opcode.ok_or_else(|| {
        let text = format!("operation {:#06x} is none that a member which does not lead may answer", request.opcode);
        WireError::new(ErrorCode::UnknownOperation, text)
    })?;
    if Head::find(&request.request).is_none_or(|head| head.partition != partition.state.id.get()) {
        return Err(bad("the request in it is for another partition"));
    }
    // Asked first: the state only gets newer.
    let age_ms = age_ms(&partition.handle)?;
    if request.age_ms_max != 0 && age_ms > request.age_ms_max {
        let text = format!(
            "what this member has of {} is {:.1} s old, and {:.1} s were allowed",
            partition.state.id,
            age_ms as f64 / 1000.0,
            request.age_ms_max as f64 / 1000.0
        );
        return Err(WireError::new(ErrorCode::Unavailable, text));
    }
    Ok(answer(&partition.state.namespace.read(), opcode, &request.request, age_ms, partition.handle.applied()))
}

fn age_ms(handle: &GroupHandle<Context>) -> Result<u64, WireError> {
    if handle.read_permit().is_ok() {
        return Ok(0);
    }
    let age = handle.age().ok_or_else(|| {
        WireError::new(ErrorCode::Unavailable, "this member waits to be filled and has nothing to answer from")
    })?;
    // 0 says that it leads.
    Ok(u64::try_from(age.as_micros().div_ceil(1000)).unwrap_or(u64::MAX).max(1))
}

fn answer(namespace: &Namespace, opcode: Opcode, message: &[u8], age_ms: u64, applied: u64) -> ReadStaleResponse {
    let mut answer = Vec::new();
    match namespace.read(opcode, message, &mut answer) {
        Ok(()) => ReadStaleResponse { age_ms, applied, answer, ..ReadStaleResponse::default() },
        Err(error) => ReadStaleResponse {
            age_ms,
            applied,
            error: u32::from(error.code.code()),
            error_text: error.message,
            ..ReadStaleResponse::default()
        },
    }
}
