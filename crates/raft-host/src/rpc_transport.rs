//! [`RpcTransport`] carries Raft traffic over the rpc crate, [`RaftService`] takes it in.
//!
//! Messages are one-way: the rpc crate drops them when a peer cannot be reached or does not read, and Raft sends what
//! matters again. Not here: who has which address (the roles tell).

use std::collections::BTreeMap;
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use cairn_env::AlignedBuf;
use cairn_rpc::{CallError, CallOptions, Client, Peer, PeerInfo, Reply, Request, Service};
use cairn_store::StoreError;
use cairn_types::{ErrorCode, GroupId, NodeId};
use cairn_wire::Opcode;
use cairn_wire::audience::{Caller, Roles};
use cairn_wire::error::WireError;
use cairn_wire::frame::MESSAGE_MAX;
use cairn_wire::manager::ClusterMap;
use cairn_wire::raft::{
    AcceptLossRequest, FetchCheckpointRequest, FetchCheckpointResponse, GroupMembersRequest, RaftBatch,
    TakeCheckpointRequest,
};
use parking_lot::RwLock;
use prost::Message;

use crate::error::HostError;
use crate::host::RaftHost;
use crate::members::MembersAsk;
use crate::named::NamedMembers;
use crate::transport::{FetchError, RaftTransport};

/// Bytes of messages put into one frame; leaves room for the frame's own fields.
const FRAME_BYTES: usize = MESSAGE_MAX - (16 << 10);
/// How long a part of a checkpoint is waited for.
const FETCH_DEADLINE: Duration = Duration::from_secs(10);
/// Requests for parts of checkpoints that wait for the disk; further ones are told to come again.
const FETCHES_MAX: usize = 64;

/// Sends over a shared client to the addresses it was told.
pub struct RpcTransport {
    client: Client,
    named: NamedMembers,
    peers: RwLock<BTreeMap<NodeId, (String, Peer)>>,
}

impl RpcTransport {
    /// Knows nobody yet.
    pub fn new(client: Client) -> Self {
        Self { client, named: NamedMembers::default(), peers: RwLock::default() }
    }

    /// Where a node is reached ("host:port"). Repeating the known one costs nothing.
    pub fn set_address(&self, node: NodeId, address: impl Into<String>) {
        let address = address.into();
        if self.peers.read().get(&node).is_some_and(|(known, _)| *known == address) {
            return;
        }
        let peer = self.client.peer(&address);
        self.peers.write().insert(node, (address, peer));
    }

    /// Takes what a map, or a change of it, says of the members of partitions.
    pub fn learn_members(&self, change: &ClusterMap) {
        self.named.learn(change);
    }

    /// The address of a node, if known.
    pub fn address(&self, node: NodeId) -> Option<String> {
        self.peers.read().get(&node).map(|(address, _)| address.clone())
    }

    fn peer(&self, node: NodeId) -> Option<Peer> {
        self.peers.read().get(&node).map(|(_, peer)| peer.clone())
    }
}

impl RaftTransport for RpcTransport {
    fn send(&self, to: NodeId, batch: RaftBatch) {
        let Some(peer) = self.peer(to) else {
            tracing::debug!(%to, "no address is known");
            return;
        };
        let fullness = batch.fullness;
        let mut part = RaftBatch { beat: batch.beat, fullness, messages: Vec::new() };
        let mut bytes = part.beat.as_ref().map_or(0, Message::encoded_len);
        let send = |part: RaftBatch| {
            // Lost messages are Raft's everyday.
            if let Err(error) = peer.send(Opcode::RaftMessages.code(), &part, ()) {
                tracing::debug!(%to, ?error, "messages were dropped");
            }
        };
        for message in batch.messages {
            let len = message.encoded_len() + 8;
            if bytes > 0 && bytes + len > FRAME_BYTES {
                send(std::mem::replace(&mut part, RaftBatch { fullness, ..RaftBatch::default() }));
                bytes = 0;
            }
            bytes += len;
            part.messages.push(message);
        }
        if !part.messages.is_empty() || part.beat.is_some() {
            send(part);
        }
    }

    fn learn_address(&self, node: NodeId, address: &str) {
        self.set_address(node, address);
    }

    fn may_be_member(&self, group: GroupId, node: NodeId) -> bool {
        self.client.identity().tls().is_none() || self.named.has(group, node)
    }

    fn named_members(&self, group: GroupId) -> Vec<NodeId> {
        self.named.of(group)
    }

    fn fetch(
        &self,
        from: NodeId,
        request: FetchCheckpointRequest,
    ) -> Result<(FetchCheckpointResponse, Bytes), FetchError> {
        let failed = |cause: String| FetchError::Failed { from, cause };
        let peer = self.peer(from).ok_or_else(|| failed("its address is not known".into()))?;
        let (sender, receiver) = sync_channel(1);
        let options = CallOptions::new(FETCH_DEADLINE).bulk();
        peer.call_then(Opcode::FetchCheckpoint.code(), &request, (), options, move |result| {
            // The receiver waits longer than the deadline.
            let _ = sender.send(result);
        });
        let result = receiver.recv_timeout(FETCH_DEADLINE * 2).map_err(|_| failed("no answer".into()))?;
        let answer = match result {
            Ok(answer) => answer,
            Err(CallError::Remote(error)) if error.code == ErrorCode::NotFound => {
                return Err(FetchError::Gone { from });
            }
            Err(error) => return Err(failed(error.to_string())),
        };
        let message = answer.decode::<FetchCheckpointResponse>().map_err(|error| failed(error.to_string()))?;
        let bytes = answer.payload.map(Bytes::from_owner).unwrap_or_default();
        Ok((message, bytes))
    }
}

type FetchJob = (FetchCheckpointRequest, Reply);

/// Serves the operations of Raft (codes 0x01xx) for a host.
pub struct RaftService {
    host: Arc<RaftHost>,
    fetches: Mutex<SyncSender<FetchJob>>,
}

impl RaftService {
    /// Starts the thread that reads checkpoints for other nodes; it ends with this service.
    pub fn start(host: Arc<RaftHost>) -> std::io::Result<Self> {
        let (fetches, jobs) = sync_channel::<FetchJob>(FETCHES_MAX);
        let reader = host.clone();
        std::thread::Builder::new().name("cairn-ckpt-out".into()).spawn(move || {
            while let Ok((request, reply)) = jobs.recv() {
                answer(&reader, &request, reply);
            }
        })?;
        Ok(Self { host, fetches: Mutex::new(fetches) })
    }
}

impl RaftService {
    /// Answered from the group's own thread. A group that is not open here: `NotFound`.
    fn group_members(&self, request: &GroupMembersRequest, reply: Reply) {
        let group = GroupId(request.group);
        let Some(ask) = MembersAsk::decode(request) else {
            return reply.err(WireError::new(ErrorCode::BadRequest, "a change of members that makes no sense"));
        };
        if self.host.status(group).is_none() {
            return reply.err(WireError::new(ErrorCode::NotFound, format!("group {group} is not open on this node")));
        }
        let then = Box::new(move |result: Result<_, HostError>| match result {
            Ok(members) => reply.ok(&members, ()),
            Err(error @ (HostError::Refused(_) | HostError::NotLeader(_))) => {
                reply.err(WireError::new(ErrorCode::Conflict, error.to_string()));
            }
            Err(error) => reply.err(WireError::new(ErrorCode::Unavailable, error.to_string())),
        });
        self.host.ask_members(group, ask, then);
    }
}

impl RaftService {
    /// Servers get the state of their own groups alone, and accept losses of these: names of a volume are for those who
    /// serve it. Whoever is offered a checkpoint is a member by the leader's own configuration, so no healthy one is
    /// refused; what comes in on this server's admin socket is its own.
    fn may_have(&self, peer: &PeerInfo, group: u32) -> Result<(), WireError> {
        may_have_state(peer, group)?;
        let is_server = peer.holder.as_ref().is_some_and(|holder| matches!(holder.caller, Caller::Node(_)));
        if !is_server || group == GroupId::MANAGER.get() {
            return Ok(());
        }
        let status = self.host.status(GroupId(group));
        let members = status.map(|status| status.core.members).unwrap_or_default();
        let known = members.voters.iter().chain(&members.learners).copied().chain([self.host.node()]);
        if peer.speaks_for_one_of(known.chain(self.host.named_members(GroupId(group)))) {
            return Ok(());
        }
        let text = format!("the state of group {group} is for its members; if this node became one just now: repeat");
        Err(WireError::new(ErrorCode::NotPermitted, text))
    }

    /// Answered when the file is written. A group that is not open here: `NotFound`.
    fn take_checkpoint(&self, request: TakeCheckpointRequest, reply: Reply) {
        let group = GroupId(request.group);
        if self.host.status(group).is_none() {
            return reply.err(WireError::new(ErrorCode::NotFound, format!("group {group} is not open on this node")));
        }
        let then = Box::new(move |result: Result<_, HostError>| match result {
            Ok(taken) => reply.ok(&taken, ()),
            Err(error) => reply.err(WireError::new(ErrorCode::Unavailable, error.to_string())),
        });
        self.host.take_checkpoint(request, then);
    }
}

impl RaftService {
    /// A group that is not open here: `NotFound`.
    fn accept_loss(&self, request: AcceptLossRequest, reply: Reply) {
        let group = GroupId(request.group);
        if self.host.status(group).is_none() {
            return reply.err(WireError::new(ErrorCode::NotFound, format!("group {group} is not open on this node")));
        }
        let then = Box::new(move |result: Result<(), HostError>| match result {
            Ok(()) => reply.ok(&cairn_wire::common::Empty {}, ()),
            Err(HostError::Refused(why)) => reply.err(WireError::new(ErrorCode::InvalidArgument, why)),
            Err(error) => reply.err(WireError::new(ErrorCode::Unavailable, error.to_string())),
        });
        self.host.accept_loss(group, then);
    }
}

fn answer(host: &RaftHost, request: &FetchCheckpointRequest, reply: Reply) {
    match host.fetch_checkpoint(request) {
        Ok((message, part)) => {
            let mut payload = AlignedBuf::unpooled(part.len());
            payload.extend_from_slice(&part);
            reply.ok(&message, payload);
        }
        Err(error @ StoreError::NoCheckpoint { .. }) => {
            reply.err(WireError::new(ErrorCode::NotFound, error.to_string()));
        }
        Err(error) => {
            tracing::error!(%error, "a checkpoint could not be read for another node");
            reply.err(WireError::new(ErrorCode::Internal, error.to_string()));
        }
    }
}

/// What the members of a group are.
fn role_of(group: u32) -> Roles {
    if group == GroupId::MANAGER.get() { Roles::MANAGER } else { Roles::META }
}

/// The state of a group is for those who have it, and for administrators.
fn may_have_state(peer: &PeerInfo, group: u32) -> Result<(), WireError> {
    match peer.holder.as_ref().is_some_and(|holder| holder.caller == Caller::Admin) {
        true => Ok(()),
        false => peer.must_have(role_of(group), "the state of that group"),
    }
}

impl Service for RaftService {
    fn call(&self, request: Request<'_>, reply: Reply) {
        match Opcode::from_code(request.opcode) {
            Some(Opcode::RaftMessages) => match request.decode_sliced::<RaftBatch>() {
                Ok(batch) => {
                    let mut from = batch.messages.iter().map(|message| message.from);
                    let beat = batch.beat.as_ref().map(|beat| u64::from(beat.node));
                    let speaks = |node: u64| {
                        // What is no node's id is nobody's whose key is known.
                        request.peer.may_speak_for(NodeId(u32::try_from(node).unwrap_or(0)))
                    };
                    let groups = batch.messages.iter().map(|message| message.group);
                    let mut groups = groups.chain(batch.beat.iter().flat_map(|beat| beat.groups.iter().copied()));
                    let member = |group: u32| {
                        request.peer.must_have(role_of(group), "what members of that group tell each other")
                    };
                    let told = from.try_for_each(speaks).and_then(|()| beat.map_or(Ok(()), speaks));
                    if let Err(error) = told.and_then(|()| groups.try_for_each(member)) {
                        return reply.err(error);
                    }
                    self.host.deliver(batch);
                    reply.ok(&cairn_wire::common::Empty {}, ());
                }
                Err(error) => reply.err(error),
            },
            Some(Opcode::FetchCheckpoint) => match request
                .decode::<FetchCheckpointRequest>()
                .and_then(|message| self.may_have(request.peer, message.group).map(|()| message))
            {
                Ok(message) => {
                    let sender = self.fetches.lock().unwrap_or_else(PoisonError::into_inner).clone();
                    if let Err(TrySendError::Full((_, reply)) | TrySendError::Disconnected((_, reply))) =
                        sender.try_send((message, reply))
                    {
                        let text = "too many parts of checkpoints are being read; try again";
                        reply.err(WireError::new(ErrorCode::Overloaded, text));
                    }
                }
                Err(error) => reply.err(error),
            },
            Some(Opcode::GroupMembers) => match request.decode::<GroupMembersRequest>() {
                Ok(message) => self.group_members(&message, reply),
                Err(error) => reply.err(error),
            },
            Some(Opcode::AcceptLoss) => match request.decode::<AcceptLossRequest>().and_then(|message| {
                // A manager passes on what an administrator of its machine asks.
                let is_manager = request.peer.must_have(Roles::MANAGER, "that of another group").is_ok();
                let may = if is_manager { Ok(()) } else { self.may_have(request.peer, message.group) };
                may.map(|()| message)
            }) {
                Ok(message) => self.accept_loss(message, reply),
                Err(error) => reply.err(error),
            },
            Some(Opcode::TakeCheckpoint) => match request
                .decode::<TakeCheckpointRequest>()
                .and_then(|message| self.may_have(request.peer, message.group).map(|()| message))
            {
                Ok(message) => self.take_checkpoint(message, reply),
                Err(error) => reply.err(error),
            },
            _ => {
                let text = format!("operation {:#06x} is not one of Raft's", request.opcode);
                reply.err(WireError::new(ErrorCode::BadRequest, text));
            }
        }
    }
}
