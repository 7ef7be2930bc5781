//! Opening a chunk: pick a placement group, let its primary give out an index; go on until somebody takes new data.
use super::chunk::OpenChunk;
use super::columns::Seat;
use super::fullness::wait::{FULL_PATIENCE, Fullness};
use super::lane::{Lane, Made};
use super::pick::pick;
use super::shape::Shape;
use super::target::Target;
use crate::cluster::Cluster;
use crate::error::{ClientError, Result};
use crate::net::NetError;
use crate::stripe::suspects::Seen;
use crate::view::{ClusterView, PgView};
use cairn_types::{ChunkId, ErrorCode, ExtentKind, PgClass, PgId, Scheme, Stripe, Time};
use cairn_wire::Opcode;
use cairn_wire::data::{AllocateRequest, AllocateResponse};
use cairn_wire::manager::{EnsurePgsRequest, EnsurePgsResponse};
use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;

/// Deadline of one request for an index: more than the 2 s that the primary gives the disks of the other members.
const ALLOCATE_DEADLINE: Duration = Duration::from_secs(3);
/// A group that failed is left out so long.
const AVOID_FOR: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(50);
/// A group that has not given out an index after this is not waited for alone.
const HEDGE_AFTER: Duration = Duration::from_millis(300);
/// Groups that are asked at the same time.
const ATTEMPTS_MAX: usize = 3;
/// Columns of a stripe set that are opened at the same time.
const OPENING_MAX: usize = 32;
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

/// Why there is no chunk yet.
struct Refusal {
    text: String,
    cause: Cause,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Cause {
    /// Nobody answers, or not as it should.
    Silent,
    /// There is no room.
    Full,
    /// Too few disks are alive, though there are enough.
    Dead,
    /// The cluster has too few disks.
    Few,
}

impl Refusal {
    fn patience(&self, cluster: &Cluster) -> Duration {
        match self.cause {
            Cause::Silent | Cause::Dead => cluster.patience,
            // Room comes back when deleted files are freed, within seconds, or not soon.
            Cause::Full | Cause::Few => cluster.patience.min(FULL_PATIENCE),
        }
    }
    fn into_error(self, scheme: Scheme) -> ClientError {
        let what = format!("writing with {scheme}");
        match self.cause {
            Cause::Few => ClientError::remote(&what, ErrorCode::NotEnoughDisks, &self.text),
            cause => ClientError::NoWritableGroup { what, detail: self.text, full: cause == Cause::Full },
        }
    }
    /// No group of the scheme can be made for want of disks: do they not exist, or are they not alive?
    fn of_disks(view: &ClusterView, scheme: Scheme, text: String) -> Self {
        let (all, wanted) = (view.disks.len(), scheme.members());
        let up = |disk: &&crate::map::Disk| disk.is_in_service() && view.nodes.get(&disk.node).is_some_and(|n| n.up);
        let alive = view.disks.values().filter(up).count();
        if all < wanted || alive >= wanted {
            return Self { text, cause: Cause::Few };
        }
        let text = format!(
            "only {alive} of the cluster's {all} disks are alive: a new placement group of {scheme} needs {wanted}, one \
             that is there {} that serve. It is not a matter of space: bring the others back (cairn admin disk ls)",
            scheme.write_minimum()
        );
        Self { text, cause: Cause::Dead }
    }
}

/// A chunk that is there to be written.
pub(crate) struct Opened {
    pub pg: PgView,
    pub index: u32,
    pub creation_epoch: u64,
}

impl Opened {
    fn made(&self) -> Made {
        let chunk = ChunkId { pg: self.pg.id, index: self.index };
        let (epoch, creation_epoch, scheme) = (self.pg.epoch, self.creation_epoch, self.pg.scheme.code());
        Made { chunk, epoch, creation_epoch, scheme }
    }
    /// Its primary, which passes bytes on to all others that take them.
    fn chain(&self, cluster: &Cluster, number: usize) -> Result<Lane> {
        let mut chain = self.pg.followers();
        cluster.sort_by_nearness(&cluster.view(), &mut chain);
        let primary = self.pg.primary();
        let primary = primary.ok_or_else(|| ClientError::protocol("a new chunk", "its group has no primary"))?;
        Ok(Lane::new(self.made(), number, (primary, chain, self.pg.serving().collect())))
    }
    /// A shard for each member that takes bytes. A member's position is the number of its shard for ever; what nobody
    /// takes now is made later.
    fn shards(&self, scheme: Scheme) -> Vec<Lane> {
        assert_eq!(self.pg.members.len(), scheme.members(), "a shard a member");
        let takes = self.pg.members.iter().enumerate().filter(|(_, (_, state))| state.receives_writes());
        takes.map(|(shard, (disk, _))| Lane::new(self.made(), shard, (*disk, Vec::new(), vec![*disk]))).collect()
    }
}

/// Opens a chunk, or the `columns` chunks of a stripe set; tries until the cluster's patience ends. Of erasure groups
/// complete ones go first, then any with k + 1 serving.
pub(crate) async fn open_chunk(
    cluster: Arc<Cluster>,
    target: Target,
    (shape, columns): (Shape, u16),
    avoided: Arc<Avoided>,
    seat: Option<Seat>,
) -> Result<OpenChunk> {
    match shape {
        Shape::Segments | Shape::Column(_) => {
            let opened = open_index_at(&cluster, target, &avoided, seat.as_ref()).await?;
            Ok(OpenChunk::new(vec![opened.chain(&cluster, 0)?], ExtentKind::Plain, 0))
        }
        Shape::Rows(stripe) => {
            let opened = open_index(&cluster, target, &avoided).await?;
            let scheme = target.class.scheme;
            Ok(OpenChunk::new(opened.shards(scheme), ExtentKind::Erasure(stripe), scheme.tolerated_losses()))
        }
        Shape::Units(stripe) => {
            let stripe = Stripe::new(columns, stripe.unit()).unwrap_or(stripe);
            let lanes = open_columns(cluster, target, usize::from(stripe.columns()), avoided).await?;
            Ok(OpenChunk::new(lanes, ExtentKind::Set(stripe), 0))
        }
    }
}

async fn open_columns(
    cluster: Arc<Cluster>,
    target: Target,
    columns: usize,
    avoided: Arc<Avoided>,
) -> Result<Vec<Lane>> {
    let open = |column| {
        let (cluster, avoided) = (cluster.clone(), avoided.clone());
        async move { open_index(&cluster, target, &avoided).await?.chain(&cluster, column) }
    };
    // One that waits for its group does not hold up the others.
    let opened = stream::iter((0..columns).map(open)).buffer_unordered(OPENING_MAX).try_collect();
    let mut lanes: Vec<Lane> = opened.await?;
    lanes.sort_unstable_by_key(|lane| lane.number);
    Ok(lanes)
}

/// Gets the index of a new chunk in a group without suspects; tries until the cluster's patience ends. A group that
/// does not answer soon is not waited for alone: its members are looked at, and another one is asked as well.
pub(crate) async fn open_index(cluster: &Arc<Cluster>, target: Target, avoided: &Arc<Avoided>) -> Result<Opened> {
    open_index_at(cluster, target, avoided, None).await
}

/// The same; in the column of a seat, if that takes it.
async fn open_index_at(
    cluster: &Arc<Cluster>,
    target: Target,
    avoided: &Arc<Avoided>,
    seat: Option<&Seat>,
) -> Result<Opened> {
    let started = cluster.clock.now();
    let mut last = Refusal { text: "the volume has no placement group".to_owned(), cause: Cause::Silent };
    let (mut attempts, mut fullness) = (Attempts::default(), Fullness::new());
    loop {
        let now = cluster.clock.now();
        if now.since(started) > last.patience(cluster) {
            if last.cause == Cause::Full {
                cluster.full.told(target, now);
            }
            return Err(last.into_error(target.class.scheme));
        }
        let looked_into = !cluster.suspects.is_empty(now);
        let mut avoid = avoided.current(now);
        avoid.extend(attempts.asked(&cluster.view()));
        match choose(cluster, target, &avoid, seat, now) {
            Some(pg) if attempts.count() < ATTEMPTS_MAX => attempts.start(cluster, target, pg),
            None if attempts.count() == 0 && looked_into => {
                tokio::time::sleep(SUSPECT_PAUSE).await;
                continue;
            }
            None if attempts.count() == 0 => {
                ensure_groups(cluster, target, avoided.full(), &mut last).await?;
                if pick(cluster, target.volume, target.class, &avoid).is_none() {
                    if last.cause == Cause::Full && fullness.is_final(cluster, target).await {
                        return Err(last.into_error(target.class.scheme));
                    }
                    // Nothing else there: those that failed get another chance.
                    avoided.clear();
                    tokio::time::sleep(cluster.jitter(PAUSE)).await;
                }
                continue;
            }
            _ => {}
        }
        match attempts.next(cluster, target).await {
            Some((pg, Ok((index, creation_epoch)))) => {
                cluster.full.has_room(target);
                return Ok(Opened { pg, index, creation_epoch });
            }
            Some((pg, Err(error))) => {
                let cause = if error.is_full() { Cause::Full } else { Cause::Silent };
                last = Refusal { text: format!("{}: {}", pg.id, error.text()), cause };
                after_failure(cluster, target, avoided, &pg, error).await;
            }
            None => {}
        }
    }
}

/// Index and creation epoch, or why not.
pub(crate) type Allocated = std::result::Result<(u32, u64), NetError>;

/// Groups that were asked for an index and have not answered.
#[derive(Default)]
struct Attempts {
    running: JoinSet<(PgView, Allocated)>,
    asked: Vec<(PgView, bool)>,
}

impl Attempts {
    /// Under a new epoch a group may be asked again.
    fn asked(&self, view: &ClusterView) -> Vec<PgId> {
        let present = |pg: &PgView| view.pgs.get(&pg.id.0).is_none_or(|known| known.epoch <= pg.epoch);
        self.asked.iter().filter(|(pg, _)| present(pg)).map(|(pg, _)| pg.id).collect()
    }
    fn count(&self) -> usize {
        self.asked.len()
    }
    fn start(&mut self, cluster: &Arc<Cluster>, target: Target, pg: PgView) {
        self.asked.push((pg.clone(), false));
        let cluster = cluster.clone();
        self.running.spawn(async move {
            let answer = allocate(&cluster, target, &pg).await;
            (pg, answer)
        });
    }
    /// The next answer; `None` when there was none for a moment. Then the members of those groups are looked at, once.
    async fn next(&mut self, cluster: &Arc<Cluster>, target: Target) -> Option<(PgView, Allocated)> {
        match tokio::time::timeout(HEDGE_AFTER, self.running.join_next()).await {
            Ok(Some(Ok((pg, answer)))) => {
                self.asked.retain(|(asked, _)| (asked.id, asked.epoch) != (pg.id, pg.epoch));
                Some((pg, answer))
            }
            Ok(_) => {
                self.asked.clear();
                None
            }
            Err(_) => {
                for (pg, looked) in self.asked.iter_mut().filter(|(_, looked)| !looked) {
                    *looked = true;
                    let seen = Seen { session: target.session, pg: pg.id.0, epoch: pg.epoch.0 };
                    let (cluster, members) = (cluster.clone(), pg.serving().collect::<Vec<u32>>());
                    tokio::spawn(look_twice(cluster, seen, members));
                }
                None
            }
        }
    }
}

/// Looks at members, and again when a disk of theirs could be one that stands still.
pub(crate) async fn look_twice(cluster: Arc<Cluster>, seen: Seen, members: Vec<u32>) {
    if let Some(after) = cluster.look_at(seen, members.clone()).await.again {
        tokio::time::sleep(after).await;
        cluster.look_at(seen, members).await;
    }
}

/// A group for a new chunk: without members that are being looked into, and if there is one without any that failed
/// elsewhere.
fn choose(cluster: &Cluster, target: Target, avoid: &[PgId], seat: Option<&Seat>, now: Time) -> Option<PgView> {
    let (view, suspects) = (cluster.view(), &cluster.suspects);
    let mut avoid = avoid.to_vec();
    avoid.extend(groups_with(&view, |disk| suspects.contains(disk)));
    let without_failed: Vec<PgId> =
        avoid.iter().copied().chain(groups_with(&view, |disk| suspects.has_failed(disk, now))).collect();
    let best = seat.and_then(|seat| seat.column(cluster, target, &without_failed));
    let best = best.or_else(|| pick(cluster, target.volume, target.class, &without_failed));
    best.or_else(|| pick(cluster, target.volume, target.class, &avoid))
}

/// Groups in which one of those disks takes writes.
fn groups_with(view: &ClusterView, which: impl Fn(u32) -> bool) -> Vec<PgId> {
    let has = |pg: &&PgView| pg.members.iter().any(|(disk, state)| state.receives_writes() && which(*disk));
    view.pgs.values().filter(has).map(|pg| pg.id).collect()
}

async fn ensure_groups(cluster: &Cluster, target: Target, full: Vec<u32>, last: &mut Refusal) -> Result<()> {
    let PgClass { scheme, later } = target.class;
    let later = later.map_or(0, |later| u32::from(later.code()));
    let request =
        EnsurePgsRequest { volume: target.volume, scheme: u32::from(scheme.code()), full, later, stripe_group: 0 };
    let what = format!("making placement groups for {}", target.class);
    match cluster.manager::<EnsurePgsResponse>(&what, Opcode::EnsurePgs, &request).await {
        Ok(answer) => {
            if let Some(map) = answer.map {
                cluster.learn(map);
            }
            cluster.refresh().await
        }
        // Disks may come back within the patience; the text tells if they do not.
        Err(ClientError::Remote { error, .. }) if error.code == ErrorCode::NoSpace => {
            *last = Refusal { text: error.message, cause: Cause::Full };
            Ok(())
        }
        Err(ClientError::Remote { error, .. }) if error.code == ErrorCode::NotEnoughDisks => {
            cluster.refresh_quietly().await;
            *last = Refusal::of_disks(&cluster.view(), scheme, error.message);
            Ok(())
        }
        Err(error) => Err(error),
    }
}

/// Index and creation epoch from the group's primary.
pub(crate) async fn allocate(cluster: &Cluster, target: Target, pg: &PgView) -> Allocated {
    let primary = pg.primary().ok_or_else(|| NetError::NotSent(format!("{} has no primary", pg.id)))?;
    let address = cluster.disk_address(primary)?;
    let request =
        AllocateRequest { disk: primary, pg: pg.id.0, epoch: pg.epoch.0, session: target.session.0, count: 1 };
    let answer: AllocateResponse = cluster.net.call(&address, Opcode::Allocate, &request, ALLOCATE_DEADLINE).await?;
    let index = *answer.indices.first().ok_or_else(|| NetError::Unknown(format!("{}: no index was given", pg.id)))?;
    Ok((index, answer.creation_epoch))
}

async fn after_failure(cluster: &Arc<Cluster>, target: Target, avoided: &Arc<Avoided>, pg: &PgView, error: NetError) {
    let now = cluster.clock.now();
    let (code, failed_disk) = match &error {
        NetError::Remote(error) => (Some(error.code), error.failed_disk),
        _ => (None, None),
    };
    match code {
        Some(ErrorCode::StaleEpoch | ErrorCode::NotPrimary | ErrorCode::NotServing | ErrorCode::UnknownPg) => {
            cluster.refresh_quietly().await;
            if cluster.view().pgs.get(&pg.id.0).is_some_and(|known| known.epoch == pg.epoch) {
                avoided.add(pg.id, now, false);
            }
        }
        Some(ErrorCode::PgFull | ErrorCode::NoSpace) => avoided.add(pg.id, now, true),
        _ => {
            let culprit = match code {
                Some(ErrorCode::ChainFailed) => failed_disk,
                Some(_) => None,
                None => pg.primary(),
            };
            let Some(disk) = culprit else { return avoided.add(pg.id, now, false) };
            let seen = Seen { session: target.session, pg: pg.id.0, epoch: pg.epoch.0 };
            let (report, pg) = (cluster.report_suspect(seen, disk, error.text()), pg.id);
            let (cluster, avoided) = (cluster.clone(), avoided.clone());
            tokio::spawn(async move {
                // Without the member it is as good as any.
                if !report.await {
                    avoided.add(pg, cluster.clock.now(), false);
                }
            });
        }
    }
}
