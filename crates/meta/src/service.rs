//! The role as an RPC service: reads answered inline under the leader's lease, mutations handed to the log.
//!
//! Invariants: nothing is read without a read permit, but by ReadStale (`stale.rs`); nothing is proposed that lacks a
//! session, credentials or a partition of this node, or that only a leader itself may propose. Everything here runs on
//! the connection's thread and never waits.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use cairn_meta_core::Namespace;
use cairn_rpc::{Reply, Request, Service};
use cairn_types::{ErrorCode, PartitionId};
use cairn_wire::Opcode;
use cairn_wire::common::Empty;
use cairn_wire::error::WireError;
use cairn_wire::meta::{
    EncodeSoonRequest, EncodeSoonResponse, FsckRequest, FsckResponse, ShardDirectoryRequest, StatfsRequest,
    StatfsResponse,
};
use prost::Message;

use crate::across::{self, Mutation, Work};
use crate::ends::{self, Asked, End};
use crate::file_work;
use crate::header::Head;
use crate::keep_alive::Renewed;
use crate::partition::{Context, Partition};
use crate::places;
use crate::rights::{self, not_here};
use crate::server::MetaServer;
use crate::stale::read_stale;
use crate::stats::count;

/// A thread's buffer for answers is given back above this size.
const KEEP_BYTES: usize = 128 << 10;

thread_local! {
    static ANSWER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl Service for MetaServer {
    fn call(&self, request: Request<'_>, reply: Reply) {
        let opcode = Opcode::from_code(request.opcode);
        let Some(opcode) = opcode.filter(|opcode| matches!(opcode.code() >> 8, 0x04 | 0x05)) else {
            let text = format!("operation {:#06x} is none of the meta service", request.opcode);
            return self.refuse(reply, WireError::new(ErrorCode::UnknownOperation, text));
        };
        self.common().stats.op(opcode);
        let message = match rights::in_allowed_names(&request, opcode) {
            Ok(message) => message,
            Err(error) => {
                request.peer.note_refusal(opcode, &error);
                return self.refuse(reply, error);
            }
        };
        let request = Request { message: &message, ..request };
        let Some(head) = Head::find(request.message) else {
            let text = format!("the message of {} has no header", opcode.name());
            return self.refuse(reply, WireError::new(ErrorCode::BadRequest, text));
        };
        let partitions = self.partitions().read();
        let id = PartitionId(head.partition);
        let partition = partitions.get(&id);
        if let Some(limits) = request.peer.limits()
            && let Err(error) =
                rights::judge(self.common(), limits, opcode, request.message, (id, partition.map(Arc::as_ref)))
        {
            request.peer.note_refusal(opcode, &error);
            return self.refuse(reply, error);
        }
        if let Some(error) = file_work::flaw(request.peer.holder.as_ref(), opcode, request.message) {
            request.peer.note_refusal(opcode, &error);
            return self.refuse(reply, error);
        }
        let Some(partition) = partition else {
            return self.refuse(reply, self.not_open(id));
        };
        if opcode.is_between_servers() {
            return across::serve(partition, &partitions, opcode, &request, reply);
        }
        // Others than the leader may not have heard yet that it was brought back.
        let is_trashed = partition.state.trashed.load(Ordering::Relaxed) && partition.state.leading_term().is_some();
        if is_trashed && !serves_in_trash(opcode) {
            return self.refuse(reply, in_trash(partition));
        }
        if opcode == Opcode::KeepAlive {
            match self.keep_alive((partition, &partitions), &head, &request) {
                Ok(Renewed::Now(answer)) => reply.ok(&answer, ()),
                Ok(Renewed::Waits { request, lease_ms }) => {
                    partition.state.tell_or_wait(head.session, request, lease_ms, reply);
                }
                Err(error) if error.code == ErrorCode::NotLeader => reply.err(error),
                Err(error) => self.refuse(reply, error),
            }
        } else if opcode.is_meta_mutation() {
            self.mutate(partition, opcode, &head, request, reply);
        } else {
            self.read(partition, opcode, &head, request.message, reply);
        }
    }
}

impl MetaServer {
    #[cold]
    fn refuse(&self, reply: Reply, error: WireError) {
        count(&self.common().stats.errors);
        reply.err(error);
    }

    #[cold]
    fn not_open(&self, partition: PartitionId) -> WireError {
        match self.is_expected(partition) {
            true => WireError::new(ErrorCode::Unavailable, format!("{partition} is not open here yet; repeat")),
            false => not_here(partition),
        }
    }

    fn read(&self, partition: &Partition, opcode: Opcode, head: &Head, message: &[u8], reply: Reply) {
        if opcode == Opcode::ReadStale {
            return match read_stale(partition, message) {
                Ok(answer) => reply.ok(&answer, ()),
                Err(error) => self.refuse(reply, error),
            };
        }
        if let Err(not_leader) = partition.handle.read_permit() {
            return reply.err(self.common().not_leader(not_leader.hint));
        }
        if opcode == Opcode::Open
            && let Err(error) = self.admit_open(partition, head, message)
        {
            return reply.err(error);
        }
        if head.session != 0 {
            partition.state.leases.touch(head.session, self.common().coarse_now());
        }
        if opcode == Opcode::Fsck {
            return match fsck(partition, message) {
                Ok(answer) => reply.ok(&answer, ()),
                Err(error) => self.refuse(reply, error),
            };
        }
        if matches!(opcode, Opcode::StageStatus | Opcode::EncodeSoon | Opcode::ShardDirectory | Opcode::CutCheckpoints)
        {
            return self.of_duties(partition, opcode, message, reply);
        }
        if opcode == Opcode::WaitChange {
            return partition.state.wait_change(message, self.common().coarse_now(), reply);
        }
        if opcode == Opcode::AppendTurn {
            return partition.state.append_turn(message, reply);
        }
        if opcode == Opcode::WaitLock {
            return partition.state.wait_lock(message, self.common().coarse_now(), reply);
        }
        ANSWER.with_borrow_mut(|answer| {
            answer.clear();
            let (mut outcome, wants) = {
                let namespace = partition.state.namespace.read();
                (namespace.read(opcode, message, answer), namespace.wants_delegations())
            };
            if wants {
                partition.state.tell_wanted();
            }
            if opcode == Opcode::Statfs && outcome.is_ok() {
                outcome = add_unreferenced(partition, message, self.common().coarse_now(), answer);
            }
            match outcome {
                Ok(()) => reply.ok_with(|out| out.extend_from_slice(answer), ()),
                Err(error) if partition.state.across.is_one_of_several() && Namespace::is_locked_across(&error) => {
                    let message = Bytes::copy_from_slice(message);
                    partition.state.across.hand_over(Work::Read(opcode, message, reply));
                }
                Err(error) => self.refuse(reply, error),
            }
            if answer.capacity() > KEEP_BYTES {
                *answer = Vec::new();
            }
        });
    }

    /// What the leader's duties are asked.
    fn of_duties(&self, partition: &Partition, opcode: Opcode, message: &[u8], reply: Reply) {
        let bad = || WireError::new(ErrorCode::BadRequest, "the message cannot be decoded");
        match opcode {
            Opcode::StageStatus => {
                let (state, wall) = (&partition.state, partition.state.common.clock.wall());
                let told = state.stage.answer(&state.namespace.read(), wall);
                reply.ok(&told, ());
            }
            Opcode::EncodeSoon => match EncodeSoonRequest::decode(message) {
                Ok(request) => {
                    let waiting = partition.state.encode_soon(&request.inodes);
                    reply.ok(&EncodeSoonResponse { waiting }, ());
                }
                Err(_) => self.refuse(reply, bad()),
            },
            Opcode::ShardDirectory => match ShardDirectoryRequest::decode(message) {
                Ok(request) if partition.state.across.is_one_of_several() => {
                    partition.state.across.hand_over(Work::Shard(request, reply));
                }
                Ok(request) => self.refuse(reply, no_shards(partition, request.inode)),
                Err(_) => self.refuse(reply, bad()),
            },
            _ if partition.state.across.is_one_of_several() => {
                partition.state.across.hand_over(Work::CutCheckpoints(reply));
            }
            _ => {
                let text = "this node does not know yet that the volume has several partitions; repeat";
                self.refuse(reply, WireError::new(ErrorCode::Unavailable, text));
            }
        }
    }

    fn mutate(&self, partition: &Partition, opcode: Opcode, head: &Head, request: Request<'_>, reply: Reply) {
        if let Some(flaw) = flaw(opcode, head, partition) {
            return self.refuse(reply, flaw);
        }
        let limited = request.peer.limits().is_some();
        let misplaced =
            places::flaw(opcode, request.message, partition.state.volume, &self.common().map.read(), limited);
        if let Some(error) = misplaced {
            if error.code == ErrorCode::Overloaded {
                // A group that has just been made.
                self.poke();
            }
            return self.refuse(reply, error);
        }
        if partition.state.leading_term().is_none() {
            return reply.err(self.common().not_leader(partition.handle.leader()));
        }
        if partition.state.is_unborn() {
            let text = format!("{} was made a moment ago and is about to serve; repeat", partition.state.id);
            return self.refuse(reply, WireError::new(ErrorCode::Unavailable, text));
        }
        let needed = Namespace::needed_level(opcode, request.message);
        if let Some(error) = partition.lacks_level(opcode.name(), needed) {
            return self.refuse(reply, error);
        }
        if opcode == Opcode::EndSession {
            match self.judge_end(partition, head, &request) {
                End::Goes => {}
                End::Nothing => return reply.ok(&Empty {}, ()),
                End::Refused(error) => return self.refuse(reply, error),
            }
        }
        if let Err(text) = self.admit(partition, opcode, head, &request) {
            return self.overloaded(reply, &text);
        }
        if opcode == Opcode::SetLock
            && let Some(error) = partition.state.namespace.read().refuses_lock(request.message)
        {
            return self.refuse(reply, error);
        }
        let mut data = Vec::with_capacity(2 + request.message.len());
        data.extend_from_slice(&opcode.code().to_le_bytes());
        data.extend_from_slice(request.message);
        if opcode == Opcode::Publish {
            partition.state.heed_append_turns(request.message, &mut data);
        }
        let (data, received) = (Bytes::from(data), request.received);
        if partition.state.across.concerns(partition, opcode, request.message) {
            return partition.state.across.hand_over(Work::Mutation(Mutation { data, reply, received }));
        }
        let context = Context::Client { reply, received };
        if let Err(Context::Client { reply, .. }) = partition.propose(data, context) {
            self.overloaded(reply, "too much waits for the partition's log; slow down and repeat");
        }
    }

    fn judge_end(&self, partition: &Partition, head: &Head, request: &Request<'_>) -> End {
        let (state, session) = (&partition.state, head.session);
        let limits = request.peer.limits();
        let known = state.namespace.read().session_state(session);
        ends::judge(&Asked {
            session,
            state: known,
            below: self.common().sessions_below.load(Ordering::Relaxed),
            leased_by: state.leases.client_of(session),
            from: request.peer.addr.ip(),
            reads_only: limits.is_some_and(|(_, rights)| rights::may_only_read(self.common(), rights, partition)),
        })
    }

    #[cold]
    fn overloaded(&self, reply: Reply, text: &str) {
        count(&self.common().stats.overloaded);
        reply.err(WireError::new(ErrorCode::Overloaded, text));
    }
}

/// Adds what no file names, for those who want to know it.
fn add_unreferenced(
    partition: &Partition,
    message: &[u8],
    now: cairn_types::Time,
    answer: &mut Vec<u8>,
) -> Result<(), WireError> {
    let request = StatfsRequest::decode(message)
        .map_err(|_| WireError::new(ErrorCode::BadRequest, "the message cannot be decoded"))?;
    if request.unreferenced {
        let unreferenced = Some(partition.state.survey.ask(now));
        let more = StatfsResponse { unreferenced, ..Default::default() };
        // Fields of a message may come one after the other.
        answer.extend_from_slice(&more.encode_to_vec());
    }
    Ok(())
}

/// Why a directory of a volume that has one partition gets no shards.
fn no_shards(partition: &Partition, directory: u64) -> WireError {
    let refused = partition.state.namespace.read().shards_of(directory).err();
    refused.unwrap_or_else(|| {
        WireError::new(ErrorCode::Unavailable, "the volume is getting more partitions; repeat in a moment")
    })
}

/// What lets sessions end as they do, and root check the volume.
const fn serves_in_trash(opcode: Opcode) -> bool {
    matches!(opcode, Opcode::KeepAlive | Opcode::EndSession | Opcode::Fsck | Opcode::CutCheckpoints)
}

#[cold]
fn in_trash(partition: &Partition) -> WireError {
    let text = format!(
        "the volume of {} is in the trash and serves nobody; `cairn admin volume ls` shows its name and until when, `cairn admin volume \
         restore` brings it back",
        partition.state.id
    );
    WireError::new(ErrorCode::UnknownVolume, text)
}

/// A check is started, or asked how it goes on.
fn fsck(partition: &Partition, message: &[u8]) -> Result<FsckResponse, WireError> {
    let request = FsckRequest::decode(message)
        .map_err(|_| WireError::new(ErrorCode::BadRequest, "the message cannot be decoded"))?;
    let who = request.header.as_ref().and_then(|header| header.who.as_ref());
    if who.is_none_or(|who| who.uid != 0) {
        let text = "a check reads all names of the volume: only root may ask for it";
        return Err(WireError::new(ErrorCode::NotPermitted, text));
    }
    partition.state.fsck.ask(&request)
}

/// Why a mutation is not let into the log.
pub(crate) fn flaw(opcode: Opcode, head: &Head, partition: &Partition) -> Option<WireError> {
    let bad = |text: &str| Some(WireError::new(ErrorCode::BadRequest, text));
    if opcode.is_internal() {
        return bad("only the partition's leader itself may do this");
    }
    if head.session == 0 {
        return bad("a mutation needs a session; open one at the manager");
    }
    if !head.who {
        return bad("a mutation needs credentials");
    }
    if head.volume != partition.state.volume.get() {
        let text = format!("{} belongs to {}; refresh the cluster map", partition.state.id, partition.state.volume);
        return Some(WireError::new(ErrorCode::UnknownPartition, text));
    }
    None
}
