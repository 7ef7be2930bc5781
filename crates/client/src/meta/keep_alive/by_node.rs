//! One keep-alive for all partitions that a node leads: a session that works in a thousand partitions of ten nodes
//! sends ten of them every five seconds.
//!
//! Invariants: whatever does not come back as renewed with the first answer is renewed by itself, as if nothing had
//! been tried: what is led elsewhere by now, what a server of an older release does not know, all of it if nobody answers
//! within [`LATE`]. So a group delays none of its partitions for longer than that. Not here: what waits for what is
//! wanted, and what did not answer the last time: they are asked by themselves.
use super::{Begun, Done, EVERY_LEASED, Ended, LATE, Work, ask, has_ended, heed};
use crate::meta::call::MetaCaller;
use crate::meta::session::Session;
use cairn_wire::meta::{AlsoRenew, AlsoRenewed, KeepAliveRequest, KeepAliveResponse};
use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use tokio::sync::Semaphore;
use tokio::time::Instant;

/// Partitions that are renewed by one request, at most. Servers take 1,024 beside the one that is asked.
const GROUP_MAX: usize = 256;

/// What is renewed by one request each, and what is done by itself.
pub(super) fn grouped(begun: Vec<Begun>, leader: impl Fn(u32) -> Option<String>) -> (Vec<Vec<u32>>, Vec<Begun>) {
    let (mut of_node, mut alone) = (BTreeMap::<String, Vec<u32>>::new(), Vec::new());
    for begun in begun {
        match begun {
            Begun { work: Work::Renew(partition), waits: false, failed: false }
                if let Some(address) = leader(partition) =>
            {
                of_node.entry(address).or_default().push(partition);
            }
            _ => alone.push(begun),
        }
    }
    let mut groups = Vec::new();
    for partitions in of_node.into_values() {
        for group in partitions.chunks(GROUP_MAX) {
            match group {
                [one] => alone.push(by_itself(*one)),
                _ => groups.push(group.to_vec()),
            }
        }
    }
    (groups, alone)
}

const fn by_itself(partition: u32) -> Begun {
    Begun { work: Work::Renew(partition), waits: false, failed: false }
}

/// Renews partitions of one node.
pub(super) fn renew_group(
    group: Vec<u32>,
    caller: Arc<MetaCaller>,
    session: Arc<Session>,
    places: Arc<Semaphore>,
) -> Pin<Box<dyn Future<Output = Ended> + Send>> {
    Box::pin(async move {
        let place = places.acquire().await;
        let ended = renew_together(&group, &caller, &session).await;
        drop(place);
        ended
    })
}

async fn renew_together(group: &[u32], caller: &Arc<MetaCaller>, session: &Arc<Session>) -> Ended {
    let mut ended = Ended { done: Vec::new(), left: Vec::new() };
    let Some((&first, others)) = group.split_first() else { return ended };
    let known = |partition: u32| {
        let acknowledged = session.soft.acknowledged(partition);
        AlsoRenew { partition, soft_holds: acknowledged.is_some(), acknowledged: acknowledged.unwrap_or(0) }
    };
    let AlsoRenew { soft_holds, acknowledged, .. } = known(first);
    let request = KeepAliveRequest {
        header: Some(caller.header(first, session.id, 0, 0)),
        soft_holds,
        acknowledged,
        also: others.iter().map(|partition| known(*partition)).collect(),
        ..KeepAliveRequest::default()
    };
    let (sent, begun) = (caller.cluster.clock.now(), Instant::now());
    let mut answers = match ask(caller, first, &request, caller.cluster.patience.min(LATE)).await {
        Ok(mut answer) => {
            let also = std::mem::take(&mut answer.also);
            let told = |AlsoRenewed { partition, answer }| answer.map(|answer| (partition, answer));
            let mut answers: BTreeMap<u32, KeepAliveResponse> = also.into_iter().filter_map(told).collect();
            answers.insert(first, answer);
            answers
        }
        Err(error) => {
            let outcome = Err(error);
            if has_ended(&outcome) {
                ended.done.push((Work::Renew(first), outcome));
                return ended;
            }
            BTreeMap::new()
        }
    };
    for &partition in group {
        match answers.remove(&partition).and_then(|answer| done(caller, session, partition, &answer, (sent, begun))) {
            Some(done) => ended.done.push(done),
            None => ended.left.push(by_itself(partition)),
        }
    }
    ended
}

/// Takes in an answer. `None` if there is more to be done: what it names as unlinked is to be held or acknowledged.
fn done(
    caller: &Arc<MetaCaller>,
    session: &Arc<Session>,
    partition: u32,
    answer: &KeepAliveResponse,
    (sent, begun): (cairn_types::Time, Instant),
) -> Option<Done> {
    let is_new = heed(caller, session, partition, sent, answer);
    if session.soft.acknowledged(partition).is_some() {
        if !session.soft.to_hold(partition, answer.index, &answer.unlinked).is_empty() {
            return None;
        }
        session.soft.acknowledge(partition, answer.index);
        if !answer.unlinked.is_empty() || answer.more {
            return None;
        }
    }
    let again = answer.waits.then(|| if is_new { begun } else { begun + EVERY_LEASED });
    Some((Work::Renew(partition), Ok(again)))
}
