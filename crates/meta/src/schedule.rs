//! Snapshots by schedule: the leader asks its namespace once in a while whether one is due, and logs that it is to be
//! taken. What is due and what goes is decided when the entry is applied (`meta-core`), by a time that a majority of
//! the members has reached. In a volume of several partitions the leader takes what is due with the others before, and
//! the entry only removes.

use std::sync::Arc;

use cairn_meta_core::{DueSnapshot, Namespace, SCHEDULE_LEVEL};
use cairn_wire::Opcode;
use cairn_wire::error::WireError;
use cairn_wire::meta::RunSchedule;
use tokio::time::sleep;

use crate::across::Peers;
use crate::across::snapshots::{Wanted, take_scheduled};
use crate::config::MetaTimings;
use crate::partition::Partition;
use crate::stats::count;

pub(crate) async fn run(partition: &Arc<Partition>, peers: &Arc<Peers>, timings: &MetaTimings) {
    let state = &partition.state;
    // Whether the last try failed for good: it is said once, and counted each time.
    let mut said = false;
    loop {
        sleep(timings.schedule_tick).await;
        if state.leading_term().is_none() {
            continue;
        }
        let (clock, voters) = (&state.common.clock, partition.handle.status().core.members.voters);
        let Some(reached) = state.common.clocks.reached(&voters, clock.now(), clock.wall()) else {
            tracing::debug!(partition = %state.id, "too few clocks are known to take snapshots by schedule");
            continue;
        };
        let due = {
            let namespace = state.namespace.read();
            if namespace.feature_level() < u32::from(SCHEDULE_LEVEL) || !namespace.is_schedule_due(reached.0) {
                said = false;
                continue;
            }
            if namespace.is_one_of_several() { namespace.due_snapshots(reached.0) } else { Vec::new() }
        };
        let (taken, gone) = take_with_others(partition, peers, due, reached.0).await;
        let run = partition.propose_own(Opcode::RunSchedule, &RunSchedule { up_to_ns: reached.0, gone }).await;
        match taken.and(run) {
            Ok(()) => said = false,
            Err(error) => {
                count(&state.common.stats.schedule_failures);
                if !std::mem::replace(&mut said, true) {
                    tracing::warn!(
                        partition = %state.id, %error,
                        "a snapshot of the schedule could not be taken; it is tried again until its period is over (cairn fs snapshot ls shows what there is)"
                    );
                }
            }
        }
    }
}

/// What is wrong with one rule does not keep the others from running. Also answers directories that are not there any
/// more.
async fn take_with_others(
    partition: &Arc<Partition>,
    peers: &Arc<Peers>,
    due: Vec<DueSnapshot>,
    up_to_ns: u64,
) -> (Result<(), WireError>, Vec<u64>) {
    let (mut outcome, mut gone) = (Ok(()), Vec::new());
    for DueSnapshot { directory, rule, name } in due {
        let wanted = Wanted { directory, name, rule, up_to_ns, request: Vec::new() };
        match take_scheduled(partition, peers, wanted).await {
            Err(error) if Namespace::lacks_directory(&error) => gone.push(directory),
            taken => outcome = outcome.and(taken),
        }
    }
    (outcome, gone)
}
