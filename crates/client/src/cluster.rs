//! The connection to a cluster: managers, the cluster map and its refreshes. Shared by everything in the client.
use crate::append::fullness::FullVolumes;
use crate::credentials::Credentials;
use crate::discard::Abandoned;
use crate::encoded_message::Coming;
use crate::error::{ClientError, Result};
use crate::late::{Asking, Questions};
use crate::net::{Net, NetError};
use crate::read::health::HedgeBounds;
use crate::read::shard_reads::ShardReads;
use crate::shared_state::SharedState;
use crate::stale::{STALE_DEADLINE, Stale};
use crate::stripe::suspects::Suspects;
use crate::view::ClusterView;
use crate::waits::Waits;
use cairn_env::{Clock, Rng};
use cairn_placement::{Place, sort_by_nearness};
use cairn_security::Tls;
use cairn_types::{ChunkId, ErrorCode, SessionId};
use cairn_wire::Opcode;
use cairn_wire::manager::{ClusterMap, GetMapRequest, ReportMemberRequest, ReportMemberResponse};
use cairn_wire::protection::Protection;
use parking_lot::RwLock;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Two refreshes of the map are at least so far apart.
const REFRESH_APART: Duration = Duration::from_millis(20);
/// What a reader waits for the map who can go on without a newer one: more than a manager that answers takes.
const MOMENT: Duration = Duration::from_secs(1);
/// After that came to nothing it is not tried again for so long.
const MOMENTS_APART: Duration = Duration::from_secs(10);
/// Longest wait for the first volume of a new cluster, which it makes by itself when a meta node registers.
const FIRST_VOLUME_WAIT: Duration = Duration::from_secs(10);

/// The last fetches of the map.
#[derive(Default)]
struct Refreshed {
    /// When one succeeded; 0: never.
    succeeded: cairn_types::Time,
    /// When one failed since, and why.
    failed: Option<(cairn_types::Time, ClientError)>,
}

/// Longest times that the first contact takes.
#[derive(Clone, Copy)]
pub(crate) struct FirstContact {
    /// While nobody answers at all.
    pub(crate) silent: Duration,
    /// While managers answer that none of them leads.
    pub(crate) leaderless: Duration,
}

/// Part of a chunk that one client reads from one member.
const READ_PART: u64 = 4 << 20;

/// What the client knows and whom it talks to.
pub(crate) struct Cluster {
    pub(crate) net: Net,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) rng: Arc<dyn Rng>,
    /// Host and rack of this client, for nearness.
    place: OwnPlace,
    /// Which of equally near members this client prefers.
    preference: u64,
    pub(crate) managers: RwLock<Vec<String>>,
    /// Manager that answered last.
    pub(crate) current: AtomicUsize,
    /// Who was asked while leaders were late.
    questions: Questions,
    view: RwLock<Arc<ClusterView>>,
    refreshing: tokio::sync::Mutex<Refreshed>,
    /// When a reader last found no manager in a moment.
    missed: RwLock<Option<cairn_types::Time>>,
    /// Longest time that a call tries.
    pub(crate) patience: Duration,
    /// Longest times of the first contact, while it is made.
    pub(crate) first_contact: Option<FirstContact>,
    /// Whether answers of servers that do not lead are taken.
    pub(crate) stale: Stale,
    pub(crate) managers_only: bool,
    /// State of striped reads.
    pub(crate) shards: ShardReads,
    /// Disks that new chunks are opened without.
    pub(crate) suspects: Suspects,
    /// Places of bytes that were sent again elsewhere.
    pub(crate) abandoned: Abandoned,
    /// Volumes that were full a moment ago.
    pub(crate) full: FullVolumes,
    /// When a partition last did not know how to take attributes along with contents.
    pub(crate) apart: RwLock<Option<cairn_types::Time>>,
    /// What other parts keep for all tasks of this client.
    pub(crate) shared: SharedState,
    pub(crate) waits: Waits,
    /// What is shown to servers.
    pub(crate) key: Option<Arc<Tls>>,
}

/// Host and rack of this client. One that was not told its rack has that of the server on its host.
struct OwnPlace {
    host: String,
    rack: OnceLock<String>,
}

impl OwnPlace {
    fn new((host, rack): (String, String)) -> Self {
        let rack = if rack.is_empty() { OnceLock::new() } else { OnceLock::from(rack) };
        Self { host, rack }
    }
    fn get(&self) -> Place<'_> {
        Place { host: &self.host, rack: self.rack.get().map_or("", String::as_str) }
    }
    fn learn(&self, view: &ClusterView) {
        if self.rack.get().is_some() || self.host.is_empty() {
            return;
        }
        let mut racks = view.nodes.values().filter(|node| node.host == self.host).map(|node| &node.rack);
        let Some(rack) = racks.next().filter(|rack| !rack.is_empty()) else { return };
        // Hosts of one name in different racks are different ones.
        if racks.all(|other| other == rack) {
            self.rack.get_or_init(|| rack.clone());
        }
    }
}

impl Cluster {
    pub(crate) fn new(
        net: Net,
        env: (Arc<dyn Clock>, Arc<dyn Rng>),
        managers: Vec<String>,
        place: (String, String),
        patience: Duration,
    ) -> Self {
        Self {
            net,
            preference: env.1.u64(),
            clock: env.0,
            rng: env.1,
            place: OwnPlace::new(place),
            managers: RwLock::new(managers),
            current: AtomicUsize::new(0),
            questions: Questions::default(),
            view: RwLock::new(Arc::default()),
            refreshing: tokio::sync::Mutex::default(),
            missed: RwLock::default(),
            patience,
            first_contact: None,
            stale: Stale::default(),
            managers_only: false,
            shards: ShardReads::new(HedgeBounds::default()),
            suspects: Suspects::default(),
            abandoned: Abandoned::default(),
            full: FullVolumes::default(),
            apart: RwLock::default(),
            shared: SharedState::default(),
            waits: Waits::default(),
            key: None,
        }
    }
    /// Refreshes the map; a failure shows up in the next call that needs the manager.
    pub(crate) async fn refresh_quietly(&self) {
        if let Err(error) = self.refresh().await {
            tracing::debug!(%error, "the cluster map could not be refreshed");
        }
    }
    /// The map as known now.
    pub(crate) fn view(&self) -> Arc<ClusterView> {
        self.view.read().clone()
    }
    /// Takes a map or delta from any answer.
    pub(crate) fn learn(&self, map: ClusterMap) {
        for node in &map.nodes {
            self.net.learn_key(node);
        }
        let mut view = self.view.write();
        Arc::make_mut(&mut view).apply(map);
        self.place.learn(&view);
        let found: Vec<String> = view
            .nodes
            .values()
            .filter(|n| n.roles.iter().any(|r| r == "manager") && !n.address.is_empty())
            .map(|n| n.address.clone())
            .collect();
        drop(view);
        let mut managers = self.managers.write();
        for address in found {
            if !managers.contains(&address) {
                managers.push(address);
            }
        }
    }
    /// Takes the state of one placement group.
    pub(crate) fn learn_pg(&self, state: &cairn_wire::data::PgState) {
        Arc::make_mut(&mut *self.view.write()).apply_state(state);
    }

    /// For calls to leaders, while they are late.
    pub(crate) fn asking(&self) -> Asking<'_> {
        Asking { net: &self.net, questions: &self.questions }
    }
    pub(crate) fn jitter(&self, pause: Duration) -> Duration {
        pause / 2 + pause.mul_f64((self.rng.u64() % 1000) as f64 / 2000.0)
    }

    /// Fetches what changed since the known version; concurrent callers share one fetch, also one that failed.
    pub(crate) fn refresh(&self) -> Coming<'_, Result<()>> {
        Box::pin(self.refresh_once())
    }
    async fn refresh_once(&self) -> Result<()> {
        let asked = self.clock.now();
        let mut last = self.refreshing.lock().await;
        if last.succeeded.0 != 0 && (last.succeeded >= asked || asked.since(last.succeeded) < REFRESH_APART) {
            return Ok(());
        }
        // Whoever waited while one failed for the whole patience does not wait as long once more.
        if let Some((at, error)) = &last.failed
            && *at >= asked
        {
            return Err(error.clone());
        }
        match self.fetch_map().await {
            Ok(map) => {
                self.learn(map);
                *last = Refreshed { succeeded: self.clock.now(), failed: None };
                Ok(())
            }
            Err(error) => {
                last.failed = Some((self.clock.now(), error.clone()));
                Err(error)
            }
        }
    }

    /// The same from the leading manager, whose map has all that happened before this call.
    pub(crate) async fn refresh_from_now(&self) -> Result<()> {
        let request = GetMapRequest { since_version: self.view().version, ..GetMapRequest::default() };
        self.learn(self.manager("fetching the cluster map", Opcode::GetMap, &request).await?);
        Ok(())
    }

    /// That for whoever can do without: it takes a moment, and none where there was no manager a moment ago.
    pub(crate) async fn refresh_for_a_moment(&self) {
        let missed = *self.missed.read();
        if missed.is_some_and(|at| self.clock.now().since(at) < MOMENTS_APART) {
            return;
        }
        let refreshed = matches!(tokio::time::timeout(MOMENT, self.refresh_from_now()).await, Ok(Ok(())));
        *self.missed.write() = (!refreshed).then(|| self.clock.now());
    }

    /// From the leading manager; where that was allowed, from any other one if it does not answer.
    async fn fetch_map(&self) -> Result<ClusterMap> {
        let what = "fetching the cluster map";
        let request = GetMapRequest {
            since_version: self.view().version,
            managers_only: self.managers_only,
            ..GetMapRequest::default()
        };
        if self.stale.allows(Opcode::GetMap).is_none() {
            return self.manager(what, Opcode::GetMap, &request).await;
        }
        if self.stale.deputy(0, self.clock.now()).is_some()
            && let Some(map) = self.stale_map(&request).await
        {
            return Ok(map);
        }
        match self.manager(what, Opcode::GetMap, &request).await {
            Ok(map) => Ok(map),
            Err(error @ ClientError::Remote { .. }) => Err(error),
            Err(error) => self.stale_map(&request).await.ok_or(error),
        }
    }

    /// The newest map of any manager that answers.
    async fn stale_map(&self, request: &GetMapRequest) -> Option<ClusterMap> {
        let request = GetMapRequest { stale_ok: true, age_ms_max: self.stale.age_ms_max(), ..*request };
        let mut asked = tokio::task::JoinSet::new();
        for address in self.managers.read().clone() {
            let net = self.net.clone();
            asked.spawn(async move {
                let answer = net.call::<ClusterMap>(&address, Opcode::GetMap, &request, STALE_DEADLINE).await;
                (address, answer)
            });
        }
        let mut newest: Option<(String, ClusterMap)> = None;
        while let Some(joined) = asked.join_next().await {
            match joined {
                Ok((address, Ok(map))) if newest.as_ref().is_none_or(|(_, best)| map.version > best.version) => {
                    newest = Some((address, map));
                }
                Ok((_, Ok(_))) => {}
                Ok((address, Err(error))) => tracing::debug!(address, error = error.text(), "a manager gave no map"),
                Err(error) => tracing::debug!(%error, "a manager was not asked"),
            }
        }
        let (address, map) = newest?;
        match map.stale {
            true => {
                self.stale.answered(0, &address, self.clock.now());
                self.stale.note("the managers".into(), &address, Duration::from_millis(map.age_ms));
            }
            false => self.stale.forget(0),
        }
        Some(map)
    }

    /// Tells the manager that a member failed or stalled; learns the placement group's new state.
    pub(crate) async fn report_member(&self, session: SessionId, pg: u32, epoch: u64, disk: u32, why: String) {
        tracing::info!(pg, epoch, disk, why, "reporting a member");
        let request = ReportMemberRequest { pg, epoch, disk, why, session: session.0 };
        match self.manager::<ReportMemberResponse>("reporting a member", Opcode::ReportMember, &request).await {
            Ok(answer) => {
                if let Some(state) = &answer.state {
                    self.learn_pg(state);
                }
            }
            Err(error) => tracing::warn!(pg, disk, %error, "the manager did not take the report of a failed member"),
        }
    }
    /// RPC address of the node with the disk.
    pub(crate) fn disk_address(&self, disk: u32) -> std::result::Result<String, NetError> {
        self.view()
            .disk_address(disk)
            .map(str::to_owned)
            .ok_or_else(|| NetError::NotSent(format!("the map names no node for disk d{disk}")))
    }
    /// How what is said of a chunk is kept on its way: as its volume wants it.
    pub(crate) fn protection(&self, chunk: ChunkId) -> Protection {
        self.view.read().protection(chunk.pg.0)
    }
    /// A disk and where it is, for people.
    pub(crate) fn disk_name(&self, disk: u32) -> String {
        let view = self.view();
        let node = view.disks.get(&disk).and_then(|disk| view.nodes.get(&disk.node));
        match node.filter(|node| !node.host.is_empty()) {
            Some(node) => format!("disk d{disk} (host {})", node.host),
            None => format!("disk d{disk}"),
        }
    }
    /// The user as whom servers do what somebody asks: with most keys root is nobody. Whom the key does not allow stays
    /// who he is, and hears that from a server.
    pub(crate) fn squashed(&self, who: Credentials) -> Credentials {
        let Some(rights) = self.key.as_ref().and_then(|key| key.holder().limits()) else { return who };
        let judged = rights.users().judge(Some(who.to_wire())).ok().flatten();
        judged.map_or(who, Credentials::of_wire)
    }
    /// Where this client runs.
    pub(crate) fn here(&self) -> Place<'_> {
        self.place.get()
    }
    /// Orders disks by their distance from this client.
    pub(crate) fn sort_by_nearness(&self, view: &ClusterView, disks: &mut [u32]) {
        sort_by_nearness(disks, self.here(), self.rng.u64(), |disk| place_of(view, *disk));
    }
    /// The same for reading: of equally near members always the same one for a part of a chunk, so that each keeps a
    /// part in its memory instead of all of them everything; others for the next part, and for other clients.
    pub(crate) fn sort_for_reading(&self, view: &ClusterView, disks: &mut [u32], chunk: ChunkId, offset: u64) {
        let part = u64::from(chunk.index).wrapping_add(offset / READ_PART);
        sort_by_nearness(disks, self.here(), self.preference.wrapping_add(part), |disk| place_of(view, *disk));
    }
    /// Id of a volume by its name.
    pub(crate) async fn volume_id(&self, name: &str) -> Result<u32> {
        let started = self.clock.now();
        let mut fetched = false;
        loop {
            let known = self.view();
            if let Some(volume) = known.volume_by_name(name).filter(|volume| volume.trashed_ns == 0) {
                return Ok(volume.id);
            }
            // A cluster without any volume is one that was just begun.
            let begins = known.volumes.is_empty();
            if fetched && !(begins && self.clock.now().since(started) < self.patience.min(FIRST_VOLUME_WAIT)) {
                break;
            }
            if fetched {
                tokio::time::sleep(REFRESH_APART * 2).await;
            }
            self.refresh().await?;
            fetched = true;
        }
        let all = self.view();
        if all.volume_by_name(name).is_some() {
            let text = format!(
                "it is in the trash and serves nobody; `cairn admin volume restore {name}` brings it back, `cairn admin volume ls` says until when"
            );
            return Err(ClientError::remote(&format!("volume {name:?}"), ErrorCode::UnknownVolume, &text));
        }
        let known: Vec<String> = all.volumes.values().filter(|v| v.trashed_ns == 0).map(|v| v.name.clone()).collect();
        let text = match known.is_empty() {
            true => "the cluster has no volume yet, or none that this key opens; `cairn admin volume create default` makes one, `cairn admin \
                     status` says what it waits for, and who runs the cluster makes another key with `cairn key client --volume`"
                .to_owned(),
            false => format!(
                "there is {}; `cairn admin volume create` makes one, and where keys are for some volumes alone, who runs the cluster makes \
                 another key with `cairn key client --volume`",
                known.join(", ")
            ),
        };
        Err(ClientError::remote(&format!("volume {name:?}"), ErrorCode::UnknownVolume, &text))
    }
}

/// Where a disk is.
pub(crate) fn place_of(view: &ClusterView, disk: u32) -> Place<'_> {
    let node = view.disks.get(&disk).and_then(|d| view.nodes.get(&d.node));
    node.map_or(Place::default(), |n| Place { host: &n.host, rack: &n.rack })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::FakeCluster;
    use cairn_types::Scheme;

    /// Who writes in the cluster would have its data encoded in another rack than its own; or be taken for a machine
    /// elsewhere that is called the same.
    #[test]
    fn a_client_beside_a_server_is_in_its_rack() {
        let view_of = |nodes: &[(u32, &str, &str)]| {
            let node = |(id, host, rack): &(u32, &str, &str)| cairn_wire::manager::Node {
                id: *id,
                host: (*host).into(),
                rack: (*rack).into(),
                ..Default::default()
            };
            let mut view = ClusterView::default();
            view.apply(ClusterMap { version: 1, nodes: nodes.iter().map(node).collect(), ..ClusterMap::default() });
            view
        };
        let rack = |told: &str, nodes: &[(u32, &str, &str)]| {
            let place = OwnPlace::new(("here".into(), told.into()));
            place.learn(&view_of(nodes));
            place.get().rack.to_owned()
        };
        assert_eq!(rack("", &[(1, "there", "r1"), (2, "here", "r2"), (3, "here", "r2")]), "r2");
        assert_eq!(rack("r7", &[(2, "here", "r2")]), "r7", "as it was told");
        assert_eq!(rack("", &[(1, "there", "r1")]), "");
        assert_eq!(rack("", &[(2, "here", "r2"), (3, "here", "r3")]), "", "hosts of one name");
    }

    /// Else the first command after the start of a new cluster would fail, and pass a moment later.
    #[tokio::test]
    async fn a_new_clusters_volume_is_waited_for() {
        let cluster = FakeCluster::start(1, &[Scheme::Replicated(1)]);
        cluster.fake.state.lock().without_volume = 5;
        let client = cluster.connect().await;
        client.volume("default").await.expect("the volume comes");
        assert_eq!(cluster.fake.state.lock().without_volume, 0, "nothing was waited for");
    }
}
