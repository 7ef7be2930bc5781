//! [`ManagerServer`]: a running member, and its RPC service.
//!
//! Requests are decoded on the connection's thread and answered from the manager's own runtime thread: few calls a
//! node and second, and none of them on the path of data or of names. How many at a time: [`Rooms`].
use crate::config::ManagerConfig;
use crate::error::ManagerError;
use crate::machine::{Machine, Replica};
use crate::manager::Manager;
use crate::memory::{self, Start};
use crate::metrics::Metrics;
use crate::rights::Limits;
use crate::rooms::Rooms;
use cairn_env::{Clock, Rng};
use cairn_manager_core::checkpoint;
use cairn_raft_host::{HostError, RaftHost};
use cairn_rpc::{Client, Identity, PeerInfo, Reply, Request, Service};
use cairn_telemetry::Samples;
use cairn_types::{ErrorCode, GroupId, NodeId, crc32c_append};
use cairn_wire::Opcode;
use cairn_wire::audience::{Caller, Roles};
use cairn_wire::error::WireError;
use cairn_wire::manager::{
    CancelJobRequest, EnsurePgsRequest, EnsurePgsResponse, GetConfigRequest, HeartbeatRequest, OpenSessionResponse,
    RegisterRequest, ReportJobRequest, StartJobRequest, StatusRequest, TakeJobRequest,
};
use parking_lot::Mutex;
use std::convert::Infallible;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::{Notify, oneshot};

/// Managers that a configuration may name: five, and one more while one takes the place of another.
const MEMBERS_MAX: usize = 6;
/// Time for requests under way when the manager stops.
const STOP_GRACE: Duration = Duration::from_millis(200);

/// What a manager stands on.
pub struct ManagerParts {
    /// Hosts the manager's group; messages of group 0 are delivered to it by its owner.
    pub raft: Arc<RaftHost>,
    /// For probes and for telling members new epochs.
    pub client: Client,
    /// Learns the cluster from the log.
    pub identity: Identity,
    pub clock: Arc<dyn Clock>,
    pub rng: Arc<dyn Rng>,
}

/// A running member of the manager's group.
pub struct ManagerServer {
    manager: Arc<Manager>,
    stop: Mutex<Option<(oneshot::Sender<()>, JoinHandle<()>)>>,
}

impl ManagerServer {
    /// Opens the group's log and takes part. Blocks while the state is restored, and, without a log, until the other
    /// members were asked whether there is a cluster already. Not to be called in a tokio runtime.
    pub fn start(config: ManagerConfig, parts: ManagerParts) -> Result<Self, ManagerError> {
        check(&config)?;
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(ManagerError::Thread)?;
        let labelled = !parts.identity.cluster().is_none();
        let knows = parts.raft.knows_group(GroupId::MANAGER).map_err(HostError::from)?;
        let start = match config.join {
            true => Start::Join,
            // Recovered, or, if its label names a cluster that its log does not know, refused below.
            false if labelled || knows => Start::Begin,
            false => runtime.block_on(memory::how_to_start(&config, &parts.client))?,
        };
        if start == Start::Begin && !labelled && !knows && !matches!(config.members.len(), 1 | 3 | 5) {
            let count = config.members.len();
            return Err(ManagerError::Config(format!(
                "a new cluster begins with 1, 3 or 5 managers, not with {count}"
            )));
        }
        let manager = Arc::new_cyclic(|me| Manager {
            replica: Arc::new(Replica::default()),
            client: parts.client,
            raft: parts.raft.clone(),
            identity: parts.identity,
            clock: parts.clock,
            rng: parts.rng,
            metrics: Metrics::default(),
            runtime: runtime.handle().clone(),
            log: OnceLock::new(),
            leading: Mutex::new(None),
            wake: Notify::new(),
            pushed: Notify::new(),
            planning: tokio::sync::Mutex::new(()),
            newcomers: tokio::sync::Mutex::new(()),
            granting: tokio::sync::Mutex::new(()),
            probes: Mutex::default(),
            witnesses: Mutex::default(),
            foreign: AtomicBool::new(false),
            me: me.clone(),
            config,
        });
        let machine = Machine::new(manager.replica.clone(), Arc::downgrade(&manager), parts.raft.feature_level());
        let members: Vec<NodeId> = manager.config.members.iter().map(|(id, _)| *id).collect();
        let log = match (start, labelled) {
            (Start::Join, _) => parts.raft.open_group(GroupId::MANAGER, &[], machine)?,
            (Start::Begin, false) => parts.raft.open_group(GroupId::MANAGER, &members, machine)?,
            // Its label names a cluster: without its log it would begin a second one.
            (Start::Begin, true) => parts.raft.open_existing(GroupId::MANAGER, machine)?,
        };
        if manager.log.set(log).is_err() {
            unreachable!("it is set once, here");
        }
        let (stop, stopped) = oneshot::channel::<()>();
        let duties = manager.clone().duties();
        let thread = std::thread::Builder::new()
            .name("cairn-manager".into())
            .spawn(move || {
                runtime.spawn(duties);
                // An error means that the server was dropped, which is the signal as well.
                let _ = runtime.block_on(stopped);
                runtime.shutdown_timeout(STOP_GRACE);
            })
            .map_err(ManagerError::Thread)?;
        Ok(Self { manager, stop: Mutex::new(Some((stop, thread))) })
    }

    /// Serves operations 0x02xx, and those of 0x07xx that are about the cluster.
    pub fn service(&self) -> Arc<dyn Service> {
        Arc::new(Desk { manager: self.manager.clone(), rooms: Rooms::new() })
    }

    #[cfg(test)]
    pub(crate) fn inner(&self) -> &Arc<Manager> {
        &self.manager
    }

    /// Whether this member leads and may answer.
    pub fn leads(&self) -> bool {
        self.manager.permit().is_ok()
    }

    /// Version, length and CRC-32C of this member's state: members that have applied the same commands have the same.
    /// It walks through the state: for tests.
    pub fn state_digest(&self) -> (u64, u64, u32) {
        let state = self.manager.replica.read().clone();
        let (mut bytes, mut crc) = (0, 0);
        let written = checkpoint::write(&state, |piece| {
            bytes += piece.len() as u64;
            crc = crc32c_append(crc, piece);
            Ok::<(), Infallible>(())
        });
        match written {
            Ok(()) => (state.version(), bytes, crc),
            Err(never) => match never {},
        }
    }

    /// Appends the metrics of this member.
    pub fn sample(&self, out: &mut Samples) {
        self.manager.sample(out);
    }

    /// For `/healthz`: why this member cannot serve or follow, if so.
    pub fn health(&self) -> Result<(), String> {
        if self.manager.foreign.load(Ordering::Relaxed) {
            return Err("the manager's log belongs to another cluster than this process's label".into());
        }
        let status = self.manager.log.get().map(|log| log.status());
        match status {
            Some(status) => match (status.trouble(GroupId::MANAGER, self.manager.config.member), status.core.leader) {
                (Some(why), _) => Err(format!("the manager's group: {why}")),
                (None, None) if !status.core.members.contains(self.manager.config.member) => {
                    Err(waits(self.manager.config.member))
                }
                (None, None) => Err("the manager's group has no leader: a majority of its members has to run".into()),
                (None, Some(_)) => Ok(()),
            },
            None => Err("the manager is starting".into()),
        }
    }

    /// Ends duties and requests; the group itself ends with its host.
    pub fn stop(&self) {
        let Some((stop, thread)) = self.stop.lock().take() else { return };
        drop(stop);
        if thread.join().is_err() {
            tracing::error!("the manager's thread panicked");
        }
    }
}

/// Of a manager that runs and is no member.
fn waits(member: NodeId) -> String {
    let number = member.get();
    format!(
        "manager {number} is no member of the managers' group: it waits for `cairn admin manager add {number}@HOST:PORT` with its address"
    )
}

impl Drop for ManagerServer {
    fn drop(&mut self) {
        self.stop();
    }
}

fn check(config: &ManagerConfig) -> Result<(), ManagerError> {
    let wrong = |text: String| Err(ManagerError::Config(text));
    let ids: Vec<NodeId> = config.members.iter().map(|(id, _)| *id).collect();
    if ids.iter().any(|id| !(1..=15).contains(&id.get())) {
        return wrong("members have numbers 1 to 15".into());
    }
    if !(1..=MEMBERS_MAX).contains(&ids.len()) {
        return wrong(format!("there are {} members; use 1, 3 or 5", ids.len()));
    }
    if (1..ids.len()).any(|i| ids[..i].contains(&ids[i])) {
        return wrong("a member is named twice".into());
    }
    match ids.contains(&config.member) {
        true => Ok(()),
        false => wrong(format!("this is member {}, which the list of members does not name", config.member.get())),
    }
}

/// The RPC service.
struct Desk {
    manager: Arc<Manager>,
    rooms: Arc<Rooms>,
}

/// What a client waits for before its request is worked on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Waits {
    Nothing,
    /// There may be many of them, they are answered from memory, and each answer takes long to make.
    Turn,
    /// The same, of one with which a leader that has just begun waits for reports: not in its turn.
    TurnAfterReports,
    /// Plans come one after the other.
    Plan,
}

impl Waits {
    fn of(opcode: Option<Opcode>, is_limited: bool) -> Self {
        match opcode {
            Some(Opcode::GetMap | Opcode::ListJobs | Opcode::OpenSession) => Self::Turn,
            // Who has a key with limits is told nothing of what is reported.
            Some(Opcode::Status) if is_limited => Self::Turn,
            Some(Opcode::Status) => Self::TurnAfterReports,
            Some(Opcode::EnsurePgs) => Self::Plan,
            _ => Self::Nothing,
        }
    }
}

impl Desk {
    /// Decodes, works on the manager's runtime, answers.
    fn serve<Q, A, F>(&self, request: &Request<'_>, reply: Reply, work: impl FnOnce(Arc<Manager>, Q) -> F)
    where
        Q: prost::Message + Default,
        A: prost::Message,
        F: Future<Output = Result<A, WireError>> + Send + 'static,
    {
        let Some(place) = self.rooms.enter(request.peer) else {
            self.manager.metrics.overloaded.add(1);
            return reply.err(WireError::new(ErrorCode::Overloaded, "the manager has too many requests; slow down"));
        };
        let question = match request.decode::<Q>() {
            Ok(question) => question,
            Err(error) => return reply.err(error),
        };
        let manager = self.manager.clone();
        let opcode = Opcode::from_code(request.opcode);
        let limited = opcode.filter(|_| request.peer.limits().is_some()).map(|opcode| (request.peer.clone(), opcode));
        let waits = Waits::of(opcode, limited.is_some());
        let until = request.deadline().filter(|_| place.is_clients());
        let answer = work(manager.clone(), question);
        self.manager.spawn(async move {
            if waits == Waits::TurnAfterReports {
                // Who leads no more says so in the answer.
                let _ = manager.reported().await;
            }
            let _turn = match waits {
                Waits::Turn | Waits::TurnAfterReports => place.turn().await,
                Waits::Nothing | Waits::Plan => None,
            };
            let _plan = if waits == Waits::Plan { place.plan().await } else { None };
            if until.is_some_and(|until| until < Instant::now()) {
                manager.metrics.overloaded.add(1);
                let text = "the manager has too many requests: nobody waits for this one any more";
                return reply.err(WireError::new(ErrorCode::Overloaded, text));
            }
            let answer = answer.await;
            manager.metrics.requests.add(1);
            manager.metrics.refused.add(u64::from(answer.is_err()));
            if let (Err(error), Some((peer, opcode))) = (&answer, limited)
                && Limits::is_refusal(error)
            {
                peer.note_refusal(opcode, error);
            }
            reply.result(answer);
            drop(place);
        });
    }
}

impl Desk {
    /// What clients ask: within the limits of their keys, which are looked up when the answer is given, for volumes
    /// come and go meanwhile.
    fn for_clients(&self, request: &Request<'_>, reply: Reply) {
        let (r, peer) = (request, request.peer.clone());
        match Opcode::from_code(request.opcode) {
            Some(Opcode::GetMap) => self.serve(r, reply, |m, q| async move {
                let map = m.get_map(q)?;
                Ok(Limits::of(&peer, &m).map(map))
            }),
            Some(Opcode::OpenSession) => self.serve(r, reply, |m, q| async move {
                let answer = m.open_session(q).await?;
                Ok(OpenSessionResponse { map: Limits::of(&peer, &m).within(answer.map), ..answer })
            }),
            Some(Opcode::ReportMember) => {
                // Ten commands on one machine see no more than one does, and it has as many addresses as it likes.
                let host = hash(&request.peer.site());
                self.serve(r, reply, move |m, q| async move {
                    let counts = Limits::of_leader(&peer, &m)?.reports(&m, &q)?;
                    m.report_member(q, Some(host).filter(|_| counts)).await
                });
            }
            Some(Opcode::EnsurePgs) => self.serve(r, reply, |m, q: EnsurePgsRequest| async move {
                Limits::of_leader(&peer, &m)?.changes(q.volume)?;
                let answer = m.ensure_pgs(q).await?;
                Ok(EnsurePgsResponse { map: Limits::of(&peer, &m).within(answer.map), pg: answer.pg })
            }),
            Some(Opcode::Status) => self.serve(r, reply, |m, _: StatusRequest| async move {
                match peer.limits() {
                    Some(_) => Limits::of(&peer, &m).status(m.status_of_few()?),
                    None => m.status(),
                }
            }),
            Some(Opcode::StartJob) => self.serve(r, reply, |m, q: StartJobRequest| async move {
                let limits = Limits::of_leader(&peer, &m)?;
                limits.changes(q.volume)?;
                let who = limits.who(q.who)?;
                m.start_job(StartJobRequest { who, ..q }).await
            }),
            Some(Opcode::ListJobs) => self.serve(r, reply, |m, q| async move {
                let answer = m.list_jobs(&q)?;
                Limits::of(&peer, &m).jobs(&q, answer)
            }),
            Some(Opcode::CancelJob) => self.serve(r, reply, |m, q: CancelJobRequest| async move {
                let limits = Limits::of_leader(&peer, &m)?;
                limits.cancels(&m, q.job)?;
                let who = limits.who(q.who)?;
                m.cancel_job(CancelJobRequest { who, ..q }).await
            }),
            _ => reply.err(WireError::new(ErrorCode::Internal, "not an operation that clients ask of a manager")),
        }
    }
}

/// A node registers as itself, with roles that its key has; without a key nobody knows.
fn may_register(peer: &PeerInfo, request: &RegisterRequest) -> Result<(), WireError> {
    let Some(holder) = &peer.holder else { return Ok(()) };
    if request.node != 0 || holder.node != NodeId(0) {
        peer.may_be(NodeId(request.node))?;
    }
    let Caller::Node(roles) = holder.caller else { return Ok(()) };
    let named = Roles::parse(&request.roles.join("+"));
    if named.is_some_and(|named| roles.covers(named)) {
        return Ok(());
    }
    let text = format!(
        "the key of {} is for the roles {roles}, and it registers with {}; make it a key with cairn key node",
        holder.name,
        request.roles.join(", ")
    );
    Err(WireError::new(ErrorCode::NotPermitted, text))
}

impl Desk {
    /// What nodes tell of themselves.
    fn for_nodes(&self, opcode: Opcode, request: &Request<'_>, reply: Reply) {
        let peer = request.peer.clone();
        match opcode {
            Opcode::Register => {
                self.serve(request, reply, |m, q: RegisterRequest| async move {
                    may_register(&peer, &q)?;
                    m.told_of_managers(peer.holder.as_ref(), q.node, q.managers.as_ref());
                    let turn = m.check_registration(peer.holder.as_ref(), &q).await?;
                    let registered = m.register(peer.holder.as_ref(), q).await?;
                    if turn.is_some() {
                        m.bind_newcomer(peer.holder.as_ref(), NodeId(registered.node)).await;
                    }
                    Ok(registered)
                });
            }
            Opcode::Heartbeat => {
                self.serve(request, reply, |m, q: HeartbeatRequest| async move {
                    peer.may_be(NodeId(q.node))?;
                    m.told_of_managers(peer.holder.as_ref(), q.node, q.managers.as_ref());
                    m.check_heard(peer.holder.as_ref(), &q).await?;
                    m.heartbeat(peer.holder.as_ref(), q).await
                });
            }
            Opcode::TakeJob => {
                self.serve(request, reply, |m, q: TakeJobRequest| async move {
                    peer.may_speak_for(NodeId(q.node))?;
                    m.take_job(q).await
                });
            }
            _ => {
                self.serve(request, reply, |m, q: ReportJobRequest| async move {
                    peer.may_speak_for(NodeId(q.node))?;
                    m.report_job(q).await
                });
            }
        }
    }
}

impl Service for Desk {
    fn call(&self, request: Request<'_>, reply: Reply) {
        let r = &request;
        match Opcode::from_code(request.opcode) {
            Some(opcode @ (Opcode::Register | Opcode::Heartbeat | Opcode::TakeJob | Opcode::ReportJob)) => {
                self.for_nodes(opcode, &request, reply);
            }
            Some(
                Opcode::GetMap
                | Opcode::OpenSession
                | Opcode::ReportMember
                | Opcode::EnsurePgs
                | Opcode::Status
                | Opcode::StartJob
                | Opcode::ListJobs
                | Opcode::CancelJob,
            ) => self.for_clients(&request, reply),
            Some(Opcode::CreateVolume) => self.serve(r, reply, |m, q| async move { m.create_volume(q).await }),
            Some(Opcode::SetVolume) => self.serve(r, reply, |m, q| async move { m.set_volume(q).await }),
            Some(Opcode::DeleteVolume) => self.serve(r, reply, |m, q| async move { m.delete_volume(q).await }),
            Some(Opcode::RestoreVolume) => self.serve(r, reply, |m, q| async move { m.restore_volume(q).await }),
            Some(Opcode::PurgeVolume) => self.serve(r, reply, |m, q| async move { m.purge_volume(q).await }),
            Some(Opcode::GetConfig) => self.serve(r, reply, |m, _: GetConfigRequest| async move { m.get_config() }),
            Some(Opcode::RevokeKeys) => {
                let peer = request.peer.clone();
                self.serve(r, reply, |m, q| async move { m.revoke_keys(peer.holder.as_ref(), q).await });
            }
            Some(Opcode::SetConfig) => self.serve(r, reply, |m, q| async move { m.set_config(q).await }),
            Some(Opcode::ChangeMembers) => self.serve(r, reply, |m, q| async move { m.change_members(q).await }),
            Some(Opcode::Drain) => self.serve(r, reply, |m, q| async move { m.drain(q).await }),
            Some(Opcode::Remove) => self.serve(r, reply, |m, q| async move { m.remove(q).await }),
            Some(Opcode::Hibernate) => self.serve(r, reply, |m, q| async move { m.hibernate(q).await }),
            Some(Opcode::ListEvents) => self.serve(r, reply, |m, q| async move { m.list_events(&q) }),
            Some(Opcode::ClearGray) => self.serve(r, reply, |m, q| async move { m.clear_gray(q).await }),
            Some(Opcode::GoOn) => self.serve(r, reply, |m, q| async move { m.go_on(q).await }),
            Some(Opcode::SplitPartition) => self.serve(r, reply, |m, q| async move { m.split_partition(q).await }),
            Some(Opcode::ForcePg) => self.serve(r, reply, |m, q| async move { m.force_pg(q).await }),
            other => {
                let name = other.map_or("an operation of a later version", Opcode::name);
                let text = format!("{name} ({:#06x}) is not served by the manager", request.opcode);
                reply.err(WireError::new(ErrorCode::UnknownOperation, text));
            }
        }
    }
}

fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}
