//! [`Cluster`]: one head or three and spare ones, some data nodes, the network between them, and a way to ask them that
//! no fault is on.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cairn_client::key::Key;
use cairn_client::{Client, ConnectOptions};
use cairn_env::BufPool;
use cairn_rpc::{CallOptions, ClientConfig, Identity, Payload, Response};
use cairn_security::Tls;
use cairn_sim::{SimDisk, SimRng};
use cairn_types::{Layout, MemberState, Scheme};
use cairn_wire::Opcode;
use cairn_wire::data::PgState;
use cairn_wire::manager::{
    ClusterMap, ConfigItem, EnsurePgsRequest, GetMapRequest, SetConfigRequest, SetConfigResponse,
};
use parking_lot::Mutex;

use crate::data_node::DataNode;
use crate::ground::new_disk;
use crate::head::{Head, Roles};
use crate::keyring::{self, Keyring};
use crate::links::host_of;
use crate::plug::Plug;
use crate::roster::Roster;
use crate::seed::Shape;

/// How long the client tries everything when the only head may be away for a step.
const PATIENCE: Duration = Duration::from_secs(8);
/// The same with three of them: as long as usual, in which another one leads.
const PATIENCE_OF_THREE: Duration = Duration::from_secs(30);
/// Longest time that a start of the whole cluster takes, on a busy machine.
const START_PATIENCE: Duration = Duration::from_secs(60);

/// Settings of the cluster that make its reactions quick.
const SETTINGS: &[(&str, &str)] = &[
    ("node_timeout", "2s"),
    ("probe_deadline", "300ms"),
    ("rejoin_delay", "300ms"),
    ("disk_reserve", "0"),
    ("pgs_per_disk", "2"),
    ("garbage_grace", "2s"),
    ("garbage_period", "3s"),
];

/// The n-th disk of a head.
pub fn head_disk(seed: u64, place: usize, times: u64) -> SimDisk {
    new_disk(seed ^ (place as u64) << 48 ^ times << 56, format!("head{place}"), 512 << 20)
}

/// Calls from a machine that no fault of the network is for. Who did not answer is tried again at once.
fn direct_client(host: usize, key: Option<Arc<Tls>>) -> Result<cairn_rpc::Client, String> {
    let _there = cairn_dst::host::enter(host);
    cairn_dst::links::spare(host);
    let at_once = Duration::from_millis(1);
    let pool = BufPool::new(64 << 20);
    let config = ClientConfig { pool, backoff_min: at_once, backoff_max: at_once, ..ClientConfig::default() };
    cairn_rpc::Client::with_threads(1, config, Identity::client_with_key(key)).map_err(|error| error.to_string())
}

/// A cluster in this process.
pub struct Cluster {
    /// Who has a manager.
    pub roster: Arc<Roster>,
    /// Manager and namespace are in one place only.
    pub only_head: bool,
    /// With the first places: managers, perhaps a spare one with the namespace, perhaps one that a manager comes to.
    pub heads: Vec<Mutex<Head>>,
    /// With those after them.
    pub nodes: Vec<Mutex<DataNode>>,
    /// By place.
    plugs: Vec<Arc<Plug>>,
    /// Numbers that the manager gave, by place.
    numbers: Mutex<BTreeMap<u32, usize>>,
    /// Asks processes without any fault on the way.
    direct: cairn_rpc::Client,
    pub runtime: tokio::runtime::Runtime,
}

impl Cluster {
    /// Starts a cluster.
    pub(crate) fn start(seed: u64, shape: &Shape) -> Result<Self, String> {
        let Shape { managers, heads: meta, nodes: data_nodes, jobs, keys, staging, .. } = *shape;
        let heads = meta + usize::from(shape.other_manager);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name(format!("seed-{seed}"))
            .enable_all()
            .build()
            .map_err(|error| error.to_string())?;
        let plugs: Vec<_> = (0..heads + data_nodes).map(|place| Arc::new(Plug::new(place))).collect();
        let keys = match keys {
            None => Keyring::default(),
            Some(process) => Keyring::make(plugs.len(), &keyring::directory(process))?,
        };
        let director = keys.director();
        let roster = Roster::new(&plugs[..managers], keys);
        let head = |place: usize| {
            let roles = match place {
                _ if place < managers => Roles::Both,
                _ if place < meta => Roles::Namespace,
                _ => Roles::None,
            };
            let disk = head_disk(seed, place, 0);
            let (plug, nodes) = (plugs[place].clone(), (meta, data_nodes));
            Mutex::new(Head::new(place, disk, roles, plug, roster.clone(), nodes, staging.is_some()))
        };
        let node = |place: usize| {
            let racks = staging.map(|staging| staging.racks);
            Mutex::new(DataNode::new(seed, place, plugs[place].clone(), roster.clone(), jobs, racks))
        };
        let (all, nodes) = ((0..heads).map(head).collect(), (heads..plugs.len()).map(node).collect());
        let (direct, only_head) = (direct_client(host_of(plugs.len()), director)?, managers == 1);
        let numbers = Mutex::default();
        let cluster = Self { roster, only_head, heads: all, nodes, plugs, numbers, direct, runtime };
        cluster.set_clocks(seed);
        cluster.start_heads()?;
        // The first volume is made as soon as data nodes are there.
        cluster.set(&[("default_layout", shape.volume)])?;
        for node in &cluster.nodes {
            node.lock().start()?;
        }
        cluster.settle_in()?;
        if staging.is_some_and(|staging| staging.groups) {
            cluster.set(&[("stripe_groups", "on")])?;
            cluster.make_stripe_groups(shape.layout)?;
        }
        Ok(cluster)
    }

    /// As whoever gives a directory the layout has them made.
    fn make_stripe_groups(&self, layout: &str) -> Result<(), String> {
        let class = layout.parse::<Layout>().map_err(|error| error.to_string())?.pg_class();
        let (scheme, later) = (u32::from(class.scheme.code()), u32::from(class.later.map_or(0, Scheme::code)));
        self.eventually("there are stripe groups", START_PATIENCE, || {
            let Some(map) = self.map() else { return false };
            let volume = map.volumes.first().map_or(0, |volume| volume.id);
            let request = EnsurePgsRequest { volume, scheme, later, ..EnsurePgsRequest::default() };
            // It is asked for again until they are there.
            let _refused = self.runtime.block_on(self.ask_manager(Opcode::EnsurePgs, &request));
            map.pgs.iter().any(|pg| pg.column.is_some())
        })
    }

    /// Half of the machines have clocks that are too fast or too slow, by up to two percent.
    fn set_clocks(&self, seed: u64) {
        let rng = SimRng::derived(seed, "clocks");
        for place in 0..self.plugs.len() {
            if rng.chance(0.5) {
                cairn_dst::host::drift(host_of(place), rng.index(40_000) as i64 - 20_000);
            }
        }
    }

    /// Starts heads that do not run and shall, at the same time: without a majority none of them comes up.
    pub fn start_heads(&self) -> Result<(), String> {
        std::thread::scope(|scope| {
            let start = |head: &Mutex<Head>| {
                let mut head = head.lock();
                if head.is_up() || head.roles == Roles::None { Ok(()) } else { head.start() }
            };
            let starting: Vec<_> = self.heads.iter().map(|head| scope.spawn(move || start(head))).collect();
            starting.into_iter().try_for_each(|one| one.join().map_err(|_| "a head panicked as it started")?)
        })
    }

    /// Places of data nodes.
    pub fn data_places(&self) -> std::ops::Range<usize> {
        self.heads.len()..self.heads.len() + self.nodes.len()
    }

    /// Places of heads that are to run.
    pub fn head_places(&self) -> Vec<usize> {
        (0..self.heads.len()).filter(|place| self.heads[*place].lock().roles != Roles::None).collect()
    }

    /// Whether a head is in this place.
    pub fn is_head(&self, place: usize) -> bool {
        place < self.heads.len()
    }

    fn settle_in(&self) -> Result<(), String> {
        self.eventually("every data node is registered", START_PATIENCE, || self.learn_numbers())?;
        self.set(SETTINGS)?;
        self.eventually("the default volume", START_PATIENCE, || {
            self.map().is_some_and(|map| !map.volumes.is_empty() && !map.partitions.is_empty())
        })
    }

    /// Learns which place has which number; false: one has none yet. Who lost everything gets another one.
    pub fn learn_numbers(&self) -> bool {
        let learn = |number: Option<u32>, place| match number {
            Some(number) => {
                self.numbers.lock().insert(number, place);
                true
            }
            None => false,
        };
        let heads = self.heads.iter().map(|head| {
            let head = head.lock();
            learn(head.number(), head.place) || head.roles == Roles::None
        });
        let nodes = self.nodes.iter().map(|node| {
            let node = node.lock();
            learn(node.number(), node.place)
        });
        heads.chain(nodes).filter(|known| !known).count() == 0
    }

    /// Where the process with this number is.
    pub fn place_of(&self, number: u32) -> Option<usize> {
        self.numbers.lock().get(&number).copied()
    }

    /// Changes settings.
    pub fn set(&self, settings: &[(&str, &str)]) -> Result<(), String> {
        let item = |(key, value): &(&str, &str)| ConfigItem {
            key: (*key).into(),
            value: (*value).into(),
            ..ConfigItem::default()
        };
        let request = SetConfigRequest { items: settings.iter().map(item).collect() };
        self.eventually("the manager takes settings", START_PATIENCE, || {
            let answer = self.runtime.block_on(self.ask_manager(Opcode::SetConfig, &request));
            answer.is_ok_and(|answer| answer.decode::<SetConfigResponse>().is_ok_and(|a| a.mistakes.is_empty()))
        })
    }

    /// Waits until something holds.
    pub fn eventually(&self, what: &str, patience: Duration, mut holds: impl FnMut() -> bool) -> Result<(), String> {
        let begun = Instant::now();
        while !holds() {
            if begun.elapsed() > patience {
                return Err(format!("within {patience:?} it did not come about that {what}"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// A client as any front has it.
    pub fn connect(&self) -> Result<Client, String> {
        let patience = if self.only_head { PATIENCE } else { PATIENCE_OF_THREE };
        let key = self.roster.keys.client().map_or(Key::None, Key::Given);
        let options = ConnectOptions { patience, key, ..ConnectOptions::new(self.roster.addresses()) };
        self.runtime.block_on(Client::connect(options)).map_err(|error| error.to_string())
    }

    /// Calls the process in a place, past all faults of the network.
    pub async fn ask(&self, place: usize, opcode: Opcode, request: &impl prost::Message) -> Result<Response, String> {
        let plug = &self.plugs[place];
        if !plug.is_in_use() {
            return Err("it does not run".into());
        }
        let options = CallOptions::new(Duration::from_secs(5));
        let call = self.direct.call(&plug.address(), opcode.code(), request, Payload::None, options);
        call.await.map_err(|error| error.to_string())
    }

    /// Calls whichever manager leads, past all faults of the network.
    pub async fn ask_manager(&self, opcode: Opcode, request: &impl prost::Message) -> Result<Response, String> {
        let mut last = String::new();
        for place in self.roster.places() {
            match self.ask(place, opcode, request).await {
                Ok(answer) => return Ok(answer),
                // Whoever leads says more.
                Err(why) if last.is_empty() || !why.starts_with("NotLeader") => last = why,
                Err(_) => {}
            }
        }
        Err(last)
    }

    /// The manager's map, if it answers.
    pub fn map(&self) -> Option<ClusterMap> {
        self.runtime.block_on(self.map_now())
    }

    /// The same, inside the runtime.
    pub async fn map_now(&self) -> Option<ClusterMap> {
        let request = GetMapRequest::default();
        self.ask_manager(Opcode::GetMap, &request).await.ok()?.decode().ok()
    }

    /// Place of each disk.
    pub fn places(&self, map: &ClusterMap) -> BTreeMap<u32, usize> {
        map.disks.iter().filter_map(|disk| Some((disk.id, self.place_of(disk.node)?))).collect()
    }

    /// Groups with members that do not serve, by the map, and the places of these, besides those that a group has more
    /// than it needs while another one is to leave.
    pub fn not_serving(&self, map: &ClusterMap) -> Vec<(u32, Vec<usize>)> {
        let places = self.places(map);
        let serving = u32::from(MemberState::Serving.code());
        let lacks_some = |state: &&PgState| {
            let width = Scheme::from_code(state.scheme as u8).map_or(state.members.len(), |scheme| scheme.members());
            !state.retired && state.members.iter().filter(|member| member.state == serving).count() < width
        };
        let groups = map.pgs.iter().filter_map(|pg| pg.state.as_ref()).filter(lacks_some);
        let of_group = |state: &PgState| {
            let missing = state.members.iter().filter(|member| member.state != serving);
            (state.pg, missing.filter_map(|member| places.get(&member.disk).copied()).collect::<Vec<_>>())
        };
        groups.map(of_group).filter(|(_, missing)| !missing.is_empty()).collect()
    }

    /// The data node in a place.
    pub fn node(&self, place: usize) -> &Mutex<DataNode> {
        &self.nodes[place - self.heads.len()]
    }
}
