//! Register: a node starts and gets its ids, an incarnation, and its map.
use super::marks;
use super::own_disks::{self, Withheld};
use crate::leading::Leading;
use crate::manager::Manager;
use cairn_manager_core::command::{Command, GenerationOf, Register, RegisterDisk};
use cairn_manager_core::items::{TEXT_MAX, clip, shorten};
use cairn_manager_core::liveness::ProbeOutcome;
use cairn_manager_core::soft::DiskLoad;
use cairn_manager_core::{DiskState, Key, Outcome, Registered, Roles, Scope, State};
use cairn_types::generation::LINEAGE_MAX;
use cairn_types::{DiskUuid, ErrorCode, MemberState, NodeId, Time};
use cairn_wire::error::WireError;
use cairn_wire::holder::Holder;
use cairn_wire::manager::{DiskReport, RegisterRequest, RegisterResponse};
use futures_util::StreamExt;
use std::collections::BTreeSet;
use std::time::Duration;

/// A node that sent a heartbeat within this time counts as living when a fellow member of its groups registers.
pub(super) const HEARD_WITHIN: Duration = Duration::from_secs(3);
/// Nodes that do not answer within this are as good as dead to one that registers; it may serve at once then.
const FELLOW_DEADLINE_MAX: Duration = Duration::from_millis(500);
/// Nodes that one registration asks at the same time.
const PROBES_AT_ONCE: usize = 32;

impl Manager {
    pub(crate) async fn register(
        &self,
        holder: Option<&Holder>,
        request: RegisterRequest,
    ) -> Result<RegisterResponse, WireError> {
        if request.address.is_empty() {
            let text = "a registration needs the address under which the node is reached";
            return Err(WireError::new(ErrorCode::BadRequest, text));
        }
        self.hear_registration(holder, &request).await?;
        let (fellows, level) =
            self.look_in_cluster(|state, leading| Ok((fellows(state, leading, &request, self.now()), state.level())))?;
        let silent = self.silent(fellows).await;
        self.refuse_clone(&request).await?;
        let withheld = self.withheld(holder, &request).await?;
        let outcome = self.execute(Command::Register(to_command(&request, &withheld, silent, level))).await?;
        let Outcome::Registered(mut registered) = outcome else {
            return Err(WireError::new(ErrorCode::Internal, "a registration came to something else"));
        };
        own_disks::with_places(&mut registered.disks, &withheld);
        registered.problems.extend(withheld.into_values());
        self.metrics.registrations.add(1);
        self.look(|state, leading| {
            let now = self.now();
            leading.liveness.heard(registered.node, now);
            leading.registered = Some(now);
            for (disk, report) in registered.disks.iter().zip(&request.disks).filter(|(disk, _)| disk.get() != 0) {
                leading.soft.disks.insert(*disk, load(report));
            }
            tracing::info!(node = %registered.node, incarnation = %registered.incarnation, address = %request.address,
                disks = registered.disks.len(), refused = registered.problems.len(), "a node registered");
            for disk in &registered.older {
                tracing::error!(%disk, node = %registered.node, "a disk came back as an older copy of itself: it serves nothing \
                    before it was compared with the other members of its groups; look at how its directory was restored");
            }
            answer(state, leading, registered)
        })
    }
}

impl Manager {
    /// Two processes with copies of one directory would take the node from each other with each registration: whoever
    /// is there and heard stays. One that moved to another address is let in as soon as nobody answers at the old one.
    async fn refuse_clone(&self, request: &RegisterRequest) -> Result<(), WireError> {
        let now = self.now();
        let present = self.look_in_cluster(|state, leading| {
            let node = DiskUuid::from_slice(&request.node_uuid).and_then(|uuid| state.node_by_uuid(uuid));
            let other = node.filter(|n| n.up && !n.address.is_empty() && n.address != request.address);
            let heard = other.filter(|n| is_heard(leading, n.id, now));
            let deadline = state.config().duration(Key::ProbeDeadline);
            Ok(heard.map(|n| (n.id, n.address.clone(), deadline)))
        })?;
        let Some((node, address, deadline)) = present else { return Ok(()) };
        if self.probe_node(&address, deadline).await != ProbeOutcome::Alive {
            return Ok(());
        }
        let clone = clip(&request.address);
        let text = format!(
            "{node} runs at {address}, and a process at {clone} has the same identity: one of their directories is a copy of the \
             other. {clone} is refused as long as {address} answers; stop the one that shall not be, and do not start it again: two \
             machines must never use copies of one directory"
        );
        tracing::error!(%node, present = %address, refused = %clone, "two processes have the identity of one node");
        self.look(|_, leading| leading.soft.clones.insert(node, (clone, now)))?;
        Err(WireError::new(ErrorCode::Conflict, text))
    }
}

fn answer(state: &State, leading: &Leading, registered: Registered) -> RegisterResponse {
    RegisterResponse {
        node: registered.node.get(),
        disks: registered.disks.iter().map(|disk| disk.get()).collect(),
        incarnation: registered.incarnation.get(),
        term: leading.term,
        map: Some(state.map(0, Scope::Node(registered.node), &leading.soft)),
        problems: registered.problems,
        marks: marks::known_of(state, leading, registered.node),
    }
}

/// Nodes with serving members in this node's groups that count as up.
#[derive(Default)]
struct Fellows {
    /// This leader does not hear them.
    silent: Vec<u32>,
    /// It did a moment ago: number, address.
    heard: Vec<(u32, String)>,
    deadline: Duration,
}

fn fellows(state: &State, leading: &Leading, request: &RegisterRequest, now: Time) -> Fellows {
    let uuids = request.disks.iter().filter_map(|disk| DiskUuid::from_slice(&disk.uuid));
    let disks = uuids.filter_map(|uuid| state.disk_by_uuid(uuid));
    let own = DiskUuid::from_slice(&request.node_uuid).and_then(|uuid| state.node_by_uuid(uuid)).map(|node| node.id);
    let deadline = state.config().duration(Key::ProbeDeadline).min(FELLOW_DEADLINE_MAX);
    let mut fellows = Fellows { deadline, ..Fellows::default() };
    let mut seen = BTreeSet::new();
    for pg in disks.flat_map(|disk| state.pgs_of(disk.id)) {
        for member in pg.members.iter().filter(|m| m.state == MemberState::Serving) {
            let Some(node) = state.disk(member.disk).map(|disk| disk.node) else { continue };
            if !seen.insert(node) {
                continue;
            }
            match state.node(node).filter(|node| Some(node.id) != own && is_heard(leading, node.id, now)) {
                Some(node) => fellows.heard.push((node.id.get(), node.address.clone())),
                None => fellows.silent.push(node.get()),
            }
        }
    }
    fellows
}

impl Manager {
    /// Those that do not answer now, whatever they did a moment ago: all may have died together, and who comes back
    /// first would make way for members that are not there, and may come back as older copies of themselves.
    async fn silent(&self, fellows: Fellows) -> Vec<u32> {
        let Fellows { mut silent, heard, deadline } = fellows;
        let probe = async |(node, address): (u32, String)| match self.probe_node(&address, deadline).await {
            ProbeOutcome::Alive => None,
            _ => Some(node),
        };
        let probes = futures_util::stream::iter(heard).map(probe).buffer_unordered(PROBES_AT_ONCE);
        silent.extend(probes.filter_map(std::future::ready).collect::<Vec<u32>>().await);
        silent.sort_unstable();
        silent
    }
}

pub(super) fn is_heard(leading: &Leading, node: NodeId, now: Time) -> bool {
    leading.liveness.was_heard(node) && leading.liveness.silence(node, now) <= HEARD_WITHIN
}

fn to_command(request: &RegisterRequest, withheld: &Withheld, silent: Vec<u32>, level: u32) -> Register {
    // Managers of before cannot apply them.
    let generations = level >= 5;
    let disk = |report: &DiskReport| RegisterDisk {
        uuid: report.uuid.clone(),
        disk: report.disk,
        path: clip(&report.path),
        total_bytes: report.total_bytes,
        free_bytes: report.free_bytes,
        state: DiskState::from_health(report.health).code(),
        problem: shorten(&report.problem, TEXT_MAX),
        generations: if generations { generations_of(report) } else { Vec::new() },
        generation_confirmed: if generations { report.generation_confirmed } else { 0 },
        tells_generations: generations && report.tells_generations,
    };
    let let_in = request.disks.iter().enumerate().filter(|(place, _)| !withheld.contains_key(place));
    Register {
        uuid: request.node_uuid.clone(),
        node: request.node,
        roles: Roles::from_names(&request.roles).0,
        address: clip(&request.address),
        http_address: clip(&request.http_address),
        rack: clip(&request.rack),
        host: clip(&request.host),
        software: clip(&request.version),
        disks: let_in.map(|(_, report)| disk(report)).collect(),
        silent,
    }
}

fn generations_of(report: &DiskReport) -> Vec<GenerationOf> {
    let runs = report.generations.iter().take(LINEAGE_MAX);
    runs.map(|run| GenerationOf { number: run.number, nonce: run.nonce }).collect()
}

/// What a report says about a disk's load.
pub(super) fn load(report: &DiskReport) -> DiskLoad {
    DiskLoad {
        total_bytes: report.total_bytes,
        free_bytes: report.free_bytes,
        queue_depth: report.queue_depth,
        latency_us: report.latency_us,
        chunks: report.chunks,
        filesystem: report.filesystem,
        bad_blocks: report.bad_blocks,
    }
}
