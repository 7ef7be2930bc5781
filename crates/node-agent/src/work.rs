//! What the agent's thread does: register, send heartbeats, hand out the map, register again when told to.
//!
//! Invariant: contributors hear of a registration before any map that came with it or after it, and answers of a
//! manager with a lower term than one heard before are ignored.

use std::sync::Arc;
use std::time::Duration;

use cairn_rpc::{Identity, LeaderClient, Repeat};
use cairn_types::{ClusterId, DiskId, DiskUuid, Incarnation, NodeId, WallTime};
use cairn_wire::Opcode;
use cairn_wire::manager::{
    ClusterMap, DiskReport, HeartbeatRequest, HeartbeatResponse, RegisterRequest, RegisterResponse,
};
use prost::Message;

use crate::agent::Shared;
use crate::config::AgentConfig;
use crate::contributor::{Contributor, Registration};
use crate::seen::Seen;
use crate::settings::Settings;

/// How much longer than usual it waits before it registers again when a role failed.
const ROLE_PAUSE_FACTOR: u32 = 10;

/// The agent's thread.
pub(crate) struct Work {
    config: AgentConfig,
    manager: LeaderClient,
    identity: Identity,
    shared: Arc<Shared>,
    contributors: Vec<Arc<dyn Contributor>>,
    /// The node's id, once known.
    node: NodeId,
    /// The highest term heard.
    term: u64,
    /// The managers that were configured; those of the map are asked as well.
    configured: Vec<String>,
    /// Ask for the whole map with the next heartbeat.
    map_lost: bool,
    /// Somebody poked while a call was under way: the next one does not wait.
    poked: bool,
    /// As they were told last.
    settings: Settings,
    /// The highest numbers that this node knows to be given.
    seen: Seen,
}

/// Why an exchange with the manager came to nothing.
enum Fault {
    /// Said, with the reason.
    Failed(String),
    /// A role could not take the registration over. Each attempt makes a new incarnation, so it is repeated rarely.
    Role(String),
    /// The owner stops the agent.
    Stopped,
}

impl Work {
    pub(crate) fn new(config: AgentConfig, manager: LeaderClient, identity: Identity, shared: Arc<Shared>) -> Self {
        let (node, configured) = (config.node, manager.addresses());
        Self {
            config,
            manager,
            identity,
            shared,
            contributors: Vec::new(),
            node,
            term: 0,
            configured,
            map_lost: false,
            poked: false,
            settings: Settings::default(),
            seen: Seen::default(),
        }
    }

    pub(crate) async fn run(mut self) {
        let mut registered: Option<Arc<Registration>> = None;
        while !self.stopped() {
            let disks_joined = self.take_joining(registered.as_deref());
            let outcome = match registered.as_deref() {
                Some(registration) if !disks_joined => self.heartbeat(registration).await,
                _ => self.register().await.map(Some),
            };
            let pause = match outcome {
                Ok(Some(registration)) => {
                    registered = Some(Arc::new(registration));
                    self.note(registered.clone(), String::new());
                    Duration::ZERO
                }
                Ok(None) => {
                    self.note(registered.clone(), String::new());
                    self.config.heartbeat_interval
                }
                Err(Fault::Failed(why)) => {
                    self.note(registered.clone(), why);
                    self.config.register_pause
                }
                Err(Fault::Role(why)) => {
                    self.note(None, why);
                    registered = None;
                    self.config.register_pause * ROLE_PAUSE_FACTOR
                }
                Err(Fault::Stopped) => return,
            };
            if !pause.is_zero() {
                self.rest(pause).await;
            }
        }
    }

    fn stopped(&self) -> bool {
        self.shared.state.lock().stop
    }

    /// Waits, or less when somebody pokes.
    async fn rest(&mut self, pause: Duration) {
        if std::mem::take(&mut self.poked) {
            return;
        }
        // Elapsed or poked: both mean that it is time.
        let _ = tokio::time::timeout(pause, self.shared.poke.notified()).await;
    }

    /// Publishes how things stand; a new problem is logged once.
    fn note(&self, registration: Option<Arc<Registration>>, problem: String) {
        let mut state = self.shared.state.lock();
        if problem != state.problem {
            if problem.is_empty() {
                tracing::info!("the manager answers again");
            } else {
                tracing::warn!(%problem, "the manager cannot be reached; will be repeated");
            }
        }
        state.problem = problem;
        state.registration = registration;
        self.shared.changed.notify_all();
    }

    /// Takes new contributors over. Returns whether one of them brings disks that have to be registered.
    fn take_joining(&mut self, registered: Option<&Registration>) -> bool {
        let (joining, map) = {
            let mut state = self.shared.state.lock();
            let joining = std::mem::take(&mut state.joining);
            let map = if joining.is_empty() { ClusterMap::default() } else { state.view.to_map() };
            (joining, map)
        };
        let mut disks_joined = false;
        for contributor in joining {
            if let Some(registration) = registered {
                let brings_disks = !contributor.disks().is_empty();
                disks_joined |= brings_disks;
                if !brings_disks {
                    if let Err(why) = contributor.registered(registration) {
                        tracing::error!(%why, "a role could not take the registration over; registering again");
                        disks_joined = true;
                    } else if map.version > 0 {
                        contributor.map_changed(&map, self.term);
                    }
                }
            }
            if self.settings != Settings::default() {
                contributor.settings(&self.settings);
            }
            self.contributors.push(contributor);
        }
        disks_joined
    }

    fn disks(&self) -> Vec<DiskReport> {
        self.contributors.iter().flat_map(|contributor| contributor.disks()).collect()
    }

    /// Calls the manager, giving up as soon as the owner stops the agent.
    async fn call<A: Message + Default>(&mut self, opcode: Opcode, request: &impl Message) -> Result<A, Fault> {
        let manager = self.manager.clone();
        let call = manager.call::<A>(opcode, request, self.config.call_deadline, Repeat::Harmless);
        tokio::pin!(call);
        loop {
            tokio::select! {
                biased;
                outcome = &mut call => return outcome.map_err(|error| Fault::Failed(error.to_string())),
                () = self.shared.poke.notified() => self.poked = true,
            }
            if self.stopped() {
                return Err(Fault::Stopped);
            }
        }
    }

    async fn register(&mut self) -> Result<Registration, Fault> {
        let disks = self.disks();
        let uuids: Vec<DiskUuid> =
            disks.iter().map(|disk| DiskUuid::from_slice(&disk.uuid).unwrap_or(DiskUuid::NONE)).collect();
        let mut request = RegisterRequest {
            node_uuid: self.config.node_uuid.0.to_vec(),
            node: self.node.get(),
            roles: self.config.roles.clone(),
            address: self.config.address.clone(),
            http_address: self.config.http_address.clone(),
            rack: self.config.rack.clone(),
            host: self.config.host.clone(),
            disks,
            version: self.config.version.clone(),
            managers: None,
            seen: Some(self.seen.numbers()),
            things: None,
        };
        self.contributors.iter().for_each(|contributor| contributor.register(&mut request));
        // What roles keep on their disks is told with heartbeats from now on.
        self.seen.kept(request.seen.as_ref());
        let answer: RegisterResponse = self.call(Opcode::Register, &request).await?;
        self.check_term(answer.term)?;
        self.contributors.iter().for_each(|contributor| contributor.register_answered(&answer));
        let map = answer.map.unwrap_or_default();
        let registration = self.judge(&uuids, &map, answer.node, answer.incarnation, &answer.disks, answer.problems)?;
        for contributor in &self.contributors {
            contributor.registered(&registration).map_err(Fault::Role)?;
        }
        self.hand_out(&map);
        tracing::info!(node = %registration.node, incarnation = %registration.incarnation, cluster = %registration.cluster,
            disks = registration.disks.len(), "registered with the manager");
        Ok(registration)
    }

    /// Holds the answer against what is known of this node.
    fn judge(
        &mut self,
        uuids: &[DiskUuid],
        map: &ClusterMap,
        node: u32,
        incarnation: u64,
        disks: &[u32],
        problems: Vec<String>,
    ) -> Result<Registration, Fault> {
        let failed = |why: String| Err(Fault::Failed(why));
        let Some(cluster) = ClusterId::from_slice(&map.cluster).filter(|cluster| !cluster.is_none()) else {
            return failed("the manager's answer names no cluster".to_owned());
        };
        if !self.identity.set_cluster(cluster) {
            let ours = self.identity.cluster();
            return failed(format!(
                "the manager serves cluster {cluster}, this node belongs to {ours}; check the manager's addresses"
            ));
        }
        if node == 0 || incarnation == 0 || disks.len() != uuids.len() {
            return failed("the manager's answer to the registration is incomplete".to_owned());
        }
        if self.node.get() != 0 && self.node.get() != node {
            return failed(format!("the manager knows this node as n{node}, its label says {}", self.node));
        }
        self.node = NodeId(node);
        self.identity.set_node(self.node);
        for problem in &problems {
            tracing::error!(%problem, "the manager refused a disk of this node");
        }
        let disks = uuids.iter().copied().zip(disks.iter().map(|disk| DiskId(*disk))).collect();
        self.seen.registered(incarnation);
        let incarnation = Incarnation(incarnation);
        Ok(Registration { node: self.node, cluster, incarnation, term: self.term, disks, problems })
    }

    /// One heartbeat; a new registration when the manager asked for one.
    async fn heartbeat(&mut self, registration: &Registration) -> Result<Option<Registration>, Fault> {
        let map_version = if self.map_lost { 0 } else { self.shared.state.lock().view.version() };
        let mut request = HeartbeatRequest {
            node: registration.node.get(),
            incarnation: registration.incarnation.get(),
            map_version,
            disks: self.disks(),
            seen: Some(self.seen.numbers()),
            ..HeartbeatRequest::default()
        };
        for contributor in &self.contributors {
            contributor.heartbeat(&mut request);
        }
        let answer: HeartbeatResponse = self.call(Opcode::Heartbeat, &request).await?;
        self.check_term(answer.term)?;
        for contributor in &self.contributors {
            contributor.manager_clock(NodeId(answer.manager), WallTime(answer.wall_ns));
        }
        if answer.register_again {
            tracing::warn!(incarnation = %registration.incarnation, "the manager asks this node to register again");
            return self.register().await.map(Some);
        }
        for contributor in &self.contributors {
            contributor.heartbeat_answered(&answer);
            contributor.heartbeat_taken();
        }
        if let Some(map) = answer.map {
            self.hand_out(&map);
        }
        self.tell_settings(Settings::new(&answer.settings));
        if !self.map_lost {
            self.contributors.iter().for_each(|contributor| contributor.up_to_date());
        }
        Ok(None)
    }

    /// Passes settings on if they changed.
    fn tell_settings(&mut self, settings: Settings) {
        if settings != self.settings {
            self.settings = settings;
            self.seen.settings(&self.settings);
            self.contributors.iter().for_each(|contributor| contributor.settings(&self.settings));
        }
    }

    fn check_term(&mut self, term: u64) -> Result<(), Fault> {
        if term < self.term {
            return Err(Fault::Failed(format!("an answer of the manager's term {term} after one of {}", self.term)));
        }
        self.term = term;
        self.seen.term(term);
        Ok(())
    }

    /// Keeps the change and passes it on; without news nobody is bothered.
    fn hand_out(&mut self, change: &ClusterMap) {
        self.seen.map(change);
        {
            let mut state = self.shared.state.lock();
            if change.base_version > 0 && change.version <= state.view.version() {
                return;
            }
            self.map_lost = !state.view.apply(change);
        }
        if self.map_lost {
            return;
        }
        self.learn_managers();
        for contributor in &self.contributors {
            contributor.map_changed(change, self.term);
        }
    }

    /// Members of the manager's group may have moved since the configuration was written.
    fn learn_managers(&self) {
        let mut addresses = self.configured.clone();
        {
            let state = self.shared.state.lock();
            let managers = state.view.nodes().filter(|node| node.roles.iter().any(|role| role == "manager"));
            addresses.extend(managers.map(|node| node.address.clone()).filter(|address| !address.is_empty()));
        }
        addresses.sort();
        addresses.dedup();
        if addresses != self.manager.addresses() {
            self.manager.set_addresses(addresses);
        }
    }
}
