//! What a partition does before its leader serves anybody, and before its volume gets more partitions.
//!
//! | it | then |
//! |---|---|
//! | may have forgotten inodes that it gave, and a person accepted that | it passes over ids that it may have given: a mount may still know the old ones |
//! | was made later than its volume | it is told which sessions have ended: what one of them sends late is not done; in a volume with a limit it begins with a bound of nothing |
//! | may have forgotten what it may use of the volume's limit | its bound is what it uses |
//! | has a range without an end, and the volume is to have more partitions, or has them (the state is an older copy) | it ends its range, and its report says so |

use std::time::Duration;

use cairn_meta_core::limits::SPARE_LEVEL;
use cairn_meta_core::{LEND_LEVEL, Namespace};
use cairn_types::{ErrorCode, InodeId};
use cairn_wire::Opcode;
use cairn_wire::error::WireError;
use cairn_wire::meta::{
    EndRange, EndedSessionsRequest, EndedSessionsResponse, MetaHeader, SetBound, SetFeatureLevel, SkipInodes,
    VolumeBound,
};
use tokio::time::sleep;

use crate::across::Peers;
use crate::config::MetaTimings;
use crate::partition::{Partition, PartitionState, Recall};

/// For an answer of some hundred KiB.
const DEADLINE: Duration = Duration::from_secs(5);

/// Does what is due before a new leader leads, until the task is ended.
pub(crate) async fn run(partition: &Partition, peers: &Peers, timings: &MetaTimings) {
    let state = &partition.state;
    let mut recalls = state.recalls.subscribe();
    loop {
        let Ok(Some(due)) = recalls.wait_for(Option::is_some).await.map(|due| *due) else { return };
        if let Err(error) = prepare(partition, peers, due).await {
            tracing::debug!(partition = %state.id, %error, "the partition is not ready to be led; will be repeated");
            sleep(timings.lease_tick).await;
            continue;
        }
        let leads = |present: &mut Option<Recall>| {
            let same = *present == Some(due);
            if same {
                *present = None;
                state.lead(due.term);
            }
            same
        };
        if state.recalls.send_if_modified(leads) {
            tracing::info!(partition = %state.id, term = due.term, "leads the partition");
        }
    }
}

async fn prepare(partition: &Partition, peers: &Peers, due: Recall) -> Result<(), WireError> {
    let state = &partition.state;
    if state.namespace.read().lacks_sessions() {
        take_sessions(partition, peers).await?;
    }
    if !due.forgot {
        return Ok(());
    }
    let is_home = state.namespace.read().is_home();
    if !is_home {
        let told = ask_home(partition, peers).await?;
        take_bound(partition, &told).await?;
    }
    let level = Opcode::SkipInodes.feature_level();
    if state.namespace.read().feature_level() < level {
        // A state of an older build that was put back: nobody leads before this is done, so nobody else raises it.
        partition.propose_own(Opcode::SetFeatureLevel, &SetFeatureLevel { level }).await?;
    }
    match partition.propose_own(Opcode::SkipInodes, &SkipInodes {}).await {
        Err(error) if error.code != ErrorCode::UnknownOperation => return Err(error),
        // Members of before do not know how.
        _ => partition.handle.recalled(due.term),
    }
    Ok(())
}

/// Of a partition that was made with its volume there is nothing to be told.
async fn take_sessions(partition: &Partition, peers: &Peers) -> Result<(), WireError> {
    let state = &partition.state;
    let known = state.common.map.read().partition(state.id).map(|known| known.level);
    let Some(level) = known else {
        return Err(WireError::new(ErrorCode::Unavailable, "no map was heard yet"));
    };
    if level == 0 {
        // It was made with its volume.
        return Ok(());
    }
    if state.namespace.read().feature_level() < Opcode::TakeSessions.feature_level() {
        // All that were chosen as members understand it.
        partition.propose_own(Opcode::SetFeatureLevel, &SetFeatureLevel { level }).await?;
    }
    let told = ask_home(partition, peers).await?;
    take_bound(partition, &told).await?;
    // Of snapshots it has nothing, as long as it has made no inode.
    if let Some(snapshots) = &told.snapshots {
        let level = Namespace::level_to_follow(snapshots);
        if state.namespace.read().feature_level() < level {
            partition.propose_own(Opcode::SetFeatureLevel, &SetFeatureLevel { level }).await?;
        }
        partition.propose_own(Opcode::FollowSnapshots, snapshots).await?;
    }
    let mut sessions = told.sessions.unwrap_or_default();
    if !sessions.live.is_empty() && !may_spare(partition).await? {
        // Members of before take no exceptions: who lives below the floor opens a new session here.
        sessions.live.clear();
    }
    // The last: with it the partition counts as told.
    partition.propose_own(Opcode::TakeSessions, &sessions).await
}

/// Whether all members understand a floor that spares sessions; then that is activated.
async fn may_spare(partition: &Partition) -> Result<bool, WireError> {
    let level = u32::from(SPARE_LEVEL);
    if partition.state.namespace.read().feature_level() >= level {
        return Ok(true);
    }
    let understanding = partition.handle.status().core.understanding;
    match understanding.common {
        None => {
            Err(WireError::new(ErrorCode::Unavailable, understanding.refusal("what a new partition is told", level)))
        }
        Some(common) if common < level => Ok(false),
        Some(_) => {
            partition.propose_own(Opcode::SetFeatureLevel, &SetFeatureLevel { level }).await?;
            Ok(true)
        }
    }
}

async fn ask_home(partition: &Partition, peers: &Peers) -> Result<EndedSessionsResponse, WireError> {
    let state = &partition.state;
    let root = peers.owner(state.volume, InodeId::ROOT.0)?;
    let header = MetaHeader { volume: state.volume.get(), partition: root.get(), ..MetaHeader::default() };
    let request = EndedSessionsRequest { header: Some(header), partition: state.id.get(), live_up_to: 0 };
    peers.call(root, Opcode::EndedSessions, &request, DEADLINE).await
}

/// In a volume with a limit it uses nothing more before it was lent some: a bound that it may have forgotten was
/// another one.
async fn take_bound(partition: &Partition, told: &EndedSessionsResponse) -> Result<(), WireError> {
    if !told.limited {
        return Ok(());
    }
    let level = Opcode::SetBound.feature_level();
    if partition.state.namespace.read().feature_level() < level {
        let understanding = partition.handle.status().core.understanding;
        if understanding.common.is_none_or(|common| common < level) {
            let text = understanding.refusal("a volume with a limit", level);
            return Err(WireError::new(ErrorCode::Unavailable, text));
        }
        partition.propose_own(Opcode::SetFeatureLevel, &SetFeatureLevel { level }).await?;
    }
    let bound = Some(VolumeBound { partition: partition.state.id.get(), number: told.bound, bytes: 0, inodes: 0 });
    partition.propose_own(Opcode::SetBound, &SetBound { bound }).await
}

/// Ends the range of ids when the map says that the volume gets more partitions, until the task is ended.
pub(crate) async fn end_range(partition: &Partition, timings: &MetaTimings) {
    let state = &partition.state;
    // A range that has an end has one for good.
    while state.namespace.read().inode_last() == u64::MAX {
        sleep(timings.reclaim_idle).await;
        let is_due = is_due_to_end(state);
        // With snapshots it would be refused each time: `held` says so.
        if !is_due || state.leading_term().is_none() || state.namespace.read().has_snapshots() {
            continue;
        }
        match partition.propose_own(Opcode::EndRange, &EndRange {}).await {
            Ok(()) => {
                tracing::info!(partition = %state.id, "the range of inodes has ended: the volume gets more partitions")
            }
            Err(error) => {
                tracing::debug!(partition = %state.id, %error, "the range of inodes could not be ended; will be repeated")
            }
        }
    }
}

/// The volume gets more partitions, or has some although this state does not know: it was put back from a copy of
/// before.
fn is_due_to_end(state: &PartitionState) -> bool {
    let map = state.common.map.read();
    let ended = |last: u64| last < u64::MAX && last < state.namespace.read().inode_last();
    map.partition(state.id).is_some_and(|known| known.add > 0 || ended(known.inode_last))
}

/// Why a partition that is to end its range does not, for people.
pub(crate) fn held(partition: &Partition) -> Option<String> {
    let state = &partition.state;
    let is_due = is_due_to_end(state);
    let is_old = || {
        let namespace = state.namespace.read();
        namespace.has_volume_limit() && namespace.feature_level() < u32::from(LEND_LEVEL)
    };
    if is_due && state.leading_term().is_some() && state.namespace.read().has_snapshots() {
        return Some(format!(
            "{} gets no more partitions while it has snapshots: delete them with `cairn fs snapshot delete` (`cairn fs snapshot ls` shows them)",
            state.volume
        ));
    }
    let held = is_due && state.leading_term().is_some() && is_old();
    held.then(|| {
        format!(
            "{} gets no more partitions while the volume has a limit, and some member of its partition does not understand feature level \
             {LEND_LEVEL}: upgrade the meta nodes, or take the limit off with `cairn fs quota rm --volume /`",
            state.volume
        )
    })
}
