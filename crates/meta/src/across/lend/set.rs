//! A limit of the volume is set at the partition of the root, and holds when every partition has its bound.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use cairn_meta_core::Amounts;
use cairn_types::{ErrorCode, PartitionId};
use cairn_wire::Opcode;
use cairn_wire::error::WireError;
use cairn_wire::meta::{NoteLimit, SetQuotaRequest};
use prost::Message;
use tokio::time::sleep;

use super::home::{asked, change, others, tell_all, told};
use crate::across::drive::Driver;
use crate::across::{PATIENCE, Peers};
use crate::machine::split;
use crate::partition::Partition;

const PAUSE: Duration = Duration::from_millis(100);

/// Whether it is the limit of the volume that a request sets.
fn request_of(data: &Bytes) -> Option<SetQuotaRequest> {
    let (opcode, message) = split(data)?;
    let request = (opcode == Opcode::SetQuota).then(|| SetQuotaRequest::decode(message).ok()).flatten();
    request.filter(|request| request.inode == 0)
}

/// Sets or takes away the limit of a volume of several partitions. It is answered when all have their bounds.
pub(in crate::across) async fn set(driver: &Driver<'_>, data: Bytes) -> Result<Bytes, WireError> {
    let Some(request) = request_of(&data).filter(|request| !request.remove) else { return driver.run(data).await };
    let (partition, peers) = (&**driver.partition, driver.peers);
    let namespace = &partition.state.namespace;
    let may_use = {
        let namespace = namespace.read();
        namespace.within_limits(Amounts::NONE)
    };
    let newly = |max: u64, may_use: u64| max > 0 && may_use == u64::MAX;
    if newly(request.bytes_max, may_use.bytes) || newly(request.inodes_max, may_use.inodes) {
        // Nothing is logged of a limit that could not hold.
        for (from, answer) in tell_all(partition, peers, asked(others(partition, peers))).await {
            if let Err(error) = answer {
                let text = format!("the limit was not set: {}", unheard(from, &error));
                return Err(WireError::new(ErrorCode::Overloaded, text));
            }
        }
    }
    let answer = driver.run(data).await?;
    loop {
        let settled = settle(partition, peers).await;
        if settled.is_ok() && namespace.read().limit_being_set().is_none() {
            return Ok(answer);
        }
        if driver.received.elapsed() > PATIENCE {
            let why = settled.err().map_or_else(String::new, |error| format!(": {}", error.message));
            let text =
                format!("the limit is logged, and being told to all partitions{why}; repeat to learn when it holds");
            // Its number is used.
            return Err(WireError::new(ErrorCode::DeadlineExceeded, text));
        }
        sleep(PAUSE).await;
    }
}

fn unheard(from: PartitionId, error: &WireError) -> String {
    format!(
        "{from} has to know it and did not take it ({}); `cairn admin partition ls` shows who leads it",
        error.message
    )
}

/// Tells partitions what they were not told yet, if there is anything.
pub(super) async fn settle(partition: &Partition, peers: &Arc<Peers>) -> Result<(), WireError> {
    let _one = partition.state.across.desk.lender.lock().await;
    settle_one(partition, peers).await
}

/// The same, while nothing is lent.
pub(super) async fn settle_one(partition: &Partition, peers: &Arc<Peers>) -> Result<(), WireError> {
    let state = &partition.state;
    let (number, is_listed, too_much, lifts) = {
        let namespace = state.namespace.read();
        let number = namespace.limit_being_set();
        (number, namespace.lends_to_all(), namespace.lent_too_much(), namespace.bounds_to_lift())
    };
    if number.is_none() && !lifts {
        return Ok(());
    }
    if number.is_some() && !is_listed {
        // All partitions that were there when the limit was set.
        let rounds = state.across.desk.map_rounds();
        state.common.fresh_map(rounds).await?;
    }
    let others = others(partition, peers);
    // With a bound of nothing, nothing more is used.
    let wanted = |known: Amounts| {
        let keep = known.both(Amounts::NONE, |has, none| if too_much || has == u64::MAX { none } else { has });
        state.namespace.read().within_limits(keep)
    };
    let is_due = |other: &PartitionId| {
        let known = state.namespace.read().lent_to(other.get());
        wanted(known.ceiling) != known.ceiling
    };
    let due = others.iter().copied().filter(is_due).collect();
    let (mut bounds, mut silent) = (Vec::new(), Vec::new());
    for (from, answer) in tell_all(partition, peers, asked(due)).await {
        match answer {
            Ok(answer) => {
                let has = answer.bound.unwrap_or_default().number;
                let (known, number) = {
                    let namespace = state.namespace.read();
                    (namespace.lent_to(from.get()), namespace.next_number(from.get(), has))
                };
                bounds.push(told(from.get(), number, wanted(known.ceiling)));
            }
            Err(error) => silent.push((from, error)),
        }
    }
    silent.extend(change(partition, peers, bounds).await?);
    if let Some((from, error)) = silent.first() {
        return Err(WireError::new(ErrorCode::Unavailable, unheard(*from, error)));
    }
    match number {
        Some(number) => {
            let partitions = others.iter().map(|other| other.get()).collect();
            partition.propose_own(Opcode::NoteLimit, &NoteLimit { number, partitions }).await
        }
        None => Ok(()),
    }
}
