//! What leaders of other partitions ask of this one.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use cairn_meta_core::{Amounts, Namespace, Outcome, TxId};
use cairn_node_agent::MapView;
use cairn_rpc::{PeerInfo, Reply, Request};
use cairn_types::{ErrorCode, NodeId, PartitionId, VolumeId};
use cairn_wire::Opcode;
use cairn_wire::common::Empty;
use cairn_wire::error::WireError;
use cairn_wire::hello::PeerKind;
use cairn_wire::meta::{
    AboveTxRequest, AboveTxResponse, AskTxRequest, AskTxResponse, CheckPartRequest, EndedSessionsRequest,
    EndedSessionsResponse, FinishTxRequest, PrepareTxRequest, PrepareTxResponse, TellSnapshotsRequest, TxAnswer,
    TxFinish, TxPrepared, TxState,
};
use prost::Message;

use super::lend::{self, Verdict};
use super::{Peers, Work};
use crate::old_sessions;
use crate::partition::{Context, Partition, item};

/// Operations of one request.
pub(super) const MANY: usize = 256;

/// Answers another partition's leader.
pub(crate) fn serve(
    partition: &Partition,
    open: &BTreeMap<PartitionId, Arc<Partition>>,
    opcode: Opcode,
    request: &Request<'_>,
    reply: Reply,
) {
    if request.peer.hello.kind != PeerKind::Server {
        let text = format!("{} is what servers ask each other", opcode.name());
        return reply.err(WireError::new(ErrorCode::NotPermitted, text));
    }
    if !serves_the_volume(partition, request.peer) {
        let error = stranger(partition, opcode);
        request.peer.note_refusal(opcode, &error);
        return reply.err(error);
    }
    if let Err(not_leader) = partition.handle.read_permit() {
        return reply.err(partition.state.common.not_leader(not_leader.hint));
    }
    let outcome = match opcode {
        Opcode::PrepareTx => match to_prepare(partition, request) {
            Ok((data, true)) if partition.state.namespace.read().lacks_inode() => {
                return partition.state.across.hand_over(Work::Prepare(data, reply));
            }
            Ok((data, _)) => return prepare(partition, data, reply),
            Err(error) => Err(error),
        },
        Opcode::FinishTx => match request.decode::<FinishTxRequest>() {
            Ok(request) if request.finishes.len() <= MANY => {
                return partition.state.across.hand_over(Work::Finish(request.finishes, reply));
            }
            Ok(_) => Err(WireError::new(ErrorCode::BadRequest, format!("more than {MANY} operations at once"))),
            Err(error) => Err(error),
        },
        Opcode::StrikeNamed => match request.decode() {
            Ok(request) => return partition.state.across.hand_over(Work::Strike(request, reply)),
            Err(error) => Err(error),
        },
        Opcode::EndedSessions => request.decode().and_then(|request| ended_sessions(partition, &request)),
        Opcode::AskBound => match request.decode() {
            Ok(request) => return partition.state.across.hand_over(Work::Ask(request, reply)),
            Err(error) => Err(error),
        },
        Opcode::TellBound => match request.decode() {
            Ok(request) => return partition.state.across.hand_over(Work::Tell(request, reply)),
            Err(error) => Err(error),
        },
        Opcode::ListNamed => match request.decode() {
            Ok(request) => return partition.state.across.hand_over(Work::Names(request, reply)),
            Err(error) => Err(error),
        },
        Opcode::HoldCut | Opcode::MakeCut | Opcode::CutCheckpoint | Opcode::TellSnapshots => {
            return serve_snapshots(partition, opcode, request, reply);
        }
        Opcode::CheckPart => match request.decode() {
            Ok(request) => {
                let beside = led_beside(partition, open, &request);
                return partition.state.across.hand_over(Work::Check(request, beside, reply));
            }
            Err(error) => Err(error),
        },
        Opcode::AskTx => request.decode().map(|request| ask(partition, &request).encode_to_vec()),
        Opcode::AboveTx => request.decode().and_then(|request| above(partition, &request)).map(|a| a.encode_to_vec()),
        _ => Err(WireError::new(ErrorCode::UnknownOperation, "not an operation between servers")),
    };
    match outcome {
        Ok(answer) => reply.ok_with(|out| out.extend_from_slice(&answer), ()),
        Err(error) => reply.err(error),
    }
}

/// Whether who asks serves a partition of the same volume, by the map that was heard, or is a member of this one: the
/// key of another metadata server changes nothing of it.
///
/// No healthy server is refused for long: the map names a node before its group takes it (`member_change` of the
/// managers), and is heard here within a second. What servers ask each other is repeated, and this refusal asks for it.
/// Where no manager answers since this server started it knows its own members, which serve all partitions of a volume
/// in a cluster of few metadata servers; others wait, as they do for the leaders' addresses, which are in the map.
fn serves_the_volume(partition: &Partition, peer: &PeerInfo) -> bool {
    if serves(&partition.state.common.map.read(), partition.state.volume, peer) {
        return true;
    }
    let members = partition.handle.status().core.members;
    peer.speaks_for_one_of(members.voters.into_iter().chain(members.learners))
}

fn serves(map: &MapView, volume: VolumeId, peer: &PeerInfo) -> bool {
    let partitions = map.partitions().filter(|other| other.volume == volume.get() && !other.removed);
    peer.speaks_for_one_of(partitions.flat_map(|other| other.nodes.iter().copied().map(NodeId)))
}

#[cold]
fn stranger(partition: &Partition, opcode: Opcode) -> WireError {
    let text = format!(
        "{} is for those who serve {}, and the map that was heard here does not name this server as one of them; repeat",
        opcode.name(),
        partition.state.volume
    );
    WireError::new(ErrorCode::Unavailable, text)
}

/// What a partition has to know before it is led, or before it raises its floor of ended sessions.
fn ended_sessions(partition: &Partition, request: &EndedSessionsRequest) -> Result<Vec<u8>, WireError> {
    // A snapshot that is being taken counts only if no partition came that had no part in it: who began is known here.
    if partition.state.common.map.read().partition(PartitionId(request.partition)).is_none() {
        let text = format!("the map that names the partition p{} was not heard yet; repeat", request.partition);
        return Err(WireError::new(ErrorCode::Unavailable, text));
    }
    if request.live_up_to > 0 {
        let sessions = Some(old_sessions::not_ended(&partition.state, request.live_up_to));
        let answer = EndedSessionsResponse { sessions, live_only: true, ..EndedSessionsResponse::default() };
        return Ok(answer.encode_to_vec());
    }
    let namespace = partition.state.namespace.read();
    // A number of its own: under the last one the partition may have had another bound, and that be noted.
    let bound = namespace.next_number(request.partition, 0);
    let (sessions, limited) = (Some(namespace.ended_sessions()), namespace.has_volume_limit());
    let snapshots = namespace.snapshots_to_follow();
    Ok(EndedSessionsResponse { sessions, limited, bound, snapshots, live_only: false }.encode_to_vec())
}

/// What is asked on behalf of snapshots, and of backups.
fn serve_snapshots(partition: &Partition, opcode: Opcode, request: &Request<'_>, reply: Reply) {
    let across = &partition.state.across;
    let refused = match opcode {
        Opcode::HoldCut => match request.decode() {
            Ok(request) => return across.hand_over(Work::HoldCut(request, reply)),
            Err(error) => error,
        },
        Opcode::MakeCut => match request.decode() {
            Ok(request) => return across.hand_over(Work::MakeCut(request, reply)),
            Err(error) => error,
        },
        Opcode::CutCheckpoint => match request.decode() {
            Ok(request) => return across.hand_over(Work::CutCheckpoint(request, reply)),
            Err(error) => error,
        },
        _ => match request.decode::<TellSnapshotsRequest>() {
            Ok(request) => return across.hand_over(Work::Follow(request.list.unwrap_or_default(), reply)),
            Err(error) => error,
        },
    };
    reply.err(refused);
}

/// The entry, and whether it is to give out an inode.
fn to_prepare(partition: &Partition, request: &Request<'_>) -> Result<(Bytes, bool), WireError> {
    let request: PrepareTxRequest = request.decode()?;
    if let Some(error) = partition.not_understood(Opcode::TxPrepare) {
        return Err(error);
    }
    let bad = || WireError::new(ErrorCode::BadRequest, "a request to prepare nothing");
    let prepare = request.prepare.ok_or_else(bad)?;
    Ok((item(Opcode::TxPrepare, &prepare), prepare.new_inode))
}

fn prepare(partition: &Partition, data: Bytes, reply: Reply) {
    if let Err(Context::Prepare(reply)) = partition.propose(data, Context::Prepare(reply)) {
        let text = "too much waits for the partition's log; slow down and repeat";
        reply.err(WireError::new(ErrorCode::Overloaded, text));
    }
}

/// The answer to another partition's leader.
pub(crate) fn prepared(outcome: Result<&[u8], WireError>) -> Result<PrepareTxResponse, WireError> {
    match outcome {
        Ok(bytes) => {
            let prepared = TxPrepared::decode(bytes).expect("encoded a moment ago");
            Ok(PrepareTxResponse { prepared: Some(prepared), ..PrepareTxResponse::default() })
        }
        // It is asked again: what room there was has just been used.
        Err(error) if Namespace::is_locked_across(&error) || Namespace::asks_for(&error).is_some() => {
            Ok(PrepareTxResponse { locked: true, ..PrepareTxResponse::default() })
        }
        Err(error) => Err(error),
    }
}

/// The same for an inode for which room is to be got first.
pub(super) async fn prepare_with_room(partition: Arc<Partition>, peers: Arc<Peers>, data: Bytes, reply: Reply) {
    let ticket = partition.state.across.desk.ticket(Amounts::new(0, 1));
    let answer = match lend::ask(&partition, &peers, Some(&ticket)).await {
        Verdict::Again => return prepare(&partition, data, reply),
        Verdict::Full(why) => PrepareTxResponse { at_limit: why.code(), ..PrepareTxResponse::default() },
        // It is asked again.
        Verdict::Unknown(_) => PrepareTxResponse { locked: true, ..PrepareTxResponse::default() },
    };
    reply.ok(&answer, ());
}

/// Ends operations here, with or without a part in them.
pub(super) async fn finish(partition: Arc<Partition>, finishes: Vec<TxFinish>, reply: Reply) {
    // All are in the log before the first is waited for.
    let waits: Vec<_> = finishes.iter().map(|finish| partition.propose_later(Opcode::TxFinish, finish)).collect();
    let mut outcome = Ok(());
    for wait in waits {
        outcome = match wait {
            Ok(wait) => outcome.and(Partition::outcome(wait).await),
            Err(error) => outcome.and(Err(error)),
        };
    }
    match outcome {
        Ok(()) => reply.ok(&Empty {}, ()),
        Err(error) => reply.err(error),
    }
}

/// Other partitions of the volume that this node leads, for a check that asks for them as well.
fn led_beside(
    partition: &Partition,
    open: &BTreeMap<PartitionId, Arc<Partition>>,
    request: &CheckPartRequest,
) -> Vec<Arc<Partition>> {
    let (id, volume) = (partition.state.id, partition.state.volume);
    let is_beside = |other: &&Arc<Partition>| {
        other.state.volume == volume && other.state.id != id && other.state.leading_term().is_some()
    };
    if request.beside { open.values().filter(is_beside).cloned().collect() } else { Vec::new() }
}

fn ask(partition: &Partition, request: &AskTxRequest) -> AskTxResponse {
    let answers = request.txs.iter().map(|wire| {
        let tx = TxId::from_wire(*wire);
        let (state, effects) = outcome(partition, tx, request.participant);
        TxAnswer { tx: Some(*wire), state: state.into(), effects }
    });
    let answers = answers.collect();
    let state = &partition.state;
    let (busy_permille, _) = state.load.since_last(state.common.clock.now());
    let namespace = state.namespace.read();
    let full = namespace.fullness().degree > 0;
    AskTxResponse { answers, memory_bytes: namespace.memory_bytes(), busy_permille, full }
}

/// What became of an operation. Whether it is open is looked at first: when it ends, its record is there.
pub(super) fn outcome(
    partition: &Partition,
    tx: TxId,
    participant: u32,
) -> (TxState, Option<cairn_wire::meta::TxEffects>) {
    let state = &partition.state;
    let Some(term) = state.leading_term() else { return (TxState::TxOpen, None) };
    if tx.partition != state.id.get() || tx.term > term || tx.term == term && state.across.is_open(tx) {
        return (TxState::TxOpen, None);
    }
    match state.namespace.read().tx_outcome(tx, participant) {
        Outcome::Done(effects) => (TxState::TxDone, Some(effects)),
        Outcome::NoRecord => (TxState::TxVoid, None),
    }
}

fn above(partition: &Partition, request: &AboveTxRequest) -> Result<AboveTxResponse, WireError> {
    let tx = request.tx.map(TxId::from_wire);
    let tx = tx.ok_or_else(|| WireError::new(ErrorCode::BadRequest, "a request without an operation"))?;
    match partition.state.namespace.read().tx_above(tx, request.directory) {
        Ok(directories) => Ok(AboveTxResponse { directories, locked: false }),
        Err(error) if Namespace::is_locked_across(&error) => {
            Ok(AboveTxResponse { directories: Vec::new(), locked: true })
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_rpc::{Audit, Identity};
    use cairn_types::ClusterId;
    use cairn_wire::audience::{Caller, Roles};
    use cairn_wire::hello::Hello;
    use cairn_wire::holder::Holder;
    use cairn_wire::manager::{ClusterMap, Partition};
    use cairn_wire::protection::Protection;
    use cairn_wire::rights::Rights;

    fn peer(node: u32, with_key: bool) -> PeerInfo {
        let identity = Identity::new(ClusterId([1; 16]), PeerKind::Server, NodeId(99));
        let holder = Holder {
            name: format!("meta{node}"),
            caller: Caller::Node(Roles::META),
            node: NodeId(0),
            until: u64::MAX,
            rights: Rights::everything(),
        };
        PeerInfo {
            addr: "127.0.0.1:9".parse().expect("an address"),
            hello: Hello { node: NodeId(node), ..identity.hello() },
            version: 1,
            holder: Some(holder).filter(|_| with_key),
            protection: Protection::Private,
            audit: Audit::default(),
            node_keys: identity.node_keys().clone(),
        }
    }

    /// The key of any metadata server would change every volume; or a member that comes not be heard by the others.
    #[test]
    fn what_partitions_tell_each_other_comes_from_servers_of_the_volume() {
        let partition = |id, volume, nodes: &[u32], removed| Partition {
            id,
            volume,
            nodes: nodes.to_vec(),
            removed,
            ..Partition::default()
        };
        let mut map = MapView::default();
        let partitions =
            vec![partition(1, 1, &[21], false), partition(2, 1, &[22, 25], false), partition(3, 2, &[23], false)];
        assert!(map.apply(&ClusterMap { version: 5, partitions, ..ClusterMap::default() }));
        let may = |map: &MapView, node| serves(map, VolumeId(1), &peer(node, true));
        assert!([21, 22, 25].into_iter().all(|node| may(&map, node)), "its own partition, and another of the volume");
        assert!(!may(&map, 23) && !may(&map, 24), "another volume's, and nobody's");
        assert!(serves(&map, VolumeId(1), &peer(24, false)), "without keys nobody knows");
        let partitions = vec![partition(1, 1, &[21, 24], false), partition(2, 1, &[22, 25], true)];
        assert!(map.apply(&ClusterMap { base_version: 5, version: 6, partitions, ..ClusterMap::default() }));
        assert!(may(&map, 24) && !may(&map, 22), "who comes is in the map before; whose partition is gone is not");
    }
}
