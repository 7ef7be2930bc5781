//! Opening a chunk: pick a placement group, let its primary give out an index; go on until somebody takes new data.
use super::chunk::OpenChunk;
use super::pick::pick;
use crate::cluster::Cluster;
use crate::error::{ClientError, Result};
use crate::net::NetError;
use crate::stripe::suspects::Suspects;
use crate::view::{ClusterView, PgView};
use cairn_types::{ChunkId, ErrorCode, PgId, Scheme, SessionId, Time};
use cairn_wire::Opcode;
use cairn_wire::data::{AllocateRequest, AllocateResponse};
use cairn_wire::manager::{EnsurePgsRequest, EnsurePgsResponse};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;

/// Deadline of one request for an index: more than the 700 ms that the primary gives the other members.
const ALLOCATE_DEADLINE: Duration = Duration::from_millis(1500);
/// A group that failed is left out so long.
const AVOID_FOR: Duration = Duration::from_secs(5);
/// A full cluster is tried so long: what was deleted is freed after some seconds.
const FULL_PATIENCE: Duration = Duration::from_secs(12);
const PAUSE: Duration = Duration::from_millis(50);
/// While the manager looks into a failure, the map is looked at so often.
const SUSPECT_PAUSE: Duration = Duration::from_millis(10);

/// Groups that failed lately, with the time of it and whether they were full. Bounded by the groups of the volume.
#[derive(Default)]
pub(crate) struct Avoided(Mutex<Vec<(PgId, Time, bool)>>);

impl Avoided {
    pub(crate) fn add(&self, pg: PgId, now: Time, full: bool) {
        let mut list = self.0.lock();
        list.retain(|(id, _, _)| *id != pg);
        list.push((pg, now, full));
    }
    fn current(&self, now: Time) -> Vec<PgId> {
        let mut list = self.0.lock();
        list.retain(|(_, at, _)| now.since(*at) < AVOID_FOR);
        list.iter().map(|(id, _, _)| *id).collect()
    }
    fn full(&self) -> Vec<u32> {
        self.0.lock().iter().filter(|(_, _, full)| *full).map(|(id, _, _)| id.0).collect()
    }
    fn clear(&self) {
        self.0.lock().clear();
    }
}

/// What chunks are opened for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub volume: u32,
    pub scheme: Scheme,
    pub session: SessionId,
}

/// Why there is no chunk yet.
struct Refusal {
    text: String,
    /// Because there is no room or there are too few disks, and not because nobody answers.
    full: bool,
}

/// A chunk that is there to be written.
pub(crate) struct Opened {
    pub pg: PgView,
    pub index: u32,
    pub creation_epoch: u64,
}

/// Opens a replicated chunk; tries until the cluster's patience ends.
pub(crate) async fn open_chunk(cluster: Arc<Cluster>, target: Target, avoided: Arc<Avoided>) -> Result<OpenChunk> {
    let Opened { pg, index, creation_epoch } = open_index(&cluster, target, &avoided, &Suspects::default()).await?;
    let view = cluster.view();
    let mut chain = pg.followers();
    cluster.sort_by_nearness(&view, &mut chain);
    let primary = pg.primary().ok_or_else(|| ClientError::protocol("a new chunk", "its group has no primary"))?;
    let members = (primary, chain, pg.serving().collect());
    let id = ChunkId { pg: pg.id, index };
    Ok(OpenChunk::new(id, pg.epoch, creation_epoch, pg.scheme.code(), members))
}

/// Gets the index of a new chunk in a group without suspects; tries until the cluster's patience ends.
pub(crate) async fn open_index(
    cluster: &Arc<Cluster>,
    target: Target,
    avoided: &Avoided,
    suspects: &Suspects,
) -> Result<Opened> {
    let started = cluster.clock.now();
    let mut last = Refusal { text: "the volume has no placement group".to_owned(), full: false };
    loop {
        let now = cluster.clock.now();
        // Room comes back when deleted files are freed, within seconds, or not soon.
        let patience = if last.full { cluster.patience.min(FULL_PATIENCE) } else { cluster.patience };
        if now.since(started) > patience {
            let what = format!("writing with {}", target.scheme);
            return Err(ClientError::NoWritableGroup { what, detail: last.text, full: last.full });
        }
        let looked_into = !suspects.is_empty(now);
        let mut avoid = avoided.current(now);
        if looked_into {
            avoid.extend(groups_with(&cluster.view(), |disk| suspects.contains(disk)));
        }
        let view = cluster.view();
        let without_failed: Vec<PgId> =
            avoid.iter().copied().chain(groups_with(&view, |disk| suspects.has_failed(disk, now))).collect();
        let best = pick(cluster, target.volume, target.scheme, &without_failed);
        let Some(pg) = best.or_else(|| pick(cluster, target.volume, target.scheme, &avoid)) else {
            if looked_into {
                tokio::time::sleep(SUSPECT_PAUSE).await;
                continue;
            }
            ensure_groups(cluster, target, avoided.full(), &mut last).await?;
            if pick(cluster, target.volume, target.scheme, &avoid).is_none() {
                // Nothing else there: those that failed get another chance.
                avoided.clear();
                tokio::time::sleep(cluster.jitter(PAUSE)).await;
            }
            continue;
        };
        match allocate(cluster, target, &pg).await {
            Ok((index, creation_epoch)) => return Ok(Opened { pg, index, creation_epoch }),
            Err(error) => {
                last = Refusal { text: format!("{}: {}", pg.id, error.text()), full: error.is_full() };
                after_failure(cluster, target, avoided, &pg, error).await;
            }
        }
    }
}

/// Groups in which one of those disks takes writes.
fn groups_with(view: &ClusterView, which: impl Fn(u32) -> bool) -> Vec<PgId> {
    let has = |pg: &&PgView| pg.members.iter().any(|(disk, state)| state.receives_writes() && which(*disk));
    view.pgs.values().filter(has).map(|pg| pg.id).collect()
}

async fn ensure_groups(cluster: &Cluster, target: Target, full: Vec<u32>, last: &mut Refusal) -> Result<()> {
    let request = EnsurePgsRequest { volume: target.volume, scheme: u32::from(target.scheme.code()), full };
    let what = format!("making placement groups for {}", target.scheme);
    match cluster.manager::<EnsurePgsResponse>(&what, Opcode::EnsurePgs, &request).await {
        Ok(answer) => {
            if let Some(map) = answer.map {
                cluster.learn(map);
            }
            cluster.refresh().await
        }
        // Disks may come back within the patience; the text tells if they do not.
        Err(ClientError::Remote { error, .. })
            if matches!(error.code, ErrorCode::NotEnoughDisks | ErrorCode::NoSpace) =>
        {
            *last = Refusal { text: error.message, full: true };
            Ok(())
        }
        Err(error) => Err(error),
    }
}

/// Index and creation epoch from the group's primary.
async fn allocate(cluster: &Cluster, target: Target, pg: &PgView) -> std::result::Result<(u32, u64), NetError> {
    let primary = pg.primary().ok_or_else(|| NetError::NotSent(format!("{} has no primary", pg.id)))?;
    let address = cluster.disk_address(primary)?;
    let request =
        AllocateRequest { disk: primary, pg: pg.id.0, epoch: pg.epoch.0, session: target.session.0, count: 1 };
    let answer: AllocateResponse = cluster.net.call(&address, Opcode::Allocate, &request, ALLOCATE_DEADLINE).await?;
    let index = *answer.indices.first().ok_or_else(|| NetError::Unknown(format!("{}: no index was given", pg.id)))?;
    Ok((index, answer.creation_epoch))
}

async fn after_failure(cluster: &Cluster, target: Target, avoided: &Avoided, pg: &PgView, error: NetError) {
    let now = cluster.clock.now();
    let (code, failed_disk) = match &error {
        NetError::Remote(error) => (Some(error.code), error.failed_disk),
        _ => (None, None),
    };
    match code {
        Some(ErrorCode::StaleEpoch | ErrorCode::NotPrimary | ErrorCode::NotServing | ErrorCode::UnknownPg) => {
            refresh_quietly(cluster).await;
            if cluster.view().pgs.get(&pg.id.0).is_some_and(|known| known.epoch == pg.epoch) {
                avoided.add(pg.id, now, false);
            }
        }
        Some(ErrorCode::PgFull | ErrorCode::NoSpace) => avoided.add(pg.id, now, true),
        Some(ErrorCode::ChainFailed) => {
            avoided.add(pg.id, now, false);
            if let Some(disk) = failed_disk {
                cluster.report_member(target.session, pg.id.0, pg.epoch.0, disk, error.text()).await;
            }
        }
        Some(_) => avoided.add(pg.id, now, false),
        None => {
            avoided.add(pg.id, now, false);
            if let Some(primary) = pg.primary() {
                cluster.report_member(target.session, pg.id.0, pg.epoch.0, primary, error.text()).await;
            }
        }
    }
}

/// Refreshes the map; a failure shows up in the next call that needs the manager.
pub(crate) async fn refresh_quietly(cluster: &Cluster) {
    if let Err(error) = cluster.refresh().await {
        tracing::debug!(%error, "the cluster map could not be refreshed");
    }
}
