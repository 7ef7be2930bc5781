//! The partition of the root lends: from what is free, else from what others give back.

use std::collections::BTreeMap;
use std::sync::Arc;

use cairn_meta_core::{Amounts, Asker, AtLimit, Lender, recall};
use cairn_types::{ErrorCode, PartitionId};
use cairn_wire::Opcode;
use cairn_wire::error::WireError;
use cairn_wire::meta::{
    AskBoundRequest, AskBoundResponse, Lend, NoteLent, TellBoundRequest, TellBoundResponse, VolumeBound,
};
use tokio::task::JoinSet;

use super::{TELL, set};
use crate::across::{Peers, drive};
use crate::partition::Partition;

/// What is free may be used meanwhile: it is looked for anew.
const TRIES: u32 = 4;

/// Makes room for what waits at the home itself. `Some`: there is none.
pub(super) async fn make_room(
    partition: &Partition,
    peers: &Arc<Peers>,
    least: Amounts,
) -> Result<Option<AtLimit>, WireError> {
    let _one = partition.state.across.desk.lender.lock().await;
    know_all(partition, peers).await?;
    let mut unreached = None;
    for _ in 0..TRIES {
        let asker = asker(partition, partition.state.id.get(), Amounts::NONE, least, least);
        if asker.lacks() == Amounts::NONE {
            return Ok(None);
        }
        if let Some(why) = unreached {
            return Ok(Some(why));
        }
        unreached = Some(give_back(partition, peers, None, asker.lacks()).await?);
    }
    Ok(unreached)
}

/// Lends to a partition that asks.
pub(super) async fn lend(
    partition: &Partition,
    peers: &Arc<Peers>,
    request: &AskBoundRequest,
) -> Result<AskBoundResponse, WireError> {
    let _one = partition.state.across.desk.lender.lock().await;
    know_all(partition, peers).await?;
    let used = Amounts::new(request.bytes_used, request.inodes_used);
    let least = Amounts::new(request.bytes_least, request.inodes_least);
    let wanted = Amounts::new(request.bytes_wanted, request.inodes_wanted).max(least);
    let others = peers.partitions(partition.state.volume).len() as u64;
    let mut unreached = None;
    for _ in 0..TRIES {
        let (known, is_known) = {
            let namespace = partition.state.namespace.read();
            (namespace.lent_to(request.partition), namespace.lent().contains_key(&request.partition))
        };
        let asker = asker(partition, request.partition, used, least, wanted);
        let Some(bound) = asker.bound(others) else {
            if let Some(why) = unreached {
                return Ok(AskBoundResponse { bound: None, at_limit: AtLimit::code(why) });
            }
            unreached = Some(give_back(partition, peers, Some(request.partition), asker.lacks()).await?);
            continue;
        };
        if least == Amounts::NONE && is_known && bound == known.ceiling && known.number == request.number {
            return Ok(AskBoundResponse::default());
        }
        let number = partition.state.namespace.read().next_number(request.partition, request.number);
        partition.propose_own(Opcode::Lend, &Lend { bounds: vec![told(request.partition, number, bound)] }).await?;
        // Less, where the home used some of it meanwhile.
        let lent = partition.state.namespace.read().lent_to(request.partition);
        if lent.number == number && lent.target.covers(used.plus(least)) {
            let bound = Some(told(request.partition, number, lent.target));
            return Ok(AskBoundResponse { bound, at_limit: 0 });
        }
    }
    let text = "what is left of the volume's limit is used by others all the time; repeat in a moment";
    Err(WireError::new(ErrorCode::Overloaded, text))
}

/// Whoever has no bound may use everything.
async fn know_all(partition: &Partition, peers: &Arc<Peers>) -> Result<(), WireError> {
    let knows = partition.state.namespace.read().lends_to_all();
    if knows { Ok(()) } else { set::settle_one(partition, peers).await }
}

/// With what requests here are about to use.
fn asker(partition: &Partition, of: u32, used: Amounts, least: Amounts, wanted: Amounts) -> Asker {
    let held = partition.state.across.desk.held();
    Asker { least, wanted, ..partition.state.namespace.read().asker(of, used, held) }
}

pub(super) fn told(partition: u32, number: u64, amounts: Amounts) -> VolumeBound {
    VolumeBound { partition, number, bytes: amounts.bytes, inodes: amounts.inodes }
}

/// Has partitions give back what they do not use, until so much has come; why there is no more.
async fn give_back(
    partition: &Partition,
    peers: &Arc<Peers>,
    but: Option<u32>,
    lacking: Amounts,
) -> Result<AtLimit, WireError> {
    let others = others(partition, peers).into_iter().filter(|other| Some(other.get()) != but).collect();
    let answers = tell_all(partition, peers, asked(others)).await;
    let mut why = AtLimit::UsedUp;
    let (mut lenders, mut heard, mut noted) = (Vec::new(), BTreeMap::new(), Vec::new());
    for (from, answer) in answers {
        let known = partition.state.namespace.read().lent_to(from.get());
        let Ok(TellBoundResponse { bound: Some(has), bytes_used, inodes_used }) = answer else {
            if known.ceiling != Amounts::NONE {
                why = AtLimit::Unreached;
            }
            continue;
        };
        let (mut ceiling, used) = (known.ceiling, Amounts::new(bytes_used, inodes_used));
        if has.number == known.number && has.number > 0 {
            // It may have logged what it was told without anybody hearing of it.
            ceiling = Amounts::new(has.bytes, has.inodes).max(used);
            if ceiling != known.ceiling {
                noted.push(told(from.get(), has.number, ceiling));
            }
        }
        heard.insert(from.get(), has.number);
        lenders.push(Lender { partition: from.get(), used, ceiling });
    }
    if !noted.is_empty() {
        partition.propose_own(Opcode::NoteLent, &NoteLent { bounds: noted }).await?;
    }
    let plan = recall(&lenders, lacking);
    let bounds: Vec<_> = {
        let namespace = partition.state.namespace.read();
        let number = |to: u32| namespace.next_number(to, heard.get(&to).copied().unwrap_or(0));
        plan.into_iter().map(|(to, target)| told(to, number(to), target)).collect()
    };
    if !change(partition, peers, bounds).await?.is_empty() {
        why = AtLimit::Unreached;
    }
    Ok(why)
}

/// Logs bounds, tells them, and logs what partitions have of them. Those that did not answer, with why.
pub(super) async fn change(
    partition: &Partition,
    peers: &Arc<Peers>,
    bounds: Vec<VolumeBound>,
) -> Result<Vec<(PartitionId, WireError)>, WireError> {
    if bounds.is_empty() {
        return Ok(Vec::new());
    }
    partition.propose_own(Opcode::Lend, &Lend { bounds: bounds.clone() }).await?;
    let requests: Vec<_> = {
        let namespace = partition.state.namespace.read();
        let lent = bounds.iter().map(|bound| (bound.partition, namespace.lent_to(bound.partition)));
        lent.map(|(to, lent)| (PartitionId(to), Some(told(to, lent.number, lent.target)))).collect()
    };
    let (mut noted, mut silent) = (Vec::new(), Vec::new());
    for (from, answer) in tell_all(partition, peers, requests).await {
        match answer {
            Ok(answer) => {
                let has = answer.bound.unwrap_or_default();
                let uses = Amounts::new(answer.bytes_used, answer.inodes_used);
                noted.push(told(from.get(), has.number, Amounts::new(has.bytes, has.inodes).max(uses)));
            }
            Err(error) => silent.push((from, error)),
        }
    }
    if !noted.is_empty() {
        partition.propose_own(Opcode::NoteLent, &NoteLent { bounds: noted }).await?;
    }
    Ok(silent)
}

pub(super) fn others(partition: &Partition, peers: &Arc<Peers>) -> Vec<PartitionId> {
    let mut others = peers.partitions(partition.state.volume);
    others.retain(|other| *other != partition.state.id);
    others
}

pub(super) fn asked(others: Vec<PartitionId>) -> Vec<(PartitionId, Option<VolumeBound>)> {
    others.into_iter().map(|other| (other, None)).collect()
}

/// Side by side.
pub(super) async fn tell_all(
    partition: &Partition,
    peers: &Arc<Peers>,
    requests: Vec<(PartitionId, Option<VolumeBound>)>,
) -> Vec<(PartitionId, Result<TellBoundResponse, WireError>)> {
    let mut calls = JoinSet::new();
    for (to, bound) in requests {
        let request = TellBoundRequest { header: Some(drive::header(partition, to)), bound };
        let peers = peers.clone();
        calls.spawn(async move { (to, peers.call(to, Opcode::TellBound, &request, TELL).await) });
    }
    let mut answers = Vec::new();
    while let Some(answer) = calls.join_next().await {
        // A task that could not be run has asked nobody: whoever lacks is asked the next time.
        answers.extend(answer);
    }
    answers
}
